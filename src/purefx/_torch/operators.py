"""Operators, their schemas, and autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload  # the types of operators; no public spelling


def schema_of(op: OpOverload) -> torch.FunctionSchema:
    """The schema of ``op``."""
    return op._schema


def overload_packet(op: OpOverload, name: str) -> Any | None:
    """The operator named ``name`` in the namespace of ``op``, or None."""
    namespace = op.namespace
    return getattr(getattr(torch.ops, namespace), name, None)


def find_overload(packet: Any, name: str) -> OpOverload | None:
    """The overload ``name`` of ``packet``, or None."""
    return getattr(packet, name, None)


def autocast_state() -> Any:
    """The autocast state that a program may not change: per device whether it is on, and its dtype."""
    devices = ("cpu", "cuda")
    return [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]


def resolve_op(name: str) -> OpOverload:
    """The ATen overload spelled ``name``, e.g. "select.int"."""
    packet, overload = name.split(".")
    op: OpOverload = getattr(getattr(torch.ops.aten, packet), overload)
    return op


def restore_autocast(state: Any) -> None:
    """Put back what `autocast_state` returned."""
    for device, (enabled, dtype) in zip(("cpu", "cuda"), state, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
