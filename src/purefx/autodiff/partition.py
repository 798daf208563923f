"""Which values of the forward are kept for the backward, and which are computed again.

    default     what autograd saved is saved
    min_cut     PyTorch's own partitioner decides by the cost of keeping and of computing
    a function  of the joint graph, as `functorch.compile.default_partition`

Random calls are never run twice, whatever is asked for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import fx

from purefx._torch import FakeTensorProp, forget_new_symbols, min_cut_partition, without_merging, without_modes
from purefx.capture.captured import Capture
from purefx.functional.builder import Value
from purefx.functional.dead import has_effect
from purefx.functional.examples import example_of
from purefx.functional.rewrite import Rewriter
from purefx.functional.signature import BackwardInput, FunctionalBackward, ResidualInput
from purefx.functional.verify import returned

PartitionFunction = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]
Partition = Literal["default", "min_cut"] | PartitionFunction
"""How forward and backward are told apart."""


def choose_saved(
    capture: Capture, rewriter: Rewriter, backward: FunctionalBackward, partition: PartitionFunction
) -> frozenset[str]:
    """The names of the nodes of the forward graph whose values ``partition`` keeps for ``backward``."""
    outputs = [node for _, node in rewriter.outputs]
    joint, origin = _joint_graph(rewriter.graph, outputs, backward)
    tangents = [given for given in backward.inputs if not isinstance(given, ResidualInput)]
    examples = [example_of(capture, given) for given in (*rewriter.given, *tangents)]
    module = fx.GraphModule(dict(backward.constants), joint)
    with without_modes(), torch.no_grad(), without_merging():
        forget_new_symbols(capture.fake_mode)
        FakeTensorProp(module, capture.fake_mode).propagate_dont_convert_inputs(*examples)
        first, _ = partition(module, examples, num_fwd_outputs=len(outputs))
    saved = returned(first.graph)[len(outputs) :]
    return frozenset(origin[node.name] for node in saved if node.name in origin)


def check_partition(partition: object) -> None:
    """Raise ValueError if ``partition`` is none."""
    if not callable(partition) and partition not in ("default", "min_cut"):
        raise ValueError(f'there is no partition {partition!r}: "default" keeps what autograd keeps, "min_cut" less')


def partition_function(partition: Partition) -> PartitionFunction:
    """The function that ``partition`` names."""
    return min_cut_partition if partition == "min_cut" else partition  # type: ignore[return-value]  # no other name


def recompute(
    forward: fx.Graph, values: dict[fx.Node, Value], backward: FunctionalBackward, saved: frozenset[str]
) -> FunctionalBackward:
    """``backward`` with what it needs of ``forward`` computed again from ``saved`` and the inputs of ``forward``."""
    return _Recomputing(forward, values, backward, saved).run()


def _joint_graph(
    forward: fx.Graph, outputs: list[Any], backward: FunctionalBackward
) -> tuple[fx.Graph, dict[str, str]]:
    """Forward and backward in one graph; and the names in it of the nodes of ``forward``, with their own."""
    joint = fx.Graph()
    image: dict[fx.Node, fx.Node] = {}
    inputs = [node for node in forward.nodes if node.op == "placeholder"]
    for i, node in enumerate(inputs, start=1):
        image[node] = joint.placeholder(f"primals_{i}")
    placeholders = [node for node in backward.graph.nodes if node.op == "placeholder"]
    given = dict(zip(placeholders, backward.inputs, strict=True))
    tangents = [node for node, what in given.items() if not isinstance(what, ResidualInput)]
    for i, node in enumerate(tangents, start=1):
        image[node] = joint.placeholder(f"tangents_{i}")
    for node in forward.nodes:
        if node not in image:
            image[node] = joint.node_copy(node, image.__getitem__)
            image[node].meta["partitioner_tag"] = "is_forward"
    origin = {inner.name: outer.name for outer, inner in image.items() if outer.graph is forward}
    by_name = {node.name: node for node in forward.nodes}
    for node in backward.graph.nodes:
        what = given.get(node)
        if isinstance(what, ResidualInput):
            image[node] = image[by_name[what.name]]
        elif node.op == "output":
            gradients = [image[x] for x in returned(backward.graph)]
            joint.output((*fx.map_arg(tuple(outputs), image.__getitem__), *gradients))
        elif node not in image:
            image[node] = joint.node_copy(node, image.__getitem__)
            image[node].meta["partitioner_tag"] = "must_be_in_backward"
    return joint, origin


def _draws(node: fx.Node) -> bool:
    """Whether ``node``, or the call that it is a result of, must not run twice."""
    sequence = node.args[0] if node.target is operator.getitem else node
    return isinstance(sequence, fx.Node) and has_effect(sequence)


class _Recomputing:
    """The backward graph anew; ``_image`` maps nodes of both graphs to it."""

    def __init__(
        self, forward: fx.Graph, values: dict[fx.Node, Value], backward: FunctionalBackward, saved: frozenset[str]
    ) -> None:
        self._nodes = {node.name: node for node in forward.nodes}
        self._values = dict(values)
        self._backward = backward
        self._saved = saved
        self._graph = fx.Graph()
        self._image: dict[fx.Node, fx.Node] = {}
        self._inputs: dict[fx.Node, BackwardInput] = {}

    def run(self) -> FunctionalBackward:
        """The new graph."""
        graph = self._backward.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        given = dict(zip(placeholders, self._backward.inputs, strict=True))
        for node, what in given.items():
            if not isinstance(what, ResidualInput):
                self._inputs[self._placeholder(node)] = what
        for node in graph.nodes:
            what = given.get(node)
            if isinstance(what, ResidualInput):
                continue
            if node.op == "output":
                self._graph.output(tuple(self._read(x, given) for x in returned(graph)))
            elif node not in self._image:
                self._copy(node, lambda n: self._read(n, given))
        order = [node for node in self._graph.nodes if node.op == "placeholder"]
        return replace(
            self._backward,
            graph=self._graph,
            inputs=tuple(self._inputs[node] for node in order),
            values=self._values,
        )

    def _read(self, node: fx.Node, given: dict[fx.Node, BackwardInput]) -> fx.Node:
        """The image of a node of the backward graph."""
        what = given.get(node)
        return self._forward(self._nodes[what.name]) if isinstance(what, ResidualInput) else self._image[node]

    def _forward(self, node: fx.Node) -> fx.Node:
        """The image of a node of the forward graph: kept, or computed again."""
        if node not in self._image:
            if node.name in self._saved or node.op == "placeholder" or _draws(node):
                made = self._placeholder(node)
                self._inputs[made] = ResidualInput(node.name, self._values.get(node), node.meta.get("expression"))
            else:
                self._copy(node, self._forward)
        return self._image[node]

    def _placeholder(self, node: fx.Node) -> fx.Node:
        first = next((n for n in self._graph.nodes if n.op != "placeholder"), None)
        with self._graph.inserting_before(first):
            made = self._graph.placeholder(node.name)
        made.target = made.name  # another node may have that name
        made.meta.update(node.meta)
        return self._note(node, made)

    def _copy(self, node: fx.Node, image: Callable[[fx.Node], fx.Node]) -> None:
        arguments = {n: image(n) for n in node.all_input_nodes}
        self._note(node, self._graph.node_copy(node, arguments.__getitem__))

    def _note(self, node: fx.Node, made: fx.Node) -> fx.Node:
        self._image[node] = made
        value = self._values.get(node)
        if value is not None:
            origin = self._image.get(value.origin, made)
            self._values[made] = Value(made, value.geometry, value.dtype, value.conj, value.neg, origin)
        return made
