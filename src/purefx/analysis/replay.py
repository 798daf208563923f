"""The part of a recording that has to run again on real tensors, and how each result is made.

    def f(x):                     results                        replayed
        y = x * 2                 y          itself a base       (nothing: the graph returns y)
        return y, y[0], x.t()     y[0]       replayed            y.select(0, 0)
                                  x.t()      replayed            x.t()

A result whose memory nobody else can reach is fresh: the graph computes it, views and all.  The others are made
by the view ops that the program ran, on the real base, so that autograd and the caller see what they would in
eager.  The same statements carry the program's changes of geometry (``t_``, ``set_``, ``resize_``).  Memory made
inside has its last size from the start, so that no statement gives it another.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from purefx.capture.captured import Capture, Input, PlainResult, Result, TensorResult
from purefx.capture.recording import Call, Effect, Recording, Region, Storage, Variable
from purefx.layout import Geometry, Int, holds


@dataclass(frozen=True, slots=True)
class Itself:
    """Eager returns a tensor of the caller: hand back that very object."""

    source: Input


@dataclass(frozen=True, slots=True, eq=False)
class Fresh:
    """Eager returns memory that nobody else can reach: hand over what the graph returns for ``region``."""

    variable: Variable
    region: Region


@dataclass(frozen=True, slots=True)
class Replayed:
    """Eager returns a tensor that shares memory with others: the statements make it."""

    variable: Variable


@dataclass(frozen=True, slots=True)
class Plain:
    """A Python value, or a symbolic number that the graph or the prologue knows."""

    value: Any


How = Itself | Fresh | Replayed | Plain


@dataclass(frozen=True, slots=True)
class Base:
    """Memory made inside, of which several results show parts, and the tensor ``variable`` that it was made as.

    The graph returns ``region``: what ``variable`` showed when it was made, or all of a storage that was resized.
    """

    variable: Variable
    region: Region


@dataclass(frozen=True, slots=True)
class Replay:
    """``results`` and ``rebound`` say how each result is made; ``statements`` run in the order of the recording."""

    results: tuple[How, ...]
    rebound: tuple[How | None, ...]
    statements: tuple[Call, ...]
    bases: tuple[Base, ...]


def infer_replay(capture: Capture, *, values: bool = False) -> Replay:
    """How the results of ``capture`` are made outside of the graph.

    With ``values`` a view is a value, as long as nobody else can reach its memory.
    """
    own = {known.variable: known for known in capture.inputs}
    results = [*capture.results, *(r.result for r in capture.rebindings if r.result is not None)]
    held = {*own, *(r.variable for r in results if isinstance(r, TensorResult))}
    history = _History(capture.recording, held)
    shared = _shared_storages(results, capture.inputs)
    reached = _Reached(history, own)
    turned = {r.variable for r in results if isinstance(r, TensorResult) and _is_turned(r.variable, r.fake, history)}
    parts = set() if values else {r.variable for r in results if isinstance(r, TensorResult) and not _is_whole(r)}
    hows: dict[int, How] = {id(r): _how(r, own, shared, turned | parts, reached) for r in results}
    for known in capture.inputs:
        turns = _is_turned(known.variable, known.fake, history)
        turns = turns or (known.edge is not None and known.was_leaf and known.variable in capture.recording.moved)
        if known.after != known.before or known.variable in history.resized or turns:
            reached.add(known.variable)
    statements = tuple(call for call in capture.recording if call in reached.calls)
    return Replay(
        tuple(hows[id(r)] for r in capture.results),
        tuple(None if r.result is None else hows[id(r.result)] for r in capture.rebindings),
        statements,
        tuple(reached.bases.values()),
    )


def _is_turned(variable: Variable, fake: torch.Tensor, history: _History) -> bool:
    """Whether ``variable`` has a history and changes of geometry, be it to what it was: a write may lie between."""
    return fake.requires_grad and bool(history.changes.get(variable))


def _shared_storages(results: list[Result], inputs: tuple[Input, ...]) -> set[Storage]:
    """The storages that more than one tensor in the caller's hands shows after the call."""
    variables = {r.variable: r.region.storage for r in results if isinstance(r, TensorResult)}
    variables.update((known.variable, known.after.storage) for known in inputs)
    counts = Counter(variables.values())
    return {s for s, n in counts.items() if n > 1} | {known.before.storage for known in inputs}


