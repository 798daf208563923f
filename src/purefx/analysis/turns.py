"""Changes of the geometry of tensors (``x.t_()``, ``x.set_(y)``), and the writes that autograd sees between them.

x.t_(); x.mul_(w)          early: what the write makes of x has nothing of it in its history
x.mul_(w); x.t_()          last: a node in front of the write
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from purefx.capture.captured import Input
from purefx.capture.edges import base_of, has_lost_history, is_function
from purefx.capture.recording import Call, DataAccess, Effect, Recording, Variable
from purefx.operators import aten


@dataclass(frozen=True, slots=True)
class Turns:
    """The changes of geometry since the last write to the memory that autograd has seen, and the ``early`` ones.

    ``late`` tells that there are none of these, and that it is the memory that it was.
    """

    last: tuple[Call, ...] = ()
    early: tuple[Call, ...] = ()
    late: bool = True

    @property
    def is_alone(self) -> bool:
        """Whether nothing but the tensor itself and its memory as it is takes part in these."""
        return not any(_moves(call) for call in (*self.early, *self.last))

    @property
    def nodes(self) -> int:
        """How many of the last ones autograd has seen: each is a node."""
        return sum(map(is_node, self.last))

    @property
    def unseen(self) -> int:
        """How many of the last ones it has not."""
        return len(self.last) - self.nodes


def is_node(turn: Call) -> bool:
    """Whether the history of what is turned has a node for ``turn``: autograd sees no ``x.data = y``."""
    return turn.modes.grad and turn.op is not DataAccess.SWAP


def is_swap(call: Call) -> bool:
    """Whether ``call`` is ``x.data = y`` of the same memory, which is but a turn."""
    return call.op is DataAccess.SWAP and call.written[0].region.storage is call.operands[0].region.storage


def _moves(call: Call) -> bool:
    """Whether ``call`` gives a tensor other memory, or takes another tensor."""
    return not is_swap(call) and (call.effect is Effect.STORAGE or len(call.operands) > 1)


def infer_turns(recording: Recording, inputs: Sequence[Input]) -> dict[Variable, Turns]:
    """The changes of geometry of each variable that has any."""
    found: dict[Variable, Turns] = {}
    inside: dict[Variable, list[int]] = {}
    family_of = infer_families(recording, inputs)
    for call in recording:
        if call.effect is Effect.WRITE and not call.seen:
            for variable in {o.variable for o in call.written} & found.keys():
                inside.setdefault(variable, []).append(len(found[variable].last))
        if call.effect is Effect.WRITE and call.seen and found:
            families = {family_of(o.variable) for o in call.written}
            for variable in [variable for variable in found if family_of(variable) in families]:
                changes = found[variable]
                found[variable] = Turns((), (*changes.early, *changes.last), late=False)
        for operand in call.written if call.effect in (Effect.GEOMETRY, Effect.STORAGE) else ():
            before = found.get(operand.variable, Turns())
            found[operand.variable] = Turns((*before.last, call), before.early, before.late and not _moves(call))
    for known in (known for known in inputs if known.variable in inside and found[known.variable].late):
        found[known.variable] = _about_function(found[known.variable], known, inside[known.variable])
    return found


def _about_function(turns: Turns, known: Input, writes: Sequence[int]) -> Turns:
    """``turns`` of ``known`` with those early that happen before a function of the user's writes to it.

    Autograd has not seen the write, but has a node of the function: so many turns have a node in front of that.
    ``writes`` tell after how many turns each of the writes comes that autograd has not seen.
    """
    if known.fake._base is not None or not known.fake.requires_grad or has_lost_history(known.fake):
        return turns
    node, passed = known.fake.grad_fn, 0
    while node is not None and not is_function(node) and passed < turns.nodes:
        node, passed = node.next_functions[0][0], passed + 1
    if node is None or passed == turns.nodes:
        return turns
    split = [Turns(turns.last[count:], turns.last[:count], late=False) for count in writes]
    return next((found for found in reversed(split) if found.nodes == passed), turns)


def infer_families(recording: Recording, inputs: Sequence[Input]) -> Callable[[Variable], Variable | int]:
    """What tells for each variable whose views it is one of: such variables have a part in one history."""
    bases = {known.variable: id(base_of(known.fake)) for known in inputs}
    parents: dict[Variable, Variable] = {}
    for call in recording:
        if call.effect is Effect.VIEW and call.op not in (aten.detach.default, DataAccess.READ):
            for output in call.outputs:
                if output.variable not in bases and output.variable is not call.operands[0].variable:
                    parents.setdefault(output.variable, call.operands[0].variable)

    def family_of(variable: Variable) -> Variable | int:
        while variable in parents:
            variable = parents[variable]
        return bases.get(variable, variable)

    return family_of
