"""The refusal of gradients that go through what the caller did before the call, which no capture has seen.

y = x.sin()                                              outside of the program
lambda x, y: torch.autograd.grad((x * y).sum(), x)       the gradient of y is a part of it, in eager
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch.autograd.graph import Node

from purefx._torch import pytree
from purefx.capture.captured import Input
from purefx.capture.edges import edge_of, history, is_beginning
from purefx.capture.frames import current_line
from purefx.errors import GradientsRefused


def check_within(inputs: Iterable[Input], outputs: Any, asked: Any) -> None:
    """Raise GradientsRefused if gradients of ``outputs`` reach one of ``asked`` by way of the caller's own graph."""
    if _is_own(sys._getframe(2)):  # below the mode that has seen the question
        return
    own = {id(known.fake): known for known in inputs if known.fake.requires_grad}
    wanted = [_original(own[id(x)]) for x in pytree.tree_leaves(asked) if id(x) in own]
    nodes = history(_nodes(x for x in pytree.tree_leaves(outputs) if isinstance(x, torch.Tensor))) if wanted else []
    entered = {edge.node: known for known in own.values() if (edge := known.edge) is not None}
    for known in (entered[node] for node in nodes if is_beginning(node) and node in entered):
        tensor = _original(known)
        if any(x is not tensor and _comes_from(tensor, x) for x in wanted):
            raise GradientsRefused(
                f"the program asks for a gradient that goes through what {known.name} was computed of, before the call",
                where=current_line(),
                remedy="compute that inside, or leave the program as it is (torch.func.vmap in the place of"
                " purefx.func.vmap, around what vjp has returned)",
            )


def _is_own(frame: FrameType | None) -> bool:
    """Whether purefx itself asks, for a gradient of its own: that of a program, and of nothing beyond."""
    while frame is not None and (frame.f_code.co_name == "__torch_function__" or _module(frame) in _PASSING):
        frame = frame.f_back
    return frame is not None and _module(frame).startswith("purefx.")


_PASSING = ("torch.overrides", "torch.autograd")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _original(known: Input) -> torch.Tensor:
    """The tensor of the caller; that of an example is the one that a transform has wrapped."""
    original: Callable[[], torch.Tensor | None] = getattr(known.tensor.grad_fn, "of", lambda: None)
    found = original()
    return known.tensor if found is None else found


def _nodes(tensors: Iterable[torch.Tensor]) -> list[Node]:
    return [edge.node for x in tensors if (edge := edge_of(x)) is not None]


def _comes_from(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether ``other`` is in the history of ``tensor``."""
    nodes = history(_nodes([tensor]))
    return any(x is other.grad_fn or getattr(x, "variable", None) is other for x in nodes)
