"""Transforms of compiled functions in inference mode, and of inference tensors: eager's have derivatives there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import purefx


def wave(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = y[1] * 2
    return (y.exp() * x).sum()


def of_what_it_is(x: Tensor) -> Tensor:
    flags = x.is_inference(), torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    return (x.exp() * sum(flag * 2**i for i, flag in enumerate(flags))).sum()


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda f, x: grad(f)(x),
    "vmap": lambda f, x: vmap(f)(x.repeat(2, 1)),
    "vmap of grad": lambda f, x: vmap(grad(f))(x.repeat(2, 1)),
    "grad of grad": lambda f, x: grad(lambda y: grad(f)(y).sum())(x),
    "grad of vmap": lambda f, x: grad(lambda y: vmap(f)(y.repeat(2, 1)).sum())(x),
    "jvp": lambda f, x: jvp(f, (x,), (x,)),
    "jvp of grad": lambda f, x: jvp(grad(f), (x,), (x,)),
    "vjp": lambda f, x: vjp(f, x)[1](torch.ones(())),
    "jacrev": lambda f, x: jacrev(f)(x),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "hessian": lambda f, x: hessian(f)(x),
}


def values(x: Any) -> Any:
    """What is there of tensors, and whether they are inference tensors."""
    found = x if isinstance(x, tuple) else (x,)
    return [(tensor.tolist(), tensor.is_inference()) for tensor in found]


@pytest.mark.parametrize("f", [wave, of_what_it_is])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize(("made", "runs"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("through", [purefx.compile, purefx.functionalize])
def test_derivatives_are_eagers(f: Any, transform: Any, made: Any, runs: Any, through: Any) -> None:
    """``made``: whether the argument is an inference tensor; ``runs``: whether the mode is on at the call."""
    with torch.inference_mode(made):
        x = torch.tensor([0.5, -1.0, 2.0])
    with torch.inference_mode(runs):
        expected, found = transform(f, x), transform(through(f), x)
    for (value, is_inference), (other, is_too) in zip(values(found), values(expected), strict=True):
        torch.testing.assert_close(torch.tensor(value), torch.tensor(other))
        assert is_inference is is_too


def test_a_call_in_the_mode_leaves_no_program_without_gradients_behind() -> None:
    compiled, x = purefx.compile(wave), torch.tensor([0.5, -1.0, 2.0])
    with torch.inference_mode():
        grad(compiled)(x)
    y = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(grad(compiled)(y).sum(), y)
    (expected,) = torch.autograd.grad(grad(wave)(y).sum(), y)
    torch.testing.assert_close(slope, expected)


def test_an_inference_tensor_may_be_conjugated_lazily() -> None:
    def norm(x: Tensor) -> Tensor:
        return (x * x.conj().exp()).abs().sum()

    with torch.inference_mode():
        x = torch.tensor([0.5 + 1j, -1.0 + 2j])
    for made in (x.conj(), x.conj().imag):
        torch.testing.assert_close(grad(purefx.compile(norm))(made), grad(norm)(made))
