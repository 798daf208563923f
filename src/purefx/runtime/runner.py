"""Running a functional graph without a compiler: straight-line source, one statement a node.

    mul = mul_Tensor(x, 2)
    select = buffer.select(0, 1)
    select.copy_(mul)
    del mul, select

Views are spelled as methods and common operators as functions of ``torch``, which cost less than half of a call
by overload; each value is let go after its last use.
"""

from __future__ import annotations

import linecache
import operator
from collections.abc import Callable
from functools import cache
from itertools import count
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import fx

from purefx._torch import OpOverload, find_overload, overload_packet, schema_of
from purefx.functional.shortcuts import constants, is_outer_product, repeated, squeezed, unexpanded
from purefx.functional.signature import FunctionalGraph
from purefx.onednn import DIRECT
from purefx.operators import aten, facts
from purefx.runtime.spelling import METHODS, Speller, spell_slice

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: torch.add,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.cat.default: torch.cat,
    aten.cos.default: torch.cos,
    aten.div.Scalar: torch.div,
    aten.div.Tensor: torch.div,
    aten.eq.Scalar: torch.eq,
    aten.eq.Tensor: torch.eq,
    aten.exp.default: torch.exp,
    aten.gather.default: torch.gather,
    aten.ge.Scalar: torch.ge,
    aten.gt.Scalar: torch.gt,
    aten.index_select.default: torch.index_select,
    aten.le.Scalar: torch.le,
    aten.lt.Scalar: torch.lt,
    aten.masked_fill.Scalar: torch.masked_fill,
    aten.mean.default: torch.mean,
    aten.mean.dim: torch.mean,
    aten.mm.default: torch.mm,
    aten.mul.Scalar: torch.mul,
    aten.mul.Tensor: torch.mul,
    aten.ne.Scalar: torch.ne,
    aten.neg.default: torch.neg,
    aten.pow.Tensor_Scalar: torch.pow,
    aten.relu.default: torch.relu,
    aten.rsqrt.default: torch.rsqrt,
    aten.sin.default: torch.sin,
    aten.sqrt.default: torch.sqrt,
    aten.stack.default: torch.stack,
    aten.sub.Tensor: torch.sub,
    aten.sum.default: torch.sum,
    aten.sum.dim_IntList: torch.sum,
    aten.tanh.default: torch.tanh,
    aten.where.self: torch.where,
}
"""Functions of several overloads, each of which runs that one, or for a number the one that PyTorch runs for it."""

_WRITES = {aten.copy_.default: "copy_", aten.index_copy_.default: "index_copy_", aten.add_.Tensor: "add_"}
_DOC = "Runs the functional graph."
_numbers = count()


def build_runner(functional: FunctionalGraph, *, boxed: bool = False, unseen: bool = False) -> Callable[..., Any]:
    """A function with the signature of the graph of ``functional`` that runs it.

    A ``boxed`` one takes a list instead, and clears it, so that each value can be let go after its last use.  What is
    `repeated` is computed once, what is `unexpanded` stays small, and what is `squeezed` is summed so.  An ``unseen``
    one, which no tracer sees, keeps `constants`, and computes what `is_outer_product` by elements.
    """
    writer = _RunnerWriter(functional, boxed=boxed, unseen=unseen)
    source = writer.source()
    file = f"<purefx graph {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = dict(writer.speller.namespace)
    exec(compile(source, file, "exec"), namespace)
    run: Callable[..., Any] = namespace["graph"]
    return run


@cache
def function_of(op: Any) -> Any:
    """The function of ``torch`` that runs ``op``, for every argument that it takes; ``op`` itself if none does.

    It is one that can run no other overload.  Of those that make tensors of numbers there is none: such a function asks
    which dtype and which device are the default.
    """
    if op in FUNCTIONS or not isinstance(op, OpOverload) or op.namespace != "aten":
        return FUNCTIONS.get(op, op)
    schema = schema_of(op)
    name = schema.name.removeprefix("aten::")
    function = getattr(torch, name, None)
    if not isinstance(function, BuiltinFunctionType) or not any("Tensor" in str(a.type) for a in schema.arguments):
        return op
    packet = overload_packet(op, name)
    others = [find_overload(packet, other) for other in packet.overloads()]  # type: ignore[union-attr]  # it has ``op``
    return function if all(other is op or facts(other).out for other in others if other is not None) else op


