"""The contract of a program: what becomes of each argument, and how each result is made, as typed facts.

These are the facts that ``print(program)`` ends with and that ``explain`` says at length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from purefx.analysis.metadata import element_writes, infer_origin
from purefx.analysis.replay import Fresh, How, Itself, Plain, Replayed
from purefx.capture.captured import Capture, Input, Result, TensorResult
from purefx.capture.recording import Call, DataAccess, Effect, Region, Variable
from purefx.errors import SourceLine
from purefx.functional.regions import disjoint, includes
from purefx.functional.signature import Functional, WrittenOutput
from purefx.layout import Int
from purefx.pipeline import Stages
from purefx.report.names import argument_names, rebinding_name, result_names
from purefx.report.spelling import describe, spell_calls, spell_part


@dataclass(frozen=True, slots=True)
class WriteSource:
    """An operator of the program that writes, and the line that runs it."""

    op: str
    where: SourceLine | None


@dataclass(frozen=True, slots=True)
class Write:
    """Elements of an argument that are written back in one go.

    ``target`` spells them in terms of the argument; ``elements`` counts them, None where the region is only
    partly the argument's.
    """

    argument: str
    target: str
    elements: Int | None
    region: Region
    sources: tuple[WriteSource, ...]

    def __str__(self) -> str:
        written = "some elements" if self.elements is None else count(self.elements)
        return f"{self.target}: {written} written"


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

    def __str__(self) -> str:
        parts = [*map(str, self.writes), *([str(self.change)] if self.change else [])]
        return f"{self.name}: {describe(self.region)}, {'; '.join(parts) or 'read only'}"


@dataclass(frozen=True, slots=True)
class NewMemory:
    """A result in memory that nobody else can reach: the graph returns it."""

    name: str
    region: Region

    def __str__(self) -> str:
        return f"{self.name}: {describe(self.region)}, new memory"


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

    def __str__(self) -> str:
        return f"{self.name}: {describe(self.region)}, made again as {self.expression}"


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
    arguments = _Arguments(stages.capture, stages.functional, names)
    return Signature(tuple(map(arguments.fact, stages.capture.inputs)), tuple(_Results(stages, names).facts()))


def count(elements: Int) -> str:
    """``elements`` in words."""
    return f"{elements} element" if str(elements) == "1" else f"{elements} elements"


def op_name(call: Call) -> str:
    """What the user calls the operator of ``call``."""
    return call.op.value if isinstance(call.op, DataAccess) else call.op.__name__.partition(".")[0]


class _Arguments:
    def __init__(self, capture: Capture, functional: Functional, names: dict[Input, str]) -> None:
        self._names = names
        self._writes = element_writes(capture.recording)
        self._changes = [c for c in capture.recording if c.effect in (Effect.GEOMETRY, Effect.STORAGE)]
        self._regions = [o.region for o in functional.outputs if isinstance(o, WrittenOutput)]

    def fact(self, known: Input) -> Argument:
        """What becomes of ``known``."""
        shown = [known.before, known.after]
        back = [r for r in self._regions if any(not disjoint(r, region) for region in shown)]
        facts = tuple(self._write(known, region) for region in back)
        return Argument(self._names[known], known.before, facts, self._change(known))

    def _write(self, known: Input, region: Region) -> Write:
        name = self._names[known]
        writes = self._writes.get(region.storage, [])
        calls = [call for call, written in writes if not disjoint(written, region)]
        target = spell_part(name, known.before, region)
        return Write(name, target, _elements(known.before, region), region, _sources(calls))

    def _change(self, known: Input) -> GeometryChange | None:
        if known.after == known.before:
            return None
        calls = [c for c in self._changes if any(o.variable is known.variable for o in c.written)]
        return GeometryChange(self._names[known], known.before, known.after, _sources(calls))


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
        bound = [(rebinding_name(r), r.result) for r in self._capture.rebindings]
        results = zip(result_names(self._capture), self._capture.results, strict=True)
        self._results: list[tuple[str, Result | None]] = [*results, *bound]
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
                return NewMemory(name, region)
            case Replayed() if isinstance(result, TensorResult):
                return self._replayed(name, result)
            case Plain(value):
                return Value(name, value)
            case _:
                raise AssertionError(f"{name} is made in no known way: {how}")

    def _replayed(self, name: str, result: TensorResult) -> ResultFact:
        origin = infer_origin(result, self._replay, self._capture.inputs)
        if origin.base is result.variable:
            return NewMemory(name, result.region)
        base = self._variables.get(origin.base, "base")
        names = {**self._given, origin.base: base}
        lines = tuple(call.where for call in origin.chain)
        return View(name, result.region, base, spell_calls(names, origin.chain, result.variable), lines)


__all__ = [
    "Argument",
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
