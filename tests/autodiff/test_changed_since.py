"""What is written or replaced between a call and its gradient: the gradient is eager's, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purefx
from purefx.errors import GradientsRefused
from tests.autodiff.scenarios import Keeping


def wave(x: Tensor) -> Tensor:
    return x.exp().sin()


def slope_of(y: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("taken", [1, 2])
def test_an_argument_written_after_some_gradients_is_noticed_by_the_next(taken: int) -> None:
    """The first gradient takes ``exp`` from the call, and reads the argument no more; the next ones would."""
    x = torch.tensor([0.3, -0.7], requires_grad=True)
    argument = x * 1
    slope = purefx.compile(wave)(argument)
    for _ in range(taken):
        slope = slope_of(slope, x)
    with torch.no_grad():
        argument.mul_(2)
    with pytest.raises(GradientsRefused, match="was written since the call"):
        slope_of(slope, x)


class Scaled(nn.Module):
    """Tensors that have no gradients, in three places."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.tensor([2.0, 3.0]), requires_grad=False)
        self.buffer = nn.Buffer(torch.tensor([2.0, 3.0]))
        self.others = [torch.tensor([2.0, 3.0])]


def replace_parameter(module: Scaled) -> None:
    module.frozen = nn.Parameter(torch.ones(2), requires_grad=False)


def replace_buffer(module: Scaled) -> None:
    module.buffer = torch.ones(2)


def drop_element(module: Scaled) -> None:
    module.others[0] = torch.ones(2)


@pytest.mark.parametrize("change", [replace_parameter, replace_buffer, drop_element])
@pytest.mark.parametrize("taken", [0, 1])
def test_a_tensor_without_gradients_that_was_replaced_is_noticed(change: Callable[[Scaled], None], taken: int) -> None:
    module, x = Scaled(), torch.tensor([0.3, -0.7], requires_grad=True)
    others = module.others

    def f(x: Tensor) -> Tensor:
        return (x * module.frozen * module.buffer * others[0]).exp() * x

    slope = purefx.compile(f)(x)
    for _ in range(taken):
        slope = slope_of(slope, x)
    change(module)
    with pytest.raises(GradientsRefused, match="was replaced since the call"):
        slope_of(slope, x)


def test_the_gradient_of_a_leaf_that_was_replaced_is_noticed() -> None:
    x, w = torch.tensor([0.3, -0.7], requires_grad=True), torch.ones(2, requires_grad=True)
    w.grad = torch.full((2,), 2.0)

    def f(x: Tensor, w: Tensor) -> Tensor:
        assert w.grad is not None
        return (x * w.grad).exp() * w

    y = purefx.compile(f)(x, w)
    w.grad = torch.full((2,), 3.0)
    with pytest.raises(GradientsRefused, match="was replaced since the call"):
        slope_of(y, x)


def with_a_result(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x * w.exp()
    return y, (y * 1).exp().sin()


def write_other(argument: Tensor, w: Tensor, y: Tensor) -> None:
    w.mul_(2)


def write_result(argument: Tensor, w: Tensor, y: Tensor) -> None:
    y.detach().mul_(2)


@pytest.mark.parametrize("write", [write_other, write_result])
def test_what_a_partition_keeps_cannot_be_written_unseen(write: Callable[[Tensor, Tensor, Tensor], None]) -> None:
    """Eager has saved something else, and gives the gradient; another one must not come out."""

    def gradient(f: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        x, w = torch.tensor([0.3, -0.7], requires_grad=True), torch.ones(2)
        argument = x * 1
        y, out = f(argument, w)
        with torch.no_grad():
            write(argument, w, y)
        return torch.autograd.grad(out.sum(), x)[0]

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient(purefx.compile(with_a_result, partition="min_cut"))


def keeps_what_it_makes(x: Tensor) -> tuple[Tensor, Tensor]:
    y, z = Keeping.apply(x * 2)
    return y, z.sin()


@pytest.mark.parametrize("program", [keeps_what_it_makes, Keeping.apply])
@pytest.mark.parametrize("written", ["x", "y", "z"])
@pytest.mark.parametrize("system", [purefx.compile, purefx.functionalize], ids=["compile", "functionalize"])
def test_what_a_function_keeps_by_itself_may_be_written(program: Any, written: str, system: Any) -> None:
    """``ctx.x = x``: autograd looks at no version, and the backward reads what is there then."""

    def gradient(f: Any) -> list[float]:
        x = torch.tensor([0.3, -0.7], requires_grad=True)
        y, z = f(x)
        with torch.no_grad():
            {"x": x, "y": y, "z": z}[written].mul_(3)
        slopes: list[float] = torch.autograd.grad(y.sum(), x)[0].tolist()
        return slopes

    assert gradient(system(program)) == pytest.approx(gradient(program))
