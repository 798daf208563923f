"""By which tensors of the caller autograd sees a write to their memory: what the graph returns is shown to it by these.

    a.mul_(w)            of a, a view of x      the write is a part of the history of x, and of all views of it
    a.detach().mul_(w)                          nobody's

Turns between writes, views whose bases were detached, and memory without elements each have a way of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.autograd.graph import GradientEdge

from purefx._torch import storage_key
from purefx.analysis.gradients import is_changed
from purefx.analysis.turns import Turns, infer_families, infer_turns, is_node, is_swap
from purefx.capture.captured import Input
from purefx.capture.edges import base_of, edge_behind, has_lost_history
from purefx.capture.recording import Call, Effect, Recording, Region, Variable, geometry_of
from purefx.capture.tensors import variable_of
from purefx.errors import GradientsRefused
from purefx.functional.regions import chain_between, disjoint, includes, once
from purefx.functional.roots import Root
from purefx.layout import has_internal_overlap


@dataclass(frozen=True, slots=True)
class Changes:
    """The variables that the program writes so that autograd sees it, or gives another geometry.

    With those that it writes are those that they are views of.
    """

    writing: frozenset[Variable]
    turned: frozenset[Variable]
    turns: dict[Variable, Turns]


def infer_changes(recording: Recording, inputs: Sequence[Input]) -> Changes:
    """What ``recording`` does to the histories of its variables."""
    turns = infer_turns(recording, inputs)
    turned = frozenset(v for v, changes in turns.items() if any(c.modes.grad for c in (*changes.early, *changes.last)))
    return Changes(_writing_variables(recording), turned, turns)


def _writing_variables(recording: Recording) -> frozenset[Variable]:
    """The variables whose writes autograd sees, and those that they are views of."""
    makers = {
        output.variable: call for call in recording if call.effect is Effect.VIEW for output in reversed(call.outputs)
    }
    found: set[Variable] = set()
    writes = [call for call in recording if call.effect is Effect.WRITE and call.seen]
    waiting = [o.variable for call in writes for o in call.written]
    while waiting:
        variable = waiting.pop()
        if variable not in found:
            found.add(variable)
            waiting += [o.variable for o in makers[variable].operands] if variable in makers else []
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Shown:
    """The tensor by which autograd is shown a write: ``source``, or its ``_base``; ``before`` is what it showed.

    Where the program has turned it later, the write lies ``behind`` so many nodes of its history.  ``early`` are the
    changes of its geometry before the write, after which it showed ``before``.
    """

    source: Input
    of_base: bool
    before: Region
    behind: int | None = None
    early: tuple[Call, ...] = ()

    @property
    def left(self) -> GradientEdge | None:
        """The history that the program has cut off, of which the write is a part."""
        return None if self.of_base else self.source.left

    @property
    def fake(self) -> torch.Tensor:
        """The tensor as it is after the run."""
        base = self.source.fake._base if self.of_base else self.source.fake
        assert base is not None  # a way by the base is found where there is one
        return base


def seen_by_autograd(root: Root, region: Region, changes: Changes) -> list[tuple[Region, Shown | None]]:
    """The writes that make up the write of ``region``, each with the tensor whose history it becomes a part of.

    Rule: the program may write to one tensor of a family and not to another (a piece of ``unbind``), so that it has to
    be one of ``writing``, as far as there are any; or the base.  Where none of them holds ``region``, in its own dtype,
    each is written as a whole.  Families that share memory and no base have histories of their own; that of one that is
    only ``turned`` has no write in it.
    """
    writing = changes.writing
    families: dict[int, list[Input]] = {}
    changed = [m for m in root.members if is_changed(m)]
    overlapping = [m for m in changed if region.geometry.is_empty or not disjoint(m.before, region)]
    for member in overlapping or [m for m in changed if m.variable in writing and m.fake._base is not None]:
        families.setdefault(id(base_of(member.fake)), []).append(member)
    written = [
        family
        for family in families.values()
        if any(m.variable in writing or _is_written_behind(m, changes) for m in family)
        or not any(m.variable in changes.turned for m in family)
    ]
    seen = [write for family in written for write in _seen_by_family(family, region, changes)]
    held = any(includes(part, region) for part, _ in seen)
    return [*seen] if held else [(region, None), *seen]


def _seen_by_family(family: list[Input], region: Region, changes: Changes) -> list[tuple[Region, Shown | None]]:
    """The writes by which the history of ``family``, tensors of one base, takes up the write of ``region``.

    Rule: what lies behind later turns is the whole tensor, since gradients enter there by its edge; so is what comes
    after turns that autograd has not seen, since the elements that are left are others in the history before them.
    """
    members = [member for member in family if member.variable in changes.writing] or family
    left = [Shown(member, of_base=False, before=member.before) for member in members if member.left is not None]
    if left:
        return [(way.before, way) for way in left]
    ways = [_own_way(m, changes) for m in members if not has_lost_history(m.fake)]
    bases = [m for m in members if m.fake._base is not None and m.fake._base.requires_grad]
    ways += [_base_way(m, changes) for m in bases]
    ways = [way for way in ways if way.of_base or not _is_of_turned(way.source, changes)]
    turned = [variable for variable, turns in changes.turns.items() if turns.late and turns.unseen]
    ways = [way for way in ways if way.of_base or way.source.variable not in turned]
    for way in ways:
        if way.before.dtype == region.dtype and _leads(way, region):
            return [(way.before if _is_whole(way) else region, way)]
    return [_between_turns(member, changes) or _whole(member, ways) for member in members]


def _own_way(member: Input, changes: Changes) -> Shown:
    """The way by ``member`` itself: as it was before the call, or between two of its turns."""
    _, shown = _between_turns(member, changes) or (None, None)
    return shown if shown is not None and shown.early else Shown(member, of_base=False, before=member.before)


def _is_whole(way: Shown) -> bool:
    """Whether all that ``way`` shows is written by it."""
    return way.behind is not None or not all(map(is_node, way.early))


def _is_of_turned(member: Input, changes: Changes) -> bool:
    """Whether ``member`` is a view whose base is turned unseen: no history of the view is that of what is written."""
    base = None if member.fake._base is None else variable_of(member.fake._base)
    turns = None if base is None else changes.turns.get(base)
    return turns is not None and turns.is_alone and any(not is_node(call) for call in (*turns.early, *turns.last))


def _base_way(member: Input, changes: Changes) -> Shown:
    """The way by the base of ``member``: as it is, or as it was between two of its turns."""
    base = None if member.fake._base is None else variable_of(member.fake._base)
    turns = None if base is None else changes.turns.get(base)
    if turns is None or not turns.is_alone:
        return Shown(member, of_base=True, before=_base_region(member))
    calls = (*turns.early, *turns.last)
    before = turns.early[-1].written[0].region if turns.early else calls[0].written[0].variable.first
    behind = turns.nodes if turns.last else None
    return Shown(member, of_base=True, before=before, behind=behind, early=turns.early)


def _is_written_behind(member: Input, changes: Changes) -> bool:
    """Whether a write (of a custom function, seen as one) lies behind turns of ``member`` in its history."""
    turns = changes.turns.get(member.variable) if member.fake._base is None else None
    if turns is None or not turns.late:
        return turns is not None and bool(turns.early)
    return member.edge is None or edge_behind(member.fake, turns.nodes).node is not member.edge.node


def _between_turns(member: Input, changes: Changes) -> tuple[Region, Shown | None] | None:
    """All that ``member``, which the program has turned, showed when it was last written; unseen if it never was."""
    turns = changes.turns.get(member.variable) if member.fake._base is None else None
    if turns is None or not turns.is_alone:
        return None
    region = turns.early[-1].written[0].region if turns.early else member.before
    if once(region.geometry) != region.geometry or has_internal_overlap(region.geometry):
        return None
    seen = bool(turns.early) or _is_written_behind(member, changes)
    behind = turns.nodes if turns.last else None
    return region, None if not seen else Shown(member, of_base=False, before=region, behind=behind, early=turns.early)


def _whole(member: Input, ways: list[Shown]) -> tuple[Region, Shown]:
    """All that ``member`` or its base shows, by that."""
    for way in ways:
        region = way.before.at(once(way.before.geometry)).physical
        if way.source is member and _leads(way, region):
            return region, way
    raise GradientsRefused(
        f"the program writes to {member.name} and changes its geometry, and both are part of its history",
        where=None,
        remedy="write to a copy of it, or under torch.no_grad()",
    )


def _base_region(member: Input) -> Region:
    base = member.fake._base
    assert base is not None  # asked of a view
    return Region(member.before.storage, geometry_of(base), base.dtype, base.is_conj(), base.is_neg())


def _leads(way: Shown, region: Region) -> bool:
    """Whether ``region`` is a view of what ``way`` shows, before the call and after, without repeated elements."""
    after = way.before if way.of_base or way.early or _is_swapped(way.source) else way.source.after
    repeats = once(way.before.geometry) != way.before.geometry or has_internal_overlap(region.geometry)
    return not repeats and _has(way.before, region) and _has(after, region)


def seen_without_elements(
    recording: Recording, roots: Iterable[Root], ways: Iterable[Shown], changes: Changes
) -> Iterable[tuple[Root, Region, Shown]]:
    """The writes to no element at all that autograd sees, of tensors that none of ``ways`` shows a write of.

    Rule: that of a custom function is seen as one of the function, not as the operator that it is.
    """
    shown = {id(base_of(way.fake)) for way in ways}
    calls = [call for call in recording if call.effect is Effect.WRITE]
    writes = [(o.region, call.seen) for call in calls for o in call.written if o.region.geometry.is_empty]
    for root in roots if writes else ():
        for member in root.members:
            if id(base_of(member.fake)) not in shown and is_changed(member):
                family = [m for m in root.members if base_of(m.fake) is base_of(member.fake)]
                turned = any(m.variable in changes.turned for m in family)
                empty = [region for region, is_seen in writes if is_seen or not turned]
                region = next((r for r in empty if r.storage is root.region.storage), None)
                seen = [] if region is None else _seen_by_family(family, region, changes)
                yield from ((root, part, way) for part, way in seen if way is not None)
                shown.update(id(base_of(way.fake)) for _, way in seen if way is not None)


def check_seen(recording: Recording, inputs: Sequence[Input], ways: Iterable[Shown]) -> None:
    """Raise GradientsRefused where no way of ``ways`` gives an input the history that the program has given it."""
    _check_inside(recording, inputs)
    shown = {id(base_of(way.fake)) for way in ways}
    for known in inputs:
        if not is_changed(known):
            continue
        base = None if known.fake._base is None else variable_of(known.fake._base)
        changes = [c for c in recording if any(o.variable in (known.variable, base) for o in c.written)]
        if base is not None and any(o.variable is known.variable for c in changes if is_swap(c) for o in c.written):
            raise GradientsRefused(
                f"the program turns {known.name}, a view, by x.data = y, and writes to what it shows",
                where=None,
                remedy="turn a view of it, or write under torch.no_grad()",
            )
        turned = any(call.effect is not Effect.WRITE and call.modes.grad for call in changes)
        written = [o for c in changes if c.effect is Effect.WRITE and c.seen for o in c.written]
        moved = known.before.storage is not known.after.storage and any(
            o.variable is known.variable and o.region.storage is known.after.storage for o in written
        )
        if moved or not (id(base_of(known.fake)) in shown or turned):
            raise GradientsRefused(
                f"the program writes to {known.name} after it has let it show other memory (set_, x.data = y)",
                where=None,
                remedy="write to a copy of it, or under torch.no_grad()",
            )


def _check_inside(recording: Recording, inputs: Sequence[Input]) -> None:
    """Raise GradientsRefused where a view is written of elements that the base of its history does not show.

    Rule: the gradient of that has no place in the gradient of the base, and eager's backward raises.
    """
    changed = [known for known in inputs if is_changed(known)]
    calls = [call for call in recording if call.effect is Effect.WRITE and call.seen]
    if not changed or not calls:
        return
    family_of = infer_families(recording, inputs)
    for known in changed:
        shown = known.before if known.fake._base is None else _base_region(known)
        if storage_key(known.fake) != storage_key(base_of(known.fake)):
            continue
        written = [o.region for call in calls for o in call.written if family_of(o.variable) == id(base_of(known.fake))]
        written = [r for r in written if r.storage is shown.storage and not r.geometry.is_empty]
        if any(disjoint(region, shown) for region in written):
            raise GradientsRefused(
                f"the program writes to elements that {known.name} does not show, by a view of it",
                where=None,
                remedy="take the view of a tensor that shows them, or write under torch.no_grad()",
            )


def _is_swapped(member: Input) -> bool:
    """Whether ``member`` shows other memory now, of the same sizes (``x.data = y``): its history is as it was."""
    before, after = member.before, member.after
    return before.storage is not after.storage and before.geometry.sizes == after.geometry.sizes


def _has(outer: Region, region: Region) -> bool:
    """Whether ``region`` is a view of ``outer``."""
    same = outer.storage is region.storage and includes(outer, region)
    return same and chain_between(outer.physical, region) is not None
