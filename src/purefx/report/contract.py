"""The contract of a program: what becomes of each argument, and how each result is made, as typed facts.

These are the facts that ``print(program)`` ends with and that ``explain`` says at length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from purefx.analysis.gradients import begins, is_detached
from purefx.analysis.metadata import element_writes, infer_origin
from purefx.analysis.replay import Fresh, How, Itself, Plain, Replayed
from purefx.capture.captured import Input, Result, TensorResult
from purefx.capture.edges import is_begun
from purefx.capture.recording import Call, DataAccess, Effect, Region, Variable
from purefx.errors import SourceLine
from purefx.functional.regions import disjoint, includes
from purefx.functional.signature import WrittenOutput
from purefx.layout import Int
from purefx.pipeline import Stages
from purefx.report.gradients import reached_targets
from purefx.report.meanings import Meanings
from purefx.report.names import argument_names, named_results
from purefx.report.spelling import describe, spell_calls, spell_part


class Autograd(Enum):
    """What autograd sees of a tensor."""

    GRADIENT = "gets a gradient"
    GRADIENT_OF_BASE = "its base gets the gradient"
    BEGINS = "becomes a leaf that requires grad"
    DETACHED = "is detached"
    STOPS = "requires no grad any more"
    HISTORY = "requires grad"
    LEAF = "a leaf that requires grad"


@dataclass(frozen=True, slots=True)
class WriteSource:
    """An operator of the program that writes, and the line that runs it."""

    op: str
    where: SourceLine | None


@dataclass(frozen=True, slots=True)
class Write:
    """Elements of an argument that are written back in one go.

    ``target`` spells them in terms of the argument; ``elements`` counts them, None where the region is only
    partly the argument's.  ``history`` is the tensor whose history the write becomes a part of.
    """

    argument: str
    target: str
    elements: Int | None
    region: Region
    sources: tuple[WriteSource, ...]
    history: str | None = None

    def __str__(self) -> str:
        written = "some elements" if self.elements is None else count(self.elements)
        seen = "" if self.history is None else f" (into the history of {self.history})"
        return f"{self.target}: {written} written{seen}"


@dataclass(frozen=True, slots=True)
class GeometryChange:
    """An argument that shows something else after the call than before."""

    argument: str
    before: Region
    after: Region
    sources: tuple[WriteSource, ...]

    def __str__(self) -> str:
        moved = " in another storage" if self.before.storage is not self.after.storage else ""
        strides = ", ".join(map(str, self.after.geometry.strides))
        return f"becomes {describe(self.after)}, strides ({strides}){moved}"


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor that the program is given, and what becomes of it."""

    name: str
    region: Region
    writes: tuple[Write, ...]
    change: GeometryChange | None
    autograd: tuple[Autograd, ...] = ()

    @property
    def changes_of_autograd(self) -> tuple[Autograd, ...]:
        """What the program changes of who requires grad."""
        return tuple(x for x in self.autograd if x in (Autograd.BEGINS, Autograd.DETACHED, Autograd.STOPS))

    def __str__(self) -> str:
        parts = [*map(str, self.writes), *([str(self.change)] if self.change else [])]
        seen = "".join(f", {state.value}" for state in self.autograd)
        return f"{self.name}: {describe(self.region)}, {'; '.join(parts) or 'read only'}{seen}"


@dataclass(frozen=True, slots=True)
class NewMemory:
    """A result in memory that nobody else can reach: the graph returns it."""

    name: str
    region: Region
    autograd: Autograd | None = None

    def __str__(self) -> str:
        return f"{self.name}: {describe(self.region)}, new memory{_seen(self.autograd)}"


@dataclass(frozen=True, slots=True)
class SameObject:
    """A result that is the very object of an argument."""

    name: str
    region: Region
    argument: str

    def __str__(self) -> str:
        return f"{self.name}: {describe(self.region)}, the object {self.argument}"


@dataclass(frozen=True, slots=True)
class View:
    """A result that shares storage with ``base``: made again, outside of the graph, as ``expression``."""

    name: str
    region: Region
    base: str
    expression: str
    lines: tuple[SourceLine | None, ...]
    autograd: Autograd | None = None

    def __str__(self) -> str:
        return f"{self.name}: {describe(self.region)}, made again as {self.expression}{_seen(self.autograd)}"


@dataclass(frozen=True, slots=True)
class Value:
    """A result without memory: a number, a string, None."""

    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.value!r}"


ResultFact = NewMemory | SameObject | View | Value


@dataclass(frozen=True, slots=True)
class Signature:
    """What becomes of each tensor given, and how each result is made; attributes that are bound come last."""

    arguments: tuple[Argument, ...]
    results: tuple[ResultFact, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.arguments, *self.results)))


def infer_signature(stages: Stages) -> Signature:
    """The signature of the program that ``stages`` made."""
    names = argument_names(stages.capture)
    arguments = _Arguments(stages, names)
    return Signature(tuple(map(arguments.fact, stages.capture.inputs)), tuple(_Results(stages, names).facts()))


