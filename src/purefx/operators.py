"""Facts about operators, read from their schemas; by hand only what a schema cannot say.

    facts(aten.add_.Tensor).written           ("self",)
    functional_twin(aten.add_.Tensor)         aten.add.Tensor
    functional_twin(aten.topk.values)         aten.topk.default

A fact is looked up by overload, never by a part of its name, except where PyTorch itself pairs operators by
name: the functional twin of ``foo_`` is the ``foo`` with the same arguments.
"""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from purefx._torch import OpOverload, find_overload, overload_packet, resolve_op, schema_of
from purefx.layout import Chain

aten = torch.ops.aten


def apply_chain(tensor: torch.Tensor, chain: Chain) -> torch.Tensor:
    """The views of ``chain``, one of the other, the first of ``tensor``; itself if there are none."""
    for step in chain:
        tensor = resolve_op(step.op)(tensor, *step.arguments)
    return tensor


OVERWRITES: dict[OpOverload, str | None] = {
    aten.copy_.default: "src",
    aten.fill_.Scalar: "value",
    aten.fill_.Tensor: "value",
    aten.zero_.default: None,
}
"""In-place operators whose result does not depend on what they write over, and their source; None for zeros."""

READS_STORAGE: frozenset[OpOverload] = frozenset(
    {aten.as_strided_copy.default, aten.as_strided_scatter.default, aten.as_strided.default}
)
"""Operators that read elements of the storage which their operand does not show."""

ALWAYS_KEPT: frozenset[OpOverload] = frozenset(
    {
        aten._assert_async.default,
        aten._assert_async.msg,
        aten._assert_scalar.default,
        aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
        aten._linalg_check_errors.default,
    }
)
"""Operators without results that matter although nothing reads them."""


NOT_COUNTED: frozenset[OpOverload] = frozenset(
    {
        aten._amp_foreach_non_finite_check_and_unscale_.default,
        aten._fused_adagrad_.default,
        aten._fused_adagrad_.tensor_lr,
        aten._fused_adam_.default,
        aten._fused_adam_.tensor_lr,
        aten._fused_adamw_.default,
        aten._fused_adamw_.tensor_lr,
        aten._fused_sgd_.default,
        aten._fused_sgd_.tensor_lr,
    }
)
"""Operators on lists whose writes eager does not count: their kernels call no operator for each tensor."""

QUANTISING: frozenset[OpOverload] = frozenset(
    {
        aten.quantize_per_channel.default,
        aten.quantize_per_tensor.default,
        aten.quantize_per_tensor.tensor_qparams,
        aten.quantize_per_tensor_dynamic.default,
    }
)
"""Operators whose results fake tensors take for plain ones."""

RAISES_ON_DATA: frozenset[OpOverload] = frozenset(
    {
        aten.embedding.default,
        aten.gather.default,
        aten.index.Tensor,
        aten.index_add.default,
        aten.index_copy.default,
        aten.index_fill.int_Scalar,
        aten.index_fill.int_Tensor,
        aten.index_put.default,
        aten.index_select.default,
        aten.scatter.src,
        aten.scatter.value,
        aten.scatter_add.default,
        aten.take.default,
    }
)
"""Operators that raise where an index in a tensor is out of bounds."""

IN_ORDER: frozenset[OpOverload] = frozenset(
    {
        aten.__irshift__.Tensor,
        aten.cumprod.out,
        aten.cumsum.out,
        aten.floor_divide.out,
        aten.floor_divide_.Tensor,
        aten.masked_fill_.Scalar,
        aten.masked_fill_.Tensor,
        aten.tril.out,
        aten.triu.out,
    }
)
"""Operators that are not tagged as elementwise, and read each element before they write it."""


@dataclass(frozen=True, slots=True)
class HiddenWrite:
    """A write that the schema does not declare: it happens only where the argument ``condition`` is true."""

    written: tuple[str, ...]
    condition: str
    twin: OpOverload | None


HIDDEN_WRITES: dict[OpOverload, HiddenWrite] = {
    aten.native_batch_norm.default: HiddenWrite(
        ("running_mean", "running_var"), "training", aten._native_batch_norm_legit_functional.default
    ),
    aten.native_batch_norm.out: HiddenWrite(("running_mean", "running_var"), "training", None),
}
"""Operators older than alias annotations, which write all the same."""

STATISTICS: dict[OpOverload, tuple[tuple[str, ...], str]] = {
    aten._native_batch_norm_legit_functional.default: (("running_mean", "running_var"), "training"),
    aten.native_batch_norm_backward.default: (("running_mean", "running_var"), "train"),
}
"""Operators with arguments that their other results do not depend on, where the argument named last is true."""

BUILT_IN = frozenset({"aten", "prims", "prim", "inductor", "quantized", "mkldnn", "_c10d_functional"})
"""Namespaces whose schemas are trusted."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a schema says: the names of the written arguments, the kind of write, and the number of results.

    No schema says that an operator frees or grows the storage of its operand (``resizes_storage``).
    """

    written: tuple[str, ...]
    writes_geometry: bool
    random: bool
    out: bool
    custom: bool
    results: int
    resizes_storage: bool


def is_written(argument: Any) -> bool:
    """Whether the alias annotation of a schema's argument says that the operator writes to it."""
    return argument.alias_info is not None and argument.alias_info.is_write


@cache
def facts(op: OpOverload) -> Facts:
    """The facts of ``op``, from its schema and its tags."""
    schema = schema_of(op)
    hidden = HIDDEN_WRITES[op].written if op in HIDDEN_WRITES else ()
    arguments = [a for a in schema.arguments if is_written(a) or a.name in hidden]
    return Facts(
        written=tuple(a.name for a in arguments),
        writes_geometry=torch.Tag.inplace_view in op.tags,
        random=torch.Tag.nondeterministic_seeded in op.tags,
        out=bool(arguments) and any(a.is_out for a in arguments),
        custom=op.namespace not in BUILT_IN,
        results=len(schema.returns),
        resizes_storage=str(op) == "inductor.resize_storage_bytes_.default",
    )


