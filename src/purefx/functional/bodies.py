"""Control-flow operators (cond, while_loop, ...): their bodies become functional graphs of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from torch import fx

from purefx._torch import FakeTensorMode, ShapeEnv, pytree
from purefx.analysis.replay import Fresh, Plain, Replay
from purefx.capture.branches import CapturedBody
from purefx.capture.captured import Capture, TensorResult, name_of
from purefx.capture.fakes import fake_like
from purefx.capture.recording import Call, Operand, Variable, operands_of
from purefx.capture.session import capture
from purefx.errors import UnsupportedOperator
from purefx.functional.builder import Builder
from purefx.functional.signature import Functional, ResultOutput, WrittenOutput, module_of
from purefx.functional.verify import returned

_OPERANDS: dict[str, slice] = {"cond": slice(3, None), "while_loop": slice(2, None)}
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
    args = tuple(
        builder.module(_functional_body(_captured(x, operands, builder.env), operands, rewrite)) if callable(x) else x
        for x in call.args
    )
    return replace(call, args=args)


def _captured(function: Callable[..., Any], operands: Sequence[Operand], env: ShapeEnv) -> Capture:
    """The capture of a body, which takes ``operands``."""
    if isinstance(function, CapturedBody):
        return function.captured
    return capture(function, tuple(fake_like(o.region, FakeTensorMode(shape_env=env)) for o in operands), {})


def _functional_body(captured: Capture, operands: Sequence[Operand], rewrite: Rewrite) -> fx.GraphModule:
    """The functional graph of the body of a control-flow operator, as a module that takes ``operands``.

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
            where=None,
            remedy="pass every tensor that it uses as an operand, and return new values",
        )
    nodes = _nodes_of_results(body)
    outputs = [nodes[how.variable] if isinstance(how, Fresh) else how.value for how in results]
    body.graph.output_node().args = (pytree.tree_unflatten(outputs, captured.structure),)
    return module_of(body)


def _nodes_of_results(body: Functional) -> dict[Variable, Any]:
    pairs = zip(body.outputs, returned(body.graph), strict=True)
    return {output.variable: node for output, node in pairs if isinstance(output, ResultOutput)}
