"""View steps that choose elements by index along a dimension: select, slice, diagonal, windows.

``apply`` raises ``NotViewable`` where eager would refuse the view.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

from purefx.layout.geometry import Geometry
from purefx.layout.symbols import Int, holds, is_one, same
from purefx.layout.viewable import NotViewable, axis, least, replaced

END = sys.maxsize
"""The stop of a slice that runs to the end."""


@dataclass(frozen=True, slots=True)
class Select:
    """``x.select(dim, index)``: one index of a dimension, which goes."""

    dim: int
    index: Int
    op: ClassVar[str] = "select.int"

    @property
    def arguments(self) -> tuple[object, ...]:
        """What follows the tensor in the call."""
        return (self.dim, self.index)

    def apply(self, g: Geometry) -> Geometry:
        """The geometry of this view of a tensor with geometry ``g``."""
        if not g.rank:
            raise NotViewable("select on a tensor without dimensions")
        dim = axis(self.dim, g.rank)
        size, stride = g.sizes[dim], g.strides[dim]
        index = self.index + size if holds(self.index < 0) else self.index
        if holds(index < 0) or holds(index >= size):
            raise NotViewable(f"index {self.index} of dimension {dim} of size {size}")
        return Geometry(replaced(g.sizes, dim), replaced(g.strides, dim), g.offset + index * stride)


@dataclass(frozen=True, slots=True)
class Slice:
    """``x[..., start:stop:step, ...]`` in dimension ``dim``; bounds count and clamp as Python's do."""

    dim: int
    start: Int = 0
    stop: Int = END
    step: Int = 1
    op: ClassVar[str] = "slice.Tensor"

    @property
    def arguments(self) -> tuple[object, ...]:
        """What follows the tensor in the call."""
        return (self.dim, self.start, self.stop, self.step)

    def bounds(self, size: Int) -> tuple[Int, Int]:
        """``start`` and ``stop`` as places ``0 <= start <= stop <= size``."""
        start = self.start + size if holds(self.start < 0) else self.start
        stop = self.stop + size if holds(self.stop < 0) else self.stop
        start = 0 if holds(start < 0) else least(start, size)
        stop = size if same(stop, END) else least(stop, size)
        return start, start if holds(stop < start) else stop

    def apply(self, g: Geometry) -> Geometry:
        """The geometry of this view of a tensor with geometry ``g``."""
        if not g.rank:
            raise NotViewable("slice of a tensor without dimensions")
        if holds(self.step <= 0):
            raise NotViewable(f"slice with step {self.step}")
        dim = axis(self.dim, g.rank)
        start, stop = self.bounds(g.sizes[dim])
        length = stop - start
        if not is_one(self.step):
            length = (length + self.step - 1) // self.step
        strides = replaced(g.strides, dim, g.strides[dim] * self.step)
        return Geometry(replaced(g.sizes, dim, length), strides, g.offset + start * g.strides[dim])


@dataclass(frozen=True, slots=True)
class Diagonal:
    """``x.diagonal(offset, dim1, dim2)``: the two dimensions go, their diagonal becomes the last."""

    offset: int
    dim1: int
    dim2: int
    op: ClassVar[str] = "diagonal.default"

    @property
    def arguments(self) -> tuple[object, ...]:
        """What follows the tensor in the call."""
        return (self.offset, self.dim1, self.dim2)

    def apply(self, g: Geometry) -> Geometry:
        """The geometry of this view of a tensor with geometry ``g``."""
        dim1, dim2 = axis(self.dim1, g.rank), axis(self.dim2, g.rank)
        if dim1 == dim2:
            raise NotViewable(f"diagonal of dimension {dim1} with itself")
        rows, columns = g.sizes[dim1], g.sizes[dim2]
        below = holds(self.offset < 0)
        length = least(rows + self.offset, columns) if below else least(rows, columns - self.offset)
        offset = g.offset
        if holds(length <= 0):
            length = 0
        elif below:
            offset = offset - self.offset * g.strides[dim1]
        else:
            offset = offset + self.offset * g.strides[dim2]
        kept = [dim for dim in range(g.rank) if dim not in (dim1, dim2)]
        sizes = (*(g.sizes[dim] for dim in kept), length)
        strides = (*(g.strides[dim] for dim in kept), g.strides[dim1] + g.strides[dim2])
        return Geometry(sizes, strides, offset)


@dataclass(frozen=True, slots=True)
class Unfold:
    """``x.unfold(dim, size, step)``: windows of ``size``, one every ``step``; the new last one is in them."""

    dim: int
    size: Int
    step: Int
    op: ClassVar[str] = "unfold.default"

    @property
    def arguments(self) -> tuple[object, ...]:
        """What follows the tensor in the call."""
        return (self.dim, self.size, self.step)

    def apply(self, g: Geometry) -> Geometry:
        """The geometry of this view of a tensor with geometry ``g``."""
        dim = axis(self.dim, max(g.rank, 1))
        length, stride = (g.sizes[dim], g.strides[dim]) if g.rank else (1, 1)
        if holds(self.size < 0) or holds(self.size > length) or holds(self.step <= 0):
            raise NotViewable(f"windows of {self.size} every {self.step} in dimension {dim} of size {length}")
        count = (length - self.size) // self.step + 1
        sizes, strides = g.sizes, g.strides
        if g.rank:
            sizes, strides = replaced(sizes, dim, count), replaced(strides, dim, stride * self.step)
        return Geometry((*sizes, self.size), (*strides, stride), g.offset)
