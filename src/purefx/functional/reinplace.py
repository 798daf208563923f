"""The way back: a functional graph whose writes to the caller's memory happen in place again.

    new = index_copy(cache, 2, i, k)          index_copy_(cache, 2, i, k)
    scores = matmul(q, new)                   scores = matmul(q, cache)
    return new, scores                        return scores

For running a graph as it is, without a compiler: what the program wrote in place is not copied, and nothing is
left to write back.  Rule: a write may happen in place if nothing reads the old value, or a view of it, any more,
and the new value leaves the graph as the content of that memory alone.

    a[0].copy_(b); b.add_(1); return a.sum()  the row of a is the old value of b, which is read after the write of
                                              b in the functional graph: that write stays out of place
    a.add_(1); b.copy_(a); a.add_(1)          the new value of b is that of a between its writes
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from torch import fx

from purefx._torch import resolve_op
from purefx.functional.builder import as_list
from purefx.functional.contents import Merge
from purefx.functional.dead import without_dead_nodes
from purefx.functional.regions import chain_between
from purefx.functional.roots import Root
from purefx.functional.signature import ForwardInput, ForwardOutput, Functional, RootInput, WrittenOutput
from purefx.functional.verify import origins_of, returned
from purefx.functional.writes import InPlace
from purefx.layout import Chain
from purefx.operators import aten


def with_in_place_writes(functional: Functional, needed: Collection[ForwardOutput] = ()) -> Functional:
    """``functional`` with the writes of its roots in place where that is safe; without their outputs.

    Roots stay as they are whose write autograd sees, or whose new value is ``needed`` elsewhere.
    """
    if not functional.merges and not functional.in_place:
        return functional
    return _Reinplacer(functional, needed).run()


class _Reinplacer:
    """``_newest`` is the value of each root so far, in the old graph; ``_memory`` the root in the new graph.

    A root is in both as long as its newest value is in its own memory.
    """

    def __init__(self, functional: Functional, needed: Collection[ForwardOutput]) -> None:
        written = [o for o in functional.outputs if isinstance(o, WrittenOutput)]
        self._fixed = {o.root for o in written if o.shown is not None or o in needed}
        self._old = functional
        self._origins = origins_of(functional.graph)
        self._place = {node: i for i, node in enumerate(functional.graph.nodes)}
        self._merges = {merge.after: (root, merge) for root, merge in functional.merges}
        self._in_place = {write.after: (root, write) for root, write in functional.in_place}
        self._graph = fx.Graph()
        self._image: dict[fx.Node, Any] = {}
        self._newest: dict[Root, fx.Node] = {}
        self._memory: dict[Root, fx.Node] = {}

    def run(self) -> Functional:
        inputs = iter(self._old.inputs)
        for node in self._old.graph.nodes:
            if node.op == "output":
                break
            if not self._wrote_in_place(node):
                self._image[node] = self._graph.node_copy(node, self._image.__getitem__)
            if node.op == "placeholder":
                self._begin(next(inputs), node)
        done = {(root, value) for root, value in self._newest.items() if value.op != "placeholder"}
        kept = [(o, n) for o, n in self._outputs() if not (isinstance(o, WrittenOutput) and (o.root, o.whole) in done)]
        self._graph.output(tuple(self._image[n] if isinstance(n, fx.Node) else n for _, n in kept))
        without_dead_nodes(self._graph, list(self._old.inputs), keep=True)
        outputs, written = tuple(o for o, _ in kept), frozenset(root for root, _ in done)
        return replace(self._old, graph=self._graph, outputs=outputs, written=written)

    def _begin(self, given: ForwardInput, node: fx.Node) -> None:
        if isinstance(given, RootInput) and given.root not in self._fixed and _is_plain(given.root):
            self._newest[given.root], self._memory[given.root] = node, self._image[node]

    def _outputs(self) -> list[tuple[ForwardOutput, Any]]:
        return list(zip(self._old.outputs, returned(self._old.graph), strict=True))

    def _wrote_in_place(self, node: fx.Node) -> bool:
        """Do the write that made ``node`` in place, if it is one and may be."""
        root, merge = self._merges.get(node, (None, None))
        if root is not None and merge is not None and self._newest.get(root) is merge.before:
            return self._may_merge(merge) and self._stays_in(root, node) and self._merge(root, merge)
        root, write = self._in_place.get(node, (None, None))
        if root is not None and write is not None and self._newest.get(root) is write.args[0]:
            return self._may_write(write) and self._stays_in(root, node) and self._write(root, write)
        return False

    def _write(self, root: Root, write: InPlace) -> bool:
        args = fx.map_arg(write.args[1:], self._image.__getitem__)
        kwargs = fx.map_arg(write.kwargs, self._image.__getitem__)
        self._graph.call_function(write.op, (self._memory[root], *args), kwargs)
        self._newest[root], self._image[write.after] = write.after, self._memory[root]
        return True

    def _may_merge(self, merge: Merge) -> bool:
        sources = [value for _, value in merge.writes]
        if any(self._origins[s] is self._origins[merge.before] for s in sources):
            return False
        if any(region.conj or region.neg or not region.geometry.is_static for region, _ in merge.writes):
            return False
        chains = [chain_between(merge.region, region) for region, _ in merge.writes]
        return None not in chains and self._is_last(merge.before, merge.after)

    def _may_write(self, write: InPlace) -> bool:
        others = [n for n in write.after.all_input_nodes if n is not write.args[0]]
        shared = [n for n in others if self._origins[n] is self._origins[write.args[0]]]
        return not shared and self._is_last(write.args[0], write.after)

    def _is_last(self, before: fx.Node, after: fx.Node) -> bool:
        """Whether nothing reads ``before`` or a view of it after ``after``, which must be new memory."""
        if self._origins[after] is self._origins[before]:
            return False
        limit = self._place[after]
        aliases = [node for node, origin in self._origins.items() if origin is self._origins[before]]
        return all(self._place[user] <= limit for alias in aliases for user in alias.users)

    def _stays_in(self, root: Root, after: fx.Node) -> bool:
        """Whether no output has the memory of ``after`` but the one that is the content of ``root``."""
        return all(
            isinstance(output, WrittenOutput) and output.root is root
            for output, node in self._outputs()
            if isinstance(node, fx.Node) and self._origins[node] is self._origins[after]
        )

    def _merge(self, root: Root, merge: Merge) -> bool:
        for region, value in merge.writes:
            chain = chain_between(merge.region, region)
            assert chain is not None
            target = self._views(self._memory[root], chain)
            self._graph.call_function(aten.copy_.default, (target, self._image[value]))
        self._newest[root], self._image[merge.after] = merge.after, self._memory[root]
        return True

    def _views(self, node: fx.Node, chain: Chain) -> fx.Node:
        for step in chain:
            node = self._graph.call_function(resolve_op(step.op), (node, *map(as_list, step.arguments)))
        return node


def _is_plain(root: Root) -> bool:
    """Whether a root can be written as it is: no lazy bits, no repeated elements, no inference tensor."""
    region = root.region
    if any(member.tensor.is_inference() for member in root.members):
        return False
    holder = root.base if root.base is not None else root.members[0]
    if not holder.writes and any(member.tensor.requires_grad for member in root.members):
        return False  # its counter does not move: written by way of another, or of x.data
    return not (region.conj or region.neg or 0 in region.geometry.strides) and region.geometry.is_static
