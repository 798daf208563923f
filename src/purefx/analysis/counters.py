"""Which tensors count their writes together, and which views are older than the last write of what they show.

v = x[0]          older: autograd makes its history anew when it is asked for, or raises
x.add_(1)
w = x[1]          not older
x.data            counts by itself
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from purefx._torch import numbers_of_counters
from purefx.capture.captured import Capture
from purefx.capture.recording import Call, DataAccess, Effect, Variable


class Counters:
    """The version counters of the variables of ``capture``, of whose calls ``statements`` run again."""

    def __init__(self, capture: Capture, statements: Iterable[Call]) -> None:
        replayed = set(statements)
        counting = [known for known in capture.inputs if not known.fake.is_inference()]
        numbers = numbers_of_counters([known.fake for known in counting])
        self._inputs = {known.variable for known in capture.inputs}
        self._numbers = {known.variable: number for known, number in zip(counting, numbers, strict=True)}
        self._parents: dict[Variable, Variable] = {}
        self._place: dict[Call, int] = {}
        self._last: dict[Variable, int] = {}
        for i, call in enumerate(capture.recording):
            self._place[call] = i
            if call.effect is Effect.VIEW and call.op is not DataAccess.READ and not call.is_hidden:
                self._note_view(call)
            elif call.effect is Effect.WRITE or _counts_alone(call, replayed):
                self._last.update((self.root(o.variable), i) for o in call.written)

    def _note_view(self, call: Call) -> None:
        for output in call.outputs:
            parent = next((o.variable for o in call.operands if o.region.storage is output.region.storage), None)
            if parent is not None and parent is not output.variable and output.variable not in self._inputs:
                self._parents.setdefault(output.variable, parent)

    def root(self, variable: Variable) -> Variable:
        """The variable that ``variable`` is a view or a detached alias of, and counts with."""
        while variable in self._parents:
            variable = self._parents[variable]
        return variable

    def first_part(self, variable: Variable, wanted: Container[Variable]) -> Variable | None:
        """The last of the views from the root to ``variable`` that is one of ``wanted``, as all before it are."""
        found, root = None, self.root(variable)
        while variable is not root:
            found = None if variable not in wanted else found or variable
            variable = self._parents[variable]
        return found

    def together(self, a: Variable, b: Variable) -> bool:
        """Whether a write to ``a`` moves the counter of ``b``."""
        a, b = self.root(a), self.root(b)
        return a is b or (a in self._numbers and self._numbers[a] == self._numbers.get(b))

    def writes_after(self, call: Call, variable: Variable) -> int:
        """How many writes after ``call`` move the counter of ``variable``."""
        later = [c for c, place in self._place.items() if place > self._place[call] and c.effect is Effect.WRITE]
        return sum(self.together(o.variable, variable) for c in later for o in c.written)

    def is_older(self, call: Call) -> bool:
        """Whether what ``call`` views was written after it."""
        if call.effect is not Effect.VIEW:
            return False
        place = self._place[call]
        later = [root for root, last in self._last.items() if last > place]
        return any(self.together(root, o.variable) for root in later for o in call.operands)


def _counts_alone(call: Call, replayed: set[Call]) -> bool:
    """Whether ``call`` counts as a write and does nothing else (``x.t_()`` of one dimension): it is not run again."""
    turns = call.effect in (Effect.GEOMETRY, Effect.STORAGE) and call.op is not DataAccess.SWAP
    return turns and not call.is_idle and call not in replayed
