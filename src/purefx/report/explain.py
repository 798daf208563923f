"""Why a program copies, aliases and recompiles: the contract of one call, said at length.

    step
      x        float32[2, 3]   read only
    ...

The facts are the typed tuples of an `Explanation`; its text is made of them alone.  The graph is not part of it.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import fx

from purefx._torch import OpOverload
from purefx.capture.session import TensorResult
from purefx.functional.builder import Value
from purefx.functional.rewrite import BaseOutput, RootInput, WrittenOutput
from purefx.functional.roots import Root
from purefx.layout import Int
from purefx.operators import aten
from purefx.pipeline import Stages, build, graph_module
from purefx.program import Program
from purefx.report.contract import Argument, Signature, View, Write, WriteSource, count
from purefx.report.names import argument_names, function_name, leaf_names, result_names
from purefx.report.sharing import Sharing, draw, infer_sharing
from purefx.report.spelling import describe, places, spell_part
from purefx.runtime.wrapper import Wrapper

COLUMNS = 80
"""The width of an explanation."""


@dataclass(frozen=True, slots=True)
class WriteBack:
    """A copy from a graph output into the caller's memory, after the graph has run."""

    target: str
    elements: Int

    def __str__(self) -> str:
        return f"{self.target}: {count(self.elements)} copied back after the graph has run"


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
        return f"synthetic base of {names}: {count(self.elements)} of their storage; one of them is written"


@dataclass(frozen=True, slots=True)
class ElectedBase:
    """An argument that stands for others in the graph: it includes them."""

    base: str
    members: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.base} stands for {' and '.join(self.members)}, which it includes; one of them is written"
        )


@dataclass(frozen=True, slots=True)
class SharedBase:
    """Memory made inside that the graph returns once, because ``results`` share it."""

    results: tuple[str, ...]
    elements: Int

    def __str__(self) -> str:
        return f"base of {' and '.join(self.results)}: {count(self.elements)}, returned once by the graph"


CopyFact = WriteBack | AddedCopy | SyntheticBase | ElectedBase | SharedBase


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that must hold of a call, or purefx captures anew.  ``subject`` is what it is about."""

    subject: str
    condition: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a caller can see of one call, which copies it costs and what it is specialised on."""

    program: Program
    name: str
    signature: Signature
    sharings: tuple[Sharing, ...]
    copies: tuple[CopyFact, ...]
    guards: tuple[Guard, ...]

    @property
    def writes(self) -> tuple[Write, ...]:
        """Every region that is written back, argument by argument."""
        return tuple(write for argument in self.signature.arguments for write in argument.writes)

    def __str__(self) -> str:
        return "\n".join([self.name, *_text(self)])


def explain(stages: Stages) -> Explanation:
    """The explanation of the program that ``stages`` made."""
    module = graph_module(stages)
    program = Program(stages, module, build(stages, module.forward))
    return Explanation(
        program,
        function_name(stages.capture.function),
        program.signature,
        infer_sharing(stages),
        (*_write_backs(stages), *_bases(stages), *_shared_bases(stages), *_added_copies(stages)),
        tuple(_guards(stages, program.wrapper)),
    )


def _write_backs(stages: Stages) -> Iterator[WriteBack]:
    names = argument_names(stages.capture)
    for output in stages.functional.outputs:
        if isinstance(output, WrittenOutput):
            root = output.root
            whole = root.base if root.base is not None else root.members[0]
            target = spell_part(names[whole], whole.before, output.region)
            yield WriteBack(target, output.region.geometry.numel)


def _bases(stages: Stages) -> Iterator[SyntheticBase | ElectedBase]:
    names = argument_names(stages.capture)
    for root in _roots(stages):
        members = tuple(names[member] for member in root.members if member is not root.base)
        if root.base is None:
            yield SyntheticBase(members, root.region.geometry.numel)
        elif members and root.written:
            yield ElectedBase(names[root.base], members)


def _roots(stages: Stages) -> list[Root]:
    read = [given.root for given in stages.functional.inputs if isinstance(given, RootInput)]
    written = [o.root for o in stages.functional.outputs if isinstance(o, WrittenOutput)]
    return list(dict.fromkeys([*read, *written]))


def _shared_bases(stages: Stages) -> Iterator[SharedBase]:
    results = list(zip(result_names(stages.capture), stages.capture.results, strict=True))
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
    place = line.rpartition(" in ")[0].replace("\\", "/").rpartition("/")[2]
    name = str(node.target.overloadpacket.__name__)
    return AddedCopy(name, value.geometry.numel, place, _REASONS[node.target])


def _guards(stages: Stages, wrapper: Wrapper) -> Iterator[Guard]:
    """The conditions of the wrapper's ``matches``, in the user's names."""
    function = next(
        f for f in ast.parse(wrapper.source).body if isinstance(f, ast.FunctionDef) and f.name == "matches"
    )
    words: dict[str, str] = {}
    for statement in function.body:
        words |= _leaf_words(statement, leaf_names(stages.capture))
    for condition in (c for node in ast.walk(function) for c in _conjuncts(node)):
        subject = next((n.id for n in ast.walk(condition) if isinstance(n, ast.Name) and n.id in words), "")
        yield Guard(words.get(subject, ""), ast.unparse(_InWords(words).visit(condition)))


