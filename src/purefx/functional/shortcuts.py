"""What a graph computes for nothing, or twice, or dearly: derivatives and batches of programs are full of it.

    mul(x, 1)   pow(x, 1)   clone(x)   view(x, sizes of x)          x
    t(x) ... t(x)                                                   the first of them
    mul(div(expand(x), 2), y)                                       mul(div(x, 2), y)
    ones(8)                                                         made once for all calls
    bmm(a, b) with a: [n, m, 1], b: [n, 1, p]                       mul(a, b)

Nothing here is done to memory that an output has, or in a graph that writes.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import fx

from purefx._torch import OpOverload, outside_transforms, without_modes
from purefx.functional.builder import Value, is_view
from purefx.functional.signature import FunctionalGraph
from purefx.functional.verify import returned
from purefx.layout import Geometry
from purefx.operators import aten, facts, is_repeatable

_BY_ONE = frozenset({aten.div.Scalar, aten.div.Tensor, aten.mul.Scalar, aten.mul.Tensor, aten.pow.Tensor_Scalar})
"""Operators that give their first operand back where the second is one: exactly so, if they are real."""

_TOGETHER = frozenset({aten.add.Tensor, aten.div.Tensor, aten.mul.Tensor, aten.sub.Tensor})
"""Operators that expand one operand to the sizes of the other."""

_OF_EACH = frozenset({aten.div.Scalar, aten.mul.Scalar, aten.neg.default})
"""Operators of one tensor that round each element once, if at all."""

_AS_IT_IS = frozenset({aten._unsafe_view.default, aten.clone.default, aten.expand.default, aten.view.default})
"""Operators that give the elements of their first operand, in their order."""

_MADE = frozenset({aten.full.default, aten.ones.default, aten.scalar_tensor.default, aten.zeros.default})
"""Operators that make a tensor of numbers."""

SMALL = 4096
"""Of how many elements a tensor may be kept longer than eager would keep it."""


def repeated(functional: FunctionalGraph) -> dict[fx.Node, fx.Node]:
    """Of nodes whose value an earlier one has, in the same geometry: that earlier one, which is none of them.

    Each is one of `_not_apart`.  What is kept longer for it is a view, or small.
    """
    values = functional.values
    found: dict[fx.Node, fx.Node] = {}
    first: dict[Any, fx.Node] = {}
    for node in _not_apart(functional):
        args: Any = fx.map_arg((node.args, node.kwargs), lambda x: found.get(x, x))
        same = args[0][0] if _gives_back(node, values[node], values) else None
        if same is None and (is_view(node) or _is_small(values[node])) and is_repeatable(node.target):
            same = first.setdefault((node.target, str(args)), node)
        if same is not None and same is not node:
            found[node] = same
    return found


def unexpanded(functional: FunctionalGraph, same: dict[fx.Node, fx.Node]) -> dict[fx.Node, fx.Node]:
    """Of expansions what they expand, where that gives the same results; none of what is the ``same`` as others.

    Law: it is read by elementwise operators alone, in the end together with a tensor that lies as their result.
    """
    others, found = {*same, *same.values()}, dict[fx.Node, fx.Node]()
    inside = dict.fromkeys([node for node in _not_apart(functional) if node not in others])
    for node in inside:
        if node.target is aten.expand.default and _is_expanded_later(node, inside, functional.values):
            of = node.all_input_nodes[0]
            of = same.get(of, of)
            found[node] = found.get(of, of)
    return found


def _is_expanded_later(node: fx.Node, inside: Container[fx.Node], values: dict[fx.Node, Value]) -> bool:
    """Whether all that reads ``node`` gives the same if that is not expanded."""
    return bool(node.users) and all(
        _is_expanded_later(user, inside, values)
        if _is_of_each(user) and user in inside
        else user.target in _TOGETHER and _lies_as_another(user, node, values)
        for user in node.users
    )


def _is_of_each(node: fx.Node) -> bool:
    """Whether ``node`` computes of one tensor the same of an element wherever it is."""
    return node.target in _OF_EACH or (node.target in _TOGETHER and isinstance(node.args[1], int | float))


def _lies_as_another(user: fx.Node, node: fx.Node, values: dict[fx.Node, Value]) -> bool:
    """Whether ``user`` computes of ``node`` and one more tensor, which has its dtype and its geometry."""
    others = [x for x in user.all_input_nodes if x is not node]
    same_dtype = values[node].dtype == values[user].dtype
    return len(others) == 1 and others[0] in values and same_dtype and _look_the_same(values[others[0]], values[user])


def squeezed(functional: FunctionalGraph, same: dict[fx.Node, fx.Node]) -> dict[fx.Node, fx.Node]:
    """Of views the sums that they are of, where they leave out the dimensions that those have kept; none of ``same``.

    view(sum(x: [4, 3], [0], keepdim=True), [3])     sum(x, [0])     the gradient of a bias
    """
    values, others = functional.values, {*same, *same.values()}
    return {
        user: node
        for node in functional.graph.nodes
        if node.target is aten.sum.dim_IntList and node.args[2:] == (True,) and not node.kwargs and node in values
        if node.args[1]  # or it sums over all
        for user in node.users
        if len(node.users) == 1 and user.target is aten.view.default and others.isdisjoint((node, user))
        if values[user].geometry.is_static and values[node].geometry.is_static
        if list(user.args[1]) == _without(values[node].geometry.sizes, node.args[1])
    }


def _without(sizes: tuple[Any, ...], dims: Any) -> list[Any]:
    dropped = {dim % max(len(sizes), 1) for dim in dims}
    return [size for i, size in enumerate(sizes) if i not in dropped]


def _not_apart(functional: FunctionalGraph) -> list[fx.Node]:
    """The nodes of a size that is known, without those of memory that is to be an output's own.

    None where the graph writes: what it has written is not what was computed.
    """
    graph, values = functional.graph, functional.values
    if any(isinstance(n.target, OpOverload) and facts(n.target).written for n in graph.nodes):
        return []
    apart = {values[n].origin for n in returned(graph) if n in values}
    return [n for n in graph.nodes if n in values and values[n].geometry.is_static and values[n].origin not in apart]


def _is_small(value: Value) -> bool:
    return value.geometry.numel <= SMALL


def constants(functional: FunctionalGraph) -> dict[fx.Node, torch.Tensor]:
    """The small tensors of numbers that a graph makes and nobody else ever has."""
    found = [n for n in _not_apart(functional) if n.target in _MADE and _is_small(functional.values[n])]
    with outside_transforms(), without_modes(), torch.inference_mode(mode=False), torch.no_grad():
        return {node: node.target(*node.args, **node.kwargs) for node in found}  # type: ignore[operator]  # an overload


def _gives_back(node: fx.Node, value: Value, values: dict[fx.Node, Value]) -> bool:
    """Whether ``node`` computes what its first operand is."""
    of = values.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
    if of is None or not of.geometry.is_static or not _look_the_same(value, of):
        return False
    if node.target in _BY_ONE:
        number = node.args[1]
        return isinstance(number, int | float) and number == 1 and not value.dtype.is_complex
    return node.target in _AS_IT_IS


def _look_the_same(a: Value, b: Value) -> bool:
    return (a.geometry.sizes, a.geometry.strides, a.dtype, a.conj, a.neg) == (
        b.geometry.sizes, b.geometry.strides, b.dtype, b.conj, b.neg
    )  # fmt: skip


def is_outer_product(functional: FunctionalGraph, node: fx.Node) -> bool:
    """Whether ``node`` is a batch of outer products that ``mul`` computes, in the same geometry.

    It does so in a quarter of the time.  Its zeros have the signs that ``mm`` gives them, and ``bmm`` may not.
    """
    if node.target is not aten.bmm.default:
        return False
    a, b, product = (functional.values.get(x) for x in (*node.all_input_nodes, node))
    if a is None or b is None or product is None or not product.dtype.is_floating_point:
        return False
    geometries = (a.geometry, b.geometry, product.geometry)
    if not all(g.is_static for g in geometries) or a.geometry.sizes[2] != 1:
        return False
    return torch.mul(_shape(a.geometry), _shape(b.geometry)).stride() == product.geometry.strides


def _shape(geometry: Geometry) -> torch.Tensor:
    return torch.empty_strided(geometry.sizes, geometry.strides, device="meta")
