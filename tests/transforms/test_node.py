"""A call under transforms as a node of autograd: what it saves, and what may be written before its backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import purefx

Function = Callable[[Tensor, Tensor], Tensor]
Write = Callable[[Tensor, Tensor], object]

WRITES: dict[str, Write] = {
    "the first": lambda x, w: x.add_(1),
    "the second": lambda x, w: w.mul_(2),
    "a view of the first": lambda x, w: x[0].zero_(),
}
FUNCTIONS: dict[str, Function] = {
    "only the first is saved": lambda x, w: x.sin() + w * 2,
    "both are saved": lambda x, w: x * w,
    "a view of the first is saved": lambda x, w: x[1:].exp().sum() + (x[:2] * w[:2].detach()).sum() + w,
    "results are saved": lambda x, w: x.exp() + w.tanh(),
    "none is saved": lambda x, w: (x + w).cumsum(0),
}


def gradients(function: Function, write: Write) -> list[Tensor] | str:
    """The gradients of a batch after ``write``, or what is raised."""
    x, w = (torch.linspace(0.1, 1, 12).view(3, 4).requires_grad_() for _ in range(2))
    y = vmap(function)(x, w)
    with torch.no_grad():
        write(x, w)
    try:
        return list(torch.autograd.grad(y.sum(), (x, w)))
    except RuntimeError as error:
        return str(error)[:60]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_write_before_the_backward_raises_where_eager_has_saved_what_is_written(function: str, write: str) -> None:
    expected = gradients(FUNCTIONS[function], WRITES[write])
    found = gradients(purefx.compile(FUNCTIONS[function]), WRITES[write])
    assert isinstance(found, str) == isinstance(expected, str)
    if isinstance(found, list):
        torch.testing.assert_close(found, expected)
    else:
        assert found == expected
