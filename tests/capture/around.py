"""What is done to functions of two tensors with control flow in them, and that it is done to each example."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import purefx
from purefx import func

Function = Callable[..., Any]
W = torch.tensor([0.5, 0.7], dtype=torch.float64)
XS = torch.tensor([[1.0, 2.0], [0.1, 0.2], [3.0, -1.0]], dtype=torch.float64)


def gradient(f: Function) -> Function:
    return torch.func.grad(lambda x, w: f(x, w).sin().sum(), (0, 1))


def third(f: Function) -> Function:
    return torch.func.jacfwd(torch.func.jacrev(gradient(f), (0, 1)), (0, 1))


def tangent(f: Function) -> Function:
    return lambda x, w: torch.func.jvp(lambda x: f(x, w), (x,), (w,))


def with_autograd(f: Function) -> Function:
    def run(x: Tensor, w: Tensor) -> Any:
        given = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        loose = partial(torch.autograd.grad, inputs=given, allow_unused=True, materialize_grads=True)
        slopes = loose(f(*given).sin().sum(), create_graph=True)
        return *slopes, *loose(sum(s.sin().sum() for s in slopes if s.requires_grad) + 0 * given[0].sum())

    return run


AROUND: dict[str, Callable[[Function], Function]] = {
    "nothing": lambda f: f,
    "gradient": gradient,
    "third derivatives": third,
    "tangent": tangent,
    "autograd": with_autograd,
}


def stacked(rows: list[Any]) -> Any:
    return torch.stack(rows) if isinstance(rows[0], Tensor) else tuple(map(torch.stack, zip(*rows, strict=True)))


def check_each_example(f: Function, expected: Function, around: Callable[[Function], Function]) -> None:
    """What is ``around`` a batch of ``f`` gives what it gives around ``expected`` for each example."""
    wanted = stacked([around(expected)(x, W) for x in XS])
    for batched in (
        torch.func.vmap(around(purefx.compile(f)), (0, None)),
        func.vmap(around(f), (0, None)),
        purefx.compile(func.vmap(around(f), (0, None))),
    ):
        torch.testing.assert_close(batched(XS, W), wanted)


def check_what_is_shared(f: Function, expected: Function) -> None:
    """The gradient of what the examples share is the sum of those of all."""
    wanted = torch.func.grad(lambda w: sum(expected(x, w).sin().sum() for x in XS))(W)

    def total(f: Function) -> Function:
        return lambda w: torch.func.vmap(f, (0, None))(XS, w).sin().sum()

    torch.testing.assert_close(torch.func.grad(total(purefx.compile(f)))(W), wanted)
    torch.testing.assert_close(purefx.compile(torch.func.grad(total(f)))(W), wanted)
