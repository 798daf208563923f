"""A content cut along its patches, and the parts joined: each element is copied once, however many patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from purefx.functional.builder import Builder, Value, stride_order
from purefx.functional.contents import Content
from purefx.layout import (
    Geometry,
    Int,
    Join,
    NotViewable,
    Part,
    Permute,
    Piece,
    Rest,
    Slice,
    View,
    assemble,
    box_of,
    identity,
)
from purefx.layout.tiling import Box
from purefx.operators import aten

Order = tuple[int, ...]
"""The dimensions of a tensor, widest stride first."""


def join(builder: Builder, content: Content, patches: Sequence[Content]) -> Value | None:
    """All of ``content``, whose patches are ``patches``; None where straight cuts do not tell them apart."""
    region = content.region
    if any(not _reads_alike(content, patch) for patch in patches):
        return None
    order = stride_order(region.geometry)
    turned = _permuted(region.geometry, order)
    pieces: list[_Patch] = []
    for patch in patches:
        own = stride_order(patch.region.geometry)
        box = box_of(turned, _permuted(patch.region.geometry, own))
        if box is None:
            return None
        pieces.append(_Patch(patch.value, own, box))
    plan = assemble(turned.sizes, [piece.box for piece in pieces])
    if plan is None or isinstance(plan, Rest):
        return None
    return _Joiner(builder, content.value, order, pieces).build(plan)


@dataclass(frozen=True, slots=True, eq=False)
class _Patch:
    """The value of a patch, the order of its dimensions, and its place in the content."""

    value: Value
    order: Order
    box: Box


class _Joiner:
    """Builds a value by a plan of cuts.  Everything is turned so that the widest stride comes first."""

    def __init__(self, builder: Builder, base: Value, order: Order, patches: Sequence[_Patch]) -> None:
        self._builder = builder
        self._base = base
        self._order = order
        self._patches = patches

    def build(self, plan: Part) -> Value:
        """The value that ``plan`` describes, turned back."""
        back = tuple(sorted(range(len(self._order)), key=self._order.__getitem__))
        return self._turned(self._part(plan), back)

    def _part(self, plan: Part) -> Value:
        match plan:
            case Piece(index):
                return self._piece(self._patches[index])
            case Rest(box):
                return self._rest(box)
            case Join(dim, parts):
                stacked = self._stacked(plan)
                return self._cat([self._part(part) for part in parts], dim) if stacked is None else stacked

    def _stacked(self, plan: Join) -> Value | None:
        """The join as a stack, where each part is a patch that was written by one index of the dimension."""
        dim, rank = plan.dim, len(self._order)
        values = [self._patches[p.index].value for p in plan.parts if isinstance(p, Piece)]
        if len(values) < len(plan.parts) or self._order != tuple(range(rank)):
            return None
        sizes = self._base.geometry.sizes
        before, after = sizes[:dim], sizes[dim + 1 :]
        if not all(value.geometry.same_layout(Geometry.contiguous((*before, *after))) for value in values):
            return None
        node = self._builder.call(aten.stack.default, ([value.node for value in values], dim))
        return self._builder.made_like(values[0], node, Geometry.contiguous((*before, len(values), *after)))

    def _cat(self, parts: list[Value], dim: int) -> Value:
        node = self._builder.call(aten.cat.default, ([p.node for p in parts], dim))
        sizes = list(parts[0].geometry.sizes)
        sizes[dim] = sum(p.geometry.sizes[dim] for p in parts)
        return self._builder.made_like(parts[0], node, Geometry.contiguous(tuple(sizes)))

    def _piece(self, patch: _Patch) -> Value:
        value, sizes = self._turned(patch.value, patch.order), tuple(stop - start for start, stop in patch.box)
        return value if value.geometry.sizes == sizes else self._reshaped(value, sizes)

    def _rest(self, box: Box) -> Value:
        value = self._turned(self._base, self._order)
        for dim, (start, stop) in enumerate(box):
            if identity(start) != 0 or identity(stop) != identity(value.geometry.sizes[dim]):
                value = self._builder.view(value, Slice(dim, start, stop, 1))
        return value

    def _turned(self, value: Value, order: Order) -> Value:
        return value if order == tuple(range(len(order))) else self._builder.view(value, Permute(order))

    def _reshaped(self, value: Value, sizes: tuple[Int, ...]) -> Value:
        try:
            return self._builder.view(value, View(sizes))
        except NotViewable:
            packed = self._builder.laid_out(value, Geometry.contiguous(value.geometry.sizes))
            return self._builder.view(packed, View(sizes))


def _reads_alike(content: Content, patch: Content) -> bool:
    own, other = content.region, patch.region
    return (own.dtype, own.conj, own.neg) == (other.dtype, other.conj, other.neg)


def _permuted(geometry: Geometry, order: Order) -> Geometry:
    return Geometry(tuple(geometry.sizes[d] for d in order), tuple(geometry.strides[d] for d in order), geometry.offset)
