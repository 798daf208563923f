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
from purefx.autodiff.levels import Level
from purefx.autodiff.targets import Target, infer_targets
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
    error: Exception

    def __str__(self) -> str:
        return f"{' and '.join(self.tangents)}: {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True, slots=True)
class Dependence:
    """Results that are functions of other results: gradients come to those first."""

    later: tuple[str, ...]
    earlier: tuple[str, ...]

    def __str__(self) -> str:
        return f"those of {' and '.join(self.later)} come by way of {' and '.join(self.earlier)}"


@dataclass(frozen=True, slots=True)
class Gradients:
    """The backward of a program: gradients of ``targets``, given those of ``tangents``; none flows to ``unreached``."""

    tangents: tuple[str, ...]
    targets: tuple[str, ...]
    unreached: tuple[str, ...]
    dependences: tuple[Dependence, ...]
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
    meanings = Meanings(stages)
    reached = {target.place: meanings.target(joint.levels[0], target) for target in reached_targets(joint)}
    others = [target for target in infer_targets(stages.capture, stages.replay) if target.place not in reached]
    return Gradients(
        tangents=tuple(meanings.slot(slot) for level in joint.levels for slot in level.slots),
        targets=tuple(reached.values()),
        unreached=tuple(meanings.target(joint.levels[0], target) for target in others),
        dependences=tuple(_dependence(meanings, level) for level in joint.levels[1:] if level.stops),
        residuals=tuple(_residuals(stages, joint, meanings)),
        recomputed=tuple(r for graph in _all_shown(joint) for r in _recomputed(graph)),
        raised=tuple(raised for level in joint.levels for raised in _raised(meanings, level)),
    )


def shown_backwards(level: Level) -> dict[Pattern, FunctionalBackward]:
    """The backward of all tangents of ``level``; where that raises, those of each by itself that do not."""
    complete = {pattern: graph for pattern, graph in level.backwards.items() if all(pattern)}
    return complete or {pattern: graph for pattern, graph in level.backwards.items() if sum(pattern) == 1}


def reached_targets(joint: Joint) -> dict[Target, None]:
    """The caller's tensors, and leaves that the program made, to which a gradient flows."""
    return dict.fromkeys(
        target
        for level in joint.levels
        for graph in shown_backwards(level).values()
        for output in graph.outputs
        if isinstance(output, GradientOutput)
        for target in [level.targets[i] for i in output.targets]
        if target.place not in level.stops
    )


def _all_shown(joint: Joint) -> list[FunctionalBackward]:
    return [graph for level in joint.levels for graph in shown_backwards(level).values()]


def _dependence(meanings: Meanings, level: Level) -> Dependence:
    earlier = [meanings.target(level, target) for target in level.targets if target.place in level.stops]
    return Dependence(tuple(map(meanings.slot, level.slots)), tuple(dict.fromkeys(earlier)))


def _raised(meanings: Meanings, level: Level) -> Iterator[Raised]:
    for pattern, error in level.raised.items():
        if all(pattern) or sum(pattern) == 1:
            given = [meanings.slot(slot) for slot, there in zip(level.slots, pattern, strict=True) if there]
            yield Raised(tuple(given), error)


def _residuals(stages: Stages, joint: Joint, meanings: Meanings) -> Iterator[Residual]:
    readers: dict[str, dict[str, None]] = {}
    values: dict[str, Value] = {}
    for graph in _all_shown(joint):
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
    "Dependence",
    "Gradients",
    "Raised",
    "Recomputed",
    "Residual",
    "infer_gradients",
    "reached_targets",
    "shown_backwards",
]
