"""Views among the results, and what is computed of them: each is seen by gradients of the other as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx._torch import pytree
from purefx.errors import GradientsRefused
from tests.programs.vocabulary import Shown

Program = Callable[[Tensor], tuple[Any, ...]]
PROGRAMS: list[Program] = []


def program(function: Program) -> Program:
    PROGRAMS.append(function)
    return function


def triple(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient * 3


def clamped(gradient: Tensor) -> Tensor:
    return gradient.clamp(max=2)


@program
def a_part_of_what_is_made(x: Tensor) -> tuple[Any, ...]:
    v = (x * 2)[0:1]
    return v, v * 3


@program
def a_part_of_the_argument(x: Tensor) -> tuple[Any, ...]:
    v = x[1:]
    return v, v.sin(), v + x[0]


@program
def the_base_is_used_too(x: Tensor) -> tuple[Any, ...]:
    y = x * 1
    v = y.view(2, 3)
    return v, v * 3, y, y.sin() + v.sum()


@program
def the_base_is_used_and_nobody_returns_it(x: Tensor) -> tuple[Any, ...]:
    y = x * 1
    v, w = y.view(2, 3), y.view(3, 2)
    return v, w, v * w.t(), y.exp() * v.sum()


@program
def a_chain_of_views(x: Tensor) -> tuple[Any, ...]:
    v = x.view(2, 3)
    w = v.t()
    row = w[1]
    return row, v, w, row * 2, w.sin(), v.sum() * row


@program
def a_view_repeats_elements(x: Tensor) -> tuple[Any, ...]:
    v = x.expand(2, 6)
    return v, v.sum(0), v * v


@program
def pieces_of_one_node(x: Tensor) -> tuple[Any, ...]:
    a, b = x.split(3)
    c, d = (x * 2).chunk(2)
    return a, a * b, c, d.sin(), d * a


@program
def a_piece_that_is_returned_and_one_that_is_not(x: Tensor) -> tuple[Any, ...]:
    a, b = (x * 2).split(3)
    return b, a.sin(), x * 3


@program
def what_is_computed_of_a_view_is_viewed(x: Tensor) -> tuple[Any, ...]:
    v = x.view(2, 3)
    y = v.sin()
    w = y.t()
    return v, w, w.exp(), y * v


@program
def a_view_of_what_a_function_shows(x: Tensor) -> tuple[Any, ...]:
    shown = Shown.apply(x * 2)
    v = shown[1:]
    return v, v * 2, shown.sin()


@program
def a_view_is_written_and_used(x: Tensor) -> tuple[Any, ...]:
    y = x * 1
    v = y.view(2, 3)
    before = v + 1
    v.mul_(2)
    return v, before, v * 3, y * 2


@program
def the_base_is_written_unseen(x: Tensor) -> tuple[Any, ...]:
    y = x * 1
    v, w = y[1:], y[:2]
    before = w * 2
    with torch.no_grad():
        y.mul_(2)
    return v, v * 3, w, before, y[0] * 3


@program
def hooks_on_a_view_that_is_returned(x: Tensor) -> tuple[Any, ...]:
    v = x.view(2, 3)
    v.register_hook(triple)
    v.register_hook(clamped)
    return v, v * 2


@program
def a_hook_on_what_a_view_is_taken_of(x: Tensor) -> tuple[Any, ...]:
    y = x * 1
    y.register_hook(triple)
    return y.view(2, 3), y * 2, y[1:]


@program
def a_hook_on_a_view_between(x: Tensor) -> tuple[Any, ...]:
    v = x.view(2, 3)
    v.register_hook(clamped)
    return v.t(), v * 2, x * 3


@program
def one_hook_twice(x: Tensor) -> tuple[Any, ...]:
    y = x * 2
    y.register_hook(triple)
    y.register_hook(triple)
    v = x[1:]
    v.register_hook(triple)
    v.register_hook(triple)
    return y, v, v, y


@program
def a_hook_is_removed(x: Tensor) -> tuple[Any, ...]:
    y = x * 1
    y.register_hook(triple).remove()
    y.register_hook(clamped)
    return y.view(2, 3), y * 2


@program
def a_hook_before_a_write_and_one_behind_it(x: Tensor) -> tuple[Any, ...]:
    y = x * 1
    y.register_hook(triple)
    y.mul_(2)
    y.register_hook(clamped)
    return y.view(2, 3), y * 2


@program
def gradients_are_retained(x: Tensor) -> tuple[Any, ...]:
    y = x * 1
    v = y.view(2, 3)
    v.retain_grad()
    y.retain_grad()
    return v, v * 2, y * 3


@program
def gradients_of_what_is_not_returned_are_retained(x: Tensor) -> tuple[Any, ...]:
    y = x.exp()
    y.retain_grad()
    return y.sin(), y.cos(), x.view(2, 3)


@program
def hooks_on_pieces(x: Tensor) -> tuple[Any, ...]:
    a, b = (x * 1).split(3)
    a.register_hook(triple)
    b.register_hook(triple)
    return a, a * 2, b


@program
def no_gradients_are_on_where_a_view_is_taken(x: Tensor) -> tuple[Any, ...]:
    with torch.no_grad():
        v = x.view(2, 3)
    return v, v * 2, x * 2


def leaf() -> tuple[Tensor, Tensor]:
    x = torch.linspace(0.2, 1.7, 6).requires_grad_()
    return x, x


def alive() -> tuple[Tensor, Tensor]:
    x = torch.linspace(0.2, 1.7, 6).requires_grad_()
    return x, x * 1


def view() -> tuple[Tensor, Tensor]:
    x = torch.linspace(0.2, 1.7, 12).requires_grad_()
    return x, (x * 1)[::2]


def attempted(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except RuntimeError as error:
        return str(error)[:40]


def watched(results: tuple[Any, ...]) -> dict[int, Tensor]:
    """What arrives at each of ``results`` in the next backward."""
    seen: dict[int, Tensor] = {}
    for k, result in enumerate(results):
        if result.requires_grad and not result.is_leaf:
            result.register_hook(lambda gradient, k=k: None if gradient is None else seen.update({k: gradient}))
    return seen


def gradients(f: Program, make: Callable[[], tuple[Tensor, Tensor]]) -> list[Any]:
    """Of each result by each result, by the argument and by the leaf; and what a caller's hooks see on the way."""
    found: list[Any] = []
    for i in range(len(f(make()[1]))):
        x, argument = make()
        results = f(argument)
        by = [r for r in (*results, argument, x) if r.requires_grad]
        if not results[i].requires_grad:
            continue
        found += [
            attempted(lambda r=results[i], b=b: torch.autograd.grad(r.sum(), b, retain_graph=True, allow_unused=True))
            for b in by
        ]
        x, argument = make()
        results = f(argument)
        seen = watched(results)
        results[i].sum().backward()
        found += [sorted(seen.items()), x.grad, [r.grad for r in results if r.retains_grad]]
    x, argument = make()
    results = f(argument)
    for r in results:
        if r.requires_grad and not r.is_leaf:
            r.retain_grad()
    sum((r * r.detach().cos()).sum() for r in results if r.requires_grad).backward()
    bases = [r._base for r in results if r._base is not None]
    return [*found, x.grad, [r.grad for r in (*results, *bases) if r.retains_grad]]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("make", [leaf, alive, view], ids=lambda make: make.__name__)
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__.replace("_", " "))
def test_gradients_among_results_are_those_of_eager(f: Program, make: Callable[[], tuple[Tensor, Tensor]]) -> None:
    expected, found = gradients(f, make), gradients(purefx.compile(f), make)
    ours, theirs = pytree.tree_leaves(found), pytree.tree_leaves(expected)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        same = torch.allclose(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else one == other
        assert same, (one, other)


@pytest.mark.parametrize("f", [a_part_of_what_is_made, a_chain_of_views, pieces_of_one_node, the_base_is_used_too])
def test_gradients_of_gradients_pass_by_views_too(f: Program) -> None:
    def second(g: Program) -> list[Any]:
        x, argument = alive()
        results = g(argument)
        total = sum((r.sin() * r).sum() for r in results)
        (slope,) = torch.autograd.grad(total, x, create_graph=True)
        return [slope, *torch.autograd.grad((slope**2).sum(), x)]

    for one, other in zip(second(purefx.compile(f)), second(f), strict=True):
        assert torch.allclose(one, other)


@pytest.mark.parametrize("write", [lambda x: x.mul_(2), lambda x: x.detach().mul_(2)], ids=["no_grad", "detached"])
def test_an_argument_whose_base_is_written_unseen_is_what_results_depend_on(write: Callable[[Tensor], Any]) -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            write(x)
        return x.sin()

    def seen(g: Callable[[Tensor], Tensor]) -> list[Any]:
        x, argument = view()
        result = g(argument)
        by_argument = torch.autograd.grad(result.sum(), argument, retain_graph=True)
        argument.register_hook(lambda gradient: gradient * 10)
        result.sum().backward()
        return [*by_argument, x.grad]

    for one, other in zip(seen(purefx.compile(f)), seen(f), strict=True):
        assert torch.allclose(one, other)


def test_a_view_that_a_call_has_written_takes_a_hook() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1
        v = y.reshape(2, -1)
        v.copy_(v.detach() * 3)
        return v, y

    x, _ = leaf()
    v, _ = purefx.compile(f)(x)
    seen: list[Tensor] = []
    v.register_hook(seen.append)
    v.sum().backward()
    assert len(seen) == 1


def test_a_hook_on_what_is_passed_inside_of_a_node_is_refused() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        y.register_hook(triple)
        return y, (y * 3).view(2, 3).t_()

    with pytest.raises(GradientsRefused, match="a result has a hook or keeps its gradient"):
        purefx.compile(f)(leaf()[0])


def test_views_that_nobody_computes_with_cost_nothing() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return y.view(2, 3), x[1:], y[0], x.sin()

    source = purefx.trace(f, leaf()[0]).wrapper.source
    assert source.count("record(") == 2  # y, and the sine, which have nothing in common
    order = [source.index("record(derivatives[1]"), source.index(".view("), source.index(".select(")]
    assert order == sorted(order)
