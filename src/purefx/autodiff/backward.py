"""Recording the backward: the engine of autograd runs on the fakes of the run, and the recorder writes on.

slots      where gradients enter: results, bases and written memory that require grad after the call
targets    where they leave (`purefx.analysis.gradients`)
pattern    which slots were given a tangent: eager leaves out what nobody differentiates, and so does each backward
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch.autograd.graph import GradientEdge, Node

from purefx._torch import count_writes_together, counting_with, kept_by, saved_by, without_modes
from purefx.autodiff.targets import Slot, Target
from purefx.capture.captured import Capture, Input, TensorResult
from purefx.capture.fakes import fake_like
from purefx.capture.recorder import Recorder
from purefx.capture.recording import Call, Operand, Recording, Region, Storage, Variable
from purefx.capture.tensors import variable_of
from purefx.errors import GradientsRefused
from purefx.functional.regions import chain_between
from purefx.functional.signature import WrittenOutput
from purefx.layout import Geometry
from purefx.operators import apply_chain

Pattern = tuple[bool, ...]
Place = tuple[Node, int]
"""Where a tensor comes from in the graph of autograd."""


@dataclass(frozen=True, slots=True, eq=False)
class Backward:
    """One run of the backward: ``tangents`` are the slots that were given one, and what it looked like.

    ``gradients`` has the region of each target's gradient, None where none flows to it.  ``inputs`` are tensors of the
    caller that the backward alone uses.  ``read`` are those of the caller's tensors, and of those that it gets, whose
    writes are counted with what autograd has saved.  ``refusal`` is what eager raises unless all gradients are
    accumulated.
    """

    recording: Recording
    calls: tuple[Call, ...]
    tangents: tuple[tuple[int, Region], ...]
    gradients: tuple[Region | None, ...]
    inputs: tuple[Input, ...]
    read: frozenset[Variable]
    refusal: RuntimeError | None


def run_backward(
    capture: Capture, slots: Sequence[Slot], targets: Sequence[Target], stops: Collection[Place], pattern: Pattern
) -> Backward:
    """Differentiate the slots that ``pattern`` tells; raises what eager's backward raises.

    No gradient flows past ``stops``, nor past targets that are views.
    """
    known = len(capture.inputs)
    read: dict[Variable, list[Variable]] = {}
    held = _held(capture)
    with capture.resume() as resumed:
        recorder = resumed.recorder
        calls = recorder.recording.calls
        before = start = len(calls)
        try:
            with torch.enable_grad():
                given = [(i, *_shown(slot, recorder)) for i, slot in enumerate(slots) if pattern[i]]
            start = len(calls)
            tangents = [_tangent(region, capture) for _, _, region in given]
            passed = [*stops, *(target.place for target in targets if target.is_view)]
            nodes = _nodes_behind([slots[i].edge.node for i, _, _ in given], {node for node, _ in passed})
            saved = [tensor for node in nodes for tensor in saved_by(node)]
            kept = kept_by(nodes)
            anomaly = torch.autograd.set_detect_anomaly(mode=False)  # that would look into fakes for nan
            with anomaly, stopped(passed), recorder.meeting(partial(_note_read, held, kept, read)):
                outputs = cast(list[torch.Tensor], [output for _, output, _ in given])  # autograd takes edges too
                entering = [_entering(output, t) for output, t in zip(outputs, tangents, strict=True)]
                gradients, refusal = _gradients(outputs, targets, entering)
                for tensor in saved:
                    recorder.notice(tensor)
            regions = tuple(None if g is None else recorder.region(g) for g in gradients)
            segment = tuple(calls[start:])
        finally:
            del calls[before:]
            for tensor in recorder.alive():
                if tensor.retains_grad:
                    tensor.grad = None  # that of this run
    shown = tuple((i, recorder.region(t)) for (i, _, _), t in zip(given, tangents, strict=True))
    counted = frozenset(variable for together in read.values() for variable in together)
    return Backward(recorder.recording, segment, shown, regions, resumed.inputs()[known:], counted, refusal)


def _held(capture: Capture) -> dict[Storage, list[tuple[Variable, torch.Tensor]]]:
    """The fakes of what the caller has and gets, by the storages that they show before the call and after."""
    fakes = {known.variable: known.fake for known in capture.inputs}
    for result in [*capture.results, *(r.result for r in capture.rebindings)]:
        if isinstance(result, TensorResult):
            base = None if result.fake.is_inference() else result.fake._base
            fakes |= {v: x for x in (result.fake, base) if x is not None and (v := variable_of(x)) is not None}
    found: dict[Storage, list[tuple[Variable, torch.Tensor]]] = {}
    for variable, fake in fakes.items():
        for storage in dict.fromkeys((variable.first.storage, variable.last.storage)):
            found.setdefault(storage, []).append((variable, fake))
    return found


def _note_read(
    held: Mapping[Storage, list[tuple[Variable, torch.Tensor]]],
    kept: Sequence[torch.Tensor],
    read: dict[Variable, list[Variable]],
    tensor: torch.Tensor,
    operand: Operand,
) -> None:
    """Note in ``read`` which of ``held`` count their writes with ``tensor``, which autograd has saved, or a view.

    It has not saved what functions of the user's have ``kept`` as attributes: ``ctx.x = x``.
    """
    if operand.variable not in read and not counting_with(tensor, kept):
        others = held.get(operand.region.storage, ())
        read[operand.variable] = [v for v, x in others if x is tensor or count_writes_together(tensor, x)]


def _nodes_behind(nodes: list[Node], stops: Collection[Node]) -> list[Node]:
    """``nodes``, and those behind them as far as ``stops``."""
    seen = dict.fromkeys(nodes)
    found = []
    while nodes:
        node = nodes.pop()
        if node not in stops:
            found.append(node)
            new = [following for following, _ in node.next_functions if following is not None and following not in seen]
            seen.update(dict.fromkeys(new))
            nodes += new
    return found


@contextmanager
def stopped(places: Iterable[Place]) -> Iterator[None]:
    """Let no gradient flow past ``places``."""
    hooks = [node.register_prehook(partial(_without, number)) for node, number in dict.fromkeys(places)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _without(number: int, gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
    return tuple(None if i == number else gradient for i, gradient in enumerate(gradients))


def _gradients(
    outputs: list[torch.Tensor], targets: Sequence[Target], tangents: list[torch.Tensor]
) -> tuple[Sequence[torch.Tensor | None], RuntimeError | None]:
    """The gradients of ``targets``, and what autograd raises where it is asked for those of some tensors.

    Rule: a saved view whose base was detached and written has no history that fake tensors could tell, which is asked
    for before its version is looked at.
    """
    try:
        return _engine_gradients(outputs, targets, tangents)
    except RuntimeError as error:
        if "new_fn INTERNAL ASSERT" not in str(error):
            raise
    raise RuntimeError("one of the variables needed for gradient computation has been modified by an inplace operation")


def _engine_gradients(
    outputs: list[torch.Tensor], targets: Sequence[Target], tangents: list[torch.Tensor]
) -> tuple[Sequence[torch.Tensor | None], RuntimeError | None]:
    """What the engine of autograd gives.

    Rule: a function may run a backward of its own in its backward, and ask for one that accumulates (the reentrant
    checkpoint).  Then gradients are taken where they arrive, and what was accumulated is taken away again.  A leaf that
    such a backward alone uses has no edge in the graph that is there before: its gradient is what was accumulated.
    """
    edges = [target.edge for target in targets]
    if not edges:
        torch.autograd.backward(outputs, tangents, retain_graph=True)  # for what it writes
        return [], None
    try:
        return torch.autograd.grad(outputs, edges, tangents, retain_graph=True, allow_unused=True), None
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        refusal = RuntimeError(*error.args)
    arrived: dict[int, torch.Tensor] = {}
    given = {i: target.source.fake for i, target in enumerate(targets) if isinstance(target.source, Input)}
    leaves = {i: (leaf, leaf.grad) for i, leaf in given.items() if leaf.is_leaf}
    for leaf, _ in leaves.values():
        leaf.grad = None
    hooks = [edge.node.register_prehook(partial(_arrive, arrived, i, edge)) for i, edge in enumerate(edges)]
    try:
        torch.autograd.backward(outputs, tangents, retain_graph=True)
    finally:
        for hook in hooks:
            hook.remove()
        for i, (leaf, before) in leaves.items():
            if leaf.grad is not None and not targets[i].former:
                arrived.setdefault(i, leaf.grad)
            leaf.grad = before
    return [arrived.get(i) for i in range(len(targets))], refusal


def _arrive(
    arrived: dict[int, torch.Tensor], i: int, edge: GradientEdge, gradients: tuple[torch.Tensor | None, ...]
) -> None:
    gradient = gradients[edge.output_nr]
    if gradient is not None:
        arrived[i] = arrived[i] + gradient if i in arrived else gradient


def _shown(slot: Slot, recorder: Recorder) -> tuple[torch.Tensor | GradientEdge, Region]:
    """What the output of ``slot`` shows of the tensor that it became, which may have another geometry now."""
    fake, wanted = slot.fake, slot.region
    if not slot.is_held:
        return slot.edge, wanted
    now = recorder.region(fake)
    moved = now.storage is not wanted.storage
    if moved and not isinstance(slot.output, WrittenOutput):
        return slot.edge, wanted
    shown = _part_of_moved(slot, fake) if moved else as_made(fake, now, wanted)
    return (fake, now) if shown is fake else (shown, recorder.region(shown))


def _part_of_moved(slot: Slot, fake: torch.Tensor) -> torch.Tensor:
    """What was written of ``fake``, which shows other memory since then: the same part of it."""
    shown = slot.output.shown if isinstance(slot.output, WrittenOutput) else None
    chain = None if shown is None else chain_between(shown.before.physical, slot.region)
    try:
        return fake if not chain else apply_chain(fake, chain)
    except RuntimeError:  # a view of it that needs other strides
        raise GradientsRefused(
            "the program writes to a part of what is given other memory then (set_, x.data = y), of other strides",
            where=None,
            remedy="write to a copy of it, or under torch.no_grad()",
        ) from None


def _entering(output: torch.Tensor | GradientEdge, tangent: torch.Tensor) -> torch.Tensor:
    """``tangent`` in the sizes that the node of ``output`` has, as the engine of autograd reduces it."""
    if isinstance(output, torch.Tensor):
        return tangent
    sizes = output.node._input_metadata[output.output_nr].shape
    return tangent if tangent.shape == sizes else tangent.sum_to_size(sizes)


def as_made(tensor: torch.Tensor, now: Region, wanted: Region) -> torch.Tensor:
    """``tensor``, which shows ``now``, as ``wanted``, which it showed when it was made."""
    if now == wanted or now.storage is not wanted.storage:
        return tensor
    chain = chain_between(now.physical, wanted.physical)
    if chain is None:
        raise GradientsRefused(
            "a result with a history is shown in another way than it was made, and not by views",
            where=None,
            remedy="return a copy of it (clone), or use as_strided in the place of as_strided_",
        )
    between = wanted if now.dtype == wanted.dtype else wanted.physical
    return _reread(apply_chain(_reread(tensor, now, between), chain), between, wanted)


def _reread(tensor: torch.Tensor, now: Region, wanted: Region) -> torch.Tensor:
    """``tensor``, which is lazily conjugated and negated as ``now``, as ``wanted`` is."""
    tensor = tensor.conj() if now.conj != wanted.conj else tensor
    return tensor._neg_view() if now.neg != wanted.neg else tensor


def _tangent(region: Region, capture: Capture) -> torch.Tensor:
    """A new tensor that looks like ``region``, without gaps and repeated elements."""
    geometry = region.geometry
    if not geometry.is_static or not geometry.is_dense:
        geometry = Geometry.contiguous(geometry.sizes)
    with without_modes():
        return fake_like(replace(region.physical, geometry=geometry), capture.fake_mode)
