"""Tensors with lazy conjugation and negation: what shares memory shares it as it lies there, before the lazy bits."""

from __future__ import annotations

import math
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
