"""A run of a program, and the gradients that autograd has of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, cast

import torch

from purefx._torch import is_transforming
from purefx.transforms.graphs import Tensors
from purefx.transforms.reach import Reach, infer_reach

T = TypeVar("T")
Wrt = tuple[int, ...]
"""Positions among the inputs of a program."""


class Differentiable(Protocol):
    """What is asked of a program: its ``function`` of ``arity`` inputs; ``reaches`` notes what outputs depend on."""

    arity: int
    inexact: tuple[bool, ...]
    reaches: dict[Any, Reach]

    def function(self, *inputs: torch.Tensor) -> Tensors:
        """The outputs."""

    def kind(self, inputs: Sequence[torch.Tensor]) -> Any:
        """What a graph for ``inputs`` is made for."""


@torch.enable_grad()
def differentiated(of: Differentiable, wrt: Wrt, inputs: Tensors) -> tuple[Tensors, Tensors]:
    """The outputs of ``of``, and the gradients for the cotangents that come after its inputs.

    Rule: by autograd itself, as in a loop over examples.  ``torch.func`` knows no hooks on what is saved, and no leaves
    that the function makes; it is used only inside of another of its transforms.
    Grad mode is on, so that the operators have derivatives.  Without it PyTorch takes short cuts: the gradient of
    ``det`` through the factors of its matrix, to which no tangent comes; that of ``silu`` by one operator without any.
    """
    own, cotangents = inputs[: of.arity], inputs[of.arity :]

    def inexact(*chosen: torch.Tensor) -> tuple[Tensors, Tensors]:
        outputs = of.function(*replaced(own, wrt, chosen))
        found = inexact_of(of, outputs)
        of.reaches[wrt, of.kind(own)] = infer_reach(found, dict(zip(wrt, chosen, strict=True)))
        return found, outputs

    if is_transforming():
        _, pull, outputs = cast(Any, torch.func.vjp(inexact, *(own[i] for i in wrt), has_aux=True))
        return outputs, pull(cotangents)
    chosen = tuple(own[i].view_as(own[i]) if own[i].requires_grad else own[i].detach() for i in wrt)
    differentiable, outputs = inexact(*(x.requires_grad_() for x in chosen))
    pairs = [(x, c) for x, c in zip(differentiable, cotangents, strict=True) if x.requires_grad]
    if not pairs:
        return outputs, tuple(map(torch.zeros_like, chosen))
    made, given = zip(*pairs, strict=True)
    return outputs, torch.autograd.grad(made, chosen, given, create_graph=True, materialize_grads=True)


def inexact_of(of: Differentiable, outputs: tuple[T, ...]) -> tuple[T, ...]:
    """What ``outputs`` has for the inexact outputs of ``of``."""
    return tuple(x for x, inexact in zip(outputs, of.inexact, strict=True) if inexact)


def replaced(inputs: Tensors, wrt: Wrt, chosen: Tensors) -> Tensors:
    """``inputs`` with ``chosen`` at the positions ``wrt``."""
    found = list(inputs)
    for i, x in zip(wrt, chosen, strict=True):
        found[i] = x
    return tuple(found)
