"""Overlap and cover: NumPy and enumeration of elements are the oracles."""

from __future__ import annotations

from itertools import combinations, product
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from purefx.layout import Chain, Geometry, Select, Slice, compose, covers, has_internal_overlap, overlaps
from purefx.layout.diophantine import has_solution
from tests.layout.samples import random_base, random_chain, randoms, seeded
from tests.layout.test_geometry import elements

BYTES = 4096


def random_strided(random: Random, itemsize: int) -> Geometry:
    """Any geometry at all within ``BYTES`` bytes, in elements of ``itemsize``."""
    while True:
        rank = random.randint(0, 4)
        sizes = tuple(random.randint(0 if random.random() < 0.05 else 1, 6) for _ in range(rank))
        strides = tuple(random.choice((0, 1, 2, 3, 5, 7, 12, 30)) for _ in range(rank))
        g = Geometry(sizes, strides, random.randint(0, 80))
        if g.span()[1] * itemsize <= BYTES:
            return g


def as_array(g: Geometry, itemsize: int) -> np.ndarray:
    """The bytes of ``g`` in one buffer, elements of ``itemsize`` bytes."""
    return np.ndarray(
        g.sizes,
        np.dtype(f"V{itemsize}"),
        BUFFER,
        g.offset * itemsize,
        tuple(stride * itemsize for stride in g.strides),
    )


BUFFER = np.zeros(BYTES, np.uint8)


def test_overlaps_agrees_with_numpy_on_10000_random_pairs() -> None:
    random = Random(20)
    met = 0
    for _ in range(10_000):
        first, second = random.choice((1, 2, 4, 8)), random.choice((1, 2, 4, 8))
        a, b = random_strided(random, first), random_strided(random, second)
        expected = np.shares_memory(as_array(a, first), as_array(b, second))
        assert overlaps(a, b, first, second) == expected, (a, b, first, second)
        met += expected
    assert 2000 < met < 8000


@given(randoms)
def test_overlaps_is_a_common_element(random: Random) -> None:
    a, b = random_strided(random, 8), random_strided(random, 8)
    assert overlaps(a, b) == overlaps(b, a) == bool(set(elements(a)) & set(elements(b)))


def test_overlaps_is_exact_for_all_pairs_of_windows_of_a_4x4_base() -> None:
    base = Geometry.contiguous((4, 4))
    ranges = list(combinations(range(5), 2))
    windows = [compose(base, (Slice(0, *rows), Slice(1, *columns))) for rows, columns in product(ranges, ranges)]
    assert len(windows) == 100
    for a, b in product(windows, windows):
        assert overlaps(a, b) == bool(set(elements(a)) & set(elements(b)))
        assert covers(a, b) == (set(elements(b)) <= set(elements(a)))


def test_even_and_odd_elements_are_apart() -> None:
    b = Geometry.contiguous((10,))
    even, odd = Slice(0, 0, 10, 2).apply(b), Slice(0, 1, 10, 2).apply(b)
    assert not overlaps(even, odd)
    assert overlaps(even, b)
    assert not overlaps(even, odd, 4, 4)
    assert overlaps(even, odd, 4, 8)


def test_overlap_of_large_layouts_is_decided_at_once() -> None:
    a = Geometry((1000, 1000, 500), (1_010_003, 1009, 1), 0)
    b = Geometry((1000, 1000, 500), (1_010_003, 1009, 1), 500)
    assert not overlaps(a, b)
    assert overlaps(a, b.shifted(-1))
    assert overlaps(Geometry((10**6, 10**6), (7 * 11, 7 * 13)), Geometry((10**6,), (7 * 17,), 7 * 10**7))
    assert not overlaps(Geometry((10**6, 10**6), (14, 21)), Geometry((10**6,), (28,), 10**7 + 1))


@given(randoms)
def test_internal_overlap_is_an_element_with_two_indices(random: Random) -> None:
    g = random_strided(random, 8)
    found = elements(g)
    assert has_internal_overlap(g) == (len(set(found)) < len(found))


def test_internal_overlap_is_exact_for_all_small_geometries() -> None:
    for sizes in product(range(4), repeat=3):
        for strides in product(range(5), repeat=3):
            g = Geometry(sizes, strides)
            assert has_internal_overlap(g) == (len(set(elements(g))) < len(elements(g)))


@given(randoms)
def test_covers_is_inclusion_of_elements(random: Random) -> None:
    outer, inner = random_strided(random, 8), random_strided(random, 8)
    assert covers(outer, inner) == (set(elements(inner)) <= set(elements(outer)))


def _view(random: Random) -> tuple[Geometry, Chain, Geometry]:
    base = random_base(random)
    return base, *random_chain(random, base, 3)


@given(seeded(_view))
def test_a_base_covers_its_views(sample: tuple[Geometry, Chain, Geometry]) -> None:
    base, _, view = sample
    assert covers(base, view)
    assert overlaps(base, view) == (not view.is_empty)


def test_a_large_base_covers_its_views_and_no_more() -> None:
    base = Geometry((1000, 1000), (1024, 1))
    assert covers(base, Slice(1, 3, 900).apply(base))
    assert not covers(base, Geometry((1024,), (1,)))
    assert not covers(Slice(1, 0, 1000, 2).apply(base), base)
    assert covers(base, Select(0, 3).apply(base))


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=4), st.integers(-2, 60))
def test_has_solution_is_exact(terms: list[tuple[int, int]], total: int) -> None:
    sums = {
        sum(coefficient * x for (coefficient, _), x in zip(terms, xs, strict=True))
        for xs in product(*(range(bound + 1) for _, bound in terms))
    }
    assert has_solution(terms, total) == (total in sums)
