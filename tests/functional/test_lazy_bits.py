"""Tensors with lazy conjugation and negation: what shares memory shares it as it lies there, before the lazy bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from tests.support.oracle import assert_same_as_eager


def complex_ramp(*sizes: int) -> Tensor:
    """Numbers whose real and imaginary parts differ, in row-major order."""
    return torch.view_as_complex(torch.arange(1.0, 1 + 2 * math.prod(sizes)).view(*sizes, 2)).clone()


@pytest.mark.parametrize("part", ["real", "imag"])
def test_what_is_conjugated_and_negated_is_written_and_shows_its_parts(part: str) -> None:
    def program(z: Tensor) -> Any:
        z.mul_(2j)
        return getattr(z, part) * 1

    assert_same_as_eager(program, lambda: (torch._neg_view(complex_ramp(3).conj()),), system=purefx.compile)


def write_one_and_read_the_other(a: Tensor, b: Tensor) -> Any:
    a.mul_(2)
    return b * 1


def read_one_and_write_the_other(a: Tensor, b: Tensor) -> Any:
    b.mul_(2)
    return a + 1


READINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda z: z,
    "conjugated": lambda z: z.conj(),
    "negated": torch._neg_view,
    "conjugated and negated": lambda z: torch._neg_view(z.conj()),
    "the real part": lambda z: z.real,
    "the imaginary part": lambda z: z.imag,
    "the imaginary part of the conjugate": lambda z: z.conj().imag,
}


@pytest.mark.parametrize("program", [write_one_and_read_the_other, read_one_and_write_the_other])
@pytest.mark.parametrize("second", READINGS)
@pytest.mark.parametrize("first", READINGS)
def test_overlapping_arguments_with_lazy_bits_share_the_memory_as_it_is(
    first: str, second: str, program: Callable[..., Any]
) -> None:
    def make() -> tuple[Tensor, Tensor]:
        z = complex_ramp(6)
        return READINGS[first](z)[:4], READINGS[second](z)[2:]

    assert_same_as_eager(program, make, system=purefx.compile)


NO_VIEW = (2, 3), (5, 3), 1
UNRELATED: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "conjugated": lambda z: (z.conj(), z.as_strided(*NO_VIEW)),
    "of a conjugate": lambda z: (z, z.conj().as_strided(*NO_VIEW)),
    "negated and conjugated": lambda z: (torch._neg_view(z), z.conj().as_strided(*NO_VIEW)),
    "negated": lambda z: (z.imag, z.conj().imag.as_strided((2, 3), (10, 6), 3)),
}


@pytest.mark.parametrize("program", [write_one_and_read_the_other, read_one_and_write_the_other])
@pytest.mark.parametrize("kind", UNRELATED)
def test_elements_that_no_view_op_reaches_are_taken_as_they_lie_there(kind: str, program: Callable[..., Any]) -> None:
    assert_same_as_eager(program, lambda: UNRELATED[kind](complex_ramp(4, 4)), system=purefx.compile)


PARTS: dict[str, Callable[[Tensor], object]] = {
    "copy the real part": lambda z: z.copy_(z.real),
    "copy the imaginary part": lambda z: z.copy_(z.imag),
    "conjugate times real part": lambda z: z.conj().mul_(z.real),
    "twice": lambda z: z.copy_(z.imag).copy_(z.real),
    "a row": lambda z: z[1:].copy_(z[1:].imag),
}
LAZY: dict[str, Callable[[Tensor], Tensor]] = {
    "conjugated": lambda z: z.conj(),
    "transposed and conjugated": lambda z: z.mH,
    "negated": torch._neg_view,
    "conjugated and negated": lambda z: torch._neg_view(z.conj()),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("lazy", LAZY)
def test_a_tensor_with_lazy_bits_is_written_from_a_part_of_itself(lazy: str, part: str) -> None:
    def program(z: Tensor) -> Any:
        PARTS[part](z)
        return z

    assert_same_as_eager(program, lambda: (LAZY[lazy](complex_ramp(2, 3)),), system=purefx.compile)


REAL: dict[str, Callable[[Tensor], Tensor]] = {
    "negated": lambda z: torch._neg_view(z.real.clone()),
    "a window of what is negated": lambda z: torch._neg_view(torch.arange(8.0))[2:6],
    "negated, and no view": lambda z: torch._neg_view(z.real.clone()).detach(),
    "the imaginary part of a conjugate": lambda z: z.conj().imag,
}
COMPLEX: dict[str, Callable[[Tensor], Tensor]] = {
    "conjugated": lambda z: z.conj(),
    "conjugated, and no view": lambda z: z.conj().detach(),
    "conjugated and negated": lambda z: torch._neg_view(z.conj()),
}


ORIGINS: dict[str, Callable[[Tensor], Tensor]] = {
    "without a history": lambda z: z,
    "with a history": lambda z: z.requires_grad_().mul(1),
}


def written_and_viewed_before(x: Tensor, w: Tensor) -> Any:
    y = x.view(2, 2)
    x.mul_(w)
    return x, y


def turned_and_written(x: Tensor, w: Tensor) -> Any:
    x.unsqueeze_(0)
    x.mul_(w)
    return x


def written_and_turned(x: Tensor, w: Tensor) -> Any:
    x.mul_(w)
    x.unsqueeze_(0)
    return x


def written_in_part_and_read(x: Tensor, w: Tensor) -> Any:
    x[1:].mul_(w[1:])
    return x * w


def written_as_a_list(x: Tensor, w: Tensor) -> Any:
    torch._foreach_mul_([x], [w])


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("lazy", [*REAL, *COMPLEX])
@pytest.mark.parametrize(
    "program",
    [
        written_and_viewed_before,
        turned_and_written,
        written_and_turned,
        written_in_part_and_read,
        written_as_a_list,
    ],
    ids=lambda program: program.__name__,
)
def test_a_tensor_with_lazy_bits_is_written_with_gradients(program: Callable[..., Any], lazy: str, origin: str) -> None:
    def make() -> tuple[Tensor, Tensor]:
        z = complex_ramp(4)
        w = (z.detach().clone() if lazy in COMPLEX else z.real.detach().clone()).requires_grad_()
        return {**REAL, **COMPLEX}[lazy](ORIGINS[origin](z)), w

    assert_same_as_eager(program, make, system=purefx.compile)
