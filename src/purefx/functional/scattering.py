"""A patch put into the value of its content: the way back through the views that lead to the patch."""

from __future__ import annotations

from purefx._torch import resolve_op
from purefx.capture.recording import Region
from purefx.functional.builder import Builder, Value
from purefx.functional.contents import Content
from purefx.functional.regions import chain_between
from purefx.functional.views import Views
from purefx.layout import Chain, Expand, Geometry, NotViewable, Scatter, Step, Unfold, inverse
from purefx.operators import aten


class Scatters:
    """Puts patches into contents: by the inverse of each view on the way, or by strides where there is no way."""

    def __init__(self, builder: Builder, views: Views) -> None:
        self._builder = builder
        self._views = views

    def scatter(self, content: Content, patch: Content) -> Value:
        """The value of ``content`` with that of ``patch`` put into it."""
        chain = chain_between(content.region, patch.region)
        if chain is None or any(isinstance(step, Expand | Unfold) for step in chain):
            return self._by_strides(content, patch)
        try:
            bases = self._along(content, chain)
        except NotViewable:
            return self._by_strides(content, patch)
        builder = self._builder
        value = builder.with_bits(patch.value, conj=patch.region.conj, neg=patch.region.neg)
        value = builder.reread(value, conj=False, neg=False)
        for step, base in zip(reversed(chain), reversed(bases), strict=True):
            value = self._undo(step, base, value)
        return builder.reread(value, conj=content.region.conj, neg=content.region.neg)

    def _along(self, content: Content, chain: Chain) -> list[Value]:
        """What each step of ``chain`` is taken of."""
        values = [self._builder.reread(content.value, conj=False, neg=False)]
        for step in chain:
            values.append(self._builder.view(values[-1], step))
        return values[:-1]

    def _undo(self, step: Step, base: Value, value: Value) -> Value:
        """A new value of ``base`` of which ``value`` is the view by ``step``."""
        builder = self._builder
        back = inverse(step, base.geometry, base.dtype)
        if isinstance(back, Scatter):
            node = builder.call(resolve_op(back.op), (base, value, *back.arguments))
            geometry = Geometry(base.geometry.sizes, base.geometry.strides, 0)
            return builder.value(node, geometry, base.dtype, (False, False), node)
        try:
            return builder.view(value, back)
        except NotViewable:
            return builder.view(builder.laid_out(value, Geometry.contiguous(value.geometry.sizes)), back)

    def _by_strides(self, content: Content, patch: Content) -> Value:
        if patch.region.dtype != content.region.dtype:
            return self._retyped(content, patch)
        base = self._views.strided_exactly(content)
        wanted, shift = patch.region.geometry, base.geometry.offset - content.region.geometry.offset
        arguments = (list(wanted.sizes), list(wanted.strides), wanted.offset + shift)
        builder, plain = self._builder, self._builder.reread(base, conj=False, neg=False)
        value = builder.with_bits(patch.value, conj=patch.region.conj, neg=patch.region.neg)
        value = builder.reread(value, conj=False, neg=False)
        node = builder.call(aten.as_strided_scatter.default, (plain, value, *arguments))
        made = builder.made_like(plain, node, Geometry(base.geometry.sizes, base.geometry.strides, 0))
        return builder.reread(made, conj=base.conj, neg=base.neg)

    def _retyped(self, content: Content, patch: Content) -> Value:
        """The same where the dtypes differ: all of ``content`` is read as elements of the patch's dtype."""
        unit, region = patch.region.dtype.itemsize, content.region
        low, high = (edge * region.dtype.itemsize // unit for edge in region.geometry.span())
        flat = Region(region.storage, Geometry((high - low,), (1,), low), patch.region.dtype)
        retyped = Content(flat, self._views.reified(content, flat))
        retyped.value = self._by_strides(retyped, patch)
        return self._views.reified(retyped, region)
