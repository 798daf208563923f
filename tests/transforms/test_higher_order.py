"""Derivatives of derivatives through compiled functions: those of eager, whichever way they are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import purefx

Function = Callable[[Tensor], Tensor]
MATRIX = torch.tensor([[2.0, 0.3, -0.1], [0.2, 1.5, 0.4], [-0.3, 0.1, 1.0]], dtype=torch.float64)
DIRECTION = torch.arange(9, dtype=torch.float64).reshape(3, 3).cos()

WITH_SHORT_CUTS = {
    "det": torch.det,
    "logdet": torch.logdet,
    "slogdet": lambda x: torch.linalg.slogdet(x)[1],
    "solve": lambda x: torch.linalg.solve(x, DIRECTION).sum(),
    "silu": lambda x: torch.nn.functional.silu(x).sum(),
    "mish": lambda x: torch.nn.functional.mish(x).sum(),
    "norm": torch.linalg.vector_norm,
}
"""Where no gradients are recorded, PyTorch's backwards of these take a way that has no tangents, or wrong ones."""


def pushed(f: Function, x: Tensor = MATRIX) -> Any:
    return torch.func.jvp(torch.func.grad(f), (x,), (DIRECTION,))


def linearized(f: Function) -> Any:
    value, push = torch.func.linearize(torch.func.grad(f), MATRIX)
    return value, push(DIRECTION)


def dual(f: Function) -> Any:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(MATRIX.clone().requires_grad_(), DIRECTION)
        (gradient,) = torch.autograd.grad(f(x), x, create_graph=True)
        return tuple(forward_ad.unpack_dual(gradient))


@pytest.mark.parametrize("name", WITH_SHORT_CUTS)
@pytest.mark.parametrize("way", [pushed, linearized, dual])
def test_a_tangent_of_a_gradient_is_that_of_eager(name: str, way: Callable[[Function], Any]) -> None:
    f = WITH_SHORT_CUTS[name]
    torch.testing.assert_close(way(purefx.compile(f)), pushed(f))


@pytest.mark.parametrize("name", WITH_SHORT_CUTS)
def test_a_batch_of_hessians_is_that_of_a_loop(name: str) -> None:
    """Of PyTorch's own vmap it is not: its rule for ``linalg.lu_solve`` mixes up the pivots of examples."""
    f, batch = WITH_SHORT_CUTS[name], torch.stack([MATRIX, MATRIX + DIRECTION])
    found = torch.func.vmap(torch.func.hessian(purefx.compile(f)))(batch)
    torch.testing.assert_close(found, torch.stack([torch.func.hessian(f)(x) for x in batch]))


def test_a_gradient_that_raises_raises_when_it_is_asked_for() -> None:
    def overwritten(x: Tensor) -> Tensor:
        y = x.sin()
        z = y * y
        y.add_(1)
        return z

    compiled = purefx.compile(overwritten)
    x = MATRIX.clone().requires_grad_()
    value = torch.func.vmap(compiled)(x)
    torch.testing.assert_close(value, x.sin() ** 2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.sum().backward()


def test_the_third_derivative_of_a_norm_is_had_although_eager_raises() -> None:
    """PyTorch's derivatives of that of a norm write what they have kept."""
    compiled, x = purefx.compile(torch.linalg.vector_norm), MATRIX.clone().requires_grad_()

    def third(f: Function) -> Tensor:
        return torch.autograd.grad(pushed(f, x)[1].sum(), x)[0]

    torch.testing.assert_close(third(compiled), third(lambda x: (x**2).sum().sqrt()))


def test_the_gradient_of_what_a_mask_selects_keeps_the_tensors_that_sizes_are_read_off() -> None:
    compiled = purefx.compile(lambda x: (x[x > 0] ** 3).sum())
    for x in (MATRIX, -MATRIX):
        torch.testing.assert_close(torch.func.grad(compiled)(x), 3 * x.clamp(min=0) ** 2)
    assert set(compiled.runs) == {"<lambda>", "vjp(<lambda>)"}


def test_zeros_without_memory_are_zeros() -> None:
    """The kernel of this backward reads the memory of its cotangent, whether it has any or not."""
    x, w = torch.arange(36, dtype=torch.float64).cos().reshape(2, 6, 3), torch.ones(6, dtype=torch.float64)
    compiled = purefx.compile(lambda w: torch.nn.functional.group_norm(x, 2, w))
    _, pull = torch.func.vjp(compiled, w)
    (found,) = pull(torch._efficientzerotensor((2, 6, 3), dtype=torch.float64))
    assert not found.any()


def test_derivatives_go_through_views_of_complex_numbers_as_their_parts() -> None:
    """The result shows memory that was made as complex numbers in another order: its base is put together of parts."""
    x, direction = MATRIX.reshape(9), DIRECTION.reshape(9)

    def spectrum(x: Tensor) -> Tensor:
        return torch.stft(x, 4, return_complex=False)

    compiled = purefx.compile(spectrum)
    torch.testing.assert_close(
        torch.func.jvp(compiled, (x,), (direction,)), torch.func.jvp(spectrum, (x,), (direction,))
    )
    torch.testing.assert_close(torch.func.jacrev(compiled)(x), torch.func.jacrev(spectrum)(x))


@pytest.mark.parametrize("function", [torch.cov, torch.corrcoef])
def test_what_python_asks_of_sizes_alone_is_known(function: Function) -> None:
    torch.testing.assert_close(torch.func.jacrev(purefx.compile(function))(MATRIX), torch.func.jacrev(function)(MATRIX))


def test_no_tangent_times_infinity_is_no_tangent() -> None:
    """The cotangent has no tangent here; PyTorch multiplies zeros without memory, and those give zeros."""
    x, direction = torch.tensor([0.5, 0, -1, 2]).double(), torch.tensor([1.0, 2, 3, 4]).double()

    def entropy(x: Tensor) -> Tensor:
        return torch.special.entr(x).sum()

    _, found = torch.func.jvp(torch.func.grad(purefx.compile(entropy)), (x,), (direction,))
    assert found.tolist() == [-2, -torch.inf, 3, -2]
