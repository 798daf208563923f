"""The verifier: what "functional" means, as a list of rules that a graph keeps.

1. No operator in the graph writes, as far as its schema says (and `HIDDEN_WRITES`).
2. No output shares memory with an input, a constant or another output.
3. Every name that is read is defined before.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from purefx._torch import OpOverload, schema_of
from purefx.errors import ImpureGraph
from purefx.operators import HIDDEN_WRITES, argument, facts


def check_functional(graph: fx.Graph, fresh: frozenset[fx.Node] = frozenset()) -> None:
    """Raise ImpureGraph, with the graph as a note, unless ``graph`` keeps the rules of this module.

    ``fresh`` are the nodes that made memory of their own although their schema leaves it open (``contiguous``).
    """
    try:
        _check_writes(graph)
        _check_outputs(graph, fresh)
        graph.lint()
    except ImpureGraph as error:
        error.add_note(str(graph))
        raise


def _check_writes(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and _written(node.target, node):
            raise ImpureGraph(f"{node.name} = {node.target} writes to {', '.join(facts(node.target).written)}")


def _written(op: OpOverload, node: fx.Node) -> bool:
    """Whether this call of ``op`` writes: to an argument that is not None, nor an empty list."""
    hidden = HIDDEN_WRITES.get(op)
    names = facts(op).written
    if hidden is not None and not argument(op, node.args, node.kwargs, hidden.condition):
        names = tuple(name for name in names if name not in hidden.written)
    given = [argument(op, node.args, node.kwargs, name) for name in names]
    return any(x is not None and x != [] for x in given)


def _check_outputs(graph: fx.Graph, fresh: frozenset[fx.Node]) -> None:
    origins = origins_of(graph, fresh)
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


def origins_of(graph: fx.Graph, fresh: frozenset[fx.Node] = frozenset()) -> dict[fx.Node, fx.Node]:
    """For each node the one that made its memory, as far as schemas say; nodes in ``fresh`` made their own."""
    origins: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        origins[node] = node if node in fresh else _origin(node, origins)
    return origins


def _origin(node: fx.Node, origins: dict[fx.Node, fx.Node]) -> fx.Node:
    if node.target is operator.getitem:
        sequence = node.args[0]
        assert isinstance(sequence, fx.Node)
        return node if origins[sequence] is sequence else origins[sequence]
    if not isinstance(node.target, OpOverload):
        return node
    for argument_, given in zip(schema_of(node.target).arguments, node.args, strict=False):
        if argument_.alias_info is not None and isinstance(given, fx.Node):  # a view op: its results show this argument
            return origins[given]
    return node


def _is_number(node: fx.Node) -> bool:
    if node.op == "placeholder":
        return bool(node.meta.get("is_symbol"))
    if not isinstance(node.target, OpOverload):
        return node.target is not operator.getitem and getattr(node.target, "__module__", "") in (
            "_operator",
            "math",
            "torch",
        )
    return not any("Tensor" in str(r.type) for r in schema_of(node.target).returns)
