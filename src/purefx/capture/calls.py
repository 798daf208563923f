"""Writing down what has run: the calls of a recording, and how each has changed its operands."""

from __future__ import annotations

import torch

from purefx._torch import OpOverload
from purefx.capture.effects import UNCHANGED, Change, Outcome, written_arguments, written_tensors
from purefx.capture.frames import current_line
from purefx.capture.given import Given, Passed
from purefx.capture.recording import (
    Call,
    Effect,
    Modes,
    Operands,
    Operator,
    Recording,
    Resize,
    Tree,
    operands_of,
)
from purefx.capture.tensors import Tensors
from purefx.operators import Facts, aten


class Calls:
    """Appends calls to ``recording``, whose tensors are ``tensors``."""

    def __init__(self, recording: Recording, tensors: Tensors) -> None:
        self._recording = recording
        self._tensors = tensors

    def record(self, op: Operator, recorded: Passed, operands: Operands, outcome: Outcome) -> Call:
        """Append a call of ``op``, with ``recorded`` arguments, that had this outcome."""
        call = Call(
            op=op,
            args=recorded[0],
            kwargs=recorded[1],
            results=outcome.results,
            operands=operands,
            outputs=outcome.outputs,
            written=outcome.change.written,
            effect=outcome.change.effect,
            modes=Modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
            where=current_line(),
            fresh=outcome.fresh,
            resized=outcome.change.resized,
        )
        self._recording.calls.append(call)
        if call.effect in (Effect.GEOMETRY, Effect.STORAGE) and str(op).startswith("aten.set_."):
            self._recording.moved.update(o.variable for o in call.written)
        return call

    def change(self, op: OpOverload, known: Facts, given: Given) -> Change:
        """How ``op`` has changed its operands."""
        if known.resizes_storage:
            target = operands_of(given.recorded[0][:1])
            return Change(Effect.STORAGE, target, self._tensors.resized(target))
        before = operands_of(written_arguments(op, *given.recorded)) if known.written else ()
        if not before:
            return UNCHANGED
        pairs = zip(before, written_tensors(op, *given.passed), strict=True)
        written = tuple(self._tensors.show(o.variable, self._tensors.region(x)) for o, x in pairs)
        resized = self._tensors.resized(written) if known.out or known.writes_geometry else ()
        if known.writes_geometry:
            return Change(Effect.GEOMETRY, written, resized)
        if resized or any(b.region != w.region for b, w in zip(before, written, strict=True)):
            self._record_resizing(before, written, resized)
            return Change(Effect.WRITE, written, replaced=dict(zip(before, written, strict=True)))
        return Change(Effect.WRITE, written)

    def _record_resizing(self, before: Operands, after: Operands, resized: tuple[Resize, ...]) -> None:
        """An ``out=`` argument was resized: record that as the calls that it amounts to, before the write."""
        for old, new in zip(before, after, strict=True):
            if old.region == new.region:
                continue
            geometry, sizes = new.region.geometry, list(new.region.geometry.sizes)
            mine = tuple(r for r in resized if r[0] is new.region.storage)
            resizing = Outcome(new, (), Change(Effect.GEOMETRY, (new,), mine))
            self.record(aten.resize_.default, ((old, sizes), {}), (old,), resizing)
            if not geometry.is_contiguous:
                args: tuple[Tree, ...] = (new, sizes, list(geometry.strides), geometry.offset)
                restriding = Outcome(new, (), Change(Effect.GEOMETRY, (new,)))
                self.record(aten.as_strided_.default, (args, {}), (new,), restriding)
