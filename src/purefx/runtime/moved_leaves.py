"""Leaves that the program gives other memory or sizes: autograd has to see what they have become, not what they were.

def f(x, y):                       arg0.set_(arg1)
    with torch.no_grad():          (out,) = record(derivatives[0], (out,), Saved(()), arg0)
        x.set_(y)
    return x * 2
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from purefx.analysis.gradients import begins, is_moved, new_leaves
from purefx.autodiff.slots import fakes_of
from purefx.capture.captured import Input
from purefx.capture.edges import is_bare_view
from purefx.capture.recording import Call, DataAccess, Effect, Variable
from purefx.capture.tensors import variable_of
from purefx.errors import GradientsRefused
from purefx.functional.signature import RootInput, WrittenOutput
from purefx.operators import aten
from purefx.runtime.differentiable import same_edge
from purefx.runtime.epilogue import emit_calls, fetch_storages
from purefx.runtime.scope import Scope, makers_of, take_early
from purefx.runtime.support import set_versions


def keep_edge(scope: Scope, known: Input) -> str:
    """The statement that keeps where gradients of ``known`` go now, before its history is another."""
    name = scope.inputs[known]
    scope.earlier[known] = scope.unique(f"{name}_before", "before")
    return f"{scope.earlier[known]} = {scope.speller.name('same_edge', same_edge)}({name})"


def emit_moved_leaves(scope: Scope) -> list[str]:
    """The statements that give leaves other memory or sizes: their gradients arrive at what they have become.

    With those come the statements that make what they take, and the views of the leaves that are older.
    """
    moved, statements = {k.variable for k in scope.inputs if is_moved(scope.capture, k)}, scope.replay.statements
    early = _run_early(scope, statements[: _behind_turns(statements, moved)], moved)
    return [*_keep_edges(scope), *early, *_set_back(scope, moved)]


def _behind_turns(statements: Sequence[Call], moved: set[Variable]) -> int:
    """The position in ``statements`` behind all that turn ``moved`` tensors."""
    return max((i + 1 for i, call in enumerate(statements) if moved & {o.variable for o in call.written}), default=0)


def emit_turned_leaves(scope: Scope, begun: Mapping[Variable, list[str]]) -> list[str]:
    """The statements that turn what begins to require grad then, where the program computes with it.

    It begins by those in ``begun``.  With them come the views that are older than that.
    """
    lines: list[str] = []
    statements = scope.replay.statements
    for leaf, turned in turned_leaves(scope).items():
        if is_source(scope, leaf):
            stop = place_to_begin(scope, leaf, turned, statements)
            lines += [*_run_early(scope, statements[:stop], turned), *begun[leaf]]
    return lines


def emit_early_turns(scope: Scope) -> list[str]:
    """The statements that turn what is written last after that: it gets its history by the write."""
    lines: list[str] = []
    slots = [slot for level in scope.levels for slot in level.slots]
    for early in [[call for call in slot.early if call in scope.replay.statements] for slot in slots]:
        if not early:
            continue
        turned = {early[0].written[0].variable}
        known = next((known for known in scope.inputs if known.variable in turned), None)
        if known is not None and known.edge is not None and known not in scope.earlier:
            lines.append(keep_edge(scope, known))
        stop = scope.replay.statements.index(early[-1]) + 1
        lines += _run_early(scope, scope.replay.statements[:stop], turned)
    return lines


def emit_early_swaps(scope: Scope, wanted: Collection[Variable]) -> list[str]:
    """The statements that give other memory (``x.data = y``) to what the ``wanted`` variables are made of later."""
    statements = scope.replay.statements
    made_of = {o.variable for call in makers_of(statements, set(wanted)) for o in call.operands}
    swaps = [c for c in statements if c.op is DataAccess.SWAP and c.written[0].variable in made_of]
    swaps = [c for c in swaps if c not in scope.early]
    if not swaps:
        return []
    moved = {c.written[0].variable for c in swaps}
    for output in scope.functional.outputs:
        shown = output.shown if isinstance(output, WrittenOutput) else None
        if shown is not None and variable_of(shown.fake) in moved:
            raise GradientsRefused(
                f"the program writes to {shown.source.name}, gives it other memory, and takes what has another history "
                "of it",
                where=None,
                remedy="write to a copy of it, or under torch.no_grad()",
            )
    return _run_early(scope, statements[: statements.index(swaps[-1]) + 1], moved)


def _run_early(scope: Scope, calls: Sequence[Call], moved: Collection[Variable]) -> list[str]:
    """Those of ``calls`` by which ``moved`` tensors, and views of them, become what they are."""
    wanted = set(moved)
    for call in calls:
        if wanted & {o.variable for o in call.operands}:
            wanted |= {o.variable for o in call.outputs}
    early = take_early(scope, calls, wanted, written=True)
    storages = fetch_storages(scope) if early else []
    return [*_keep_former(scope, moved), *storages, *emit_calls(scope, early)]


def place_to_begin(scope: Scope, leaf: Variable, turned: set[Variable], calls: Sequence[Call]) -> int:
    """The position in ``calls`` where ``leaf`` begins: before the first view of it, or of a view, that requires grad.

    So does a view of what did not when it was taken: autograd has made its history anew, since its version is another.
    It is taken first if what is ``turned`` is turned after it, which makes the version another once more.
    """
    behind = _behind_turns(calls, turned)
    fakes = fakes_of(scope.capture, scope.replay)
    for i, call in enumerate(calls):
        if call.effect is not Effect.VIEW:
            continue
        made = [o.variable for o in call.outputs]
        viewed = any(o.variable is leaf for o in call.operands)
        if viewed and not all(variable in scope.capture.plain_views for variable in made):
            return i
        own = [fakes[v] for v in made if v in fakes and scope.counters.together(v, leaf)]
        if i >= behind and any(fake.requires_grad and not is_bare_view(fake) for fake in own):
            return i
    return len(calls)


def turned_leaves(scope: Scope) -> dict[Variable, set[Variable]]:
    """The leaves that have got another geometry before they began to require grad, and what was turned for that.

    That is the tensor or a view of it.  PyTorch refuses to change the geometry of a leaf that requires grad, and of its
    views.
    """
    turning = (Effect.GEOMETRY, Effect.STORAGE)
    changes = (c for c in scope.replay.statements if c.effect in turning and c.op is not DataAccess.SWAP)
    changes = (c for c in changes if c.modes.grad or c.op is aten.resize_.default)
    written = {o.variable for call in changes for o in call.written}
    leaves = [*(k.variable for k in scope.inputs if begins(k)), *new_leaves(scope.capture, scope.replay)]
    found = {leaf: {v for v in written if scope.counters.root(v) in _family(scope, leaf)} for leaf in leaves}
    return {leaf: turned for leaf, turned in found.items() if turned}


def _family(scope: Scope, leaf: Variable) -> set[Variable]:
    """``leaf``, and the tensors of the caller that are views of it."""
    known = next((known for known in scope.inputs if known.variable is leaf), None)
    return {leaf, *(k.variable for k in scope.inputs if known is not None and k.fake._base is known.fake)}


def is_source(scope: Scope, leaf: Variable) -> bool:
    """Whether the call is a function of ``leaf``."""
    sources = [t.source for level in scope.levels for t in level.targets]
    return any(leaf is (source.variable if isinstance(source, Input) else source) for source in sources)


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
    targets = [target for level in scope.levels for target in level.targets]
    for known in dict.fromkeys(t.source for t in targets if t.former and isinstance(t.source, Input)):
        scope.left[known] = scope.unique(f"{scope.inputs[known]}_before", "before")
    edge = scope.speller.name("same_edge", same_edge) if scope.left else ""
    return [f"{name} = {edge}({scope.inputs[known]})" for known, name in scope.left.items()]


def _keep_former(scope: Scope, moved: Collection[Variable]) -> list[str]:
    """Statements that name the memory of ``moved`` tensors as they were: what the backward needs, or is written."""
    kept = () if scope.joint is None else scope.joint.residuals.values()
    needed = [source.root.base for source in kept if isinstance(source, RootInput)]
    written = (output.root for output in scope.functional.outputs if isinstance(output, WrittenOutput))
    needed += [member for root in written for member in root.members]
    lines = []
    for known in [known for known in dict.fromkeys(needed) if known is not None and known.variable in moved]:
        scope.former[known] = scope.unique(f"{scope.inputs[known]}_former", "former")
        lines.append(f"{scope.former[known]} = {scope.inputs[known]}.detach()")
    return lines
