"""Forward and backward of one capture: which values cross, and a functional backward for each pattern of tangents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from purefx.analysis.gradients import is_detached
from purefx.analysis.replay import Replay
from purefx.autodiff.backward import Backward, Pattern, run_backward
from purefx.autodiff.levels import Level, infer_levels, without_idle_targets
from purefx.autodiff.partition import Partition, choose_saved, partition_function, recompute
from purefx.autodiff.slots import infer_slots
from purefx.autodiff.targets import infer_targets, infer_views, infer_views_made_anew
from purefx.capture.captured import Capture, taken_off
from purefx.capture.recording import Effect, Variable
from purefx.errors import GradientsRefused, PurefxError, UnsupportedOperator
from purefx.functional.backward import residual_outputs, rewrite_backward
from purefx.functional.builder import Value
from purefx.functional.rewrite import Rewriter
from purefx.functional.roots import Root
from purefx.functional.signature import (
    ForwardInput,
    ForwardOutput,
    Functional,
    FunctionalBackward,
    ResidualInput,
    RootInput,
    WrittenOutput,
)
from purefx.operators import only_updates


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """What autograd sees of a program: the ``levels`` of its outputs.

    ``residuals`` says of each value that crosses (by the name of its node in the forward graph) which memory or which
    output it is.  ``read`` are the tensors in the caller's hands whose writes count with what autograd has saved, and
    ``saved`` the values that a partition keeps, where one was asked for.  ``by_value`` tells that the backward takes
    the values of what the program has written, and not the memory.
    """

    levels: tuple[Level, ...]
    residuals: dict[str, ForwardInput | ForwardOutput]
    read: frozenset[Variable]
    saved: frozenset[str] | None
    by_value: bool

    @property
    def backwards(self) -> list[FunctionalBackward]:
        """The functional backward graphs so far."""
        return [graph for level in self.levels for graph in level.backwards.values()]

    @property
    def roots_written(self) -> list[Root]:
        """The memory of the caller that backward graphs write, in order."""
        outputs = (o for graph in self.backwards for o in graph.outputs if isinstance(o, WrittenOutput))
        return list(dict.fromkeys(o.root for o in outputs))

    def kept(self, level: Level) -> dict[str, Value | None]:
        """The residuals that ``level`` keeps, in order; None for one that is a number."""
        inputs = [i for graph in level.backwards.values() for i in graph.inputs if isinstance(i, ResidualInput)]
        values = {given.name: given.value for given in inputs}
        return {name: values[name] for name in self.residuals if name in values}


def functionalize_jointly(
    capture: Capture, replay: Replay, partition: Partition = "default", *, effects: bool = True
) -> tuple[Functional, Joint | None]:
    """The functional graph of ``capture``, and of its backward where autograd sees anything of it.

    Without ``effects`` it writes nothing; raises GradientsRefused if it needs what the program has written over.
    """
    rewriter = _rewriter(capture, replay)
    if not effects:
        rewriter.outputs = [(o, node) for o, node in rewriter.outputs if not isinstance(o, WrittenOutput)]
    slots = infer_slots(capture, replay, [output for output, _ in rewriter.outputs])
    if not slots:
        return _checked(rewriter.finish(), effects=effects), None
    turned = any(call.effect in (Effect.GEOMETRY, Effect.STORAGE) for call in replay.statements)
    single = turned or any(map(is_detached, capture.inputs))
    made = (*infer_views(capture, replay, slots), *infer_views_made_anew(capture))
    levels = infer_levels(capture, slots, infer_targets(capture, replay), made, single=single)
    for level in levels:
        _differentiate(capture, level)
    levels = tuple(map(without_idle_targets, levels))
    found = [backward for level in levels for backward in level.found.values()]
    by_value = not effects or partition != "default"
    rewriters = iter([rewriter, *(_rewriter(capture, replay) for _ in found[1:])])
    for level in levels:
        level.backwards.update(
            (pattern, rewrite_backward(next(rewriters), b, by_value=by_value)) for pattern, b in level.found.items()
        )
    read = frozenset(variable for backward in found for variable in backward.read)
    saved = _partitioned(capture, rewriter, levels, partition)
    names = dict.fromkeys(n for level in levels for graph in level.backwards.values() for n in _residuals_of(graph))
    added, sources = residual_outputs(rewriter, names)
    functional = _checked(rewriter.finish(added), effects=effects)
    return functional, Joint(levels, dict(zip(names, sources, strict=True)), read, saved, by_value)


def _checked(functional: Functional, *, effects: bool) -> Functional:
    """``functional``, unless it reads memory that the program has written, when it ran before."""
    placeholders = [node for node in functional.graph.nodes if node.op == "placeholder"]
    for node, given in zip(placeholders, functional.inputs, strict=True) if not effects else ():
        read = any(not only_updates(user.target, user.args, user.kwargs, node) for user in node.users)
        if read and isinstance(given, RootInput) and given.root.written:
            raise GradientsRefused(
                f"the gradient of a gradient needs {given.name} as it was before the program wrote to it",
                where=None,
                remedy="let the program return the new value, in place of writing it",
            )
    return functional


def _differentiate(capture: Capture, level: Level) -> None:
    """Find the backward of all slots of ``level`` together, or where eager's raises, of each by itself."""
    everything = (True,) * len(level.slots)
    alone = [tuple(i == j for j in range(len(level.slots))) for i in range(len(level.slots))]
    for pattern in dict.fromkeys((everything, *alone)):
        try:
            level.found[pattern] = _run(capture, level, pattern)
        except PurefxError:
            raise
        except Exception as error:  # the program's own, which eager raises in the backward
            level.raised[pattern] = error
        if everything in level.found:
            return


