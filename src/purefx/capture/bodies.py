"""Functions of tensors that a control-flow operator runs, captured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from purefx._torch import FakeTensorMode, outer_fake_mode, storage_key, without_modes
from purefx.capture.branch_derivatives import Branch, Derived, Tensors
from purefx.capture.captured import Capture, name_of
from purefx.capture.meeting import Body

Capturing = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Capture]
"""What captures a function of arguments."""


class CapturedBody(Body):
    """A branch as it was ``captured``: where it ran, the tensors that it reaches by itself were fakes."""

    def __init__(self, branch: Branch, operands: Tensors, capture: Capturing) -> None:
        self._branch: Branch | None = branch
        self.__name__ = name_of(branch)
        self.captured = replace(capture(self, tuple(map(_like, operands)), {}), function=self)

    def __call__(self, *operands: torch.Tensor) -> Tensors:
        """What the branch returns, in memory that is none of its operands'; derivatives lie dense."""
        assert self._branch is not None  # until its cond has run
        results = self._branch(*operands)
        if isinstance(self._branch, Derived):
            results = tuple(map(dense, results))
        given = set(map(storage_key, operands))
        return tuple(x.clone() if storage_key(x) in given else x for x in results)

    def let_go(self) -> None:
        """Keep nothing that the branch keeps."""
        self._branch = None


class CapturedTest(CapturedBody):
    """What tells whether a loop goes on: a tensor by itself."""

    def __call__(self, *operands: torch.Tensor) -> Any:
        """That tensor."""
        return super().__call__(*operands)[0]


def dense(x: torch.Tensor) -> torch.Tensor:
    """``x`` in row-major order, in dimensions of size 1 too."""
    return x.contiguous().reshape(-1).view(x.shape)


def _like(x: torch.Tensor) -> torch.Tensor:
    """A fake that looks like ``x``."""
    with without_modes(), outer_fake_mode([x]) or FakeTensorMode():
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
