"""Batch normalisation with given statistics as what it is for one element: a product and a sum.

    y = x * scale + shift        scale = weight / sqrt(variance + eps)        shift = bias - mean * scale

vmap spells it as the normalisation of ``examples * channels`` channels, with a copy of the statistics for each example;
and refuses parameters that are of another dtype than the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from purefx.operators import aten

Parameter = torch.Tensor | None


def normalised(  # noqa: PLR0913 - the operator's own signature
    x: torch.Tensor,
    weight: Parameter,
    bias: Parameter,
    mean: Parameter,
    variance: Parameter,
    training: bool,  # noqa: FBT001
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """``native_batch_norm``: the outputs, and two empty tensors where the statistics are given."""
    if training or mean is None or variance is None:
        found: tuple[torch.Tensor, ...] = aten.native_batch_norm.default(
            x, weight, bias, mean, variance, training, momentum, eps
        )
        return found
    scale = _scale(weight, variance, eps)
    shift = -_wide(mean) * scale if bias is None else _wide(bias) - _wide(mean) * scale
    y = _wide(x) * _of_channels(scale, x) + _of_channels(shift, x)
    return y.to(x.dtype), x.new_empty(0), x.new_empty(0)


def gradients_of_normalised(  # noqa: PLR0913 - the operator's own signature
    cotangent: torch.Tensor,
    x: torch.Tensor,
    weight: Parameter,
    mean: Parameter,
    variance: Parameter,
    saved_mean: Parameter,
    saved_deviation: Parameter,
    train: bool,  # noqa: FBT001
    eps: float,
    wanted: Sequence[bool],
) -> tuple[Parameter, ...]:
    """``native_batch_norm_backward``: the gradients of the input, of the weight and of the bias that are ``wanted``."""
    if train or mean is None or variance is None:
        found: tuple[Parameter, ...] = aten.native_batch_norm_backward.default(
            cotangent, x, weight, mean, variance, saved_mean, saved_deviation, train, eps, wanted
        )
        return found
    others = [i for i in range(x.dim()) if i != 1]
    deviation, arriving = _wide(x) - _of_channels(_wide(mean), x), _wide(cotangent)
    ways: tuple[Callable[[], torch.Tensor], ...] = (
        lambda: (arriving * _of_channels(_scale(weight, variance, eps), x)).to(x.dtype),
        lambda: ((arriving * deviation).sum(others) * _scale(None, variance, eps)).to(mean.dtype),
        lambda: cotangent.sum(others, dtype=mean.dtype),
    )
    return tuple(way() if asked else None for way, asked in zip(ways, wanted, strict=True))


def _scale(weight: Parameter, variance: torch.Tensor, eps: float) -> torch.Tensor:
    inverse = (_wide(variance) + eps).rsqrt()
    return inverse if weight is None else _wide(weight) * inverse


def _wide(x: torch.Tensor) -> torch.Tensor:
    """``x`` in the dtype that the kernels compute in: a mean far from zero leaves few digits of half ones."""
    return x.float() if x.dtype in {torch.float16, torch.bfloat16} else x


def _of_channels(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``values``, one for each channel, as what can be computed with ``x``: [examples, channels, ...]."""
    return values.reshape(-1, *[1] * (x.dim() - 2))


RULES: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm.default: normalised,
    aten.native_batch_norm_backward.default: gradients_of_normalised,
}
"""What stands for operators under vmap."""
