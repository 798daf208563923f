"""Fake kernels of operators for which PyTorch has none, or one that asks for numbers that are not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from purefx._torch import FakeTensor, OpOverload, free_unbacked_symbols, without_modes
from purefx.onednn import FAKE_KERNELS
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


def _zeros_like_tangent(tangent: FakeTensor, primal: FakeTensor, **kwargs: Any) -> torch.Tensor:
    """Memory for a tangent that lies like ``primal``; PyTorch asks for an offset that has no number."""
    if not free_unbacked_symbols([primal]):
        fake: torch.Tensor = aten._new_zeros_with_same_feature_meta.default(tangent, primal, **kwargs)
        return fake
    with tangent.fake_mode:
        return torch.empty_strided(primal.shape, primal.stride(), dtype=tangent.dtype, device=tangent.device)


def _has_same_storage(tangent: FakeTensor, primal: FakeTensor) -> bool:
    """False where a number is not known: else forward-mode AD would ask whether there are any elements."""
    if free_unbacked_symbols([tangent, primal]):
        return False
    same: bool = aten._has_same_storage_numel.default(tangent, primal)
    return same


def _chosen(x: FakeTensor, mask: FakeTensor) -> torch.Tensor:
    """The elements of ``x`` at ``mask``: as many for each tensor of which the same mask chooses."""
    if x.shape != mask.shape:
        fake: torch.Tensor = aten.masked_select.default(x, mask)
        return fake
    return x.new_empty((mask.nonzero().shape[0],))


OWN: dict[OpOverload, Callable[..., Any]] = {
    aten.linalg_lstsq.default: _least_squares,
    aten._has_same_storage_numel.default: _has_same_storage,
    aten.masked_select.default: _chosen,
    **FAKE_KERNELS,
    aten._new_zeros_with_same_feature_meta.default: _zeros_like_tangent,
}
"""The kernels, by their operators."""
