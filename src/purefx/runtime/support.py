"""What generated wrappers call: functions that are the same for every program."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch

from purefx._torch import set_version, storage_key


def sharing(tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    """Which of ``tensors`` share storage: for each the first that it shares with, and its byte offset from that."""
    first: dict[int, tuple[int, int]] = {}
    pattern = []
    for i, tensor in enumerate(tensors):
        start = int(tensor.storage_offset()) * tensor.itemsize
        group, origin = first.setdefault(storage_key(tensor), (i, start))
        pattern.append((group, start - origin))
    return tuple(pattern)


def set_versions(*versions: tuple[torch.Tensor, int]) -> None:
    """Leave the version counters where eager leaves them: it counts each write, the wrapper writes once."""
    for tensor, version in versions:
        if tensor._version != version:
            set_version(tensor, version)


def default_device() -> torch.device:
    """Where tensors are made of nothing; to ask PyTorch for the setting takes three times as long."""
    return torch.empty(0).device


def same_value(given: Any, captured: Any) -> bool:
    """Whether a plain argument is the one that the program was specialised on."""
    if type(given) is not type(captured):
        return False
    if isinstance(captured, numbers.Number) and not isinstance(captured, int | float):
        return repr(given) == repr(captured)  # == takes -0.0 for 0.0
    if isinstance(captured, float):
        return math.copysign(1.0, given) == math.copysign(1.0, captured) and (
            given == captured or (math.isnan(given) and math.isnan(captured))
        )
    return given is captured or bool(given == captured)


class _AsItIs(torch.autograd.Function):
    """Returns a view as it is, which autograd takes for one that a function of the user's has made."""

    @staticmethod
    def forward(ctx: Any, base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
        """Return ``view`` of ``base``."""
        return view

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        """Nobody comes here: autograd raises before, since the base is written."""
        raise AssertionError("a view that has lost its history has a gradient")


def from_function(view: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """``view`` of ``base`` as one that a function of the user's has made."""
    with torch.enable_grad():
        made: torch.Tensor = _AsItIs.apply(base, view)  # type: ignore[no-untyped-call]  # PyTorch gives it no types
    return made
