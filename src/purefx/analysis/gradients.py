"""What autograd can see of a program: the tensors to which gradients flow, and whose history a write has changed.

def f(x, w):                  targets         x and w, as they were before the call
    x.mul_(w)                 changed         x: its history is another after the call
    return x.sum()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from purefx.analysis.replay import Fresh, How, Itself, Replay
from purefx.capture.captured import Capture, Input, TensorResult
from purefx.capture.edges import edge_of, has_lost_history, is_bare_view, is_begun, is_leaf
from purefx.capture.recording import Region, Variable
from purefx.errors import GradientsRefused

if TYPE_CHECKING:
    from purefx.functional.signature import BaseOutput, ResultOutput, WrittenOutput


@dataclass(frozen=True, slots=True, eq=False)
class Alias:
    """A result that shares memory with another tensor, and has a history that is not that of a view."""

    variable: Variable
    region: Region


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """An output of the program that requires grad; ``fake`` is what it became in the run."""

    output: ResultOutput | BaseOutput | WrittenOutput | Alias
    fake: torch.Tensor


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


def begins(known: Input) -> bool:
    """Whether the program has made a leaf that requires grad of ``known``."""
    return is_begun(known.fake) and (known.edge is None or not known.was_leaf)


def _leaf_results(capture: Capture, replay: Replay) -> Iterable[Target]:
    for result, how in results_of(capture, replay):
        if is_begun(result.fake) and not isinstance(how, Itself):
            edge = edge_of(result.fake)
            assert edge is not None  # it requires grad
            if isinstance(how, Fresh):
                yield Target(result.variable, edge, begins=True)


def results_of(capture: Capture, replay: Replay) -> Iterable[tuple[TensorResult, How]]:
    """The tensors that the program hands out or binds, each with how it is made."""
    results = [*capture.results, *(r.result for r in capture.rebindings)]
    for result, how in zip(results, (*replay.results, *replay.rebound), strict=True):
        if isinstance(result, TensorResult) and how is not None:
            yield result, how


def has_own_history(fake: torch.Tensor) -> bool:
    """Whether a tensor that shares memory has a history that is not that of a view.

    So has what a custom function returned, and a detached alias that was written to.
    """
    if fake.is_inference() or not fake.requires_grad or is_bare_view(fake) or is_leaf(fake):
        return False
    if has_lost_history(fake):
        return False
    if fake._base is None:
        return True
    end, node = edge_of(fake._base), fake.grad_fn
    while node is not None and (end is None or node is not end.node):
        if isinstance(node, BackwardCFunction):
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def is_changed(known: Input) -> bool:
    """Whether a write of the program is part of the history of ``known``, or of its base, after the call."""
    fake = known.fake
    if fake.is_inference() or not fake.requires_grad or is_bare_view(fake) or is_leaf(fake):
        return False
    base, before = fake._base, known.base_edge
    after = edge_of(fake if base is None else base)
    before = known.edge if base is None else before
    return after is not None and (before is None or after.node is not before.node)


def is_detached(known: Input) -> bool:
    """Whether the program has cut the history of ``known`` off (``x.detach_()``)."""
    return known.edge is not None and not known.was_leaf and not is_bare_view(known.fake) and is_leaf(known.fake)


def check_gradients(capture: Capture) -> None:
    """Raise GradientsRefused for what the program does to autograd's state of the caller's tensors and is not kept."""
    for known in capture.inputs:
        if known.was_leaf and is_begun(known.fake) and known.fake.grad is not known.grad:
            raise _refusal(
                f"the program sets the gradient of {known.name}", "use torch.autograd.grad inside, and return"
            )


def _refusal(what: str, remedy: str) -> GradientsRefused:
    return GradientsRefused(what, where=None, remedy=remedy)
