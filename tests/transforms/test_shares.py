"""The gradients of some results of a call, as a part of those of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import purefx
from purefx.transforms import graphs, programs
from tests.transforms.test_reach import assert_same, inputs, zero

MANY = 12


def of_rows(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return tuple((x + i).exp() * w for i in range(MANY))


def of_pieces(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    a, b, c = x.unbind(0)
    return a.exp() * w[0], b.sin(), c * w[0]


def passed_on(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x + w, (x * w + x).exp(), x.t().sin() if x.dim() == 2 else x.sin()


def of_two_values(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x.exp()
    return h.sin() * w, h.cos(), w.sin() + x


FUNCTIONS = [of_rows, of_pieces, passed_on, of_two_values]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("chosen", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("order", [1, 2])
def test_gradients_of_some_results_are_those_of_eager(function: Any, chosen: tuple[int, ...], order: int) -> None:
    def ask(f: Any) -> Any:
        x, w = inputs()
        results = vmap(f, in_dims=(0, None))(x, w[0])
        losses: list[Tensor] = [results[k].square().sum() for k in chosen]
        for left in range(order, 0, -1):
            gradients: Any = torch.autograd.grad(losses, (x, w), allow_unused=True, create_graph=left > 1)
            losses = [g.square().sum() for g in gradients if g is not None]
        return gradients

    assert_same(ask, function)


def captures_of(run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many functions ``run`` captures."""
    found: list[Any] = []

    def counted(function: Any, examples: Any) -> Any:
        found.append(function)
        return graphs.capture_values(function, examples)

    with monkeypatch.context() as patch:
        patch.setattr(programs, "capture_values", counted)
        run()
    return len(found)


def test_as_many_results_as_there_are_cost_no_captures_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(count: int) -> None:
        x, w = inputs()
        results = vmap(purefx.compile(lambda x, w: of_rows(x, w)[:count]))(x, w)
        for y in results:
            torch.autograd.grad(y.sum(), (x, w))

    assert captures_of(lambda: run(MANY), monkeypatch) == captures_of(lambda: run(1), monkeypatch)


@pytest.mark.parametrize("number", [0, MANY - 1])
def test_a_write_to_one_of_many_results_breaks_its_own_backward_alone(number: int) -> None:
    def ask(f: Any) -> Any:
        x, w = inputs()
        results = vmap(f)(x, w)
        zero(results[0])
        return torch.autograd.grad(results[number].sum(), (x, w))

    def exponentials(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return (*((x + i).exp() for i in range(MANY - 1)), w.exp() + x)

    assert_same(ask, exponentials)
