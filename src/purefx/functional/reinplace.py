"""The way back: a functional graph whose writes to the caller's memory happen in place again.

    new = index_copy(cache, 2, i, k)          index_copy_(cache, 2, i, k)
    scores = matmul(q, new)                   scores = matmul(q, cache)
    return new, scores                        return scores

For running a graph as it is, without a compiler: what the program wrote in place is not copied, and nothing is
left to write back.  Rule: a write may happen in place if nobody reads the old elements any more, and the new value
leaves the graph as the content of that very place alone.

    a[0].copy_(b); b.add_(1); return a.sum()  the row of a is the old value of b, which is read after the write of
                                              b in the functional graph: that write stays out of place
    a.add_(1); b.copy_(a); a.add_(1)          the new value of b is that of a between its writes
    a[1].add_(1); a[0].copy_(a[1]); a[1].zero_()    and that of a row is that of another
    b.copy_(a.add_(1)); a.zero_(); a.copy_(b)       the content of a is what it was before its second write
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from purefx._torch import ShapeEnv, resolve_op
from purefx.capture.recording import Recording, Region
from purefx.functional.builder import Builder, as_list
from purefx.functional.contents import Merge
from purefx.functional.dead import without_dead_nodes
from purefx.functional.regions import chain_between, disjoint
from purefx.functional.roots import Root
from purefx.functional.signature import ForwardInput, ForwardOutput, Functional, RootInput, WrittenOutput
from purefx.functional.verify import origins_of, returned
from purefx.functional.writes import InPlace
from purefx.layout import Chain, reify
from purefx.operators import aten


@dataclass(frozen=True, slots=True, eq=False)
class Reinplaced:
    """A graph that writes in place what it can; ``obstacles`` say of other roots why not, where there is more to it."""

    functional: Functional
    obstacles: Mapping[Root, str]


def with_in_place_writes(
    functional: Functional, needed: Collection[ForwardOutput] = (), *, inference: bool
) -> Reinplaced:
    """``functional`` with the writes of its roots in place where that is safe; without their outputs.

    Roots stay as they are whose write autograd sees, or whose new value is ``needed`` elsewhere.  The graph is to run
    in ``inference`` mode or outside of it.
    """
    if not functional.merges and not functional.in_place:
        return Reinplaced(functional, {})
    return _Reinplacer(functional, needed, inference=inference).run()


_ELSEWHERE = "its new value is a result, is written elsewhere, or is kept for the backward"


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A ``value`` of the old graph that is in ``region`` of the memory of a root."""

    value: fx.Node
    region: Region


