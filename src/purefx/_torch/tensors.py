"""Tensors: their memory, their counters of writes, and the Python objects that they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards  # compares tensors with what they were, many times faster than Python
from torch.overrides import _pop_mode_temporarily  # there is no public way to leave a mode

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def storage_key(tensor: torch.Tensor) -> int:
    """The identity of the memory block of ``tensor``; ``data_ptr`` is no identity (empty and fake tensors)."""
    return memory_key(tensor.untyped_storage())


def memory_key(memory: torch.UntypedStorage) -> int:
    """The identity of ``memory``; two Python objects may stand for one block."""
    key: int = memory._cdata
    return key


def has_symbolic_sizes(tensor: torch.Tensor) -> bool:
    """Whether a size, stride or the offset of ``tensor`` is a symbol: to look for one in Python costs more."""
    symbolic: bool = tensor._has_symbolic_sizes_strides
    return symbolic


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of ``tensor``, to undo what a capture counted on a tensor of the caller."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def count_writes_together(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a write to ``a`` moves the version of ``b``: true of ``x.detach()``, not of ``x.data``."""
    return bool(counting_with(a, [b]))


def counting_with(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those of ``others`` whose version a write to ``tensor`` moves.

    PyTorch has no way to ask; so the counter is moved on and put back.
    """
    if tensor.is_inference():
        return []
    version = tensor._version
    equal = [x for x in others if not x.is_inference() and x._version == version]
    if not equal:
        return []
    torch.autograd.graph.increment_version(tensor)
    found = [x for x in equal if x._version != version]
    set_version(tensor, version)
    return found


def numbers_of_counters(tensors: Sequence[torch.Tensor]) -> list[int]:
    """A number for each of ``tensors``: two have the same one if a write to one moves the version of the other.

    All versions are set to numbers of their own and put back, so that it takes one look at each tensor.  None of them
    is an inference tensor, which counts nothing.
    """
    versions = tuple(x._version for x in tensors)
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(range(len(versions))))
    numbers = [x._version for x in tensors]
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), versions)
    return numbers


def looks_of(tensors: Sequence[torch.Tensor]) -> TensorGuards | None:
    """What tells by ``check`` of as many objects that they look like ``tensors``, and are as many; None where it fails.

    Law: what passes are tensors of the same types, dtypes, devices, sizes and strides, each an inference tensor,
    negated, conjugated, wrapped by a transform, or one that requires grad, if its like is.  What does not pass may look
    alike all the same: under a dispatch mode nothing passes.
    """
    plain = all(type(x) in _PLAIN_TYPES and not has_symbolic_sizes(x) and not x.is_inference() for x in tensors)
    if not plain:
        return None
    looks = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return looks if looks.check(*tensors) else None


def swap_contents(a: torch.Tensor, b: torch.Tensor) -> None:
    """Let each of two Python objects be the tensor that the other was.

    ``torch.utils.swap_tensors`` refuses to where a graph of gradients holds one, or a weak reference.
    """
    torch._C._swap_tensor_impl(a, b)


@contextmanager
def without_overrides() -> Iterator[None]:
    """Take the tensors of classes with ``__torch_function__`` as plain ones."""
    with torch._C.DisableTorchFunctionSubclass():
        yield


def is_seen_by_modes() -> bool:
    """Whether a mode sees the functions of PyTorch that Python calls now."""
    return torch._C._len_torch_function_stack() > 0


def unseen_by_modes() -> AbstractContextManager[Any]:
    """Let no mode see the functions of PyTorch that Python calls."""
    unseen: AbstractContextManager[Any] = torch._C.DisableTorchFunction()
    return unseen


def left_function_mode() -> AbstractContextManager[Any]:
    """Leave the innermost mode that sees the functions of PyTorch; there is one."""
    left: AbstractContextManager[Any] = _pop_mode_temporarily()
    return left


def takes_hooks_off(func: Callable[..., Any]) -> bool:
    """Whether ``func`` is what ``set_`` calls from within, of a tensor whose class overrides functions."""
    descriptor: Any = torch.Tensor._backward_hooks
    return bool(func == descriptor.__set__)


def holders_in_python(tensor: torch.Tensor) -> int:
    """How many references Python has to ``tensor``, the caller's own among them.

    While others than Python hold it (a graph of gradients), PyTorch has one reference of its own.
    """
    others: bool = tensor._use_count() > 1  # type: ignore[attr-defined]  # PyTorch's stubs leave it out
    return sys.getrefcount(tensor) - 2 - others


def with_memory(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``; if it is one of the zeros without memory that autograd makes, a tensor of zeros.

    Not all of PyTorch's kernels know those: some read whatever memory they come upon.
    """
    return torch.zeros_like(tensor) if tensor._is_zerotensor() else tensor


def recordable(tensor: torch.Tensor) -> torch.Tensor:
    """An alias of the inference tensor ``tensor`` that autograd takes, where inference mode is off."""
    place = tensor.storage_offset(), tensor.size(), tensor.stride()
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage(), *place)
    made = made.conj() if tensor.is_conj() else made
    return torch._neg_view(made) if tensor.is_neg() else made
