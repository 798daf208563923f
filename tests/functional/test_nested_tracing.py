"""A7: ``functionalize`` inside other tracers puts pure operators, then the writes, into the outer graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import purefx
from purefx.operators import facts
from tests.functional.kinds import ramp


def rows(x: Tensor, y: Tensor) -> Tensor:
    x[1].add_(y)
    return x.t() * 2


def aliases(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x + y


def turns(x: Tensor, y: Tensor) -> Any:
    z = y.clone()
    z.t_().zero_()
    return z, x.view(-1)[2:]


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, Tensor]]]] = {
    "a row": (rows, lambda: (ramp(3, 4), ramp(4))),
    "the same twice": (aliases, lambda: (x := ramp(4), x)),
    "distinct": (aliases, lambda: (ramp(4), ramp(4))),
    "views": (turns, lambda: (ramp(3, 2), ramp(2, 2))),
}


def overloads(graph: torch.fx.Graph) -> list[Any]:
    return [n.target for n in graph.nodes if n.op == "call_function" and hasattr(n.target, "_schema")]


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_outer_graph_writes_only_to_arguments_and_last(name: str, mode: Any) -> None:
    function, make = PROGRAMS[name]
    outer = make_fx(purefx.functionalize(function), tracing_mode=mode)(*make())
    writing = [bool(facts(op).written) for op in overloads(outer.graph)]
    assert [op for op in overloads(outer.graph) if facts(op).written] in ([], [torch.ops.aten.copy_.default])
    if any(writing):
        after = [facts(op) for op in overloads(outer.graph)[writing.index(True) + 1 :]]
        assert all(not fact.written for fact in after)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_outer_graph_computes_what_eager_computes(name: str) -> None:
    function, make = PROGRAMS[name]
    given, expected = make(), make()
    outer = make_fx(purefx.functionalize(function))(*make())
    result, wanted = outer(*given), function(*expected)
    torch.testing.assert_close(result, wanted, rtol=0, atol=0)
    torch.testing.assert_close(given, expected, rtol=0, atol=0)


def test_tracing_leaves_the_arguments_alone() -> None:
    x, y = ramp(3, 4), ramp(4)
    make_fx(purefx.functionalize(rows), tracing_mode="fake")(x, y)
    assert torch.equal(x, ramp(3, 4))
    assert x._version == 0


def test_functionalize_of_functionalize_is_functionalize() -> None:
    x, expected = ramp(3, 4), ramp(3, 4)
    result = purefx.functionalize(purefx.functionalize(rows))(x, ramp(4))
    assert torch.equal(result, rows(expected, ramp(4)))
    assert torch.equal(x, expected)


def test_the_signature_is_that_of_the_function() -> None:
    assert purefx.functionalize(rows).__name__ == "rows"
    assert purefx.functionalize(rows)(x=ramp(3, 4), y=ramp(4)).shape == (4, 3)
