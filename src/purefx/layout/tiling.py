"""Boxes: the parts of a tensor that views of it occupy, and a plan that builds a tensor out of such parts.

``box_of`` reads off the box of a view. ``assemble`` cuts a tensor along boxes, straight through, again and
again, so that each element is taken from one place, however many boxes there are. A box is one half-open
range per dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from purefx.layout.geometry import Geometry
from purefx.layout.overlap import digits
from purefx.layout.symbols import Int, holds, is_one, same

Range: TypeAlias = tuple[Int, Int]
Box: TypeAlias = tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """The value of box number ``index``, whole."""

    index: int


@dataclass(frozen=True, slots=True)
class Rest:
    """What the old value has in ``box``."""

    box: Box


@dataclass(frozen=True, slots=True)
class Join:
    """``parts`` after one another along ``dim``: ``torch.cat``."""

    dim: int
    parts: tuple[Part, ...]


Part: TypeAlias = Piece | Rest | Join


def box_of(base: Geometry, view: Geometry) -> Box | None:
    """The index range of each dimension of ``base`` that ``view`` occupies; None if it is no such box.

    The dimensions of ``view`` are those of ``base`` in their order, with step 1; a dimension of which one
    index is taken may be missing. So ``view`` has the elements of ``base[box]``, in its order.
    """
    if base.is_empty or view.is_empty:
        return None
    order = _distinct_dims(base)
    if order is None:
        return None
    places = digits(view.offset - base.offset, tuple(base.strides[dim] for dim in order))
    if places is None:
        return None
    box: list[Range] = [(0, 1)] * base.rank
    wanted = list(view.essential())
    starts = dict(zip(order, places, strict=True))
    for dim in sorted(order):
        count: Int = 1
        if wanted and same(wanted[0][1], base.strides[dim]):
            count = wanted.pop(0)[0]
        stop = starts[dim] + count
        if not holds(stop <= base.sizes[dim]):
            return None
        box[dim] = (starts[dim], stop)
    return None if wanted else tuple(box)


def _distinct_dims(base: Geometry) -> list[int] | None:
    """The dimensions of more than one index, widest stride first; None unless their strides nest."""
    order: list[int] = []
    for dim in range(base.rank):
        if not is_one(base.sizes[dim]):
            place = len(order)
            while place and holds(base.strides[order[place - 1]] < base.strides[dim]):
                place -= 1
            order.insert(place, dim)
    reach: Int = 0
    for dim in reversed(order):
        if not holds(base.strides[dim] > reach):
            return None
        reach = reach + (base.sizes[dim] - 1) * base.strides[dim]
    return order


def assemble(sizes: tuple[Int, ...], boxes: Sequence[Box]) -> Part | None:
    """A plan for a tensor of ``sizes`` that has the pieces in ``boxes``, and the old value everywhere else.

    Requires boxes that are inside ``sizes`` and pairwise disjoint. Each element comes from exactly one part.
    None if straight cuts do not tell the boxes apart (four boxes around a fifth, as in a pinwheel, or boxes
    that overlap), if symbols leave their order open, or if it takes too many cuts.
    """
    cutter = _Cutter(boxes)
    whole = tuple((0, size) for size in sizes)
    numbers = [number for number, box in enumerate(boxes) if not any(same(*bounds) for bounds in box)]
    try:
        return cutter.part(whole, numbers)
    except _NoCutError:
        return None


class _NoCutError(Exception):
    """The boxes cannot be told apart."""


class _Cutter:
    """Cuts regions into parts, within a budget: 64 looks at each box are enough for any even tiling.

    Only ``_spend`` changes the state.
    """

    def __init__(self, boxes: Sequence[Box]) -> None:
        self.boxes = boxes
        self._budget = 64 * (len(boxes) + 1)

    def _spend(self, looks: int) -> None:
        self._budget -= looks
        if self._budget < 0:
            raise _NoCutError

    def part(self, region: Box, numbers: list[int]) -> Part:
        """The plan of ``region``, in which the boxes ``numbers`` lie."""
        if not numbers:
            return Rest(region)
        if len(numbers) == 1 and _is_same_box(self.boxes[numbers[0]], region):
            return Piece(numbers[0])
        for dim, bounds in enumerate(region):
            self._spend(len(numbers))
            groups = self._groups(dim, numbers)
            if len(groups) > 1 or not _is_same_range(groups[0][0], bounds):
                return self._join(region, dim, groups)
        raise _NoCutError

    def _join(self, region: Box, dim: int, groups: list[tuple[Range, list[int]]]) -> Part:
        low, high = region[dim]
        parts: list[Part] = []
        for (start, stop), numbers in groups:
            if not same(low, start):
                parts.append(Rest(_with(region, dim, (low, start))))
            parts.append(self.part(_with(region, dim, (start, stop)), numbers))
            low = stop
        if not same(low, high):
            parts.append(Rest(_with(region, dim, (low, high))))
        return Join(dim, tuple(parts))

    def _groups(self, dim: int, numbers: list[int]) -> list[tuple[Range, list[int]]]:
        """The boxes in order along ``dim``, those together between which no straight cut goes."""
        groups: list[tuple[Range, list[int]]] = []
        for number in self._sorted(dim, numbers):
            start, stop = self.boxes[number][dim]
            if not groups or _comes_first(groups[-1][0][1], start):
                groups.append(((start, stop), [number]))
                continue
            (first, last), members = groups[-1]
            members.append(number)
            groups[-1] = ((first, stop if _comes_first(last, stop) else last), members)
        return groups

    def _sorted(self, dim: int, numbers: list[int]) -> list[int]:
        starts = [self.boxes[number][dim][0] for number in numbers]
        if all(isinstance(start, int) for start in starts):
            return sorted(numbers, key=lambda number: self.boxes[number][dim][0])
        order: list[int] = []
        for number in numbers:
            place = len(order)
            while place and not _comes_first(self.boxes[order[place - 1]][dim][0], self.boxes[number][dim][0]):
                place -= 1
            order.insert(place, number)
        return order


def _comes_first(low: Int, high: Int) -> bool:
    """``low <= high``; nothing is planned if that is not known."""
    if holds(low <= high):
        return True
    if holds(low > high):
        return False
    raise _NoCutError


def _with(region: Box, dim: int, bounds: Range) -> Box:
    return (*region[:dim], bounds, *region[dim + 1 :])


def _is_same_range(first: Range, second: Range) -> bool:
    return same(first[0], second[0]) and same(first[1], second[1])


def _is_same_box(first: Box, second: Box) -> bool:
    return all(map(_is_same_range, first, second))
