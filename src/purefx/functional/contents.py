"""What a storage holds while writes are being removed: a base value, and patches written over parts of it.

    buf = empty(3, 4)      base: empty
    buf[0] = a             base, patch row 0 = a          nothing is copied
    buf[2] = b             base, patches rows 0 and 2
    buf[2] * 2             reads b
    buf.sum()              cat([a, base[1], b])           one copy, when something crosses the regions

Rule: a write of one region never costs more than that region.  Without it, a buffer of N rows that is written
row by row is copied N times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import fx

from purefx._torch import resolve_op
from purefx.capture.recording import Call, DataAccess, Effect, Operand, Recording, Region, map_tree
from purefx.errors import UnsupportedOperator
from purefx.functional.builder import Builder, Value, fits, run_on_meta, stride_order
from purefx.functional.patches import Patches
from purefx.functional.regions import (
    chain_between,
    includes,
    needs_restride,
    same_elements,
)
from purefx.layout import (
    Expand,
    Geometry,
    Join,
    NotViewable,
    Part,
    Permute,
    Piece,
    Rest,
    Scatter,
    Slice,
    Step,
    Unfold,
    View,
    assemble,
    box_of,
    has_internal_overlap,
    identity,
    inverse,
)
from purefx.operators import READS_STORAGE, aten


@dataclass(eq=False, slots=True)
class Content:
    """The elements of ``region``: ``value``, except where a patch has newer ones.

    ``derived`` keeps the views of ``value`` that were needed so far.
    """

    region: Region
    value: Value
    patches: Patches[Content] = field(default_factory=Patches)
    derived: dict[Region, Value] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class Merge:
    """``after`` is the whole of ``content``, whose value was ``before``, with ``writes`` done in order.

    Each write is a region of the content (which lay in ``region``) with the node of its value.
    """

    content: Content
    before: fx.Node
    after: fx.Node
    region: Region
    writes: tuple[tuple[Region, fx.Node], ...]


class Reader:
    """Reads and writes regions of contents, by adding nodes to a graph.

    For regions ``r`` and ``s`` without internal overlap, and any content of both:
      write(r, x); read(r)             is x
      write(r, read(r))                changes nothing
      write(r, x); write(r, y)         is write(r, y)
      write(r, x); read(s)             is read(s), where r and s are disjoint
    """

    def __init__(self, builder: Builder, recording: Recording) -> None:
        self._builder = builder
        self._recording = recording
        self._multi: dict[tuple[Call, Value], Any] = {}
        self.merges: list[Merge] = []

    def read(self, content: Content, region: Region) -> Value:
        """The present value of ``region``, which lies in ``content``."""
        met = content.patches.meeting(region) if content.patches else []
        if len(met) == 1 and includes(met[0].region, region):
            return self.read(met[0], region)
        if met:
            self.settle(content)
        return self._derive(content, region)

    def write(self, content: Content, region: Region, value: Value) -> None:
        """Make ``value`` the value of ``region``, which lies in ``content``."""
        if region.geometry.is_empty:
            return
        if same_elements(region, content.region):
            self._replace(content, region, value)
            return
        met = content.patches.meeting(region)
        if len(met) == 1 and _holds_inside(met[0].region, region):
            self.write(met[0], region, value)
            return
        covered = [patch for patch in met if includes(region, patch.region)]
        if len(covered) < len(met):
            self.settle(content)
        else:
            for patch in covered:
                content.patches.remove(patch)
        content.patches.add(Content(region, value))

    def settle(self, content: Content) -> None:
        """Put all patches of ``content`` into its value."""
        if not content.patches:
            return
        patches = list(content.patches)
        for patch in patches:
            self.settle(patch)
        self._fit(content)
        before = content.value
        merged = self._join(content, patches)
        for patch in () if merged is not None else patches:
            content.value = self._scatter(content, patch)
            content.derived.clear()
        content.value = content.value if merged is None else merged
        writes = tuple((p.region, p.value.node) for p in patches)
        self.merges.append(Merge(content, before.node, content.value.node, content.region, writes))
        content.patches.clear()
        content.derived = {p.region: p.value for p in patches if p.value.geometry.same_layout(p.region.geometry)}

    def settled(self, content: Content) -> Value:
        """The whole of ``content`` as one value with the strides of its region."""
        self.settle(content)
        self._fit(content)
        return content.value

    def _replace(self, content: Content, region: Region, value: Value) -> None:
        content.patches.clear()
        content.derived.clear()
        content.region, content.value = region, value

    def _fit(self, content: Content) -> None:
        """Give the value of ``content`` strides with which the program's views of it are allowed."""
        region, value = content.region, content.value
        if not fits(value.geometry, region.geometry) and needs_restride(region.geometry):
            content.value = self._builder.laid_out(value, region.geometry)
            content.derived.clear()
        content.value = self._builder.with_bits(content.value, conj=region.conj, neg=region.neg)

    def _derive(self, content: Content, region: Region) -> Value:
        if region == content.region:
            self._fit(content)
            return content.value
        known = content.derived.get(region)
        if known is None:
            self._fit(content)
            known = self._program_view(content, region)
            if known is None:
                known = self._reified(content, region)
            content.derived[region] = known
        return known

    def _program_view(self, content: Content, region: Region) -> Value | None:
        """``region`` by the program's own view op, if the program took it of something in ``content``."""
        way: list[Region] = [region]
        while way[-1] != content.region and way[-1] not in content.derived:
            call, _ = self._recording.producers.get(way[-1], (None, 0))
            parent = None if call is None else view_operand(call, way[-1])
            if call is None or parent is None or call.op in READS_STORAGE or parent.region in way:
                return None
            way.append(parent.region)
        for step in reversed(way[:-1]):
            content.derived[step] = self._run_view(content, step)
        return content.derived[region]

    def _run_view(self, content: Content, region: Region) -> Value:
        call, position = self._recording.producers[region]
        operand = view_operand(call, region)
        assert operand is not None
        parent = content.value if operand.region == content.region else content.derived[operand.region]
        args = map_tree(lambda x: parent if x == operand else x, call.args)
        own = self._own_geometry(call, args, parent, operand.region, region, position)
        op = aten.detach.default if call.op is DataAccess.READ else call.overload
        if len(call.outputs) == 1 and not isinstance(call.results, (list, tuple)):
            return self._builder.view_call(parent, op, args, region, own)
        key = (call, parent)
        if key not in self._multi:
            self._multi[key] = self._builder.call(op, args)
        node = self._builder.item(self._multi[key], position)
        return self._builder.value(node, own, region.dtype, (region.conj, region.neg), parent.origin)

    def _own_geometry(
        self, call: Call, args: Any, parent: Value, before: Region, after: Region, position: int
    ) -> Geometry:
        shift = parent.geometry.offset - before.geometry.offset
        if parent.geometry.same_layout(before.geometry):
            if after.dtype.itemsize == before.dtype.itemsize:
                return after.geometry.shifted(shift)
            return Geometry(after.geometry.sizes, after.geometry.strides, 0)
        if before.geometry == after.geometry:
            return parent.geometry
        return run_on_meta(call.overload, args, call.kwargs)[position][0]

    def _reified(self, content: Content, region: Region) -> Value:
        """``region`` by view ops worked out from the two geometries, or by as_strided where there are none."""
        value = content.value
        chain = chain_between(content.region, region)
        if chain is not None:
            try:
                return self._with_lazy_bits(self._builder.chain(self._physical(value), chain), region)
            except NotViewable:
                pass
        if region.dtype != content.region.dtype:
            raise UnsupportedOperator(
                f"a tensor of {region.dtype} cannot be cut out of memory that is known as {content.region.dtype}",
                where=None,
                remedy="copy the tensor of the other dtype before it is written to",
            )
        wanted = region.geometry
        value = self.strided_exactly(content)
        shift = value.geometry.offset - content.region.geometry.offset
        arguments = (list(wanted.sizes), list(wanted.strides), wanted.offset + shift)
        return self._builder.view_call(
            value, aten.as_strided.default, (value, *arguments), region, wanted.shifted(shift)
        )

    def _physical(self, value: Value) -> Value:
        """``value`` without lazy bits, as a view."""
        if value.conj:
            node = self._builder.call(aten._conj.default, (value,))
            value = self._builder.value(node, value.geometry, value.dtype, (False, value.neg), value.origin)
        if value.neg:
            node = self._builder.call(aten._neg_view.default, (value,))
            value = self._builder.value(node, value.geometry, value.dtype, (value.conj, False), value.origin)
        return value

    def _with_lazy_bits(self, value: Value, region: Region) -> Value:
        if region.conj:
            node = self._builder.call(aten._conj.default, (value,))
            value = self._builder.value(node, value.geometry, value.dtype, (True, value.neg), value.origin)
        if region.neg:
            node = self._builder.call(aten._neg_view.default, (value,))
            value = self._builder.value(node, value.geometry, value.dtype, (value.conj, True), value.origin)
        return value

    def strided_exactly(self, content: Content) -> Value:
        """The value of ``content``, laid out exactly as its region."""
        value, region = content.value, content.region
        if not value.geometry.same_layout(region.geometry) or not self._builder.starts_at_zero(value):
            value = self._builder.strided_as(value, region.geometry, region.storage.device)
            content.value = value
            content.derived.clear()
        return value

    def _join(self, content: Content, patches: list[Content]) -> Value | None:
        """All of ``content`` by cutting it along its patches and joining the parts, or None."""
        region = content.region
        if any(
            p.region.dtype != region.dtype or (p.region.conj, p.region.neg) != (region.conj, region.neg)
            for p in patches
        ):
            return None
        order = tuple(sorted(range(region.geometry.rank), key=_by_stride(region.geometry)))
        turned = _permuted(region.geometry, order)
        boxes = [box_of(turned, _sorted_by_stride(p.region.geometry)) for p in patches]
        if any(box is None for box in boxes):
            return None
        plan = assemble(turned.sizes, boxes)  # type: ignore[arg-type]
        if plan is None or isinstance(plan, Rest):
            return None
        return _Joiner(self._builder, content.value, patches, boxes, order).build(plan)

    def _scatter(self, content: Content, patch: Content) -> Value:
        """The value of ``content`` with that of ``patch`` put into it."""
        chain = chain_between(content.region, patch.region)
        if chain is None or any(isinstance(step, Expand | Unfold) for step in chain):
            return self._scatter_by_strides(content, patch)
        builder = self._builder
        before = [self._physical(content.value)]
        try:
            for step in chain:
                before.append(builder.view(before[-1], step))
        except NotViewable:
            return self._scatter_by_strides(content, patch)
        value = builder.with_bits(patch.value, conj=patch.region.conj, neg=patch.region.neg)
        value = self._physical(value)
        for step, base in zip(reversed(chain), reversed(before[:-1]), strict=True):
            value = self._undo(step, base, value)
        return self._with_lazy_bits(value, content.region)

    def _undo(self, step: Step, base: Value, value: Value) -> Value:
        """A new value of ``base`` of which ``value`` is the view by ``step``."""
        builder = self._builder
        back = inverse(step, base.geometry, base.dtype)
        if isinstance(back, Scatter):
            node = builder.call(resolve_op(back.op), (base, value, *back.arguments))
            geometry = Geometry(base.geometry.sizes, base.geometry.strides, 0)
            return self._builder.value(node, geometry, base.dtype, (False, False), node)
        try:
            return builder.view(value, back)
        except NotViewable:
            return builder.view(builder.laid_out(value, Geometry.contiguous(value.geometry.sizes)), back)

    def _scatter_retyped(self, content: Content, patch: Content) -> Value:
        """The same where the dtypes differ: all of ``content`` is read as elements of the patch's dtype."""
        unit, region = patch.region.dtype.itemsize, content.region
        low, high = (edge * region.dtype.itemsize // unit for edge in region.geometry.span())
        flat = Region(region.storage, Geometry((high - low,), (1,), low), patch.region.dtype)
        retyped = Content(flat, self._reified(content, flat))
        retyped.value = self._scatter_by_strides(retyped, patch)
        return self._reified(retyped, region)

    def _scatter_by_strides(self, content: Content, patch: Content) -> Value:
        if patch.region.dtype != content.region.dtype:
            return self._scatter_retyped(content, patch)
        base = self.strided_exactly(content)
        wanted, own = patch.region.geometry, base.geometry.offset - content.region.geometry.offset
        arguments = (list(wanted.sizes), list(wanted.strides), wanted.offset + own)
        value = self._builder.with_bits(patch.value, conj=content.region.conj, neg=content.region.neg)
        node = self._builder.call(aten.as_strided_scatter.default, (base, value, *arguments))
        geometry = Geometry(base.geometry.sizes, base.geometry.strides, 0)
        return self._builder.value(node, geometry, base.dtype, (base.conj, base.neg), node)


class _Joiner:
    """Builds a value by a plan of cuts.  Everything is turned so that the widest stride comes first."""

    def __init__(
        self, builder: Builder, base: Value, patches: list[Content], boxes: list[Any], order: tuple[int, ...]
    ) -> None:
        self._builder = builder
        self._order = order
        self._base = base
        self._patches = patches
        self._boxes = boxes

    def build(self, plan: Part) -> Value:
        """The value that ``plan`` describes, turned back."""
        made = self._part(plan)
        back = tuple(sorted(range(len(self._order)), key=self._order.__getitem__))
        return self._permuted(made, back)

    def _part(self, plan: Part) -> Value:
        match plan:
            case Piece(index):
                return self._piece(index)
            case Rest(box):
                return self._rest(box)
            case Join(dim, parts):
                stacked = self._stacked(plan)
                if stacked is not None:
                    return stacked
                return self._cat([self._part(part) for part in parts], dim)

    def _stacked(self, plan: Join) -> Value | None:
        """The join as a stack, where each part is a patch that was written by one index of the dimension."""
        dim, rank = plan.dim, len(self._order)
        patches = [self._patches[p.index] for p in plan.parts if isinstance(p, Piece)]
        if len(patches) < len(plan.parts) or self._order != tuple(range(rank)):
            return None
        sizes = self._base.geometry.sizes
        if not all(
            p.value.geometry.same_layout(Geometry.contiguous((*sizes[:dim], *sizes[dim + 1 :]))) for p in patches
        ):
            return None
        node = self._builder.call(aten.stack.default, ([p.value.node for p in patches], dim))
        first = patches[0].value
        made = Geometry.contiguous((*sizes[:dim], len(patches), *sizes[dim + 1 :]))
        return self._builder.value(node, made, first.dtype, (first.conj, first.neg), node)

    def _cat(self, parts: list[Value], dim: int) -> Value:
        node = self._builder.call(aten.cat.default, ([p.node for p in parts], dim))
        sizes = list(parts[0].geometry.sizes)
        sizes[dim] = sum(p.geometry.sizes[dim] for p in parts)
        first = parts[0]
        return self._builder.value(node, Geometry.contiguous(tuple(sizes)), first.dtype, (first.conj, first.neg), node)

    def _piece(self, index: int) -> Value:
        patch, box = self._patches[index], self._boxes[index]
        sizes = tuple(stop - start for start, stop in box)
        value = patch.value
        order = tuple(sorted(range(value.geometry.rank), key=_by_stride(patch.region.geometry)))
        value = self._permuted(value, order)
        if value.geometry.sizes == sizes:
            return value
        return self._reshaped(value, sizes)

    def _rest(self, box: Any) -> Value:
        value = self._permuted(self._base, self._order)
        for dim, (start, stop) in enumerate(box):
            if identity(start) != 0 or identity(stop) != identity(value.geometry.sizes[dim]):
                value = self._builder.view(value, Slice(dim, start, stop, 1))
        return value

    def _permuted(self, value: Value, order: tuple[int, ...]) -> Value:
        return value if order == tuple(range(len(order))) else self._builder.view(value, Permute(order))

    def _reshaped(self, value: Value, sizes: tuple[Any, ...]) -> Value:
        try:
            return self._builder.view(value, View(sizes))
        except NotViewable:
            return self._builder.view(
                self._builder.laid_out(value, Geometry.contiguous(value.geometry.sizes)), View(sizes)
            )


def _holds_inside(outer: Region, inner: Region) -> bool:
    """Whether a write of ``inner`` can be kept inside the content of ``outer``: each element is there, once."""
    return outer != inner and includes(outer, inner) and not has_internal_overlap(outer.geometry)


def view_operand(call: Call, region: Region) -> Operand | None:
    """The operand of the view op ``call`` that shares storage with its output ``region``."""
    if call.effect is not Effect.VIEW:
        return None
    return next((o for o in call.operands if o.region.storage is region.storage), None)


def _by_stride(geometry: Geometry) -> Any:
    place = {dim: i for i, dim in enumerate(stride_order(geometry))}
    return place.__getitem__


def _permuted(geometry: Geometry, order: tuple[int, ...]) -> Geometry:
    return Geometry(tuple(geometry.sizes[d] for d in order), tuple(geometry.strides[d] for d in order), geometry.offset)


def _sorted_by_stride(geometry: Geometry) -> Geometry:
    return _permuted(geometry, tuple(sorted(range(geometry.rank), key=_by_stride(geometry))))
