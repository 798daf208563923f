"""The zeros that autograd makes for a tangent that is not there: whatever they are multiplied with, they stay zeros.

x * 2     its tangent is t * 2 + x * 0, where x may be infinite: that 0 is lazy, and x * 0 is no NaN
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from purefx._torch import without_modes
from purefx.capture.recording import Operand, Storage
from purefx.operators import aten

_STAYS_ZERO: dict[Any, Callable[[Sequence[bool]], bool]] = {
    aten.mul.Tensor: any,
    aten.div.Tensor: lambda zeros: zeros[0],
    aten.dot.default: any,
    aten.vdot.default: any,
    aten.linalg_cross.default: any,
    aten.add.Tensor: all,
}
"""By operator, whether its result is lazy zeros, told which of its operands are."""


class LazyZeros:
    """Which tensors of a capture are lazy zeros: those in memory that was made as such."""

    def __init__(self) -> None:
        self._storages: set[Storage] = set()
        self._number: weakref.ref[torch.Tensor] | None = None

    def note(self, storage: Storage) -> None:
        """``storage`` holds lazy zeros."""
        self._storages.add(storage)

    def number(self, **kwargs: Any) -> torch.Tensor:
        """The tangent of a Python number, which autograd reads, and which lives as long as one formula runs."""
        with without_modes():
            made: torch.Tensor = aten.zeros.default([], **kwargs)
        self._number = weakref.ref(made)
        return made

    def replaced(self, args: tuple[Any, ...], zero: Callable[..., Any]) -> tuple[Any, ...]:
        """``args`` with what ``zero`` makes in the place of the tangent of a Python number."""
        number = None if self._number is None else self._number()
        return args if number is None else tuple(zero(dtype=x.dtype) if x is number else x for x in args)

    def remain(self, func: Any, args: Sequence[Any]) -> bool:
        """Whether what ``func`` makes of ``args`` is lazy zeros."""
        if not (self._storages or self._number) or func not in _STAYS_ZERO:
            return False
        return _STAYS_ZERO[func]([self._is_lazy(x) for x in args[:2]])

    def _is_lazy(self, x: Any) -> bool:
        if isinstance(x, Operand):
            return x.region.storage in self._storages
        return x == 0 and self._number is not None and self._number() is not None
