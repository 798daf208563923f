"""The verifier: what "functional" means, as a list of rules that a graph keeps.

1. No operator in the graph writes, as far as its schema says.
2. No output shares memory with an input, a constant or another output.
3. Every name that is read is defined before.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from purefx._torch import OpOverload, schema_of
from purefx.errors import ImpureGraph
from purefx.operators import facts


def check_functional(graph: fx.Graph) -> None:
    """Raise ImpureGraph, with the graph as a note, unless ``graph`` keeps the rules of this module."""
    try:
        _check_writes(graph)
        _check_outputs(graph)
        graph.lint()
    except ImpureGraph as error:
        error.add_note(str(graph))
        raise


def _check_writes(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and facts(node.target).written:
            raise ImpureGraph(f"{node.name} = {node.target} writes to {', '.join(facts(node.target).written)}")


def _check_outputs(graph: fx.Graph) -> None:
    origins = origins_of(graph)
    taken = {n: f"input {n.name}" for n in graph.nodes if n.op in ("placeholder", "get_attr")}
    for i, node in enumerate(returned(graph)):
        if not isinstance(node, fx.Node) or _is_number(node):
            continue
        if origins[node] in taken:
            raise ImpureGraph(f"output {i} ({node.name}) shares memory with {taken[origins[node]]}")
        taken[origins[node]] = f"output {i}"


def returned(graph: fx.Graph) -> tuple[Any, ...]:
    """What ``graph`` returns: nodes and plain values."""
    values = graph.output_node().args[0]
    assert isinstance(values, tuple), "a functional graph returns a tuple"
    return values


def origins_of(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """For each node the one that made its memory, as far as schemas say."""
    origins: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        origins[node] = _origin(node, origins)
    return origins


def _origin(node: fx.Node, origins: dict[fx.Node, fx.Node]) -> fx.Node:
    """The node that made the memory of ``node``, as far as schemas say."""
    if node.target is operator.getitem:
        sequence = node.args[0]
        assert isinstance(sequence, fx.Node)
        return node if origins[sequence] is sequence else origins[sequence]
    if not isinstance(node.target, OpOverload):
        return node
    schema = schema_of(node.target)
    shared = {name for r in schema.returns if r.alias_info is not None for name in r.alias_info.before_set}
    for argument, given in zip(schema.arguments, node.args, strict=False):
        if argument.alias_info is not None and shared & argument.alias_info.before_set and isinstance(given, fx.Node):
            return origins[given]
    return node


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and not any(
        "Tensor" in str(r.type) for r in schema_of(node.target).returns
    )
