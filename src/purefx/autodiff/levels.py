"""The nodes that a compiled call is in the graph of autograd: one, or several where outputs depend on outputs.

    def f(x, w):              level 0    h, a function of x and w
        h = x @ w             level 1    loss, a function of h
        return h, h.sum()

In eager a caller can differentiate the loss by h, or watch the gradient that arrives at h.  So what depends on an
output takes that output, and no gradient flows past it.

    def f(x):                  level 0    y, a function of x
        y = x * 2              the view   y[0], taken of y by the view's own operator
        v = y[0]               level 1    loss, a function of v
        return v, v.sum()

A view is no node of the call: it carries gradients on to its base by itself.  What depends on it takes it too, once its
base has its history.  So each place in the graph of autograd that somebody holds (an output, a view, a tensor of the
caller) is passed once, and what is at that place, a hook or a gradient that is kept, sees the sum, as in eager.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace

from torch.autograd.graph import Node

from purefx.autodiff.backward import Backward, Pattern, Place
from purefx.autodiff.targets import Slot, Target
from purefx.capture.captured import Capture, Hook, Input, TensorResult
from purefx.capture.edges import base_of, edge_of, is_begun, is_function
from purefx.errors import GradientsRefused
from purefx.functional.signature import FunctionalBackward, WrittenOutput


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One node: gradients enter at ``slots`` and leave at ``targets``, of which the slots of earlier levels are some.

    Nodes of one ``depth`` have nothing in common: differentiating one leaves what the others have saved.
    ``stops`` are the places of all slots of earlier levels, and of views that the call makes.  ``found`` and
    ``backwards`` are its backwards so far, as recorded and as graphs, by which slots have a tangent; ``raised`` has
    what eager's backward raises.  To the targets ``aside`` no edge leads.  The ``hooks`` run on what the call returns
    and makes, and not in its backward.
    """

    depth: int
    slots: tuple[Slot, ...]
    targets: tuple[Target, ...]
    stops: frozenset[Place]
    aside: frozenset[Target] = frozenset()
    hooks: tuple[Hook, ...] = ()
    found: dict[Pattern, Backward] = field(default_factory=dict)
    backwards: dict[Pattern, FunctionalBackward] = field(default_factory=dict)
    raised: dict[Pattern, Exception] = field(default_factory=dict)


def without_idle_targets(level: Level) -> Level:
    """``level`` without the targets aside at which no gradient has arrived: it is no function of them."""
    gradients = [backward.gradients for backward in level.found.values()]
    kept = [i for i, t in enumerate(level.targets) if t not in level.aside or any(g[i] is not None for g in gradients)]
    found = {p: replace(b, gradients=tuple(b.gradients[i] for i in kept)) for p, b in level.found.items()}
    return replace(level, targets=tuple(level.targets[i] for i in kept), found=found)


