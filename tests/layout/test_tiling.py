"""Tiling: what is assembled equals what is written one by one."""

from __future__ import annotations

import time
from itertools import combinations, product
from random import Random

import torch
from hypothesis import given
from hypothesis import strategies as st

from purefx.layout import Geometry, Join, Part, Piece, Rest, Select, Slice, assemble, box_of, compose
from tests.layout.samples import randoms
from tests.layout.test_geometry import elements

Box = tuple[tuple[int, int], ...]


def build(part: Part, old: torch.Tensor, pieces: list[torch.Tensor]) -> torch.Tensor:
    """What the plan says."""
    match part:
        case Piece(index):
            return pieces[index]
        case Rest(box):
            return old[tuple(slice(*bounds) for bounds in box)]
        case Join(dim, parts):
            return torch.cat([build(part, old, pieces) for part in parts], dim)


def pieces_in(part: Part) -> list[int]:
    """The numbers of the pieces used."""
    if isinstance(part, Join):
        return [number for inner in part.parts for number in pieces_in(inner)]
    return [part.index] if isinstance(part, Piece) else []


def check(sizes: tuple[int, ...], boxes: list[Box]) -> None:
    """The plan exists, uses each piece once, and makes what writing one by one makes."""
    part = assemble(sizes, boxes)
    assert part is not None
    old = torch.zeros(sizes)
    pieces = [torch.full([stop - start for start, stop in box], number + 1.0) for number, box in enumerate(boxes)]
    expected = old.clone()
    for box, piece in zip(boxes, pieces, strict=True):
        expected[tuple(slice(*bounds) for bounds in box)] = piece
    assert torch.equal(build(part, old, pieces), expected)
    assert sorted(pieces_in(part)) == [number for number, piece in enumerate(pieces) if piece.numel()]


def cut(random: Random, region: Box, depth: int) -> list[Box]:
    """A random tiling by straight cuts; some tiles are left out."""
    dim = random.randrange(len(region)) if region else 0
    if depth == 0 or not region or region[dim][1] - region[dim][0] < 2:
        return [region] if random.random() < 0.7 else []
    low, high = region[dim]
    at = random.randint(low + 1, high - 1)
    left = (*region[:dim], (low, at), *region[dim + 1 :])
    right = (*region[:dim], (at, high), *region[dim + 1 :])
    return cut(random, left, depth - 1) + cut(random, right, depth - 1)


@given(randoms, st.lists(st.integers(1, 6), max_size=3))
def test_assembled_equals_written_one_by_one(random: Random, sizes: list[int]) -> None:
    boxes = cut(random, tuple((0, size) for size in sizes), 5)
    random.shuffle(boxes)
    check(tuple(sizes), boxes)


def test_any_two_disjoint_windows_of_a_4x4_base_are_assembled() -> None:
    ranges = list(combinations(range(5), 2))
    windows = list(product(ranges, ranges))
    for first, second in product(windows, windows):
        if any(a[1] <= b[0] or b[1] <= a[0] for a, b in zip(first, second, strict=True)):
            check((4, 4), [first, second])
        else:
            assert assemble((4, 4), [first, second]) is None


def test_a_pinwheel_has_no_straight_cut() -> None:
    wheel = [((0, 1), (0, 2)), ((0, 2), (2, 3)), ((2, 3), (1, 3)), ((1, 3), (0, 1)), ((1, 2), (1, 2))]
    assert assemble((3, 3), wheel) is None


def test_no_box_leaves_the_old_value_and_one_box_may_be_everything() -> None:
    assert assemble((2, 3), []) == Rest(((0, 2), (0, 3)))
    assert assemble((2, 3), [((0, 2), (0, 3))]) == Piece(0)
    assert assemble((), [()]) == Piece(0)
    assert assemble((2, 3), [((1, 1), (0, 3))]) == Rest(((0, 2), (0, 3)))


def test_rows_are_joined_once() -> None:
    assert assemble((4, 3), [((2, 3), (0, 3)), ((1, 2), (0, 3))]) == Join(
        0, (Rest(((0, 1), (0, 3))), Piece(1), Piece(0), Rest(((3, 4), (0, 3))))
    )


def test_thousands_of_rows_take_milliseconds() -> None:
    boxes: list[Box] = [((row, row + 1), (0, 8)) for row in range(8000)]
    Random(0).shuffle(boxes)
    start = time.perf_counter()
    part = assemble((8000, 8), boxes)
    assert time.perf_counter() - start < 0.5
    assert isinstance(part, Join)
    assert len(part.parts) == 8000


@given(randoms, st.booleans())
def test_the_box_of_a_view_has_its_elements(random: Random, transposed: bool) -> None:  # noqa: FBT001
    sizes = tuple(random.randint(1, 4) for _ in range(3))
    base = Geometry.contiguous(sizes, 7)
    if transposed:
        base = Geometry(base.sizes[::-1], base.strides[::-1], 7)
    view, dim = base, 0
    for size in base.sizes:
        start = random.randrange(size)
        if random.random() < 0.4:
            view = Select(dim, start).apply(view)
        else:
            view, dim = Slice(dim, start, random.randint(start + 1, size)).apply(view), dim + 1
    box = box_of(base, view)
    assert box is not None
    chain = tuple(Slice(dim, *bounds) for dim, bounds in enumerate(box))
    assert elements(compose(base, chain)) == elements(view)


def test_what_is_no_box_has_none() -> None:
    base = Geometry.contiguous((4, 6))
    assert box_of(base, Slice(0, 0, 4, 2).apply(base)) is None
    assert box_of(base, Geometry((6, 4), (1, 6))) is None
    assert box_of(base, Geometry((24,), (1,))) is None
    assert box_of(base, Geometry((4,), (7,))) is None
    assert box_of(base, Geometry((2, 6), (6, 1), 18)) is None
    assert box_of(Geometry((4, 6), (0, 1)), Geometry((6,), (1,))) is None
    assert box_of(base, base) == ((0, 4), (0, 6))
