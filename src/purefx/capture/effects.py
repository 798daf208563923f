"""What a call does besides returning new tensors, as far as its schema and its arguments say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from purefx._torch import HigherOrderOperator, OpOverload, pytree, storage_key
from purefx.capture.frames import current_line
from purefx.capture.recording import SYMBOLS, Effect, Operand, Resize, Storage, Tree, geometry_of
from purefx.errors import GradientsRefused, UndeclaredWrite, UnsupportedOperator, UnsupportedTensor
from purefx.layout import Geometry, overlaps
from purefx.operators import (
    ALWAYS_KEPT,
    HIDDEN_WRITES,
    NOT_COUNTED,
    QUANTISING,
    argument,
    aten,
    facts,
    functional_twin,
    is_pure,
    positions,
    takes_default_dtype,
)


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of a call; the operands that it wrote, as they are afterwards; the storages that it resized.

    ``replaced`` maps operands to what they became before the write: an ``out=`` argument is resized first.
    """

    effect: Effect = Effect.NONE
    written: tuple[Operand, ...] = ()
    resized: tuple[Resize, ...] = ()
    replaced: dict[Operand, Operand] = field(default_factory=dict)


UNCHANGED = Change()


@dataclass(frozen=True, slots=True)
class Shown:
    """What an ``out=`` tensor shows before the call."""

    tensor: torch.Tensor
    memory: torch.UntypedStorage
    geometry: Geometry

    @property
    def is_resized(self) -> bool:
        """Whether the tensor has other sizes now."""
        return tuple(self.tensor.shape) != self.geometry.sizes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call returned, as it was and as the operands in it, the new storages in it, and what it changed."""

    results: Tree
    outputs: tuple[Operand, ...]
    change: Change
    fresh: tuple[Storage, ...] = ()


def written_arguments(op: OpOverload, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> list[Tree]:
    """The arguments that this call of ``op`` writes, as they were passed (tensors, lists of them, or None)."""
    hidden = HIDDEN_WRITES.get(op)
    names = facts(op).written
    if hidden is not None and not argument(op, args, kwargs, hidden.condition):
        names = tuple(name for name in names if name not in hidden.written)
    return [argument(op, args, kwargs, name) for name in names]


def written_tensors(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments that this call of ``op`` writes, those in lists too."""
    return [x for x in pytree.tree_leaves(written_arguments(op, args, kwargs)) if isinstance(x, torch.Tensor)]


def count_list_writes(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count the writes of operators on lists (``_foreach_add_``), which PyTorch forgets to count under a mode."""
    lists = written_lists(op, args, kwargs)
    if lists:
        _check_written_once(op, lists)
    for tensor in (t for x in lists for t in x if op not in NOT_COUNTED and not t.is_inference()):
        torch.autograd.graph.increment_version(tensor)


def written_lists(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The lists of tensors that this call of ``op`` writes, counted as soon as they are written, if at all."""
    if op.namespace != "aten" or not facts(op).written:
        return []
    return [x for x in written_arguments(op, args, kwargs) if isinstance(x, (list, tuple))]


def _check_written_once(op: OpOverload, lists: list[Any]) -> None:
    """Refuse a list with views of memory that is written twice: each keeps the history of its own write."""
    pairs = [(x, other) for written in lists for i, x in enumerate(written) for other in written[:i]]
    views = [(x, other) for x, other in pairs if x is not other and other._is_view()]
    if torch.is_grad_enabled() and any((x.requires_grad or y.requires_grad) and _overlap(x, y) for x, y in views):
        raise GradientsRefused(
            f"{op} writes to a list of views that overlap, each of which gets a history of its own",
            where=current_line(),
            remedy="write to one tensor after the other, or under torch.no_grad()",
        )


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    return storage_key(a) == storage_key(b) and overlaps(geometry_of(a), geometry_of(b), a.itemsize, b.itemsize)


def matters_without_tensors(op: Any, result: Any) -> bool:
    """Whether a call that neither returns nor writes tensors has to be recorded."""
    if isinstance(op, HigherOrderOperator):
        return True
    if isinstance(result, SYMBOLS):
        return op is aten._local_scalar_dense.default
    return op in ALWAYS_KEPT or facts(op).results == 0


def with_dtype(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """``kwargs`` with the default dtype written out, for an operator that makes a tensor of nothing.

    Rule: the default dtype is that of the moment of the call, which may be another when the graph runs.
    """
    if not isinstance(op, OpOverload) or not takes_default_dtype(op) or kwargs.get("dtype") is not None:
        return kwargs
    if any(isinstance(x, torch.Tensor) for x in args):
        return kwargs
    return {**kwargs, "dtype": torch.get_default_dtype()}


def check_supported(op: Any, kwargs: dict[str, Any]) -> None:
    """Refuse what fake tensors do not tell the truth about, and random numbers from a generator of one's own."""
    if op in QUANTISING:
        raise UnsupportedTensor(
            f"{op} makes a quantised tensor, which has no plain strided memory",
            where=current_line(),
            remedy="keep it outside the function, or compute with integers and a scale",
        )
    if isinstance(kwargs.get("generator"), torch.Generator):
        raise UnsupportedOperator(
            f"{op} draws from a generator of its own",
            where=current_line(),
            remedy="use the default generator, or draw the numbers outside and pass them",
        )


def check_declared_alias(op: Any) -> None:
    """Refuse an operator of the user's that returns memory of an argument although its schema does not say so."""
    if isinstance(op, OpOverload) and facts(op).custom and is_pure(op):
        raise UndeclaredWrite(
            f"{op} returned memory of one of its arguments, but its schema does not say so",
            where=current_line(),
            remedy="declare it in the schema: Tensor(a) x ... -> Tensor(a); or let it return a new tensor",
        )


def shown_by_out(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Shown]:
    """What the ``out=`` arguments of a call of ``op`` show."""
    if not facts(op).out:
        return []
    return [Shown(x, x.untyped_storage(), geometry_of(x)) for x in written_tensors(op, args, kwargs)]


def keep_geometry(shown: list[Shown]) -> None:
    """Undo what a fake kernel does to the strides and the memory of ``out=`` tensors of the right sizes.

    Rule: eager resizes an ``out=`` tensor of other sizes, and writes into one of the right sizes as it is.  Fake
    kernels give it the strides that a new result has.
    """
    for before in shown:
        out, geometry, after = before.tensor, before.geometry, geometry_of(before.tensor)
        if after == geometry or before.is_resized:
            continue
        aten.set_.source_Storage_storage_offset(out, before.memory, geometry.offset, geometry.sizes, geometry.strides)


def restride_resized(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Give an ``out=`` tensor that was resized the strides that eager gives it: those of a new result.

    Rule: ``torch.abs(x.t(), out=torch.empty(0))`` lays its result out as ``torch.abs(x.t())``.  Fake kernels make it
    row-major.
    """
    twin, known = functional_twin(op), facts(op)
    if twin is None:
        return
    places = {positions(op)[name] for name in known.written}
    given = tuple(x for i, x in enumerate(args) if i not in places)
    made = twin.op(*given, **{name: x for name, x in kwargs.items() if name not in known.written})
    results = [x for x in pytree.tree_leaves(made) if isinstance(x, torch.Tensor)]
    for out, result in zip(written_tensors(op, args, kwargs), results[twin.kept :], strict=False):
        if out.shape == result.shape and out.stride() != result.stride() and out.is_contiguous():
            aten.as_strided_.default(out, result.shape, result.stride(), out.storage_offset())
