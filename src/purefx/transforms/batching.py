"""A functional graph in a form that ``torch.func.vmap`` takes at any batch dimension and in any layout.

    view(x, [6])                       reshape(x, [6])               x may lie otherwise in a batch than alone
    as_strided(x, [3, 3], [1, 1], 0)   unfold(x, 0, 3, 1)            x: [5], strides (1,)
    as_strided(x, [3], [4], 2)         x.reshape(-1)[[2, 4, 6]]      x: [4, 3], strides (5, 1)

A functional graph does not tell views from copies, so each view may be a copy.  What memory ``as_strided`` shows is
known from the geometry that its operand has in the graph; it may show what the operand shows, and no more.  Where no
view operators are known to lead there, the elements are chosen one by one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from purefx._torch import pytree, resolve_op
from purefx.errors import SourceLine, TransformRefused
from purefx.functional.on_copies import OnCopies, laid_out
from purefx.functional.signature import FunctionalGraph
from purefx.functional.verify import returned
from purefx.layout import Geometry, reify
from purefx.operators import aten
from purefx.transforms.each import applied, each
from purefx.transforms.foreign import foreign_memory
from purefx.transforms.levels import batch_levels
from purefx.transforms.normalization import RULES as NORMALIZATION


def batchable(functional: FunctionalGraph, randomness: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function that runs the graph of ``functional`` on tensors that vmap has wrapped, with that ``randomness``."""

    def run(*inputs: Any) -> tuple[torch.Tensor, ...]:
        known: dict[fx.Node, Any] = {}
        batch = next((x for x in inputs if isinstance(x, torch.Tensor) and batch_levels(x)), None)
        like = batch if randomness == "different" else None
        given = iter(inputs)
        for node in functional.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(given)
            elif node.op == "get_attr":
                known[node] = functional.constants[str(node.target)]
            elif node.op == "call_function":
                known[node] = _call(functional, node, known, like)
        return tuple(known[node] for node in returned(functional.graph))

    return run


def _call(functional: FunctionalGraph, node: fx.Node, known: dict[fx.Node, Any], like: torch.Tensor | None) -> Any:
    """What ``node`` computes; each example of ``like`` draws random numbers of its own, if that is given."""
    given: Any = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    args, kwargs = given
    target: Any = node.target
    if target in _STRIDED:
        base = functional.values[node.args[0]].geometry  # type: ignore[index]  # it is a node, and of a tensor
        return _STRIDED[target](base, *args, **kwargs)
    if target in _COUNTED and _is_told(target, args):
        return _counted(functional, node, args, kwargs)
    if target is torch.ops.higher_order.cond and batch_levels(args[0]):
        return _either(*args)
    if target in FILLS:
        return _draw(FILLS[target], like, *args, **kwargs)
    if isinstance(target, OnCopies):
        layouts = [functional.values[x].geometry if isinstance(x, fx.Node) else None for x in node.args]
        return _Loop.apply(target, layouts, *args)  # type: ignore[no-untyped-call]  # PyTorch gives it no types
    if kwargs.get("memory_format") in _CHANNELS_LAST:  # of an example; a batch has more dimensions
        kwargs = {name: x for name, x in kwargs.items() if name != "memory_format"}
    return _or_each(_FREE.get(target, target), args, kwargs)


_CHANNELS_LAST = frozenset({torch.channels_last, torch.channels_last_3d})


