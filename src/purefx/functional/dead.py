"""Dead code: nodes whose value nothing reads, in a graph where an unread value has no effect."""

from __future__ import annotations

from typing import Any

from torch import fx

from purefx._torch import OpOverload
from purefx.functional.on_copies import OnCopies
from purefx.operators import ALWAYS_KEPT, RAISES_ON_DATA, facts


def without_dead_nodes(graph: fx.Graph, inputs: list[Any], *, keep: bool = False) -> list[Any]:
    """Erase unread nodes of ``graph``, and unread placeholders; returns the ``inputs`` that are left.

    With ``keep`` all placeholders stay.
    Requires a functional graph.  Random operators stay although nothing reads them: they move the generator on; so do
    operators that raise for some values of their operands, as eager would.
    """
    for node in reversed(graph.nodes):
        if not node.users and node.op in ("call_function", "get_attr") and not has_effect(node):
            graph.erase_node(node)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    kept = []
    for node, given in zip(placeholders, inputs, strict=True):
        if node.users or keep:
            kept.append(given)
        else:
            graph.erase_node(node)
    return kept


def has_effect(node: fx.Node) -> bool:
    """Whether running ``node`` matters although its value is not read."""
    op = node.target.op if isinstance(node.target, OnCopies) else node.target
    if not isinstance(op, OpOverload):
        return False
    known = facts(op)
    if isinstance(node.target, OpOverload) and known.written:
        return True
    return known.random or op in ALWAYS_KEPT or op in RAISES_ON_DATA or (known.results == 0 and not known.written)
