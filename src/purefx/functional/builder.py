"""Building a functional graph: nodes with the geometry, dtype and lazy bits that their values have at run time.

A `Value` is a node together with what the tensor that it stands for looks like.  Geometry matters although the
graph is functional: whether a ``view`` is allowed, and the strides of every result, depend on it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from purefx._torch import (
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    PythonReferenceAnalysis,
    ShapeEnv,
    pytree,
    resolve_op,
    schema_of,
    sympy_interp,
    without_modes,
)
from purefx.capture.recording import SYMBOLS, Recording, Region, map_tree
from purefx.errors import UnsupportedOperator
from purefx.layout import Chain, Geometry, Permute, Step, holds, same
from purefx.operators import aten

SCATTERS = frozenset(
    {
        aten.as_strided_scatter.default,
        aten.copy.default,
        aten.diagonal_scatter.default,
        aten.select_scatter.default,
        aten.slice_scatter.default,
    }
)
"""Operators whose result has, in eager, the storage offset of their first operand."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of the graph.  ``origin`` is the node that made its memory: a view has that of its base."""

    node: fx.Node
    geometry: Geometry
    dtype: torch.dtype
    conj: bool
    neg: bool
    origin: fx.Node

    def moved(self, node: fx.Node, origin: fx.Node | None) -> Value:
        """This value as that of ``node``, in a graph where its memory was made by ``origin``, or by that."""
        return replace(self, node=node, origin=node if origin is None else origin)


def unknown_number(expression: Any, recording: Recording) -> UnsupportedOperator:
    """The refusal of a size or an offset that no number which the graph has read out of a tensor determines."""
    call = next((c for c in recording if any(_has_symbols(o.region.geometry, expression) for o in c.outputs)), None)
    which = f"the size or offset {expression}" if call is None else f"a size or the offset of what {call.op} returns"
    return UnsupportedOperator(
        f"{which} depends on a number in a tensor in a way that the graph cannot compute,"
        " as that of a slice does that is written, or read after a write",
        where=None if call is None else call.where,
        remedy="choose the elements by a mask (torch.arange(n) < k) or by an index tensor, or x.split(sizes.tolist())",
    )


def _has_symbols(geometry: Geometry, expression: Any) -> bool:
    """Whether ``geometry`` has a symbol of ``expression``."""
    numbers = (*geometry.sizes, *geometry.strides, geometry.offset)
    return any(isinstance(x, SYMBOLS) and x.node.expr.free_symbols & expression.free_symbols for x in numbers)


