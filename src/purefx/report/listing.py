"""A functional graph as Python: one line for each node, with dtype, sizes, strides and the user's line.

    def step(
        x: float32[2, 3],  # strides (3, 1)   memory of x
    ):
        add: float32[2, 3] = aten.add.Tensor(x, 1)  # strides (3, 1)   train.py:12
        return (
            add,  # result
        )

The text depends on the program alone: the same program gives the same text in every process.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from purefx._torch import OpOverload
from purefx.functional.builder import Value
from purefx.functional.signature import FunctionalGraph
from purefx.report.names import identifier
from purefx.report.spelling import describe_value, dtype_name, shortened

_INFIX: dict[Callable[..., Any], str] = {
    operator.add: "+",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.mul: "*",
    operator.sub: "-",
    operator.truediv: "/",
}
_SHOWN = 8
"""A constant of up to this many elements is printed with its values."""


@dataclass(frozen=True, slots=True)
class Head:
    """How an input is called, and what it is."""

    word: str
    remark: str


class Listing:
    """Writes the lines.  ``words`` holds the name of each node that was printed; every name is used once."""

    def __init__(self, name: str, functional: FunctionalGraph, inputs: Sequence[Head], outputs: Sequence[str]) -> None:
        self._name = name
        self._functional = functional
        self._inputs = inputs
        self._outputs = outputs
        self.words: dict[fx.Node, str] = {}
        self._taken: set[str] = set()

    def lines(self) -> Iterator[str]:
        """The whole function."""
        nodes = list(self._functional.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        yield f"def {self._name}(" if placeholders else f"def {self._name}():"
        for node, head in zip(placeholders, self._inputs, strict=True):
            yield f"    {self._input(node, head)}"
        if placeholders:
            yield "):"
        for node in nodes:
            if node.op in ("call_function", "get_attr"):
                yield f"    {self._statement(node)}"
        yield from self._return(nodes[-1])

    def _input(self, node: fx.Node, head: Head) -> str:
        word, value = self._word(node, head.word), self._functional.values.get(node)
        if value is None:
            return f"{word}: int,  # {head.remark}"
        return f"{word}: {_type(value)},  # {_layout(value)}   {head.remark}"

    def _statement(self, node: fx.Node) -> str:
        value = self._functional.values.get(node)
        expression = self._expression(node)
        word = self._word(node, self._wanted(node))
        kind = f": {_type(value)}" if value is not None else ""
        remarks = [_layout(value)] if value is not None else []
        line = self._functional.lines.get(node, "")
        remarks += [shortened(line)] if line else []
        return f"{word}{kind} = {expression}" + (f"  # {'   '.join(remarks)}" if remarks else "")

    def _wanted(self, node: fx.Node) -> str:
        if node.op == "get_attr":
            return str(node.target)
        if node.target is operator.getitem:
            return f"{self.words[_node(node.args[0])]}_{node.args[1]}"
        if isinstance(node.target, OpOverload):
            return str(node.target.overloadpacket.__name__)
        return identifier(getattr(node.target, "__name__", node.name))

    def _expression(self, node: fx.Node) -> str:
        if node.op == "get_attr":
            return _constant(self._functional.constants[str(node.target)])
        args = [self._argument(x) for x in node.args]
        if node.target is operator.getitem:
            return f"{args[0]}[{args[1]}]"
        if node.target in _INFIX and len(args) == 2:
            return f"{args[0]} {_INFIX[node.target]} {args[1]}"
        args += [f"{name}={self._argument(x)}" for name, x in node.kwargs.items()]
        return f"{_function(node.target)}({', '.join(args)})"

    def _argument(self, x: Any) -> str:
        if isinstance(x, fx.Node):
            return self.words[x]
        if isinstance(x, list):
            return f"[{', '.join(map(self._argument, x))}]"
        if isinstance(x, tuple):
            return f"({', '.join(map(self._argument, x))}{',' if len(x) == 1 else ''})"
        return repr(str(x)) if isinstance(x, torch.device) else repr(x)

    def _return(self, output: fx.Node) -> Iterator[str]:
        returned = output.args[0]
        assert isinstance(returned, list | tuple)
        if not returned:
            yield "    return ()"
            return
        yield "    return ("
        for x, remark in zip(returned, self._outputs, strict=True):
            yield f"        {self._argument(x)},  # {remark}"
        yield "    )"

    def _word(self, node: fx.Node, wanted: str) -> str:
        word, number = wanted, 0
        while word in self._taken:
            number += 1
            word = f"{wanted}_{number}"
        self._taken.add(word)
        self.words[node] = word
        return word


def _type(value: Value) -> str:
    return describe_value(value) if value.geometry.rank else f"{dtype_name(value.dtype)}[()]"


def _layout(value: Value) -> str:
    strides = ", ".join(map(str, value.geometry.strides))
    comma = "," if len(value.geometry.strides) == 1 else ""
    bits = [word for word, there in (("conj", value.conj), ("neg", value.neg)) if there]
    return " ".join([f"strides ({strides}{comma})", *bits])


def _function(target: Any) -> str:
    return str(target) if isinstance(target, OpOverload) else getattr(target, "__name__", str(target))


def _constant(tensor: torch.Tensor | fx.GraphModule) -> str:
    if isinstance(tensor, fx.GraphModule):
        return "graph(...)"
    values = tensor.tolist() if tensor.numel() <= _SHOWN else "..."
    return f"tensor({values})"


def _node(x: Any) -> fx.Node:
    assert isinstance(x, fx.Node)
    return x


__all__ = ["Head", "Listing"]