def infer_levels(
    capture: Capture,
    slots: Sequence[Slot],
    targets: Sequence[Target],
    made: Sequence[Target],
    *,
    single: bool = False,
) -> tuple[Level, ...]:
    """The levels of ``slots``, which gradients enter; they leave at ``targets``; ``single`` puts all into one.

    ``made`` are the views that the call makes.  All are one level too where a later one would need a tensor as it was
    before an earlier one wrote to it.
    """
    made = () if single else made
    passed = {slot: _passed(slot, capture.inputs) for slot in slots}
    depths = _depths(passed) if len(slots) > 1 and not single else dict.fromkeys(slots, 0)
    if depths is None:
        return infer_levels(capture, slots, targets, made, single=True)
    if single:
        _check_not_passed(capture, passed)
    views = {target.place for target in targets if target.is_view}
    shown = {target.place: target for target in made if target.place not in _held(passed)}
    hooks = () if single else _hooks_outside(capture, _held(passed).keys() | shown.keys())
    levels: list[Level] = []
    groups = _groups(depths, passed, (*targets, *made), single=single)
    for depth, mine in groups:
        earlier = [target for slot in slots if depths[slot] < depth and slot.is_passed for target in passed[slot]]
        starts = [target.place for slot in mine for target in passed[slot]]
        before = frozenset(target.place for target in earlier)
        met = _reached(starts, before | views | shown.keys())
        earlier += [shown[place] for place in met if place in shown]
        stops = frozenset(target.place for target in earlier)
        aside = _aside(targets, met, stops)
        wanted = tuple(t for t in targets if t.place in met or t in aside)
        if stops:
            writing = [s for s in slots if depths[s] < depth and isinstance(s.output, WrittenOutput)]
            written = {id(base_of(slot.fake)) for slot in writing}
            sources = [target.source for target in wanted if isinstance(target.source, Input)]
            if _runs_functions(stops, wanted) or any(id(base_of(source.fake)) in written for source in sources):
                return infer_levels(capture, slots, targets, made, single=True)
            wanted = (*wanted, *{t.place: t for t in earlier if t.place in met}.values())
        levels.append(Level(depth, mine, wanted, stops, aside, hooks))
    return tuple(levels)


def _check_not_passed(capture: Capture, passed: dict[Slot, list[Target]]) -> None:
    """Refuse a hook on a result, or a gradient that it keeps, where gradients of others pass it inside of one node."""
    results = (result for result in capture.results if isinstance(result, TensorResult))
    watched = [result.fake for result in results if result.hooks or result.fake.retains_grad]
    edges = [edge for fake in watched if not is_begun(fake) for edge in [edge_of(fake)] if edge is not None]
    places = {(edge.node, edge.output_nr) for edge in edges}
    for found in passed.values() if places else ():
        own = {target.place for target in found}
        if places & _reached(own, frozenset()) - own:
            raise GradientsRefused(
                "a result has a hook or keeps its gradient, another is computed of it, and the program turns a tensor"
                " in place, detaches one, or runs a function of its own on the way",
                where=None,
                remedy="return a copy of what has the hook (clone)",
            )


def _aside(targets: Sequence[Target], met: set[Place], stops: Collection[Place]) -> frozenset[Target]:
    """The leaves that no gradient has ``met``, and that may get some all the same: by a function on the way."""
    accumulating = any(is_function(node) for node, _ in met.difference(stops))
    return frozenset(t for t in targets if accumulating and t.place not in met and _is_given_leaf(t))


_MANY = 8
"""More nodes than this of one depth are one: each costs a capture the forward once more."""


def _groups(
    depths: dict[Slot, int], passed: dict[Slot, list[Target]], targets: Sequence[Target], *, single: bool
) -> list[tuple[int, tuple[Slot, ...]]]:
    """The slots of each depth, apart where their histories have no node in common."""
    ends = frozenset(t.place for t in targets) | _held(passed).keys()
    found: list[tuple[int, tuple[Slot, ...]]] = []
    for depth in range(max(depths.values()) + 1):
        mine = [slot for slot in depths if depths[slot] == depth]
        apart = [tuple(mine)] if single or len(mine) == 1 else _apart(mine, passed, ends)
        found += [(depth, group) for group in (apart if len(apart) <= _MANY else [tuple(mine)])]
    return found


def _apart(slots: list[Slot], passed: dict[Slot, list[Target]], ends: frozenset[Place]) -> list[tuple[Slot, ...]]:
    """``slots`` in groups: two are together if gradients from both come by one node."""
    groups: list[tuple[set[Node], list[Slot]]] = []
    for slot in slots:
        own = [target.place for target in passed[slot]]
        nodes = {node for node, _ in own} | {place[0] for place in _reached(own, ends - set(own)) if place not in ends}
        together = [group for group in groups if group[0] & nodes]
        groups = [group for group in groups if group not in together]
        groups.append((nodes.union(*(n for n, _ in together)), [*(s for _, found in together for s in found), slot]))
    order = {slot: i for i, slot in enumerate(slots)}
    return sorted((tuple(sorted(found, key=order.__getitem__)) for _, found in groups), key=lambda g: order[g[0]])


