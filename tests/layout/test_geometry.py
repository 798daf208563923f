"""The laws of ``Geometry``, each checked against the set of its elements."""

from __future__ import annotations

from itertools import product
from random import Random

import torch
from hypothesis import given

from purefx.layout import Geometry
from tests.layout.samples import random_base, seeded

geometries = seeded(random_base)


def elements(g: Geometry) -> list[int]:
    """The storage element of each index, in row-major order."""
    return [
        g.offset + sum(i * stride for i, stride in zip(index, g.strides, strict=True))
        for index in product(*map(range, g.sizes))
    ]


@given(geometries)
def test_span_is_the_least_run_that_holds_every_element(g: Geometry) -> None:
    found = elements(g)
    assert g.span() == ((min(found), max(found) + 1) if found else (g.offset, g.offset))


@given(geometries)
def test_dense_means_that_each_element_of_the_span_belongs_to_one_index(g: Geometry) -> None:
    low, high = g.span()
    assert g.is_dense == (sorted(elements(g)) == list(range(low, high)))


@given(geometries)
def test_contiguous_means_what_pytorch_means(g: Geometry) -> None:
    x = torch.empty(g.span()[1]).as_strided(g.sizes, g.strides, g.offset)
    assert g.is_contiguous == x.is_contiguous()


@given(geometries)
def test_scaled_has_the_same_bytes(g: Geometry) -> None:
    fine = [element * 4 + part for element in elements(g) for part in range(4)]
    assert elements(g.scaled(4)) == fine


def test_contiguous_has_the_strides_of_a_new_tensor() -> None:
    for sizes in [(), (3,), (2, 3, 4), (1, 3), (3, 1, 2), (0, 3), (3, 0, 2), (2, 0)]:
        assert Geometry.contiguous(sizes).strides == torch.empty(sizes).stride()


def test_equality_sees_the_stride_of_a_size_1_dimension_and_same_layout_does_not() -> None:
    row, other = Geometry((1, 3), (3, 1)), Geometry((1, 3), (7, 1))
    assert row != other
    assert row.same_layout(other)
    assert hash(row) == hash(Geometry((1, 3), (3, 1)))
    assert row.same_layout(row.shifted(5))
    assert row != row.shifted(5)
    assert not row.same_layout(Geometry((1, 3), (3, 2)))


def test_empty_tensors_of_equal_sizes_have_the_same_layout() -> None:
    assert Geometry((0, 3), (3, 1)).same_layout(Geometry((0, 3), (1, 9)))
    assert not Geometry((0, 3), (3, 1)).same_layout(Geometry((3, 0), (3, 1)))


def test_a_geometry_says_how_many_elements_it_has() -> None:
    random = Random(0)
    for _ in range(100):
        g = random_base(random)
        assert g.numel == len(elements(g))
        assert g.is_empty == (not elements(g))
        assert g.is_static
