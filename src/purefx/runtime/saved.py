"""What a compiled call saves for its backward, and the versions that are compared when it runs.

Saved((arg0, out), (), ((arg1.detach(), arg1_version + 1), ), leaves=leaves)
"""

from __future__ import annotations

from purefx._torch import OpOverload
from purefx.autodiff.derived import looked_up
from purefx.autodiff.joint import Joint
from purefx.autodiff.levels import Level
from purefx.autodiff.slots import fakes_of
from purefx.capture.captured import Input
from purefx.capture.chance import random_state
from purefx.functional.roots import Root
from purefx.functional.signature import BaseOutput, ForwardOutput, ResultOutput, RootInput, SymbolInput
from purefx.operators import facts
from purefx.runtime.scope import Scope


def spell_saved(scope: Scope, joint: Joint, level: Level) -> str:
    """The arguments of what ``level`` saves."""
    kept = joint.kept(level)
    tensors = [_residual(scope, joint, joint.residuals[name]) for name, value in kept.items() if value is not None]
    numbers = [_residual(scope, joint, joint.residuals[name]) for name, value in kept.items() if value is None]
    parts = [_tuple(tensors), _tuple(numbers), _tuple(_watched(scope, joint)), _tuple(_written(scope, joint))]
    read = _read(scope, joint)
    while parts and parts[-1] == "()":
        parts.pop()
    seed = ["seed=seed"] if draws(scope) else []
    reads = [f"read={_tuple(read)}"] if read else []
    names = [scope.inputs[known] for known in looked_up(scope.functional)]
    found = [f"looked_up={_tuple(names)}"] if names else []
    return ", ".join([*(parts or ["()"]), "leaves=leaves", *reads, *found, *seed])


def _read(scope: Scope, joint: Joint) -> list[str]:
    """The tensors that a gradient of the gradient reads again, and that are not saved, with their versions."""
    saved = {source.root for source in joint.residuals.values() if isinstance(source, RootInput)}
    roots = [given.root for given in scope.functional.inputs if isinstance(given, RootInput)]
    members = [root.base or root.members[0] for root in roots if root not in saved and not root.written]
    names = [scope.inputs[member] for member in members if not member.tensor.is_inference()]
    return [f"({name}, {name}._version)" for name in names]


def emit_seed(scope: Scope) -> list[str]:
    """The random state before the graph runs, where it draws and somebody may ask for gradients of gradients."""
    return (
        [f"seed = {scope.speller.name('random_state', random_state)}()"]
        if scope.joint is not None and draws(scope)
        else []
    )


def draws(scope: Scope) -> bool:
    """Whether the program draws random numbers."""
    return any(isinstance(call.op, OpOverload) and facts(call.op).random for call in scope.capture.recording)


def _tuple(items: list[str]) -> str:
    return f"({''.join(f'{item}, ' for item in items)})"


def _residual(scope: Scope, joint: Joint, source: RootInput | SymbolInput | ForwardOutput) -> str:
    """A tensor to save, or a number.

    It is an alias that counts by itself where autograd has saved what does not count with it.  What a partition keeps
    instead must not be written either.
    """
    match source:
        case RootInput(root=root):
            return f"{scope.former.get(root.base, scope.roots[root])}{_way_to_save(scope, joint, root)}"
        case SymbolInput(symbol=symbol):
            return scope.number(symbol)
        case ResultOutput(variable) | BaseOutput(variable):
            apart = joint.saved is None and variable not in joint.read
            return f"{scope.outputs[source]}{'.data' * apart}"
        case _:
            return scope.outputs[source]


def _way_to_save(scope: Scope, joint: Joint, root: Root) -> str:
    """How the memory of ``root`` is saved: as the tensor itself, which may have no history any more, or an alias."""
    base, holder = root.base, holder_of(root)
    if joint.saved is None and not any(scope.counters.together(holder.variable, x) for x in joint.read):
        return ".data"
    turned = base is not None and (base.after != base.before or (base.base_edge is not None and base.writes > 0))
    return ".detach()" if root.written or turned else ""


def _watched(scope: Scope, joint: Joint) -> list[str]:
    """The tensors that count their writes with what autograd has saved, and are not saved, with their last versions."""
    saved = list(joint.residuals.values())
    fakes = fakes_of(scope.capture, scope.replay)
    found = [
        f"({scope.outputs[o]}.detach(), {fakes[o.variable]._version})"
        for o in scope.functional.outputs
        if isinstance(o, ResultOutput | BaseOutput) and o.variable in joint.read and o not in saved
    ]
    holders = [holder_of(source.root) for source in saved if isinstance(source, RootInput)]
    for known in (k for k in scope.inputs if k.variable in joint.read and not k.tensor.is_inference()):
        if not any(scope.counters.together(known.variable, holder.variable) for holder in holders):
            found.append(f"({scope.inputs[known]}.detach(), {scope.version(known)} + {known.writes})")
    return found


def _written(scope: Scope, joint: Joint) -> list[str]:
    holders = map(holder_of, joint.roots_written)
    names = (scope.inputs.get(h) or scope.speller.name("held", h.tensor) for h in holders)
    return [f"{name}.detach()" for name in names]


def holder_of(root: Root) -> Input:
    """The tensor of the caller that stands for the memory of ``root``."""
    return root.base if root.base is not None else root.members[0]
