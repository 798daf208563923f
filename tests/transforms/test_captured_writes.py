"""Writes under a transform to tensors that it knows nothing of: what eager refuses is refused, the rest is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purefx
from purefx import func

Function = Callable[..., Any]
Program = tuple[Function, list[Tensor]]


def in_place() -> Program:
    b = torch.zeros(3)
    return (lambda x: x * b.add_(1)), [b]


def by_a_view() -> Program:
    b = torch.zeros(3)
    return (lambda x: x * b.view(-1).add_(1)), [b]


def by_out() -> Program:
    b = torch.zeros(2, 3)

    def f(x: Tensor) -> Tensor:
        torch.add(x.detach(), 1, out=b[1])
        return x * b.detach().sum(0)

    return f, [b]


def in_a_list() -> Program:
    a, b = torch.zeros(3), torch.zeros(3)

    def f(x: Tensor) -> Tensor:
        torch._foreach_add_([a, b], 1)
        return x * a

    return f, [a, b]


def batch_norm() -> Program:
    mean, variance = torch.zeros(1), torch.ones(1)

    def f(x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x[:, None], mean, variance, training=True)[:, 0].sin()

    return f, [mean, variance]


def batch_norm_that_counts() -> Program:
    """The counter is written in place."""
    m = nn.BatchNorm1d(1)
    return (lambda x: m(x[:, None])[:, 0].sin()), list(m.buffers())


def instance_norm() -> Program:
    m = nn.InstanceNorm1d(1, track_running_stats=True)
    return (lambda x: m(x[None, None])[0, 0].sin()), list(m.buffers())


def instance_norm_of_parameters() -> Program:
    m = nn.InstanceNorm1d(1, track_running_stats=True, affine=True)

    def f(x: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(m, {"weight": x[:1], "bias": x[1:2]}, (x[None, None],))
        return result[0, 0].sin()

    return f, list(m.buffers())


PROGRAMS = [
    in_place,
    by_a_view,
    by_out,
    in_a_list,
    batch_norm,
    batch_norm_that_counts,
    instance_norm,
    instance_norm_of_parameters,
]
AROUND: dict[str, Callable[[Function], Function]] = {
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x.cos(),)),
    "jvp of grad": lambda f: lambda x: torch.func.jvp(AROUND["grad"](f), (x,), (x.cos(),)),
}


def outcome(around: Function, system: Function, program: Callable[[], Program]) -> Any:
    f, buffers = program()
    try:
        result: Any = around(system(f))(torch.tensor([0.5, 1.0, 3.0]))
    except RuntimeError as error:
        result = str(error).partition("(aten")[0]
    return result, buffers, [x._version for x in buffers]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_eager_writes_is_written(program: Callable[[], Program], around: str) -> None:
    expected, *state = outcome(AROUND[around], lambda f: f, program)
    found, *found_state = outcome(AROUND[around], purefx.compile, program)
    torch.testing.assert_close(found_state, state)
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)


def test_the_transforms_of_purefx_write_too() -> None:
    f, (mean, *_) = instance_norm_of_parameters()
    func.grad(lambda x: f(x).sum())(torch.tensor([0.5, 1.0, 3.0]))
    assert mean.item() == pytest.approx(0.15)