def _run(capture: Capture, level: Level, pattern: Pattern) -> Backward:
    """The backward of ``level`` for ``pattern``, but for hooks that run on real tensors."""
    with taken_off(level.hooks):
        return run_backward(capture, level.slots, level.targets, level.stops, pattern)


def _partitioned(
    capture: Capture, rewriter: Rewriter, levels: tuple[Level, ...], partition: Partition
) -> frozenset[str] | None:
    """What ``partition`` keeps; all else is computed again in the backward graphs."""
    if partition == "default":
        return None
    chosen = partition_function(partition)
    whole = [level.backwards[p] for level in levels for p in level.backwards if all(p)]
    graphs = [graph for graph in whole if any(_residuals_of(graph))]  # PyTorch's cannot cut where nothing crosses
    saved = frozenset(name for graph in graphs for name in choose_saved(capture, rewriter, graph, chosen))
    for level in levels:
        for pattern, graph in level.backwards.items():
            level.backwards[pattern] = recompute(rewriter.graph, rewriter.builder.values, graph, saved)
    return saved


def derive(capture: Capture, replay: Replay, joint: Joint, level: Level, pattern: Pattern) -> FunctionalBackward:
    """The functional backward graph of ``pattern``; raises what eager's backward raises."""
    known = level.backwards.get(pattern)
    if known is not None:
        return known
    if pattern in level.raised:
        raise level.raised[pattern].with_traceback(None)
    backward = _run(capture, level, pattern)
    rewriter = _rewriter(capture, replay)
    graph = rewrite_backward(rewriter, backward, by_value=joint.by_value)
    kept = frozenset(joint.kept(level))
    if joint.saved is not None:
        graph = recompute(rewriter.graph, rewriter.builder.values, graph, kept)
    missing = [name for name in _residuals_of(graph) if name not in kept]
    if missing:
        raise UnsupportedOperator(
            f"the backward of these outputs alone needs values that the call has not kept ({', '.join(missing)})",
            where=None,
            remedy="differentiate all outputs of the function together",
        )
    level.backwards[pattern] = graph
    return graph


def _rewriter(capture: Capture, replay: Replay) -> Rewriter:
    rewriter = Rewriter(capture.recording, capture.inputs, replay, capture.env)
    rewriter.forward()
    return rewriter


def _residuals_of(graph: FunctionalBackward) -> Iterable[str]:
    return (given.name for given in graph.inputs if isinstance(given, ResidualInput))
