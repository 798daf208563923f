"""Control-flow operators (cond, while_loop, ...): their bodies become functional graphs of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

from purefx._torch import FakeTensorMode, ShapeEnv, pytree
from purefx.analysis.replay import Fresh, Plain, Replay
from purefx.capture.bodies import CapturedBody
from purefx.capture.captured import Capture, TensorResult, name_of
from purefx.capture.fakes import fake_like
from purefx.capture.recording import Call, Operand, Variable, operands_of
from purefx.capture.session import capture
from purefx.errors import UnsupportedOperator
from purefx.functional.builder import Builder, unknown_number
from purefx.functional.signature import Functional, ResultOutput, SymbolInput, WrittenOutput, module_of
from purefx.functional.verify import returned

_OPERANDS: dict[str, slice] = {
    "cond": slice(3, None),
    "while_loop": slice(2, None),
    "while_loop_stack_output": slice(2, None),
}
"""Where the operands of the bodies stand among the arguments, for the operators whose bodies are understood."""


class Rewrite(Protocol):
    """The pass that removes writes, as far as bodies need it: bodies may have bodies."""

    def __call__(self, body: Capture, replay: Replay, /) -> Functional:
        """The functional graph of ``body`` with the results that ``replay`` tells; no input is left out."""


def with_bodies(call: Call, builder: Builder, rewrite: Rewrite) -> Call:
    """``call`` with a graph module in the place of each function among its arguments."""
    name = call.runnable.__name__
    if name not in _OPERANDS:
        raise UnsupportedOperator(
            f"the higher-order operator {name} has no functional form here",
            where=call.where,
            remedy="use torch.cond, while_loop, or plain Python control flow on sizes",
        )
    operands = operands_of(call.args[_OPERANDS[name]])
    captures = [_captured(x, operands, builder.env) if callable(x) else None for x in call.args]
    bodies = [None if x is None else _functional_body(x, call, operands, rewrite) for x in captures]
    symbols = _with_symbols_last([body for body in bodies if body is not None])
    unknown = [symbol for symbol in symbols if symbol not in builder.symbols]
    if unknown:
        raise unknown_number(unknown[0], builder.recording)
    args = [x if body is None else builder.module(module_of(body)) for x, body in zip(call.args, bodies, strict=True)]
    if symbols:
        args[-1] = (*cast(tuple[Any, ...], args[-1]), *(builder.symbols[symbol] for symbol in symbols))
    return replace(call, args=tuple(args))


def _with_symbols_last(bodies: list[Functional]) -> list[Any]:
    """The symbols that ``bodies`` read: as operands they come after the others, and all bodies take all of them."""
    placeholders = [[node for node in body.graph.nodes if node.op == "placeholder"] for body in bodies]
    taken = [
        {given.symbol: node for given, node in zip(body.inputs, nodes, strict=True) if isinstance(given, SymbolInput)}
        for body, nodes in zip(bodies, placeholders, strict=True)
    ]
    read = list(dict.fromkeys(symbol for each in taken for symbol, node in each.items() if node.users))
    for body, nodes, own in zip(bodies, placeholders, taken, strict=True):
        with body.graph.inserting_after(nodes[-1] if nodes else None):
            last = [body.graph.placeholder(f"size_{symbol}") for symbol in reversed(read)][::-1]
        for symbol, node in own.items():
            if node.users:
                node.replace_all_uses_with(last[read.index(symbol)])
            body.graph.erase_node(node)
    return read


def _captured(function: Callable[..., Any], operands: Sequence[Operand], env: ShapeEnv) -> Capture:
    """The capture of a body, which takes ``operands``."""
    if isinstance(function, CapturedBody):
        return function.captured
    return capture(function, tuple(fake_like(o.region, FakeTensorMode(shape_env=env)) for o in operands), {})


def _functional_body(captured: Capture, call: Call, operands: Sequence[Operand], rewrite: Rewrite) -> Functional:
    """The functional graph of a body of the control-flow operator ``call``, which takes ``operands``.

    Raises UnsupportedOperator if the body writes to its operands, or uses tensors that are none.
    """
    results = tuple(
        Fresh(r.variable, r.region) if isinstance(r, TensorResult) else Plain(r.value) for r in captured.results
    )
    body = rewrite(captured, Replay(results, (), (), ()))
    if len(captured.inputs) > len(operands) or any(isinstance(o, WrittenOutput) for o in body.outputs):
        raise UnsupportedOperator(
            f"{name_of(captured.function)}, the body of a control-flow operator, writes to an operand or"
            " uses a tensor that is none",
            where=call.where,
            remedy="pass every tensor that it uses as an operand, and return new values",
        )
    nodes = _nodes_of_results(body)
    outputs = [nodes[how.variable] if isinstance(how, Fresh) else how.value for how in results]
    body.graph.output_node().args = (pytree.tree_unflatten(outputs, captured.structure),)
    return body


def _nodes_of_results(body: Functional) -> dict[Variable, Any]:
    pairs = zip(body.outputs, returned(body.graph), strict=True)
    return {output.variable: node for output, node in pairs if isinstance(output, ResultOutput)}
