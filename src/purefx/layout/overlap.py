"""Whether two tensors of one storage have an element in common, and whether one holds the other.

Exact for plain integers. With symbolic sizes ``overlaps`` and ``has_internal_overlap`` say False, and
``covers`` says True, only where that is certain (or guarded on), so that each errs on the side on which
nothing breaks.
"""

from __future__ import annotations

from itertools import product as choices
from math import gcd

from purefx.layout.diophantine import Term, has_double, has_solution, joined
from purefx.layout.geometry import Geometry, by_stride
from purefx.layout.symbols import Int, holds, is_certain, product, quotients, same

SMALL = 4096
"""Up to this many elements are looked at one by one when nothing faster decides."""


def has_internal_overlap(g: Geometry) -> bool:
    """Two indices of ``g`` live at one element. True when symbols leave it open."""
    if g.is_empty:
        return False
    if g.is_static:
        return has_double(_terms(g))
    reach: Int = 0
    for size, stride in reversed(by_stride(g.essential())):
        if not holds(stride > reach):
            return True
        reach = reach + (size - 1) * stride
    return False


def overlaps(a: Geometry, b: Geometry, itemsize_a: int = 1, itemsize_b: int = 1) -> bool:
    """``a`` and ``b`` share a byte, where each counts the storage in its own element size.

    Exact for plain integers, whatever the strides; False means certain in any case.
    """
    if itemsize_a != itemsize_b:
        unit = gcd(itemsize_a, itemsize_b)
        a, b = a.scaled(itemsize_a // unit), b.scaled(itemsize_b // unit)
    if a.is_empty or b.is_empty:
        return False
    (low_a, high_a), (low_b, high_b) = a.span(), b.span()
    if holds(high_a <= low_b) or holds(high_b <= low_a):
        return False
    if a == b:
        return True
    if a.is_static and b.is_static:
        # low_a + (terms of a) == high_b - 1 - (terms of b), counting b from its last element down
        return has_solution(_terms(a) + _terms(b), high_b - 1 - low_a)
    return not _are_apart(a, b)


def _terms(g: Geometry) -> list[Term]:
    return [(abs(stride), size - 1) for size, stride in zip(g.sizes, g.strides, strict=True) if size > 1]


def _are_apart(a: Geometry, b: Geometry) -> bool:
    """Certain that no ``sum((index_a - index_b) * stride)`` bridges the offsets, digit by digit.

    The widest stride first: where the narrower ones cannot make up for one unit of it, its index difference
    is fixed. Rows 0 and 1 of a matrix are apart so, as are columns 0 and 1, whatever the sizes.
    """
    gap = b.offset - a.offset
    ranges = _difference_ranges(a, b)
    for place, (stride, low, high) in enumerate(ranges):
        least = sum(other * most for other, most, _ in ranges[place + 1 :])
        greatest = sum(other * most for other, _, most in ranges[place + 1 :])
        digit = _only_digit(gap, least, greatest, stride)
        if digit is None:
            return False
        if holds(digit < low) or holds(digit > high):
            return True
        gap = gap - digit * stride
        if holds(gap < least) or holds(gap > greatest):
            return True
    return holds(gap != 0)


def _only_digit(gap: Int, least: Int, greatest: Int, stride: Int) -> Int | None:
    """The only ``digit`` that can leave ``gap - digit * stride`` between ``least`` and ``greatest``."""
    if holds(greatest - gap < stride) and holds(-stride < least - gap):
        return 0
    for digit in quotients(gap, stride):
        rest = gap - digit * stride
        if is_certain(greatest - rest < stride) and is_certain(-stride < least - rest):
            return digit
    return None


def _difference_ranges(a: Geometry, b: Geometry) -> list[tuple[Int, Int, Int]]:
    """Each stride above 0, widest first, with the least and the greatest ``index_a - index_b`` along it."""
    rows = [(stride, 0, size - 1) for size, stride in a.essential() if not same(stride, 0)]
    rows += [(stride, 1 - size, 0) for size, stride in b.essential() if not same(stride, 0)]
    merged: list[tuple[Int, Int, Int]] = []
    for stride, low, high in rows:
        for place, (other, least, greatest) in enumerate(merged):
            if same(stride, other):
                merged[place] = (other, least + low, greatest + high)
                break
        else:
            merged.append((stride, low, high))
    order = by_stride(tuple((place, row[0]) for place, row in enumerate(merged)))
    return [merged[place] for place, _ in order]


def covers(outer: Geometry, inner: Geometry) -> bool:
    """Every element of ``inner`` is an element of ``outer``.

    True only if certain. False for plain integers means that some element is missing, unless ``inner`` has
    more than ``SMALL`` distinct positions and no digit-by-digit argument decides.
    """
    if inner.is_empty or outer == inner:
        return True
    if outer.is_empty:
        return False
    (low, high), (first, last) = outer.span(), inner.span()
    if not (holds(low <= first) and holds(last <= high)):
        return False
    if outer.is_dense or _covers_by_digits(outer, inner):
        return True
    return outer.is_static and inner.is_static and _covers_by_search(outer, inner)


def _covers_by_digits(outer: Geometry, inner: Geometry) -> bool:
    """Written in the strides of ``outer``, each index of ``inner`` has its digits within ``outer.sizes``."""
    dims = runs(outer)
    strides = tuple(stride for _, stride in dims)
    reached = digits(inner.offset - outer.offset, strides)
    if reached is None:
        return False
    for size, stride in runs(inner):
        places = digits(stride, strides)
        if places is None:
            return False
        reached = [far + (size - 1) * digit for far, digit in zip(reached, places, strict=True)]
    return all(holds(far < size) for far, (size, _) in zip(reached, dims, strict=True))


def _covers_by_search(outer: Geometry, inner: Geometry) -> bool:
    terms, low = _terms(outer), outer.span()[0]
    dims = joined(_terms(inner))
    if product(tuple(bound + 1 for _, bound in dims)) > SMALL:
        return False
    base = inner.span()[0] - low
    places = choices(*(range(0, stride * bound + 1, stride) for stride, bound in dims if stride))
    return all(has_solution(terms, base + sum(place)) for place in places)


def runs(g: Geometry) -> tuple[tuple[Int, Int], ...]:
    """The fewest (size, stride) pairs with the elements of ``g``, widest stride first, none of stride 0."""
    dims = tuple(dim for dim in g.essential() if not same(dim[1], 0))
    if g.is_static:
        return tuple((bound + 1, stride) for stride, bound in joined([(stride, size - 1) for size, stride in dims]))
    result: list[tuple[Int, Int]] = []
    for size, stride in by_stride(dims):
        if result and same(result[-1][1], size * stride):
            result[-1] = (result[-1][0] * size, stride)
        else:
            result.append((size, stride))
    return tuple(result)


def _digit(value: Int, stride: Int) -> Int:
    """``value // stride``."""
    for digit in quotients(value, stride):
        rest = value - digit * stride
        if is_certain(rest >= 0) and is_certain(rest < stride):
            return digit
    return 0 if holds(value < stride) else value // stride


def digits(value: Int, strides: tuple[Int, ...]) -> list[Int] | None:
    """The multiples of ``strides``, widest first, that make up ``value``: None when they do not.

    Where the strides belong to a geometry whose dimensions nest, there is no other choice within its sizes.
    """
    if holds(value < 0):
        return None
    result: list[Int] = []
    for stride in strides:
        digit = _digit(value, stride)
        value = value - digit * stride
        result.append(digit)
    return result if same(value, 0) else None