@dataclass(slots=True, eq=False)
class Builder:
    """Appends nodes to ``graph`` for ``recording``.  ``symbols`` maps each size symbol to the node that computes it."""

    env: ShapeEnv
    recording: Recording
    graph: fx.Graph = field(default_factory=fx.Graph)
    values: dict[fx.Node, Value] = field(default_factory=dict)
    constants: dict[str, torch.Tensor | fx.GraphModule] = field(default_factory=dict)
    symbols: dict[Any, fx.Node] = field(default_factory=dict)
    lines: dict[fx.Node, str] = field(default_factory=dict)
    line: str = ""
    imports: dict[fx.Node, fx.Node] = field(default_factory=dict)
    kept_apart: set[fx.Node] = field(default_factory=set)

    def begin_graph(self, kept_apart: set[fx.Node]) -> fx.Graph:
        """Append to a new graph from now on, which takes what it needs of the old one; returns the old one.

        Views are run again in the new graph.  It takes the memory that they show, but of ``kept_apart`` no more than
        the views show.
        """
        done, self.graph = self.graph, fx.Graph()
        self.kept_apart = kept_apart
        return done

    def placeholder(self, name: str, region: Region) -> Value:
        """A graph input that looks like ``region``."""
        node = self.graph.placeholder(name)
        return self.fresh(node, region)

    def symbol_placeholder(self, symbol: Any) -> fx.Node:
        """A graph input that is the size ``symbol``."""
        node = self.graph.placeholder(str(symbol))
        node.meta["is_symbol"] = True
        self.number(symbol, node)
        return node

    def constant(self, tensor: torch.Tensor, region: Region) -> Value:
        """A tensor that is part of the graph."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = tensor
        return self.fresh(self.graph.get_attr(name), region)

    def module(self, module: fx.GraphModule) -> fx.Node:
        """A graph that nodes of this one take as an argument."""
        name = f"body_{len(self.constants)}"
        self.constants[name] = module
        return self.graph.get_attr(name)

    def fresh(self, node: fx.Node, region: Region) -> Value:
        """The value of ``node``, whose memory is its own and looks like ``region``."""
        return self.value(node, region.geometry, region.dtype, (region.conj, region.neg), node)

    def call(self, op: Callable[..., Any], args: Any, kwargs: Any = None) -> fx.Node:
        """A call of ``op``; symbols among the arguments become nodes.

        The arguments are set last: a graph that is told them looks for symbols in them, which costs more than all else.
        """
        lowered = map_tree(self.lower, args), map_tree(self.lower, kwargs) if kwargs else {}
        node = self.graph.call_function(op)
        node.args = tuple(lowered[0])
        if lowered[1]:
            node.kwargs = lowered[1]
        if self.line:
            self.lines[node] = self.line
        return node

    def item(self, node: fx.Node, position: int) -> fx.Node:
        """Element ``position`` of the tuple or list ``node``."""
        return self.call(operator.getitem, (node, position))

    def lower(self, x: Any) -> Any:
        """``x`` as an argument of a node: a value is its node, a symbol the nodes that compute it."""
        if isinstance(x, Value):
            return self.here(x.node)
        if isinstance(x, fx.Node):
            return self.here(x)
        if not isinstance(x, SYMBOLS):
            return x
        expression = x.node.expr
        if expression.is_number:
            return x.node.maybe_as_int() if isinstance(x, torch.SymInt) else type_of(x)(expression)
        if expression in self.symbols:
            return self.here(self.symbols[expression])
        tracer = fx.proxy.GraphAppendingTracer(self.graph)
        if not expression.free_symbols <= self.symbols.keys():
            unknown = expression.free_symbols - self.symbols.keys()
            raise unknown_number(min(unknown, key=str), self.recording)
        known = {s: fx.Proxy(self.here(self.symbols[s]), tracer) for s in expression.free_symbols}
        result = sympy_interp(PythonReferenceAnalysis, known, expression)
        node = result.node if isinstance(result, fx.Proxy) else result
        self.number(expression, node)
        return node

    def number(self, expression: Any, node: fx.Node) -> None:
        """Let ``node`` be what computes ``expression``."""
        self.symbols[expression] = node
        node.meta["expression"] = expression

    def here(self, node: fx.Node) -> fx.Node:
        """``node`` in the present graph, which takes the value of one of an earlier graph as an input."""
        if node.graph is self.graph:
            return node
        known = self.imports.get(node)
        if known is None:
            value = self.values.get(node)
            if node.op == "get_attr":
                known = self.graph.get_attr(str(node.target))
            elif is_view(node) and (value is None or value.origin not in self.kept_apart):
                known = self.graph.node_copy(node, self.here)
            else:
                with self.graph.inserting_before(next(iter(self.graph.nodes))):
                    known = self.graph.placeholder(node.name)
                known.target = known.name  # another node may have that name
                known.meta.update(node.meta)
            if value is not None:
                origin = value.origin if value.origin is not node else known
                self.values[known] = Value(known, value.geometry, value.dtype, value.conj, value.neg, origin)
            self.imports[node] = known
        return known

    def bind(self, node: fx.Node, geometry: Geometry) -> None:
        """Remember sizes that are known only once ``node`` has run, e.g. the number of rows of ``nonzero``."""
        for dim, size in enumerate(geometry.sizes):
            if isinstance(size, torch.SymInt) and size.node.expr.is_symbol and size.node.expr not in self.symbols:
                self.number(size.node.expr, self.call(aten.sym_size.int, (node, dim)))

    def view(self, value: Value, step: Step) -> Value:
        """The view ``step`` of ``value``."""
        node = self.call(resolve_op(step.op), (value.node, *map(as_list, step.arguments)))
        dtype = getattr(step, "dtype", value.dtype)
        return self.value(node, step.apply(value.geometry), dtype, (value.conj, value.neg), value.origin)

    def chain(self, value: Value, chain: Chain) -> Value:
        """The views ``chain`` of ``value``, one after another."""
        for step in chain:
            value = self.view(value, step)
        return value

    def view_call(self, value: Value, op: Callable[..., Any], args: Any, region: Region, geometry: Geometry) -> Value:
        """A view by the operator ``op`` that looks like ``region`` with its own ``geometry``."""
        node = self.call(op, args)
        return self.value(node, geometry, region.dtype, (region.conj, region.neg), value.origin)

    def with_geometry(self, value: Value, geometry: Geometry) -> Value:
        """``value`` known to have another geometry than was assumed."""
        return self.value(value.node, geometry, value.dtype, (value.conj, value.neg), value.origin)

    def with_bits(self, value: Value, *, conj: bool, neg: bool) -> Value:
        """The same numbers, lazily conjugated or negated as asked for."""
        flips = [(aten._conj_physical, value.conj != conj), (aten.neg, value.neg != neg)]
        if not any(flipped for _, flipped in flips):
            return value
        value = self.reread(value, conj=False, neg=False)  # such operators resolve the bits that they are given
        for op, flipped in flips:
            if flipped:
                node = self.call(op.default, (value.node,))
                value = self.value(node, dense(value.geometry), value.dtype, (False, False), node)
        return self.reread(value, conj=conj, neg=neg)

    def reread(self, value: Value, *, conj: bool, neg: bool) -> Value:
        """A view of the same memory, read with these lazy bits: other numbers, where the bits are others."""
        for op, flipped in ((aten._conj, value.conj != conj), (aten._neg_view, value.neg != neg)):
            if flipped:
                bits = (value.conj, neg) if op is aten._neg_view else (conj, value.neg)
                node = self.call(op.default, (value,))
                value = self.value(node, value.geometry, value.dtype, bits, value.origin)
        return value

    def cast(self, value: Value, dtype: torch.dtype, device: torch.device | None = None) -> Value:
        """``value`` as another dtype, on another device if one is given."""
        kwargs = {"dtype": dtype} if device is None else {"dtype": dtype, "device": device}
        node = self.call(aten._to_copy.default, (value.node,), kwargs)
        return self.value(node, dense(value.geometry), dtype, (False, False), node)

    def laid_out(self, value: Value, wanted: Geometry) -> Value:
        """A copy of ``value`` whose strides are in the order of those of ``wanted``, without gaps."""
        order = stride_order(wanted)
        back = tuple(sorted(range(len(order)), key=order.__getitem__))
        turned = value if order == tuple(range(len(order))) else self.view(value, Permute(order))
        node = self.call(aten.clone.default, (turned.node,), {"memory_format": torch.contiguous_format})
        made = self.value(node, Geometry.contiguous(turned.geometry.sizes), value.dtype, (False, False), node)
        return made if turned is value else self.view(made, Permute(back))

    def strided_as(self, value: Value, wanted: Geometry, device: torch.device) -> Value:
        """A copy of ``value`` in memory of its own with exactly the strides of ``wanted``, gaps included."""
        if wanted.is_dense:
            return self.with_geometry(self.laid_out(value, wanted), Geometry(wanted.sizes, wanted.strides, 0))
        options = {"dtype": value.dtype, "device": device}
        empty = self.call(aten.empty_strided.default, (list(wanted.sizes), list(wanted.strides)), options)
        node = self.call(aten.copy.default, (empty, value.node))
        geometry = Geometry(wanted.sizes, wanted.strides, 0)
        return self.value(node, geometry, value.dtype, (False, False), node)

    def starts_at_zero(self, value: Value) -> bool:
        """Whether the first element of ``value`` is certainly the first of its storage, in every backend."""
        made_by = value.origin.target
        inherits = made_by in SCATTERS or value.origin.op in ("placeholder", "get_attr")
        return not inherits and holds(value.geometry.offset == 0)

    def fills_its_storage(self, value: Value) -> bool:
        """Whether the memory of ``value`` is certainly no more than its elements, in every backend."""
        origin = self.values.get(value.origin)
        if origin is None or value.origin.op in ("placeholder", "get_attr"):
            return False
        if not same(value.geometry.numel, origin.geometry.numel):
            return False
        if value.origin.target not in SCATTERS:
            return True
        return self.fills_its_storage(self.values[value.origin.all_input_nodes[0]])

    def copy(self, value: Value) -> Value:
        """``value`` in memory of its own."""
        node = self.call(aten.clone.default, (value.node,))
        return self.value(node, dense(value.geometry), value.dtype, (False, False), node)

    def made_like(self, value: Value, node: fx.Node, geometry: Geometry) -> Value:
        """The value of ``node``, in memory of its own, with the dtype and lazy bits of ``value``."""
        return self.value(node, geometry, value.dtype, (value.conj, value.neg), node)

    def value(
        self, node: fx.Node, geometry: Geometry, dtype: torch.dtype, bits: tuple[bool, bool], origin: fx.Node
    ) -> Value:
        """The value of ``node``, whose memory was made by ``origin``."""
        made = Value(node, geometry, dtype, *bits, origin)
        self.values.setdefault(node, made)
        return made


def is_view(node: fx.Node) -> bool:
    """Whether ``node`` shows memory of its arguments, as far as its schema says."""
    if node.target is operator.getitem:
        sequence = node.args[0]
        return isinstance(sequence, fx.Node) and is_view(sequence)
    return isinstance(node.target, OpOverload) and any(r.alias_info is not None for r in schema_of(node.target).returns)


def type_of(symbol: Any) -> type:
    """The Python type of a symbolic number."""
    return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(symbol)]


def stride_order(geometry: Geometry) -> tuple[int, ...]:
    """The dimensions of ``geometry``, widest stride first; equal ones keep their order."""
    if not geometry.is_static:
        return _symbolic_order(geometry)
    return tuple(sorted(range(geometry.rank), key=lambda dim: -geometry.strides[dim]))


def _symbolic_order(geometry: Geometry) -> tuple[int, ...]:
    from_hint = [_hint(stride) for stride in geometry.strides]
    return tuple(sorted(range(geometry.rank), key=lambda dim: -from_hint[dim]))


def _hint(x: Any) -> int:
    return x if isinstance(x, int) else (x.node.hint if x.node.has_hint() else 0)


def dense(geometry: Geometry) -> Geometry:
    """The geometry without gaps that new tensors get from operands with ``geometry``: same order of strides."""
    if geometry.is_dense:
        return Geometry(geometry.sizes, geometry.strides, 0)
    order = stride_order(geometry)
    packed = Geometry.contiguous(tuple(geometry.sizes[dim] for dim in order)).strides
    strides = dict(zip(order, packed, strict=True))
    return Geometry(geometry.sizes, tuple(strides[dim] for dim in range(geometry.rank)), 0)


def fits(own: Geometry, wanted: Geometry) -> bool:
    """Whether a tensor with geometry ``own`` can stand for one with geometry ``wanted`` inside a graph.

    Operators see the same strides, or the same without the gaps: results and the views that are allowed agree.
    """
    return own.same_layout(wanted) or own.same_layout(dense(wanted))


def run_on_meta(
    op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], env: ShapeEnv
) -> list[tuple[Geometry, torch.dtype]]:
    """Geometry and dtype of the tensors that ``op`` returns for values among ``args``, in order.

    Sizes that are symbols of ``env`` take fake tensors: not every meta kernel takes symbols.
    """
    values = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Value)]
    symbolic = any(not value.geometry.is_static for value in values)
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True) if symbolic else None

    def stand_in(x: Any) -> Any:
        if isinstance(x, torch.device) and mode is None:
            return torch.device("meta")
        return _stand_in(x, mode) if isinstance(x, Value) else x

    given = map_tree(stand_in, tuple(args)), map_tree(stand_in, kwargs)
    with without_modes(), torch.no_grad(), nullcontext() if mode is None else mode:
        result = op(*given[0], **given[1])
    tensors = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    return [(Geometry(tuple(x.shape), tuple(x.stride()), 0), x.dtype) for x in tensors]


def _stand_in(value: Value, mode: FakeTensorMode | None) -> torch.Tensor:
    """A tensor without data that looks like ``value``."""
    geometry = value.geometry
    with without_modes():
        made = torch.empty_strided(geometry.sizes, geometry.strides, dtype=value.dtype, device="meta")
        if mode is not None:
            made = FakeTensor(mode, made, torch.device("cpu"))
    return aten._conj.default(made) if value.conj and mode is None else made


def as_list(x: Any) -> Any:
    """A tuple as the list that the schemas of view operators ask for."""
    return list(x) if isinstance(x, tuple) else x
