"""LSTMs: which kernel a capture runs in the place of eager's, oneDNN's, and what it gives to another.

    lstm(x, (h, c), weights)                          oneDNN's, a call for each layer
    vmap(lambda x: lstm(x, (h, c), weights))(xs)      oneDNN's in eager, once for each example

Of oneDNN's no transform has a rule, nor has it one for sizes that are symbols.  Then PyTorch's own kernel runs, which
adds, in place, what it computes of ``x`` to what it computes of ``h``, which has no batch.  So the state gets the batch
of whatever else has one; its values are as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from purefx._torch import below_all, has_symbolic_sizes, is_transforming, pytree


def run_lstm(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, transformable: bool
) -> Any:
    """What ``torch.lstm`` returns, by operators of which transforms have rules if they may be ``transformable``."""
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if not (transformable or is_transforming() or any(map(has_symbolic_sizes, tensors))):
        return function(*args, **kwargs)
    with _without_onednn():
        return function(*with_state_of_examples(args), **kwargs)


@contextmanager
def _without_onednn() -> Iterator[None]:
    enabled = cast(bool, torch.backends.mkldnn.enabled)  # a property, of a module
    torch.backends.mkldnn.set_flags(False, _fp32_precision=None)  # type: ignore[no-untyped-call]  # torch leaves it so
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(enabled, _fp32_precision=None)  # type: ignore[no-untyped-call]  # as above


def with_state_of_examples(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``args`` of ``torch.lstm``, with the state of each example where oneDNN's kernel computes it in eager."""
    if not isinstance(args[1], tuple | list):
        return args  # of packed sequences vmap has no rule in eager
    given, (hidden, cell), weights, *rest = args
    if given.dtype is not torch.float32 or hidden.shape[-1] != cell.shape[-1]:
        return args  # not oneDNN's in eager either, which raises
    for x in (given, cell, *weights):
        if below_all(x)[1]:
            hidden = torch.where(x.flatten()[:0].any(), hidden, hidden)
    return (given, (hidden, cell), weights, *rest)
