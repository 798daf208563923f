"""Tensors that the program detaches while views of them keep what they were: autograd has to make those first.

view.grad_fn
arg0.detach_()
"""

from __future__ import annotations

import torch
from torch.autograd.graph import GradientEdge

from purefx.analysis.gradients import begins, ends, is_detached, keeps_write, results_of
from purefx.autodiff.targets import Slot
from purefx.capture.captured import Input, TensorResult
from purefx.capture.edges import leads_nowhere, leads_to
from purefx.capture.recording import Call, Effect, Variable
from purefx.functional.signature import WrittenOutput
from purefx.operators import aten
from purefx.runtime.epilogue import emit_calls
from purefx.runtime.scope import Scope, name_of_slot


def emit_late_detaching(scope: Scope, late: list[Call]) -> list[str]:
    """``x.detach_()`` where views of ``x`` keep what was written or turned: autograd has to make their histories first.

    ``late`` are the `late_views`.
    """
    lines = []
    for known, name in scope.inputs.items():
        if is_detached_late(scope, known):
            kept = [*_kept_views(scope, known), *_left_views(scope, known.fake, known.left)]
            lines += [*(f"{view}.grad_fn" for view in kept), f"{name}.detach_()"]
    for slot in _left_outputs(scope):
        kept = _left_views(scope, slot.fake, slot.left)
        lines += [*(f"{view}.grad_fn" for view in kept), f"{name_of_slot(scope, slot)}.detach_()"]
    return [*lines, *emit_calls(scope, late)]


def late_views(scope: Scope) -> list[Call]:
    """The statements that make results without a history, or with one of nothing, as views of what is detached late."""
    bases = [known.fake for known in scope.inputs if is_detached_late(scope, known)]
    bases += [slot.fake for slot in _left_outputs(scope)]
    results = [result for result, _ in results_of(scope.capture, scope.replay) if bases]
    plain = [r for r in results if not r.fake.is_inference()]
    lost = {k.variable for k in scope.inputs if leads_nowhere(k.fake)}
    plain = [r for r in plain if not r.fake.requires_grad or _is_taken_of(scope, r, lost)]
    plain = [r for r in plain if any(r.fake._base is base for base in bases)]
    wanted = {result.variable for result in plain} - {known.variable for known in scope.inputs}
    return [call for call in scope.replay.statements if wanted & {o.variable for o in call.outputs}]


def _is_taken_of(scope: Scope, result: TensorResult, lost: set[Variable]) -> bool:
    """Whether ``result`` was taken of one of ``lost``, views that have lost their history, after the last write."""
    makers = [call for call in scope.replay.statements if any(o.variable is result.variable for o in call.outputs)]
    return scope.counters.root(result.variable) in lost and not any(map(scope.counters.is_older, makers))


def is_detached_late(scope: Scope, known: Input) -> bool:
    """Whether the program detaches ``known``, and views keep what was written or turned."""
    if known.left is not None or ends(known):
        return known.left is not None or bool(_kept_views(scope, known))
    if not is_detached(known) or begins(known):
        return False
    changes = [call for call in scope.replay.statements if any(o.variable is known.variable for o in call.written)]
    sized = any(call.op is aten.resize_.default for call in changes)  # of what has no history
    return bool(_kept_views(scope, known)) or any(call.effect is Effect.GEOMETRY and not sized for call in changes)


def _left_outputs(scope: Scope) -> list[Slot]:
    """The outputs of the graph that the program has detached, and of which views live on."""
    slots = [slot for level in scope.levels for slot in level.slots]
    return [slot for slot in slots if slot.left is not None and not isinstance(slot.output, WrittenOutput)]


def _left_views(scope: Scope, base: torch.Tensor, left: GradientEdge | None) -> list[str]:
    """The results that are views of ``base``, and have the history that it has ``left``."""
    results = [result for result, _ in results_of(scope.capture, scope.replay)]
    views = [r for r in results if r.fake.requires_grad and not r.fake.is_inference() and r.fake._base is base]
    kept = [view for view in views if left is not None and leads_to(view.fake, {left.node})]
    return list(dict.fromkeys(scope.variables[view.variable] for view in kept))


def _kept_views(scope: Scope, base: Input) -> list[str]:
    return [name for known, name in scope.inputs.items() if keeps_write(known) and known.fake._base is base.fake]
