"""Why a program copies, aliases and recompiles: the contract of one call, said at length.

    arguments
      cache: float32[4, 3]
        cache[1:3]: 6 elements written by copy_   decode.py:7
      read only: x

The facts are the typed tuples of an `Explanation`; its text is made of them alone, and leaves out the graph.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from purefx.pipeline import Stages, build, engine_of, graph_module
from purefx.program import Program
from purefx.report.conditions import Conditions, Guard
from purefx.report.contract import Argument, Signature, View, Write, WriteSource
from purefx.report.copies import CopyFact, infer_copies
from purefx.report.gradients import Gradients, infer_gradients
from purefx.report.names import function_name
from purefx.report.sharing import Sharing, draw, infer_sharing
from purefx.report.spelling import describe, places
from purefx.report.unchecked import Unchecked, infer_unchecked

COLUMNS = 80
"""The width of an explanation."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a caller can see of one call, which copies it costs and what it is specialised on."""

    program: Program
    name: str
    signature: Signature
    sharings: tuple[Sharing, ...]
    copies: tuple[CopyFact, ...]
    guards: tuple[Guard, ...]
    unchecked: tuple[Unchecked, ...]
    gradients: Gradients | None

    @property
    def writes(self) -> tuple[Write, ...]:
        """Every region that is written back, argument by argument."""
        return tuple(write for argument in self.signature.arguments for write in argument.writes)

    def __str__(self) -> str:
        return "\n".join([self.name, *_text(self)])


def explain(stages: Stages) -> Explanation:
    """The explanation of the program that ``stages`` made."""
    module = graph_module(stages)
    program = Program(stages, module, build(stages, module.forward, lambda gradient, _: gradient, engine_of(None)))
    return Explanation(
        program,
        function_name(stages.capture.function),
        program.signature,
        infer_sharing(stages),
        infer_copies(stages),
        Conditions.of(stages.capture, program.wrapper).guards,
        infer_unchecked(stages.capture),
        infer_gradients(stages),
    )


def _text(explanation: Explanation) -> Iterator[str]:
    """The sections, an empty line before each."""
    sections = {
        "arguments": _arguments(explanation.signature.arguments),
        "shared memory": _shared_memory(explanation.sharings),
        "results": _results(explanation.signature),
        "gradients": [] if explanation.gradients is None else _gradients(explanation.gradients),
        "copies and bases": [line for fact in explanation.copies for line in _wrapped(str(fact))] or ["  none"],
        "captures anew unless": _conditions(explanation.guards),
        "not checked, and taken as captured": [
            line for x in explanation.unchecked for line in _wrapped(f"{_listed(list(x.places))}: {x.value}")
        ],
    }
    for title, lines in sections.items():
        if lines:
            yield from ("", title, *lines)


def _arguments(arguments: tuple[Argument, ...]) -> list[str]:
    changed = [a for a in arguments if a.writes or a.change or a.changes_of_autograd]
    unchanged = [a.name for a in arguments if a not in changed]
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
    for state in argument.changes_of_autograd:
        yield from _wrapped(state.value, 4)


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
    """The storages that matter: several tensors show them, or a part of them is written."""
    told = [sharing for sharing in sharings if len(sharing.tensors) > 1 or sharing.is_partly_written]
    lines: list[str] = []
    for sharing in told:
        lines += ([""] if lines else []) + [f"  {line}" for line in draw(sharing)]
        for overlap in sharing.overlaps:
            lines += _wrapped(str(overlap))
        if len(sharing.tensors) > 1 and not sharing.overlaps:
            lines += _wrapped(f"{_listed([s.name for s in sharing.tensors])}: one storage, no common element")
    return lines


def _gradients(gradients: Gradients) -> list[str]:
    """What flows where, then what is saved, computed again and raised."""
    lines = _wrapped(f"given those of {_listed(list(gradients.tangents))}: of {_listed(list(gradients.targets))}")
    if gradients.unreached:
        lines += _wrapped(f"none flows to {_listed(list(gradients.unreached))}")
    lines += [line for dependence in gradients.dependences for line in _wrapped(str(dependence))]
    if gradients.residuals:
        alone, anyway = gradients.bytes_alone, gradients.bytes_anyway
        lines += _wrapped(f"saved: {alone} bytes for the backward alone, {anyway} bytes that are there anyway")
        lines += [line for residual in gradients.residuals for line in _wrapped(str(residual), 4)]
    if gradients.recomputed:
        lines += _wrapped("computed in the backward of saved values alone")
        lines += [line for value in gradients.recomputed for line in _wrapped(str(value), 4)]
    if gradients.raised:
        lines += _wrapped("raises, as eager does, where these are differentiated")
        lines += [line for raised in gradients.raised for line in _wrapped(str(raised), 4)]
    return lines


def _conditions(guards: tuple[Guard, ...]) -> list[str]:
    """The guards, those on one subject together; subjects with equal conditions in one paragraph."""
    conditions: dict[str, list[str]] = {}
    for guard in guards:
        conditions.setdefault(guard.subject, []).append(guard.shortened)
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


__all__ = ["COLUMNS", "Explanation", "explain"]
