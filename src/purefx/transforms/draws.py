"""The random numbers of a program under transforms: they are drawn once for a call, and the program is given them.

    y = torch.zeros(3); y.uniform_(); return x * y        the program: (x, drawn) -> x * drawn

Rule: what transforms make of a program (its batch, its tangent, the gradient of its gradient) reads the numbers that
the call has drawn.  If each drew by itself, the mask of a value would be another one than that of its tangent.
The running transforms draw, as in eager: ``randomness`` is heeded although nothing with a batch is computed with.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from purefx._torch import OpOverload, is_batching, schema_of
from purefx.errors import TransformRefused
from purefx.functional.builder import Value
from purefx.functional.dead import without_dead_nodes
from purefx.functional.on_copies import OnCopies
from purefx.functional.signature import FunctionalGraph, ResidualInput
from purefx.functional.verify import returned
from purefx.layout import Geometry
from purefx.operators import aten, facts, missing_defaults
from purefx.transforms.batching import FILLS
from purefx.transforms.graphs import Graph, Tensors, extract
from purefx.transforms.levels import batch_levels

_STEADY = frozenset({aten._scaled_dot_product_flash_attention_for_cpu.default})
"""Operators that are tagged as random, and draw nothing."""

_LIKE = frozenset(
    {
        aten.rand_like.default,
        aten.randn_like.default,
        aten.randint_like.default,
        aten.randint_like.low_dtype,
    }
)
"""Operators that read the sizes of their first operand, and no element."""

_FILLING: dict[Any, Any] = {**FILLS, **{op: op for op in FILLS.values()}, aten.bernoulli_.float: aten.bernoulli.p}
"""Operators that fill a tensor with numbers, or make one of them, and those that vmap has a rule for."""

_RULED = frozenset(
    {
        *FILLS.values(),
        aten._standard_gamma.default,
        aten.bernoulli.default,
        aten.binomial.default,
        aten.multinomial.default,
        aten.native_dropout.default,
        aten.normal.Tensor_Tensor,
        aten.normal.Tensor_float,
        aten.normal.float_Tensor,
        aten.poisson.default,
    }
)
"""Operators that draw for tensors, and that vmap has a rule for which heeds ``randomness``."""


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """Numbers that ``op`` writes to a tensor like ``like``, or makes like it, in the order of memory.

    ``alone`` is the operator of the program, which draws for a single example.
    """

    op: Any
    alone: Any
    like: Geometry
    dtype: torch.dtype
    device: torch.device
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def draw(self) -> Tensors:
        """The numbers: of each example where a vmap asks for different ones, as it gives no elements a batch too.

        Some operators draw others for memory with gaps, as the program's may be.
        """
        sizes, strides = self.like.sizes, self.like.strides
        options = {"dtype": self.dtype, "device": self.device}
        batch = aten.rand.default([0])
        if not batch_levels(batch):
            return (self.alone(batch.new_empty_strided(sizes, strides, **options), *self.args, **self.kwargs),)
        order = sorted(range(len(sizes)), key=lambda dim: -strides[dim])
        new = batch.new_empty([sizes[dim] for dim in order], **options)
        drawn: torch.Tensor = self.op(new, *self.args, **self.kwargs)
        return (drawn.permute(sorted(range(len(sizes)), key=order.__getitem__)),)


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """Numbers that the operator of ``node`` draws; ``operands`` computes its tensors, if it has any."""

    node: fx.Node
    operands: Graph | None

    def draw(self, *operands: torch.Tensor) -> Tensors:
        """The numbers."""
        known = dict(zip(self.node.all_input_nodes, operands, strict=True))
        given: Any = fx.map_arg((self.node.args, self.node.kwargs), known.__getitem__)
        args, kwargs = given
        target: Any = self.node.target
        if target in FILLS:
            new = aten.rand.default([0]).new_empty(args[0].shape, dtype=args[0].dtype, device=args[0].device)
            target, args = FILLS[target], (new, *args[1:])
        if operands and is_batching() and target not in _RULED:
            raise _unruled(_op(self.node))
        drawn = target(*args, **kwargs)
        return (drawn,) if isinstance(drawn, torch.Tensor) else tuple(drawn)


def _unruled(op: Any) -> TransformRefused:
    return TransformRefused(
        f"{op} draws random numbers, and vmap has no rule for that",
        where=None,
        remedy="draw them with other operators, or outside of vmap",
    )


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """What a program draws: its inputs from number ``first`` on.  ``ops`` are the operators, in order."""

    first: int
    ops: tuple[Any, ...]
    each: tuple[Filled | Computed, ...]

    @property
    def count(self) -> int:
        """How many tensors are drawn."""
        return sum(map(_count, self.ops))

    @property
    def dependent(self) -> bool:
        """Whether something is drawn of what the program computes."""
        return any(isinstance(draw, Computed) and draw.operands is not None for draw in self.each)


def infer_draws(graph: Graph, first: int) -> Draws:
    """What ``graph`` draws, for a program that has ``first`` other inputs."""
    nodes = list(_random(graph.functional.graph))
    ops = tuple(map(_op, nodes))
    if not nodes:
        return Draws(first, (), ())
    given, image = _with_inputs(graph, Draws(first, ops, ()))
    return Draws(first, ops, tuple(_draw(graph, node, given, image) for node in nodes))


def with_draws(graph: Graph, draws: Draws | None) -> Graph:
    """``graph`` of what a program computes, in which it is given what it draws; a batch has been given it before."""
    ops = tuple(map(_op, _random(graph.functional.graph)))
    if draws is None or not draws.ops or not ops:
        return graph
    if [_FILLING.get(op, op) for op in ops[: len(draws.ops)]] != [_FILLING.get(op, op) for op in draws.ops]:
        raise TransformRefused(
            f"the program draws {', '.join(map(str, draws.ops))}, and where it is differentiated"
            f" {', '.join(map(str, ops))}",
            where=None,
            remedy="draw before the function is called, and pass the numbers",
        )
    given, _ = _with_inputs(graph, draws)
    without_dead_nodes(given.functional.graph, list(given.functional.inputs), keep=True)
    return given


def _random(graph: fx.Graph) -> Iterator[fx.Node]:
    return (node for node in graph.nodes if node.op == "call_function" and _draws(_op(node)))


def _op(node: fx.Node) -> Any:
    return node.target.op if isinstance(node.target, OnCopies) else node.target


def _draws(op: Any) -> bool:
    return isinstance(op, OpOverload) and facts(op).random and op not in _STEADY


def _count(op: OpOverload) -> int:
    return len(schema_of(op).returns)


def _draw(graph: Graph, node: fx.Node, given: Graph, image: dict[fx.Node, fx.Node]) -> Filled | Computed:
    """How the numbers of ``node`` are drawn; ``given`` is ``graph`` with inputs in the place of what it draws."""
    target: Any = node.target
    if isinstance(target, OnCopies) and target.op in _FILLING and len(node.all_input_nodes) == 1:
        drawing: Any = target.op
        op, args, kwargs = _FILLING[drawing], target.args, target.kwargs
        passed = ((*args[1:], *missing_defaults(drawing, op, args, kwargs)), kwargs)
        return _filled(graph, node, (op, drawing), passed)
    if target in _FILLING and len(node.all_input_nodes) == 1:
        return _filled(graph, node, (_FILLING[target], target), (node.args[1:], node.kwargs))
    if target in _LIKE and len(node.all_input_nodes) == 1:
        return _filled(graph, node, (target, target), (node.args[1:], node.kwargs))
    operands = [_copy(given.functional, image[x]) for x in node.all_input_nodes]
    return Computed(node, extract(given, operands) if operands else None)


def _copy(functional: FunctionalGraph, node: fx.Node) -> fx.Node:
    """A copy of ``node`` in its graph: what a graph returns is none of its inputs."""
    with functional.graph.inserting_before(functional.graph.output_node()):
        copy = functional.graph.call_function(aten.clone.default, (node,))
    functional.values[copy] = functional.values[node].moved(copy, copy)
    return copy


def _filled(graph: Graph, node: fx.Node, ops: tuple[Any, Any], passed: tuple[Any, Any]) -> Filled:
    value = graph.functional.values[node.all_input_nodes[0]]
    return Filled(*ops, value.geometry, value.dtype, graph.capture.recording.storages[0].device, *passed)


def _results(node: fx.Node) -> Iterator[tuple[int, fx.Node]]:
    """The tensors among what ``node`` returns that somebody reads, with their numbers."""
    items = [user for user in node.users if user.target is operator.getitem]
    if isinstance(node.target, OnCopies) or _count(_op(node)) > 1:
        yield from sorted((int(str(item.args[1])), item) for item in items)
    else:
        yield 0, node


def _with_inputs(graph: Graph, draws: Draws) -> tuple[Graph, dict[fx.Node, fx.Node]]:
    """``graph`` with inputs in the place of what it draws, and what its nodes have become."""
    functional, made = graph.functional, fx.Graph()
    image: dict[fx.Node, fx.Node] = {}
    inputs, takes = list(functional.inputs), list(graph.takes)
    values: dict[fx.Node, Value] = {}
    for node in functional.graph.nodes:
        if node.op == "placeholder":
            image[node] = made.node_copy(node)
    nodes = [node for node, _ in zip(_random(functional.graph), draws.ops, strict=False)]
    number = draws.first
    for node, op in zip(nodes, draws.ops, strict=True):
        for i, result in _results(node):
            image[result] = made.placeholder(f"drawn_{number + i}")
            inputs.append(ResidualInput(image[result].name, functional.values[result]))
            takes.append(number + i)
        number += _count(op)
    outputs = {functional.values[node].origin for node in returned(functional.graph) if node in functional.values}
    for result in [result for node in nodes for _, result in _results(node)]:
        image[result] = _laid_out(image[result], functional.values[result], values, copied=result in outputs)
    for node in functional.graph.nodes:
        if node not in image and node not in nodes:
            image[node] = made.node_copy(node, image.__getitem__)
    known = {n: v for n, v in functional.values.items() if n in image}
    values |= {image[n]: v.moved(image[n], image.get(v.origin)) for n, v in known.items()}
    changed = FunctionalGraph(made, functional.constants, tuple(inputs), functional.outputs, values, {})
    return replace(graph, functional=changed, takes=tuple(takes)), image


def _laid_out(x: fx.Node, value: Value, values: dict[fx.Node, Value], *, copied: bool) -> fx.Node:
    """``x``, which is without gaps, as ``value`` lies in memory; as a copy, if the graph returns it."""
    made, geometry = x.graph, value.geometry
    if geometry.is_contiguous:
        return made.call_function(aten.clone.default, (x,)) if copied else x
    sizes, strides, length = list(geometry.sizes), list(geometry.strides), geometry.span()[1]
    memory = made.call_function(aten.new_zeros.default, (x, [length]))
    filled = made.call_function(aten.as_strided_scatter.default, (memory, x, sizes, strides, geometry.offset))
    for node in (memory, filled):
        values[node] = replace(value, node=node, geometry=Geometry.contiguous((length,)), origin=node)
    return made.call_function(aten.as_strided.default, (filled, sizes, strides, geometry.offset))
