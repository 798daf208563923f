"""Which results have a batch: those that eager computes of something that has one.

    vmap(f, (0, None), (0, None))(xs, w)      f: x * 2, w.sum()      the sum has none, and may be returned as it is

Law: it is the recording that tells, not the graph.  Memory that is written over keeps its batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from purefx._torch import OpOverload
from purefx.capture.captured import Capture
from purefx.capture.recording import Call, Storage
from purefx.functional.roots import Root
from purefx.operators import facts

Origin = frozenset[int] | None
"""The positions of inputs that something is computed of; None if it may be of any."""

UNREAD = -1
"""The position of what stands for tensors that a program takes none of, only sizes: the last of its inputs."""


def infer_origins(capture: Capture, roots: Sequence[Root]) -> dict[Storage, Origin]:
    """What each storage of a run is computed of; the inputs of the program are ``roots``."""
    found: dict[Storage, Origin] = {}
    taken = {operand.variable for call in capture.recording for operand in (*call.operands, *call.written)}
    for known in capture.inputs:
        places = frozenset(i for i, root in enumerate(roots) if known in root.members)
        unread = {UNREAD} if known.variable in taken else ()
        _add(found, known.before.storage, places or frozenset(unread))
    for call in capture.recording:
        origin = _origin(call, found)
        for operand in (*call.outputs, *call.written):
            _add(found, operand.region.storage, origin)
    return found


def _origin(call: Call, found: dict[Storage, Origin]) -> Origin:
    if not isinstance(call.op, OpOverload) or facts(call.op).random or facts(call.op).custom:
        return None
    together: frozenset[int] = frozenset()
    for operand in (*call.operands, *call.written):
        origin = found.get(operand.region.storage, frozenset())
        if origin is None:
            return None
        together |= origin
    return together


def _add(found: dict[Storage, Origin], storage: Storage, origin: Origin) -> None:
    before = found.get(storage, frozenset())
    found[storage] = None if before is None or origin is None else before | origin
