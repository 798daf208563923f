"""Fake kernels of operators that PyTorch has none for: eager's own kernel says what its results look like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from purefx._torch import FakeTensor, OpOverload, without_modes
from purefx.operators import aten


def _least_squares(
    a: FakeTensor, b: FakeTensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, ...]:
    """Solutions, residuals, ranks and singular values, which look alike for all matrices of full rank."""
    if driver in ("gelss", "gelsd") and a.shape[-2] > a.shape[-1]:  # residuals where the rank is full
        fake: tuple[torch.Tensor, ...] = aten.linalg_lstsq.default(a, b, rcond, driver=driver)
        return fake
    with without_modes():
        matrix, right = (torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).zero_() for x in (a, b))
        matrix.diagonal(0, -2, -1).fill_(1)
        found = aten.linalg_lstsq.default(matrix, right, rcond, driver=driver)
    with a.fake_mode:
        return tuple(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=a.device) for x in found)


OWN: dict[OpOverload, Callable[..., Any]] = {aten.linalg_lstsq.default: _least_squares}
"""The kernels, by their operators."""
