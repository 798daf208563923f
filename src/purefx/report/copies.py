"""Which copies and bases a functional program costs, and why each exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import fx

from purefx._torch import OpOverload
from purefx.capture.captured import TensorResult
from purefx.functional.builder import Value
from purefx.functional.signature import BaseOutput, WrittenOutput
from purefx.layout import Int
from purefx.operators import aten
from purefx.pipeline import Stages, reinplaced
from purefx.report.contract import count
from purefx.report.meanings import Meanings
from purefx.report.names import argument_names, named_results
from purefx.report.spelling import shortened


@dataclass(frozen=True, slots=True)
class WriteBack:
    """A copy from a graph output into the caller's memory, after the graph has run.

    ``in_place`` tells that ``compile`` without a backend writes there in place instead, ``obstacle`` why it does not,
    where that costs more than this copy.
    """

    target: str
    elements: Int
    in_place: bool
    obstacle: str = ""

    def __str__(self) -> str:
        copied = f"{self.target}: {count(self.elements)} copied back after the graph has run"
        if self.in_place:
            return f"{copied}; in place where no backend compiles it"
        return f"{copied}, not in place: {self.obstacle}" if self.obstacle else copied


@dataclass(frozen=True, slots=True)
class AddedCopy:
    """A node that copies and that the program did not ask for."""

    op: str
    elements: Int
    line: str
    reason: str

    def __str__(self) -> str:
        place = f"   {self.line}" if self.line else ""
        return f"{self.op} of {count(self.elements)}: {self.reason}{place}"


@dataclass(frozen=True, slots=True)
class SyntheticBase:
    """A graph input made up for arguments that overlap and of which none includes the others."""

    members: tuple[str, ...]
    elements: Int

    def __str__(self) -> str:
        names = " and ".join(self.members)
        return f"synthetic base of {names}: {count(self.elements)} of their storage; what is written overlaps"


@dataclass(frozen=True, slots=True)
class ElectedBase:
    """An argument that stands for others in the graph: it includes them."""

    base: str
    members: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.base} stands for {' and '.join(self.members)}, which it includes; what is written overlaps"


@dataclass(frozen=True, slots=True)
class SharedBase:
    """Memory made inside that the graph returns once, because ``results`` share it."""

    results: tuple[str, ...]
    elements: Int

    def __str__(self) -> str:
        return f"base of {' and '.join(self.results)}: {count(self.elements)}, returned once by the graph"


CopyFact = WriteBack | AddedCopy | SyntheticBase | ElectedBase | SharedBase


def infer_copies(stages: Stages) -> tuple[CopyFact, ...]:
    """Every copy and base: write-backs, bases of arguments, bases of results, nodes that copy."""
    return (*_write_backs(stages), *_bases(stages), *_shared_bases(stages), *_added_copies(stages))


def _write_backs(stages: Stages) -> Iterator[WriteBack]:
    meanings = Meanings(stages)
    runs = reinplaced(stages)
    copied = {id(output) for output in runs.functional.outputs}
    for output in stages.functional.outputs:
        if isinstance(output, WrittenOutput):
            target = meanings.written(output)
            in_place = id(output) not in copied
            obstacle = "" if in_place else runs.obstacles.get(output.root, "")
            yield WriteBack(target, output.region.geometry.numel, in_place, obstacle)


def _bases(stages: Stages) -> Iterator[SyntheticBase | ElectedBase]:
    names = argument_names(stages.capture)
    for root in stages.functional.roots:
        members = tuple(names[member] for member in root.members if member is not root.base)
        if root.base is None:
            yield SyntheticBase(members, root.region.geometry.numel)
        elif members and root.written:
            yield ElectedBase(names[root.base], members)


def _shared_bases(stages: Stages) -> Iterator[SharedBase]:
    results = named_results(stages.capture)
    for output in stages.functional.outputs:
        if isinstance(output, BaseOutput):
            storage = output.region.storage
            shown = (n for n, r in results if isinstance(r, TensorResult) and r.region.storage is storage)
            yield SharedBase(tuple(shown), output.region.geometry.numel)


_REASONS: Mapping[OpOverload, str] = {
    aten.as_strided_scatter.default: "a part was written, and then the whole is read",
    aten.cat.default: "parts were written one by one, and then more than one of them is read",
    aten.clone.default: "the memory has another owner: an output of the graph needs its own",
    aten.copy.default: "the strides of the result are those that eager gives",
    aten.diagonal_scatter.default: "a part was written, and then the whole is read",
    aten.select_scatter.default: "a part was written, and then the whole is read",
    aten.slice_scatter.default: "a part was written, and then the whole is read",
    aten.stack.default: "parts were written one by one, and then more than one of them is read",
}
"""Operators by which purefx copies, and why it does."""


def _added_copies(stages: Stages) -> Iterator[AddedCopy]:
    """Copying nodes at lines where the program itself does not run their operator."""
    asked = {(call.op, "" if call.where is None else str(call.where)) for call in stages.capture.recording}
    for node in stages.functional.graph.nodes:
        value = stages.functional.values.get(node)
        line = stages.functional.lines.get(node, "")
        if node.target in _REASONS and value is not None and (node.target, line) not in asked:
            yield _added(node, value, line)


def _added(node: fx.Node, value: Value, line: str) -> AddedCopy:
    assert isinstance(node.target, OpOverload)
    name = str(node.target.overloadpacket.__name__)
    return AddedCopy(name, value.geometry.numel, shortened(line), _REASONS[node.target])


__all__ = ["AddedCopy", "CopyFact", "ElectedBase", "SharedBase", "SyntheticBase", "WriteBack", "infer_copies"]
