"""Arguments with histories in inference mode: they are no inference tensors, and stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from tests.support.oracle import assert_same_as_eager

Make = Callable[[], tuple[Any, ...]]


def history() -> tuple[Tensor]:
    return (torch.arange(6.0).view(2, 3).requires_grad_() * 2,)


def leaf() -> tuple[Tensor]:
    return (torch.arange(6.0).view(2, 3).requires_grad_(),)


def view_of_a_leaf() -> tuple[Tensor]:
    return (torch.arange(8.0).view(4, 2).requires_grad_()[1:],)


def view_without_gradients() -> tuple[Tensor]:
    with torch.no_grad():
        return (torch.arange(8.0).view(4, 2).requires_grad_()[1:],)


def two_of_one_base() -> tuple[Tensor, Tensor]:
    base = torch.arange(8.0).requires_grad_() * 1
    return base[:4], base[2:]


def inference_tensor() -> tuple[Tensor]:
    with torch.inference_mode():
        return (torch.arange(6.0).view(2, 3) * 2,)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "computes": lambda x, *_: x.sin() + 1,
    "views": lambda x, *_: (x.view(-1), x[0]),
    "writes": lambda x, *y: (x.mul_(2), y),
    "writes a view": lambda x, *_: x[0].add_(1),
    "detaches": lambda x, *_: x.detach(),
    "returns": lambda x, *y: (x, y),
    "copies": lambda x, *_: x.clone().add_(x),
}
MAKERS: list[Make] = [history, leaf, view_of_a_leaf, view_without_gradients, two_of_one_base, inference_tensor]


def in_inference_mode(system: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``system``, whose functions are called in inference mode."""

    def made(f: Any) -> Any:
        inner = system(f)

        def call(*args: Any) -> Any:
            with torch.inference_mode():
                return inner(*args)

        return call

    return made


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_argument_is_what_it_is_in_inference_mode(program: str, make: Make) -> None:
    eager = in_inference_mode(lambda f: f)(PROGRAMS[program])
    assert_same_as_eager(eager, make, system=lambda _: in_inference_mode(purefx.compile)(PROGRAMS[program]))
