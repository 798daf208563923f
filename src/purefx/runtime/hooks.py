"""The hooks that a program registers, on the tensors that a caller has or gets."""

from __future__ import annotations

from functools import partial

from purefx.analysis.gradients import results_of
from purefx.autodiff.targets import Alias
from purefx.capture.captured import Input
from purefx.capture.recording import Effect
from purefx.errors import GradientsRefused
from purefx.functional.signature import WrittenOutput
from purefx.runtime.scope import Scope


def emit_hooks_on(scope: Scope, known: Input) -> list[str]:
    """The hooks that the program registers on ``known`` as it was given."""
    return [f"{scope.inputs[known]}.register_hook({scope.speller.name('hook', hook)})" for hook in known.hooks]


def emit_late_hooks(scope: Scope) -> list[str]:
    """The hooks that the program registers on what tensors of the caller have become by its writes."""
    hooked = [(known, name) for known, name in scope.inputs.items() if known.late_hooks]
    levels = scope.joint.levels if scope.joint is not None else ()
    if hooked and len(levels) == 1 and not all(isinstance(slot.output, WrittenOutput) for slot in levels[0].slots):
        raise GradientsRefused(
            f"the program registers a hook on {hooked[0][0].name} after it has written to it or turned it,"
            " and computes with it",
            where=None,
            remedy="register the hook outside, or on a new tensor",
        )
    name_of_hook = partial(scope.speller.name, "hook")
    return [f"{name}.register_hook({name_of_hook(hook)})" for known, name in hooked for hook in known.late_hooks]


def emit_hooks_between(scope: Scope) -> list[str]:
    """The hooks on bases, and on views that the statements make, that are no results: gradients of those pass there.

    Rule: those on a view that is written are left to the graph, since it has another history in the end.
    """
    results = {result.variable for result, _ in results_of(scope.capture, scope.replay)}
    made = {o.variable for call in scope.replay.statements if call.effect is Effect.VIEW for o in call.outputs}
    written = {o.region.storage for call in scope.capture.recording for o in call.written}
    slots = [slot for level in (scope.joint.levels if scope.joint is not None else ()) for slot in level.slots]
    made -= {slot.output.variable for slot in slots if isinstance(slot.output, Alias)}  # the graph runs their hooks
    outside = {hook for level in (scope.joint.levels if scope.joint is not None else ()) for hook in level.hooks}
    left = [hook for hook in scope.capture.hooks if hook.variable not in results]
    alone = {hook for hook in left if hook.variable in made and hook.variable.last.storage not in written}
    hooks = [(scope.variables[h.variable], h.function) for h in left if h in alone | outside]
    return [f"{name}.register_hook({scope.speller.name('hook', function)})" for name, function in hooks]
