"""Leaves that the program gives other memory or sizes: autograd has to see what they have become, not what they were.

def f(x, y):                       arg0.set_(arg1)
    with torch.no_grad():          (out,) = record(derivatives[0], (out,), Saved(()), arg0)
        x.set_(y)
    return x * 2
"""

from __future__ import annotations

from collections import Counter

from purefx.analysis.gradients import is_moved
from purefx.capture.captured import Input
from purefx.capture.recording import Variable
from purefx.functional.signature import RootInput
from purefx.runtime.differentiable import same_edge
from purefx.runtime.epilogue import emit_calls, fetch_storages
from purefx.runtime.scope import Scope, makers_of
from purefx.runtime.support import set_versions


def emit_moved_leaves(scope: Scope) -> list[str]:
    """The statements that give leaves other memory or sizes: their gradients arrive at what they have become.

    With those come the statements that make what they take, and the views of the leaves that are older.
    """
    moved = {known.variable for known in scope.inputs if is_moved(scope.capture, known)}
    statements = scope.replay.statements
    last = max((i for i, call in enumerate(statements) if moved & {o.variable for o in call.written}), default=-1)
    wanted = set(moved)
    for call in statements[: last + 1]:
        if wanted & {o.variable for o in call.operands}:
            wanted |= {o.variable for o in call.outputs}
    early = makers_of(statements[: last + 1], wanted, written=True)
    scope.early.update(early)
    storages = fetch_storages(scope) if early else []
    made = [*_keep_edges(scope), *_keep_former(scope, moved), *storages, *emit_calls(scope, early)]
    return [*made, *_set_back(scope, moved)]


def _set_back(scope: Scope, moved: set[Variable]) -> list[str]:
    """The statement that sets the versions of such leaves back where the program does, before something is saved."""
    changed = Counter(o.variable for call in scope.early for o in call.written)
    back = [
        f"({name}, {scope.version(known)} + {known.writes})"
        for known, name in scope.inputs.items()
        if known.variable in moved and known.writes < changed[known.variable]
    ]
    return [f"{scope.speller.name('set_versions', set_versions)}({', '.join(back)})"] if back else []


def _keep_edges(scope: Scope) -> list[str]:
    """Statements that keep where gradients arrive at such leaves as they were."""
    targets = [target for level in (scope.joint.levels if scope.joint else ()) for target in level.targets]
    for known in dict.fromkeys(t.source for t in targets if t.former and isinstance(t.source, Input)):
        scope.left[known] = scope.unique(f"{scope.inputs[known]}_before", "before")
    edge = scope.speller.name("same_edge", same_edge) if scope.left else ""
    return [f"{name} = {edge}({scope.inputs[known]})" for known, name in scope.left.items()]


def _keep_former(scope: Scope, moved: set[Variable]) -> list[str]:
    """Statements that name what the backward needs of the memory of such leaves as they were."""
    kept = () if scope.joint is None else scope.joint.residuals.values()
    bases = dict.fromkeys(source.root.base for source in kept if isinstance(source, RootInput))
    lines = []
    for known in [base for base in bases if base is not None and base.variable in moved]:
        scope.former[known] = scope.unique(f"{scope.inputs[known]}_former", "former")
        lines.append(f"{scope.former[known]} = {scope.inputs[known]}.detach()")
    return lines
