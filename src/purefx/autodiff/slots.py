"""Where gradients enter a call: the results, the bases and the written memory that require grad after it.

x.mul_(w); return x.view(-1)      one slot: the new value of x, by which the gradient of the view comes
y = x * w; y.t_(); return y       one slot: y behind the turn, which the call makes again
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from purefx.analysis.gradients import has_own_history, is_detached, keeps_write, results_of
from purefx.analysis.replay import Replay
from purefx.analysis.turns import Turns, infer_turns, is_node
from purefx.autodiff.targets import Alias, Slot
from purefx.capture.captured import Capture
from purefx.capture.edges import edge_left, edge_of, is_beginning, is_begun, is_leaf, leads_to, leaf_behind
from purefx.capture.recording import DataAccess, Effect, Variable
from purefx.capture.tensors import variable_of
from purefx.errors import GradientsRefused
from purefx.functional.signature import BaseOutput, ForwardOutput, ResultOutput, WrittenOutput


def infer_slots(capture: Capture, replay: Replay, outputs: Sequence[ForwardOutput]) -> tuple[Slot, ...]:
    """The ``outputs`` whose values autograd sees."""
    fakes = fakes_of(capture, replay)
    turns = infer_turns(capture.recording, capture.inputs)
    slots: list[Slot] = []
    for output in outputs:
        match output:
            case ResultOutput(variable) | BaseOutput(variable):
                fake = fakes.get(variable)
                left = None if fake is None else edge_left(fake, fakes.values())
                if fake is not None and left is not None:
                    _check_left(fake, turned=variable in turns)
                    slots.append(Slot(output, fake, left=left))
                elif fake is not None and edge_of(fake) is not None and not fake.is_leaf:
                    slots.append(_turned(Slot(output, fake), turns.get(variable, Turns()), replay))
            case WrittenOutput(shown=shown) if shown is not None:
                slots.append(Slot(output, shown.fake, shown.behind, shown.left, shown.early))
            case _:
                continue
    known = {*(i.variable for i in capture.inputs), *(b.variable for b in replay.bases)}
    replayed = {o.variable for call in replay.statements for o in call.outputs} - known
    own = {v: x for v, x in fakes.items() if v in replayed and (has_own_history(x) or _is_left_alone(x, replay))}
    reached = _reached_by_views(own.values(), capture, replay, slots)
    own = {v: x for v, x in own.items() if not leads_to(x, reached)}
    origins = {v: _origin(own, v, replay) for v in own}
    slots += [Slot(Alias(v, v.last), x) for v, x in own.items() if origins[v] == (v, 0)]
    hidden = {origin: (x, behind) for v, x in own.items() for origin, behind in [origins[v]] if origin not in own}
    hooked = {hook.variable for hook in capture.hooks}
    slots += [Slot(Alias(v, v.last, v in hooked), x, behind) for v, (x, behind) in hidden.items()]
    return tuple(slots)


def _check_left(fake: torch.Tensor, *, turned: bool) -> None:
    """Raise GradientsRefused where the program does more to ``fake``, which it detaches, than that."""
    if turned or fake.requires_grad:
        raise GradientsRefused(
            "a view keeps the history of what the program detaches, and turns in place or lets require grad again",
            where=None,
            remedy="return a copy, or use what detach() returns",
        )


def _turned(slot: Slot, changes: Turns, replay: Replay) -> Slot:
    """``slot``, whose geometry has changed so: gradients enter behind the nodes of changes that the call runs again.

    Rule: changes before the last write are no part of the history that this makes, and run before it.  Where a view is
    older than one of them, all run after it, and gradients enter at the tensor as it is, by way of views.
    """
    if changes.late or _are_first(changes, slot, replay):
        return replace(slot, behind=changes.nodes if changes.last else None, early=changes.early)
    seen = (call.modes.grad or call.op is DataAccess.SWAP for call in changes.last)  # that is unseen in each mode
    if not all(map(is_node, changes.early)) or not all(seen):
        raise GradientsRefused(
            "the program changes the geometry of a result under torch.no_grad() (or by x.data = y) and writes it then",
            where=None,
            remedy="change it with gradients on, or write to a copy",
        )
    return slot


def _are_first(changes: Turns, slot: Slot, replay: Replay) -> bool:
    """Whether the early ``changes`` are the first that happens to the output of ``slot``; none leaves its memory."""
    if not changes.is_alone:
        return False
    variable = changes.early[0].written[0].variable
    using = tuple(call for call in replay.statements if any(o.variable is variable for o in call.operands))
    return slot.output.region == variable.first and using[: len(changes.early)] == changes.early


def _origin(own: Mapping[Variable, torch.Tensor], variable: Variable, replay: Replay) -> tuple[Variable, int]:
    """The tensor with a history of its own that ``variable`` is a view of, and by how many views, one node each.

    That is one of ``own``, or what a custom function returned and nobody holds.
    """
    views = {o.variable: call for call in replay.statements if call.effect is Effect.VIEW for o in call.outputs}
    turned = {o.variable for call in replay.statements for o in call.written}
    found, edge = (variable, 0), edge_of(own[variable])
    current, behind = found
    while edge is not None:
        if current in own and edge_of(own[current]) == edge:
            found = (current, behind)
        maker, after = views.get(current), edge.node.next_functions
        if maker is None or current in turned or len(after) > 1:
            return found
        if not maker.modes.grad:
            returned = isinstance(edge.node, BackwardCFunction) and not is_beginning(edge.node)
            return (current, behind) if returned else found
        edge = next((GradientEdge(node, output) for node, output in after if node is not None), None)
        current, behind = maker.operands[0].variable, behind + 1
    return found


def _reached_by_views(
    views: Iterable[torch.Tensor], capture: Capture, replay: Replay, slots: Iterable[Slot]
) -> frozenset[Node]:
    """The nodes of tensors whose views have eager's histories: leaves that are aliases, what keeps a write or turn."""
    begun = leaf_aliases(capture, replay)
    leaves = (leaf for leaf in map(leaf_behind, views) if leaf is not None and variable_of(leaf) in begun)
    keeping = (known.fake for known in capture.inputs if keeps_write(known))
    turned = (known for known in capture.inputs if is_detached(known))
    left = (slot.left for slot in slots)
    edges = [*map(edge_of, (*leaves, *keeping)), *(known.edge for known in turned), *left]
    return frozenset(edge.node for edge in edges if edge is not None)


