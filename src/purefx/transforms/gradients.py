"""Who tells the gradients of a program: its operators, or the program itself.

    (w * x).sin()                           the operators
    (w * x).detach(), no_grad, detach_()    the program cuts some off
    autograd.Function, register_hook        Python makes some of others

Law: the whole batch may be differentiated at once only if the operators of the graph tell the gradients.  What no
example has its own of may be differentiated once, for the sum of what arrives, unless Python makes gradients: they need
not be linear in what arrives.

    class Clipped:  backward(ctx, g): return g.clamp(-1, 1)      vmap(lambda x: Clipped.apply(w) * x)(xs)
    the gradient of w: the sum of those that each x clips; not what is left of their sum
"""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import IntEnum
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from purefx._torch import (
    READS_HISTORY,
    OpOverload,
    as_alive,
    has_saved_tensor_hooks,
    is_functorch_wrapped,
    is_transforming,
    pytree,
)
from purefx.analysis.replay import Fresh, Replay, Replayed
from purefx.capture.captured import Capture, TensorResult
from purefx.capture.edges import edge_of, history
from purefx.capture.frames import current_line
from purefx.capture.recording import DataAccess, Effect, Recording, Variable
from purefx.errors import TransformRefused
from purefx.operators import aten, is_inexact


class Teller(IntEnum):
    """Who tells the gradients of a program, each with less of it told than the one before."""

    OPERATORS = 0
    PROGRAM = 1
    PYTHON = 2


class Steering(TorchFunctionMode):
    """Sees what a program does to gradients besides running operators; ``teller`` says who tells them then.

    ``detached`` are the tensors that it detaches in place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.teller = Teller.OPERATORS
        self.detached: list[weakref.ref[torch.Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` gives."""
        module = _calling_module()
        if not module.startswith(("purefx.", "torch.autograd.")):
            told = _STEERING.get(func, Teller.OPERATORS)
            self.teller = max(self.teller, told)
            if told is Teller.PROGRAM:
                self.detached.append(weakref.ref(args[0]))
        if not module.startswith(("purefx.", "torch.")) and any(map(_is_left, pytree.tree_leaves((args, kwargs)))):
            raise TransformRefused(
                "the program reaches what a transform has wrapped by way of an object that purefx does not watch",
                where=current_line(),
                remedy="pass the tensor as an argument, or keep it in a variable, a list, a dict or an attribute",
            )
        if has_saved_tensor_hooks():
            self.teller = Teller.PYTHON
        return func(*args, **(kwargs or {}))


def _is_left(x: Any) -> bool:
    """Whether ``x`` has the wrapper of a transform that a capture has left: operators would not differentiate it."""
    if not isinstance(x, torch.Tensor) or not is_functorch_wrapped(x):
        return False
    held = as_alive(x)  # operators see what a transform that has ended has left as what that holds
    return is_functorch_wrapped(held) and (held is not x or not is_transforming())


