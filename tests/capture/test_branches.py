"""``torch.cond`` in programs: branches of any spelling, and their derivatives, are those of a Python ``if``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.map import map as map_each
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

import purefx
from purefx import errors
from tests.capture.around import AROUND, XS, Function, W, check_each_example, check_what_is_shared
from tests.support.oracle import assert_same_as_eager

Cond = Callable[..., Any]
SCALE = torch.tensor([2.0, 3.0], dtype=torch.float64)


def python(pred: Tensor, first: Function, second: Function, operands: tuple[Tensor, ...]) -> Any:
    return first(*operands) if pred else second(*operands)


def bare(cond: Cond, x: Tensor, w: Tensor) -> Tensor:
    result: Tensor = cond(x.sum() > 1, lambda x, w: (x * w).sin(), lambda x, w: x.cos() * w, (x, w))
    return result


def several(cond: Cond, x: Tensor, w: Tensor) -> Tensor:
    found = cond(
        x.sum() > 1,
        lambda x, w: {"a": x * w, "b": [w.sin(), x.argmax()]},
        lambda x, w: {"a": x.cos(), "b": [w * 3, x.argmin()]},
        (x, w),
    )
    result: Tensor = found["a"] + found["b"][0] * found["b"][1]
    return result


def reached(cond: Cond, x: Tensor, w: Tensor) -> Tensor:
    """What branches reach by themselves, within one another."""
    result: Tensor = cond(
        x.sum() > 1,
        lambda x: cond(x.prod() > 1, lambda x: (x * w).sin(), lambda x: x * SCALE, (x,)),
        lambda x: w.cos() * x,
        (x,),
    )
    return result


def writes(cond: Cond, x: Tensor, w: Tensor) -> Tensor:
    def first(x: Tensor, w: Tensor) -> Tensor:
        y = x.clone()
        y[0].mul_(w[1])
        return y

    result: Tensor = cond(x.sum() > 1, first, lambda x, w: x * w, (x, w))
    return result


def cuts(cond: Cond, x: Tensor, w: Tensor) -> Tensor:
    result: Tensor = cond(x.sum() > 1, lambda x, w: x.detach() * w, lambda x, w: x * w.detach(), (x, w))
    return result


def shows(cond: Cond, x: Tensor, w: Tensor) -> Tensor:
    shown: Tensor = cond(x.sum() > 1, lambda x: x.view(1, 2).t(), lambda x: x.view(1, 2).t().clone(), (x,))
    return shown * w


def composed(cond: Cond, x: Tensor, w: Tensor) -> Tensor:
    norm = torch.nn.functional.layer_norm
    result: Tensor = cond(x.sum() > 1, lambda x, w: norm(x * w, (2,)), lambda x, w: (x * w).softmax(0), (x, w))
    return result


def contained(cond: Cond, x: Tensor, w: Tensor) -> Tensor:
    operands = ({"x": x, "more": [w, (x,)]}, w)
    result: Tensor = cond(
        x.sum() > 1,
        lambda given, w: (given["x"] * given["more"][0]).sin() * w,
        lambda given, w: given["more"][1][0].cos() * w,
        operands,
    )
    return result


def given_and_reached(cond: Cond, x: Tensor, w: Tensor) -> Tensor:
    held = (x, w * 2)
    result: Tensor = cond(x.sum() > 1, lambda x: x * held[0] * held[1], lambda x: x + held[0], (x,))
    return result


def of_a_size(cond: Cond, x: Tensor, w: Tensor) -> Tensor:
    doubled = torch.cat([x, x])
    number: Tensor = cond(x.sum() > 1, lambda y: y.sum() * y.shape[0], lambda y: y.prod() + y.shape[0], (doubled,))
    return number * w


PROGRAMS = [bare, several, reached, writes, cuts, shows, composed, contained, given_and_reached, of_a_size]


@pytest.fixture(params=PROGRAMS, ids=lambda f: f.__name__)
def program(request: pytest.FixtureRequest) -> tuple[Function, Function]:
    """A program with ``cond``, and one with Python's ``if``."""
    f = request.param
    return (lambda x, w: f(torch.cond, x, w)), (lambda x, w: f(python, x, w))


@pytest.mark.parametrize("around", AROUND)
def test_a_choice_is_differentiated_as_the_branch_is(program: tuple[Function, Function], around: str) -> None:
    f, expected = program
    outside, inside = AROUND[around](purefx.compile(f)), purefx.compile(AROUND[around](f))
    for x in XS:
        wanted = AROUND[around](expected)(x, W)
        torch.testing.assert_close(outside(x, W), wanted)
        if around != "autograd":  # there inside is a program with leaves of its own
            torch.testing.assert_close(inside(x, W), wanted)


