"""Tensors that branches of ``torch.cond`` and bodies of ``while_loop`` write hold what they hold in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

import purefx
from purefx.errors import UnsupportedOperator
from tests.functional.kinds import Programs, ramp
from tests.support.oracle import assert_same_as_eager

programs = Programs()
VERSION = frozenset({"version"})
"""One write is counted, however often it is done."""


def three_times(body: Any, x: Tensor) -> Any:
    return while_loop(lambda n, v: n < 3, lambda n, v: (n + 1, body(n, v)), (torch.tensor(0), x))


@programs(lambda: (ramp(3), ramp(2)))
def a_loop_fills_a_table(table: Tensor, x: Tensor) -> Any:
    def body(n: Tensor, v: Tensor) -> Tensor:
        table.index_copy_(0, n.reshape(1), v.sum().reshape(1))
        return v * 2

    before = table * 2
    return three_times(body, x), before, table[1:], table.sum()


@programs(lambda: (ramp(2, 3), ramp(2)))
def a_loop_writes_views_with_gaps(table: Tensor, x: Tensor) -> Any:
    column = table[:, 1]

    def body(n: Tensor, v: Tensor) -> Tensor:
        column[0].mul_(2)
        column.add_(v)
        return v + 1

    return three_times(body, x), column


@programs(lambda: (ramp(2), ramp(2)))
def a_loop_goes_on_as_long_as_what_it_writes_is_small(a: Tensor, x: Tensor) -> Any:
    b = torch.zeros(2)

    def body(n: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        a.add_(v)
        b.add_(a)
        return n + 1, v * b

    return while_loop(lambda n, v: b.sum() < 20, body, (torch.tensor(0), x)), b


@programs(lambda: (ramp(2), ramp(2)))
def a_loop_that_is_never_entered_writes_nothing(table: Tensor, x: Tensor) -> Any:
    def body(n: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        table.add_(v)
        return n + 1, v * 2

    return while_loop(lambda n, v: n > 0, body, (torch.tensor(0), x))


@programs(lambda: (ramp(2), ramp(2)))
def loops_and_branches_write_within_one_another(table: Tensor, x: Tensor) -> Any:
    def inner(n: Tensor, v: Tensor) -> Tensor:
        table.add_(v)
        return v + 1

    def chosen(v: Tensor) -> Tensor:
        table.mul_(2)
        found: Tensor = three_times(inner, v)[1]
        return found.clone()

    def body(n: Tensor, v: Tensor) -> Tensor:
        found: Tensor = torch.cond(v.sum() > 4, chosen, lambda v: v + 2, (v,))
        return found

    return three_times(body, x), table * 1


@pytest.mark.parametrize("sign", [1, -1])
def test_each_branch_writes(sign: int) -> None:
    def f(table: Tensor, other: Tensor, x: Tensor) -> Any:
        def first(x: Tensor, other: Tensor) -> Tensor:
            table.add_(x)
            return x * 2

        def second(x: Tensor, other: Tensor) -> Tensor:
            other[0].sub_(table[1])
            return x * 3

        with torch.no_grad():
            return torch.cond(x.sum() > 0, first, second, (x, other)), table * other

    assert_same_as_eager(f, lambda: (ramp(2), ramp(2), sign * ramp(2)), system=purefx.compile, ignore=VERSION)


@pytest.mark.parametrize("name", programs.names())
def test_it_cannot_be_told_from_eager(name: str) -> None:
    program = programs[name]
    with torch.no_grad():
        assert_same_as_eager(program.function, program.make, system=purefx.compile, ignore=VERSION)


@pytest.mark.parametrize(("view", "what"), [(lambda x: x, "gradients on"), (lambda x: x[:1], "of its memory")])
def test_what_a_body_may_not_write(view: Any, what: str) -> None:
    def f(table: Tensor, x: Tensor) -> Any:
        shown = view(table)

        def body(n: Tensor, v: Tensor) -> Tensor:
            shown.add_(1)
            return v * table

        return three_times(body, x)

    with torch.set_grad_enabled(what == "gradients on"), pytest.raises(UnsupportedOperator, match=what):
        purefx.trace(f, ramp(2), ramp(2))


def test_a_body_may_not_write_what_is_carried() -> None:
    with torch.no_grad(), pytest.raises(UnsupportedOperator, match="what a loop carries"):
        purefx.trace(lambda x: three_times(lambda n, v: v.add_(1) * 2, x), ramp(2))


def test_eager_control_flow_runs_after_a_capture_of_it() -> None:
    def f(x: Tensor) -> Any:
        return three_times(lambda n, v: v * 2, x)

    torch._dynamo.reset()
    purefx.trace(f, ramp(2))
    assert_same_as_eager(f, lambda: (ramp(2),), system=purefx.compile)
