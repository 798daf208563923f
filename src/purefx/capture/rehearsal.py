"""Writes that eager PyTorch may refuse because of how their operands overlap.

Rule: a write whose target has internal overlap, or shares memory with another operand, is first done on real
zeros of the same geometry, so that eager's own kernel refuses it with its own error.

    x.expand(2, 3).add_(1)        RuntimeError: ... more than one element of the written-to tensor ...
    x[1:].copy_(x[:-1])           RuntimeError: ... some elements of the input tensor and the written-to ...
    x[i] = x                      RuntimeError: ... some elements of the input tensor and the written-to ...

Elementwise operators accept an operand that is the target itself: x.add_(x) is not rehearsed.

Fake tensors have no addresses, hence accept both; without this the compiled function would not raise.

They also accept some views that eager refuses: with strides (3, 18, 6), ``view(-1)`` of sizes (2, 1, 3).  And they
accept complex numbers where eager has no kernel for them (``z > 1``, ``z.sort()``) or cannot write them
(``x.mul_(1j)``), so that the first call of an operator with complex operands or numbers is rehearsed too; and so is
that of an operator which writes integers or bools, since fake kernels write any numbers to them.  What eager raises
then depends on no size, so that any stands for a symbol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from purefx._torch import OpOverload, pytree, without_dispatch, without_modes
from purefx.capture.effects import written_arguments
from purefx.capture.given import Given
from purefx.capture.recording import SYMBOLS, Constant, Operand, Operands, Region, Storage, Tree, map_tree, operands_of
from purefx.layout import Geometry, Int, holds
from purefx.layout.symbols import hint
from purefx.operators import aten, facts, reads_each_element_first

LARGEST = 1 << 28
"""Memory blocks above this size, in bytes, are not rehearsed."""


def needs_rehearsal(op: OpOverload, operands: Operands, written: Operands) -> bool:
    """Whether ``op`` is a built-in, and what it writes overlaps itself or another operand, or is empty."""
    known = facts(op)
    if not written or known.writes_geometry or known.custom:
        return False
    return any(_is_suspicious(w.region, operands) for w in written) or _writes_over(op, operands, written)


def rehearse(op: OpOverload, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> None:
    """Run ``op`` on zeros with the geometry of its operands, and let its error through."""
    error = _error_on_zeros(op, args, kwargs)
    if isinstance(error, Exception) and ("single memory location" in str(error) or "broadcast" in str(error)):
        raise error  # others come from the zeros


def rehearse_dtypes(op: OpOverload, given: Given) -> None:
    """Let the error through that eager raises where ``op`` has no kernel for such numbers, or cannot write them."""
    known, dtypes = facts(op), [o.region.dtype for o in given.operands]
    asked = any(dtype.is_complex for dtype in dtypes)
    if known.written and not asked:
        asked = _writes_integers(op, *given.recorded) or _has_complex_number(given.recorded[0])
    if known.custom or not asked:
        return
    kinds = (*dtypes, *(type(x) for x in pytree.tree_leaves(given.recorded) if not isinstance(x, Operand)))
    if (op, kinds) in _ACCEPTED:
        return
    error = _error_on_zeros(op, *map_tree(_alone, given.recorded))
    told = "complex" in str(error) or "can't be cast" in str(error)
    if isinstance(error, Exception) and (isinstance(error, NotImplementedError) or told):
        raise error  # others come from the zeros
    if error is not _UNKNOWN:
        _ACCEPTED.add((op, kinds))


def _alone(x: Any) -> Any:
    """``x``; an operand over memory of its own, at sizes that it may have, where some are symbols."""
    if isinstance(x, torch.SymInt):
        known = hint(cast(Int, x))
        return x if known is None else known
    if not isinstance(x, Operand):
        return x
    geometry = x.region.geometry
    sizes, strides = (tuple(hint(n) or 0 for n in row) for row in (geometry.sizes, geometry.strides))
    shown = Geometry(sizes, strides, 0)
    storage = Storage(x.region.storage.index, shown.span()[1] * x.region.dtype.itemsize, x.region.storage.device)
    return replace(x, region=replace(x.region, storage=storage, geometry=shown))


def _has_complex_number(args: tuple[Tree, ...]) -> bool:
    """Whether a complex number of Python is among ``args``, or in a list of them (``x.mul_(1j)``)."""
    return any(type(x) is complex or (type(x) is list and any(type(y) is complex for y in x)) for x in args)


def _writes_integers(op: OpOverload, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> bool:
    """Whether ``op`` writes a tensor of integers or bools."""
    written = operands_of(written_arguments(op, args, kwargs)) if facts(op).written else ()
    return any(not o.region.dtype.is_floating_point for o in written)


_ACCEPTED: set[tuple[OpOverload, tuple[object, ...]]] = set()
"""Operators that eager is known to run on such dtypes and types of numbers: that depends on nothing else."""


def rehearse_view(x: torch.Tensor, sizes: Sequence[Any]) -> None:
    """View a tensor that lies as ``x`` does, and let the error through that eager raises."""
    if x.is_contiguous():
        return
    if all(type(n) is int for n in (*x.shape, *x.stride(), *sizes)):
        with without_dispatch():
            torch.empty_strided(x.shape, x.stride(), device="meta").view(sizes)


def rehearse_error(op: OpOverload, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> bool:
    """Raise what eager raises where the fake kernel of ``op`` raised: some word it in another way.

    Returns whether eager raises nothing there, so that the fake kernel is at fault.
    """
    real = _UNKNOWN if facts(op).custom else _error_on_zeros(op, args, kwargs)
    if isinstance(real, Exception):
        raise real from None
    return real is None


_UNKNOWN = "cannot be told"


def _error_on_zeros(op: OpOverload, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> Exception | str | None:
    """What ``op`` raises for zeros; None if it raises nothing, ``_UNKNOWN`` if it cannot be run on them."""
    memories: dict[Storage, torch.UntypedStorage] = {}
    try:
        with without_modes():
            real = map_tree(lambda x: _zeros(x, memories), (args, kwargs))
    except (_CannotRehearseError, RuntimeError):
        return _UNKNOWN
    seed = torch.get_rng_state()
    try:
        with without_modes(), torch.no_grad():
            op(*real[0], **real[1])
    except Exception as error:  # whatever eager raises is the answer
        return error
    finally:
        torch.set_rng_state(seed)
    return None


class _CannotRehearseError(Exception):
    """The operands have symbolic sizes, or too much memory."""


def _is_suspicious(region: Region, operands: Operands) -> bool:
    if _repeats(region):
        return True
    if region.geometry.is_static and region.geometry.is_empty:
        return any(o.region.geometry.sizes != region.geometry.sizes for o in operands if o.region.geometry.rank)
    return any(o.region.storage is region.storage and o.region != region for o in operands)


def _writes_over(op: OpOverload, operands: Operands, written: Operands) -> bool:
    """Whether ``op`` writes a region that it also reads through another operand, and is not elementwise."""
    regions = [o.region for o in operands]
    return any(regions.count(w.region) > 1 for w in written) and not reads_each_element_first(op)


def _repeats(region: Region) -> bool:
    pairs = zip(region.geometry.sizes, region.geometry.strides, strict=True)
    return any(type(stride) is int and stride == 0 and holds(size > 1) for size, stride in pairs)


def _zeros(x: Any, memories: dict[Storage, torch.UntypedStorage]) -> Any:
    if isinstance(x, Constant):
        return x.value
    if isinstance(x, SYMBOLS):
        raise _CannotRehearseError
    if not isinstance(x, Operand):
        return x
    region = x.region
    nbytes = region.storage.nbytes
    if not region.geometry.is_static or type(nbytes) is not int or nbytes > LARGEST:
        raise _CannotRehearseError
    if region.storage not in memories:
        memories[region.storage] = torch.zeros(
            nbytes, dtype=torch.uint8, device=region.storage.device
        ).untyped_storage()
    geometry = region.geometry
    empty = torch.empty(0, dtype=region.dtype, device=region.storage.device)
    made = empty.set_(memories[region.storage], geometry.offset, geometry.sizes, geometry.strides)
    return aten._conj.default(made) if region.conj else made
