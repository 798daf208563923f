"""Views of what a storage holds: the program's own view operators on new values, or ones made from geometries."""

from __future__ import annotations

from typing import Any

from torch import fx

from purefx.capture.recording import Call, DataAccess, Effect, Operand, Recording, Region, map_tree
from purefx.errors import UnsupportedOperator
from purefx.functional.builder import Builder, Value, fits, run_on_meta
from purefx.functional.contents import Content
from purefx.functional.regions import chain_between, needs_restride
from purefx.layout import Geometry, NotViewable, ViewDtype
from purefx.operators import READS_STORAGE, aten


class Views:
    """Views of the values of contents.

    ``_several`` holds the node of each view operator with several outputs, by the value that it ran on.
    """

    def __init__(self, builder: Builder, recording: Recording) -> None:
        self._builder = builder
        self._recording = recording
        self._several: dict[tuple[Call, Value], fx.Node] = {}

    def derive(self, content: Content, region: Region) -> Value:
        """The view of the value of ``content`` that shows ``region``; patches are not looked at."""
        if region == content.region:
            self.fit(content)
            return content.value
        known = content.derived.get(region)
        if known is None:
            self.fit(content)
            known = self._program_view(content, region)
            if known is None:
                known = self.reified(content, region)
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
        if key not in self._several:
            self._several[key] = self._builder.call(op, args)
        node = self._builder.item(self._several[key], position)
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
        return run_on_meta(call.overload, args, call.kwargs, self._builder.env)[position][0]

    def reified(self, content: Content, region: Region) -> Value:
        """``region`` by view ops worked out from the two geometries, or by as_strided where there are none.

        The latter counts elements of the dtype that the memory is known as: another one must have them of that size.
        """
        value = content.value
        chain = chain_between(content.region, region)
        if chain is not None:
            try:
                shown = self._builder.chain(self._builder.reread(value, conj=False, neg=False), chain)
                return self._builder.reread(shown, conj=region.conj, neg=region.neg)
            except NotViewable:
                pass
        size = content.region.dtype.itemsize
        if region.dtype.itemsize != size:
            raise UnsupportedOperator(
                f"a tensor of {region.dtype} cannot be cut out of memory that is known as {content.region.dtype}",
                where=None,
                remedy="copy the tensor of the other dtype before it is written to",
            )
        wanted = region.geometry
        value = self._builder.reread(self.strided_exactly(content), conj=False, neg=False)
        shift = value.geometry.offset - content.region.geometry.offset
        arguments = (list(wanted.sizes), list(wanted.strides), wanted.offset + shift)
        op, plain = aten.as_strided.default, content.region.physical.at(wanted)
        shown = self._builder.view_call(value, op, (value, *arguments), plain, wanted.shifted(shift))
        if region.dtype != content.region.dtype:
            shown = self._builder.chain(shown, (ViewDtype(region.dtype, size, size),))
        return self._builder.reread(shown, conj=region.conj, neg=region.neg)

    def strided_exactly(self, content: Content) -> Value:
        """The value of ``content``, laid out exactly as its region."""
        value, region = content.value, content.region
        if not value.geometry.same_layout(region.geometry) or not self._builder.starts_at_zero(value):
            plain = self._builder.reread(value, conj=False, neg=False)
            plain = self._builder.strided_as(plain, region.geometry, region.storage.device)
            content.value = value = self._builder.reread(plain, conj=value.conj, neg=value.neg)
            content.derived.clear()
        return value

    def fit(self, content: Content) -> None:
        """Give the value of ``content`` strides with which the program's views of it are allowed."""
        region, value = content.region, content.value
        if not fits(value.geometry, region.geometry) and needs_restride(region.geometry):
            content.value = self._builder.laid_out(value, region.geometry)
            content.derived.clear()
        content.value = self._builder.with_bits(content.value, conj=region.conj, neg=region.neg)


def view_operand(call: Call, region: Region) -> Operand | None:
    """The operand of the view op ``call`` that shares storage with its output ``region``."""
    if call.effect is not Effect.VIEW:
        return None
    return next((o for o in call.operands if o.region.storage is region.storage), None)
