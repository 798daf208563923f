"""Version counters end where eager leaves them: it counts each write of the program, the wrapper writes once.

arg0_version = arg0._version
...
set_versions((out, 0))                 before autograd notes what it saves
set_versions((arg0, arg0_version + 2)) before views are taken, whose histories autograd makes anew at another version
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby

from purefx._torch import is_from_function
from purefx.analysis.gradients import begins, ends, is_detached, new_leaves, results_of
from purefx.analysis.replay import Replayed
from purefx.autodiff.slots import fakes_of
from purefx.autodiff.targets import Alias
from purefx.capture.captured import Input, TensorResult
from purefx.capture.edges import has_lost_history, is_begun, leads_nowhere, leads_to, leaf_behind
from purefx.capture.recording import Call, DataAccess, Effect, Variable
from purefx.functional.roots import written_regions
from purefx.functional.signature import BaseOutput, ResultOutput, WrittenOutput
from purefx.runtime.epilogue import emit_calls
from purefx.runtime.scope import Scope, makers_of, take_early
from purefx.runtime.support import set_versions


def emit_remembering(scope: Scope) -> list[str]:
    """Statements that note the counters which other statements set; to be emitted after those."""
    return [f"{name}_version = {name}._version" for known, name in scope.inputs.items() if known in scope.remembered]


def emit_versions_of_outputs(scope: Scope) -> list[str]:
    """The statement that sets the counters of what the graph returns before autograd saves any of it."""
    return _setting(scope, _pairs_of_outputs(scope)) if _are_set_first(scope) else []


def _are_set_first(scope: Scope) -> bool:
    """Whether the counters of outputs are set at once: autograd saves some, or some become leaves, of which views are.

    Rule: a view that was taken before its base is a leaf has no history, and gets one if the counter is another then.
    """
    return scope.joint is not None or bool(new_leaves(scope.capture, scope.replay))


def _pairs_of_outputs(scope: Scope) -> list[str]:
    return [f"({name}, {version})" for _, name, version in _versions_of_outputs(scope)]


def emit_first_versions(scope: Scope) -> list[str]:
    """The statement that takes back what the graph has counted by writing in place: gradients leave by views.

    Rule: autograd makes the history of a view anew, or refuses to, once its memory was written.
    """
    levels = () if scope.joint is None else scope.joint.levels
    views = [t.source.variable for level in levels for t in level.targets if t.is_view and isinstance(t.source, Input)]
    return _setting(scope, [f"({name}, {scope.version(k)})" for k, name in _written_by_graph(scope, views)])


def emit_first_views(scope: Scope) -> list[str]:
    """The views that were taken before what they show had a history, or while it had one."""
    found = {result: _taken_first(scope, result) for result, _ in results_of(scope.capture, scope.replay)}
    lost = [r for r, v in found.items() if r.variable is v and is_from_function(r.fake) and has_lost_history(r.fake)]
    scope.from_functions.update(r.variable for r in lost)
    return _emit_early(scope, {variable for variable in found.values() if variable is not None})


def emit_plain_views(scope: Scope, known: Input) -> list[str]:
    """The views that were taken of ``known`` when it was detached, and before it began to require grad again."""
    results = (r.variable for r, _ in results_of(scope.capture, scope.replay))
    shown = [v for v in results if v is not known.variable and scope.counters.root(v) is known.variable]
    plain = (scope.counters.first_part(v, scope.capture.plain_views) for v in shown)
    return _emit_early(scope, {variable for variable in plain if variable is not None})


def _taken_first(scope: Scope, result: TensorResult) -> Variable | None:
    """The view, ``result`` itself or one that it was taken of, that has to be taken first."""
    shown = scope.counters.root(result.variable)
    plain = scope.counters.first_part(result.variable, scope.capture.plain_views)
    known = next((known for known in scope.inputs if known.variable is shown), None)
    if known is None:
        makers = (c for c in scope.replay.statements if any(o.variable is result.variable for o in c.outputs))
        written = any(o.variable is result.variable for call in scope.capture.recording for o in call.written)
        begun = shown in new_leaves(scope.capture, scope.replay)
        return plain if begun or (not written and any(map(scope.counters.is_older, makers))) else None
    if plain is not None:
        return plain if begins(known) and known.edge is None else None
    if not result.fake.requires_grad:  # it is detached, and what it was taken of may have a history
        return None
    if known.left is not None and leads_to(result.fake, {known.left.node}):
        return None
    if is_from_function(result.fake) and has_lost_history(result.fake) and _has_detached_base(scope, known):
        return result.variable
    again = begins(known) and leaf_behind(result.fake) is known.fake
    if again or not (is_detached(known) or ends(known)):
        return None
    return _older_part(scope, result.variable) if leads_nowhere(result.fake) else result.variable


def _has_detached_base(scope: Scope, known: Input) -> bool:
    """Whether the program detaches the base of ``known``."""
    bases = [other for other in scope.inputs if other.fake is known.fake._base]
    return any(is_detached(base) or ends(base) for base in bases)


def _older_part(scope: Scope, variable: Variable) -> Variable:
    """The last of the views from the root to ``variable`` that is older than the last write; else ``variable``."""
    makers = {o.variable: call for call in scope.replay.statements for o in call.outputs}
    part = variable
    while part in makers and not scope.counters.is_older(makers[part]):
        part = makers[part].operands[0].variable
    return part if part in makers else variable


def emit_views(scope: Scope, views: Collection[Variable]) -> list[str]:
    """The ``views`` that outputs become functions of."""
    return _emit_early(scope, set(views))


def emit_older_views(scope: Scope) -> list[str]:
    """The views that are older than the last write of what they show; autograd is to see that they are.

    Those of outputs that get their history later are taken then.
    """
    late = _late_outputs(scope)
    return _emit_early(scope, {v for v in _older_views(scope) if not late & _made_of(scope, v)})


def emit_late_older_views(scope: Scope) -> list[str]:
    """The older views of outputs that depend on outputs."""
    late = _late_outputs(scope)
    return _emit_early(scope, {v for v in _older_views(scope) if late & _made_of(scope, v)})


def _late_outputs(scope: Scope) -> set[Variable]:
    """What the graph returns or results show, and what becomes a function of other outputs."""
    levels = () if scope.joint is None else scope.joint.levels
    outputs = [slot.output for level in levels if level.depth for slot in level.slots]
    return {output.variable for output in outputs if isinstance(output, ResultOutput | BaseOutput | Alias)}


def _older_views(scope: Scope) -> set[Variable]:
    fakes = [*(known.fake for known in scope.inputs), *fakes_of(scope.capture, scope.replay).values()]
    if scope.joint is None and not any(fake.requires_grad for fake in fakes):
        return set()
    older = filter(scope.counters.is_older, scope.replay.statements)
    return {o.variable for call in older for o in call.outputs}


def _emit_early(scope: Scope, needed: set[Variable]) -> list[str]:
    """The statements that make the ``needed`` variables, at an earlier version of what they show.

    Rule: those whose geometry changes, and views of them, are made when it does.
    """
    changes = (c for c in scope.replay.statements if c.effect in (Effect.GEOMETRY, Effect.STORAGE))
    changes = (c for c in changes if c not in scope.early)
    changed = {o.variable for call in changes for o in call.written}
    wanted: set[Variable] = set()
    for variable in needed:
        made_of = _made_of(scope, variable)
        if not changed & made_of:
            wanted |= made_of
    return emit_at_versions(scope, take_early(scope, scope.replay.statements, wanted))


def emit_at_versions(scope: Scope, calls: list[Call], unseen: Collection[Call] = ()) -> list[str]:
    """Statements that run ``calls``, views of what is older than the last write of it or not, when it is or is not.

    Those of them that are ``unseen`` by autograd run without gradients.
    """
    lines: list[str] = []
    for older, together in groupby(calls, key=scope.counters.is_older):
        lines += _emit_at_version(scope, list(together), unseen, older=older)
    return lines


def _emit_at_version(scope: Scope, calls: list[Call], unseen: Collection[Call], *, older: bool) -> list[str]:
    """Statements that make the views ``calls``, which are ``older`` than the last write or not."""
    shown = [o.variable for call in calls for o in call.operands]
    outputs = [
        (name, version)
        for variable, name, version in _versions_of_outputs(scope)
        if version and any(scope.counters.together(variable, v) for v in shown)
    ]
    known = (
        _written_by_graph(scope, shown)
        if older
        else [(k, n) for k, n in _counted_with(scope, shown) if _writes(scope, k)]
    )
    first = [f"({name}, {scope.version(k)})" for k, name in known]
    last = [
        f"({name}, {scope.version(k)} + {_writes(scope, k) - _turns(scope, calls, k.variable)})" for k, name in known
    ]
    before = _setting(scope, [*(first if older else last), *(f"({name}, {v - older})" for name, v in outputs)])
    after = _setting(scope, [*([] if older else first), *(f"({name}, {v})" for name, v in outputs if older)])
    return [*before, *emit_calls(scope, calls, unseen), *after]


def _made_of(scope: Scope, variable: Variable) -> set[Variable]:
    """The variables that the statements make ``variable`` of, itself among them."""
    found = {variable}
    makers_of(scope.replay.statements, found)
    return found


def _written_by_graph(scope: Scope, shown: list[Variable]) -> list[tuple[Input, str]]:
    """The tensors of the caller that the graph has written in place already, and that count with one of ``shown``."""
    written = {member for root in scope.functional.written for member in root.members}
    return [(known, name) for known, name in _counted_with(scope, shown) if known in written]


def _counted_with(scope: Scope, shown: list[Variable]) -> list[tuple[Input, str]]:
    return [
        (known, name)
        for known, name in _counted(scope)
        if any(scope.counters.together(known.variable, v) for v in shown)
    ]


def _writes(scope: Scope, known: Input) -> int:
    """How many writes ``known`` counts before statements move it."""
    return max(known.writes - _moved(scope, known.variable) - _written_later(scope, known), 0)


def _versions_of_outputs(scope: Scope) -> list[tuple[Variable, str, int]]:
    fakes = fakes_of(scope.capture, scope.replay)
    pairs = []
    for output, name in scope.outputs.items():
        if isinstance(output, ResultOutput | BaseOutput) and output.variable in fakes:
            fake = fakes[output.variable]
            if not fake.is_inference():
                count = max(fake._version - _moved(scope, output.variable), 0)
                pairs.append((output.variable, name, count))
    return pairs


def emit_versions(scope: Scope) -> list[str]:
    """The statement that sets the counters that are not set yet, as they are before statements move them."""
    touched = written_regions(scope.capture.recording)
    pairs = []
    for known, name in _counted(scope):
        count = _writes(scope, known)
        if count or known.before.storage in touched or known.variable in _moved_early(scope):
            pairs.append(f"({name}, {scope.version(known)} + {count})")
    pairs += _versions_of_early(scope)
    setting = _setting(scope, pairs if _are_set_first(scope) else [*pairs, *_pairs_of_outputs(scope)])
    looks = [f"{name}.grad_fn" for name in dict.fromkeys([*_set_back(scope), *_written_before_swaps(scope)])]
    return [*looks, *setting, *looks]


def _written_before_swaps(scope: Scope) -> list[str]:
    """The views that are written by way of their base, which is given another geometry later (``x.data = y``).

    Rule: the write has made their histories, for the base as it was; no version tells of the change.
    """
    shown = [o.shown for o in scope.functional.outputs if isinstance(o, WrittenOutput) and o.shown is not None]
    return [scope.inputs[way.source] for way in shown if way.of_base and way.behind is not None]


def _set_back(scope: Scope) -> list[str]:
    """The views whose versions are set back after the wrapper has written them.

    Rule: autograd takes the history of a view for that of the version at which it was made.  One made between two
    writes may be at the version that is set, and one made before that at one that comes again with a later write; so
    they are made anew at both.
    """
    outputs = [o for o in scope.functional.outputs if isinstance(o, WrittenOutput) and o.shown is not None]
    written = [o.shown.source for o in outputs if o.shown is not None]
    views = {o.shown.source for o in outputs if o.shown is not None and not o.shown.of_base}
    return [
        name
        for known, name in scope.inputs.items()
        if known in views and known.fake._base is not None and known.fake.requires_grad
        if sum(scope.counters.together(known.variable, other.variable) for other in written) > _writes(scope, known)
    ]


def emit_last_versions(scope: Scope) -> list[str]:
    """The statement that sets the counters which the statements may have left elsewhere.

    Rule: memory of another size is written after the statements, and a tensor that shows other memory now may have
    counted with others before.
    """
    resized = any(call.resized for call in scope.capture.recording)
    pairs = [
        f"({name}, {scope.version(known)} + {known.writes})"
        for known, name in _counted(scope)
        if _moved(scope, known.variable) > (0 if resized else known.writes) or _written_later(scope, known)
    ]
    pairs += [f"({name}, {version})" for name, version in _versions_of_replayed(scope).items()]
    return _setting(scope, pairs)


def _setting(scope: Scope, pairs: list[str]) -> list[str]:
    return [f"{scope.speller.name('set_versions', set_versions)}({', '.join(pairs)})"] if pairs else []


def _written_later(scope: Scope, known: Input) -> int:
    """How many writes came after the last change of the geometry of a view: its history is older than they are."""
    if not known.fake.requires_grad or known.fake._base is None or is_begun(known.fake):
        return 0
    statements = (c for c in scope.replay.statements if c not in scope.early)
    changes = [c for c in statements if c.effect is Effect.GEOMETRY and c.op is not DataAccess.SWAP]
    changes = [c for c in changes if any(o.variable is known.variable for o in c.written)]
    return scope.counters.writes_after(changes[-1], known.variable) if changes else 0


def _moved(scope: Scope, variable: Variable) -> int:
    """How many statements to come count as a write to ``variable``: any change of geometry but ``x.data = y``."""
    return _turns(scope, (call for call in scope.replay.statements if call not in scope.early), variable)


def _turns(scope: Scope, calls: Iterable[Call], variable: Variable) -> int:
    """How many of ``calls`` count as a write to ``variable`` when they run."""
    changes = (c for c in calls if c.effect in (Effect.GEOMETRY, Effect.STORAGE))
    changes = (c for c in changes if c.op is not DataAccess.SWAP and not c.is_idle)
    return sum(scope.counters.together(o.variable, variable) for c in changes for o in c.written)


def _counted(scope: Scope) -> list[tuple[Input, str]]:
    """The tensors of the caller whose version counter may move: those whose memory is written."""
    touched = written_regions(scope.capture.recording)
    early = _moved_early(scope)
    found = [known for known in scope.inputs if known.writes or known.before.storage in touched]
    found += [known for known in scope.inputs if known.variable in early and known not in found]
    return [(known, scope.inputs[known]) for known in found if not known.tensor.is_inference()]


def _moved_early(scope: Scope) -> set[Variable]:
    """What statements have given another geometry already."""
    return {o.variable for call in scope.early for o in call.written}


def _versions_of_early(scope: Scope) -> list[str]:
    """The counters of aliases that count by themselves, and that are made already: views are still taken of them."""
    pairs = {}
    for result, how in results_of(scope.capture, scope.replay):
        root = scope.counters.root(result.variable)
        if isinstance(how, Replayed) and root in scope.variables and _counts_apart(scope, result):
            pairs[scope.variables[root]] = max((result.version or 0) - _moved(scope, root), 0)
    return [f"({name}, {version})" for name, version in pairs.items()]


def _versions_of_replayed(scope: Scope) -> dict[str, int]:
    return {
        scope.result(how): result.version or 0
        for result, how in results_of(scope.capture, scope.replay)
        if isinstance(how, Replayed) and _counts_apart(scope, result)
    }


def _counts_apart(scope: Scope, result: TensorResult) -> bool:
    """Whether ``result`` has a counter that nothing has set yet, or that statements have moved."""
    made = {variable for variable, _, _ in _versions_of_outputs(scope)}
    resized = {storage for call in scope.capture.recording for storage, _, _ in call.resized}
    settled = scope.counters.root(result.variable) in made and not _moved(scope, result.variable)
    return result.version is not None and (not settled or result.region.storage in resized)
