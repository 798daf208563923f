"""LSTMs under vmap: the kernel that a capture runs in the place of oneDNN's takes less than that.

    h, c = zeros(1, 1, 4), zeros(1, 1, 4)
    vmap(lambda x: lstm(x, (h, c), weights))(xs)      oneDNN's is run for each example

PyTorch's own kernel adds, in place, what it computes of ``x`` to what it computes of ``h``, which has no batch.  So the
state gets the batch of whatever else has one; its values are as they were.
"""

from __future__ import annotations

from typing import Any

import torch

from purefx._torch import below_all


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
