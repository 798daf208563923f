"""Programs with gradients that PyTorch's compilers get wrong or refuse (V2, V5, V6, V7) are as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from tests.functional.kinds import Programs, ramp
from tests.support.oracle import assert_same_as_eager

programs = Programs()


def leaf(*sizes: int) -> Tensor:
    """A leaf that requires grad."""
    return ramp(*sizes).requires_grad_()


def grown(*sizes: int) -> Tensor:
    """A tensor that a leaf has become, which may be written in place."""
    return leaf(*sizes).clone()


# ---- V2: a view of a slice of what was written


@programs(lambda: ((t := grown(4, 6)), t[1:]))
def v2_a_view_of_a_slice_after_a_write(t: Tensor, tail: Tensor) -> Any:
    t.mul_(100)
    return tail[0]


@programs(lambda: ((t := grown(4, 6)), t[1:]))
def v2_a_flat_view_of_a_slice_after_a_write(t: Tensor, tail: Tensor) -> Any:
    t.mul_(100)
    return tail.view(-1)


@programs(lambda: ((t := leaf(4, 6)), t[1:]))
def v2_a_leaf_is_written_without_grad(t: Tensor, tail: Tensor) -> Any:
    with torch.no_grad():
        t.mul_(100)
    return tail[0], t * 2


@programs(lambda: ((t := grown(4, 6)), t[1:].detach()))
def v2_the_slice_is_detached(t: Tensor, tail: Tensor) -> Any:
    t.mul_(100)
    return tail[0], t[0] * tail[1]


@programs(lambda: ((t := grown(4, 6)), t[1:], t[:, 2:]))
def v2_two_slices_are_viewed_and_one_is_written(t: Tensor, rows: Tensor, columns: Tensor) -> Any:
    rows.mul_(3)
    return columns[1], columns.t()[0], rows.sum() * t


# ---- V5: overlapping views that require grad, written


@programs(lambda: ((b := grown(4))[:3], b[1:]))
def v5_two_overlapping_views_are_written(a: Tensor, b: Tensor) -> Any:
    a.mul_(2)
    b.mul_(3)
    return a + b


@programs(lambda: ((b := grown(4))[:3], b[1:]))
def v5_two_overlapping_views_are_written_and_nothing_is_returned(a: Tensor, b: Tensor) -> Any:
    b.add_(a.clone())
    a.mul_(b.clone())


@programs(lambda: ((b := grown(4))[:3], b[1:], b))
def v5_two_overlapping_views_and_their_base_are_written(a: Tensor, b: Tensor, base: Tensor) -> Any:
    a.mul_(2)
    base.mul_(base.detach().clone())
    b.add_(a.sum())
    return base[0], b


@programs(lambda: ((b := grown(4))[:3], b.detach()[1:]))
def v5_one_of_two_overlapping_views_is_detached(a: Tensor, b: Tensor) -> Any:
    a.mul_(2)
    b.mul_(3)
    return a * 2, b * 2


@programs(lambda: ((b := grown(3, 3))[:2], b.t()[1:]))
def v5_a_view_and_a_view_of_the_transpose_are_written(a: Tensor, b: Tensor) -> Any:
    a.mul_(2)
    b.mul_(3)
    return a * 1, b * b


@programs(lambda: ((b := grown(4))[:2], b[1:3], (c := grown(4))[:2], c[1:]))
def v5_overlapping_views_of_two_bases_are_written(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Any:
    a.add_(c)
    d.mul_(3)
    b.add_(c)
    return a, d * 2


# ---- V6: a base and its pieces are results, and one is written later


@programs(lambda: (leaf(4),))
def v6_a_new_tensor_and_its_pieces(x: Tensor) -> Any:
    b = x * 2
    return (b, *b.split(2))


@programs(lambda: (grown(4),))
def v6_an_argument_and_its_pieces(x: Tensor) -> Any:
    return (x, *x.split(2))


@programs(lambda: (leaf(3, 2),))
def v6_pieces_alone(x: Tensor) -> Any:
    return (x * 2).unbind()


@programs(lambda: (leaf(4),))
def v6_a_view_beside_the_pieces(x: Tensor) -> Any:
    b = x * 2
    return (b[1:], *b.chunk(2), b[:2])


# ---- V7: what was written before an argument is set to other memory


@programs(lambda: ((x := grown(3)).detach(), x, torch.ones(3)))
def v7_a_write_before_set_is_seen_by_an_older_alias(a: Any, alias: Tensor, other: Tensor) -> Any:
    a.mul_(2)
    a.set_(other)
    return alias * alias, a


@programs(lambda: (ramp(3), leaf(3), torch.ones(3)))
def v7_what_is_set_was_written_with_a_gradient_before(a: Any, weight: Tensor, other: Tensor) -> Any:
    alias = a.detach()
    a.copy_(weight.detach())
    a.set_(other)
    return alias * weight, a * weight


@programs(lambda: (grown(3), torch.ones(3)))
def v7_what_requires_grad_is_written_and_set(a: Any, other: Tensor) -> Any:
    alias = a.view(-1)
    a.mul_(2)
    a.data = other
    return alias * 2


@pytest.mark.parametrize("name", programs.names())
def test_it_cannot_be_told_from_eager(name: str) -> None:
    assert_same_as_eager(programs[name].function, programs[name].make, system=purefx.compile)
