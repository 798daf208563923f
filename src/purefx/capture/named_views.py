"""Eager's names of the caller's views in the errors of autograd.

    piece = x.unbind()[1]; piece.add_(1)     Output 1 of Unbind is a view and is being modified inplace. ...

A fake of ``piece`` is a view that another operator made ("Output 0 of AsStrided"), by which PyTorch names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from purefx._torch import view_rules
from purefx.capture.captured import Input
from purefx.capture.frames import failing_values

_NAME = re.compile(r"Output \d+ of \w+ is a view")


@contextmanager
def eager_names(inputs: Iterable[Input]) -> Iterator[None]:
    """Let errors about the fakes of ``inputs`` name the operators that made the caller's own tensors."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not text.startswith("Output 0 of AsStrided is a view"):
            raise
        known = [k for k in inputs if k.edge is not None and k.fake._is_view()]
        known = [k for k in known if view_rules(k.fake) != type(view_rules(k.fake)).DEFAULT]
        used = {id(x) for x in failing_values(error.__traceback__)}
        names = dict.fromkeys(_name(k.tensor) for k in known if id(k.fake) in used or len(known) == 1)
        if not names:
            raise
        raise RuntimeError(_NAME.sub(next(iter(names)), text, count=1)).with_traceback(error.__traceback__) from None


def _name(view: torch.Tensor) -> str:
    node = view.grad_fn
    assert node is not None  # else autograd does not mind
    operator = re.sub(r"Backward\d*$", "", node.name())
    return f"Output {view.output_nr} of {operator} is a view"
