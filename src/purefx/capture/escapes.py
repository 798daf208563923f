"""Tensors of a run that outlive it: in an object that purefx does not watch, they would be fakes for ever.

Nothing of purefx keeps a tensor that the program made, unless it is a result or bound in an owner.  One that is
alive after the run and has a holder in Python is in a place that no call could set again.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Collection, Iterable

import torch

from purefx._torch import holders_in_python
from purefx.capture.edges import is_begun
from purefx.errors import EscapedState

_FAR = 12
"""How many holders of holders are looked at, before a tensor counts as held for good."""


def check_nothing_escaped(
    alive: Iterable[torch.Tensor], known: Iterable[torch.Tensor], roots: Collection[object] = ()
) -> None:
    """Refuse a program of whose tensors, ``alive``, one has a holder in Python although it is not ``known``.

    Where a graph of gradients may hold tensors (a custom function keeps some, a checkpoint its arguments), ``roots``
    are what outlives the run: a holder counts that is reached from one of them, or from a module.
    """
    expected = _with_bases(known)
    present = list(alive)
    suspects = [tensor for tensor in present if id(tensor) not in expected and holders_in_python(tensor) > 2]
    del present
    if suspects and _is_held(suspects, roots):
        gc.collect()  # what only an error or a cycle held
        if _is_held(suspects, roots):
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


def _is_held(suspects: list[torch.Tensor], roots: Collection[object]) -> bool:
    holders = [holder for holder in gc.get_referrers(*suspects) if holder is not suspects and not _is_own(holder)]
    if not roots:
        return bool(holders)
    wanted = {id(root) for root in roots}
    seen = {id(suspects), id(roots)}
    for _ in range(_FAR):
        if not holders or any(id(holder) in wanted or _is_module(holder) for holder in holders):
            return bool(holders)
        seen.update(map(id, holders))
        seen.add(id(holders))
        found = gc.get_referrers(*holders)
        seen.add(id(found))
        holders = [x for x in found if id(x) not in seen and not isinstance(x, types.FrameType) and not _is_own(x)]
    return True


def _is_own(holder: object) -> bool:
    """Whether ``holder`` is what purefx keeps of a program that has run inside of the program."""
    return type(holder).__module__.startswith(("purefx.capture.", "purefx.transforms."))


def _is_module(holder: object) -> bool:
    """Whether ``holder`` is a module's globals."""
    if type(holder) is not dict or not isinstance(holder.get("__name__"), str):
        return False
    return vars(sys.modules.get(holder["__name__"], sys)) is holder