class _RunnerWriter:
    def __init__(self, functional: FunctionalGraph, *, boxed: bool, unseen: bool) -> None:
        self._functional = functional
        self._boxed = boxed
        self._constants = constants(functional) if unseen else {}
        self._unseen = unseen
        same = repeated(functional)
        views = squeezed(functional, same)
        self._squeezed = frozenset(views.values())
        same = {**same, **views}
        self._same = {**same, **unexpanded(functional, same)}
        self.speller = Speller({})
        self._names: dict[fx.Node, str] = {}

    def source(self) -> str:
        """The source of the function ``graph``."""
        graph = self._functional.graph
        last_use = _last_uses(graph, self._same)
        arguments = [self._name(node) for node in graph.nodes if node.op == "placeholder"]
        lines = [f"def graph({'inputs' if self._boxed else ', '.join(arguments)}):", f'    """{_DOC}"""']
        if self._boxed:
            lines += [f"    ({''.join(f'{name}, ' for name in arguments)}) = inputs", "    inputs.clear()"]
        for node in graph.nodes:
            if node in self._same:
                self._names[node] = self._names[self._same[node]]
            elif node in self._constants:
                self._names[node] = self.speller.name(node.name, self._constants[node])
            elif node.op == "output":
                lines.append(f"    return ({''.join(f'{self._spell(x)}, ' for x in node.args[0])})")
            elif node.op != "placeholder":
                lines.append(f"    {self._statement(node)}")
            done = [self._names[n] for n in last_use.get(node, ()) if n.op != "get_attr" and n not in self._constants]
            if done and node.op != "output":
                lines.append(f"    del {', '.join(done)}")
        return "\n".join([*lines, ""])

    def _statement(self, node: fx.Node) -> str:
        if node.op == "get_attr":
            self._names[node] = self.speller.name(str(node.target), self._functional.constants[str(node.target)])
            return f"# {self._names[node]}: a constant"
        expression = self._expression(node)
        return f"{self._name(node)} = {expression}" if node.users else expression

    def _expression(self, node: fx.Node) -> str:
        args = [self._spell(x) for x in (node.args[:2] if node in self._squeezed else node.args)]
        kwargs = [f"{name}={self._spell(x)}" for name, x in node.kwargs.items()]
        if node.target is operator.getitem:
            return f"{args[0]}[{args[1]}]"
        if node.target is aten.slice.Tensor and not node.kwargs and self._sizes(node) is not None:
            sliced = spell_slice(args[0], node.args[1:], self._sizes(node)[node.args[1] if len(node.args) > 1 else 0])
            if sliced is not None:
                return sliced
        target: Any = node.target
        if self._unseen:
            target = aten.mul.Tensor if is_outer_product(self._functional, node) else DIRECT.get(target, target)
        method = METHODS.get(target) or _WRITES.get(target)
        if method is not None:
            return f"{args[0]}.{method}({', '.join([*args[1:], *kwargs])})"
        if self._is_cast(node):
            wanted = [self._spell(node.kwargs[name]) for name in ("device", "dtype") if name in node.kwargs]
            return f"{args[0]}.to({', '.join(wanted)})"
        name = self.speller.name(getattr(target, "__name__", str(target)), function_of(target))
        return f"{name}({', '.join([*args, *kwargs])})"

    def _is_cast(self, node: fx.Node) -> bool:
        """Whether ``node`` copies a tensor because it is of another dtype, and asks for nothing besides."""
        if node.target is not aten._to_copy.default or not node.kwargs.keys() <= {"device", "dtype", "layout"}:
            return False
        before, after = (self._functional.values.get(x) for x in (node.args[0], node))  # type: ignore[arg-type]  # or None
        layout = node.kwargs.get("layout") in (None, torch.strided)
        return layout and before is not None and after is not None and before.dtype != after.dtype

    def _sizes(self, node: fx.Node) -> Any:
        """The sizes of the tensor that ``node`` is a view of, where they are known."""
        base = node.args[0]
        value = self._functional.values.get(base) if isinstance(base, fx.Node) else None
        return None if value is None else value.geometry.sizes

    def _spell(self, x: Any) -> str:
        if isinstance(x, fx.Node):
            return self._names[x]
        if isinstance(x, list | tuple):
            inside = "".join(f"{self._spell(i)}, " for i in x)
            return f"[{inside}]" if isinstance(x, list) else f"({inside})"
        return self.speller.literal(x)

    def _name(self, node: fx.Node) -> str:
        return self._names.setdefault(node, f"{node.name}_")


def _last_uses(graph: fx.Graph, same: dict[fx.Node, fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """The nodes whose value is not needed after each node; those that are the ``same`` as others are none."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for used in () if node in same else node.all_input_nodes:
            last[same.get(used, used)] = node
    found: dict[fx.Node, list[fx.Node]] = {}
    for used, node in last.items():
        found.setdefault(node, []).append(used)
    return found
