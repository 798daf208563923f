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

from purefx._torch import HigherOrderOperator, OpOverload, ShapeEnv, free_unbacked_symbols
from purefx.analysis.replay import Fresh, Plain, Replay
from purefx.capture.captured import Capture, Input
from purefx.capture.recording import (
    SYMBOLS,
    Call,
    Constant,
    Effect,
    Operand,
    Recording,
    Region,
    Storage,
    map_tree,
    restrided,
)
from purefx.functional.bodies import with_bodies
from purefx.functional.builder import Builder, Value, unknown_number
from purefx.functional.contents import Content, Merge
from purefx.functional.dead import without_dead_nodes
from purefx.functional.memory import Memory
from purefx.functional.regions import first_elements, once
from purefx.functional.roots import Root, infer_roots
from purefx.functional.seen import Shown, check_seen, infer_changes, seen_by_autograd, seen_without_elements
from purefx.functional.signature import (
    BaseOutput,
    ForwardInput,
    ForwardOutput,
    Functional,
    NumberOutput,
    ResultOutput,
    RootInput,
    SymbolInput,
    WrittenOutput,
)
from purefx.functional.verify import check_functional
from purefx.functional.writes import InPlace, Writer
from purefx.layout import holds, same
from purefx.onednn import in_graph
from purefx.operators import aten, facts


def functionalize(capture: Capture, replay: Replay, *, keep: bool = False) -> Functional:
    """The functional graph of ``capture``, with the outputs that ``replay`` starts from.

    It takes the memory that it reads; with ``keep`` all that the program is given.
    """
    return functional_graph(capture.recording, capture.inputs, replay, capture.env, keep=keep)


def functional_graph(
    recording: Recording, inputs: Sequence[Input], replay: Replay, env: ShapeEnv, *, keep: bool = False
) -> Functional:
    """The functional graph of ``recording`` as a function of ``inputs``."""
    rewriter = Rewriter(recording, inputs, replay, env)
    rewriter.forward()
    return rewriter.finish(keep=keep)


def _rewrite_body(body: Capture, replay: Replay) -> Functional:
    """The functional graph of the body of a control-flow operator: it takes all of its operands, read or not."""
    return functional_graph(body.recording, body.inputs, replay, body.env, keep=True)


W = TypeVar("W", Merge, InPlace)


