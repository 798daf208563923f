"""Forward and backward of one capture: which values cross, and a functional backward for each pattern of tangents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from purefx.analysis.gradients import Target, infer_targets, stop_at_views
from purefx.analysis.replay import Replay
from purefx.autodiff.backward import Backward, Pattern, Slot, infer_slots, run_backward
from purefx.autodiff.partition import Partition, choose_saved, partition_function, recompute
from purefx.capture.captured import Capture
from purefx.capture.recording import Effect, Storage
from purefx.errors import UnsupportedOperator
from purefx.functional.backward import residual_outputs, rewrite_backward
from purefx.functional.builder import Value
from purefx.functional.rewrite import Rewriter
from purefx.functional.roots import Root
from purefx.functional.signature import Functional, GraphOutput, ResidualInput, RootInput, WrittenOutput
from purefx.operators import aten


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """What autograd sees of a program: gradients enter at ``slots`` and leave at ``targets``.

    ``backwards`` are the functional backward graphs so far, by which slots have a tangent; ``residuals`` says of each
    value that crosses (by the name of its node in the forward graph) which memory or which output it is.  ``saved`` are
    the values that a partition keeps, where one was asked for.
    """

    slots: tuple[Slot, ...]
    targets: tuple[Target, ...]
    backwards: dict[Pattern, Functional]
    residuals: dict[str, RootInput | GraphOutput]
    raised: dict[Pattern, RuntimeError]
    storages_read: frozenset[Storage]
    saved: frozenset[str] | None

    @property
    def tensor_names(self) -> list[str]:
        """The names of the residuals that are tensors, in the order in which a call keeps them."""
        return [name for name, value in self._values().items() if value is not None]

    @property
    def number_names(self) -> list[str]:
        """The names of the residuals that are numbers, in order."""
        return [name for name, value in self._values().items() if value is None]

    @property
    def roots_written(self) -> list[Root]:
        """The memory of the caller that backward graphs write, in order."""
        outputs = (o for graph in self.backwards.values() for o in graph.outputs if isinstance(o, WrittenOutput))
        return list(dict.fromkeys(o.root for o in outputs))

    def _values(self) -> dict[str, Value | None]:
        inputs = (i for graph in self.backwards.values() for i in graph.inputs if isinstance(i, ResidualInput))
        values = {given.name: given.value for given in inputs}
        return {name: values[name] for name in self.residuals}


def functionalize_jointly(
    capture: Capture, replay: Replay, partition: Partition = "default"
) -> tuple[Functional, Joint | None]:
    """The functional graph of ``capture``, and of its backward where autograd sees anything of it."""
    rewriter = _rewriter(capture, replay)
    slots = infer_slots(capture, replay, [output for output, _ in rewriter.outputs])
    if not slots:
        return rewriter.finish(), None
    targets = infer_targets(capture, replay)
    stop_at_views(targets)
    backwards: dict[Pattern, Functional] = {}
    raised: dict[Pattern, RuntimeError] = {}
    everything = (True,) * len(slots)
    try:
        found = {everything: run_backward(capture, slots, targets, everything)}
    except RuntimeError as error:
        raised[everything] = error
        found = _one_by_one(capture, slots, targets, raised)
    rewriters = [rewriter, *(_rewriter(capture, replay) for _ in list(found)[1:])]
    for own, (pattern, backward) in zip(rewriters, found.items(), strict=False):
        backwards[pattern] = rewrite_backward(own, backward)
    read = frozenset(
        operand.region.storage
        for backward in found.values()
        for call in backward.calls
        if call.effect is Effect.NONE or call.op is aten.detach.default
        for operand in call.operands
    )
    saved: frozenset[str] | None = None
    if partition != "default" and everything in backwards:
        saved = choose_saved(capture, rewriter, backwards[everything], partition_function(partition))
        values = rewriter.builder.values
        backwards = {p: recompute(rewriter.graph, values, graph, saved) for p, graph in backwards.items()}
    names = dict.fromkeys(name for graph in backwards.values() for name in _residuals_of(graph))
    added, sources = residual_outputs(rewriter, names)
    functional = rewriter.finish(added)
    return functional, Joint(slots, targets, backwards, dict(zip(names, sources, strict=True)), raised, read, saved)


def derive(capture: Capture, replay: Replay, joint: Joint, pattern: Pattern) -> Functional:
    """The functional backward graph of ``pattern``; raises what eager's backward raises."""
    known = joint.backwards.get(pattern)
    if known is not None:
        return known
    if pattern in joint.raised:
        raise joint.raised[pattern]
    backward = run_backward(capture, joint.slots, joint.targets, pattern)
    rewriter = _rewriter(capture, replay)
    graph = rewrite_backward(rewriter, backward)
    if joint.saved is not None:
        graph = recompute(rewriter.graph, rewriter.builder.values, graph, frozenset(joint.residuals))
    missing = [name for name in _residuals_of(graph) if name not in joint.residuals]
    if missing:
        raise UnsupportedOperator(
            f"the backward of these outputs alone needs values that the call has not kept ({', '.join(missing)})",
            where=None,
            remedy="differentiate all outputs of the function together",
        )
    joint.backwards[pattern] = graph
    return graph


def _rewriter(capture: Capture, replay: Replay) -> Rewriter:
    rewriter = Rewriter(capture.recording, capture.inputs, replay, capture.env)
    rewriter.forward()
    return rewriter


def _one_by_one(
    capture: Capture, slots: Sequence[Slot], targets: Sequence[Target], raised: dict[Pattern, RuntimeError]
) -> dict[Pattern, Backward]:
    """The backward of each slot by itself, as far as eager's does not raise."""
    found: dict[Pattern, Backward] = {}
    for i in range(len(slots)) if len(slots) > 1 else ():
        pattern = tuple(j == i for j in range(len(slots)))
        try:
            found[pattern] = run_backward(capture, slots, targets, pattern)
        except RuntimeError as error:
            raised[pattern] = error
    return found


def _residuals_of(graph: Functional) -> Iterable[str]:
    return (given.name for given in graph.inputs if isinstance(given, ResidualInput))
