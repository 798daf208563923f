"""The source of a wrapper: prologue, graph, epilogue, as a person would write them for this one program.

def run(x, buffer):
    \"\"\"Runs step with the graph compiled for these arguments.\"\"\"
    new_buffer, out = graph(x, buffer)
    with no_grad():
        buffer.narrow(0, 3, 1).copy_(new_buffer)
    view = out.select(0, 0)
    return out, view
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any

import torch

from purefx._torch import pytree
from purefx.analysis.replay import Fresh, How, Itself, Plain, Replay, Replayed, storages_of
from purefx.capture.arguments import Leaf
from purefx.capture.captured import Capture, Input, TensorResult
from purefx.capture.recording import Call, Operand, Region, Storage, Variable
from purefx.functional.regions import chain_between, includes
from purefx.functional.roots import Root, written_regions
from purefx.functional.signature import (
    BaseOutput,
    Functional,
    GraphOutput,
    NumberOutput,
    ResultOutput,
    RootInput,
    SymbolInput,
    WrittenOutput,
)
from purefx.layout import Chain, Slice
from purefx.runtime.guards import spell_conditions, spell_geometries, spell_sources, spell_symbols
from purefx.runtime.spelling import METHODS, Speller, spell_range
from purefx.runtime.support import set_versions

_numbers = count()
_METHOD_OF = {f"{op._schema.name.split('::')[1]}.{op._overloadname}": name for op, name in METHODS.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Wrapper:
    """The two generated functions of a specialisation, and their source."""

    matches: Callable[[Any], bool]
    run: Callable[[Any], Any]
    source: str


def build_wrapper(capture: Capture, replay: Replay, functional: Functional, graph: Callable[..., Any]) -> Wrapper:
    """Generate the wrapper of ``functional`` for the calls that look like ``capture``; ``graph`` runs the graph."""
    writer = _WrapperWriter(capture, replay, functional)
    source = writer.source()
    namespace = {**writer.speller.namespace, "graph": graph}
    file = f"<purefx {getattr(capture.function, '__name__', type(capture.function).__name__)} {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), namespace)
    return Wrapper(namespace["matches"], namespace["run"], source)


class _WrapperWriter:
    """Writes the source.  ``_names`` holds the name of each variable that has one."""

    def __init__(self, capture: Capture, replay: Replay, functional: Functional) -> None:
        self._capture = capture
        self._replay = replay
        self._functional = functional
        self._taken: set[str] = {"graph", "leaves", "torch", "no_grad"}
        self._leaves = [self._unique(name, "x") for name in capture.flat.names]
        self._inputs = {known: self._input_name(known) for known in capture.inputs}
        self._names: dict[Variable, str] = {known.variable: name for known, name in self._inputs.items()}
        self._symbols = spell_symbols(capture, self._inputs) if capture.dynamic else {}
        self.speller = Speller({symbol: str(symbol) for symbol in self._symbols})
        self._outputs: dict[GraphOutput, str] = {}
        self._roots: dict[Root, str] = {}
        self._storages: dict[Storage, str] = {}

    def source(self) -> str:
        """The source of both functions."""
        return "\n".join([*self._matches(), "", "", *self._run(), ""])

    def _matches(self) -> list[str]:
        speller, names = self.speller, self._inputs
        conditions = list(spell_conditions(self._capture, speller, names, self._leaves))
        fetch = [*self._unpack(), *spell_sources(self._capture, speller, names)]
        lines = [
            "def matches(leaves):",
            '    """Whether this specialisation may be used for these arguments."""',
            *_indented(fetch),
        ]
        if not self._capture.dynamic:
            return [*lines, *_conjunction(conditions)]
        ranks = [f"{names[k]}.dim() == {k.before.geometry.rank}" for k in self._capture.inputs]
        early = ["if not (", *_indented(_joined([*conditions, *ranks])), "):", "    return False"]
        relations = list(spell_geometries(self._capture, speller, names))
        return [*lines, *_indented([*early, *self._read_symbols()]), *_conjunction(relations or ["True"])]

    def _run(self) -> list[str]:
        name = getattr(self._capture.function, "__name__", type(self._capture.function).__name__)
        body = [
            *self._unpack(),
            *spell_sources(self._capture, self.speller, self._inputs),
            *self._read_symbols(),
        ]
        body += self._remember_versions()
        body += self._call_graph()
        resized = {s for call in self._capture.recording for s, _, _ in call.resized}
        written = [o for o in self._functional.outputs if isinstance(o, WrittenOutput)]
        body += self._write_back([o for o in written if o.region.storage not in resized])
        body += self._statements()
        body += self._write_back_resized([o for o in written if o.region.storage in resized])
        body += self._set_versions()
        body += self._rebind()
        body += self._return()
        return [
            "def run(leaves):",
            f'    """Runs {name} with the graph that was made for such arguments."""',
            *_indented(body),
        ]

    def _unpack(self) -> list[str]:
        if not self._leaves:
            return []
        return [f"({', '.join(self._leaves)},) = leaves"]

    def _read_symbols(self) -> list[str]:
        return [f"{symbol} = {where}" for symbol, where in self._symbols.items()]

    def _remember_versions(self) -> list[str]:
        return [f"{name}_version = {name}._version" for _, name in self._counted()]

    def _counted(self) -> list[tuple[Input, str]]:
        """The tensors of the caller whose version counter may move: those whose memory is written."""
        touched = written_regions(self._capture.recording)
        moved = [(k, n) for k, n in self._inputs.items() if k.writes or k.before.storage in touched]
        return [(known, name) for known, name in moved if not known.tensor.is_inference()]

    def _set_versions(self) -> list[str]:
        pairs = [f"({name}, {name}_version + {k.writes})" for k, name in self._counted()]
        pairs += [f"({name}, {version})" for name, version in self._result_versions().items()]
        return [f"{self.speller.name('set_versions', set_versions)}({', '.join(pairs)})"] if pairs else []

    def _result_versions(self) -> dict[str, int]:
        hows = [*self._replay.results, *self._replay.rebound]
        results = [*self._capture.results, *(r.result for r in self._capture.rebindings)]
        found = {}
        for how, result in zip(hows, results, strict=True):
            if isinstance(how, Fresh | Replayed) and isinstance(result, TensorResult) and result.version is not None:
                found[self._result(how)] = result.version
        return found

    def _call_graph(self) -> list[str]:
        lines = [line for root in self._all_roots() for line in self._synthesise(root)]
        arguments = [self._argument(given) for given in self._functional.inputs]
        for output in self._functional.outputs:
            self._outputs[output] = self._unique(self._output_name(output), "out")
            if isinstance(output, ResultOutput | BaseOutput):
                self._names[output.variable] = self._outputs[output]
        names = list(self._outputs.values())
        if all(node.op in ("placeholder", "output") for node in self._functional.graph.nodes) and not names:
            return lines
        call = f"graph({', '.join(arguments)})"
        statement = f"({', '.join(names)},) = {call}" if names else call
        modes = [f"{self.speller.name('no_grad', torch.no_grad)}()"] if self._capture.grad_before else []
        if torch.is_autocast_enabled("cpu"):  # the graph has the casts in it
            modes.append("torch.autocast('cpu', enabled=False)")
        if modes:
            statement = f"with {', '.join(modes)}:\n    {statement}"
        return [*lines, *statement.split("\n"), *self._without_bases(), *self._made_in_inference_mode()]

    def _without_bases(self) -> list[str]:
        """A result that is no view in eager must not show a base, although the graph made it as a view."""
        made = [o for o in self._functional.outputs if isinstance(o, ResultOutput | BaseOutput) and o.is_view]
        return [f"{self._outputs[o]} = {self._outputs[o]}.detach()" for o in made]

    def _made_in_inference_mode(self) -> list[str]:
        """Results that the program made in an inference mode of its own are inference tensors."""
        made = [
            o for o in self._functional.outputs if isinstance(o, ResultOutput | BaseOutput) and o.variable.inference
        ]
        if not made or self._capture.inference:
            return []
        lines = [f"    {self._outputs[o]} = {self._outputs[o]}.clone()" for o in made]
        return ["with torch.inference_mode():", *lines]

    def _all_roots(self) -> list[Root]:
        read = [given.root for given in self._functional.inputs if isinstance(given, RootInput)]
        written = [o.root for o in self._functional.outputs if isinstance(o, WrittenOutput)]
        return list(dict.fromkeys([*read, *written]))

    def _synthesise(self, root: Root) -> list[str]:
        """The synthetic base of ``root``: a run of the storage, by way of one of the members."""
        if root.base is not None:
            self._roots[root] = self._inputs[root.base]
            return []
        name = self._roots[root] = self._unique("base", "base")
        member = next((m for m in root.members if m.before.dtype == root.region.dtype), root.members[0])
        start = self._inputs[member]
        ratio_dtype = member.before.dtype == root.region.dtype
        geometry = root.region.geometry
        if not ratio_dtype:
            start = f"{start}.as_strided((1,), (1,)).view({self.speller.literal(root.region.dtype)})"
            place = f"{start}.storage_offset() + {geometry.offset} - {member.before.geometry.offset} * {member.before.dtype.itemsize} // {root.region.dtype.itemsize}"
        else:
            distance = geometry.offset - member.before.geometry.offset
            place = f"{start}.storage_offset() + {self.speller.literal(distance)}"
        size = self.speller.literal(tuple(geometry.sizes))
        return [f"{name} = {start}.as_strided({size}, (1,), {place})"]

    def _argument(self, given: Any) -> str:
        match given:
            case RootInput(_, root):
                return self._roots[root]
            case SymbolInput(_, symbol):
                return self.speller.expression(symbol)

    def _output_name(self, output: GraphOutput) -> str:
        match output:
            case WrittenOutput(root, _):
                return f"new_{self._roots[root]}"
            case NumberOutput():
                return "number"
            case _:
                return "out"

    def _write_back(self, outputs: list[WrittenOutput]) -> list[str]:
        if not outputs:
            return []
        lines = [
            f"{target}.copy_({self._outputs[o]})" for o, target in zip(outputs, self._targets(outputs), strict=True)
        ]
        return [f"with {self.speller.name('no_grad', torch.no_grad)}():", *_indented(lines)]

    def _targets(self, outputs: list[WrittenOutput]) -> list[str]:
        """Where each output is written to.

        Rule: the caller's version counters end where eager leaves them.  A write by way of ``x.data`` moves none,
        and is used where eager's writes were fewer than these (``x.data.add_(1)`` in the program counts as none).
        """
        found = [self._target(o.root, o.region) for o in outputs]
        counts = Counter(member for member, _, _ in found)
        plain = {m for m, n in counts.items() if m is not None and not m.tensor.is_inference() and m.writes >= n}
        return [f"{name}{'' if member in plain else '.data'}{views}" for member, name, views in found]

    def _target(self, root: Root, region: Region) -> tuple[Input | None, str, str]:
        """``region`` of the caller's memory: by views of a member, one that eager wrote if any, or of the base."""
        members = sorted(root.members, key=lambda m: (m.writes == 0, m is not root.base))
        for member in members:
            if includes(member.before, region):
                chain = chain_between(member.before, region)
                if chain is not None:
                    physical = f"{'.conj()' * member.before.conj}{'._neg_view()' * member.before.neg}"
                    return member, self._inputs[member], self._chained(physical, chain)
        chain = chain_between(root.region, region)
        name = self._roots[root]
        if chain is not None:
            return root.base, name, self._chained("", chain)
        geometry = region.geometry
        distance = self.speller.literal(geometry.offset - root.region.geometry.offset)
        sizes, strides = (
            self.speller.literal(tuple(geometry.sizes)),
            self.speller.literal(tuple(geometry.strides)),
        )
        return root.base, name, f".as_strided({sizes}, {strides}, {name}.storage_offset() + {distance})"

    def _chained(self, name: str, chain: Chain) -> str:
        for step in chain:
            arguments = ", ".join(self.speller.literal(a) for a in step.arguments)
            if isinstance(step, Slice):
                bounds = spell_range(*map(self.speller.literal, (step.start, step.stop, step.step)))
                name = f"{name}[{', '.join([':'] * step.dim + [bounds.removesuffix(':1')])}]"
            else:
                name = f"{name}.{_METHOD_OF[step.op]}({arguments})"
        return name

    def _write_back_resized(self, outputs: list[WrittenOutput]) -> list[str]:
        """Storages that have another size now are written once their tensors have their new geometry."""
        lines = []
        for output in outputs:
            for variable, region in self._final_regions(output.region.storage):
                chain = chain_between(output.region, region)
                if variable in self._names and chain is not None:
                    value = self._chained(self._outputs[output], chain)
                    lines.append(f"{self._names[variable]}.copy_({value})")
        return [f"with {self.speller.name('no_grad', torch.no_grad)}():", *_indented(lines)] if lines else []

    def _final_regions(self, storage: Storage) -> list[tuple[Variable, Region]]:
        return [(k.variable, k.after) for k in self._capture.inputs if k.after.storage is storage]

    def _statements(self) -> list[str]:
        lines: list[str] = self._fetch_storages()
        for modes, calls in groupby(self._replay.statements, key=lambda call: call.modes):
            block = [self._statement(call) for call in calls]
            heads = []
            if modes.inference and not self._capture.inference:
                heads.append("torch.inference_mode()")
            elif modes.grad != self._capture.grad_before:
                heads.append(f"torch.set_grad_enabled({modes.grad})")
            lines += [f"with {heads[0]}:", *_indented(block)] if heads else block
        return lines

    def _fetch_storages(self) -> list[str]:
        """Names for the storages that statements need, before any statement changes who shows them."""
        needed = dict.fromkeys(s for call in self._replay.statements for s in storages_of(call))
        holders = {s: next(v for v in self._names if v.first.storage is s) for s in needed}
        self._storages.update((s, self._unique("storage", "storage")) for s in needed)
        return [f"{self._storages[s]} = {self._names[v]}.untyped_storage()" for s, v in holders.items()]

    def _statement(self, call: Call) -> str:
        expression = self.speller.call(call, self._spell)
        made = [o.variable for o in call.outputs if o.variable not in self._names]
        if not made:
            return expression
        if isinstance(call.results, (list, tuple)):
            targets = [self._target_name(o.variable) for o in call.outputs]
            return f"({', '.join(targets)},) = {expression}"
        return f"{self._target_name(made[0])} = {expression}"

    def _target_name(self, variable: Variable) -> str:
        if variable not in self._names:
            self._names[variable] = self._unique("view", "view")
        return self._names[variable]

    def _spell(self, x: Any) -> str:
        if isinstance(x, Operand):
            return self._names[x.variable]
        if isinstance(x, Storage):
            return self._storages[x]
        if isinstance(x, (list, tuple)) and any(isinstance(i, Operand) for i in x):
            return f"[{', '.join(self._spell(i) for i in x)}]"
        return self.speller.literal(x)

    def _rebind(self) -> list[str]:
        lines = []
        for rebinding, how in zip(self._capture.rebindings, self._replay.rebound, strict=True):
            table = self.speller.name("state", rebinding.table)
            if how is None:
                lines.append(f"{table}.pop({rebinding.key!r}, None)")
            else:
                lines.append(f"{table}[{rebinding.key!r}] = {self._result(how)}")
        return lines

    def _result(self, how: How) -> str:
        match how:
            case Itself(source):
                return self._inputs[source]
            case Fresh(variable, _) | Replayed(variable):
                return self._names[variable]
            case Plain(value):
                number = next(
                    (n for o, n in self._outputs.items() if isinstance(o, NumberOutput) and o.symbol is value),
                    None,
                )
                return number if number is not None else self.speller.literal(value)

    def _return(self) -> list[str]:
        lines = []
        if self._capture.grad_after != self._capture.grad_before:
            lines.append(f"torch.set_grad_enabled({self._capture.grad_after})")
        results = [self._result(how) for how in self._replay.results]
        return [*lines, f"return {self._whole(self._capture.structure, results)}"]

    def _whole(self, structure: pytree.TreeSpec, results: list[str]) -> str:
        """The expression that puts ``results`` into the containers that the program returned."""
        text = _nested(structure, iter(results))
        if text is not None:
            return text
        unflatten = self.speller.name("tree_unflatten", pytree.tree_unflatten)
        return f"{unflatten}([{', '.join(results)}], {self.speller.name('structure', structure)})"

    def _input_name(self, known: Input) -> str:
        source = known.sources[0]
        return self._leaves[source.index] if isinstance(source, Leaf) else self._unique(known.name, "held")

    def _unique(self, wanted: str, fallback: str) -> str:
        short = wanted.removeprefix("args").replace("kwargs", "")
        name = "".join(c if c.isalnum() else "_" for c in short).strip("_") or fallback
        name = f"arg{name}" if name[0].isdigit() else name
        unique, number = name, 1
        while unique in self._taken:
            number += 1
            unique = f"{name}_{number}"
        self._taken.add(unique)
        return unique


def _nested(structure: pytree.TreeSpec, results: Any) -> str | None:
    """Nested tuples, lists and dicts as source; None where there is another container."""
    if structure.is_leaf():
        return next(results)
    parts = [_nested(child, results) for child in structure.children()]
    if None in parts:
        return None
    inside = ", ".join(map(str, parts))
    if structure.type is tuple:
        return f"({inside},)" if parts else "()"
    if structure.type is list:
        return f"[{inside}]"
    if structure.type is dict and all(type(key) in (str, int) for key in structure.context):
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(structure.context, parts, strict=True)) + "}"
    if structure.type is type(None):
        return "None"
    return None


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _joined(conditions: list[str]) -> list[str]:
    return [conditions[0], *(f"and {c}" for c in conditions[1:])]


def _conjunction(conditions: list[str]) -> list[str]:
    return ["    return (", *(f"        {c}" for c in _joined(conditions)), "    )"]