def argument(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """The value of the argument ``name`` in a call of ``op``; None where it was left to its default."""
    if name in kwargs:
        return kwargs[name]
    position = positions(op)[name]
    return args[position] if position < len(args) else None


def only_updates(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], x: Any) -> bool:
    """Whether ``x`` is given to this call of ``op`` to be updated alone: no other result depends on it."""
    if op not in STATISTICS:
        return False
    names, condition = STATISTICS[op]
    updated = [argument(op, args, kwargs, name) for name in names]
    others = [y for y in (*args, *kwargs.values()) if y is x]
    return bool(argument(op, args, kwargs, condition)) and sum(y is x for y in updated) == len(others)


@cache
def positions(op: OpOverload) -> dict[str, int]:
    """Where each argument of ``op`` stands."""
    return {a.name: i for i, a in enumerate(schema_of(op).arguments)}


def signature(op: OpOverload, skip: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    """Names and types of the arguments of ``op``, less those in ``skip``."""
    return [(a.name, str(a.type)) for a in schema_of(op).arguments if a.name not in skip]


@cache
def reads_each_element_first(op: OpOverload) -> bool:
    """Whether ``op`` has read each element by the time it writes it, so that it may write over what it reads.

    So do elementwise operators, tagged as such themselves or by their twins, alone or on lists: ``add_``, ``where``
    with ``out=``, each element of ``_foreach_mul_``.  Not so ``mm`` with ``out=``.
    """
    known = facts(op)
    if known.custom or known.random:
        return False
    twin = functional_twin(op)
    tagged = (op.tags, () if twin is None else twin.op.tags)
    if op in OVERWRITES or op in IN_ORDER or any(torch.Tag.pointwise in tags for tags in tagged):
        return True
    return known.written == ("self",) and str(schema_of(op).arguments[0].type) == "List[Tensor]"


def is_pure(op: OpOverload) -> bool:
    """Whether the schema of ``op`` neither writes nor aliases."""
    schema = schema_of(op)
    return all(a.alias_info is None for a in schema.arguments) and all(r.alias_info is None for r in schema.returns)


def is_repeatable(target: Any) -> bool:
    """Whether ``target`` is an operator that computes the same of the same."""
    return isinstance(target, OpOverload) and not facts(target).random and not facts(target).custom


@dataclass(frozen=True, slots=True)
class Twin:
    """A functional operator that computes what another one writes.

    ``kept`` counts the results that the writing operator returns too; the new values of its written arguments
    come after them, in the order of its arguments.
    """

    op: OpOverload
    kept: int


@cache
def functional_twin(op: OpOverload) -> Twin | None:
    """The functional operator with the arguments of ``op`` (an ``out`` argument left off), if there is one."""
    known = facts(op)
    if op in HIDDEN_WRITES:
        hidden = HIDDEN_WRITES[op].twin
        return None if hidden is None else Twin(hidden, kept=known.results)
    name = schema_of(op).name.split("::")[1]
    wanted = signature(op, frozenset(known.written) if known.out else frozenset())
    stem = name[:-1] if name.endswith("_") and not name.startswith("__") else name
    for candidate_name in dict.fromkeys((stem, f"{name}_functional", f"{stem}_functional")):
        packet = overload_packet(op, candidate_name)
        for overload in packet.overloads() if packet is not None else ():
            if keyword.iskeyword(overload):  # the code of a graph spells its operators: aten.random.from is no Python
                continue
            twin = find_overload(packet, overload)
            if twin is not None and _computes(twin, op, known, wanted):
                fresh = sum(r.alias_info is None for r in schema_of(op).returns)
                return Twin(twin, kept=fresh)
    return None


def _computes(twin: OpOverload, op: OpOverload, known: Facts, wanted: list[tuple[str, str]]) -> bool:
    if twin is op or twin in HIDDEN_WRITES or not is_pure(twin) or signature(twin) != wanted:
        return False
    fresh = sum(r.alias_info is None for r in schema_of(op).returns)
    return len(schema_of(twin).returns) == fresh + len(known.written)


def missing_defaults(op: OpOverload, twin: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The defaults of ``op`` for positional arguments that ``twin`` has no default for (``bernoulli_(p=0.5)``)."""
    defaults = {a.name: a.default_value for a in schema_of(op).arguments if a.has_default_value()}
    wanted = [a for a in schema_of(twin).arguments[len(args) :] if not a.kwarg_only and not a.has_default_value()]
    return [defaults[a.name] for a in wanted if a.name not in kwargs]


FROM_NUMBERS = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_strided.default,
        aten.eye.default,
        aten.eye.m,
        aten.linspace.default,
        aten.logspace.default,
        aten.ones.default,
        aten.rand.default,
        aten.randn.default,
        aten.zeros.default,
    }
)
"""Operators whose result has the default dtype if none is given."""


def takes_default_dtype(op: OpOverload) -> bool:
    """Whether ``op`` makes a tensor of the default dtype unless told otherwise."""
    return op in FROM_NUMBERS


def is_inexact(dtype: torch.dtype) -> bool:
    """Whether tensors of ``dtype`` have gradients: those of floating point, and complex ones."""
    return dtype.is_floating_point or dtype.is_complex


def without_overlap(x: torch.Tensor) -> torch.Tensor:
    """``x``, or a copy of it if it has an element that it repeats."""
    repeated = any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.clone(memory_format=torch.contiguous_format) if repeated else x