def _passed(slot: Slot, inputs: Sequence[Input]) -> list[Target]:
    """By which tensors later levels depend on ``slot``: the output, or the tensors of the caller that are written.

    The first is where the gradient of the slot comes from.
    """
    if not isinstance(slot.output, WrittenOutput):
        return [Target(slot, slot.edge)]
    shown = slot.output.shown
    assert shown is not None  # it is a slot
    family = [shown.source, *(i for i in inputs if base_of(i.fake) is base_of(shown.source.fake))]
    found = [] if slot.is_held else [Target(slot, slot.edge)]
    found += [Target(known, edge) for known in family for edge in [edge_of(known.fake)] if edge is not None]
    base = edge_of(base_of(shown.source.fake))
    if base is not None and shown.source.fake._base is not None:
        found.append(Target(shown.source, base, of_base=True))
    return list({target.place: target for target in found}.values())


def _held(passed: dict[Slot, list[Target]]) -> dict[Place, Slot]:
    """The places of the slots that somebody holds, or holds views of, and can differentiate by.

    The first of several owns a place.
    """
    return {t.place: slot for slot, found in reversed(passed.items()) if slot.is_passed for t in found}


def _hooks_outside(capture: Capture, places: Container[Place]) -> tuple[Hook, ...]:
    """The hooks on what the call makes that are at one of ``places``, which somebody holds."""
    given = {known.variable for known in capture.inputs}
    edges = ((hook, hook.edge) for hook in capture.hooks if hook.variable not in given)
    return tuple(hook for hook, edge in edges if edge is not None and (edge.node, edge.output_nr) in places)


def _depths(passed: dict[Slot, list[Target]]) -> dict[Slot, int] | None:
    """How many outputs lie one behind the other on the longest way from each slot; None if two depend on each other."""
    owner = _held(passed)
    behind: dict[Slot, set[Slot]] = {}
    for slot, targets in passed.items():
        own = {target.place for target in targets}
        met = _reached(list(own), frozenset(owner.keys() - own))
        behind[slot] = {owner[place] for place in met if place in owner and place not in own} - {slot}
    depths: dict[Slot, int] = {}
    waiting = list(passed)
    for _ in range(len(passed) ** 2):
        slot = waiting.pop(0)
        known = [depths.get(other) for other in behind[slot]]
        if None in known:
            waiting.append(slot)
        else:
            depths[slot] = max((depth + 1 for depth in known if depth is not None), default=0)
        if not waiting:
            return depths
    return None


def _runs_functions(stops: frozenset[Place], targets: Sequence[Target]) -> bool:
    """Whether the engine would run custom functions behind ``stops`` on its way to ``targets``.

    Rule: a stop is a gradient that is not there.  PyTorch passes that on; a custom function gets zeros for it.
    """
    behind = _reached(stops, frozenset())
    met = any(target.place in behind - stops for target in targets)
    return met and any(is_function(node) for node, _ in behind)


def _is_given_leaf(target: Target) -> bool:
    """Whether gradients may come to ``target`` by no edge: a function's own backward may run another (checkpoints)."""
    return isinstance(target.source, Input) and target.source.was_leaf and not (target.former or target.begins)


def _reached(starts: Iterable[Place], stops: frozenset[Place]) -> set[Place]:
    """The places that gradients from ``starts`` come by, those in ``stops`` included and nothing behind them."""
    found = set(starts)
    waiting = [node for node, _ in found]
    seen = set(waiting)
    while waiting:
        for node, output in waiting.pop().next_functions:
            if node is None:
                continue
            place = node, output
            found.add(place)
            if place not in stops and node not in seen:
                seen.add(node)
                waiting.append(node)
    return found
