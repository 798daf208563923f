"""The leaves of a call's arguments, and a key for their structure: what every call pays, so written for speed.

Tuples, lists and dicts of tensors and plain values are walked here; anything else (named tuples, registered
types) goes the way of PyTorch's pytree.  Both give the leaves in the same order.
"""

from __future__ import annotations

from typing import Any

import torch

from purefx._torch import pytree

_LEAVES = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None), torch.dtype, torch.device})


def leaves_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The leaves of ``args`` and ``kwargs``, and a key that is equal for calls of one structure."""
    if not kwargs and _LEAVES.issuperset(map(type, args)):
        return args, len(args)
    leaves: list[Any] = []
    try:
        return leaves, (_walk(args, leaves), _walk(kwargs, leaves))
    except _UnknownContainerError:
        return pytree.tree_flatten((args, kwargs))


class _UnknownContainerError(Exception):
    pass


def _walk(x: Any, leaves: list[Any]) -> Any:
    kind = type(x)
    if kind in _LEAVES:
        leaves.append(x)
        return None
    if kind is tuple or kind is list:
        if _LEAVES.issuperset(map(type, x)):
            leaves += x
            return kind, len(x)
        return (kind, *[_walk(item, leaves) for item in x])
    if kind is dict:
        if _LEAVES.issuperset(map(type, x.values())):
            leaves += x.values()
            return kind, tuple(x)
        return (kind, *x, *[_walk(item, leaves) for item in x.values()])
    raise _UnknownContainerError
