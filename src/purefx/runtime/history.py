"""The history that a compiled call gives to what it returns and writes, and changes of who requires grad.

arg1.requires_grad_()
(new_arg0, out) = record(derivatives, (new_arg0, out), Saved((arg0, out)), arg0, arg1)
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

import torch
from torch.autograd.function import BackwardCFunction

from purefx.analysis.gradients import (
    begins,
    ends,
    is_changed,
    is_detached,
    is_outgrown,
    new_leaves,
    results_of,
)
from purefx.analysis.replay import Replayed
from purefx.autodiff.joint import Joint
from purefx.autodiff.levels import Level
from purefx.autodiff.slots import leaf_aliases
from purefx.autodiff.targets import Alias, Slot, Target
from purefx.capture.captured import Input
from purefx.capture.edges import edges_left, has_lost_history, is_bare_view
from purefx.capture.recording import Call, DataAccess, Effect, Variable
from purefx.errors import GradientsRefused
from purefx.functional.signature import (
    RootInput,
    WrittenOutput,
)
from purefx.operators import aten
from purefx.runtime.detaching import is_detached_late
from purefx.runtime.differentiable import Saved, record, record_as
from purefx.runtime.epilogue import remaining
from purefx.runtime.hooks import emit_hooks_on
from purefx.runtime.moved_leaves import (
    emit_early_swaps,
    emit_early_turns,
    emit_moved_leaves,
    emit_turned_leaves,
    is_source,
    keep_edge,
    place_to_begin,
    turned_leaves,
)
from purefx.runtime.saved import holder_of, spell_saved
from purefx.runtime.scope import Scope, makers_of, name_of_slot, take_early, with_grad
from purefx.runtime.support import set_versions
from purefx.runtime.versions import emit_at_versions, emit_plain_views, emit_views
from purefx.runtime.write_back import emit_seen


@with_grad
def emit_history(scope: Scope) -> list[str]:
    """Statements after the graph has run: the outputs that autograd sees become functions of the targets."""
    before, after = _changes_of_leaves(scope)
    lines = [*_hooks(scope), *before, *emit_moved_leaves(scope), *emit_turned_leaves(scope, _begin(scope))]
    lines += [*_leaf_results(scope), *_aliases(scope), *emit_early_turns(scope)]
    if scope.joint is not None:
        lines += [
            x for i, level in enumerate(scope.joint.levels) if not level.depth for x in _record(scope, scope.joint, i)
        ]
    return [*lines, *after]


@with_grad
def emit_later_levels(scope: Scope) -> list[str]:
    """Statements after memory is written: outputs that depend on outputs become functions of those."""
    if scope.joint is None:
        return []
    lines = []
    for depth, together in groupby(enumerate(scope.joint.levels), key=lambda pair: pair[1].depth):
        nodes = list(together)
        lines += [line for i, _ in nodes for line in _record(scope, scope.joint, i)] if depth else []
        slots = [slot for _, level in nodes for slot in level.slots]
        lines += [emit_seen(scope, slot.output) for slot in slots if isinstance(slot.output, WrittenOutput)]
    return lines


def begin_turned(scope: Scope) -> list[tuple[int, list[str]]]:
    """The statements that make leaves of tensors of the caller, and of bases, once those have got another geometry.

    Each with the place among the `remaining` calls where it belongs.
    """
    turned, calls = turned_leaves(scope), remaining(scope)
    begun = {leaf: lines for leaf, lines in _begin(scope).items() if not is_source(scope, leaf)}
    return [(place_to_begin(scope, leaf, turned[leaf], calls), lines) for leaf, lines in begun.items()]


def _begin(scope: Scope) -> dict[Variable, list[str]]:
    """The statements that make leaves of what has got another geometry before it begins to require grad."""
    hooks = {known.variable: emit_hooks_on(scope, known) for known in scope.inputs}
    return {v: [f"{scope.variables[v]}.requires_grad_()", *hooks.get(v, ())] for v in turned_leaves(scope)}


def _changes_of_leaves(scope: Scope) -> tuple[list[str], list[str]]:
    """``x.detach_()`` and ``x.requires_grad_()`` on tensors of the caller, before and after the call is recorded."""
    before: list[str] = []
    after: list[str] = []
    turned = turned_leaves(scope)
    shown = {scope.counters.root(variable) for variable in leaf_aliases(scope.capture, scope.replay)}
    for known, name in scope.inputs.items():
        begun = begins(known)
        ended = is_outgrown(known) or (ends(known) and known.variable in shown)
        if known.edge is not None and (begun or ended or (is_detached(known) and known.variable in shown)):
            before += [keep_edge(scope, known), f"{name}.{'requires_grad_(False)' if ended else 'detach_()'}"]
        elif (is_detached(known) and not is_detached_late(scope, known)) or _loses_history(scope, known):
            after.append(f"{name}.detach_()")
        if begun and known.variable not in turned:
            before += [*emit_plain_views(scope, known), f"{name}.requires_grad_()"]
        elif ends(known) and not ended and not is_detached_late(scope, known):
            after.append(f"{name}.requires_grad_(False)")
    return before, after


def emit_looks(scope: Scope) -> list[str]:
    """Statements that ask for the histories of views which had none when they were taken, and have one since a write.

    Rule: autograd makes such a history when it is asked for, and until then takes the view for a leaf, which nobody may
    write or turn.  ``v = x[1:]; v.copy_(w)`` has asked.  Views that are made later are taken of what has a history.
    """
    shown = [r for r, how in results_of(scope.capture, scope.replay) if isinstance(how, Replayed)]
    alive = [r for r in shown if r.fake.requires_grad and not has_lost_history(r.fake)]
    made = [r.variable for r in alive if r.variable in scope.capture.plain_views]
    given = [k for k in scope.inputs if k.edge is None and k.fake.requires_grad and k.fake._base is not None]
    given = [k for k in given if not is_bare_view(k.fake) and not has_lost_history(k.fake)]
    turned = {o.variable for c in scope.replay.statements if _asks_for_history(c) for o in c.written}
    wanted = [v for v in dict.fromkeys([*(k.variable for k in given), *made]) if v in scope.variables]
    begun = {known.variable for known in scope.inputs if known.edge is None and known.fake.requires_grad}
    early = {o.variable for call in scope.early if scope.counters.is_older(call) for o in call.outputs}
    older = [r for r in alive if r.variable in early - scope.capture.plain_views]
    older = [r for r in older if scope.counters.root(r.variable) in begun]
    looked = [v for v in wanted if v in scope.capture.known_views or v in turned]
    return [f"{scope.variables[v]}.grad_fn" for v in dict.fromkeys([*looked, *(r.variable for r in older)])]


def _asks_for_history(call: Call) -> bool:
    """Whether ``call`` turns a tensor so that autograd makes its history first: ``x.data = y`` leaves that alone."""
    return call.effect is Effect.GEOMETRY and call.op is not DataAccess.SWAP


def _loses_history(scope: Scope, known: Input) -> bool:
    """Whether the program detaches ``known``, and gives it another history then."""
    if known.edge is None or known.was_leaf or known.base_edge is not None:
        return False
    lost = edges_left(known.fake)
    return any(edge.node is known.edge.node for edge in (lost[:-1] if is_detached(known) else lost))


def _leaf_results(scope: Scope) -> list[str]:
    turned = turned_leaves(scope)
    leaves = [leaf for leaf in new_leaves(scope.capture, scope.replay) if leaf not in turned]
    return [f"{scope.variables[leaf]}.requires_grad_()" for leaf in leaves]


def _hooks(scope: Scope) -> list[str]:
    """The hooks that the program registers on tensors of the caller."""
    turned = turned_leaves(scope)
    return [line for known in scope.inputs if known.variable not in turned for line in emit_hooks_on(scope, known)]


def _early(scope: Scope, calls: list[Call], unseen: Collection[Call]) -> list[str]:
    """Statements that run ``calls`` before the call is recorded, which is a function of what they turn as it was."""
    turned = {o.variable for call in calls for o in call.written}
    written = [o.root for o in scope.functional.outputs if isinstance(o, WrittenOutput)]
    lines = []
    for known in scope.inputs:
        _check_turned_parts(scope, known, calls)
        if known.variable not in turned:
            continue
        if known.before != known.after and any(known in root.members for root in written):
            raise GradientsRefused(
                f"the program writes to {known.name}, changes its geometry, and takes what has another history of it",
                where=None,
                remedy="write to a copy of it, or under torch.no_grad()",
            )
        if known.edge is not None and known not in scope.earlier:
            lines.append(keep_edge(scope, known))
    return [*lines, *emit_at_versions(scope, calls, unseen)]


def _check_turned_parts(scope: Scope, known: Input, calls: list[Call]) -> None:
    """Refuse a part of ``known`` that early ``calls`` turn, and that has the history of a write: it is not there yet.

    a.mul_(w); part = a[1:]; part.t_(); return View.apply(part), part
    """
    if not is_changed(known):
        return
    needed = _needed_besides(scope, calls)
    for call in calls:
        parts = {o.variable for o in call.written if scope.counters.root(o.variable) is known.variable}
        if parts - {known.variable} and (known.base_edge is not None or parts & needed):
            raise GradientsRefused(
                f"the program writes to {known.name}, turns a view of it, and takes what has another history of that",
                where=call.where,
                remedy="take the view once more, or write to a copy",
            )


def _needed_besides(scope: Scope, calls: list[Call]) -> set[Variable]:
    """The variables that are results, or that other statements than ``calls`` take."""
    others = {o.variable for call in scope.replay.statements if call not in calls for o in call.operands}
    return others | {result.variable for result, _ in results_of(scope.capture, scope.replay)}


def _aliases(scope: Scope) -> list[str]:
    """The statements that make results with a history of their own."""
    levels = scope.levels
    slots = [slot for level in levels for slot in level.slots]
    aliases = {slot.output.variable for slot in slots if isinstance(slot.output, Alias)}
    leaves = leaf_aliases(scope.capture, scope.replay)
    plain = {*leaves, *_views_before_leaves(scope, leaves)}
    made = aliases | plain
    lines = emit_early_swaps(scope, made)
    calls = take_early(scope, scope.replay.statements, set(made))
    lines += _early(scope, calls, _on_the_way(scope, calls, aliases, plain))
    _make_again(scope, calls, made)
    return [*lines, *(f"{scope.variables[leaf]}.requires_grad_()" for leaf in leaves)]


def _on_the_way(scope: Scope, calls: list[Call], aliases: set[Variable], plain: set[Variable]) -> set[Call]:
    """Those of ``calls`` that take views on the way to ``aliases``: autograd is not to see them.

    b.mul_(w); View.apply(a[1])     a is a view of b, and makes its history anew for a[1]: before b has the new one

    What is turned, and what is on the way to ``plain`` views, keeps its modes: they tell autograd what may be written.
    """
    seen = plain | {o.variable for call in calls if call.effect is not Effect.VIEW for o in call.written}
    makers_of(scope.replay.statements, seen)
    views = [call for call in calls if call.effect is Effect.VIEW]
    return {call for call in views if not (aliases | seen) & {o.variable for o in call.outputs}}


def _make_again(scope: Scope, calls: list[Call], aliases: set[Variable]) -> None:
    """Let those of the views ``calls`` that lie on the way to ``aliases``, and that others need, be made once more.

    Rule: they have the histories of views of what gets its history only later.  A detached alias has none, and is the
    base of its views.
    """
    detaching = (aten.detach.default, DataAccess.READ)
    turned = {o.variable for call in calls if call.effect is not Effect.VIEW for o in call.outputs}
    others = _needed_besides(scope, calls)
    for call in calls:
        made = {o.variable for o in call.outputs}
        if made & others and not made & (aliases | turned) and call.op not in detaching:
            scope.early.discard(call)
            for variable in made:
                del scope.variables[variable]


def _views_before_leaves(scope: Scope, leaves: list[Variable]) -> set[Variable]:
    """The results that were taken of ``leaves``, or of views of them, before those required grad."""
    shown = set(leaves)
    for call in scope.replay.statements:
        if call.effect is Effect.VIEW and shown & {o.variable for o in call.operands}:
            shown |= {o.variable for o in call.outputs}
    results = {result.variable for result, _ in results_of(scope.capture, scope.replay)}
    return shown & results & scope.capture.plain_views


def _record(scope: Scope, joint: Joint, i: int) -> list[str]:
    speller, level = scope.speller, joint.levels[i]
    holders = _holders(scope, joint, level)
    kept = _keep_views(scope, level, holders)
    made = emit_views(scope, [t.source for t in level.targets if t.is_made and isinstance(t.source, Variable)])
    outputs = "".join(f"{name_of_slot(scope, slot)}, " for slot in level.slots)
    saved = f"{speller.name('Saved', Saved)}({spell_saved(scope, joint, level)})"
    inputs = [_input(scope, target) for target in level.targets] or [speller.name("nothing", _NOTHING)]
    call = f"{_recorder(scope, level)}(derivatives[{i}], ({outputs}), {saved}, {', '.join(inputs)})"
    return [*kept, *made, *_at_last_versions(scope, holders, f"({outputs}) = {call}", last=bool(i))]


def _recorder(scope: Scope, level: Level) -> str:
    """What gives the outputs of ``level`` their history.

    Rule: PyTorch refuses a write to a view that a function of the user's has made, and names that.
    """
    if len(level.slots) == 1 and isinstance(level.slots[0].output, Alias):
        fake = level.slots[0].fake
        node = None if has_lost_history(fake) else fake.grad_fn
        if isinstance(node, BackwardCFunction) and fake.output_nr == 0:
            name = node.name().removesuffix("Backward")
            return scope.speller.name(f"record_{name}", record_as(name))
    return scope.speller.name("record", record)


def _holders(scope: Scope, joint: Joint, level: Level) -> list[Input]:
    """The tensors of the caller that ``level`` saves or shows, and whose version is another than before or at the end.

    They are what is saved, what a view shows that is not older than the last write, and views as they are in the end.
    """
    sources = [joint.residuals[name] for name in joint.kept(level)]
    saved = [holder_of(source.root) for source in sources if isinstance(source, RootInput)]
    made = {scope.counters.root(t.source) for t in level.targets if t.is_made and isinstance(t.source, Variable)}
    viewed = [known for known in scope.inputs if any(scope.counters.together(known.variable, v) for v in made)]
    anew = [t.source for t in level.targets if t.is_view and not t.is_given and isinstance(t.source, Input)]
    held = dict.fromkeys([*saved, *_shown_by_aliases(scope, level), *viewed, *anew])
    moved = {member for root in scope.functional.written for member in root.members}
    return [known for known in held if known.writes or known in moved]


def _keep_views(scope: Scope, level: Level, holders: list[Input]) -> list[str]:
    """Statements that keep where gradients of views leave, which is elsewhere once they have another version."""
    lines: list[str] = []
    for known in [t.source for t in level.targets if t.is_given and t.is_view and isinstance(t.source, Input)]:
        moved = any(scope.counters.together(known.variable, holder.variable) for holder in holders)
        if moved and known not in scope.earlier:
            lines.append(keep_edge(scope, known))
    return lines


def _at_last_versions(scope: Scope, holders: list[Input], statement: str, *, last: bool) -> list[str]:
    """``statement``, while ``holders`` have the version that they have in the end; and after it, with ``last``."""
    if not holders:
        return [statement]
    name = scope.speller.name("set_versions", set_versions)
    after = ", ".join(f"({scope.inputs[known]}, {scope.version(known)} + {known.writes})" for known in holders)
    before = ", ".join(f"({scope.inputs[known]}, {scope.version(known)})" for known in holders)
    return [f"{name}({after})", statement, *([] if last else [f"{name}({before})"])]


def _shown_by_aliases(scope: Scope, level: Level) -> list[Input]:
    """The tensors of the caller that results with a history of their own show, as they are after the last write."""
    aliases = {slot.output.variable for slot in level.slots if isinstance(slot.output, Alias)}
    makers = [call for call in scope.replay.statements if aliases & {o.variable for o in call.outputs}]
    shown = [o.variable for call in makers if not scope.counters.is_older(call) for o in call.outputs]
    return [known for known in scope.inputs if any(scope.counters.together(known.variable, v) for v in shown)]


_NOTHING = torch.empty(0, requires_grad=True)
"""What a call is a function of whose outputs require grad although no tensor of the caller does."""


def _input(scope: Scope, target: Target) -> str:
    if isinstance(target.source, Slot):
        return name_of_slot(scope, target.source)
    if not isinstance(target.source, Input):
        return scope.variables[target.source]
    name = scope.inputs[target.source]
    if target.of_base:
        return f"{name}._base"
    if target.former:
        return scope.left[target.source]
    return scope.earlier.get(target.source, name) if target.is_given else name
