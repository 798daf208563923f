"""The backward as a functional graph of its own: what it needs of the forward are its residuals.

    y = x * w; z = y.exp()        forward    returns z; x and w are the caller's
    backward, given g             g * z -> * w, * x: takes tangent, z, x, w

What autograd saved is saved.  A view of a saved value is taken again, and the memory of a storage that the caller has
is that storage's own: a later write of the caller changes what eager's backward would read, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch import fx

from purefx.autodiff.backward import Backward
from purefx.capture.recording import Region
from purefx.functional.builder import Value
from purefx.functional.contents import Content
from purefx.functional.dead import without_dead_nodes
from purefx.functional.regions import first_elements, once
from purefx.functional.rewrite import Rewriter
from purefx.functional.roots import Root, infer_roots
from purefx.functional.signature import (
    BackwardInput,
    BackwardOutput,
    ForwardOutput,
    FunctionalBackward,
    GradientOutput,
    ResidualInput,
    ResidualOutput,
    RootInput,
    TangentInput,
    WrittenOutput,
)
from purefx.functional.verify import check_functional
from purefx.operators import aten


def rewrite_backward(rewriter: Rewriter, backward: Backward, *, by_value: bool = False) -> FunctionalBackward:
    """The functional graph of ``backward``; ``rewriter`` has been through the forward, and goes on from there.

    What the program writes of the caller's memory is read there, or ``by_value``.
    """
    rewriter.memory.part(rewriter.owned, rewriter.handed)
    rewriter.builder.begin_graph(kept_apart=_written_roots(rewriter) | _views_of_outputs(rewriter))
    return _BackwardRewriter(rewriter, backward, by_value).run()


def residual_outputs(rewriter: Rewriter, names: Iterable[str]) -> tuple[list[tuple[ForwardOutput, fx.Node]], list[Any]]:
    """The outputs by which the forward graph gives the values of the nodes ``names`` to the backward.

    Also where each value comes from: the root that is passed, the output of the program that it is, or a residual.
    """
    graph = rewriter.graph
    nodes = {node.name: node for node in graph.nodes}
    given = dict(zip((n for n in graph.nodes if n.op == "placeholder"), rewriter.given, strict=True))
    outputs = {node: output for output, node in rewriter.outputs if isinstance(node, fx.Node)}
    written = _written_roots(rewriter)
    added: list[tuple[ForwardOutput, fx.Node]] = []
    sources: list[Any] = []
    for name in names:
        if name in rewriter.memories:
            sources.append(RootInput(name, rewriter.memories[name]))
            continue
        node = nodes[name]
        value = rewriter.builder.values.get(node)
        if node in given and node not in written:
            sources.append(given[node])
        elif node in outputs:
            sources.append(outputs[node])
        else:
            if value is not None and (node in written or value.origin in rewriter.owned):
                node = graph.call_function(aten.clone.default, (node,))
            added.append((ResidualOutput(name), node))
            sources.append(added[-1][0])
    return added, sources


def _written_roots(rewriter: Rewriter) -> set[fx.Node]:
    """The inputs of the forward graph whose memory is written."""
    written = {output.root for output, _ in rewriter.outputs if isinstance(output, WrittenOutput)}
    placeholders = (n for n in rewriter.graph.nodes if n.op == "placeholder")
    pairs = zip(placeholders, rewriter.given, strict=True)
    return {node for node, given in pairs if isinstance(given, RootInput) and given.root in written}


def _views_of_outputs(rewriter: Rewriter) -> set[fx.Node]:
    """The nodes of whose memory an output of the forward graph is a view."""
    nodes = [node for _, node in rewriter.outputs if isinstance(node, fx.Node)]
    values = [rewriter.builder.values[node] for node in nodes if node in rewriter.builder.values]
    return {value.origin for value in values if value.origin is not value.node}


@dataclass(slots=True, eq=False)
class _BackwardRewriter:
    rewriter: Rewriter
    backward: Backward
    by_value: bool

    def run(self) -> FunctionalBackward:
        builder, memory = self.rewriter.builder, self.rewriter.memory
        graph = builder.graph
        given: dict[fx.Node, BackwardInput] = {} if self.by_value else dict(self._memories())
        contents = list(self.rewriter.roots)
        for i, region in self.backward.tangents:
            value = builder.placeholder(f"tangent_{i}", region)
            memory.begin(region, value)
            given[value.node] = TangentInput(value.node.name, i, region)
        for root in infer_roots(self.backward.recording, self.backward.inputs):
            value = builder.placeholder("held", root.region)
            contents.append((root, memory.begin(root.region, value)))
            given[value.node] = RootInput(value.node.name, root)
        memory.forget_writes()
        self.rewriter.rewrite(self.backward.calls)
        outputs = [*self._gradients(), *self._writes(contents)]
        graph.output(tuple(node for _, node in outputs))
        for outer, inner in builder.imports.items():
            given.setdefault(inner, ResidualInput(outer.name, builder.values.get(inner), outer.meta.get("expression")))
        inputs = without_dead_nodes(graph, [given[node] for node in graph.nodes if node.op == "placeholder"])
        check_functional(graph, self.rewriter.fresh_nodes())
        return FunctionalBackward(
            graph=graph,
            constants=builder.constants,
            inputs=tuple(inputs),
            outputs=tuple(o for o, _ in outputs),
            values=builder.values,
            lines=builder.lines,
            refusal=self.backward.refusal,
        )

    def _memories(self) -> Iterable[tuple[fx.Node, BackwardInput]]:
        """The caller's memory that the program has written, as inputs that the backward finds its content in."""
        taken = {node.name for node in self.rewriter.graph.nodes}
        for i, (root, content) in enumerate(self.rewriter.roots):
            single = root.region.at(once(root.region.geometry))
            if not root.written or content.region != single:
                continue
            name = next(n for n in (f"memory{'_' * k}_{i}" for k in count()) if n not in taken)
            value = self.rewriter.builder.placeholder(name, root.region)
            chain = first_elements(root.region.geometry, single.geometry)
            content.value = self.rewriter.builder.chain(value, chain)
            content.patches.clear()
            content.derived.clear()
            self.rewriter.memories[name] = root
            yield value.node, ResidualInput(name, value)

    def _gradients(self) -> Iterable[tuple[BackwardOutput, fx.Node]]:
        """Each gradient in memory of its own; one that two targets share once."""
        targets: dict[Region, list[int]] = {}
        for i, region in enumerate(self.backward.gradients):
            if region is not None:
                targets.setdefault(region, []).append(i)
        for region, positions in targets.items():
            yield GradientOutput(tuple(positions), region), self._gradient(region)

    def _gradient(self, region: Region) -> fx.Node:
        builder, memory = self.rewriter.builder, self.rewriter.memory
        value = memory.read_exactly(region)
        if self._is_taken(value):
            copied = builder.copy(value)
            fits = copied.geometry.same_layout(region.geometry)
            value = copied if fits else builder.strided_as(value, region.geometry, region.storage.device)
        self.rewriter.owned[value.origin] = region.storage
        return value.node

    def _is_taken(self, value: Value) -> bool:
        """Whether the caller, the forward or another gradient has the memory of ``value``."""
        origin = value.origin
        return (
            origin.graph is not self.rewriter.builder.graph
            or origin in self.rewriter.owned
            or (origin.op != "call_function")
        )

    def _writes(self, contents: list[tuple[Root, Content]]) -> Iterable[tuple[BackwardOutput, fx.Node]]:
        """What the backward writes to the memory of the caller."""
        builder, memory = self.rewriter.builder, self.rewriter.memory
        for root, content in contents:
            for region in memory.written(content):
                value = memory.read(region)
                value = builder.copy(value) if self._is_taken(value) else value
                self.rewriter.owned[value.origin] = region.storage
                yield WrittenOutput(root, region, None), value.node
