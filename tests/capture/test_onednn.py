"""LSTMs run oneDNN's kernel where eager does: the same results to the last bit, and the same tensors are saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purefx

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False, "batch_first": True},
    {"num_layers": 2, "dropout": 0.5},
    {"proj_size": 2},
    {"dtype": torch.double},
]


def trained(module: nn.LSTM, run: Any, x: Tensor) -> list[Tensor]:
    """Results and gradients, the same random numbers for each."""
    torch.manual_seed(1)
    module.zero_grad()
    output, (hidden, cell) = run(x)
    (output.square().sum() + hidden.sum() + cell.sum()).backward()
    return [output, hidden, cell, *[p.grad.clone() for p in module.parameters() if p.grad is not None]]


def given(options: dict[str, Any]) -> tuple[nn.LSTM, Tensor]:
    torch.manual_seed(0)
    return nn.LSTM(3, 4, **options), torch.randn(5, 2, 3, dtype=options.get("dtype"))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("backend", [None, lambda module, examples: module.forward])
def test_training_is_the_same_to_the_last_bit(options: dict[str, Any], backend: Any) -> None:
    module, x = given(options)
    compiled = purefx.compile(module, backend)
    for _ in range(2):
        for found, expected in zip(trained(module, compiled, x), trained(module, module, x), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_running_without_gradients_is_the_same_to_the_last_bit(options: dict[str, Any], mode: Any) -> None:
    module, x = given(options)
    module.eval()
    with mode():
        assert torch.equal(purefx.compile(module)(x)[0], module(x)[0])


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_a_step_of_the_program_without_gradients_is_the_same(partition: Any) -> None:
    module, x = given({})

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            first: Tensor = module(x)[1][0]
        second: Tensor = module(x, (first, first))[0]
        return second

    assert purefx.check(run, x.requires_grad_(), partition=partition)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_write_to_the_result_breaks_the_backward_as_in_eager(transposed: bool) -> None:  # noqa: FBT001 - a case
    module, x = given({"batch_first": transposed})
    for run in (module, purefx.compile(module)):
        output = run(x)[0]
        output.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


def test_second_gradients_are_those_of_eager() -> None:
    module, x = given({})
    x.requires_grad_()

    def second(run: Any) -> tuple[Tensor, ...]:
        (first,) = torch.autograd.grad(run(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, *module.parameters()])

    for found, expected in zip(second(purefx.compile(module)), second(module), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_graph_has_one_call_for_each_layer_and_direction() -> None:
    module, x = given({"num_layers": 2, "bidirectional": True})
    text = str(purefx.trace(module, x))
    assert text.count("purefx.mkldnn_rnn_layer.default(") == 4
    assert text.count("purefx.mkldnn_rnn_layer_backward.default(") == 4
    with torch.no_grad():
        assert str(purefx.trace(module, x)).count("aten.mkldnn_rnn_layer.default(") == 4


def test_sizes_that_are_symbols_are_served_by_the_kernel_of_pytorch() -> None:
    module, x = given({})
    program = purefx.trace(lambda x: module(x)[0], x, dynamic=True)
    assert "mkldnn" not in str(program)
    torch.testing.assert_close(program(x), module(x)[0])
