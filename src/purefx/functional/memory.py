"""The memory of a program while its writes are being removed: which content each region lies in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import fx

from purefx.capture.recording import Call, Operand, Recording, Region, Storage, Tree, map_tree
from purefx.functional.builder import Builder, Value
from purefx.functional.contents import Content, Merge
from purefx.functional.patches import Patches, Written
from purefx.functional.reader import Reader
from purefx.functional.regions import disjoint, includes, once
from purefx.layout import Geometry, Join, Part, Rest, Slice, assemble, box_of, has_internal_overlap
from purefx.operators import aten


class Memory:
    """The contents of all storages.  A storage of the caller may have several, which share no element."""

    def __init__(self, builder: Builder, recording: Recording) -> None:
        self._builder = builder
        self._reader = Reader(builder, recording)
        self._contents: dict[Storage, list[Content]] = {}
        self._homes: dict[Region, Content] = {}
        self._dirty: dict[Storage, Patches[Written]] = {}

    @property
    def merges(self) -> list[Merge]:
        """How contents took up what was written to parts of them, in order."""
        return self._reader.merges

    def begin(self, region: Region, value: Value) -> Content:
        """Memory that starts out with ``value`` in ``region``."""
        content = Content(region, value)
        self._contents.setdefault(region.storage, []).append(content)
        return content

    def define(self, call: Call, values: list[Value]) -> None:
        """The new storages that ``call`` returned, with their values."""
        written = {o.variable for o in call.written}
        fresh = [o for o in call.outputs if o.region.storage in call.fresh and o.variable not in written]
        for operand, value in zip(fresh, values, strict=True):
            region = operand.region
            self._builder.bind(value.node, region.geometry)
            if region.storage not in self._contents:
                self.begin(region, value)
            else:  # two results of one operator that share memory
                self._reader.write(self.content(region), region, value)

    def content(self, region: Region) -> Content:
        """The content that ``region`` lies in; of several, one of its dtype."""
        home = self._homes.get(region)
        if home is None:
            contents = self._contents[region.storage]
            home = contents[0]
            if len(contents) > 1:
                around = [c for c in contents if includes(c.region, region)] or [home]
                home = next((c for c in around if c.region.dtype == region.dtype), around[0])
            self._homes[region] = home
        return home

    def contents(self, storage: Storage) -> list[Content]:
        """The contents of ``storage``."""
        return self._contents[storage]

    def read(self, region: Region) -> Value:
        """The present value of ``region``."""
        return self._reader.read(self.content(region), region)

    def read_exactly(self, region: Region) -> Value:
        """The present value of ``region`` with exactly its strides."""
        value = self._reader.read(self.content(region), region)
        if value.geometry.same_layout(region.geometry):
            return value
        content = self.content(region)
        if region != content.region:
            self._reader.settled_exactly(content)
            value = self._reader.read(content, region)
        if not value.geometry.same_layout(region.geometry):
            value = self._builder.strided_as(value, region.geometry, region.storage.device)
        return value

    def write(self, region: Region, value: Value) -> None:
        """Make ``value`` the value of ``region``."""
        if region.storage not in self._contents:  # an ``out=`` tensor that was given memory of its own
            self.begin(region, value)
            return
        self._reader.write(self.content(region), region, value)
        self._mark(region)

    def read_tree(self, tree: Tree) -> Tree:
        """``tree`` with the present value of each operand in its place."""
        return map_tree(lambda x: self.read(x.region) if isinstance(x, Operand) else x, tree)

    def grow(self, storage: Storage, before: Any, after: Any) -> None:
        """The storage has got another size in bytes: what was there stays, what is new is not defined."""
        content = self._contents[storage][0]
        region = content.region
        size = region.dtype.itemsize
        flat = Region(storage, Geometry((after // size,), (1,), 0), region.dtype)
        kept = min(before, after) // size
        options = {"dtype": region.dtype, "device": storage.device}
        parts = []
        if kept:
            old = Region(storage, Geometry((kept,), (1,), 0), region.dtype)
            parts.append(self._reader.read(content, old) if includes(region, old) else self._spread(content, old))
        if after // size > kept:
            node = self._builder.call(aten.empty.memory_format, ([after // size - kept],), options)
            parts.append(
                self._builder.value(
                    node, Geometry((after // size - kept,), (1,), 0), region.dtype, (False, False), node
                )
            )
        content.region, content.value = flat, self._joined(parts, flat, options)
        content.patches.clear()
        content.derived.clear()
        self._homes = {r: c for r, c in self._homes.items() if r.storage is not storage}
        self._dirty.pop(storage, None)
        self._mark(flat)

    def _spread(self, content: Content, flat: Region) -> Value:
        """A flat value of all the memory of ``content``, of which it shows only a part."""
        options = {"dtype": flat.dtype, "device": flat.storage.device}
        node = self._builder.call(aten.empty.memory_format, (list(flat.geometry.sizes),), options)
        spread = Content(flat, self._builder.value(node, flat.geometry, flat.dtype, (False, False), node))
        self._reader.write(spread, content.region, self._reader.settled(content))
        return self._reader.settled(spread)

    def _joined(self, parts: list[Value], flat: Region, options: dict[str, Any]) -> Value:
        if len(parts) == 1:
            return parts[0]
        if not parts:
            node = self._builder.call(aten.empty.memory_format, ([0],), options)
        else:
            node = self._builder.call(aten.cat.default, ([p.node for p in parts], 0))
        return self._builder.value(node, flat.geometry, flat.dtype, (False, False), node)

    def is_pending(self, content: Content, region: Region) -> bool:
        """Whether ``region`` was written since ``content`` was last whole."""
        return bool(content.patches.meeting(region))

    def part(self, owned: dict[fx.Node, Storage], handed: Iterable[tuple[Region, Value]]) -> None:
        """Let each storage have memory of its own: what a later write of the caller changes is that storage alone.

        ``owned`` tells of which storage the memory of a node has become the caller's, and ``handed`` by which values.
        """
        for region, value in handed:
            content = self.content(region)
            if content.region == region and not content.patches:
                content.value = value
                content.derived.clear()
        for storage, contents in self._contents.items():
            for content in contents:
                self._part(content, storage, owned)

    def _part(self, content: Content, storage: Storage, owned: dict[fx.Node, Storage]) -> None:
        if owned.get(content.value.origin, storage) is not storage:
            content.value = self._builder.copy(content.value)
            content.derived.clear()
        for patch in content.patches:
            self._part(patch, storage, owned)

    def forget_writes(self) -> None:
        """Count from now on what is written."""
        self._dirty.clear()

    def written(self, content: Content) -> list[Region]:
        """The regions of ``content`` that were written; the whole of it, where they fill it."""
        regions = [w.region for w in self._dirty.get(content.region.storage, ())]
        regions = [r for r in regions if self.content(r) is content]
        whole = self._filled(content.region, regions)
        return [r.at(once(r.geometry)).physical for r in ([content.region] if whole else regions)]

    def _filled(self, whole: Region, regions: list[Region]) -> bool:
        if len(regions) < 2 or not whole.geometry.is_static or has_internal_overlap(whole.geometry):
            return False
        pieces = sum(r.geometry.numel * r.dtype.itemsize for r in regions)
        disjointed = all(r.geometry.is_static for r in regions)
        return disjointed and pieces >= whole.geometry.numel * whole.dtype.itemsize and self._tiles(whole, regions)

    def _tiles(self, whole: Region, regions: list[Region]) -> bool:
        """Whether ``regions``, of which none includes another, leave no element of ``whole`` out."""
        boxes = [box_of(whole.geometry, r.geometry) for r in regions if r.dtype == whole.dtype]
        if len(boxes) < len(regions) or any(box is None for box in boxes):
            return False
        plan = assemble(whole.geometry.sizes, [box for box in boxes if box is not None])
        return plan is not None and not has_rest(plan)

    def _mark(self, region: Region) -> None:
        """Remember that ``region`` was written, unless a written region includes it."""
        if region.geometry.is_empty:
            return
        dirty = self._dirty.setdefault(region.storage, Patches())
        region = region.physical
        met = dirty.meeting(region)
        if any(includes(w.region, region) for w in met):
            return
        for written in met:
            dirty.remove(written)
            if not includes(region, written.region):
                region = self._hull(region, written.region)
        if met and any(not disjoint(w.region, region) for w in dirty):
            self._mark(region)  # the hull has met others
        else:
            dirty.add(Written(region))

    def _hull(self, a: Region, b: Region) -> Region:
        """A region that includes ``a`` and ``b``, which overlap: a box of their content, or all of it."""
        whole = self.content(a).region
        found = [box_of(whole.geometry, r.geometry) for r in (a, b) if r.dtype == whole.dtype]
        boxes = [box for box in found if box is not None]
        if len(boxes) < 2 or not all(r.geometry.is_static for r in (whole, a, b)):
            return whole.physical
        geometry = whole.geometry
        for dim, (first, second) in enumerate(zip(*boxes, strict=True)):
            geometry = Slice(dim, min(first[0], second[0]), max(first[1], second[1])).apply(geometry)
        return whole.at(geometry).physical


def has_rest(plan: Part) -> bool:
    """Whether ``plan`` takes something from the old value."""
    return isinstance(plan, Rest) or (isinstance(plan, Join) and any(map(has_rest, plan.parts)))
