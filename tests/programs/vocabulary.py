"""What random programs import: functions with their own backward, and the tensors of a result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from purefx._torch import pytree


class Square(Function):
    """Saves its input for the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """``x * x``."""
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Three times ``x``, so that nobody else computes it."""
        (x,) = ctx.saved_tensors
        return 3 * x * gradient


class Negate(Function):
    """Writes its input, and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """``x`` itself, negated."""
        ctx.mark_dirty(x)
        return x.neg_()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient, negated."""
        return -gradient


class View(Function):
    """Returns a view of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """All of ``x``."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Twice the gradient."""
        return 2 * gradient


class Compare(Function):
    """Has a result that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """``x`` plus a number, and a comparison with it."""
        compared = x > number
        ctx.mark_non_differentiable(compared)
        return x + number, compared

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        """The gradient; the number has none."""
        return gradient, None


def tensors(result: object) -> list[Tensor]:
    """The distinct tensors of a result, in its order."""
    return list({id(leaf): leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)}.values())


VOCABULARY: dict[str, object] = {function.__name__: function for function in (Square, Negate, View, Compare, tensors)}
"""What a program may name without saying where it is from."""


class Shown(torch.autograd.Function):
    """A view as a function of one's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return a view of ``x``."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return what no view has as its gradient."""
        return gradient * 3
