"""Relations between regions of one storage, whatever their dtypes: the layout algebra with element sizes."""

from __future__ import annotations

from purefx.capture.recording import Region
from purefx.layout import Chain, Geometry, Slice, covers, overlaps, reify, reify_dtype


def disjoint(a: Region, b: Region) -> bool:
    """Whether ``a`` and ``b`` certainly have no byte in common."""
    return a.storage is not b.storage or not overlaps(a.geometry, b.geometry, a.dtype.itemsize, b.dtype.itemsize)


def includes(outer: Region, inner: Region) -> bool:
    """Whether every element of ``inner`` certainly lies in ``outer``."""
    if outer == inner:
        return True
    return covers(*_in_common_units(outer, inner))


def same_elements(a: Region, b: Region) -> bool:
    """Whether the two regions certainly consist of the same elements, read in whatever order."""
    return a == b or (includes(a, b) and includes(b, a))


def _in_common_units(a: Region, b: Region) -> tuple[Geometry, Geometry]:
    unit = min(a.dtype.itemsize, b.dtype.itemsize)
    first, second = (
        r.geometry if r.dtype.itemsize == unit else r.geometry.scaled(r.dtype.itemsize // unit) for r in (a, b)
    )
    return first, second


def chain_between(base: Region, region: Region) -> Chain | None:
    """View ops from a tensor that shows ``base`` to one that shows ``region``; lazy bits aside."""
    if base.dtype == region.dtype:
        return reify(base.geometry, region.geometry)
    return reify_dtype(base.geometry, base.dtype.itemsize, region.geometry, region.dtype.itemsize, region.dtype)


def needs_restride(geometry: Geometry) -> bool:
    """Whether a value without gaps can be laid out in the order of ``geometry`` (it repeats no element)."""
    return 0 not in geometry.strides or geometry.is_empty


def first_elements(geometry: Geometry, single: Geometry) -> Chain:
    """From a tensor of that ``geometry`` to what `once` makes of it.

    The elements of ``single`` may overlap, so that no chain is found by what they are.
    """
    pairs = enumerate(zip(geometry.sizes, single.sizes, strict=True))
    return tuple(Slice(dim, 0, 1) for dim, (size, kept) in pairs if kept is not size)


def once(geometry: Geometry) -> Geometry:
    """``geometry`` with each element that it repeats by a stride of 0 only once: dimensions of size 1."""
    if all(type(stride) is not int or stride for stride in geometry.strides):
        return geometry
    pairs = zip(geometry.sizes, geometry.strides, strict=True)
    sizes = tuple(1 if type(stride) is int and stride == 0 else size for size, stride in pairs)
    return Geometry(sizes, geometry.strides, geometry.offset)
