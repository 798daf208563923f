"""What a program asks of the tensors that a caller has or gets: hooks, gradients that are kept, leaves that begin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from purefx._torch import is_piece
from purefx.analysis.gradients import new_leaves, results_of
from purefx.analysis.replay import Itself
from purefx.autodiff.slots import fakes_of
from purefx.autodiff.targets import Alias
from purefx.capture.captured import Input, TensorResult
from purefx.capture.edges import has_lost_history, is_bare_view, is_begun
from purefx.capture.recording import Effect
from purefx.errors import GradientsRefused
from purefx.functional.signature import WrittenOutput
from purefx.runtime.scope import Scope, with_grad


def spell_hooks(scope: Scope, tensor: str, hooks: Iterable[Any]) -> list[str]:
    """Statements that register ``hooks`` on ``tensor``."""
    return [f"{tensor}.register_hook({scope.speller.name('hook', hook)})" for hook in hooks]


def emit_hooks_on(scope: Scope, known: Input) -> list[str]:
    """The hooks that the program registers on ``known`` as it was given."""
    return spell_hooks(scope, scope.inputs[known], known.hooks)


def emit_late_hooks(scope: Scope) -> list[str]:
    """The hooks that the program registers on what tensors of the caller have become by its writes."""
    hooked = [(known, name) for known, name in scope.inputs.items() if known.late_hooks]
    levels = scope.levels
    if hooked and len(levels) == 1 and not all(isinstance(slot.output, WrittenOutput) for slot in levels[0].slots):
        raise GradientsRefused(
            f"the program registers a hook on {hooked[0][0].name} after it has written to it or turned it,"
            " and computes with it",
            where=None,
            remedy="register the hook outside, or on a new tensor",
        )
    return [line for known, name in hooked for line in spell_hooks(scope, name, known.late_hooks)]


def emit_hooks_between(scope: Scope) -> list[str]:
    """The hooks on bases, and on views that the statements make, that are no results: gradients of those pass there.

    Rule: those on a view that is written are left to the graph, since it has another history in the end.
    """
    results = {result.variable for result, _ in results_of(scope.capture, scope.replay)}
    made = {o.variable for call in scope.replay.statements if call.effect is Effect.VIEW for o in call.outputs}
    written = {o.region.storage for call in scope.capture.recording for o in call.written}
    slots = [slot for level in scope.levels for slot in level.slots]
    made -= {slot.output.variable for slot in slots if isinstance(slot.output, Alias)}  # the graph runs their hooks
    outside = {hook for level in scope.levels for hook in level.hooks}
    left = [hook for hook in scope.capture.hooks if hook.variable not in results]
    alone = {hook for hook in left if hook.variable in made and hook.variable.last.storage not in written}
    hooks = [hook for hook in left if hook in alone | outside]
    return [line for hook in hooks for line in spell_hooks(scope, scope.variables[hook.variable], [hook.function])]


@with_grad
def emit_late_leaves(scope: Scope) -> list[str]:
    """Results that statements make, and that are leaves which require grad, or keep their gradients."""
    lines = emit_late_hooks(scope)
    begun = {scope.variables[leaf] for leaf in new_leaves(scope.capture, scope.replay)}
    found = list(results_of(scope.capture, scope.replay))
    for result, how in {result.variable: (result, how) for result, how in found}.values():
        fake, name = result.fake, scope.result(how)
        if isinstance(how, Itself) or not fake.requires_grad:
            continue
        if is_begun(fake) and name not in begun:
            lines.append(f"{name}.requires_grad_()")
        lines += _look_at_older(scope, result, name)
        lines += spell_hooks(scope, name, result.hooks)
        if _retains(fake):
            lines.append(f"{name}.retain_grad()")
    lines += [f"{name}.retain_grad()" for known, name in scope.inputs.items() if known.retains_grad]
    lines += emit_hooks_between(scope)
    results = {result.variable for result, _ in found}
    bases = [base.variable for base in scope.replay.bases if base.variable not in results]
    fakes = fakes_of(scope.capture, scope.replay)
    lines += [f"{scope.variables[v]}.retain_grad()" for v in bases if v in fakes and _retains(fakes[v])]
    return lines


def _retains(fake: torch.Tensor) -> bool:
    """Whether the program lets ``fake``, which is no leaf, keep its gradient."""
    return fake.requires_grad and not is_begun(fake) and not is_bare_view(fake) and fake.retains_grad


def _look_at_older(scope: Scope, result: TensorResult, name: str) -> list[str]:
    """A statement that asks for the history of a view that was written after it was taken, as the program has asked.

    Rule: PyTorch crashes when a hook is put on a view whose history it has to make anew.  A hook of the program on such
    a view, which another tensor has written, is on a history that the view has lost: it is refused.
    """
    makers = [c for c in scope.replay.statements if any(o.variable is result.variable for o in c.outputs)]
    if not any(map(scope.counters.is_older, makers)):
        return []
    if result.hooks:
        raise GradientsRefused(
            "a result with a hook is a view of memory that the program writes after it was taken",
            where=makers[0].where,
            remedy="take the view, and register the hook, after the write",
        )
    known = result.variable in scope.capture.known_views - scope.capture.plain_views
    return [f"{name}.grad_fn"] if known and not is_piece(result.fake) and not has_lost_history(result.fake) else []
