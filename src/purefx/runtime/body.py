"""The call of the graph: its arguments, taken from the caller's memory, and names for what it returns.

base = arg0.as_strided((8,), (1,), arg0.storage_offset() + 0)
with no_grad():
    (new_base, out,) = graph(base)
"""

from __future__ import annotations

from typing import assert_never

import torch

from purefx.capture.recording import SYMBOLS
from purefx.functional.roots import Root
from purefx.functional.signature import (
    BaseOutput,
    ForwardInput,
    ForwardOutput,
    NumberOutput,
    ResidualOutput,
    ResultOutput,
    RootInput,
    SymbolInput,
    WrittenOutput,
)
from purefx.runtime.scope import Scope
from purefx.runtime.spelling import spell_physical


def emit_graph_call(scope: Scope) -> list[str]:
    """Statements that make the graph's inputs, run it and name its outputs."""
    lines = emit_roots(scope)
    call = spell_graph_call(scope)
    if call is None:
        return lines
    return [*lines, *_in_modes(scope, call), *_emit_detaching(scope), *_emit_cloning(scope)]


def emit_roots(scope: Scope) -> list[str]:
    """Statements that make the graph's inputs."""
    return [line for root in _roots(scope) for line in _emit_root(scope, root)]


def spell_graph_call(scope: Scope) -> str | None:
    """The statement that runs the graph and names its outputs; None if there is nothing to run."""
    arguments = [_argument(scope, given) for given in scope.functional.inputs]
    for output in scope.functional.outputs:
        scope.outputs[output] = scope.unique(_output_name(scope, output), "out")
        if isinstance(output, ResultOutput | BaseOutput):
            scope.variables[output.variable] = scope.outputs[output]
    names = list(scope.outputs.values())
    if not names and all(node.op in ("placeholder", "output") for node in scope.functional.graph.nodes):
        return None
    call = f"graph({', '.join(arguments)})"
    return f"({', '.join(names)},) = {call}" if names else call


def _roots(scope: Scope) -> list[Root]:
    """The roots that the graph needs, and those that the backward needs as they are."""
    kept = scope.joint.residuals.values() if scope.joint is not None else ()
    roots = [*scope.functional.roots, *(source.root for source in kept if isinstance(source, RootInput))]
    return list(dict.fromkeys(roots))


def _in_modes(scope: Scope, statement: str) -> list[str]:
    """``statement`` in the modes that the graph needs."""
    modes = [scope.no_grad()] if scope.capture.grad_before else []
    if torch.is_autocast_enabled("cpu"):  # the graph has the casts in it
        modes.append("torch.autocast('cpu', enabled=False)")
    return [f"with {', '.join(modes)}:", f"    {statement}"] if modes else [statement]


def _made(scope: Scope) -> list[ResultOutput | BaseOutput]:
    return [o for o in scope.functional.outputs if isinstance(o, ResultOutput | BaseOutput)]


def _emit_detaching(scope: Scope) -> list[str]:
    """A result that is no view in eager must not show a base, although the graph made it as a view."""
    return [f"{scope.outputs[o]} = {scope.outputs[o]}.detach()" for o in _made(scope) if o.is_view]


def _emit_cloning(scope: Scope) -> list[str]:
    """Results that the program made in an inference mode of its own are inference tensors."""
    lines = [f"    {scope.outputs[o]} = {scope.outputs[o]}.clone()" for o in _made(scope) if o.variable.inference]
    return ["with torch.inference_mode():", *lines] if lines and not scope.capture.inference else []


def _emit_root(scope: Scope, root: Root) -> list[str]:
    """The synthetic base of ``root``: a run of the storage as it lies in memory, by way of one of the members."""
    if root.base is not None:
        scope.roots[root] = scope.inputs[root.base]
        return []
    name = scope.roots[root] = scope.unique("base", "base")
    member = next((m for m in root.members if m.before.dtype == root.region.dtype), root.members[0])
    own, geometry = member.before, root.region.geometry
    start = f"{scope.inputs[member]}{'.detach()' * member.tensor.requires_grad}{spell_physical(own)}"
    if own.dtype == root.region.dtype:
        distance = scope.speller.literal(geometry.offset - own.geometry.offset)
    else:
        start = f"{start}.as_strided((1,), (1,)).view({scope.speller.literal(root.region.dtype)})"
        offset = f"{own.geometry.offset} * {own.dtype.itemsize} // {root.region.dtype.itemsize}"
        distance = f"{geometry.offset} - {offset}"
    size = scope.speller.literal(tuple(geometry.sizes))
    return [f"{name} = {start}.as_strided({size}, (1,), {start}.storage_offset() + {distance})"]


def _argument(scope: Scope, given: ForwardInput) -> str:
    match given:
        case RootInput(_, root):
            return scope.roots[root]
        case SymbolInput(_, symbol):
            return scope.number(symbol)
        case _:
            assert_never(given)


def _output_name(scope: Scope, output: ForwardOutput) -> str:
    match output:
        case WrittenOutput(root, _):
            return f"new_{scope.roots[root]}"
        case ResidualOutput(name):
            return name
        case NumberOutput(symbol):
            return "number" if isinstance(symbol, SYMBOLS) else str(symbol)
        case ResultOutput() | BaseOutput():
            return "out"
        case _:
            assert_never(output)
