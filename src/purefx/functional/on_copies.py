"""Writes without a functional twin: run the operator as it is, on copies.

    custom_op(a, b)   that writes to a          new_a, = OnCopies(custom_op)(a, b)
    custom_op(a, b)   where a and b overlap     new_base, = OnCopies(custom_op)(base)     a and b cut out of the copy

Always right, since the operator sees the memory that it would see in eager: the same strides, the same overlap.
From outside, a call of `OnCopies` is pure.  Sizes that are not constants are given like the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from purefx._torch import pytree, storage_key
from purefx.capture.recording import Tree, map_tree
from purefx.layout import Geometry
from purefx.operators import aten


@dataclass(frozen=True, slots=True)
class Number:
    """In the place of a number that depends on the arguments: number ``place`` of what is given."""

    place: int

    def cut(self, given: Sequence[Any]) -> Any:
        """The number."""
        return given[self.place]


@dataclass(frozen=True, slots=True)
class Slot:
    """In the place of a tensor argument: number ``base`` of what is given, cut to ``layout`` if there is one.

    ``layout`` is sizes, strides, and an offset that counts from the first element of the base; each may be a
    `Number`. ``conj`` and ``neg`` are the lazy bits of what is cut, whatever those of the base: a real part of a
    conjugated base is not conjugated.
    """

    base: int
    layout: tuple[Any, Any, Any] | None
    dtype: torch.dtype
    conj: bool = False
    neg: bool = False

    def cut(self, given: Sequence[Any]) -> torch.Tensor:
        """The tensor argument."""
        base: torch.Tensor = given[self.base]
        if self.layout is None:
            return base
        sizes, strides, offset = map_tree(lambda x: _cut(x, given), self.layout)
        physical = _physical(base)
        typed = physical if base.dtype == self.dtype else _flat(physical).view(self.dtype)
        made = typed.as_strided(sizes, strides, typed.storage_offset() + offset)
        return _flipped(made, conj=self.conj, neg=self.neg)


class OnCopies:
    """``op`` with ``args``, as a pure function of the tensors and numbers that its slots name.

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

    def __call__(self, *given: Any) -> tuple[torch.Tensor, ...]:
        """Run the operator on copies of what it writes."""
        bases = [with_strides_of(x) if i in self.written else x for i, x in enumerate(given)]
        args, kwargs = map_tree(lambda x: _cut(x, bases), (self.args, self.kwargs))
        with torch.no_grad():
            result = self.op(*args, **kwargs)
        made = {storage_key(base) for base in bases if isinstance(base, torch.Tensor)}
        tensors = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
        kept = [x for x in tensors if storage_key(x) not in made]
        return (*kept, *(bases[i].detach() for i in self.written))  # not views of the copies


def _cut(x: Any, given: Sequence[Any]) -> Any:
    return x.cut(given) if isinstance(x, (Slot, Number)) else x


def with_strides_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, gaps and overlaps included, and all the memory that they span.

    It has the lazy bits of ``tensor`` too, which ``clone`` would do away with.
    """
    copy = _flat(_physical(tensor)).clone().as_strided(tensor.shape, tensor.stride(), 0)
    return _flipped(copy, conj=tensor.is_conj(), neg=tensor.is_neg())


def laid_out(tensor: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """``tensor``, copied if need be to memory in which it lies as ``geometry`` says, with gaps that are its own."""
    if tensor.stride() == geometry.strides and geometry.is_dense:
        return tensor
    physical = _physical(tensor)
    sizes, strides, span = geometry.sizes, geometry.strides, geometry.shifted(-geometry.offset).span()[1]
    places = torch.arange(span, device=tensor.device).as_strided(sizes, strides)
    memory = physical.new_zeros(span).index_put((places,), physical)
    return _flipped(memory.as_strided(sizes, strides), conj=tensor.is_conj(), neg=tensor.is_neg())


def _physical(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of ``tensor`` as they lie in memory, without lazy conjugation and negation."""
    return _flipped(tensor, conj=tensor.is_conj(), neg=tensor.is_neg())


def _flipped(tensor: torch.Tensor, *, conj: bool, neg: bool) -> torch.Tensor:
    """``tensor`` with these of its lazy bits turned over."""
    tensor = aten._conj.default(tensor) if conj else tensor
    return aten._neg_view.default(tensor) if neg else tensor


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All the memory that ``tensor`` spans, as one run of elements."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((0 if 0 in tensor.shape else last + 1,), (1,))
