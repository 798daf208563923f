"""The verifier refuses every graph that is not functional, and names the node."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from purefx.errors import ImpureGraph
from purefx.functional.verify import check_functional

aten = torch.ops.aten
Build = Callable[[fx.Graph, fx.Node, fx.Node], Any]


def graph_of(build: Build) -> fx.Graph:
    """A graph with inputs x and y, whose outputs ``build`` makes."""
    graph = fx.Graph()
    graph.output(tuple(build(graph, graph.placeholder("x"), graph.placeholder("y"))))
    return graph


def call(graph: fx.Graph, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
    return graph.call_function(op, args, kwargs)


def pieces(graph: fx.Graph, x: fx.Node) -> list[fx.Node]:
    both = call(graph, aten.unbind.int, x)
    return [graph.call_function(operator.getitem, (both, i)) for i in range(2)]


IMPURE: dict[str, tuple[Build, str]] = {
    "a write": (
        lambda g, x, y: [call(g, aten.add_.Tensor, x, y)],
        "add__tensor = aten.add_.Tensor writes to self",
    ),
    "a write that nothing reads": (
        lambda g, x, y: [call(g, aten.neg.default, y), call(g, aten.zero_.default, y)][:1],
        "writes to self",
    ),
    "an out argument": (lambda g, x, y: [call(g, aten.exp.out, x, out=y)], "writes to out"),
    "a list that is written": (
        lambda g, x, y: [call(g, aten._foreach_neg_.default, [x, y])],
        "writes to self",
    ),
    "a geometry write": (lambda g, x, y: [call(g, aten.t_.default, x)], "t_"),
    "an input": (lambda g, x, y: [x], "output 0 (x) shares memory with input x"),
    "a view of an input": (
        lambda g, x, y: [call(g, aten.neg.default, x), call(g, aten.select.int, y, 0, 0)],
        "output 1 (select_int) shares memory with input y",
    ),
    "a piece of an input": (lambda g, x, y: pieces(g, x)[1:], "shares memory with input x"),
    "the same twice": (
        lambda g, x, y: [call(g, aten.neg.default, x)] * 2,
        "output 1 (neg_default) shares memory with output 0",
    ),
    "two views of one tensor": (
        lambda g, x, y: pieces(g, call(g, aten.neg.default, x)),
        "output 1 (getitem_1) shares memory with output 0",
    ),
    "a base and a view of a view": (
        lambda g, x, y: [
            n := call(g, aten.add.Tensor, x, y),
            call(g, aten.t.default, call(g, aten.alias.default, n)),
        ],
        "output 1 (t_default) shares memory with output 0",
    ),
}
PURE: dict[str, Build] = {
    "nothing": lambda g, x, y: [],
    "new tensors": lambda g, x, y: [call(g, aten.add.Tensor, x, y), call(g, aten.neg.default, x)],
    "copies": lambda g, x, y: [call(g, aten.clone.default, n) for n in pieces(g, x)],
    "views inside": lambda g, x, y: [call(g, aten.neg.default, call(g, aten.t.default, x))],
    "pieces that an operator made": lambda g, x, y: [
        g.call_function(operator.getitem, (call(g, aten.sort.default, x), i)) for i in range(2)
    ],
    "one view of something new": lambda g, x, y: [call(g, aten.t.default, call(g, aten.neg.default, x))],
}


@pytest.mark.parametrize("name", IMPURE)
def test_a_graph_is_refused_that_has(name: str) -> None:
    build, message = IMPURE[name]
    graph = graph_of(build)
    with pytest.raises(ImpureGraph) as caught:
        check_functional(graph)
    assert message in str(caught.value)
    assert caught.value.__notes__ == [str(graph)]


@pytest.mark.parametrize("name", PURE)
def test_a_graph_is_accepted_that_returns(name: str) -> None:
    check_functional(graph_of(PURE[name]))


def test_a_name_that_is_read_before_it_is_defined_is_refused() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = call(graph, aten.neg.default, x)
    second = call(graph, aten.neg.default, x)
    first.args = (second,)
    graph.output((first,))
    with pytest.raises(RuntimeError, match="was used before it has been defined"):
        check_functional(graph)
