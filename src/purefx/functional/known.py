"""Numbers in tensors that do not depend on the arguments: known when the program is captured.

    log[torch.zeros(()) > 0] = 0      Python asks whether the mask is true: it is not, whatever the arguments

The calls that such a number depends on are cut out of the recording, made functional, and run.
"""

from __future__ import annotations

from purefx._torch import OpOverload, ShapeEnv, without_modes
from purefx.analysis.replay import Fresh, Replay
from purefx.capture.recording import Call, Operand, Recording, Storage
from purefx.functional.rewrite import functional_graph
from purefx.functional.signature import module_of
from purefx.operators import facts


def find_number(recording: Recording, operand: Operand) -> int | float | bool | complex | None:
    """The number in ``operand``, if ``recording`` determines it without arguments and random numbers."""
    calls = _slice(recording, operand.region.storage)
    if calls is None:
        return None
    part = Recording(calls, recording.storages, recording.variables, recording.producers, recording.regions)
    replay = Replay((Fresh(operand.variable, operand.region),), (), (), ())
    functional = functional_graph(part, (), replay, ShapeEnv())
    with without_modes():
        (value,) = module_of(functional)()
        number: int | float | bool | complex = value.item()
    return number


def _slice(recording: Recording, storage: Storage) -> list[Call] | None:
    """The calls that the contents of ``storage`` depend on; None if an argument or chance is among them."""
    needed = {storage}
    made: set[Storage] = set()
    calls: list[Call] = []
    for call in reversed(recording.calls):
        touched = {o.region.storage for o in (*call.outputs, *call.written)}
        if not needed & touched:
            continue
        if not isinstance(call.op, OpOverload) or facts(call.op).random or facts(call.op).custom:
            return None
        calls.append(call)
        made.update(call.fresh)
        needed.update(o.region.storage for o in call.operands)
    return calls[::-1] if needed <= made else None
