"""What a program keeps for its backward and why, what the backward computes, and where it raises.

saved
exp: float32[2, 3], 24 bytes, read by mul   train.py:6
memory of w: float32[3], 12 bytes that are there anyway, read by mul
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import fx

from purefx.autodiff.backward import Pattern
from purefx.autodiff.joint import Joint
from purefx.functional.builder import Value
from purefx.functional.signature import (
    FunctionalBackward,
    GradientOutput,
    ResidualInput,
    ResidualOutput,
    TangentInput,
)
from purefx.layout import Int
from purefx.pipeline import Stages
from purefx.report.meanings import Meanings
from purefx.report.spelling import describe_value, node_name, shortened


@dataclass(frozen=True, slots=True)
class Residual:
    """A tensor that a call keeps for its backward; ``alone`` tells that nothing else keeps it.

    ``readers`` are the operators of the backward that take it, ``line`` the line of the program that computes it.
    """

    name: str
    shown: str
    size: Int
    alone: bool
    readers: tuple[str, ...]
    line: str = ""

    def __str__(self) -> str:
        anyway = "" if self.alone else " that are there anyway"
        place = f"   {self.line}" if self.line else ""
        return f"{self.name}: {self.shown}, {self.size} bytes{anyway}, read by {', '.join(self.readers)}{place}"


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A value that the backward computes of saved values alone, and that needs no tangent."""

    op: str
    shown: str

    def __str__(self) -> str:
        return f"{self.op}: {self.shown}"


@dataclass(frozen=True, slots=True)
class Raised:
    """Values that cannot be differentiated together, and what eager's backward raises."""

    tangents: tuple[str, ...]
    error: RuntimeError

    def __str__(self) -> str:
        return f"{' and '.join(self.tangents)}: {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True, slots=True)
class Gradients:
    """The backward of a program: gradients of ``targets``, given those of ``tangents``; none flows to ``unreached``."""

    tangents: tuple[str, ...]
    targets: tuple[str, ...]
    unreached: tuple[str, ...]
    residuals: tuple[Residual, ...]
    recomputed: tuple[Recomputed, ...]
    raised: tuple[Raised, ...]

    @property
    def bytes_alone(self) -> Int:
        """The size of what is kept for the backward alone."""
        return sum(residual.size for residual in self.residuals if residual.alone)

    @property
    def bytes_anyway(self) -> Int:
        """The size of what the backward reads of arguments and results."""
        return sum(residual.size for residual in self.residuals if not residual.alone)


def infer_gradients(stages: Stages) -> Gradients | None:
    """What there is to say of the backward of ``stages``; None where there is none."""
    joint = stages.joint
    if joint is None:
        return None
    meanings, graphs = Meanings(stages), shown_backwards(joint).values()
    slots = [meanings.slot(i) for i in range(len(joint.slots))]
    reached = reached_targets(joint)
    targets = {i: meanings.target(i) for i in range(len(joint.targets))}
    raised = {p: error for p, error in joint.raised.items() if sum(p) in (1, len(slots))}
    return Gradients(
        tangents=tuple(slots),
        targets=tuple(name for i, name in targets.items() if i in reached),
        unreached=tuple(name for i, name in targets.items() if i not in reached),
        residuals=tuple(_residuals(stages, joint, meanings)),
        recomputed=tuple(r for graph in graphs for r in _recomputed(graph)),
        raised=tuple(
            Raised(tuple(name for name, given in zip(slots, pattern, strict=True) if given), error)
            for pattern, error in raised.items()
        ),
    )


def complete_backward(joint: Joint) -> FunctionalBackward | None:
    """The backward of all tangents together; None where eager raises."""
    return joint.backwards.get((True,) * len(joint.slots))


def shown_backwards(joint: Joint) -> dict[Pattern, FunctionalBackward]:
    """The backward of all tangents together; where that raises, those of each by itself that do not."""
    complete = complete_backward(joint)
    if complete is not None:
        return {(True,) * len(joint.slots): complete}
    return {pattern: graph for pattern, graph in joint.backwards.items() if sum(pattern) == 1}


def reached_targets(joint: Joint) -> set[int]:
    """The targets to which a gradient flows."""
    outputs = [o for graph in shown_backwards(joint).values() for o in graph.outputs if isinstance(o, GradientOutput)]
    return {target for output in outputs for target in output.targets}


def _residuals(stages: Stages, joint: Joint, meanings: Meanings) -> Iterator[Residual]:
    readers: dict[str, dict[str, None]] = {}
    values: dict[str, Value] = {}
    for graph in shown_backwards(joint).values():
        for node, given in zip(_placeholders(graph), graph.inputs, strict=True):
            if isinstance(given, ResidualInput) and given.value is not None:
                values[given.name] = given.value
                readers.setdefault(given.name, {}).update(dict.fromkeys(_readers(graph, node)))
    nodes = {node.name: node for node in stages.functional.graph.nodes}
    for name, value in values.items():
        alone = isinstance(joint.residuals[name], ResidualOutput)
        made = nodes.get(name)
        line = "" if made is None else shortened(stages.functional.lines.get(made, ""))
        word = node_name(made) if alone and made is not None else meanings.residual(name)
        size = value.geometry.numel * value.dtype.itemsize
        yield Residual(word, describe_value(value), size, alone, tuple(readers[name]), line if alone else "")


def _readers(graph: FunctionalBackward, node: fx.Node) -> Iterator[str]:
    """The operators that compute with the value of ``node``, or with a view of it."""
    for user in node.users:
        value = graph.values.get(user)
        if value is not None and value.origin is not user:
            yield from _readers(graph, user)
        elif user.op == "call_function":
            yield node_name(user)


def _recomputed(graph: FunctionalBackward) -> Iterator[Recomputed]:
    """What depends on a saved value and on no tangent, views left out."""
    inputs = dict(zip(_placeholders(graph), graph.inputs, strict=True))
    of_saved = {node for node, given in inputs.items() if not isinstance(given, TangentInput)}
    for node in graph.graph.nodes:
        value = graph.values.get(node)
        if node.op == "call_function" and node.all_input_nodes and of_saved.issuperset(node.all_input_nodes):
            of_saved.add(node)
            if value is not None and value.origin is node:
                yield Recomputed(node_name(node), describe_value(value))


def _placeholders(graph: FunctionalBackward) -> Iterable[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


__all__ = [
    "Gradients",
    "Raised",
    "Recomputed",
    "Residual",
    "complete_backward",
    "infer_gradients",
    "reached_targets",
    "shown_backwards",
]
