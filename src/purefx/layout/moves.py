"""View steps that keep every element: the dimensions change order, appear, go, or repeat.

``apply`` raises ``NotViewable`` where eager would refuse the view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from purefx.layout.geometry import Geometry
from purefx.layout.symbols import Int, holds, is_one, same
from purefx.layout.viewable import NotViewable, axis, equal, replaced


@dataclass(frozen=True, slots=True)
class Permute:
    """``x.permute(dims)``: dimension ``k`` of the view is dimension ``dims[k]``."""

    dims: tuple[int, ...]
    op: ClassVar[str] = "permute.default"

    @property
    def arguments(self) -> tuple[object, ...]:
        """What follows the tensor in the call."""
        return (self.dims,)

    def apply(self, g: Geometry) -> Geometry:
        """The geometry of this view of a tensor with geometry ``g``."""
        dims = [axis(dim, g.rank) for dim in self.dims]
        if sorted(dims) != list(range(g.rank)):
            raise NotViewable(f"{self.dims} is not a permutation of {g.rank} dimensions")
        return Geometry(tuple(g.sizes[dim] for dim in dims), tuple(g.strides[dim] for dim in dims), g.offset)


@dataclass(frozen=True, slots=True)
class Unsqueeze:
    """``x.unsqueeze(dim)``: a new dimension of size 1."""

    dim: int
    op: ClassVar[str] = "unsqueeze.default"

    @property
    def arguments(self) -> tuple[object, ...]:
        """What follows the tensor in the call."""
        return (self.dim,)

    def apply(self, g: Geometry) -> Geometry:
        """The geometry of this view of a tensor with geometry ``g``."""
        dim = axis(self.dim, g.rank + 1)
        stride = g.sizes[dim] * g.strides[dim] if dim < g.rank else 1
        sizes = (*g.sizes[:dim], 1, *g.sizes[dim:])
        return Geometry(sizes, (*g.strides[:dim], stride, *g.strides[dim:]), g.offset)


@dataclass(frozen=True, slots=True)
class Squeeze:
    """``x.squeeze(dim)``: a dimension of size 1 goes; one of another size stays."""

    dim: int
    op: ClassVar[str] = "squeeze.dim"

    @property
    def arguments(self) -> tuple[object, ...]:
        """What follows the tensor in the call."""
        return (self.dim,)

    def apply(self, g: Geometry) -> Geometry:
        """The geometry of this view of a tensor with geometry ``g``."""
        dim = axis(self.dim, max(g.rank, 1))
        if not g.rank or not equal(g.sizes[dim], 1):
            return g
        return Geometry(replaced(g.sizes, dim), replaced(g.strides, dim), g.offset)


@dataclass(frozen=True, slots=True)
class Expand:
    """``x.expand(sizes)``: dimensions of size 1, and new ones in front, repeated with stride 0."""

    sizes: tuple[Int, ...]
    op: ClassVar[str] = "expand.default"

    @property
    def arguments(self) -> tuple[object, ...]:
        """What follows the tensor in the call."""
        return (self.sizes,)

    def apply(self, g: Geometry) -> Geometry:
        """The geometry of this view of a tensor with geometry ``g``."""
        new = len(self.sizes) - g.rank
        if new < 0:
            raise NotViewable(f"expand of {g.rank} dimensions to {len(self.sizes)}")
        sizes: list[Int] = []
        strides: list[Int] = []
        for dim in range(len(self.sizes) - 1, -1, -1):
            if dim >= new:
                size, stride = g.sizes[dim - new], g.strides[dim - new]
            else:
                size, stride = 1, sizes[-1] * strides[-1] if g.rank else 0
            target = self._target(dim, size, is_new=dim < new)
            sizes.append(target)
            strides.append(stride if same(target, size) or not is_one(size) else 0)
        return Geometry(tuple(reversed(sizes)), tuple(reversed(strides)), g.offset)

    def _target(self, dim: int, size: Int, *, is_new: bool) -> Int:
        target = self.sizes[dim]
        if same(target, -1) and not is_new:
            return size
        if not holds(target < 0) and (is_one(size) or equal(target, size) or equal(size, 1)):
            return target
        raise NotViewable(f"dimension {dim} of size {size} expanded to {target}")
