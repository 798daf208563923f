"""Gradients that go through what the caller did before the call: eager has them, a capture cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx import func
from purefx.errors import GradientsRefused

X = torch.tensor([1.0, 2.0, 3.0])


def total(x: Tensor, y: Tensor) -> Any:
    return torch.autograd.grad((x * y).sum(), x, retain_graph=True)[0]


def unused(x: Tensor, y: Tensor) -> Any:
    return torch.autograd.grad(y.sum(), [x], retain_graph=True, allow_unused=True)[0]


@pytest.mark.parametrize("program", [total, unused])
def test_a_gradient_through_what_was_before_is_refused(program: Callable[[Tensor, Tensor], Any]) -> None:
    x = X.clone().requires_grad_()
    y = x.sin()
    with pytest.raises(GradientsRefused, match=r"args\[1\](.|\n)*test_beyond.py") as caught:
        purefx.compile(program)(x, y)
    assert "inside" in caught.value.remedy
    apart = (X * 2).requires_grad_() * 1
    assert torch.equal(purefx.compile(total)(x, apart), total(x, apart))
    assert torch.equal(purefx.compile(total)(y, x), total(y, x))


@pytest.mark.parametrize("vjp", [torch.func.vjp, func.vjp])
def test_what_vjp_has_returned_may_be_batched(vjp: Any) -> None:
    _, pull = vjp(lambda x: x.sin() * x, X)
    assert torch.equal(func.vmap(pull)(torch.eye(3))[0], torch.func.jacrev(lambda x: x.sin() * x)(X))
    for batched in (func.vmap(lambda t: pull(t)[0]), torch.func.vmap(purefx.compile(lambda t: pull(t)[0]))):
        with pytest.raises(GradientsRefused, match=r"torch\.func\.vmap"):
            batched(torch.eye(3))
