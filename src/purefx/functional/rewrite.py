"""The pass from a recording to a functional graph.

    x.add_(1)                       new_x = add(x, 1)
    y = x[0]; y.mul_(2)             row = mul(select(new_x, 0, 0), 2)
    return x.sum()                  sum(select_scatter(new_x, row, 0, 0))

The graph's inputs are the roots of the caller's memory and the symbols that its sizes are made of; its outputs
are, in this order: the written regions, the results, the bases that several results share, the numbers that the
program returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from purefx._torch import HigherOrderOperator, ShapeEnv, pytree
from purefx.analysis.replay import Fresh, Plain, Replay
from purefx.capture.captured import Capture, Input, TensorResult
from purefx.capture.recording import Call, Constant, Effect, Operand, Recording, Region, Variable, restrided
from purefx.capture.session import capture
from purefx.errors import UnsupportedOperator
from purefx.functional.bodies import example, with_bodies
from purefx.functional.builder import Builder, Value
from purefx.functional.contents import Content, Merge
from purefx.functional.dead import without_dead_nodes
from purefx.functional.memory import Memory
from purefx.functional.regions import chain_between, once
from purefx.functional.roots import Root, infer_roots
from purefx.functional.verify import check_functional
from purefx.functional.writes import InPlace, Writer
from purefx.operators import aten


@dataclass(frozen=True, slots=True, eq=False)
class RootInput:
    """A graph input: the memory of a root as it was before the call."""

    name: str
    root: Root


@dataclass(frozen=True, slots=True, eq=False)
class SymbolInput:
    """A graph input: a size symbol, whose value the prologue reads off the arguments."""

    name: str
    symbol: Any


GraphInput = RootInput | SymbolInput


@dataclass(frozen=True, slots=True, eq=False)
class WrittenOutput:
    """A graph output: what ``region`` of ``root`` holds after the call.

    ``whole`` is the node of all of the root, if the region has not been written since that was computed.
    """

    root: Root
    region: Region
    whole: fx.Node | None


@dataclass(frozen=True, slots=True, eq=False)
class ResultOutput:
    """A graph output: a result whose memory nobody else can reach.

    ``is_view`` tells that the graph returns a view of a tensor that nobody else has.
    """

    variable: Variable
    region: Region
    is_view: bool


@dataclass(frozen=True, slots=True, eq=False)
class BaseOutput:
    """A graph output: memory made inside that several results show; ``is_view`` as in `ResultOutput`."""

    variable: Variable
    region: Region
    is_view: bool


@dataclass(frozen=True, slots=True, eq=False)
class NumberOutput:
    """A graph output: a number that the program read out of a tensor."""

    symbol: Any


GraphOutput = WrittenOutput | ResultOutput | BaseOutput | NumberOutput


@dataclass(frozen=True, slots=True, eq=False)
class Functional:
    """A functional graph with its signature; position i of ``inputs`` is placeholder i, likewise ``outputs``."""

    graph: fx.Graph
    constants: dict[str, torch.Tensor | fx.GraphModule]
    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...]
    values: dict[fx.Node, Value]
    lines: dict[fx.Node, str]
    merges: tuple[tuple[Root, Merge], ...] = ()
    in_place: tuple[tuple[Root, InPlace], ...] = ()


def functionalize(capture: Capture, replay: Replay) -> Functional:
    """The functional graph of ``capture``, with the outputs that ``replay`` starts from."""
    return functional_graph(capture.recording, capture.inputs, replay, capture.env)


def functional_graph(recording: Recording, inputs: Sequence[Input], replay: Replay, env: ShapeEnv) -> Functional:
    """The functional graph of ``recording`` as a function of ``inputs``."""
    return _Rewriter(recording, inputs, replay, env).run()


def module_of(functional: Functional) -> fx.GraphModule:
    """The graph of ``functional`` as a module that can run."""
    return fx.GraphModule(dict(functional.constants), functional.graph, class_name="functional")


def functional_body(function: Any, operands: Sequence[Operand], env: ShapeEnv) -> fx.GraphModule:
    """The functional graph of the body of a control-flow operator, as a module that takes ``operands``.

    Raises UnsupportedOperator if the body writes to its operands, or uses tensors that are none.
    """
    captured = capture(function, tuple(example(o.region, env) for o in operands), {})
    results = tuple(
        Fresh(r.variable, r.region) if isinstance(r, TensorResult) else Plain(r.value) for r in captured.results
    )
    body = _Rewriter(captured.recording, captured.inputs, Replay(results, (), (), ()), captured.env).run(keep=True)
    if len(captured.inputs) > len(operands) or any(isinstance(o, WrittenOutput) for o in body.outputs):
        raise UnsupportedOperator(
            f"{getattr(function, '__name__', function)}, the body of a control-flow operator, writes to an operand or"
            " uses a tensor that is none",
            where=None,
            remedy="pass every tensor that it uses as an operand, and return new values",
        )
    nodes = {o.variable: node for o, node in zip(body.outputs, body.graph.output_node().args[0], strict=True)}
    outputs = [nodes[h.variable] if isinstance(h, Fresh) else h.value for h in results]
    body.graph.output_node().args = (pytree.tree_unflatten(outputs, captured.structure),)
    return module_of(body)


class _Rewriter:
    def __init__(self, recording: Recording, inputs: Sequence[Input], replay: Replay, env: ShapeEnv) -> None:
        self._recording = recording
        self._inputs = inputs
        self._replay = replay
        self._builder = Builder(env)
        self._memory = Memory(self._builder, recording)
        self._writer = Writer(self._builder, self._memory)
        self._roots: list[tuple[Root, Content]] = []
        self._owned: set[fx.Node] = set()

    def run(self, *, keep: bool = False) -> Functional:
        inputs = self._begin()
        for call in self._recording:
            self._builder.line = "" if call.where is None else str(call.where)
            self._rewrite(call)
        self._builder.line = ""
        outputs = self._outputs()
        self._builder.graph.output(tuple(node for _, node in outputs))
        inputs = without_dead_nodes(self._builder.graph, inputs, keep=keep)
        check_functional(self._builder.graph)
        return Functional(
            self._builder.graph, self._builder.constants, tuple(inputs), tuple(o for o, _ in outputs),
            self._builder.values, self._builder.lines, self._of_roots(self._memory.merges), self._of_roots(self._writer.in_place),
        )  # fmt: skip

    def _begin(self) -> list[GraphInput]:
        inputs: list[GraphInput] = []
        for symbol in self._symbols():
            self._builder.symbol_placeholder(symbol)
            inputs.append(SymbolInput(str(symbol), symbol))
        roots = infer_roots(self._recording, self._inputs)
        for i, root in enumerate(roots):
            name = _identifier(root, i)
            value = self._builder.placeholder(name, root.region)
            self._owned.add(value.node)
            single = root.region.at(once(root.region.geometry))
            chain = chain_between(root.region, single)
            value = value if chain is None else self._builder.chain(value, chain)
            self._roots.append((root, self._memory.begin(single, value)))
            inputs.append(RootInput(name, root))
        return inputs

    def _of_roots(self, writes: Any) -> Any:
        """Those of ``writes`` that are to the caller's memory, each with its root."""
        roots = {content: root for root, content in self._roots}
        return tuple((roots[write.content], write) for write in writes if write.content in roots)

    def _symbols(self) -> list[Any]:
        found: dict[Any, None] = {}
        for known in self._inputs:
            geometry = known.before.geometry
            for x in (*geometry.sizes, *geometry.strides, geometry.offset):
                if isinstance(x, torch.SymInt):
                    found.update(dict.fromkeys(sorted(x.node.expr.free_symbols, key=str)))
        return list(found)

    def _rewrite(self, call: Call) -> None:
        for storage, before, after in call.resized:
            self._memory.grow(storage, before, after)
        if isinstance(call.op, HigherOrderOperator):
            self._pure(with_bodies(call, self._builder, functional_body))
        elif call.effect is Effect.WRITE:
            self._writer.write(call)
        elif call.effect is Effect.NONE or call.fresh:
            self._pure(call)

    def _pure(self, call: Call) -> None:
        """A call that writes nothing: the same call on the present values of its operands."""
        if call.args and isinstance(call.args[0], Constant):
            value = self._builder.constant(call.args[0].value, call.outputs[0].region)
            self._memory.define(call, [value])
            return
        if call.op is aten.as_strided_copy.default:
            self._memory.define(call, [self._builder.copy(self._memory.read(restrided(call)))])
            return
        if call.op is aten.as_strided_scatter.default:
            call = _scatter_from_start(call)
        args, kwargs = self._memory.read_tree(call.args), self._memory.read_tree(call.kwargs)
        node = self._builder.call(call.op, args, kwargs)
        if isinstance(call.results, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self._builder.symbols[call.results.node.expr] = node
            return
        alone = not isinstance(call.results, (list, tuple))
        values = []
        for i, output in enumerate(call.outputs):
            if output.region.storage in call.fresh:
                values.append(self._builder.fresh(node if alone else self._builder.item(node, i), output.region))
        self._memory.define(call, values)

    def _outputs(self) -> list[tuple[GraphOutput, Any]]:
        outputs: list[tuple[GraphOutput, Any]] = []
        for root, content in self._roots:
            for region in self._memory.written(content):
                pending = self._memory.is_pending(content, region)
                value = self._memory.read(region)
                whole = None if pending else content.value.node
                outputs.append((WrittenOutput(root, region, whole), self._written(value)))
        hows = [*self._replay.results, *self._replay.rebound]
        for variable, region in dict.fromkeys((h.variable, h.region) for h in hows if isinstance(h, Fresh)):
            node = self._own(self._memory.read_exactly(region))
            outputs.append((ResultOutput(variable, region, self._is_view(node)), node))
        for base in self._replay.bases:
            node = self._own(self._memory.read_exactly(base.region))
            outputs.append((BaseOutput(base.variable, base.region, self._is_view(node)), node))
        for how in hows:
            if isinstance(how, Plain) and isinstance(how.value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                outputs.append((NumberOutput(how.value), self._builder.lower(how.value)))
        return outputs

    def _is_view(self, node: fx.Node) -> bool:
        return self._builder.values[node].origin is not node

    def _written(self, value: Value) -> fx.Node:
        """The node of ``value`` for a write: it is only read, but the graph's outputs must not share memory."""
        return self._own(value, keep_strides=False)

    def _own(self, value: Value, *, keep_strides: bool = True) -> fx.Node:
        """The node of ``value``, or of a copy where an output or the caller already has its memory."""
        if value.origin in self._owned or value.origin.op == "get_attr":
            region_geometry = value.geometry
            copied = self._builder.copy(value)
            if keep_strides and not copied.geometry.same_layout(region_geometry):
                copied = self._builder.strided_as(value, region_geometry, torch.device("cpu"))
            value = copied
        self._owned.add(value.origin)
        return value.node


def _scatter_from_start(call: Call) -> Call:
    """An ``as_strided_scatter`` whose offset counts from the first element of its tensor, as the graph's do."""
    region, (_, source, sizes, strides, *rest) = call.operands[0].region, call.args
    start = (rest[0] if rest and rest[0] is not None else region.geometry.offset) - region.geometry.offset
    return replace(call, args=(call.args[0], source, sizes, strides, start))


def _identifier(root: Root, index: int) -> str:
    if root.base is None:
        return f"base_{index}"
    name = "".join(c if c.isalnum() else "_" for c in root.base.name).strip("_")
    return f"{name}_" if name[:1].isdigit() or not name else name
