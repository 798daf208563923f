"""Eager refuses operators that write what another operand shows; so does the capture, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from tests.functional.kinds import ramp
from tests.support.oracle import assert_same_as_eager

ROWS = (1, 0, 2)
REFUSED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "setitem": lambda y, i: y.__setitem__(i, y),
    "setitem of a mask": lambda y, i: y.__setitem__(y > 1, y),
    "index_put": lambda y, i: y.index_put_((i,), y),
    "index_copy": lambda y, i: y.index_copy_(0, i, y),
    "scatter": lambda y, i: y.scatter_(0, i.expand(3, 3), y),
    "scatter_add": lambda y, i: y.scatter_add_(0, i.expand(3, 3), y),
    "scatter_reduce": lambda y, i: y.scatter_reduce_(0, i.expand(3, 3), y, "amax"),
    "put": lambda y, i: y.put_(i.expand(3, 3), y),
    "index_select": lambda y, i: torch.index_select(y, 0, i, out=y),
    "take": lambda y, i: torch.take(y, i.expand(3, 3), out=y),
    "gather": lambda y, i: torch.gather(y, 0, i.expand(3, 3), out=y),
    "an index that is written": lambda y, i: i.index_copy_(0, i, i + 1),
}


def on_arguments(f: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    def program(x: Tensor, i: Tensor) -> Any:
        f(x, i)
        return x

    return program


def on_what_nobody_reads(f: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    def program(x: Tensor, i: Tensor) -> Any:
        f(x * 1, i * 1)
        return x + 1

    return program


@pytest.mark.parametrize("form", [on_arguments, on_what_nobody_reads])
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str, form: Callable[..., Any]) -> None:
    program, message = form(REFUSED[name]), "refer to a single memory location"
    with pytest.raises(RuntimeError, match=message):
        program(ramp(3, 3), torch.tensor(ROWS))
    with pytest.raises(RuntimeError, match=message):
        purefx.trace(program, ramp(3, 3), torch.tensor(ROWS))
    assert_same_as_eager(program, lambda: (ramp(3, 3), torch.tensor(ROWS)), system=purefx.compile)


def test_an_error_that_comes_from_zeros_is_not_raised() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        y.masked_scatter_(y > 1, y)
        return torch.inverse(torch.mm(y, y, out=y))

    assert_same_as_eager(program, lambda: (torch.eye(3) * 2,), system=purefx.compile)


def test_elementwise_operators_are_not_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.add_(x)
        torch._foreach_mul_([x, y], [x, y])
        return y.addmm_(x, x)

    rehearsed = []
    monkeypatch.setattr("purefx.capture.running.rehearse", lambda op, *_: rehearsed.append(op))
    purefx.trace(program, ramp(3, 3), ramp(3, 3))
    assert rehearsed == []


def test_a_view_that_eager_refuses_is_refused() -> None:
    x = torch.arange(12.0).reshape(3, 2, 2)[:, :1].permute(2, 1, 0)
    for program in (lambda x: x.view(-1), lambda x: x.view(3, 2)):
        for run in (program, purefx.compile(program)):
            with pytest.raises(RuntimeError, match="view size is not compatible"):
                run(x)


COMPLEX: dict[str, Callable[[Tensor], Any]] = {
    "gt": lambda z: z > 1,
    "sort": lambda z: z.sort(),
    "maximum": lambda z: torch.maximum(z, z),
    "clamp in place": lambda z: z.clamp_(max=1),
    "bernoulli": lambda z: z.bernoulli_(0.5),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_what_eager_has_no_complex_kernel_for_raises_before_what_comes_later(name: str) -> None:
    def program(z: Tensor, w: Tensor) -> None:
        COMPLEX[name](z)
        w.add_(1)  # a leaf: another error

    def make() -> tuple[Tensor, Tensor]:
        return torch.complex(ramp(2, 3), ramp(2, 3)), ramp(3).requires_grad_()

    assert_same_as_eager(program, make, system=purefx.compile)


@pytest.mark.parametrize("number", [2, 2.5])
def test_a_list_of_bools_or_integers_is_written_as_eager_does(number: float) -> None:
    def f(a: Tensor, b: Tensor) -> None:
        torch._foreach_mul_([b], number)
        torch._foreach_mul_([a, a], number)

    def arguments() -> tuple[Tensor, ...]:
        return torch.tensor([True, False]), torch.arange(3)

    assert_same_as_eager(f, arguments, system=purefx.compile)


@pytest.mark.parametrize("number", [2, 2.5])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_bools_or_integers_are_written_as_eager_does(dtype: torch.dtype, number: float) -> None:
    def f(a: Tensor) -> Tensor:
        return a.mul_(number)

    assert_same_as_eager(f, lambda: (torch.ones(3, dtype=dtype),), system=purefx.compile)


def test_complex_numbers_where_eager_takes_them_and_zeros_raise() -> None:
    def make() -> tuple[Tensor]:
        return (torch.complex(torch.eye(3), torch.ones(3, 3)),)

    assert_same_as_eager(lambda z: torch.linalg.inv(z) * z, make, system=purefx.compile)
