"""Scatter and extract: the lens laws, on tensors."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
import torch
from hypothesis import assume, given

from purefx.layout import (
    AsStrided,
    Chain,
    Expand,
    Geometry,
    Scatter,
    Slice,
    Squeeze,
    Unfold,
    View,
    ViewDtype,
    has_internal_overlap,
    inverse,
)
from tests.layout.samples import random_chain, random_contiguous, randoms
from tests.layout.test_geometry import elements
from tests.layout.test_steps import geometry_of, run


def extract(value: torch.Tensor, chain: Chain) -> torch.Tensor:
    """The value of the view."""
    for step in chain:
        value = run(step, value)
    return value


def put_back(value: torch.Tensor, new: torch.Tensor, chain: Chain) -> torch.Tensor:
    """The value of the base once its view has the value ``new``."""
    if not chain:
        return new
    step, rest = chain[0], chain[1:]
    inner = put_back(run(step, value), new, rest)
    back = inverse(step, geometry_of(value), value.dtype)
    if isinstance(back, Scatter):
        packet, overload = back.op.split(".")
        op: Callable[..., torch.Tensor] = getattr(getattr(torch.ops.aten, packet), overload)
        return op(value, inner, *back.arguments)
    return inner.reshape(back.sizes) if isinstance(back, View) else run(back, inner)


@given(randoms)
def test_scatter_and_extract_are_a_lens(random: Random) -> None:
    base = Geometry.contiguous(random_contiguous(random).sizes)
    chain, view = random_chain(random, base, random.randint(1, 4))
    assume(not has_internal_overlap(view))
    old = torch.arange(base.numel).reshape(base.sizes)
    new = -1 - torch.arange(view.numel).reshape(view.sizes)
    assume(all(not isinstance(step, Unfold | Expand) for step in chain))
    written = put_back(old, new, chain)
    assert torch.equal(extract(written, chain), new)
    assert torch.equal(put_back(old, extract(old, chain), chain), old)
    assert torch.equal(put_back(written, new * 2, chain), put_back(old, new * 2, chain))
    expected = old.clone()
    expected.view(-1)[torch.tensor(elements(view), dtype=torch.long)] = new.reshape(-1)
    assert torch.equal(written, expected)


@pytest.mark.parametrize(
    "chain",
    [
        (Unfold(0, 2, 3),), (Unfold(1, 2, 2),), (AsStrided(Geometry((2, 2), (7, 2), 1)),),
        (Expand((1, 1, 6, 5)),),
        (Slice(0, 0, 6),), (Squeeze(0),), (ViewDtype(torch.int32, 8, 4),), (ViewDtype(torch.float64, 8, 8),),
    ],
    ids=str,
)  # fmt: skip
def test_windows_and_other_dtypes_come_back(chain: Chain) -> None:
    old = torch.arange(30).reshape(6, 5)
    view = extract(old, chain)
    new = (view + 1000).contiguous()
    written = put_back(old, new, chain)
    expected = old.clone()
    extract(expected, chain).copy_(new)
    assert torch.equal(written, expected)
    assert torch.equal(put_back(old, view, chain), old)


def test_a_write_through_the_inner_of_two_views_reaches_the_base() -> None:
    old = torch.zeros(4, 6)
    chain: Chain = (Slice(0, 1, 3), View((12,)), Slice(0, 2, 12, 5))
    written = put_back(old, torch.tensor([1.0, 2.0]), chain)
    expected = old.clone()
    expected[1:3].view(12)[2::5] = torch.tensor([1.0, 2.0])
    assert torch.equal(written, expected)


def test_the_way_back_to_another_dtype_needs_that_dtype() -> None:
    with pytest.raises(TypeError, match="base's dtype"):
        inverse(ViewDtype(torch.int16, 4, 2), Geometry.contiguous((2,)))
