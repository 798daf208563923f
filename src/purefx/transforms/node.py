"""The call of a program, as PyTorch's transforms see it: one node with a rule for each of them.

Under vmap the batched program runs, in forward mode the tangent's program too, in reverse mode the gradient's, each
as a node again.  So transforms nest to any depth, and what runs at the bottom is a compiled graph on plain tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from purefx._torch import (
    batched_by_function,
    below_functionalize,
    current_level,
    is_batched_by_autograd,
    is_functionalizing,
)
from purefx.transforms.levels import NO_GRADIENT, gradient_levels, repeats_elements
from purefx.transforms.programs import Dims, Program, Residuals


def call(program: Program, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The outputs of ``program`` for ``inputs``, whatever transforms have wrapped those."""
    levels = gradient_levels(inputs)
    wrt = tuple(i for i, level in enumerate(levels) if level != NO_GRADIENT)
    return _apply(program, Residuals(wrt), max(levels, default=NO_GRADIENT), inputs)


def _apply(
    program: Program, residuals: Residuals, innermost: int, inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The outputs of ``program``; gradients are asked for at the level ``innermost`` first."""
    if is_functionalizing():
        return below_functionalize(lambda *given: _apply(program, residuals, innermost, given), inputs)
    if any(map(is_batched_by_autograd, inputs)):
        return batched_by_function(lambda *given: _apply(program, residuals, innermost, given), inputs)
    outputs: tuple[torch.Tensor, ...] = Node.apply(program, residuals, innermost, *inputs)  # type: ignore[no-untyped-call]  # PyTorch gives it no types
    return outputs


class Node(torch.autograd.Function):
    """A call of a program."""

    @staticmethod
    def forward(
        program: Program, residuals: Residuals, innermost: int, *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The outputs, computed by what was compiled."""
        return program.run(residuals, inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep the inputs, and what the outputs look like."""
        ctx.program, ctx.residuals, _, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        pairs = list(zip(output, ctx.program.inexact, strict=True))
        ctx.mark_non_differentiable(*(x for x, inexact in pairs if not inexact))
        ctx.like = [(x.shape, x.dtype, x.device) for x, inexact in pairs if inexact]

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        """The gradients of the inputs that need one."""
        wrt = tuple(i for i, needed in enumerate(ctx.needs_input_grad[3:]) if needed)
        found: list[torch.Tensor | None] = [None] * ctx.program.arity
        given = [x for x, inexact in zip(cotangents, ctx.program.inexact, strict=True) if inexact]
        if any(x is not None for x in given):
            whole = [_zeros(*like) if x is None else x for x, like in zip(given, ctx.like, strict=True)]
            inputs = (*ctx.saved_tensors, *whole)
            gradients = _apply(ctx.program.vjp(wrt), ctx.residuals, max(gradient_levels(inputs)), inputs)
            for i, gradient in zip(wrt, gradients, strict=True):
                found[i] = gradient
        return None, None, None, *found

    @staticmethod
    def jvp(ctx: Any, *given_tangents: torch.Tensor | None) -> tuple[Any, ...]:
        """The tangents of the outputs."""
        tangents = given_tangents[3:]
        if not any(ctx.program.inexact):
            return (None,) * len(ctx.program.inexact)
        wrt = tuple(i for i, tangent in enumerate(tangents) if tangent is not None)
        given = [tangent for tangent in tangents if tangent is not None]
        found = iter(call(ctx.program.jvp(wrt), (*ctx.saved_tensors, *given)))
        return tuple(next(found) if inexact else None for inexact in ctx.program.inexact)

    @staticmethod
    def vmap(
        info: Any, in_dims: Dims, program: Program, residuals: Residuals, innermost: int, *inputs: torch.Tensor
    ) -> Any:
        """The outputs of each example, with the batch first."""
        dims = list(in_dims[3:])
        tensors = list(inputs)
        for i in range(program.given, program.arity):
            x, dim = tensors[i], dims[i]
            tensors[i] = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            dims[i] = 0
        outside = innermost <= current_level()  # the gradient comes from outside of this vmap
        whole = outside and not any(map(repeats_elements, inputs))
        outputs = _apply(program.vmap(tuple(dims), info.randomness, whole=whole), residuals, innermost, tensors)
        return outputs, (0,) * len(outputs)


def _zeros(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)
