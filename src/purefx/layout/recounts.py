"""View steps that count the same storage anew: by other sizes, by another element type, by any geometry.

``apply`` raises ``NotViewable`` where eager would refuse the view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from purefx.layout.geometry import Geometry
from purefx.layout.symbols import Int, holds, is_one, product, same, same_all
from purefx.layout.viewable import NotViewable, equal, replaced


@dataclass(frozen=True, slots=True)
class View:
    """``x.view(sizes)``: the elements in row-major order, counted by other sizes; one of them may be -1."""

    sizes: tuple[Int, ...]
    op: ClassVar[str] = "view.default"

    @property
    def arguments(self) -> tuple[object, ...]:
        """What follows the tensor in the call."""
        return (self.sizes,)

    def apply(self, g: Geometry) -> Geometry:
        """The geometry of this view of a tensor with geometry ``g``."""
        sizes = self._resolved(g)
        if g.is_empty:
            return Geometry(sizes, g.strides if same_all(sizes, g.sizes) else _row_major(sizes), g.offset)
        return Geometry(sizes, view_strides(g, sizes), g.offset)

    def _resolved(self, g: Geometry) -> tuple[Int, ...]:
        unknown = [dim for dim, size in enumerate(self.sizes) if same(size, -1)]
        if not unknown:
            if not equal(product(self.sizes), g.numel):
                raise NotViewable(f"sizes {self.sizes} do not count the elements of sizes {g.sizes}")
            return self.sizes
        known = product(replaced(self.sizes, unknown[0]))
        if len(unknown) > 1 or holds(known == 0) or not equal(g.numel // known * known, g.numel):
            raise NotViewable(f"sizes {self.sizes} for a tensor of sizes {g.sizes}")
        return replaced(self.sizes, unknown[0], g.numel // known)


def _row_major(sizes: tuple[Int, ...]) -> tuple[Int, ...]:
    return Geometry.contiguous(sizes).strides


def view_strides(g: Geometry, sizes: tuple[Int, ...]) -> tuple[Int, ...]:
    """The strides under which ``sizes`` count the elements of ``g`` in its own order.

    Dimensions of ``g`` that run on into each other form a chunk; each chunk must be counted by whole sizes.
    """
    strides: list[Int] = []
    left = len(sizes)
    for count, step in _chunks(g):
        taken: Int = 1
        while left and (is_one(sizes[left - 1]) or not (same(taken, count) or holds(taken >= count))):
            strides.append(taken * step)
            taken = taken * sizes[left - 1]
            left -= 1
        if not equal(taken, count):
            raise NotViewable(f"sizes {sizes} span two runs of sizes {g.sizes}, strides {g.strides}")
    if left:
        strides.extend(_row_major(sizes[:left])[::-1])
    return tuple(reversed(strides))


def _chunks(g: Geometry) -> list[tuple[Int, Int]]:
    """The maximal runs of dimensions that one stride walks, last first, as (count, stride)."""
    if not g.rank:
        return [(1, 1)]
    chunks: list[tuple[Int, Int]] = []
    count: Int = 1
    step = g.strides[-1]
    for dim in range(g.rank - 1, -1, -1):
        count = count * g.sizes[dim]
        if dim and (is_one(g.sizes[dim - 1]) or equal(g.strides[dim - 1], count * step)):
            continue
        chunks.append((count, step))
        count, step = 1, g.strides[dim - 1]
    return chunks


@dataclass(frozen=True, slots=True)
class ViewDtype:
    """``x.view(dtype)``: the bytes of ``x`` as elements of another type, maybe of another size."""

    dtype: object
    from_itemsize: int
    to_itemsize: int
    op: ClassVar[str] = "view.dtype"

    @property
    def arguments(self) -> tuple[object, ...]:
        """What follows the tensor in the call."""
        return (self.dtype,)

    def apply(self, g: Geometry) -> Geometry:
        """The geometry of this view of a tensor with geometry ``g``."""
        if self.from_itemsize == self.to_itemsize:
            return g
        if not g.rank or not equal(g.strides[-1], 1):
            raise NotViewable(f"another element size needs a last dimension of stride 1, not strides {g.strides}")
        if self.from_itemsize > self.to_itemsize:
            ratio = self.from_itemsize // self.to_itemsize
            strides = (*(stride * ratio for stride in g.strides[:-1]), 1)
            return Geometry((*g.sizes[:-1], g.sizes[-1] * ratio), strides, g.offset * ratio)
        ratio = self.to_itemsize // self.from_itemsize
        wide = (g.sizes[-1], *g.strides[:-1], g.offset)
        if not all(equal(value % ratio, 0) for value in wide):
            raise NotViewable(f"elements {ratio} times wider do not fit {g}")
        strides = (*(stride // ratio for stride in g.strides[:-1]), 1)
        return Geometry((*g.sizes[:-1], g.sizes[-1] // ratio), strides, g.offset // ratio)


@dataclass(frozen=True, slots=True)
class AsStrided:
    """``x.as_strided(...)``: any geometry of the storage of ``x``, whatever that of ``x`` is."""

    geometry: Geometry
    op: ClassVar[str] = "as_strided.default"

    @property
    def arguments(self) -> tuple[object, ...]:
        """What follows the tensor in the call."""
        return (self.geometry.sizes, self.geometry.strides, self.geometry.offset)

    def apply(self, g: Geometry) -> Geometry:
        """The geometry asked for."""
        del g
        if any(holds(value < 0) for value in (*self.geometry.strides, self.geometry.offset)):
            raise NotViewable(f"as_strided with a negative stride or offset: {self.geometry}")
        return self.geometry
