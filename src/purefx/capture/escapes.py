"""Tensors of a run that outlive it: in an object that purefx does not watch, they would be fakes for ever.

Nothing of purefx keeps a tensor that the program made, unless it is a result or bound in an owner.  One that is
alive after the run and has a holder in Python is in a place that no call could set again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch

from purefx.capture.edges import is_begun
from purefx.errors import EscapedState


def check_nothing_escaped(alive: Iterable[torch.Tensor], known: Iterable[torch.Tensor]) -> None:
    """Refuse a program of whose tensors, ``alive``, one has a holder in Python although it is not ``known``."""
    expected = _with_bases(known)
    suspects = [tensor for tensor in alive if id(tensor) not in expected]
    if suspects and _is_held(suspects):
        gc.collect()  # what only an error or a cycle held
        if _is_held(suspects):
            raise EscapedState(
                "the program keeps a tensor in an object that purefx does not watch, and which holds a fake tensor now",
                where=None,
                remedy="return the tensor, or keep it as an attribute of a module or a plain object, or in a dict",
            )


def _with_bases(tensors: Iterable[torch.Tensor]) -> set[int]:
    """The identities of ``tensors``, of their bases and of their gradients."""
    found: set[int] = set()
    for tensor in tensors:
        found.add(id(tensor))
        if tensor._is_view():
            found.add(id(tensor._base))
        if is_begun(tensor) and tensor.grad is not None:
            found.add(id(tensor.grad))
    return found


def _is_held(suspects: list[torch.Tensor]) -> bool:
    return any(holder is not suspects for holder in gc.get_referrers(*suspects))