def _conjuncts(node: ast.AST) -> list[ast.expr]:
    """The conditions of a ``return a and b`` or of an ``if not (a and b)``."""
    match node:
        case ast.Return(ast.BoolOp(ast.And(), values)) | ast.If(
            ast.UnaryOp(ast.Not(), ast.BoolOp(ast.And(), values))
        ):
            return values
        case ast.Return(ast.Compare() | ast.Call() as only):
            return [only]
        case _:
            return []


def _leaf_words(statement: ast.stmt, names: tuple[str, ...]) -> dict[str, str]:
    """The user's name for each variable that ``(a, b,) = leaves`` binds."""
    match statement:
        case ast.Assign([ast.Tuple(targets)], ast.Name("leaves")):
            found = [target.id for target in targets if isinstance(target, ast.Name)]
            return dict(zip(found, names, strict=True))
        case _:
            return {}


class _InWords(ast.NodeTransformer):
    """Puts the user's names in the place of the wrapper's."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = words

    def visit_Name(self, node: ast.Name) -> ast.Name:  # noqa: N802  # the name that ast looks for
        return ast.Name(self._words.get(node.id, node.id), node.ctx)


def _text(explanation: Explanation) -> Iterator[str]:
    """The sections, an empty line before each."""
    sections = {
        "arguments": _arguments(explanation.signature.arguments),
        "shared memory": _shared_memory(explanation.sharings),
        "results": _results(explanation.signature),
        "copies and bases": [line for fact in explanation.copies for line in _wrapped(str(fact))]
        or ["  none"],
        "captures anew unless": _conditions(explanation.guards),
    }
    for title, lines in sections.items():
        if lines:
            yield from ("", title, *lines)


def _arguments(arguments: tuple[Argument, ...]) -> list[str]:
    changed = [a for a in arguments if a.writes or a.change]
    unchanged = [a.name for a in arguments if not (a.writes or a.change)]
    lines = [line for argument in changed for line in _changed(argument)]
    if unchanged:
        lines += _wrapped(f"read only: {_listed(unchanged)}")
    return lines


def _changed(argument: Argument) -> Iterator[str]:
    yield from _wrapped(f"{argument.name}: {describe(argument.region)}")
    for write in argument.writes:
        yield from _wrapped(f"{write}{_by(write.sources)}", 4)
    if argument.change is not None:
        yield from _wrapped(f"{argument.change}{_by(argument.change.sources)}", 4)


def _by(sources: tuple[WriteSource, ...]) -> str:
    ops = ", ".join(dict.fromkeys(source.op for source in sources))
    return f" by {ops}   {places([source.where for source in sources])}" if sources else ""


def _results(signature: Signature) -> list[str]:
    lines: list[str] = []
    for result in signature.results:
        where = f"   {places(result.lines)}" if isinstance(result, View) else ""
        lines += _wrapped(f"{result}{where}")
    return lines


def _shared_memory(sharings: tuple[Sharing, ...]) -> list[str]:
    """The storages that matter: several tensors show them, or they are written."""
    told = [sharing for sharing in sharings if len(sharing.tensors) > 1 or sharing.written]
    lines: list[str] = []
    for sharing in told:
        lines += ([""] if lines else []) + [f"  {line}" for line in draw(sharing)]
        for overlap in sharing.overlaps:
            lines += _wrapped(str(overlap))
        if len(sharing.tensors) > 1 and not sharing.overlaps:
            lines += _wrapped(f"{_listed([s.name for s in sharing.tensors])}: one storage, no common element")
    return lines


def _conditions(guards: tuple[Guard, ...]) -> list[str]:
    """The guards, those on one subject together; subjects with equal conditions in one paragraph."""
    conditions: dict[str, list[str]] = {}
    for guard in guards:
        text = guard.condition.replace(f"{guard.subject}.", ".") if guard.subject else guard.condition
        conditions.setdefault(guard.subject, []).append(text.replace(f"type({guard.subject})", "type"))
    subjects: dict[tuple[str, ...], list[str]] = {}
    for subject, texts in conditions.items():
        subjects.setdefault(tuple(texts), []).append(subject)
    return [
        line
        for texts, names in subjects.items()
        for line in _wrapped(f"{_listed(names)}: {', '.join(texts)}" if names != [""] else ", ".join(texts))
    ]


def _listed(names: list[str]) -> str:
    """``names`` in a row; the number of those that do not fit."""
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:6])} and {len(names) - 6} more"


def _wrapped(text: str, indent: int = 2) -> list[str]:
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        drop_whitespace=True,
        break_on_hyphens=False,
    )


__all__ = [
    "COLUMNS",
    "AddedCopy",
    "CopyFact",
    "ElectedBase",
    "Explanation",
    "Guard",
    "SharedBase",
    "SyntheticBase",
    "WriteBack",
    "explain",
]