def _is_left_alone(fake: torch.Tensor, replay: Replay) -> bool:
    """Whether ``fake`` has a history, and is a view of what the program made and detached (``detach_``)."""
    base = None if fake.is_inference() else fake._base
    made = base is not None and variable_of(base) in {b.variable for b in replay.bases}
    return made and base is not None and edge_of(base) is None and edge_of(fake) is not None and not is_leaf(fake)


def leaf_aliases(capture: Capture, replay: Replay) -> list[Variable]:
    """The leaves that the program made of aliases of other tensors, and that the caller gets, or views of them."""
    given = {*(i.variable for i in capture.inputs), *(b.variable for b in replay.bases)}
    replayed = {o.variable for call in replay.statements for o in call.outputs} - given
    fakes = fakes_of(capture, replay)
    behind = (leaf_behind(fake) for fake in fakes.values() if not fake.is_inference() and fake._is_view())
    leaves = [variable for variable, fake in fakes.items() if is_begun(fake)]
    leaves += [variable for leaf in behind if leaf is not None and (variable := variable_of(leaf)) is not None]
    return [leaf for leaf in dict.fromkeys(leaves) if leaf in replayed]


def fakes_of(capture: Capture, replay: Replay) -> dict[Variable, torch.Tensor]:
    """The tensors that the results are, and their bases, which autograd keeps."""
    found: dict[Variable, torch.Tensor] = {}
    for result, _ in results_of(capture, replay):
        found[result.variable] = result.fake
        base = None if result.fake.is_inference() else result.fake._base
        variable = None if base is None else variable_of(base)
        if base is not None and variable is not None:
            found.setdefault(variable, base)
    return found
