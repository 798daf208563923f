"""Values that an earlier graph has computed and kept, in the place of nodes that would compute them again.

    forward      a = exp(x); b = sin(a)          kept: a
    gradient     a = exp(x); ... mul(t, cos(a))  with a as an input: mul(t, cos(a))

Two nodes compute the same if they are calls of one operator on the same (value numbering).
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from purefx.capture.arguments import GradientOf, Held, Leaf, Source, TableEntry
from purefx.capture.captured import Input
from purefx.functional.dead import without_dead_nodes
from purefx.functional.roots import Root
from purefx.functional.signature import ForwardInput, ForwardOutput, Functional, RootInput
from purefx.functional.verify import returned
from purefx.operators import is_repeatable


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Values that a call hands over to its gradient: ``numbers`` are theirs, in that order.

    Those ``alike`` have the same geometry at every call; the sizes of others depend on the values of tensors.
    """

    numbering: Numbering
    numbers: tuple[int, ...]
    alike: frozenset[int]

    @classmethod
    def of(cls, functional: Functional, outputs: Sequence[ForwardOutput]) -> Kept:
        """What the graph ``functional`` returns as ``outputs``."""
        numbering = Numbering()
        numbers = numbering.of(functional.graph, map(_memory, functional.inputs))
        nodes = dict(zip(functional.outputs, returned(functional.graph), strict=True))
        kept = [nodes[output] for output in outputs]
        alike = frozenset(i for i, node in enumerate(kept) if functional.values[node].geometry.is_static)
        return cls(numbering, tuple(numbers[node] for node in kept), alike)

    def used(self, functional: Functional, given: Mapping[int, Input]) -> Functional:
        """``functional`` with what it is ``given`` of these values, by position, in the place of equal nodes."""
        inputs = {i: RootInput(f"kept_{i}", Root(x.before, x, (x,), written=False)) for i, x in given.items()}
        numbers = self.numbering.of(functional.graph, map(_memory, functional.inputs))
        return _using(functional, numbers, {self.numbers[i]: x for i, x in inputs.items()})


class Numbering:
    """Numbers for the values of graphs: of equal ones, where two nodes surely compute the same of the same."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def of(self, graph: fx.Graph, inputs: Iterable[Hashable]) -> dict[fx.Node, int]:
        """The number of each node of ``graph``; ``inputs`` tell its inputs from others, None those not known."""
        numbers: dict[fx.Node, int] = {}
        given = iter(inputs)
        for node in graph.nodes:
            key = next(given) if node.op == "placeholder" else _computation(node, numbers)
            numbers[node] = self._number(object() if key is None else key)
        return numbers

    def _number(self, key: Hashable) -> int:
        return self._known.setdefault(key, len(self._known))


def _memory(given: ForwardInput) -> Hashable:
    """What tells the memory ``given`` from any other; None if that is not known."""
    if not isinstance(given, RootInput) or given.root.base is None or not given.root.region.geometry.is_static:
        return None
    region, place = given.root.region, _place(given.root.base.sources[0])
    geometry = (*region.geometry.sizes, *region.geometry.strides, region.geometry.offset)
    return None if place is None else (place, geometry, region.dtype, region.conj, region.neg)


def _place(source: Source) -> Hashable:
    """Where the tensor is found at each call: another one may be there than at a capture; None if that is not known."""
    match source:
        case Leaf(index):
            return "leaf", index
        case TableEntry(table, key):
            return "entry", id(table), key
        case Held(tensor, _):  # a variable that holds another one is another specialisation
            return "held", id(tensor)
        case GradientOf():
            return None


def _computation(node: fx.Node, numbers: dict[fx.Node, int]) -> Hashable:
    """What tells the value of ``node`` from any other; None if two such nodes may have different ones."""
    if node.target is not operator.getitem and not is_repeatable(node.target):
        return None
    return node.target, _hashable(node.args, numbers), _hashable(node.kwargs, numbers)


def _hashable(x: Any, numbers: dict[fx.Node, int]) -> Hashable:
    if isinstance(x, fx.Node):
        return ("value", numbers[x])
    if isinstance(x, list | tuple):
        return (type(x).__name__, *(_hashable(item, numbers) for item in x))
    if isinstance(x, Mapping):
        return ("dict", *((name, _hashable(item, numbers)) for name, item in x.items()))
    return type(x).__name__, repr(x)


def _using(functional: Functional, numbers: Mapping[fx.Node, int], kept: Mapping[int, RootInput]) -> Functional:
    found = {n: kept[numbers[n]] for n in functional.graph.nodes if n.op == "call_function" and numbers[n] in kept}
    if not found:
        return functional
    graph, image, inputs = fx.Graph(), dict[fx.Node, fx.Node](), list(functional.inputs)
    placeholders = [n for n in functional.graph.nodes if n.op == "placeholder"]
    for node in placeholders:
        image[node] = graph.node_copy(node, image.__getitem__)
    for given in dict.fromkeys(found.values()):
        placeholder = graph.placeholder(given.name)
        placeholder.target = placeholder.name  # another input may have that name
        image.update((node, placeholder) for node, other in found.items() if other is given)
        inputs.append(given)
    for node in functional.graph.nodes:
        if node not in image:
            image[node] = graph.node_copy(node, image.__getitem__)
    values = {image[n]: v.moved(image[n], image.get(v.origin)) for n, v in functional.values.items() if n in image}
    lines = {image[n]: line for n, line in functional.lines.items() if n in image}
    without_dead_nodes(graph, inputs, keep=True)  # the next gradient may read what this one does not: it is watched
    return replace(functional, graph=graph, inputs=tuple(inputs), values=values, lines=lines, merges=(), in_place=())
