"""What a function reaches by itself under transforms: tensors in tuples, and such that a transform has left."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

import purefx

Pair = namedtuple("Pair", "first rest")
Held = Callable[[Tensor, Tensor], Any]

HELD: dict[str, Held] = {
    "a tuple": lambda w, v: (w, v),
    "tuples in tuples": lambda w, v: ((w,), (1, ((v,), None))),
    "a tuple with names": lambda w, v: Pair(w, {"v": (v,)}),
    "a list in a tuple": lambda w, v: (w, [v, w]),
    "a tuple in a list": lambda w, v: [(w, 2), (v,)],
    "variables": lambda w, v: w,
}


class Holder:
    """An object with something in an attribute."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __call__(self, x: Tensor) -> Tensor:
        """The product of all that it holds with ``x``."""
        return product(x, self.held)


class Layer(torch.nn.Module):
    """A module with something in an attribute."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        """The product of all that it holds with ``x``."""
        return product(x, self.held)


def product(x: Tensor, held: Any) -> Tensor:
    for y in torch.utils._pytree.tree_leaves(held):
        x = x * y if isinstance(y, Tensor) else x
    return x.sin().sum()


def in_a_variable(held: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: product(x, held)


def left_over() -> Tensor:
    """What a gradient has seen: a wrapper that requires grad."""
    kept: list[Tensor] = []

    def seen(x: Tensor) -> Tensor:
        kept.append(x)
        return x.sum()

    grad(seen)(torch.ones(3))
    return kept[0]


PLACES: list[Callable[[Any], Any]] = [in_a_variable, Holder, Layer]
X = torch.linspace(0.1, 0.6, 6).view(2, 3)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("held", HELD)
def test_leaves_in_tuples_have_gradients(held: str, place: Callable[[Any], Any]) -> None:
    w, v = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    kept = HELD[held](w, v)
    function = place(kept)
    compiled = purefx.compile(function)

    def found(f: Any) -> list[Tensor | None]:
        totals = [f(X[0]), vmap(f)(X).sum(), vmap(grad(f))(X).sum()]
        return [g for total in totals for g in torch.autograd.grad(total, (w, v), allow_unused=True)]

    for _ in range(2):
        torch.testing.assert_close(found(compiled), found(function))
    assert getattr(function, "held", kept) is kept


@pytest.mark.parametrize("held", HELD)
def test_what_an_outer_transform_has_wrapped_may_be_in_tuples(held: str) -> None:
    def outer(w: Tensor, f: Any = lambda f: f) -> Tensor:
        return vmap(f(in_a_variable(HELD[held](w, w * 2))))(X).sum()

    w = torch.ones(3)
    torch.testing.assert_close(grad(outer)(w, purefx.compile), grad(outer)(w))
    pair = torch.stack([w, w + 1])
    torch.testing.assert_close(vmap(grad(lambda w: outer(w, purefx.compile)))(pair), vmap(grad(outer))(pair))


def test_another_tuple_in_the_place_of_one_is_seen() -> None:
    function = Holder((torch.ones(3), 1))
    compiled = purefx.compile(function)
    for held in ((torch.ones(3), 1), (torch.full((3,), 5.0), 1)):
        function.held = held
        torch.testing.assert_close((compiled(X[0]), vmap(compiled)(X)), (function(X[0]), vmap(function)(X)))
        assert function.held is held


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("held", HELD)
def test_what_a_transform_has_left_may_be_reached(held: str, place: Callable[[Any], Any]) -> None:
    function = place(HELD[held](left_over(), left_over()))
    compiled = purefx.compile(function)
    for _ in range(2):
        for transform, x in ((lambda f: f, X[0]), (vmap, X), (grad, X[0]), (lambda f: vmap(grad(f)), X)):
            found, expected = transform(compiled)(x), transform(function)(x)
            torch.testing.assert_close(found, expected)
            assert found.requires_grad == expected.requires_grad


def test_what_a_transform_has_left_is_a_constant_argument() -> None:
    compiled = purefx.compile(lambda x, y: (x * y).sum())
    assert not grad(compiled)(torch.ones(3), left_over()).requires_grad
