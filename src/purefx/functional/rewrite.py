"""The pass from a recording to a functional graph.

    x.add_(1)                       new_x = add(x, 1)
    y = x[0]; y.mul_(2)             row = mul(select(new_x, 0, 0), 2)
    return x.sum()                  sum(select_scatter(new_x, row, 0, 0))

The graph's inputs are the roots of the caller's memory and the symbols that its sizes are made of; its outputs
are, in this order: the written regions, the results, the bases that several results share, the numbers that the
program returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from purefx._torch import HigherOrderOperator, ShapeEnv, free_unbacked_symbols
from purefx.analysis.replay import Fresh, Plain, Replay
from purefx.capture.captured import Capture, Input
from purefx.capture.recording import SYMBOLS, Call, Constant, Effect, Recording, Region, map_tree, restrided
from purefx.functional.bodies import with_bodies
from purefx.functional.builder import Builder, Value
from purefx.functional.contents import Content, Merge
from purefx.functional.dead import without_dead_nodes
from purefx.functional.memory import Memory
from purefx.functional.regions import chain_between, once
from purefx.functional.roots import Root, infer_roots
from purefx.functional.signature import (
    BaseOutput,
    Functional,
    GraphInput,
    GraphOutput,
    NumberOutput,
    ResultOutput,
    RootInput,
    SymbolInput,
    WrittenOutput,
)
from purefx.functional.verify import check_functional
from purefx.functional.writes import InPlace, Writer
from purefx.layout import holds, same
from purefx.operators import aten


def functionalize(capture: Capture, replay: Replay) -> Functional:
    """The functional graph of ``capture``, with the outputs that ``replay`` starts from."""
    return functional_graph(capture.recording, capture.inputs, replay, capture.env)


def functional_graph(recording: Recording, inputs: Sequence[Input], replay: Replay, env: ShapeEnv) -> Functional:
    """The functional graph of ``recording`` as a function of ``inputs``."""
    return _Rewriter(recording, inputs, replay, env).run()


def _rewrite_body(body: Capture, replay: Replay) -> Functional:
    """The functional graph of the body of a control-flow operator: it takes all of its operands, read or not."""
    return _Rewriter(body.recording, body.inputs, replay, body.env).run(keep=True)


W = TypeVar("W", Merge, InPlace)


class _Rewriter:
    """Goes through a recording once.

    ``_owned`` are the nodes whose memory the caller has, or gets: an output must not be a view of it.
    """

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
        made = (node for node, value in self._builder.values.items() if value.origin is node)
        check_functional(self._builder.graph, frozenset(made))
        return Functional(
            graph=self._builder.graph,
            constants=self._builder.constants,
            inputs=tuple(inputs),
            outputs=tuple(o for o, _ in outputs),
            values=self._builder.values,
            lines=self._builder.lines,
            merges=self._of_roots(self._memory.merges),
            in_place=self._of_roots(self._writer.in_place),
        )

    def _begin(self) -> list[GraphInput]:
        inputs: list[GraphInput] = []
        for symbol in self._symbols():
            self._builder.symbol_placeholder(symbol)
            inputs.append(SymbolInput(str(symbol), symbol))
        roots = infer_roots(self._recording, self._inputs)
        taken: dict[str, int] = {}
        for i, root in enumerate(roots):
            name = _identifier(root, i)
            taken[name] = taken.get(name, 0) + 1
            name = name if taken[name] == 1 else f"{name}_{taken[name]}"
            value = self._builder.placeholder(name, root.region)
            self._owned.add(value.node)
            single = root.region.at(once(root.region.geometry))
            chain = chain_between(root.region, single)
            value = value if chain is None else self._builder.chain(value, chain)
            self._roots.append((root, self._memory.begin(single, value)))
            inputs.append(RootInput(name, root))
        return inputs

    def _of_roots(self, writes: Iterable[W]) -> tuple[tuple[Root, W], ...]:
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
            self._pure(with_bodies(call, self._builder, _rewrite_body))
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
            self._scatter(call)
            return
        args, kwargs = self._memory.read_tree(call.args), self._memory.read_tree(call.kwargs)
        node = self._builder.call(call.runnable, args, kwargs)
        if isinstance(call.results, SYMBOLS):
            self._builder.symbols[call.results.node.expr] = node
            return
        alone = not isinstance(call.results, (list, tuple))
        values = []
        for i, output in enumerate(call.outputs):
            if output.region.storage in call.fresh:
                values.append(self._builder.fresh(node if alone else self._builder.item(node, i), output.region))
        self._memory.define(call, values)

    def _scatter(self, call: Call) -> None:
        """An ``as_strided_scatter``: its target with exactly its strides, its offset from the first element."""
        region, (target, source, sizes, strides, *rest) = call.operands[0].region, call.args
        offset = rest[0] if rest and rest[0] is not None else region.geometry.offset
        value = self._memory.read_exactly(target.region)
        if not self._builder.starts_at_zero(value):
            value = self._builder.strided_as(value, region.geometry, region.storage.device)
        args = (value, self._memory.read_tree(source), sizes, strides, offset - region.geometry.offset)
        node = self._builder.call(call.runnable, args)
        self._memory.define(call, [self._builder.fresh(node, call.outputs[0].region)])

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
            node = self._result(region)
            outputs.append((ResultOutput(variable, region, self._is_view(node)), node))
        for base in self._replay.bases:
            node = self._result(base.region)
            outputs.append((BaseOutput(base.variable, base.region, self._is_view(node)), node))
        for how in hows:
            if isinstance(how, Plain) and isinstance(how.value, SYMBOLS):
                outputs.append((NumberOutput(how.value), self._builder.lower(how.value)))
        for symbol in self._symbols_outside(outputs):
            outputs.append((NumberOutput(symbol), self._builder.symbols[symbol]))
        return outputs

    def _symbols_outside(self, outputs: list[tuple[GraphOutput, Any]]) -> list[Any]:
        """Numbers read out of tensors that the wrapper needs: for views that it replays, and regions it writes."""
        found: dict[Any, None] = {}

        def note(x: Any) -> None:
            if isinstance(x, torch.SymInt):
                found.update(dict.fromkeys(sorted(free_unbacked_symbols(x), key=str)))

        map_tree(note, [call.args for call in self._replay.statements])
        for output, _ in outputs:
            if isinstance(output, WrittenOutput):
                geometry = output.region.geometry
                map_tree(note, (geometry.sizes, geometry.strides, geometry.offset))
        return [symbol for symbol in found if symbol in self._builder.symbols]

    def _is_view(self, node: fx.Node) -> bool:
        return self._builder.values[node].origin is not node

    def _result(self, region: Region) -> fx.Node:
        """The node of a result that shows ``region``: its very strides, in memory that nobody else has, and no more."""
        value = self._memory.read_exactly(region)
        if self._is_taken(value):
            copied = self._builder.copy(value)
            fits = copied.geometry.same_layout(region.geometry)
            value = copied if fits else self._restrided(value, region)
        elif _is_all_of_its_storage(region) and not self._builder.fills_its_storage(value):
            value = self._restrided(value, region)
        self._owned.add(value.origin)
        return value.node

    def _restrided(self, value: Value, region: Region) -> Value:
        return self._builder.strided_as(value, region.geometry, region.storage.device)

    def _written(self, value: Value) -> fx.Node:
        """The node of ``value`` for a write: it is only read, but the graph's outputs must not share memory."""
        value = self._builder.copy(value) if self._is_taken(value) else value
        self._owned.add(value.origin)
        return value.node

    def _is_taken(self, value: Value) -> bool:
        """Whether an output, the caller or the graph itself has the memory of ``value``."""
        return value.origin in self._owned or value.origin.op == "get_attr"


def _is_all_of_its_storage(region: Region) -> bool:
    size = region.geometry.numel * region.dtype.itemsize
    return holds(region.geometry.offset == 0) and same(region.storage.nbytes, size)


def _identifier(root: Root, index: int) -> str:
    if root.base is None:
        return f"base_{index}"
    name = "".join(c if c.isalnum() else "_" for c in root.base.name).strip("_")
    return f"{name}_" if name[:1].isdigit() or not name else name
