"""The functional graph of a function of tensors at given geometries, its parts for reverse mode, and what runs them.

capture_values(function, examples)  ->  Graph        what the function returns, each value as one of its own
split(graph, ...)                   ->  Split        forward with residuals, and backward from them
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from purefx._torch import OpOverload, is_traced_by_proxies, outside_transforms, without_modes
from purefx.analysis.replay import Fresh, Replay
from purefx.capture.arguments import Held, Leaf
from purefx.capture.captured import Capture, TensorResult
from purefx.capture.loops import known_sizes
from purefx.capture.session import capture, is_capturing
from purefx.compilers import Backend, Compilers
from purefx.errors import TransformRefused
from purefx.functional.builder import Value
from purefx.functional.examples import example_of_value
from purefx.functional.known import find_number
from purefx.functional.reuse import Numbering
from purefx.functional.rewrite import functionalize
from purefx.functional.signature import (
    FunctionalGraph,
    GraphInput,
    GraphOutput,
    ResidualInput,
    ResidualOutput,
    ResultOutput,
    RootInput,
)
from purefx.functional.verify import returned
from purefx.operators import facts, without_overlap
from purefx.runtime.runner import build_runner
from purefx.transforms.batching import batchable
from purefx.transforms.gradients import Teller, note_teller

Tensors = tuple[torch.Tensor, ...]
Compile = Callable[[Capture, FunctionalGraph, Backend], Callable[..., Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A functional graph as a function of a program's inputs.

    ``takes`` says of each graph input which of the program's inputs it is, or which tensor; ``gives`` of each of the
    program's outputs which graph output.
    """

    capture: Capture
    functional: FunctionalGraph
    takes: tuple[int | torch.Tensor, ...]
    gives: tuple[int, ...]

    def calling(self, run: Callable[..., Any]) -> Callable[..., Tensors]:
        """``run``, a callable with the signature of the graph, as a function of the program's inputs."""

        def call(*inputs: torch.Tensor) -> Tensors:
            outputs = run(*[inputs[x] if isinstance(x, int) else x for x in self.takes])
            return tuple(outputs[i] for i in self.gives)

        return call

    def outputs_like(self) -> list[torch.Tensor]:
        """Fakes that look like the program's outputs."""
        nodes = returned(self.functional.graph)
        return [example_of_value(self.capture, self.functional.values[nodes[i]]) for i in self.gives]

    def batchable(self, randomness: str = "error") -> Callable[..., Tensors]:
        """The graph as a function that vmap takes."""
        return self.calling(batchable(self.functional, randomness))


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A graph of outputs and gradients in two: ``backward`` takes the residuals, then the program's inputs.

    ``residuals`` are those among what ``forward`` gives: outputs, and more values after these.  The gradients are
    computed of the inputs ``saved``, wherever that is done.
    """

    forward: Graph
    backward: Graph
    residuals: tuple[int, ...]
    saved: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """What makes callables of graphs, and counts what has run: ``runs`` has the programs by their names."""

    compilers: Compilers | None
    compile: Compile
    runs: Counter[str] = field(default_factory=Counter)

    def callable(
        self, name: str, graph: Graph, role: str = "inference", *, teller: Teller = Teller.OPERATORS
    ) -> Callable[..., Tensors]:
        """What runs ``graph``, of a program whose gradients ``teller`` tells.

        Inside ``make_fx`` or a capture the graph runs as it is, so that it is seen.

        A capture sees it in grad mode, as if it were spelled in the place of the call: a view that the graph takes
        is no view that was taken without gradients.
        """
        seen = build_runner(graph.functional)

        @functools.cache
        def compiled() -> Callable[..., Any]:
            if self.compilers is None:
                return build_runner(graph.functional, unseen=True)
            with outside_transforms(), without_modes():
                return self.compile(graph.capture, graph.functional, getattr(self.compilers, role))

        def call(*inputs: torch.Tensor) -> Tensors:
            self.runs[name] += 1
            if is_capturing():
                note_teller(teller)
                with torch.enable_grad():
                    return graph.calling(seen)(*[x.detach() if x.requires_grad else x for x in inputs])
            with torch.no_grad():
                return graph.calling(seen if is_traced_by_proxies() else compiled())(*inputs)

        return call


def capture_values(function: Callable[..., Tensors], examples: Sequence[torch.Tensor]) -> Graph:
    """The functional graph of ``function``: its outputs are values of their own, whatever they share in eager.

    None repeats an element: forward-mode AD puts a tangent into memory that lies like the output.
    """

    def apart(*inputs: torch.Tensor) -> Tensors:
        """Values without histories: a history would hold what the programs that it has run hold."""
        with known_sizes():
            outputs = function(*inputs)
        values = {id(x): without_overlap(x).detach() for x in outputs}
        return tuple(values[id(x)] for x in outputs)

    captured = capture(apart, tuple(examples), {}, known=find_number)
    results = [_tensor(r) for r in captured.results]
    hows = tuple(Fresh(r.variable, r.region) for r in results)
    functional = functionalize(captured, Replay(hows, (), (), ()))
    places = {(o.variable, o.region): i for i, o in enumerate(functional.outputs) if isinstance(o, ResultOutput)}
    gives = tuple(places[r.variable, r.region] for r in results)
    return Graph(captured, functional, tuple(map(_taken, functional.inputs)), gives)


def _tensor(result: Any) -> TensorResult:
    if not isinstance(result, TensorResult):
        raise TransformRefused(
            f"a program under a transform returns {result.value!r}, which depends on the values of tensors",
            where=None,
            remedy="return tensors",
        )
    return result


def _taken(given: GraphInput) -> int | torch.Tensor:
    source = given.root.base.sources[0] if isinstance(given, RootInput) and given.root.base is not None else None
    if isinstance(source, Leaf):
        return source.index
    if isinstance(source, Held):
        return source.tensor
    raise TransformRefused(
        "a program under a transform reads a number out of a tensor",
        where=None,
        remedy="compute with tensors (torch.where in the place of if)",
    )


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """Values that a forward part has computed: ``numbers`` are theirs, in that order."""

    numbering: Numbering
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, forward: Graph, places: Sequence[int]) -> Residuals:
        """What ``forward`` gives at ``places``."""
        numbering, nodes = Numbering(), returned(forward.functional.graph)
        numbers = numbering.of(forward.functional.graph, map(_key, forward.takes))
        return cls(numbering, tuple(numbers[nodes[forward.gives[i]]] for i in places))

    def only(self, places: Sequence[int]) -> Residuals:
        """Those at ``places``."""
        return Residuals(self.numbering, tuple(self.numbers[i] for i in places))

    def none_but(self, places: Container[int]) -> Residuals:
        """As many, of which those at ``places`` alone are told."""
        return Residuals(self.numbering, tuple(n if i in places else _UNTOLD for i, n in enumerate(self.numbers)))

    def found_in(self, graph: Graph) -> dict[fx.Node, int]:
        """The nodes of ``graph`` that compute one of these of the same inputs, and which."""
        numbers = self.numbering.of(graph.functional.graph, map(_key, graph.takes))
        places = {number: i for i, number in enumerate(self.numbers)}
        return {node: places[n] for node, n in numbers.items() if n in places and node.op != "placeholder"}


_UNTOLD = -1
"""The number of no value."""


def _key(given: int | torch.Tensor) -> Hashable:
    return ("input", given) if isinstance(given, int) else ("held", id(given))


def split_after(graph: Graph, residuals: Residuals, inputs: int, outputs: int) -> Split:
    """``graph`` as `split` has it, where a forward part has run already, and has kept ``residuals``.

    What else the gradients read is computed again.
    """
    nodes = returned(graph.functional.graph)
    early, after = ([nodes[i] for i in part] for part in (graph.gives[:outputs], graph.gives[outputs:]))
    given, count = _given(graph), len(residuals.numbers)
    saved = _saved(graph.functional, given, early, inputs)
    found = {node: i for node, i in residuals.found_in(graph).items() if node not in after}  # those have own memory
    backward = _part(graph, given, after, found, count)
    return Split(extract(graph, early), backward, tuple(range(count)), saved)


def _given(graph: Graph) -> dict[fx.Node, int | torch.Tensor]:
    """What each input of the graph is."""
    return dict(zip((n for n in graph.functional.graph.nodes if n.op == "placeholder"), graph.takes, strict=True))


def split(graph: Graph, inputs: int, outputs: int) -> Split:
    """``graph``, whose first ``outputs`` outputs do not depend on its inputs from number ``inputs`` on, in two.

    What the outputs are computed of is computed forward; what of it the other part reads is a residual, as in eager.
    """
    functional, given, nodes = graph.functional, _given(graph), returned(graph.functional.graph)
    early, after = ([nodes[i] for i in part] for part in (graph.gives[:outputs], graph.gives[outputs:]))
    forward = needed(early)
    forward.update(n for n in functional.graph.nodes if n.target is operator.getitem and n.args[0] in forward)
    late = [n for n in functional.graph.nodes if n not in forward and n.op != "output"]
    read = [x for n in late for x in n.all_input_nodes]
    values = functional.values
    tensors = _tensors_behind([n for n in [*read, *after] if n in forward], values)
    crossing = [n for n in tensors if not _is_had_anyway(n, values)]
    given_back = [*early, *(n for n in crossing if n not in early)]
    return Split(
        _part(graph, given, given_back, {}, 0),
        _part(graph, given, after, {node: i for i, node in enumerate(crossing)}, len(crossing)),
        tuple(given_back.index(n) for n in crossing),
        _saved(functional, given, early, inputs),
    )


def _saved(
    functional: FunctionalGraph, given: Mapping[fx.Node, Any], outputs: list[fx.Node], count: int
) -> frozenset[int]:
    """Which of the first ``count`` inputs are read, by themselves or as views, by what ``outputs`` do not depend on.

    cos(x), for the gradient of sin(x)     reads x, though it may be computed with sin(x)
    """
    forward, values = needed(outputs), functional.values
    read = [x for n in functional.graph.nodes if n not in forward and n.op != "output" for x in n.all_input_nodes]
    found = {given.get(values[x].origin) for x in read if x in values}
    return frozenset(i for i in found if isinstance(i, int) and i < count)


def _tensors_behind(nodes: list[fx.Node], tensors: Container[fx.Node]) -> list[fx.Node]:
    """``nodes``, and in the place of numbers the tensors that they are read off."""
    found: dict[fx.Node, None] = {}
    waiting = nodes[::-1]
    while waiting:
        node = waiting.pop()
        if node in tensors or node.op != "call_function":
            found[node] = None
        else:
            waiting += reversed(node.all_input_nodes)
    return list(found)


def _is_had_anyway(node: fx.Node, values: Mapping[fx.Node, Value]) -> bool:
    """Whether both parts have ``node`` without keeping it: an input, a new tensor that depends on none, or its view."""
    node = values[node].origin if node in values else node
    new = isinstance(node.target, OpOverload) and not node.all_input_nodes and not facts(node.target).random
    return new or node.op in ("placeholder", "get_attr")


def _part(
    graph: Graph,
    given: dict[fx.Node, int | torch.Tensor],
    outputs: list[fx.Node],
    residuals: dict[fx.Node, int],
    count: int,
    instead: Mapping[fx.Node, fx.Node] = MappingProxyType({}),
) -> Graph:
    """The part of ``graph`` that computes ``outputs`` from its inputs and from ``residuals``, ``count`` come first.

    ``instead`` has what is read in the place of some nodes.
    """
    functional, made = graph.functional, fx.Graph()
    wanted = needed(outputs, residuals, instead)
    image: dict[fx.Node, fx.Node] = {}
    records: list[GraphInput] = []
    takes: list[int | torch.Tensor] = []
    by_node = dict(zip(given, functional.inputs, strict=True))
    for node, place in residuals.items():
        if node not in wanted:
            continue
        image[node] = made.placeholder(node.name)
        records.append(ResidualInput(node.name, functional.values[node]))
        takes.append(place)
    for node, x in given.items():
        if node in wanted and node not in residuals:
            image[node] = made.placeholder(node.name)
            records.append(by_node[node])
            takes.append(x + count if isinstance(x, int) else x)
    for node in functional.graph.nodes:
        if node in wanted and node not in image:
            image[node] = made.node_copy(node, lambda x: image[instead.get(x, x)])
    distinct = list(dict.fromkeys(outputs))
    made.output(tuple(image[node] for node in distinct))
    origins = {n: image.get(origin_of(n, functional.values, instead)) for n in functional.values if n in image}
    values = {image[n]: functional.values[n].moved(image[n], origin) for n, origin in origins.items()}
    kept: tuple[GraphOutput, ...] = tuple(ResidualOutput(node.name) for node in distinct)
    lines = {image[n]: line for n, line in functional.lines.items() if n in image}
    part = FunctionalGraph(made, functional.constants, tuple(records), kept, values, lines)
    return Graph(graph.capture, part, tuple(takes), tuple(distinct.index(node) for node in outputs))


def extract(graph: Graph, nodes: list[fx.Node], instead: Mapping[fx.Node, fx.Node] = MappingProxyType({})) -> Graph:
    """The part of ``graph`` that computes ``nodes``, where some nodes read what is ``instead`` of others."""
    return _part(graph, _given(graph), nodes, {}, 0, instead)


def origin_of(node: fx.Node, values: Mapping[fx.Node, Value], instead: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """The node that makes the memory of ``node``, if others are read ``instead`` of some."""
    origin = values[node].origin
    return origin_of(instead[origin], values, instead) if origin in instead else origin


def needed(
    outputs: Sequence[fx.Node],
    residuals: Container[fx.Node] = (),
    instead: Mapping[fx.Node, fx.Node] = MappingProxyType({}),
) -> set[fx.Node]:
    """What ``outputs`` are computed of, from ``residuals`` on; ``instead`` has what is read in the place of some."""
    found: set[fx.Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            if node not in residuals:
                waiting += [instead.get(x, x) for x in node.all_input_nodes]
    return found
