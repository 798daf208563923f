"""Where gradients enter a program, and where they leave it.

def f(x, w):                  targets         x and w, as they were before the call
x.mul_(w)                 slots           what is written to x, the result
return x.sum()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.autograd.graph import GradientEdge, Node

from purefx.analysis.gradients import begins, former_edges, new_leaves, results_of
from purefx.analysis.replay import Replay, Replayed
from purefx.capture.captured import Capture, Input
from purefx.capture.edges import edge_behind, edge_of, is_begun
from purefx.capture.recording import Call, Effect, Region, Variable
from purefx.functional.signature import BaseOutput, ResultOutput, WrittenOutput


@dataclass(frozen=True, slots=True, eq=False)
class Alias:
    """What shares memory with another tensor, and has a history that is not that of a view.

    It is a result, or a result shows it.  If it is none and ``is_hooked``, its hooks run in the graph.
    """

    variable: Variable
    region: Region
    is_hooked: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """An output of the program that requires grad; ``fake`` is what it became in the run, or a view of that.

    Gradients enter so many nodes ``behind`` the fake, or by the edge that it has ``left`` behind when it was detached;
    both are None where that is at the fake as it is.  ``early`` are the changes of its geometry before that.
    """

    output: ResultOutput | BaseOutput | WrittenOutput | Alias
    fake: torch.Tensor
    behind: int | None = None
    left: GradientEdge | None = None
    early: tuple[Call, ...] = ()

    @property
    def region(self) -> Region:
        """What the output shows where gradients enter."""
        turned = self.early and not isinstance(self.output, WrittenOutput)
        return self.early[-1].written[0].region if turned else self.output.region

    @property
    def is_held(self) -> bool:
        """Whether gradients enter at the fake as it is, which somebody holds."""
        return self.behind is None and self.left is None

    @property
    def is_passed(self) -> bool:
        """Whether gradients of other outputs may arrive at it: somebody holds it, or holds views of it."""
        return self.is_held or (self.left is None and isinstance(self.output, Alias) and not self.output.is_hooked)

    @property
    def edge(self) -> GradientEdge:
        """The edge by which gradients of the output enter."""
        return self.left or edge_behind(self.fake, self.behind or 0)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Where gradients leave a node: ``source``, a tensor of the caller, an output, or what the call makes.

    That is a leaf or a view.  With ``of_base`` it is the ``_base`` of ``source``.  ``begins`` tells that the program
    made it the leaf that it is, ``former`` that it is the leaf as it was before it had other memory.
    """

    source: Input | Variable | Slot
    edge: GradientEdge
    of_base: bool = False
    begins: bool = False
    former: bool = False

    @property
    def place(self) -> tuple[Node, int]:
        """Where the tensor comes from in the graph of autograd."""
        return self.edge.node, self.edge.output_nr

    @property
    def is_view(self) -> bool:
        """Whether it is a view of the caller's, which carries the gradient on to its base by itself."""
        return isinstance(self.source, Input) and self.source.base_edge is not None and not self.of_base

    @property
    def is_made(self) -> bool:
        """Whether it is a view that the call makes, which carries the gradient on likewise."""
        return isinstance(self.source, Variable) and not self.begins

    @property
    def is_given(self) -> bool:
        """Whether it is a tensor of the caller as that was before the call."""
        if not isinstance(self.source, Input):
            return False
        before = self.source.base_edge if self.of_base else self.source.edge
        return before is not None and self.place == (before.node, before.output_nr)


def infer_targets(capture: Capture, replay: Replay) -> tuple[Target, ...]:
    """The tensors to which gradients flow; each edge belongs to one of them.

    Rule: a view has a history of its own, which eager's autograd goes on with; it need not be what the geometry of the
    view says (``as_strided`` of ``as_strided``, a hook).  Once the base is written, the history is that of the base.
    """
    targets: list[Target] = []
    for known in capture.inputs:
        if known.edge is not None:
            targets.append(Target(known, known.edge))
            targets += _base(known, capture.inputs)
            targets += [Target(known, edge, former=True) for edge in former_edges(capture, known)]
        if begins(known):
            edge = edge_of(known.fake)
            assert edge is not None  # it requires grad
            targets.append(Target(known, edge, begins=True))
    targets += _leaf_results(capture, replay)
    return tuple({t.place: t for t in reversed(targets)}.values())[::-1]


def infer_views(capture: Capture, replay: Replay, slots: Iterable[Slot]) -> tuple[Target, ...]:
    """The views that the call makes, by which or behind which a caller can see a gradient: results, and hooked ones.

    Those that have a history of their own are among the ``slots``.  What was taken without gradients has none, and what
    was taken of a tensor that is detached has one that this has left.
    """
    own = {slot.output.variable for slot in slots if not isinstance(slot.output, WrittenOutput) and slot.is_passed}
    alive = own | {known.variable for known in capture.inputs}
    seen: set[Variable] = set()
    for call in replay.statements:
        if call.effect is Effect.VIEW and call.modes.grad and call.operands[0].variable in alive:
            made = {o.variable for o in call.outputs} - capture.plain_views - own
            seen |= made
            alive |= made
    if not seen:
        return ()
    fakes = {result.variable: result.fake for result, _ in results_of(capture, replay) if result.variable in seen}
    edges = {v: edge_of(fake) for v, fake in fakes.items() if not is_begun(fake)}
    edges.update((hook.variable, hook.edge) for hook in capture.hooks if hook.variable in seen - fakes.keys())
    found = {variable: edge for variable, edge in edges.items() if edge is not None}
    for call in replay.statements:
        found = {**_pieces(call, found), **found}
    return tuple(Target(variable, edge) for variable, edge in found.items())


def infer_views_made_anew(capture: Capture) -> tuple[Target, ...]:
    """The views of the caller whose histories autograd has made anew, since their bases were written unseen."""
    views = [known for known in capture.inputs if known.base_edge is not None and not is_begun(known.fake)]
    found = [Target(known, edge) for known in views for edge in [edge_of(known.fake)] if edge is not None]
    return tuple(target for target in found if not target.is_given)


def _pieces(call: Call, held: Mapping[Variable, GradientEdge]) -> dict[Variable, GradientEdge]:
    """The edges of what ``call`` has made in one node, if one of them is ``held``: hooks on that run for them all."""
    made = [output.variable for output in call.outputs]
    node = next((held[variable].node for variable in made if variable in held), None)
    if node is None or len(made) == 1 or len(node._input_metadata) != len(made):
        return {}
    return {variable: GradientEdge(node, i) for i, variable in enumerate(made)}


def _base(known: Input, inputs: Iterable[Input]) -> Iterator[Target]:
    """The base of a view: gradients come to it by another way where autograd has made the history of a view anew."""
    if known.base_edge is not None:
        base = next((other for other in inputs if other.tensor is known.tensor._base), None)
        yield Target(known if base is None else base, known.base_edge, of_base=base is None)


def _leaf_results(capture: Capture, replay: Replay) -> Iterable[Target]:
    replayed = (result for result, how in results_of(capture, replay) if isinstance(how, Replayed))
    shared = {result.variable: result.fake for result in replayed if is_begun(result.fake)}
    for variable, fake in {**new_leaves(capture, replay), **shared}.items():
        edge = edge_of(fake)
        assert edge is not None  # it requires grad
        yield Target(variable, edge, begins=True)
