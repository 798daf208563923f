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
from collections.abc import Callable, Iterator
from typing import Any, assert_never

import torch
from torch import fx

from purefx._torch import OpOverload
from purefx.capture.captured import TensorResult
from purefx.capture.recording import Variable
from purefx.functional.builder import Value
from purefx.functional.roots import Root
from purefx.functional.signature import (
    BaseOutput,
    ForwardInput,
    ForwardOutput,
    Functional,
    NumberOutput,
    ResidualOutput,
    ResultOutput,
    RootInput,
    SymbolInput,
    WrittenOutput,
)
from purefx.pipeline import Stages
from purefx.report.names import argument_names, function_name, identifier, result_names
from purefx.report.spelling import dtype_name, spell_part

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


def render(stages: Stages) -> str:
    """The functional graph of ``stages`` as Python."""
    return "\n".join(_Renderer(stages).lines())


class _Renderer:
    """Writes the lines.  ``_words`` holds the name of each node that was printed; every name is used once."""

    def __init__(self, stages: Stages) -> None:
        self._function = function_name(stages.capture.function)
        self._functional: Functional = stages.functional
        self._arguments = argument_names(stages.capture)
        pairs = zip(result_names(stages.capture), stages.capture.results, strict=True)
        self._results = [(name, r) for name, r in pairs if isinstance(r, TensorResult)]
        self._words: dict[fx.Node, str] = {}
        self._taken: set[str] = set()

    def lines(self) -> Iterator[str]:
        """The whole function."""
        nodes = list(self._functional.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        yield f"def {self._function}(" if placeholders else f"def {self._function}():"
        for node, given in zip(placeholders, self._functional.inputs, strict=True):
            yield f"    {self._input(node, given)}"
        if placeholders:
            yield "):"
        for node in nodes:
            if node.op in ("call_function", "get_attr"):
                yield f"    {self._statement(node)}"
        yield from self._return(nodes[-1])

    def _input(self, node: fx.Node, given: ForwardInput) -> str:
        match given:
            case SymbolInput(name, _):
                return f"{self._word(node, name)}: int,  # a size"
            case RootInput(_, root):
                word = self._word(node, identifier(self.root_name(root)))
                value = self._functional.values[node]
                return f"{word}: {_type(value)},  # {_layout(value)}   {self._meaning(root)}"
            case _:
                assert_never(given)

    def root_name(self, root: Root) -> str:
        """What the input for ``root`` is called."""
        return "base" if root.base is None else self._arguments[root.base]

    def _meaning(self, root: Root) -> str:
        names = [self._arguments[member] for member in root.members]
        if root.base is None:
            return f"synthetic base of {' and '.join(names)}"
        name = self._arguments[root.base]
        views = [n for member, n in zip(root.members, names, strict=True) if member is not root.base]
        return f"memory of {name}" + (f", and of {' and '.join(views)} in it" if views else "")

    def _statement(self, node: fx.Node) -> str:
        value = self._functional.values.get(node)
        expression = self._expression(node)
        word = self._word(node, self._wanted(node))
        kind = f": {_type(value)}" if value is not None else ""
        remarks = [_layout(value)] if value is not None else []
        line = self._functional.lines.get(node, "")
        remarks += [_short(line)] if line else []
        return f"{word}{kind} = {expression}" + (f"  # {'   '.join(remarks)}" if remarks else "")

    def _wanted(self, node: fx.Node) -> str:
        if node.op == "get_attr":
            return str(node.target)
        if node.target is operator.getitem:
            return f"{self._words[_node(node.args[0])]}_{node.args[1]}"
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
            return self._words[x]
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
        for x, meaning in zip(returned, self._functional.outputs, strict=True):
            yield f"        {self._argument(x)},  # {self._output(meaning)}"
        yield "    )"

    def _output(self, output: ForwardOutput) -> str:
        match output:
            case WrittenOutput(root, region):
                return f"written back: {self._target(root, region)}"
            case ResultOutput(variable, _):
                return " and ".join(self._shown_by(variable)) or "bound to an attribute"
            case BaseOutput(variable, region):
                known = self._shown_by(variable)
                views = [n for n, r in self._results if r.region.storage is region.storage and n not in known]
                return " and ".join(known or ["base"]) + (f", base of {' and '.join(views)}" if views else "")
            case ResidualOutput():
                return "saved for the backward"
            case NumberOutput():
                return "a number read out of a tensor"
            case _:
                assert_never(output)

    def _target(self, root: Root, region: Any) -> str:
        whole = root.region if root.base is None else root.base.before
        return spell_part(self.root_name(root), whole, region)

    def _shown_by(self, variable: Variable) -> list[str]:
        return [name for name, result in self._results if result.variable is variable]

    def _word(self, node: fx.Node, wanted: str) -> str:
        word, number = wanted, 0
        while word in self._taken:
            number += 1
            word = f"{wanted}_{number}"
        self._taken.add(word)
        self._words[node] = word
        return word


def _type(value: Value) -> str:
    return f"{dtype_name(value.dtype)}[{', '.join(map(str, value.geometry.sizes))}]"


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


def _short(line: str) -> str:
    """``file.py:12`` of ``/folder/file.py:12 in function``."""
    return line.rpartition(" in ")[0].replace("\\", "/").rpartition("/")[2]


def _node(x: Any) -> fx.Node:
    assert isinstance(x, fx.Node)
    return x


__all__ = ["render"]
