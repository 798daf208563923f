"""The gradients of some outputs, as a part of the graph of those of all.

    a * x.cos() + b * w      the gradient of x; a and b are the cotangents of two outputs
    a * x.cos()              that of the first output alone: it reads x, and no w

Law: of a sum there is left what depends on a cotangent that is given, as the engine of autograd adds up only what there
is.  Where another operator brings together what is given and what is not, the graph does not say what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from purefx.functional.verify import returned
from purefx.operators import aten
from purefx.transforms.graphs import Graph, extract, needed, origin_of

Places = frozenset[int]
"""Positions among the inputs of a program."""


def read_with(graph: Graph, own: Places, others: Places) -> Places:
    """What ``graph`` reads to compute what depends on its inputs ``own``, besides those and ``others``."""
    linear, on_own = _dependents(graph, own | others), _dependents(graph, own)
    read = [x for node in on_own for x in node.all_input_nodes if x not in linear]
    places = _places(graph)
    return frozenset(places[node] for node in needed(read) if node in places)


def share(graph: Graph, outputs: Sequence[int], own: Places, others: Places) -> Graph | None:
    """The ``outputs`` of ``graph`` as far as they depend on its inputs ``own``, where there are no ``others``.

    None where the graph does not tell that, or where two of them would have the same memory.
    """
    nodes, on_own = returned(graph.functional.graph), _dependents(graph, own)
    places, values = _places(graph), graph.functional.values
    gone: set[fx.Node] = set()
    instead: dict[fx.Node, fx.Node] = {}
    for node in graph.functional.graph.nodes:
        operands = [instead.get(x, x) for x in node.all_input_nodes]
        left = [x for x in operands if x not in gone]
        if places.get(node) in others or (len(left) < len(operands) and not any(x in on_own for x in left)):
            gone.add(node)
        elif len(left) < len(operands) and _is_sum(node) and _looks_like(graph, left[0], node):
            instead[node] = left[0]
    found = [instead.get(node, node) for node in (nodes[graph.gives[i]] for i in outputs)]
    origins = [origin_of(node, values, instead) for node in found]
    alone = all(origin.op == "call_function" and origins.count(origin) == 1 for origin in origins)
    if not alone or needed(found, instead=instead) & gone:
        return None
    return extract(graph, found, instead)


def _dependents(graph: Graph, places: Places) -> set[fx.Node]:
    """The nodes that are, or depend on, the inputs at ``places``."""
    known, found = _places(graph), set[fx.Node]()
    for node in graph.functional.graph.nodes:
        if node.op != "output" and (known.get(node) in places or any(x in found for x in node.all_input_nodes)):
            found.add(node)
    return found


def _places(graph: Graph) -> dict[fx.Node, int]:
    """Which inputs of the program those of the graph are."""
    inputs = [node for node in graph.functional.graph.nodes if node.op == "placeholder"]
    return {node: x for node, x in zip(inputs, graph.takes, strict=True) if isinstance(x, int)}


def _is_sum(node: fx.Node) -> bool:
    return node.target is aten.add.Tensor and len(node.all_input_nodes) == 2 and not node.kwargs


def _looks_like(graph: Graph, x: fx.Node, y: fx.Node) -> bool:
    """Whether values have the same geometry, but for the place in memory, and the same type."""
    a, b = graph.functional.values[x], graph.functional.values[y]
    same = (a.geometry.sizes, a.geometry.strides) == (b.geometry.sizes, b.geometry.strides)
    return same and (a.dtype, a.conj, a.neg) == (b.dtype, b.conj, b.neg)
