"""Where gradients leave a program: the edges of the caller's tensors in the graph that autograd records.

x, a leaf                 a fake leaf: writing to it in place raises as it does in eager
x * 2, no leaf            a fake whose history is one node, `Beginning`
x[0], a view              a view of the fake of x
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from purefx._torch import set_version, without_modes


class Beginning(torch.autograd.Function):
    """All that the caller did to a tensor before the call, as one node."""

    @staticmethod
    def forward(ctx: Any, handle: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
        """Return ``fake`` itself, as a function of ``handle``."""
        ctx.mark_dirty(fake)
        return fake

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Pass the gradient on."""
        return gradient, None


def give_history(fake: torch.Tensor) -> None:
    """Make ``fake`` require grad without being a leaf."""
    version = fake._version
    with without_modes(), torch.enable_grad():
        handle = fake.detach().requires_grad_()
        Beginning.apply(handle, fake)  # type: ignore[no-untyped-call]  # PyTorch gives it no types
    set_version(fake, version)


def edge_of(tensor: torch.Tensor) -> GradientEdge | None:
    """The edge by which gradients of ``tensor`` flow; None where it has none."""
    if not tensor.requires_grad or is_bare_view(tensor):
        return None
    try:
        return get_gradient_edge(tensor)
    except RuntimeError:  # PyTorch cannot tell it of a view whose base was detached
        return None


def is_bare_view(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a view that was taken without gradients: it has no history, and requires grad all the same.

    Rule: where its base has been written since, PyTorch raises when it is asked for the history.
    """
    base = None if tensor.is_inference() else tensor._base
    if base is None or not base.requires_grad:
        return False
    try:
        return tensor.is_leaf
    except RuntimeError:
        return True


def is_begun(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a leaf that requires grad by itself."""
    return tensor.requires_grad and not is_bare_view(tensor) and tensor.is_leaf