def _calling_module() -> str:
    """The module of the code that calls the function which a mode sees; not that of a mode that has passed it on."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


_STEERING: dict[Any, Teller] = {
    torch.detach_: Teller.PROGRAM,
    torch.Tensor.detach_: Teller.PROGRAM,
    torch.Tensor.register_hook: Teller.PYTHON,
    READS_HISTORY: Teller.PYTHON,  # nodes take hooks too
}
"""What a program calls to tell gradients by itself, as far as no operator runs."""


_within = threading.local()
"""Who tells the gradients of the programs that have run in a capture of this thread: ``teller``."""


def note_teller(teller: Teller) -> None:
    """A program runs in a capture, whose gradients ``teller`` tells."""
    _within.teller = max(_told(), teller)


@contextmanager
def told_within() -> Iterator[Callable[[], Teller]]:
    """What says who tells the gradients of all programs that have run in this block."""
    before, _within.teller = _told(), Teller.OPERATORS
    try:
        yield _told
    finally:
        note_teller(before)


def _told() -> Teller:
    teller: Teller = getattr(_within, "teller", Teller.OPERATORS)
    return teller


def infer_teller(capture: Capture) -> Teller:
    """Who tells the gradients of a program, as far as its operators and their history say."""
    if _has_functions(capture):
        return Teller.PYTHON
    read = {operand.variable for call in capture.recording for operand in call.operands}
    read.update(result.variable for result in capture.results if isinstance(result, TensorResult))
    cuts = any(
        not call.modes.grad
        or not isinstance(call.op, OpOverload)
        or (call.op is aten.detach.default and call.outputs[0].variable in read)  # autograd detaches what it saves
        for call in capture.recording
    )
    return Teller.PROGRAM if cuts else Teller.OPERATORS


def _has_functions(capture: Capture) -> bool:
    """Whether a function with a gradient of its own is in the history of what the program gives."""
    results = [result.fake for result in capture.results if isinstance(result, TensorResult)]
    edges = map(edge_of, [*results, *(known.fake for known in capture.inputs)])
    return any(map(_is_function, history(edge.node for edge in edges if edge is not None)))


def _is_function(node: Node) -> bool:
    """Whether ``node`` is that of an ``autograd.Function``, other than those that purefx has calls made of."""
    own = getattr(node, "_forward_cls", object).__module__.startswith("purefx.")
    return isinstance(node, torch.autograd.function.BackwardCFunction) and not own


def with_own_history(capture: Capture, replay: Replay) -> Replay:
    """``replay``, in which views that have a history of their own are results of the graph.

    Rule: what an ``autograd.Function`` returns of its argument is a view that was taken without gradients, and has
    the gradient of the function.  A hook is on what is replayed of an argument, and has to run for each example.
    """
    given = {known.before.storage for known in capture.inputs}
    hooked = {v for v in hooked_views(capture, replay) if v.last.storage in given}
    results = tuple(
        Fresh(how.variable, result.region)
        if isinstance(result, TensorResult)
        and isinstance(how, Replayed)
        and (how.variable in hooked or _is_apart(result, how, replay))
        else how
        for result, how in zip(capture.results, replay.results, strict=True)
    )
    return replace(replay, results=results)


def written_apart(capture: Capture, replay: Replay) -> tuple[Fresh, ...]:
    """The results that share memory with other tensors, and have the history of what was written to them alone.

    Views of such results are not among them.  What has a hook, and views of it, have a history of their own too.

    Rule: what is written to a detached tensor with gradients is a part of its history, and of none that it was
    detached from.

        v = x * 2                 the values of w and v are the same, their gradients are not
        w = v.detach()
        w.copy_(v ** 3)
        return w, v
    """
    origins = detached_views(capture.recording)
    written = {o.variable for call in capture.recording if call.effect is Effect.WRITE for o in call.written}
    origins_written = {origins[variable] for variable in written if variable in origins}
    pairs = zip(capture.results, replay.results, strict=True)
    shared = [result for result, how in pairs if isinstance(result, TensorResult) and isinstance(how, Replayed)]
    apart = {r.variable: r.region for r in shared if origins.get(r.variable) in origins_written}
    own = [v for v, r in apart.items() if is_inexact(r.dtype)]
    written_alone = [Fresh(v, apart[v]) for v in own if origins[v] is v or origins[v] not in apart]
    known = {how.variable for how in written_alone}
    hooked = hooked_views(capture, replay) - known
    distinct = {r.variable: r.region for r in shared if r.variable in hooked}
    return (*written_alone, *(Fresh(v, region) for v, region in distinct.items()))


def hooked_views(capture: Capture, replay: Replay) -> set[Variable]:
    """What statements make that has a hook, and what they make of that."""
    own = {hook.variable for hook in capture.hooks}
    found: set[Variable] = set()
    for call in replay.statements:
        made = {o.variable for o in call.outputs}
        if made & own or found & {o.variable for o in call.operands}:
            found |= made
    return found


def detached_views(recording: Recording) -> dict[Variable, Variable]:
    """Of each view of something detached, and of that itself, what was made by detaching."""
    found: dict[Variable, Variable] = {}
    for call in recording:
        for output in call.outputs if call.effect is Effect.VIEW else ():
            before = [found[o.variable] for o in call.operands if o.variable in found]
            cuts = call.op in (aten.detach.default, DataAccess.READ)
            if cuts or before:
                found.setdefault(output.variable, output.variable if cuts else before[0])
    return found


def _is_apart(result: TensorResult, how: Replayed, replay: Replay) -> bool:
    wanted, without_gradients = {how.variable}, False
    for call in reversed(replay.statements):
        if wanted & {o.variable for o in call.outputs}:
            wanted |= {o.variable for o in call.operands}
            without_gradients |= not call.modes.grad
    return without_gradients and edge_of(result.fake) is not None