class _Reinplacer:
    """``_newest`` is the value of each root so far, in the old graph; ``_memory`` the root in the new graph.

    A root is in both as long as its newest value is in its own memory; ``_obstacles`` has what was in the way first.
    ``_held`` has what is in the memory of the root in the new graph: the root, its newer values, and values of parts of
    it that have been written by way of views.  Each value is known by the node that made its memory in the old graph.
    """

    def __init__(self, functional: Functional, needed: Collection[ForwardOutput], *, inference: bool) -> None:
        written = [o for o in functional.outputs if isinstance(o, WrittenOutput)]
        self._obstacles = {o.root: obstacle for o in written if (obstacle := _fixed(o, needed))}
        self._inference = inference
        self._old = functional
        self._origins = origins_of(functional.graph)
        self._place = {node: i for i, node in enumerate(functional.graph.nodes)}
        writes: list[tuple[Root, Merge | InPlace]] = [*functional.merges, *functional.in_place]
        self._writes = {write.after: (root, write) for root, write in writes}
        self._builder = Builder(ShapeEnv(), Recording())
        self._graph = self._builder.graph
        self._image: dict[fx.Node, Any] = {}
        self._newest: dict[Root, fx.Node] = {}
        self._memory: dict[Root, fx.Node] = {}
        self._held: dict[Root, dict[fx.Node, _Held]] = {}

    def run(self) -> Reinplaced:
        inputs = iter(self._old.inputs)
        for node in self._old.graph.nodes:
            if node.op == "output":
                break
            if not self._wrote_in_place(node):
                image = self._image[node] = self._graph.node_copy(node, self._image.__getitem__)
                if "expression" in node.meta:
                    self._builder.number(node.meta["expression"], image)
            if node.op == "placeholder":
                self._begin(next(inputs), node)
        kept = [(o, n) for o, n in self._outputs() if not self._is_done(o, n)]
        self._graph.output(tuple(self._image[n] if isinstance(n, fx.Node) else n for _, n in kept))
        without_dead_nodes(self._graph, list(self._old.inputs), keep=True)
        written = frozenset(root for root, held in self._held.items() if len(held) > 1)
        outputs = tuple(o for o, _ in kept)
        graph = replace(self._old, graph=self._graph, outputs=outputs, written=written)
        return Reinplaced(graph, self._obstacles)

    def _is_done(self, output: ForwardOutput, node: Any) -> bool:
        """Whether ``output`` tells of what the graph itself has written."""
        if not isinstance(output, WrittenOutput):
            return False
        newer = list(self._held.get(output.root, {}).values())[1:]
        return any(self._is_there(output, node, held) for held in newer)

    def _is_there(self, output: WrittenOutput, node: Any, held: _Held) -> bool:
        """Whether ``node``, the content of a region of a root, lies in that region where ``held`` is in memory.

        a[0].add_(1); a[1].copy_(a[0])        the content of the second row is in the memory of the first
        """
        if output.whole is held.value:
            return True
        return self._origins[node] is self._origins[held.value] and self._shows(held, node, output.region)

    def _begin(self, given: ForwardInput, node: fx.Node) -> None:
        if not isinstance(given, RootInput) or given.root in self._obstacles:
            return
        obstacle = _unwritable(given.root, inference=self._inference)
        if obstacle:
            self._obstacles[given.root] = obstacle
        else:
            self._newest[given.root], self._memory[given.root] = node, self._image[node]
            self._held[given.root] = {node: _Held(node, given.root.region)}

    def _outputs(self) -> list[tuple[ForwardOutput, Any]]:
        return list(zip(self._old.outputs, returned(self._old.graph), strict=True))

    def _wrote_in_place(self, node: fx.Node) -> bool:
        """Do the write that made ``node`` in place, if it is one and may be."""
        root, write = self._writes.get(node, (None, None))
        if root is None or write is None or not self._is_next(root, write):
            return False
        obstacle = self._obstacle(root, write)
        if obstacle:
            self._obstacles.setdefault(root, obstacle)
            return False
        if isinstance(write, Merge):
            self._merge(root, write)
        else:
            self._write(write)
        if self._newest[root] is write.before:
            self._newest[root] = write.after
        self._image[write.after] = self._image[write.before]
        self._held[root][self._origins[write.after]] = _Held(write.after, write.region)
        return True

    def _is_next(self, root: Root, write: Merge | InPlace) -> bool:
        """Whether what ``write`` changes is in the memory of ``root``."""
        if isinstance(write, Merge):
            return self._newest.get(root) is write.before
        held = self._held.get(root, {}).get(self._origins[write.before])
        return held is not None and self._shows(held, write.before, write.region)

    def _shows(self, held: _Held, node: fx.Node, region: Region) -> bool:
        """Whether ``node``, a view of ``held``, certainly shows ``region``."""
        base, view = self._old.values.get(held.value), self._old.values.get(node)
        if base is None or view is None or not base.dtype == view.dtype == region.dtype == held.region.dtype:
            return False
        chain = reify(held.region.geometry, region.geometry)
        return chain is not None and chain == reify(base.geometry, view.geometry)

    def _is_held(self, root: Root, value: fx.Node, region: Region) -> bool:
        """Whether ``value`` has been written to ``region`` in place."""
        held = self._held[root].get(self._origins[value])
        return held is not None and held.value is value and held.region == region

    def _obstacle(self, root: Root, write: Merge | InPlace) -> str:
        """What is in the way of ``write``, the next of ``root``; nothing, if it may happen in place."""
        if isinstance(write, Merge):
            sources = [value for region, value in write.writes if not self._is_held(root, value, region)]
            if any(region.conj or region.neg for region, _ in write.writes):
                return "what is written is lazily conjugated or negated"
            if any(chain_between(write.region, region) is None for region, _ in write.writes):
                return "no view shows the elements that are written"
        else:
            sources = [n for n in write.after.all_input_nodes if n is not write.before]
        held = self._held[root]
        if any(self._origins[s] in held for s in sources):
            return "what is written there is in the same memory"
        if self._origins[write.after] in held or not all(self._is_last(write, x) for x in held.values()):
            return "what it held before is read after the write"
        return "" if self._stays_in(root, _Held(write.after, write.region)) else _ELSEWHERE

    def _is_last(self, write: Merge | InPlace, held: _Held) -> bool:
        """Whether ``write`` changes nothing of ``held`` that is read later."""
        if isinstance(write, Merge) and any(value is held.value for _, value in write.writes):
            return True
        reads = self._reads(self._origins[held.value], self._place[write.after])
        changed = [region for region, _ in write.writes] if isinstance(write, Merge) else [write.region]
        return all(disjoint(self._region(held, node), region) for node in reads for region in changed)

    def _region(self, held: _Held, node: fx.Node) -> Region:
        """A region that includes what ``node`` shows, which is ``held`` or a view of it."""
        base, view = self._old.values.get(held.value), self._old.values.get(node)
        if base is None or view is None or base.geometry != held.region.geometry or base.dtype != view.dtype:
            return held.region
        return held.region.at(view.geometry)

    def _reads(self, origin: fx.Node, place: int) -> list[fx.Node]:
        """The nodes in memory that ``origin`` made which operators, or who has the outputs, read after ``place``."""
        aliases = [node for node, made in self._origins.items() if made is origin]
        return [node for node in aliases if any(self._place[user] > place for user in self._readers(node))]

    def _readers(self, node: fx.Node) -> list[fx.Node]:
        """The users of ``node`` that are no views of it."""
        return [x for x in node.users if x.op == "output" or self._origins[x] is not self._origins[node]]

    def _write(self, write: InPlace) -> None:
        args, kwargs = fx.map_arg((write.args, write.kwargs), self._image.__getitem__)
        self._graph.call_function(write.op, args, kwargs)

    def _stays_in(self, root: Root, held: _Held) -> bool:
        """Whether no output has the memory of ``held`` but those that are the content of ``root`` just there."""
        return all(
            isinstance(output, WrittenOutput) and output.root is root and self._is_there(output, node, held)
            for output, node in self._outputs()
            if isinstance(node, fx.Node) and self._origins[node] is self._origins[held.value]
        )

    def _merge(self, root: Root, merge: Merge) -> None:
        for region, value in merge.writes:
            if self._is_held(root, value, region):
                continue
            chain = chain_between(merge.region, region)
            assert chain is not None
            target = self._views(self._memory[root], chain)
            self._graph.call_function(aten.copy_.default, (target, self._image[value]))

    def _views(self, node: fx.Node, chain: Chain) -> fx.Node:
        for step in chain:
            node = self._builder.call(resolve_op(step.op), (node, *map(as_list, step.arguments)))
        return node


def _fixed(output: WrittenOutput, needed: Collection[ForwardOutput]) -> str:
    """Why what ``output`` tells of cannot be written in the graph."""
    if output.shown is not None:
        return "autograd sees the write"
    return "the backward reads its new value" if output in needed else ""


def _unwritable(root: Root, *, inference: bool) -> str:
    """Why a root cannot be written as it is."""
    region = root.region
    if not inference and any(member.tensor.is_inference() for member in root.members):
        return "it is an inference tensor, outside of inference mode"
    holder = root.base if root.base is not None else root.members[0]
    if not holder.writes and any(member.tensor.requires_grad for member in root.members):
        return "its version counter does not move"  # written by way of another, or of x.data
    if region.conj or region.neg:
        return "it is lazily conjugated or negated"
    if 0 in region.geometry.strides:
        return "it repeats elements"
    return "" if region.geometry.is_static else "its sizes are symbols"
