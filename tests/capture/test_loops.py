"""``while_loop`` in programs: its results and derivatives are those of a loop in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

import purefx
from tests.capture.around import AROUND, XS, Function, W, check_each_example, check_what_is_shared

Loop = Callable[..., Any]


def python(test: Function, step: Function, carried: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    while test(*carried):
        carried = step(*carried)
    return carried


def counts(loop: Loop, x: Tensor, w: Tensor) -> Any:
    """What the body reaches by itself, ``w``, gets gradients too."""
    return loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.sin() * y * w), (torch.tensor(0), x))[1]


def until(loop: Loop, x: Tensor, w: Tensor) -> Any:
    """Each example does as many steps as it likes."""
    return loop(lambda y, z: (y * y).sum() < 20, lambda y, z: (y * 1.5, z.sin() * w + y), (x, w))[1]


def never(loop: Loop, x: Tensor, w: Tensor) -> Any:
    return loop(lambda y, z: y.sum() > 2000, lambda y, z: (y * 1.5, z.sin() * w + y), (x, w))[1]


def nested(loop: Loop, x: Tensor, w: Tensor) -> Any:
    def step(i: Tensor, y: Tensor) -> Any:
        inner = loop(lambda j, z: j < 2, lambda j, z: (j + 1, (z * w).sin() * y), (torch.tensor(0), y + x))
        return i + 1, inner[1]

    return loop(lambda i, y: i < 3, step, (torch.tensor(0), x))[1]


def chooses(loop: Loop, x: Tensor, w: Tensor) -> Any:
    def step(i: Tensor, y: Tensor) -> Any:
        if loop is python:
            return i + 1, (y * w if y.sum() > 1 else y.cos())
        return i + 1, torch.cond(y.sum() > 1, lambda y: y * w, lambda y: y.cos(), (y,))

    return loop(lambda i, y: i < 4, step, (torch.tensor(0), x))[1]


def turned(loop: Loop, x: Tensor, w: Tensor) -> Any:
    """What is carried lies otherwise in memory than what the loop makes of it."""
    m = torch.outer(x, w)
    return loop(lambda i, y: i < 4, lambda i, y: (i + 1, (y @ m).tanh().t()), (torch.tensor(0), m.t()))[1].sum(0)


PROGRAMS = [counts, until, never, nested, chooses, turned]


@pytest.fixture(params=PROGRAMS, ids=lambda f: f.__name__)
def program(request: pytest.FixtureRequest) -> tuple[Function, Function]:
    """A program with ``while_loop``, and one with Python's ``while``."""
    f = request.param
    return (lambda x, w: f(while_loop, x, w)), (lambda x, w: f(python, x, w))


@pytest.mark.parametrize("around", ["nothing", "gradient", "tangent", "autograd"])
def test_a_loop_is_differentiated_as_a_loop_in_python_is(program: tuple[Function, Function], around: str) -> None:
    f, expected = program
    outside, inside = AROUND[around](purefx.compile(f)), purefx.compile(AROUND[around](f))
    for x in XS[:2]:
        wanted = AROUND[around](expected)(x, W)
        torch.testing.assert_close(outside(x, W), wanted)
        if around != "autograd":  # there inside is a program with leaves of its own
            torch.testing.assert_close(inside(x, W), wanted)


@pytest.mark.parametrize("around", ["nothing", "gradient", "tangent"])
def test_each_example_does_its_own_steps(program: tuple[Function, Function], around: str) -> None:
    check_each_example(*program, AROUND[around])


def test_examples_share_what_they_do_not_have(program: tuple[Function, Function]) -> None:
    check_what_is_shared(*program)


def orders(f: Function, x: Tensor) -> list[Tensor]:
    """What ``f`` gives, and the gradients up to the third order."""
    x = x.clone().requires_grad_()
    found = [f(x)]
    for _ in range(3):
        found.append(torch.autograd.grad(found[-1].sum(), x, create_graph=True)[0])
    return found


@pytest.mark.parametrize("f", [counts, until])
def test_gradients_of_the_third_order(f: Function) -> None:
    found = orders(purefx.compile(lambda x: f(while_loop, x, W)), XS[1])
    torch.testing.assert_close(found, orders(lambda x: f(python, x, W), XS[1]))


@pytest.mark.parametrize("example", [0, 2])
def test_a_hessian_goes_through_a_loop(example: int) -> None:
    def summed(loop: Loop, wrap: Function) -> Function:
        return torch.func.hessian(lambda x: wrap(lambda x: until(loop, x, W).sum())(x))

    wanted = summed(python, lambda f: f)(XS[example])
    torch.testing.assert_close(summed(while_loop, purefx.compile)(XS[example]), wanted)
    torch.testing.assert_close(purefx.compile(summed(while_loop, lambda f: f))(XS[example]), wanted)


def test_the_states_are_kept_for_autograd_and_the_steps_run_once_more() -> None:
    """One step of the loop, and one of its gradient, however many there are."""
    x = XS[0].clone().requires_grad_()
    program = purefx.trace(lambda x: counts(while_loop, x, W), x)
    names = [str(node.target) for node in program.graph.nodes]
    assert "while_loop_stack_output" in names
    assert [str(n.target) for n in program.backward_graphs[0].nodes].count("while_loop") == 1


def test_gradients_are_those_of_eager_where_what_is_carried_requires_grad() -> None:
    """PyTorch's own leave out what reaches ``w`` by way of a carried tensor that does not, and loops without a step."""
    for f in (counts, until, chooses):
        given = [[x.clone().requires_grad_() for x in (XS[1], W)] for _ in range(2)]
        found = [run(while_loop, *pair) for run, pair in zip((f, purefx.compile(f)), given, strict=True)]
        slopes = [torch.autograd.grad(y.sum(), pair) for y, pair in zip(found, given, strict=True)]
        torch.testing.assert_close(*slopes)


def masked(x: Tensor) -> Tensor:
    return x[x > 0].exp().sum()


@pytest.mark.parametrize("f", [masked, lambda x: counts(while_loop, x, W).sum()], ids=["mask", "loop"])
def test_what_is_of_a_size_that_nobody_knows_may_be_computed_again(f: Function) -> None:
    given = [XS[2].clone().requires_grad_() for _ in range(2)]
    found = [purefx.compile(f, partition=how)(x) for how, x in zip(("default", "min_cut"), given, strict=True)]
    torch.testing.assert_close(*(torch.autograd.grad(y, x) for y, x in zip(found, given, strict=True)))


def test_dual_numbers_go_through_a_loop() -> None:
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(XS[0], W)
        found = purefx.compile(lambda x: until(while_loop, x, W))(x)
        expected = until(python, x, W)
        torch.testing.assert_close(*(torch.autograd.forward_ad.unpack_dual(y).tangent for y in (found, expected)))