def _seen(state: Autograd | None) -> str:
    return "" if state is None else f", {state.value}"


def count(elements: Int) -> str:
    """``elements`` in words."""
    return f"{elements} element" if str(elements) == "1" else f"{elements} elements"


def op_name(call: Call) -> str:
    """What the user calls the operator of ``call``."""
    return call.op.value if isinstance(call.op, DataAccess) else call.op.__name__.partition(".")[0]


class _Arguments:
    def __init__(self, stages: Stages, names: dict[Input, str]) -> None:
        capture = stages.capture
        self._names = names
        self._meanings = Meanings(stages)
        self._targets = () if stages.joint is None else tuple(reached_targets(stages.joint))
        self._writes = element_writes(capture.recording)
        self._changes = [c for c in capture.recording if c.effect in (Effect.GEOMETRY, Effect.STORAGE)]
        self._written = [o for o in stages.functional.outputs if isinstance(o, WrittenOutput)]

    def fact(self, known: Input) -> Argument:
        """What becomes of ``known``."""
        shown = [known.before, known.after]
        back = [o for o in self._written if any(not disjoint(o.region, region) for region in shown)]
        facts = tuple(self._write(known, output) for output in back)
        return Argument(self._names[known], known.before, facts, self._change(known), tuple(self._seen(known)))

    def _seen(self, known: Input) -> Iterator[Autograd]:
        for target in self._targets:
            if target.source is known and not target.begins:
                yield Autograd.GRADIENT_OF_BASE if target.of_base else Autograd.GRADIENT
        if begins(known):
            yield Autograd.BEGINS
        elif is_detached(known):
            yield Autograd.DETACHED
        elif known.edge is not None and not known.fake.requires_grad:
            yield Autograd.STOPS

    def _write(self, known: Input, output: WrittenOutput) -> Write:
        name, region = self._names[known], output.region
        writes = self._writes.get(region.storage, [])
        calls = [call for call, written in writes if not disjoint(written, region)]
        target = spell_part(name, known.before, region)
        history = None if output.shown is None else self._meanings.history(output.shown)
        return Write(name, target, _elements(known.before, region), region, _sources(calls), history)

    def _change(self, known: Input) -> GeometryChange | None:
        if known.after == known.before:
            return None
        calls = [c for c in self._changes if any(o.variable is known.variable for o in c.written)]
        return GeometryChange(self._names[known], known.before, known.after, _sources(calls))


def _autograd(result: Result | None) -> Autograd | None:
    if not isinstance(result, TensorResult) or not result.fake.requires_grad:
        return None
    return Autograd.LEAF if is_begun(result.fake) else Autograd.HISTORY


def _elements(whole: Region, part: Region) -> Int | None:
    if includes(part, whole):
        return whole.geometry.numel
    return part.geometry.numel if includes(whole, part) else None


def _sources(calls: Sequence[Call]) -> tuple[WriteSource, ...]:
    return tuple(dict.fromkeys(WriteSource(op_name(call), call.where) for call in calls))


class _Results:
    def __init__(self, stages: Stages, names: dict[Input, str]) -> None:
        self._capture, self._replay = stages.capture, stages.replay
        self._arguments = names
        bound = [(rebinding.name, rebinding.result) for rebinding in self._capture.rebindings]
        self._results: list[tuple[str, Result | None]] = [*named_results(self._capture), *bound]
        self._given = {known.variable: name for known, name in names.items()}
        self._variables: dict[Variable, str] = dict(self._given)
        for name, result in self._results:
            if isinstance(result, TensorResult):
                self._variables.setdefault(result.variable, name)

    def facts(self) -> list[ResultFact]:
        """How each result is made."""
        hows = [*self._replay.results, *self._replay.rebound]
        pairs = zip(self._results, hows, strict=True)
        return [self._fact(name, result, how) for (name, result), how in pairs if result is not None]

    def _fact(self, name: str, result: Result | None, how: How | None) -> ResultFact:
        match how:
            case Itself(source):
                return SameObject(name, source.after, self._arguments[source])
            case Fresh(_, region):
                return NewMemory(name, region, _autograd(result))
            case Replayed() if isinstance(result, TensorResult):
                return self._replayed(name, result)
            case Plain(value):
                return Value(name, value)
            case _:
                raise AssertionError(f"{name} is made in no known way: {how}")

    def _replayed(self, name: str, result: TensorResult) -> ResultFact:
        origin = infer_origin(result, self._replay, self._capture.inputs)
        if origin.base is result.variable:
            return NewMemory(name, result.region, _autograd(result))
        base = self._variables.get(origin.base, "base")
        names = {**self._given, origin.base: base}
        lines = tuple(call.where for call in origin.chain)
        expression = spell_calls(names, origin.chain, result.variable)
        return View(name, result.region, base, expression, lines, _autograd(result))


__all__ = [
    "Argument",
    "Autograd",
    "GeometryChange",
    "NewMemory",
    "ResultFact",
    "SameObject",
    "Signature",
    "Value",
    "View",
    "Write",
    "WriteSource",
    "count",
    "infer_signature",
    "op_name",
]
