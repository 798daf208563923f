"""Methods in Python that fake tensors and their storages have not as eager's have them, while a program runs.

cache[position] = x       a position that is in a tensor, or was read out of one: a number that the run does not know
copy.deepcopy(x)          the copy of a fake would be one of another run
x.detach_()               no operator tells of it
x.storage()[0]            there are no bytes (`purefx.capture.by_byte`)

Python looks such methods up in the class, which is PyTorch's and which other threads use too.  Law: they are there only
while a capture has its turn, and in other threads than that of the capture they do what PyTorch's own do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import EllipsisType
from typing import Any

import torch

from purefx._torch import FakeTensor, storage_key
from purefx.capture.by_byte import BY_BYTE, refusing
from purefx.capture.edges import note_history
from purefx.capture.turns import ONE_AT_A_TIME

_NOT_WRITTEN = object()
_NUMBERS = (torch.int8, torch.int16, torch.int32, torch.int64)
"""The dtypes of indices: those of uint8 are masks."""


@contextmanager
def python_methods() -> Iterator[None]:
    """Let fake tensors be indexed by numbers in tensors, and be copied, for the time of a block."""
    former = [vars(kind).get(name, _NOT_WRITTEN) for kind, name, _ in _CHANGES]
    for kind, name, method in _CHANGES:
        setattr(kind, name, method)
    try:
        yield
    finally:
        for (kind, name, _), method in zip(_CHANGES, former, strict=True):
            if method is _NOT_WRITTEN:
                delattr(kind, name)
            else:
                setattr(kind, name, method)


def _in_turn(own: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """``method`` in the thread that captures, PyTorch's ``own`` in others."""
    return lambda *args, **kwargs: (method if ONE_AT_A_TIME.is_mine() else own)(*args, **kwargs)


def _get_item(self: torch.Tensor, index: Any) -> torch.Tensor:
    """``self[index]``, a row whose number is not known by ``select``."""
    items = index if type(index) is tuple else (index,)
    rows = [i for i, x in enumerate(items) if _is_unknown(x)]
    if not rows or not all(i in rows or _is_plain(x) for i, x in enumerate(items)):
        return torch.Tensor.__getitem__(self, index)
    rest = tuple(slice(None) if i in rows else x for i, x in enumerate(items))
    view = self if all(x == slice(None) for x in rest) else torch.Tensor.__getitem__(self, rest)
    for i in reversed(rows):
        view = view.select(_dimension(self, items, i), _number(items[i]))
    return view


def _set_item(self: torch.Tensor, index: Any, value: Any) -> None:
    """``self[index] = value``, by a view of a row whose number is not known."""
    items = index if type(index) is tuple else (index,)
    if any(map(_is_unknown, items)) and all(_is_unknown(x) or _is_plain(x) for x in items):
        torch.Tensor.__setitem__(_get_item(self, index), ..., value)
    else:
        torch.Tensor.__setitem__(self, index, value)


def _is_unknown(x: Any) -> bool:
    """Whether ``x`` is the number of a row, in a tensor or read out of one."""
    if isinstance(x, torch.SymInt):
        return x.node.hint is None
    mask = (torch.bool, torch.uint8)
    return (
        isinstance(x, FakeTensor) and x.dim() == 0 and not (x.is_floating_point() or x.is_complex() or x.dtype in mask)
    )


def _number(x: Any) -> Any:
    return x.item() if isinstance(x, torch.Tensor) else x


def _is_plain(x: Any) -> bool:
    return x is None or isinstance(x, slice | EllipsisType | torch.SymInt) or type(x) is int


def _dimension(tensor: torch.Tensor, items: tuple[Any, ...], row: int) -> int:
    """The dimension of ``tensor[items]`` that item ``row`` is of, if rows that are not known stay dimensions."""
    consumed = sum(x is not None and x is not Ellipsis for x in items)
    sizes = [tensor.dim() - consumed if x is Ellipsis else int(type(x) is not int) for x in items[:row]]
    return sum(sizes)


def _deep_copy(self: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """A copy of ``self`` with a copy of its storage, which all that share it get."""
    made: torch.Tensor
    if id(self) in memo or not self.is_leaf:  # PyTorch refuses the latter
        made = torch.Tensor.__deepcopy__(self, memo)  # type: ignore[no-untyped-call]  # PyTorch gives it no types
        return made
    made = _copy_of_parameter(self) if isinstance(self, torch.nn.Parameter) else _copy_with_storage(self, memo)
    memo[id(self)] = made.requires_grad_(self.requires_grad)
    if self.grad is not None:
        made.grad = _deep_copy(self.grad, memo)
    return made


def _copy_of_parameter(parameter: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(parameter.data.clone(memory_format=torch.preserve_format), parameter.requires_grad)


def _copy_with_storage(tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    memory = tensor.untyped_storage()
    key = ("purefx storage", storage_key(tensor))
    with torch.no_grad():
        if key not in memo:
            size = memory.nbytes() // tensor.itemsize
            memo[key] = tensor.new_empty(0).set_(memory, 0, (size,), (1,)).clone()
        storage = memo[key].untyped_storage()
        made = tensor.new_empty(0).set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        made = made.conj_physical() if tensor.is_conj() else made
        return made.neg() if tensor.is_neg() else made


def _detach_in_place(self: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The method ``detach_`` of ``self``, which the program is about to call, and nobody else for it."""
    note_history(self)
    return partial(torch.Tensor.detach_, self)


_METHODS: dict[str, Callable[..., Any]] = {
    "__getitem__": _get_item,
    "__setitem__": _set_item,
    "__deepcopy__": _deep_copy,
}
_CHANGES: list[tuple[type, str, Any]] = [
    (FakeTensor, "detach_", property(_detach_in_place)),
    *((FakeTensor, name, _in_turn(getattr(torch.Tensor, name), method)) for name, method in _METHODS.items()),
    *((kind, n, _in_turn(getattr(kind, n), refusing(kind, n))) for kind, names in BY_BYTE.items() for n in names),
]
"""What each class gets in the place of its own method, or of one above it."""
