"""Reading and writing regions of contents, by adding nodes to a graph."""

from __future__ import annotations

from purefx.capture.recording import Recording, Region
from purefx.functional.builder import Builder, Value
from purefx.functional.contents import Content, Merge
from purefx.functional.joining import join
from purefx.functional.regions import includes, same_elements
from purefx.functional.scattering import Scatters
from purefx.functional.views import Views
from purefx.layout import has_internal_overlap


class Reader:
    """Reads and writes regions of contents.

    For regions ``r`` and ``s`` without internal overlap, and any content of both:
      write(r, x); read(r)             is x
      write(r, read(r))                changes nothing
      write(r, x); write(r, y)         is write(r, y)
      write(r, x); read(s)             is read(s), where r and s are disjoint
    """

    def __init__(self, builder: Builder, recording: Recording) -> None:
        self._builder = builder
        self._views = Views(builder, recording)
        self._scatters = Scatters(builder, self._views)
        self.merges: list[Merge] = []

    def read(self, content: Content, region: Region) -> Value:
        """The present value of ``region``, which lies in ``content``."""
        met = content.patches.meeting(region) if content.patches else []
        if len(met) == 1 and includes(met[0].region, region):
            return self.read(met[0], region)
        if met:
            self.settle(content)
        return self._views.derive(content, region)

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
        self._views.fit(content)
        before = content.value
        merged = join(self._builder, content, patches)
        for patch in () if merged is not None else patches:
            content.value = self._scatters.scatter(content, patch)
            content.derived.clear()
        content.value = content.value if merged is None else merged
        writes = tuple((p.region, p.value.node) for p in patches)
        self.merges.append(Merge(content, before.node, content.value.node, content.region, writes))
        content.patches.clear()
        content.derived = {p.region: p.value for p in patches if p.value.geometry.same_layout(p.region.geometry)}

    def settled(self, content: Content) -> Value:
        """The whole of ``content`` as one value with the strides of its region."""
        self.settle(content)
        self._views.fit(content)
        return content.value

    def settled_exactly(self, content: Content) -> Value:
        """The whole of ``content`` as one value with exactly the strides of its region."""
        self.settled(content)
        return self._views.strided_exactly(content)

    def _replace(self, content: Content, region: Region, value: Value) -> None:
        content.patches.clear()
        content.derived.clear()
        content.region, content.value = region, value


def _holds_inside(outer: Region, inner: Region) -> bool:
    """Whether a write of ``inner`` can be kept inside the content of ``outer``: each element is there, once."""
    return outer != inner and includes(outer, inner) and not has_internal_overlap(outer.geometry)
