"""Eager's names of the caller's views in the errors of autograd.

    piece = x.unbind()[1]; piece.add_(1)     Output 1 of Unbind is a view and is being modified inplace. ...

A fake of ``piece`` is a view that another operator made ("Output 0 of AsStrided"), by which PyTorch names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from purefx._torch import is_from_function, is_piece
from purefx.capture.captured import Input
from purefx.capture.edges import Forgotten
from purefx.capture.frames import failing_values
from purefx.capture.recording import Recording
from purefx.operators import aten

_MAKERS = {"AsStrided": aten.as_strided.default, "View": aten.view.default, Forgotten.__name__: None}
"""The operators that make fakes of views, by their names in errors; None of what no program can run."""

_NAME = re.compile(r"Output \d+ of \w+ is a view")


@contextmanager
def eager_names(inputs: Iterable[Input], recording: Recording) -> Iterator[None]:
    """Let errors about the fakes of ``inputs`` name the operators that made the caller's own tensors.

    Rule: where the last call of ``recording`` is the operator that has made the fake, the error may be about what that
    returned, and is not about what it was taken of.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        makers = [op for name, op in _MAKERS.items() if text.startswith(f"Output 0 of {name} is a view")]
        if not makers:
            raise
        maker = makers[0]
        known = [k for k in inputs if k.tensor.requires_grad and (is_piece(k.fake) or is_from_function(k.fake))]
        last = recording.calls[-1] if recording.calls else None
        remade = last is not None and last.op is maker
        alone = len(known) == 1 and not any(call.op is maker for call in recording)
        if last is not None and remade:
            known = [k for k in known if k.variable is not last.operands[0].variable]
        used = {id(x) for x in failing_values(error.__traceback__)}
        names = dict.fromkeys(_name(k.tensor) for k in known if id(k.fake) in used or alone)
        if not names:
            raise
        raise RuntimeError(_NAME.sub(next(iter(names)), text, count=1)).with_traceback(error.__traceback__) from None


def _name(view: torch.Tensor) -> str:
    try:
        node = view.grad_fn
    except RuntimeError as error:  # about the very same
        return str(error).partition(" and ")[0]
    operator = re.sub(r"Backward\d*$", "", "" if node is None else node.name())
    return f"Output {view.output_nr} of {operator} is a view"
