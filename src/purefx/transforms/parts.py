"""What a program under transforms takes: each tensor by itself, since each has derivatives of its own.

    grad(lambda y: f(y, s))(s)         y and s share memory; the gradient is that of y alone

    a, b both read                     the graph takes their memory once, the program takes a and b
    a, b = x[:3], x[1:], a written     the program takes a and b, puts them together, and returns both anew
    b read, then a written             the program takes a and b: what is read of b is its own

Other memory that is written has one history: tensors that share it must have come from the same tensor by views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import torch

from purefx.capture.captured import Capture, Input, TensorResult
from purefx.capture.recording import Effect, Recording, Storage
from purefx.errors import SourceLine, TransformRefused
from purefx.functional.regions import disjoint, includes
from purefx.functional.roots import Root
from purefx.functional.signature import ForwardInput, ForwardOutput, Functional, RootInput, WrittenOutput
from purefx.transforms.levels import are_apart, is_differentiated, lineage


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What a program takes of the memory of ``root``: ``parts``, which are roots of their own.

    ``joined`` says that they overlap, and that one of them is written; ``early`` are others, which are read before
    that; ``where`` is the last write.
    """

    root: Root
    parts: tuple[Root, ...]
    joined: bool
    where: SourceLine | None
    early: tuple[Root, ...] = ()

    def check(self, current: Callable[[Input], torch.Tensor], inputs: Sequence[Input]) -> None:
        """Raise TransformRefused unless the program may write to the tensors that are its inputs now."""
        pairs = product(self.root.members, inputs) if self.root.written else ()
        for known, other in pairs:
            if not are_apart(current(known), current(other)):
                raise self._refusal(known, other, _OF_OTHERS)
        early = {part.base for part in self.early}
        for part in (self.root,) if self.root.written else self.parts:
            for known, other in combinations([member for member in part.members if member not in early], 2):
                if not _have_one_history(current(known), current(other)):
                    raise self._refusal(known, other, _BY_ITSELF)

    def _refusal(self, known: Input, other: Input, why: str) -> TransformRefused:
        names = known.name if known is other else f"{known.name} and {other.name}"
        return TransformRefused(f"of {names} {why}", where=self.where, remedy=f"pass a clone of {other.name}")


_OF_OTHERS = "an example overlaps another example, in memory that the program writes"
_BY_ITSELF = "a transform differentiates one alone, or each by itself, and they share memory that the program writes"


def infer_parts(functional: Functional, capture: Capture) -> list[Parts]:
    """What a program takes of each root of ``functional``, and of what the graph reads off the root of another."""
    members = {member for root in functional.roots for member in root.members}
    storages = {root.region.storage for root in functional.roots}
    read = {operand.variable for call in capture.recording for operand in call.operands}
    others = [
        Root(known.before, known, (known,), written=False)
        for known in capture.inputs
        if known not in members and known.variable in read and known.before.storage in storages
    ]
    return [_parts(root, capture) for root in (*functional.roots, *others)]


def in_parts(functional: Functional, parts: Sequence[Parts], recording: Recording) -> Functional:
    """``functional`` with a record for each of ``parts`` among its inputs, and for each of those that is written.

    A part that nothing reads is no input, unless the graph takes its memory for that of the others.  Memory that is
    written is one, even if its old value is not read: what is computed of the new one has a batch where it has one.
    """
    read = {operand.variable for call in recording for operand in call.operands}
    by_root = {p.root: p for p in parts}
    names = {given.root: given.name for given in functional.inputs if isinstance(given, RootInput)}
    others = [given for given in functional.inputs if not isinstance(given, RootInput)]
    inputs: list[ForwardInput] = [
        RootInput(names.get(p.root, ""), part)
        for p in parts
        for part in (*p.early, *p.parts)
        if (p.joined and part not in p.early) or part is p.parts[0] or part.members[0].variable in read
    ]
    outputs: dict[ForwardOutput, None] = {}
    made = {part: WrittenOutput(part, part.region, None) for p in parts if p.joined for part in p.parts}
    for output in functional.outputs:
        if isinstance(output, WrittenOutput) and by_root[output.root].joined:
            outputs.update((made[p], None) for p in by_root[output.root].parts if not disjoint(p.region, output.region))
        else:
            outputs[output] = None
    return replace(functional, inputs=(*inputs, *others), outputs=tuple(outputs))


def _parts(root: Root, capture: Capture) -> Parts:
    recording = capture.recording
    where = last_write(recording, root.region.storage)
    alone = tuple(Root(m.before, m, (m,), root.written) for m in root.members)
    if len(alone) > 1 and not root.written and root.base is not None:
        return Parts(root, alone, joined=False, where=where)
    if len(alone) == 1 or any(_strays(root, recording)):
        return Parts(root, (root,), joined=False, where=where)
    read = _read_early(root, capture)
    if root.base is not None and not read:
        return Parts(root, (root,), joined=False, where=where)
    early = tuple(part for part in alone if part.base in read)
    return Parts(root, tuple(part for part in alone if part not in early), joined=True, where=where, early=early)


def _read_early(root: Root, capture: Capture) -> set[Input]:
    """The members of ``root`` that nothing reads once its memory is written, and that nothing is written to."""
    early = {m.variable: m for m in root.members if m.before == m.after}
    views = dict(early)
    written = False
    for call in capture.recording:
        for operand in call.operands:
            known = views.get(operand.variable)
            if known is not None and call.effect is Effect.VIEW:
                views.update((output.variable, known) for output in call.outputs)
            elif known is not None and (written or operand in call.written):
                early.pop(known.variable, None)
        written = written or any(o.region.storage is root.region.storage for o in call.written)
    returned = {result.variable for result in capture.results if isinstance(result, TensorResult)}
    return {m for m in early.values() if not any(views.get(variable) is m for variable in returned)}


def _strays(root: Root, recording: Recording) -> Iterator[bool]:
    """Of each region of the memory that the program reaches, whether no member of ``root`` shows all of it."""
    for region in recording.regions[root.region.storage]:
        inside = not disjoint(region, root.region)
        yield inside and not any(includes(m.before, region) for m in root.members)


def _have_one_history(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a write to one of them is a write to the other for all that differentiate."""
    if not (is_differentiated(a) or is_differentiated(b)):
        return True
    first, second = lineage(a), lineage(b)
    return len(first) == len(second) and all(x is y for x, y in zip(first, second, strict=True))


def last_write(recording: Recording, storage: Storage) -> SourceLine | None:
    """Where the program last wrote to ``storage``."""
    calls = [call for call in recording if any(o.region.storage is storage for o in call.written)]
    return calls[-1].where if calls else None
