"""The nodes that a compiled call is in the graph of autograd: one, or several where outputs depend on outputs.

    def f(x, w):              level 0    h, a function of x and w
        h = x @ w             level 1    loss, a function of h
        return h, h.sum()

In eager a caller can differentiate the loss by h, or watch the gradient that arrives at h.  So what depends on an
output takes that output, and no gradient flows past it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from purefx.analysis.gradients import Slot, Target
from purefx.autodiff.backward import Backward, Pattern, Place
from purefx.capture.edges import Beginning, edge_of
from purefx.functional.signature import Functional

_BEGINNING: type = Beginning._backward_cls  # what a node of that function is


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One node: gradients enter at ``slots`` and leave at ``targets``, of which the slots of earlier levels are some.

    ``stops`` are the places of all slots of earlier levels.  ``found`` and ``backwards`` are its backwards so far, as
    recorded and as graphs, by which slots have a tangent; ``raised`` has what eager's backward raises.
    """

    slots: tuple[Slot, ...]
    targets: tuple[Target, ...]
    stops: frozenset[Place]
    found: dict[Pattern, Backward] = field(default_factory=dict)
    backwards: dict[Pattern, Functional] = field(default_factory=dict)
    raised: dict[Pattern, RuntimeError] = field(default_factory=dict)


def infer_levels(slots: Sequence[Slot], targets: Sequence[Target], *, single: bool = False) -> tuple[Level, ...]:
    """The levels of ``slots``; ``single`` puts all into one."""
    places = {slot: place_of(slot) for slot in slots}
    depths = _depths(slots, places) if len(slots) > 1 and not single else dict.fromkeys(slots, 0)
    levels: list[Level] = []
    for depth in range(max(depths.values()) + 1):
        mine = tuple(slot for slot in slots if depths[slot] == depth)
        earlier = [slot for slot in slots if depths[slot] < depth]
        stops = frozenset(places[slot] for slot in earlier)
        passed = {place: Target(slot, GradientEdge(*place)) for slot in earlier for place in [places[slot]]}
        wanted = (*targets, *passed.values())
        if stops:
            met = _reached([places[slot] for slot in mine], stops)
            wanted = tuple(target for target in wanted if (target.edge.node, target.edge.output_nr) in met)
            if _runs_functions(stops, wanted):
                return infer_levels(slots, targets, single=True)
        levels.append(Level(mine, wanted, stops))
    return tuple(levels)


def _runs_functions(stops: frozenset[Place], targets: Sequence[Target]) -> bool:
    """Whether the engine would run custom functions behind ``stops`` on its way to ``targets``.

    Rule: a stop is a gradient that is not there.  PyTorch passes that on; a custom function gets zeros for it.
    """
    behind = _reached(stops, frozenset())
    met = any((target.edge.node, target.edge.output_nr) in behind - stops for target in targets)
    return met and any(isinstance(node, BackwardCFunction) for node, _ in behind if not isinstance(node, _BEGINNING))


def _reached(starts: Iterable[Place], stops: frozenset[Place]) -> set[Place]:
    """The places that gradients from ``starts`` come by, those in ``stops`` included and nothing behind them."""
    found = set(starts)
    waiting = [node for node, _ in found]
    seen = set(waiting)
    while waiting:
        for place in waiting.pop().next_functions:
            node, _ = place
            if node is None:
                continue
            found.add(place)
            if place not in stops and node not in seen:
                seen.add(node)
                waiting.append(node)
    return found


def place_of(slot: Slot) -> Place:
    """Where the tensor of ``slot`` comes from."""
    edge = edge_of(slot.fake)
    assert edge is not None  # it requires grad
    return edge.node, edge.output_nr


def _depths(slots: Sequence[Slot], places: dict[Slot, Place]) -> dict[Slot, int]:
    """How many outputs lie one behind the other on the longest way from each slot."""
    owner = {place: slot for slot, place in places.items()}
    behind = {slot: {owner[place] for place in _met(places[slot], owner)} for slot in slots}
    depths: dict[Slot, int] = {}
    waiting = list(slots)
    while waiting:
        slot = waiting.pop(0)
        known = [depths.get(other) for other in behind[slot]]
        if None in known:
            waiting.append(slot)
        else:
            depths[slot] = max((depth + 1 for depth in known if depth is not None), default=0)
    return {slot: depths[owner[places[slot]]] for slot in slots}


def _met(start: Place, owner: dict[Place, Slot]) -> Iterator[Place]:
    """The places of slots that are met first on the ways from ``start``."""
    seen: set[Place | Node] = {start[0]}
    waiting = [start[0]]
    while waiting:
        for place in waiting.pop().next_functions:
            node, _ = place
            if node is None or place == start:
                continue
            if place in owner:
                if place not in seen:
                    seen.add(place)
                    yield place
            elif node not in seen:
                seen.add(node)
                waiting.append(node)
