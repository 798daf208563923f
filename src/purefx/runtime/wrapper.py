"""The source of a wrapper: prologue, graph, epilogue, as a person would write them for this one program.

def run(x, buffer):
    \"\"\"Runs step with the graph compiled for these arguments.\"\"\"
    new_buffer, out = graph(x, buffer)
    with no_grad():
        buffer.narrow(0, 3, 1).copy_(new_buffer)
    view = out.select(0, 0)
    return out, view
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from types import FunctionType
from typing import Any

from purefx.analysis.replay import Replay
from purefx.autodiff.joint import Joint
from purefx.capture.captured import Capture, Input, name_of
from purefx.capture.turns import ONE_AT_A_TIME
from purefx.functional.signature import Functional
from purefx.runtime.body import emit_graph_call
from purefx.runtime.detaching import emit_late_detaching, late_views
from purefx.runtime.differentiable import Derivatives
from purefx.runtime.epilogue import emit_rebinding, emit_return, emit_statements
from purefx.runtime.guards import Looks, spell_conditions, spell_geometries, spell_sources
from purefx.runtime.history import (
    begin_turned,
    emit_history,
    emit_later_levels,
    emit_looks,
)
from purefx.runtime.hooks import emit_late_leaves
from purefx.runtime.saved import emit_seed
from purefx.runtime.scope import Scope, indented
from purefx.runtime.versions import (
    emit_first_versions,
    emit_first_views,
    emit_last_versions,
    emit_late_older_views,
    emit_older_views,
    emit_remembering,
    emit_versions,
    emit_versions_of_outputs,
)
from purefx.runtime.write_back import emit_write_back, emit_write_back_resized

_numbers = count()


@dataclass(frozen=True, slots=True, eq=False)
class Wrapper:
    """The two generated functions of a specialisation, and their source."""

    matches: FunctionType
    run: Callable[[Any], Any]
    source: str


def build_wrapper(
    capture: Capture,
    replay: Replay,
    functional: Functional,
    graph: Callable[..., Any],
    derivatives: tuple[Joint, tuple[Derivatives, ...]] | None = None,
    alike: frozenset[Input] = frozenset(),
) -> Wrapper:
    """Generate the wrapper of ``functional`` for the calls that look like ``capture``; ``graph`` runs the graph.

    ``derivatives`` are needed where autograd sees what the program does.  The inputs ``alike`` are not looked at.
    """
    scope = Scope(capture, replay, functional, None if derivatives is None else derivatives[0])
    scope.alike = alike
    names = {"graph": graph} if derivatives is None else {"graph": graph, "derivatives": derivatives[1]}
    return compile_wrapper(scope, _body(scope), names)


def compile_wrapper(scope: Scope, body: list[str], names: dict[str, Any]) -> Wrapper:
    """The wrapper whose ``run`` has the statements ``body`` after its prologue; ``names`` are known to it."""
    source = "\n".join([*_matches(scope), "", "", *_run(scope, body), ""])
    namespace = {**scope.speller.namespace, **names}
    file = f"<purefx {name_of(scope.capture.function)} {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), namespace)
    return Wrapper(namespace["matches"], namespace["run"], source)


def _matches(scope: Scope) -> list[str]:
    """The function that tells whether the specialisation fits a call."""
    speller, names, capture = scope.speller, scope.inputs, scope.capture
    asked = {known: name for known, name in names.items() if known not in scope.alike}
    conditions = list(spell_conditions(capture, speller, asked, scope.leaves, scope.examples))
    lines = [
        "def matches(leaves):",
        '    """Whether this specialisation may be used for these arguments."""',
        *indented([*_unpack(scope), *spell_sources(capture, speller, names)]),
    ]
    if not capture.dynamic:
        return [*lines, *_conjunction(conditions)]
    ranks = [f"{names[k]}.dim() == {k.before.geometry.rank}" for k in capture.inputs]
    early = ["if not (", *indented(_joined([*conditions, *ranks])), "):", "    return False"]
    relations = list(spell_geometries(capture, speller, names))
    return [*lines, *indented([*early, *_read_symbols(scope)]), *_conjunction(relations or ["True"])]


def _body(scope: Scope) -> list[str]:
    """Statements that run the program: the graph, then the epilogue."""
    late = late_views(scope)
    scope.early.update(late)
    return [
        *emit_seed(scope),
        *emit_graph_call(scope),
        *emit_versions_of_outputs(scope),
        *emit_first_versions(scope),
        *emit_first_views(scope),
        *emit_history(scope),
        *emit_older_views(scope),
        *emit_write_back(scope),
        *emit_later_levels(scope),
        *emit_late_older_views(scope),
        *emit_looks(scope),
        *emit_versions(scope),
        *emit_statements(scope, begin_turned(scope)),
        *emit_write_back_resized(scope),
        *emit_last_versions(scope),
        *emit_late_detaching(scope, late),
        *emit_late_leaves(scope),
        *emit_rebinding(scope),
        *emit_return(scope),
    ]


def _run(scope: Scope, body: list[str]) -> list[str]:
    """The function that runs the program: prologue, then ``body``."""
    prologue = [
        *_unpack(scope),
        *_read_sources(scope),
        *_read_symbols(scope),
        *emit_remembering(scope),
    ]
    name = name_of(scope.capture.function)
    return [
        "def run(leaves):",
        f'    """Runs {name} with the graph that was made for such arguments."""',
        *indented([*prologue, *body]),
    ]


def _read_sources(scope: Scope) -> list[str]:
    """The statements that fetch what is not among the leaves, when no capture of another thread has it in hand."""
    lines = list(spell_sources(scope.capture, scope.speller, scope.inputs))
    return (
        [f"for _ in {scope.speller.name('undisturbed', ONE_AT_A_TIME.undisturbed)}():", *indented(lines)]
        if lines
        else []
    )


def _unpack(scope: Scope) -> list[str]:
    return [f"({', '.join(scope.leaves)},) = leaves"] if scope.leaves else []


def _read_symbols(scope: Scope) -> list[str]:
    return [f"{symbol} = {where}" for symbol, where in scope.symbols.items()]


def _joined(conditions: Sequence[str | Looks]) -> list[str]:
    """The lines of a conjunction."""
    lines: list[str] = []
    for condition in conditions:
        first, *rest = _either(condition) if isinstance(condition, Looks) else [condition]
        lines += [f"and {first}" if lines else first, *rest]
    return lines


def _either(looks: Looks) -> list[str]:
    return [f"({looks.check} or (", *indented(_joined(looks.each)), "))"]


def _conjunction(conditions: Sequence[str | Looks]) -> list[str]:
    return ["    return (", *indented(indented(_joined(conditions))), "    )"]
