"""LSTMs, GRUs and RNNs, which keep what their parameters were beside them, with other parameters in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purefx
from purefx import func

Parameters = dict[str, Tensor]

KINDS = pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])


def given(kind: type[nn.RNNBase], **options: Any) -> tuple[nn.RNNBase, Parameters, Tensor]:
    """A module, other parameters for it, and a batch of inputs."""
    torch.manual_seed(0)
    module = kind(3, 4, batch_first=True, **options)
    return module, {name: x.detach() * 1.5 for name, x in module.named_parameters()}, torch.randn(5, 2, 3)


def loss_of(module: nn.Module) -> Callable[[Parameters, Tensor], Tensor]:
    return lambda p, x: torch.func.functional_call(module, p, (x[None],))[0].square().sum()


def expected_gradients(module: nn.RNNBase, p: Parameters, xs: Tensor) -> Parameters:
    """The gradient of each example by itself, in eager."""
    each = [torch.func.grad(loss_of(module))(p, x) for x in xs]
    return {name: torch.stack([gradients[name] for gradients in each]) for name in p}


@KINDS
def test_a_functional_call_is_the_same_as_in_eager(kind: type[nn.RNNBase]) -> None:
    module, p, xs = given(kind)
    assert purefx.check(lambda p, x: torch.func.functional_call(module, p, (x,))[0], p, xs)
    assert purefx.check(lambda p, x: func.functional_call(module, p, (x,))[0], p, xs)
    gradient = torch.func.grad(loss_of(module))
    torch.testing.assert_close(purefx.compile(gradient)(p, xs[0]), gradient(p, xs[0]))


@KINDS
def test_one_capture_serves_whatever_a_call_before_has_left_in_the_module(kind: type[nn.RNNBase]) -> None:
    module, p, xs = given(kind)

    def run(p: Parameters, x: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(module, p, (x,))[0]
        return result

    compiled = purefx.compile(run)
    for scale in (1.0, 2.0, 3.0):
        other = {name: scale * x for name, x in p.items()}
        torch.testing.assert_close(compiled(other, xs), run(other, xs))
        torch.testing.assert_close(compiled(p, xs), run(p, xs))
        module(xs)
    assert len(compiled.specialisations) == 1


@KINDS
def test_the_gradient_of_each_example_by_the_transforms_of_purefx(kind: type[nn.RNNBase]) -> None:
    module, p, xs = given(kind)
    expected, before = expected_gradients(module, p, xs), module(xs)[0]
    gradients = func.vmap(func.grad(loss_of(module)), (None, 0))
    for compiled in (gradients, purefx.compile(gradients)):
        torch.testing.assert_close(compiled(p, xs), expected)
    torch.testing.assert_close(
        torch.func.vmap(torch.func.grad(purefx.compile(loss_of(module))), (None, 0))(p, xs), expected
    )
    torch.testing.assert_close(module(xs)[0], before)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}, {"bias": False}])
def test_the_gradient_of_each_example_by_the_transforms_of_torch(options: dict[str, Any]) -> None:
    module, p, xs = given(nn.LSTM, **options)
    gradients = torch.func.vmap(torch.func.grad(loss_of(module)), (None, 0))
    torch.testing.assert_close(purefx.compile(gradients)(p, xs), gradients(p, xs))


@pytest.mark.parametrize(("kind", "options"), [(nn.GRU, {}), (nn.LSTM, {"proj_size": 2})])
def test_what_vmap_refuses_in_eager_raises_the_same_error(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    module, p, xs = given(kind, **options)
    gradients = torch.func.vmap(torch.func.grad(loss_of(module)), (None, 0))
    for each in (gradients, purefx.compile(gradients)):
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            each(p, xs)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_wrappers_that_a_transform_has_left_in_a_module_are_no_inputs() -> None:
    module, p, xs = given(nn.LSTM)
    expected = module(xs)[0]
    torch.func.vmap(torch.func.grad(loss_of(module)), (None, 0))(p, xs)
    torch.testing.assert_close(purefx.compile(module)(xs)[0], expected)
    torch.func.grad(loss_of(module))(p, xs[0])
    torch.testing.assert_close(purefx.compile(module)(xs)[0], expected)


@KINDS
def test_a_weight_that_the_program_sets_is_set_again_at_each_call(kind: type[nn.RNNBase]) -> None:
    module, _, xs = given(kind)
    nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    with torch.no_grad():
        assert purefx.check(module, xs)
        module(xs)
        assert purefx.check(module, xs)
