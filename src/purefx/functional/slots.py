"""What a call on copies is given: tensors, and numbers that depend on the arguments; and the slot of each.

Two ways, with the same questions: `EachCopied` copies every written argument by itself; `CutFromBases` copies
the whole memory that it lies in, where arguments overlap.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from purefx.capture.recording import SYMBOLS, Operand, Region, Variable, map_tree
from purefx.functional.contents import Content
from purefx.functional.memory import Memory
from purefx.functional.on_copies import Number, Slot


class _Given:
    """What a call is given, in order.

    Invariant: ``given`` has what was met, at the place that ``_places`` says: numbers by their expression.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._places: dict[Hashable, int] = {}
        self.given: list[Any] = []

    def slot(self, x: Any) -> Any:
        """The slot of ``x`` if that is an operand or a number that depends on the arguments, else ``x``."""
        if isinstance(x, Operand):
            return self._slot(x)
        if not isinstance(x, SYMBOLS):
            return x
        expression = x.node.expr
        if expression not in self._places:
            self._add(expression, x)
        return Number(self._places[expression])

    def place(self, known: Hashable) -> int:
        """The number of ``known`` among what is given."""
        return self._places[known]

    def _slot(self, operand: Operand) -> Slot:
        raise NotImplementedError

    def _add(self, key: Hashable, value: Any) -> None:
        self._places[key] = len(self.given)
        self.given.append(value)


class EachCopied(_Given):
    """Slots for a call whose written arguments are ``written`` and lie apart."""

    def __init__(self, memory: Memory, written: Sequence[Operand]) -> None:
        super().__init__(memory)
        self._written: frozenset[Variable] = frozenset(o.variable for o in written)

    def _slot(self, operand: Operand) -> Slot:
        if operand not in self._places:
            read = self._memory.read_exactly if operand.variable in self._written else self._memory.read
            self._add(operand, read(operand.region))
        return Slot(self._places[operand], None, operand.region.dtype)


class CutFromBases(_Given):
    """Slots for a call whose written regions are ``written`` and may overlap: all is cut out of their contents."""

    def __init__(self, memory: Memory, written: Sequence[Region]) -> None:
        super().__init__(memory)
        self.contents: list[Content] = list(dict.fromkeys(map(memory.content, written)))
        for content in self.contents:
            self._add(content, memory.read_exactly(content.region))

    def _slot(self, operand: Operand) -> Slot:
        region, content = operand.region, self._memory.content(operand.region)
        if content in self._places:
            return self._cut(region, content)
        if region not in self._places:
            self._add(region, self._memory.read(region))
        return Slot(self._places[region], None, region.dtype)

    def _cut(self, region: Region, content: Content) -> Slot:
        base = content.region
        start = base.geometry.offset * base.dtype.itemsize // region.dtype.itemsize
        own = region.geometry.shifted(-start)
        layout = map_tree(self.slot, (own.sizes, own.strides, own.offset))
        return Slot(self._places[content], layout, region.dtype, region.conj, region.neg)
