"""Writes to tensors that a transform knows nothing of: which are refused, and the others.

    grad(lambda x: b.add_(1))                 raises: ``b`` is no argument
    grad(lambda x: torch.add(x, 1, out=b))    writes what the levels below see of ``x``

Rule: what differentiates refuses operators that return the one tensor that they write, their first.  It looks at no
others: ``out=``, lists, the running statistics of a normalization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from purefx._torch import OpOverload, innermost_transform, schema_of, unwrap_at
from purefx.capture.recording import Call, Storage
from purefx.operators import aten, facts, is_written


def is_refused_outside(recording: Iterable[Call], storage: Storage) -> bool:
    """Whether eager refuses one of the writes to ``storage``, if a tensor with it comes from outside of a transform.

    An operator that PyTorch makes of others writes by way of ``aten.alias``, and the transform has seen that operator.
    """
    calls = list(recording)
    within = {o.variable for call in calls if call.op is aten.alias.default for o in call.outputs}
    return any(
        o.region.storage is storage and o.variable not in within
        for call in calls
        if _is_in_place(call.op)
        for o in call.written
    )


def _is_in_place(op: object) -> bool:
    if not isinstance(op, OpOverload) or not facts(op).written:
        return False
    schema = schema_of(op)
    first, *others = schema.arguments
    return len(schema.returns) == 1 and is_written(first) and not any(map(is_written, others))


def write_below(
    target: torch.Tensor, shown: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor, *, counted: bool
) -> None:
    """Write ``value`` to what is ``shown`` of ``target``, below the transforms that know nothing of it.

    ``counted`` says whether eager counts a write.
    """
    transform = innermost_transform()
    if transform is None:
        shown(target if counted else target.data).copy_(value)
    elif transform.is_vmap or transform.is_functionalize:
        shown(target).copy_(value)
    else:
        held, below = unwrap_at([target, value], transform.level)
        if held is not target:
            shown(target).copy_(value)
            return
        with transform.left():
            write_below(target, shown, below, counted=counted)