def _how(
    result: Result, own: dict[Variable, Input], shared: set[Storage], remade: set[Variable], reached: _Reached
) -> How:
    match result:
        case PlainResult(value):
            return Plain(value)
        case TensorResult(variable, region) if variable in own:
            return Itself(own[variable])
        case TensorResult(variable, region) if variable in remade or region.storage in shared:
            reached.add(variable)
            return Replayed(variable)
        case TensorResult(variable, region):
            return Fresh(variable, region)


def _is_whole(result: TensorResult) -> bool:
    """Whether a tensor is all of its storage, so that a new one is like it in every way that a caller can see."""
    region, fake = result.region, result.fake
    if fake._is_view():
        return False
    low, high = region.geometry.span()
    whole = holds(low == 0) and holds(high * region.dtype.itemsize == fake.untyped_storage().nbytes())
    return whole or not region.geometry.is_static


class _History:
    """Which call made each variable as a view, and which calls changed its geometry; ``held`` has what is held."""

    def __init__(self, recording: Recording, held: set[Variable]) -> None:
        self._recording = recording
        self._held = held
        self.makers: dict[Variable, Call] = {}
        self.changes: dict[Variable, list[Call]] = {}
        self.resized: set[Variable] = set()
        self.first_of: dict[Storage, Variable] = {}
        self.sizes: dict[Storage, Int] = {s: after for call in recording for s, _, after in call.resized}
        for variable in recording.variables:
            self.first_of.setdefault(variable.first.storage, variable)
        for call in recording:
            if call.effect in (Effect.GEOMETRY, Effect.STORAGE):
                if call.effect is Effect.STORAGE:
                    self.resized.update(o.variable for o in call.written)
                for operand in call.written:
                    self.changes.setdefault(operand.variable, []).append(call)
            elif call.effect is Effect.VIEW:
                operands = {o.variable for o in call.operands}
                for output in call.outputs:
                    if output.variable not in operands and output.region.storage not in call.fresh:
                        self.makers.setdefault(output.variable, call)

    def maker(self, variable: Variable) -> Call | None:
        """The call that made ``variable`` of another; None if autograd knows of no other, and nobody else uses it."""
        call = self.makers.get(variable)
        if call is None or not call.is_hidden:
            return call
        source = call.operands[0].variable
        alone = source not in self._held and sum(o.variable is source for c in self._recording for o in c.operands) == 1
        return None if alone else call


class _Reached:
    """The calls that make the added variables, and the bases that they start from."""

    def __init__(self, history: _History, own: dict[Variable, Input]) -> None:
        self._history = history
        self._own = own
        self._given = {known.before.storage for known in own.values()}
        self._seen: set[Variable] = set()
        self.calls: set[Call] = set()
        self.bases: dict[Variable, Base] = {}

    def add(self, variable: Variable) -> None:
        """Add ``variable`` and all that it is made of."""
        waiting = [variable]
        while waiting:
            current = waiting.pop()
            if current in self._seen:
                continue
            self._seen.add(current)
            calls = [call for call in self._history.changes.get(current, ()) if not self._is_done(call)]
            maker = self._history.maker(current)
            if maker is not None:
                calls.append(maker)
            elif current not in self._own:
                self.bases[current] = Base(current, self._whole(current.first))
            self.calls.update(calls)
            waiting.extend(o.variable for call in calls for o in call.operands)
            waiting.extend(self._history.first_of[s] for call in calls for s in storages_of(call))

    def _is_done(self, call: Call) -> bool:
        """Whether the graph returns memory of the size that ``call`` gives it, since it was made inside."""
        return call.effect is Effect.STORAGE and not any(o.region.storage in self._given for o in call.written)

    def _whole(self, first: Region) -> Region:
        """``first``, or all of its storage as it is in the end, if that was resized: what is new in it was written."""
        if first.storage not in self._history.sizes:
            return first
        count = self._history.sizes[first.storage] // first.dtype.itemsize
        return first.at(Geometry.contiguous((count,))).physical


def storages_of(call: Call) -> list[Storage]:
    """The storages that ``call`` was given as such (``x.set_(y.untyped_storage())``)."""
    return [x for x in call.args if isinstance(x, Storage)]