@pytest.mark.parametrize("around", ["nothing", "gradient", "tangent"])
def test_each_example_makes_its_own_choice(program: tuple[Function, Function], around: str) -> None:
    check_each_example(*program, AROUND[around])


def test_examples_share_what_they_do_not_have(program: tuple[Function, Function]) -> None:
    check_what_is_shared(*program)


@pytest.mark.parametrize("f", PROGRAMS)
def test_a_choice_may_be_made_at_any_size(f: Function) -> None:
    if f in (shows, composed, reached, cuts):
        pytest.skip("it is written for two elements, or needs gradients of both arguments")
    like = [torch.ones(3, dtype=torch.float64, requires_grad=True), torch.ones(3, dtype=torch.float64) * 2]
    traced = purefx.trace(lambda x, w: f(torch.cond, x, w), *like, dynamic=True)
    for size, sign in ((2, 1), (5, 1), (5, -1)):
        x, w = (torch.linspace(0.5, 2, size, dtype=torch.float64) * sign).requires_grad_(), W.repeat(3)[:size]
        found, expected = traced(x, w), f(python, x, w)
        torch.testing.assert_close(found, expected)
        slopes = [torch.autograd.grad(y.sin().sum(), x, materialize_grads=True) for y in (found, expected)]
        torch.testing.assert_close(slopes[0], slopes[1])


def test_modules_may_be_branches() -> None:
    class Chooses(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = torch.cond(x.sum() > 1, self.first, self.second, (x,))
            return result.sin()

    module = Chooses().double()
    compiled = purefx.compile(module)
    for x, chosen in ((XS[0], module.first), (XS[1], module.second)):
        found = torch.autograd.grad(compiled(x).sum(), list(chosen.parameters()))
        torch.testing.assert_close(found, torch.autograd.grad(chosen(x).sin().sum(), list(chosen.parameters())))


def test_branches_that_return_other_containers_raise() -> None:
    with pytest.raises(RuntimeError, match=r"the branches of torch\.cond return"):
        purefx.trace(lambda x: torch.cond(x.sum() > 1, lambda x: x + 1, lambda x: (x + 2,), (x,)), W)


def scanned(x: Tensor) -> Any:
    return scan(lambda carry, y: (carry + y, carry * y), x[0], x)[1]


def mapped(x: Tensor) -> Any:
    return map_each(lambda y: y.sin(), x)


@pytest.mark.parametrize("f", [scanned, mapped])
def test_other_loops_are_refused(f: Function) -> None:
    compiled = purefx.compile(f)
    with pytest.raises(errors.UnsupportedOperator, match="Python loop"):
        compiled(W.clone().requires_grad_())
    for transformed in (torch.func.grad(lambda x: compiled(x).sum()), torch.func.vmap(compiled)):
        with pytest.raises(errors.UnsupportedOperator, match="Python loop"):
            transformed(XS if transformed.__name__ == "wrapped" else torch.stack([W, W]))


def test_a_loop_that_carries_a_number_is_refused() -> None:
    with pytest.raises(errors.UnsupportedOperator, match="carries a number"):
        purefx.compile(lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (0, x)))(W)


def chosen(x: Tensor) -> Tensor:
    result: Tensor = torch.cond(x.sum() > 1, lambda x: (x * SCALE).sin(), lambda x: x.cos(), (x,))
    return result


class Chosen(torch.autograd.Function):
    """Its backward chooses and loops."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Twice ``x``."""
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """What has nothing to do with it."""
        given = (torch.tensor(0), gradient * 2)
        return chosen(*ctx.saved_tensors) * while_loop(lambda i, x: i < 3, doubled, given)[1]


def doubled(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return i + 1, x * SCALE


def hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(chosen)
    return y.sin()


IN_BACKWARDS: dict[str, Function] = {
    "checkpoint": lambda x: checkpoint(chosen, x, use_reentrant=False),
    "reentrant checkpoint": lambda x: checkpoint(chosen, x, use_reentrant=True),
    "function": Chosen.apply,
    "hook": hooked,
    "gradient": lambda x: torch.autograd.grad(Chosen.apply(x).sum(), x)[0],
}


@pytest.mark.parametrize("name", IN_BACKWARDS)
def test_a_backward_may_choose_and_loop(name: str) -> None:
    assert_same_as_eager(IN_BACKWARDS[name], lambda: (W.clone().requires_grad_(),), system=purefx.compile)