def _or_each(op: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``op``; one example after the other, if vmap has no rule for it."""
    try:
        return op(*args, **kwargs)
    except RuntimeError as error:
        if "could not generate a fallback" not in str(error):
            raise
    return each(op, args, kwargs)


def _is_told(op: Any, args: Any) -> bool:
    """Whether a tensor with a batch says how many elements ``op`` gives."""
    told = [x for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
    return any(batch_levels(x) for x in told if op is not aten.index.Tensor or x.dtype == torch.bool)


def _counted(functional: FunctionalGraph, node: fx.Node, args: Any, kwargs: Any) -> Any:
    """What gives as many elements as an example says: one after the other, if what reads them says how many.

    x[mask].sum()     elements that are not asked for may be there as zeros
    """
    op: Any = node.target
    sizes: Any = functional.values[node].geometry.sizes
    known = [x.node.maybe_as_int() if isinstance(x, torch.SymInt) else x for x in sizes]
    if None not in known:
        return each(lambda *args, **kwargs: op(*args, **kwargs).reshape(known), args, kwargs)  # or it raises
    if op is aten.index.Tensor and _are_summed(node, dim := len(args[1]) - 1):
        x, mask = args[0], args[1][dim]
        kept = mask.reshape(*mask.shape, *[1] * (x.dim() - dim - mask.dim()))
        return torch.where(kept, x, 0).flatten(dim, dim + mask.dim() - 1)
    if op is aten.repeat_interleave.Tensor:
        return _repeated(*args, **kwargs)
    if op is aten.bincount.default:
        raise TransformRefused(
            f"under vmap numbers in a tensor with a batch say how many elements {op} gives, maybe each example others",
            where=SourceLine.parsed(functional.lines.get(node, "")),
            remedy="count by scatter_add in the place of bincount",
        )
    return op(*args, **kwargs)


def _repeated(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """``repeat_interleave`` of examples that give as many elements as the first; it raises where one does not."""
    sizes = [] if output_size is None else [output_size]

    def one(repeats: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = aten.repeat_interleave.Tensor(repeats, output_size=sizes[0] if sizes else None)
        sizes[:] = sizes or [found.shape[0]]
        return found

    found: torch.Tensor = each(one, (repeats,), {})
    return found


def _are_summed(node: fx.Node, dim: int) -> bool:
    """Whether ``node`` indexes the dimension ``dim`` alone, and all that read it add up what it gives along that."""
    indices: Any = node.args[1]
    dims: list[Any] = [user.args[1] if len(user.args) > 1 else [dim] for user in node.users if user.target in _SUMS]
    return not any(indices[:dim]) and len(dims) == len(node.users) and all(dim in found for found in dims)


def _either(which: torch.Tensor, first: Callable[..., Any], second: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Both branches of ``cond``, and of each example what its own one computes."""
    return pytree.tree_map(lambda x, y: torch.where(which, x, y), first(*operands), second(*operands))


def _draw(op: Callable[..., Any], like: torch.Tensor | None, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``op``, which fills a tensor with random numbers, on a new one like ``x``, whose elements do not matter."""
    if like is None:
        return op(torch.empty(x.shape, dtype=x.dtype, device=x.device), *args, **kwargs)
    return op(like.new_empty(x.shape, dtype=x.dtype, device=x.device), *args, **kwargs)


class _Loop(torch.autograd.Function):
    """What no rule of vmap can do: one example after the other, each in memory as if it were alone."""

    @staticmethod
    def forward(op: Callable[..., Any], layouts: Sequence[Geometry | None], *inputs: Any) -> tuple[torch.Tensor, ...]:
        """The outputs of ``op``."""
        given = [x if layout is None else laid_out(x, layout) for x, layout in zip(inputs, layouts, strict=True)]
        return tuple(op(*given))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """It has no gradients: those were taken before."""

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], op: Callable[..., Any], layouts: Any, *inputs: Any) -> Any:
        """The outputs for each example."""
        dims = in_dims[2:]
        rows = []
        for i in range(info.batch_size):
            row = [x if dim is None else x.select(dim, i) for x, dim in zip(inputs, dims, strict=True)]
            rows.append(_Loop.apply(op, layouts, *row))  # type: ignore[no-untyped-call]  # PyTorch gives it no types
        outputs = tuple(torch.stack(column) for column in zip(*rows, strict=True))
        return outputs, (0,) * len(outputs)


def _reshape(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    return x.reshape(tuple(sizes))


def _view_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x`` read as ``dtype``; complex numbers and their parts by operators that have gradients."""
    x = x.contiguous()
    if dtype.is_complex and x.dtype == dtype.to_real():
        return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    if x.dtype.is_complex and dtype == x.dtype.to_real():
        return torch.view_as_real(x.resolve_conj()).flatten(-2)
    return x.view(dtype)


def _copied(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # noqa: FBT001, FBT002
    """``copy``, which has no rule: the elements of ``source`` with the sizes and the dtype of ``x``."""
    return source.to(x.dtype).expand(x.shape).clone()


def _put(
    x: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,  # noqa: FBT001, FBT002 - the operator's own signature
) -> torch.Tensor:
    """``index_put``; with a mask, and one value for all that it lets through, a choice."""
    masks = [index for index in indices if index is not None and index.dtype == torch.bool]
    if len(indices) == 1 and masks and values.numel() == 1 and not accumulate:
        (mask,) = masks
        mask = mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))
        return torch.where(mask, values.reshape(()).to(x.dtype), x)
    by_each = any(map(batch_levels, masks))
    run = each if by_each else applied
    found: torch.Tensor = run(aten.index_put.default, (x, indices, values, accumulate), {})
    return found


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    """``index_fill`` as a choice: vmap fills all examples with the value of the last."""
    if not x.dim():
        return _index_fill(x[None], 0, index, value)[0]
    size, dim = x.shape[dim], dim % x.dim()
    chosen = (torch.arange(size, device=x.device)[:, None] == index.reshape(-1) % size).any(1)
    chosen = chosen.reshape(-1, *[1] * (x.dim() - dim - 1))
    filler = value.to(x.dtype) if isinstance(value, torch.Tensor) else torch.full((), value, dtype=x.dtype)
    return torch.where(chosen, filler, x)


def _index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """``index_select``; of unknown many indices, if those alone have a batch, for one example after the other."""
    by_each = isinstance(index.numel(), torch.SymInt) and batch_levels(index) and not batch_levels(x)
    run = each if by_each else applied
    found: torch.Tensor = run(aten.index_select.default, (x, dim, index), {})
    return found


def _embedding(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,  # noqa: FBT001, FBT002 - the operator's own signature
    sparse: bool = False,  # noqa: FBT001, FBT002
) -> torch.Tensor:
    """``embedding``; vmap knows the row without a gradient in the first of several tables alone."""
    if padding_idx < 0 or not batch_levels(weight) or not batch_levels(indices):
        found: torch.Tensor = aten.embedding.default(weight, indices, padding_idx, scale_grad_by_freq, sparse)
        return found
    rows = aten.embedding.default(weight, indices, -1, scale_grad_by_freq, sparse)
    return torch.where((indices == padding_idx).unsqueeze(-1), rows.detach(), rows)


def _select_scatter(x: torch.Tensor, source: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """``select_scatter`` as ``slice_scatter``: vmap writes each element many times, which its gradient counts."""
    index = index % x.shape[dim]
    return torch.slice_scatter(x, source.unsqueeze(dim), dim, index, index + 1)


def _lu_solve(
    lu: torch.Tensor,
    pivots: torch.Tensor,
    x: torch.Tensor,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> torch.Tensor:
    """``linalg_lu_solve`` with matrices of the same rank: vmap's rule takes the pivots of other ones by mistake."""
    batch = torch.broadcast_shapes(lu.shape[:-2], x.shape[:-2])  # type: ignore[no-untyped-call]  # torch leaves it so
    lu, x = (m.expand(*batch, *m.shape[-2:]) for m in (lu, x))
    found: torch.Tensor = aten.linalg_lu_solve.default(
        lu, pivots.expand(*batch, pivots.shape[-1]), x, left=left, adjoint=adjoint
    )
    return found


def _strided(
    base: Geometry, x: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], offset: int | None = None
) -> torch.Tensor:
    """``as_strided`` as view operators, or as a choice of elements."""
    asked = Geometry(tuple(sizes), tuple(strides), base.offset if offset is None else offset)
    chain = reify(base, asked)
    if chain is not None:
        for step in chain:
            op = resolve_op(step.op)
            x = _FREE.get(op, op)(x, *step.arguments)
        return x
    index = _positions(base, sizes, strides, offset, "as_strided")
    return x.reshape(-1)[index.reshape(-1)].reshape(tuple(sizes))


def _strided_scatter(
    base: Geometry,
    x: torch.Tensor,
    source: torch.Tensor,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int | None = None,
) -> torch.Tensor:
    index = _positions(base, sizes, strides, offset, "as_strided_scatter")
    flat = x.reshape(-1).index_copy(0, index.reshape(-1), source.reshape(-1))
    return flat.reshape(x.shape)


def _positions(
    base: Geometry, sizes: Sequence[int], strides: Sequence[int], offset: int | None, name: str
) -> torch.Tensor:
    """Which element of a tensor that lies as ``base`` each element of the asked geometry is."""
    asked = Geometry(tuple(sizes), tuple(strides), base.offset if offset is None else offset)
    places = torch.arange(max(base.span()[1], asked.span()[1], 1))
    memory = torch.full_like(places, -1)
    memory[places.as_strided(base.sizes, base.strides, base.offset).reshape(-1)] = torch.arange(base.numel)
    found = memory.as_strided(asked.sizes, asked.strides, asked.offset).clone()
    if (found < 0).any():
        raise foreign_memory(name, base, asked, None)
    return found


_STRIDED: dict[Any, Callable[..., torch.Tensor]] = {
    aten.as_strided.default: _strided,
    aten.as_strided_scatter.default: _strided_scatter,
}
"""Operators whose meaning depends on how their operand lies in memory."""


def _batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: torch.Tensor, variance: torch.Tensor, *options: Any
) -> tuple[torch.Tensor, ...]:
    """Batch normalisation that updates copies of the running statistics, which have the batch of what they are of."""
    zero = x.new_zeros((), dtype=mean.dtype)
    mean, variance = mean + zero, variance + zero
    return (*aten._native_batch_norm_legit.default(x, weight, bias, mean, variance, *options), mean, variance)


_FREE: dict[Any, Callable[..., Any]] = {
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten.view.dtype: _view_dtype,
    aten.copy.default: _copied,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten.view_as_complex.default: lambda x: aten.view_as_complex.default(x.contiguous()),
    aten.view_as_real.default: lambda x: aten.view_as_real.default(x.resolve_conj()),
    aten.embedding.default: _embedding,
    aten.index_fill.int_Scalar: _index_fill,
    aten.index_fill.int_Tensor: _index_fill,
    aten.index_put.default: _put,
    aten.index_select.default: _index_select,
    aten.linalg_lu_solve.default: _lu_solve,
    aten.select_scatter.default: _select_scatter,
    aten.sym_size.int: lambda x, dim: x.shape[dim],
    operator.getitem: operator.getitem,
    **NORMALIZATION,
}
"""Operators that vmap refuses in some layouts, or has no rule for, or a wrong one, as others."""

_COUNTED = frozenset(
    {
        aten.bincount.default,
        aten.index.Tensor,
        aten.masked_select.default,
        aten.nonzero.default,
        aten.repeat_interleave.Tensor,
    }
)
"""Operators that give as many elements as numbers in tensors say."""

_SUMS = frozenset({aten.sum.default, aten.sum.dim_IntList})

FILLS: dict[Any, Callable[..., Any]] = {
    aten.bernoulli.p: aten.bernoulli.p,  # PyTorch crashes in bernoulli_ where an outer vmap alone has a batch
    aten.bernoulli.Tensor: aten.bernoulli_.Tensor,
    aten.normal_functional.default: aten.normal_.default,
    aten.uniform.default: aten.uniform_.default,
    aten.random.default: aten.random_.default,
    aten.random.to: aten.random_.to,
    getattr(aten.random, "from"): getattr(aten.random_, "from"),
    aten.exponential.default: aten.exponential_.default,
    aten.log_normal.default: aten.log_normal_.default,
    aten.geometric.default: aten.geometric_.default,
    aten.cauchy.default: aten.cauchy_.default,
}
"""Operators that draw numbers for a tensor, and what fills one with them: vmap has rules for those."""