class Rewriter:
    """Goes through a recording once, then puts the graph together.

    ``owned`` are the nodes whose memory the caller has, or gets, with the storage that it is: an output must not be a
    view of it.  ``handed`` are the values that the caller gets as results, and ``memories`` names of memory as it is
    after the call.
    """

    def __init__(self, recording: Recording, inputs: Sequence[Input], replay: Replay, env: ShapeEnv) -> None:
        self._recording = recording
        self._inputs = inputs
        self._replay = replay
        self.builder = Builder(env, recording)
        self.memory = Memory(self.builder, recording)
        self._writer = Writer(self.builder, self.memory)
        self.roots: list[tuple[Root, Content]] = []
        self.owned: dict[fx.Node, Storage] = {}
        self._drawn: dict[Call, dict[Region, Value]] = {}
        self.graph = self.builder.graph
        self.given: list[ForwardInput] = []
        self.outputs: list[tuple[ForwardOutput, Any]] = []
        self.handed: list[tuple[Region, Value]] = []
        self.memories: dict[str, Root] = {}

    def forward(self) -> None:
        """Rewrite the recording, and find the outputs of the graph."""
        self.given = self._begin()
        self.rewrite(self._recording)
        self.outputs = self._outputs()

    def rewrite(self, calls: Iterable[Call]) -> None:
        """Add ``calls`` to the present graph."""
        for call in calls:
            self.builder.line = "" if call.where is None else str(call.where)
            self._rewrite(call)
        self.builder.line = ""

    def finish(self, residuals: Sequence[tuple[ForwardOutput, fx.Node]] = (), *, keep: bool = False) -> Functional:
        """The graph with the outputs of the program, and ``residuals`` after them."""
        outputs = [*self.outputs, *residuals]
        self.graph.output(tuple(node for _, node in outputs))
        inputs = without_dead_nodes(self.graph, self.given, keep=keep)
        check_functional(self.graph, self.fresh_nodes())
        return Functional(
            graph=self.graph,
            constants=self.builder.constants,
            inputs=tuple(inputs),
            outputs=tuple(o for o, _ in outputs),
            values=self.builder.values,
            lines=self.builder.lines,
            merges=self._of_roots(self.memory.merges),
            in_place=self._of_roots(self._writer.in_place),
        )

    def fresh_nodes(self) -> frozenset[fx.Node]:
        """The nodes that made memory of their own."""
        return frozenset(node for node, value in self.builder.values.items() if value.origin is node)

    def _begin(self) -> list[ForwardInput]:
        inputs: list[ForwardInput] = []
        for symbol in self._symbols():
            self.builder.symbol_placeholder(symbol)
            inputs.append(SymbolInput(str(symbol), symbol))
        roots = infer_roots(self._recording, self._inputs)
        taken: dict[str, int] = {}
        for i, root in enumerate(roots):
            name = _identifier(root, i)
            taken[name] = taken.get(name, 0) + 1
            name = name if taken[name] == 1 else f"{name}_{taken[name]}"
            value = self.builder.placeholder(name, root.region)
            self.owned[value.node] = root.region.storage
            single = root.region.at(once(root.region.geometry))
            value = self.builder.chain(value, first_elements(root.region.geometry, single.geometry))
            self.roots.append((root, self.memory.begin(single, value)))
            inputs.append(RootInput(name, root))
        return inputs

    def _of_roots(self, writes: Iterable[W]) -> tuple[tuple[Root, W], ...]:
        """Those of ``writes`` that are to the caller's memory, each with its root."""
        roots = {content: root for root, content in self.roots}
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
            self.memory.grow(storage, before, after)
        if call.repeats is not None:
            self._draw_again(call, self._drawn[call.repeats])
        elif isinstance(call.op, HigherOrderOperator):
            self._pure(with_bodies(call, self.builder, _rewrite_body))
        elif call.effect is Effect.WRITE:
            self._writer.write(call)
        elif call.effect is Effect.NONE or call.fresh:
            self._pure(call)
        if isinstance(call.op, OpOverload) and facts(call.op).random:
            self._drawn[call] = {o.region: self.memory.read(o.region) for o in (*call.written, *call.outputs)}

    def _draw_again(self, call: Call, drawn: dict[Region, Value]) -> None:
        """The numbers that a random call drew before."""
        assert call.repeats is not None  # asked of such calls
        values = {new: drawn[old.region] for new, old in zip(call.outputs, call.repeats.outputs, strict=True)}
        written = {o.variable for o in call.written}
        fresh = [v for o, v in values.items() if o.region.storage in call.fresh and o.variable not in written]
        self.memory.define(call, fresh)
        for operand in call.written:
            self.memory.write(operand.region, values[operand])

    def _pure(self, call: Call) -> None:
        """A call that writes nothing: the same call on the present values of its operands."""
        if call.args and isinstance(call.args[0], Constant):
            value = self.builder.constant(call.args[0].value, call.outputs[0].region)
            self.memory.define(call, [value])
            return
        if call.op is aten.as_strided_copy.default:
            self.memory.define(call, [self.builder.copy(self.memory.read(restrided(call)))])
            return
        if call.op is aten.as_strided_scatter.default:
            self._scatter(call)
            return
        args, kwargs = self.memory.read_tree(call.args), self.memory.read_tree(call.kwargs)
        node = self.builder.call(in_graph(call.runnable, with_grad=call.modes.grad), args, kwargs)
        if isinstance(call.results, SYMBOLS):
            self.builder.number(call.results.node.expr, node)
            return
        alone = not isinstance(call.results, (list, tuple))
        values = []
        for i, output in enumerate([call.results] if alone else call.results):
            if isinstance(output, Operand) and output.region.storage in call.fresh:
                values.append(self.builder.fresh(node if alone else self.builder.item(node, i), output.region))
        self.memory.define(call, values)

    def _scatter(self, call: Call) -> None:
        """An ``as_strided_scatter``: its target with exactly its strides, its offset from the first element."""
        region, (target, source, sizes, strides, *rest) = call.operands[0].region, call.args
        offset = rest[0] if rest and rest[0] is not None else region.geometry.offset
        value = self.memory.read_exactly(target.region)
        if not self.builder.starts_at_zero(value):
            value = self.builder.strided_as(value, region.geometry, region.storage.device)
        args = (value, self.memory.read_tree(source), sizes, strides, offset - region.geometry.offset)
        node = self.builder.call(call.runnable, args)
        self.memory.define(call, [self.builder.fresh(node, call.outputs[0].region)])

    def _outputs(self) -> list[tuple[ForwardOutput, Any]]:
        outputs = self._writes()
        hows = [*self._replay.results, *self._replay.rebound]
        for variable, region in dict.fromkeys((h.variable, h.region) for h in hows if isinstance(h, Fresh)):
            node = self._result(region)
            outputs.append((ResultOutput(variable, region, self._is_view(node)), node))
        for base in self._replay.bases:
            node = self._result(base.region)
            outputs.append((BaseOutput(base.variable, base.region, self._is_view(node)), node))
        for how in hows:
            if isinstance(how, Plain) and isinstance(how.value, SYMBOLS):
                outputs.append((NumberOutput(how.value), self.builder.lower(how.value)))
        for symbol in self._symbols_outside(outputs):
            outputs.append((NumberOutput(symbol), self.builder.symbols[symbol]))
        return outputs

    def _writes(self) -> list[tuple[ForwardOutput, Any]]:
        """What is written to the caller's memory."""
        outputs: list[tuple[ForwardOutput, Any]] = []
        seen: set[tuple[Region, Shown | None]] = set()
        changes = infer_changes(self._recording, self._inputs)
        for root, content in self.roots:
            for region in self.memory.written(content):
                for part, shown in seen_by_autograd(root, region, changes):
                    if (part, shown) not in seen:
                        seen.add((part, shown))
                        node = self._written(self.memory.read(part), root.region.storage)
                        pending = part is not region or self.memory.is_pending(content, region)
                        whole = None if pending else content.value.node
                        outputs.append((WrittenOutput(root, part, whole, shown), node))
        ways = [shown for _, shown in seen if shown is not None]
        roots = [root for root, _ in self.roots]
        for root, region, shown in seen_without_elements(self._recording, roots, ways, changes):
            node = self._written(self.memory.read(region), root.region.storage)
            outputs.append((WrittenOutput(root, region, None, shown), node))
            ways.append(shown)
        check_seen(self._recording, self._inputs, ways)
        return outputs

    def _symbols_outside(self, outputs: list[tuple[ForwardOutput, Any]]) -> list[Any]:
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
        for symbol in found:
            if symbol not in self.builder.symbols:
                raise unknown_number(symbol, self._recording)
        return list(found)

    def _is_view(self, node: fx.Node) -> bool:
        return self.builder.values[node].origin is not node

    def _result(self, region: Region) -> fx.Node:
        """The node of a result that shows ``region``: its very strides, in memory that nobody else has, and no more."""
        value = self.memory.read_exactly(region)
        if self._is_taken(value):
            copied = self.builder.copy(value)
            fits = copied.geometry.same_layout(region.geometry)
            value = copied if fits else self._restrided(value, region)
        elif _is_all_of_its_storage(region) and not self.builder.fills_its_storage(value):
            value = self._restrided(value, region)
        self.owned[value.origin] = region.storage
        self.handed.append((region, value))
        return value.node

    def _restrided(self, value: Value, region: Region) -> Value:
        return self.builder.strided_as(value, region.geometry, region.storage.device)

    def _written(self, value: Value, storage: Storage) -> fx.Node:
        """The node of ``value`` for a write: it is only read, but the graph's outputs must not share memory."""
        value = self.builder.copy(value) if self._is_taken(value) else value
        self.owned[value.origin] = storage
        return value.node

    def _is_taken(self, value: Value) -> bool:
        """Whether an output, the caller or the graph itself has the memory of ``value``."""
        return value.origin in self.owned or value.origin.op == "get_attr"


def _is_all_of_its_storage(region: Region) -> bool:
    size = region.geometry.numel * region.dtype.itemsize
    return holds(region.geometry.offset == 0) and same(region.storage.nbytes, size)


def _identifier(root: Root, index: int) -> str:
    if root.base is None:
        return f"base_{index}"
    name = "".join(c if c.isalnum() else "_" for c in root.base.name).strip("_")
    return f"{name}_" if name[:1].isdigit() or not name else name
