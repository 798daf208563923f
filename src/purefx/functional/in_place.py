"""Writes without a functional twin: run the operator as it is, on copies.

    custom_op(a, b)   that writes to a          new_a, = OnCopies(custom_op)(a, b)
    custom_op(a, b)   where a and b overlap     new_base, = OnCopies(custom_op)(base)     a and b cut out of the copy

Always right, since the operator sees the memory that it would see in eager: the same strides, the same overlap.
From outside, a call of `OnCopies` is pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from purefx.capture.recording import Tree, map_tree
from purefx.layout import Geometry


@dataclass(frozen=True, slots=True)
class Slot:
    """In the place of a tensor argument: number ``base`` of the tensors given, cut to ``geometry`` if there is one.

    The offset of ``geometry`` counts from the first element of the base; ``conj`` and ``neg`` flip its lazy bits.
    """

    base: int
    geometry: Geometry | None
    dtype: torch.dtype
    conj: bool = False
    neg: bool = False


class OnCopies:
    """``op`` with ``args``, as a pure function of the tensors that its slots name.

    Returns what ``op`` returns that is not among its written arguments, then the new values of ``written``
    (numbers of tensors given), each with the strides of the tensor that it was copied from.
    """

    def __init__(self, op: Callable[..., Any], args: Tree, kwargs: Tree, written: tuple[int, ...]) -> None:
        self.op = op
        self.args = args
        self.kwargs = kwargs
        self.written = written
        self.__name__ = f"on_copies_{str(op).replace('.', '_').replace('::', '_')}"
        self.__qualname__ = self.__name__
        self.__module__ = __name__

    def __call__(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the operator on copies of what it writes."""
        bases = [with_strides_of(x) if i in self.written else x for i, x in enumerate(given)]

        def cut(x: Any) -> Any:
            return _cut(bases[x.base], x) if isinstance(x, Slot) else x

        with torch.no_grad():
            result = self.op(*map_tree(cut, self.args), **map_tree(cut, self.kwargs))
        kept: list[torch.Tensor] = []
        made = {base.untyped_storage().data_ptr() for base in bases}

        def keep(x: Any) -> None:
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in made:
                kept.append(x)

        map_tree(keep, result)
        return (*kept, *(bases[i].detach() for i in self.written))  # not views of the copies


def with_strides_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, gaps and overlaps included, and all the memory that they span."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    length = 0 if 0 in tensor.shape else last + 1
    flat = tensor.as_strided((length,), (1,)).clone()
    return flat.as_strided(tensor.shape, tensor.stride(), 0)


def _cut(base: torch.Tensor, slot: Slot) -> torch.Tensor:
    if slot.geometry is None:
        return base
    geometry = slot.geometry
    typed = base if base.dtype == slot.dtype else base.view(slot.dtype)
    start = typed.storage_offset() + geometry.offset
    made = typed.as_strided(geometry.sizes, geometry.strides, start)
    made = torch.ops.aten._conj.default(made) if slot.conj else made
    return torch.ops.aten._neg_view.default(made) if slot.neg else made
