"""Results under vmap have a batch where they have one in eager: ``out_dims=None`` takes those that have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx import func

Function = Callable[..., Any]


def shared_sum(x: Tensor, w: Tensor) -> Any:
    return x * 2, w.sum()


def written_copy(x: Tensor, w: Tensor) -> Any:
    doubled = w * 2
    return x + doubled.add_(1).sum(), doubled


def views_of_what_is_shared(x: Tensor, w: Tensor) -> Any:
    y = w.exp()
    return x.sum(), (y[:2], y.view(2, 2))


def sizes_alone(x: Tensor, w: Tensor) -> Any:
    return torch.zeros_like(x) + 2, (torch.zeros(2) + 2, w.new_ones(3) * x.shape[0])


def written_over(x: Tensor, w: Tensor) -> Any:
    y = x.clone()
    y.zero_()
    return y + 1, w.clone()


PROGRAMS = [shared_sum, written_copy, views_of_what_is_shared, sizes_alone, written_over]
SYSTEMS: dict[str, Callable[[Function, int], Function]] = {
    "inside": lambda f, dim: torch.func.vmap(purefx.compile(f), (0, None), (dim, None)),
    "func": lambda f, dim: func.vmap(f, (0, None), (dim, None)),
    "whole": lambda f, dim: purefx.compile(func.vmap(f, (0, None), (dim, None))),
}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_all_examples_share_has_no_batch(program: Function, system: str) -> None:
    xs, w = torch.rand(3, 2), torch.rand(4)
    dim = 0 if program is views_of_what_is_shared else -1
    expected = torch.func.vmap(program, (0, None), (dim, None))(xs, w)
    torch.testing.assert_close(SYSTEMS[system](program, dim)(xs, w), expected)


def test_what_is_made_like_an_example_may_be_written_with_one() -> None:
    like = purefx.compile(torch.zeros_like)
    xs = torch.rand(3, 2)
    torch.testing.assert_close(torch.func.vmap(lambda x: like(x).add_(x))(xs), xs)


def test_the_gradient_of_what_is_shared_is_counted_once() -> None:
    xs, w = torch.rand(3, 2), torch.rand(4, requires_grad=True)
    _, total = SYSTEMS["inside"](shared_sum, 0)(xs, w)
    torch.testing.assert_close(torch.autograd.grad(total, w)[0], torch.ones(4))


def test_a_parameter_in_whose_place_another_is_read_has_no_batch() -> None:
    linear = torch.nn.Linear(2, 2)
    shared = {name: x.detach() for name, x in linear.named_parameters()}

    def f(x: Tensor, parameters: dict[str, Tensor]) -> Any:
        return torch.func.functional_call(linear, parameters, (x,)), parameters["weight"].sum()

    xs = torch.rand(3, 2)
    expected = torch.func.vmap(f, (0, None), (0, None))(xs, shared)
    torch.testing.assert_close(torch.func.vmap(purefx.compile(f), (0, None), (0, None))(xs, shared), expected)
