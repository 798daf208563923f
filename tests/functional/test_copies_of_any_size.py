"""Operators on copies in graphs for any size: what depends on the sizes is given to them, not written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from tests.support.oracle import assert_same_as_eager


@torch.library.custom_op("purefx_any_size::fill_first", mutates_args=("x",))
def fill_first(x: Tensor, count: int, value: float) -> None:
    x.view(-1)[:count] = value


@fill_first.register_fake
def _(x: Tensor, count: int, value: float) -> None:
    pass


def add_shifted(x: Tensor) -> Any:
    x[1:-1, 1:-1].add_(x[:-2, :-2])
    return x * 1


def add_to_a_transposed_part(x: Tensor) -> Any:
    return x[:, 1:-1].T.mul_(x[:, 2:].T[:, :1])


def add_through_another_dtype(x: Tensor) -> Any:
    x.view(torch.complex64).real[:, 1:].add_(x[:, :1])
    return x + 1


def write_with_a_size(x: Tensor) -> Any:
    fill_first(x, x.shape[0] - 1, 7.0)
    return x.sum()


def add_lists(x: Tensor) -> Any:
    torch._foreach_add_([x[1:, 1:], x[:-1, 1:]], [x[:-1, :-1], x[1:, :-1]])
    return x


PROGRAMS = [add_shifted, add_to_a_transposed_part, add_through_another_dtype, write_with_a_size, add_lists]
MAKERS: dict[str, Callable[[int, int], Tensor]] = {
    "from the start": lambda n, m: torch.arange(1.0 * n * m).view(n, m),
    "from an offset": lambda n, m: torch.arange(4 + 1.0 * n * m)[4:].view(n, m),
}


@pytest.mark.parametrize("sizes", [(4, 6), (7, 10)])
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph_is_right_for_other_sizes(
    program: Callable[[Tensor], Any], maker: str, sizes: tuple[int, int]
) -> None:
    traced = purefx.trace(program, MAKERS[maker](5, 8), dynamic=True)
    ignored = frozenset({"version"} if program is write_with_a_size else ())  # a custom operator counts writes twice
    assert_same_as_eager(program, lambda: (MAKERS[maker](*sizes),), system=lambda _: traced, ignore=ignored)
