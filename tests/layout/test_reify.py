"""Reification: the chain found makes exactly the geometry asked for."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from purefx.layout import (
    AsStrided,
    Chain,
    Diagonal,
    Expand,
    Geometry,
    Permute,
    Select,
    Slice,
    Squeeze,
    Unfold,
    Unsqueeze,
    View,
    ViewDtype,
    compose,
    has_internal_overlap,
    reify,
    reify_dtype,
)
from tests.layout.samples import random_base, random_chain, random_contiguous, randoms
from tests.layout.test_geometry import elements
from tests.layout.test_steps import geometry_of, run, tensor_with


def _found(base: Geometry, view: Geometry) -> bool:
    chain = reify(base, view)
    if chain is None:
        return False
    assert not any(isinstance(step, AsStrided) for step in chain)
    made = compose(base, chain)
    assert made.sizes == view.sizes if view.is_empty else made == view
    return True


def test_every_view_of_a_row_major_base_is_found_in_10000_random_chains() -> None:
    random = Random(1)
    for _ in range(10_000):
        base = random_contiguous(random)
        view = random_chain(random, base, random.randint(1, 5))[1]
        assert _found(base, view), (base, view)


def test_fewer_than_1_percent_of_the_views_of_any_base_are_missed_in_10000_random_chains() -> None:
    random = Random(2)
    missed = []
    for _ in range(10_000):
        base = random_base(random)
        view = random_chain(random, base, random.randint(1, 5))[1]
        if not _found(base, view):
            missed.append(base)
    assert len(missed) < 100
    assert all(has_internal_overlap(base) for base in missed)


@given(randoms)
def test_pytorch_makes_the_view_by_the_chain(random: Random) -> None:
    base = random_contiguous(random)
    view = random_chain(random, base, 3)[1]
    x = tensor_with(base)
    made = x
    for step in reify(base, view) or ():
        made = run(step, made)
    assert made.shape == view.sizes
    assert made.reshape(-1).tolist() == elements(view)


BASE = Geometry.contiguous((4, 6, 5))
NATURAL: tuple[Chain, ...] = (
    (), (Select(0, 1),), (Select(2, 4),), (Slice(1, 2, 5),), (Slice(2, 0, 5, 2),), (Permute((2, 0, 1)),),
    (View((24, 5)),), (View((120,)),), (View((2, 2, 30)),), (Unsqueeze(0),), (Unsqueeze(3),),
    (Diagonal(1, 0, 1),),
    (Diagonal(-2, 1, 2),), (Unfold(0, 2, 1),), (Unfold(0, 3, 1),), (Slice(0, 1, 3), Slice(1, 0, 5)),
    (Select(0, 1), Select(0, 2)), (Select(0, 1), Slice(1, 1, 3)), (Slice(0, 1, 2),), (Unsqueeze(0),
    Expand((3, 4, 6, 5))),
    (Select(0, 0), Permute((1, 0))),
)  # fmt: skip


@pytest.mark.parametrize("chain", NATURAL, ids=str)
def test_the_natural_chain_is_found(chain: Chain) -> None:
    assert reify(BASE, compose(BASE, chain)) == chain


def test_a_dimension_of_size_1_goes_by_squeeze_and_repeats_by_expand() -> None:
    base = Geometry.contiguous((4, 1, 5))
    for chain in ((Squeeze(1),), (Expand((4, 3, 5)),)):
        assert reify(base, compose(base, chain)) == chain


@pytest.mark.parametrize("sizes", [(0,), (3, 0), (), (2, 0, 5)])
def test_an_empty_view_has_the_sizes_asked_for(sizes: tuple[int, ...]) -> None:
    view = Geometry.contiguous(sizes)
    if not view.is_empty:
        assert reify(Geometry.contiguous((0, 2)), view) is None
        return
    for base in (BASE, Geometry((), ()), Geometry.contiguous((0, 2)), view):
        assert _found(base, view)


def test_what_no_chain_of_view_ops_makes_is_not_found() -> None:
    matrix = Geometry((4, 3), (5, 1))
    assert reify(matrix, Geometry((20,), (1,))) is None
    assert reify(matrix, Geometry((4, 5), (5, 1))) is None
    assert reify(matrix, matrix.shifted(1)) is None
    assert reify(matrix, matrix.shifted(-1)) is None
    assert reify(matrix, Geometry((2,), (4,), 1)) is None


def test_what_is_found_lies_in_the_base_for_all_small_geometries() -> None:
    base = Geometry.contiguous((3, 4))
    for sizes, strides, offset in product(product(range(1, 4), repeat=2), product(range(6), repeat=2), range(0, 12, 3)):
        view = Geometry(sizes, strides, offset)
        assert _found(base, view) == (view.span()[1] <= 12)


DTYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@given(randoms, st.sampled_from(sorted(DTYPES)), st.sampled_from(sorted(DTYPES)))
def test_a_view_of_another_dtype_is_found(random: Random, base_itemsize: int, itemsize: int) -> None:
    coarse = max(base_itemsize, itemsize)
    wide = Geometry.contiguous(random_contiguous(random).sizes)
    if base_itemsize == coarse:
        base = wide
        view = random_chain(random, wide.scaled(coarse // itemsize), 2)[1]
    else:
        base = View((wide.numel * coarse // base_itemsize,)).apply(wide.scaled(coarse // base_itemsize))
        view = random_chain(random, wide, 2)[1]
    chain = reify_dtype(base, base_itemsize, view, itemsize, DTYPES[itemsize])
    assert chain is not None
    x = tensor_with(base, DTYPES[base_itemsize])
    for step in chain:
        x = run(step, x)
    assert x.dtype == DTYPES[itemsize]
    assert x.shape == view.sizes
    assert view.is_empty or geometry_of(x) == view


def test_a_cast_alone_is_found_where_it_is_enough() -> None:
    base = Geometry.contiguous((4, 6))
    for itemsize in (1, 2, 4, 8):
        cast = ViewDtype("other", 4, itemsize)
        assert reify_dtype(base, 4, cast.apply(base), itemsize, "other") == (cast,)
