"""Where gradients enter a program, and where they leave it.

def f(x, w):                  targets         x and w, as they were before the call
x.mul_(w)                 slots           what is written to x, the result
return x.sum()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.autograd.graph import GradientEdge, Node

from purefx.analysis.gradients import begins, new_leaves, results_of
from purefx.analysis.replay import Replay, Replayed
from purefx.capture.captured import Capture, Input
from purefx.capture.edges import edge_behind, edge_of, is_begun
from purefx.capture.recording import Region, Variable
from purefx.functional.roots import Shown
from purefx.functional.signature import BaseOutput, ResultOutput, WrittenOutput


@dataclass(frozen=True, slots=True, eq=False)
class Alias:
    """What shares memory with another tensor, and has a history that is not that of a view.

    It is a result; or a result shows it by so many views, and it lies ``behind`` their nodes.
    """

    variable: Variable
    region: Region
    behind: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """An output of the program that requires grad; ``fake`` is what it became in the run, or a view of that."""

    output: ResultOutput | BaseOutput | WrittenOutput | Alias
    fake: torch.Tensor

    @property
    def behind(self) -> int | None:
        """How many nodes behind ``fake`` gradients of the output enter; None where that is at ``fake`` as it is."""
        match self.output:
            case Alias(behind=behind) | WrittenOutput(shown=Shown(behind=behind)):
                return behind
            case _:
                return None

    @property
    def edge(self) -> GradientEdge:
        """The edge by which gradients of the output enter."""
        return edge_behind(self.fake, self.behind or 0)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Where gradients leave a node: ``source``, a tensor of the caller, a leaf that the program made, or an output.

    With ``of_base`` it is the ``_base`` of ``source``.  ``begins`` tells that the program made it require grad.
    """

    source: Input | Variable | Slot
    edge: GradientEdge
    of_base: bool = False
    begins: bool = False

    @property
    def place(self) -> tuple[Node, int]:
        """Where the tensor comes from in the graph of autograd."""
        return self.edge.node, self.edge.output_nr


def infer_targets(capture: Capture, replay: Replay) -> tuple[Target, ...]:
    """The tensors to which gradients flow; each edge belongs to one of them, and none lies behind another.

    Rule: of a view whose base is written, the history is that of the base.  So the base is the target; otherwise the
    view itself, whose own history eager's autograd goes on with.
    """
    targets: list[Target] = []
    for known in capture.inputs:
        if known.edge is not None:
            targets.append(_target_of(known, capture.inputs))
        if begins(known):
            edge = edge_of(known.fake)
            assert edge is not None  # it requires grad
            targets.append(Target(known, edge, begins=True))
    targets += _leaf_results(capture, replay)
    return tuple({t.place: t for t in reversed(targets)}.values())[::-1]


def views_among(targets: Iterable[Target]) -> Iterator[GradientEdge]:
    """The edges of targets that are views: eager's own views carry the gradient on to their base."""
    for target in targets:
        if isinstance(target.source, Input) and target.source.base_edge is not None and not target.of_base:
            yield target.edge


def _target_of(known: Input, inputs: Iterable[Input]) -> Target:
    assert known.edge is not None  # asked of what requires grad
    if known.base_edge is None or known.fake._version == known.first_version:
        return Target(known, known.edge)
    base = next((other for other in inputs if other.tensor is known.tensor._base), None)
    return Target(known if base is None else base, known.base_edge, of_base=base is None)


def _leaf_results(capture: Capture, replay: Replay) -> Iterable[Target]:
    replayed = (result for result, how in results_of(capture, replay) if isinstance(how, Replayed))
    shared = {result.variable: result.fake for result in replayed if is_begun(result.fake)}
    for variable, fake in {**new_leaves(capture, replay), **shared}.items():
        edge = edge_of(fake)
        assert edge is not None  # it requires grad
        yield Target(variable, edge, begins=True)
