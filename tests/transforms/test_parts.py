"""A1, A6: arguments and closures under transforms that share memory: each has derivatives of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, func

import purefx
from purefx.errors import TransformRefused

Compile = Callable[[Any], Any]
X = torch.arange(1.0, 5.0, dtype=torch.float64)
ROWS = torch.arange(12.0, dtype=torch.float64).view(3, 4).cos()


def closure(c: Compile) -> Any:
    x = X.clone()
    return func.grad(c(lambda y: (y * x).sum()))(x)


def twice(c: Compile) -> Any:
    return func.grad(c(lambda y, z: (y * z * z).sum()), (0, 1))(X, X)


def detached(c: Compile) -> Any:
    return func.grad(lambda y: c(lambda a, b: (a * b).sum())(y, y.detach()))(X)


def a_view_and_its_detached_tensor(c: Compile) -> Any:
    return func.grad(lambda y: c(lambda a, b: (a * b).sum())(y[:3].detach(), y[1:]))(X)


def levels(c: Compile) -> Any:
    return func.grad(lambda y: func.grad(lambda z: c(lambda a, b: (a * a * b).sum())(y, z))(y).sum())(X)


def tangents(c: Compile) -> Any:
    return func.jvp(c(lambda y: y * X), (X,), (torch.ones_like(X),))


def second(c: Compile) -> Any:
    return func.hessian(c(lambda y: (y**3 * X).sum()))(X)


def batched_closure(c: Compile) -> Any:
    return func.vmap(func.grad(c(lambda y: (y * X).sum())))(X)


def of_autograd(c: Compile) -> Any:
    x = X.clone().requires_grad_()
    return torch.autograd.grad(func.vmap(c(lambda y: (y * x.detach()).sum()))(x).sum(), x)


def written_pieces(c: Compile) -> Any:
    def f(y: Tensor) -> Tensor:
        z = y * 1
        product = c(lambda a, b: (a.mul_(2), a * b)[1])(z[:3], z[1:])
        return (product * z[1]).sum() + (z**3).sum()

    return func.hessian(f)(X), func.vmap(func.grad(f))(ROWS)


def both_pieces_written(c: Compile) -> Any:
    def f(y: Tensor) -> Any:
        product, b = c(lambda a, b: (b.mul_(2), a.sin_(), a * b, b)[2:])(y[:3], y[1:])
        return product, b * 1, y * 1

    return func.vmap(f)(ROWS.clone()), func.jvp(lambda y: f(y * 1), (ROWS[0],), (ROWS[1],))


def a_part_written_and_another_read(c: Compile) -> Any:
    def f(y: Tensor) -> Tensor:
        z = y * 1
        return c(lambda a, b: (a.copy_(b), a * b)[1])(z[:2], z[2:]).sum() + (z**3).sum()

    return func.hessian(f)(X), func.vmap(func.grad(f))(ROWS)


def a_tensor_and_a_part_of_it(c: Compile) -> Any:
    def f(y: Tensor) -> Tensor:
        return c(lambda a, b: (a[:2] * b).sin().sum())(y, y[1])

    return func.hessian(f)(X), func.vmap(func.grad(f))(ROWS), func.jvp(f, (X,), (X,))


def read_before_written(c: Compile) -> Any:
    def f(y: Tensor) -> Tensor:
        z = y * 1
        scaled = c(lambda a, b: (b[1:].sin().sum(), a[:3].mul_(2), a)[::2])(z, z.detach())
        return (scaled[0] * scaled[1]).sum() + (z**3).sum()

    return func.hessian(f)(X), func.vmap(func.grad(f))(ROWS), func.jacfwd(lambda y: func.grad(f)(y) * y)(X)


@pytest.mark.parametrize(
    "program",
    [
        a_part_written_and_another_read,
        a_tensor_and_a_part_of_it,
        read_before_written,
        closure,
        twice,
        detached,
        a_view_and_its_detached_tensor,
        levels,
        tangents,
        second,
        batched_closure,
        of_autograd,
        written_pieces,
        both_pieces_written,
    ],
)
def test_a6_tensors_that_share_memory_have_derivatives_of_their_own(program: Callable[[Compile], Any]) -> None:
    torch.testing.assert_close(program(purefx.compile), program(lambda f: f), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("transforms", [func, purefx.func])
def test_examples_share_memory_that_batches_do_not(transforms: Any) -> None:
    dot = purefx.compile(lambda a, b: a @ b)
    pairs = transforms.vmap(transforms.vmap(dot, (None, 0)), (0, None))
    torch.testing.assert_close(pairs(ROWS, ROWS), ROWS @ ROWS.t())
    torch.testing.assert_close(
        func.hessian(lambda x: pairs(x, x).sum())(ROWS), func.hessian(lambda x: (x @ x.t()).sum())(ROWS)
    )
    times = transforms.vmap(purefx.compile(lambda a, b: (a[0] * b, b)), (0, None))
    for row in (ROWS[0], ROWS[0][1:], ROWS[0][0]):
        torch.testing.assert_close(times(ROWS, row)[0], torch.stack([a[0] * row for a in ROWS]))
    crossed = transforms.vmap(purefx.compile(lambda a, b: a[0] * b), (0, 1))(ROWS[:, :3], ROWS[:, :3])
    torch.testing.assert_close(crossed, torch.stack([ROWS[i, 0] * ROWS[:, i] for i in range(3)]))


def test_a_specialisation_serves_calls_that_share_memory_otherwise() -> None:
    compiled = purefx.compile(lambda y, z: (y * z).sum())
    for given in (X, X.clone(), X):
        assert torch.equal(func.grad(compiled)(X, given), X)


def write(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(2)
    return a + b


@pytest.mark.parametrize(
    ("call", "who"),
    [
        (lambda x: func.vmap(purefx.compile(lambda a: a.mul_(2)))(x.as_strided((3, 2), (1, 1))), "args[0]"),
        (lambda x: func.vmap(purefx.compile(write), (0, None))(x, x), "args[0] and args[1]"),
        (lambda x: func.vmap(purefx.compile(write), (0, 1))(x.view(2, 2), x.view(2, 2)), "args[0] and args[1]"),
        (lambda x: func.grad(lambda y: purefx.compile(write)(y, y.detach()).sum())(x), "args[0] and args[1]"),
        (lambda x: func.grad(lambda y: purefx.compile(write)(y, x).sum())(x), "args[0] and args[1]"),
    ],
)
def test_a6_memory_that_is_written_and_is_not_of_one_example_or_history_is_refused(
    call: Callable[[Tensor], Any], who: str
) -> None:
    x = X.clone()
    with pytest.raises(TransformRefused) as caught:
        call(x)
    assert f"of {who} " in caught.value.what
    assert caught.value.where is not None
    assert torch.equal(x, X)


def test_gradients_that_read_nothing_are_of_each_example() -> None:
    compiled = purefx.compile(lambda a, b: a * 2 + 0 * b.detach())
    for f in (compiled, lambda a, b: a * 2 + 0 * b):
        assert not func.vmap(func.jacrev(lambda b, f=f: f(X, b)))(ROWS).any()
        assert func.vmap(func.jacrev(lambda b, f=f: f(X, b)))(ROWS).shape == (3, 4, 4)
