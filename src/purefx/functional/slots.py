"""What a call on copies is given: the tensors, and the slot that each operand of the call becomes.

Two ways, with the same questions: `EachCopied` copies every written argument by itself; `CutFromBases` copies
the whole memory that it lies in, where arguments overlap.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from purefx.capture.recording import Operand, Region, Variable
from purefx.functional.builder import Value
from purefx.functional.contents import Content
from purefx.functional.memory import Memory
from purefx.functional.on_copies import Slot


class EachCopied:
    """Slots for a call whose written arguments are ``written`` and lie apart.

    Invariant: ``given`` has the value of each operand that was met, at the place that ``_places`` says.
    """

    def __init__(self, memory: Memory, written: Sequence[Operand]) -> None:
        self._memory = memory
        self._written: frozenset[Variable] = frozenset(o.variable for o in written)
        self._places: dict[Operand, int] = {}
        self.given: list[Value] = []

    def slot(self, x: Any) -> Any:
        """The slot of ``x`` if that is an operand, else ``x``."""
        if not isinstance(x, Operand):
            return x
        if x not in self._places:
            self._places[x] = len(self.given)
            read = self._memory.read_exactly if x.variable in self._written else self._memory.read
            self.given.append(read(x.region))
        return Slot(self._places[x], None, x.region.dtype)

    def place(self, operand: Operand) -> int:
        """The number of ``operand`` among the tensors given."""
        return self._places[operand]


class CutFromBases:
    """Slots for a call whose written regions are ``written`` and may overlap: all is cut out of their contents.

    Invariant: ``given`` has the value of each content that is written and of each other region that was met, at
    the place that ``_places`` says.
    """

    def __init__(self, memory: Memory, written: Sequence[Region]) -> None:
        self._memory = memory
        self._places: dict[Hashable, int] = {}
        self.given: list[Value] = []
        self.contents: list[Content] = list(dict.fromkeys(map(memory.content, written)))
        for content in self.contents:
            self._add(content, memory.read_exactly(content.region))

    def slot(self, x: Any) -> Any:
        """The slot of ``x`` if that is an operand, else ``x``."""
        if not isinstance(x, Operand):
            return x
        region, content = x.region, self._memory.content(x.region)
        if content in self._places:
            return self._cut(region, content)
        if region not in self._places:
            self._add(region, self._memory.read(region))
        return Slot(self._places[region], None, region.dtype)

    def place(self, content: Content) -> int:
        """The number of ``content`` among the tensors given."""
        return self._places[content]

    def _cut(self, region: Region, content: Content) -> Slot:
        base = content.region
        start = base.geometry.offset * base.dtype.itemsize // region.dtype.itemsize
        return Slot(self._places[content], region.geometry.shifted(-start), region.dtype, region.conj, region.neg)

    def _add(self, key: Content | Region, value: Value) -> None:
        self._places[key] = len(self.given)
        self.given.append(value)
