"""The call of a program, as PyTorch's transforms see it: one node at each level that asks for derivatives of it.

    level 2  grad     unwrapped, asked of level 1, wrapped; a `Node` records how to have the gradients
    level 1  vmap     the batches taken off; the batched program is asked of what is below
    below             a compiled graph on plain tensors

So transforms nest to any depth.  PyTorch would walk through them in the same way for an ``autograd.Function`` with a
rule for each (``custom_function_call``), and take several times as long as the graph of a small model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from purefx._torch import (
    OneLevelFunction,
    Transform,
    add_batch,
    batched_by_function,
    current_level,
    innermost_transform,
    is_batched_by_autograd,
    recorded_at_one_level,
    tangent_of,
    unwrap_at,
    unwrap_batch,
    unwrap_dead,
    without_tangents,
    wrap_at,
)
from purefx.transforms.graphs import Tensors
from purefx.transforms.levels import NO_GRADIENT, gradient_levels, repeats_elements
from purefx.transforms.programs import Program, Residuals, Wrt


def call(program: Program, inputs: Sequence[torch.Tensor]) -> Tensors:
    """The outputs of ``program`` for ``inputs``, whatever transforms have wrapped those."""
    inputs = [unwrap_dead(x) for x in inputs]
    levels = gradient_levels(inputs)
    wrt = tuple(i for i, level in enumerate(levels) if level != NO_GRADIENT)
    return _apply(program, Residuals(wrt), max(levels, default=NO_GRADIENT), inputs)


def _apply(program: Program, residuals: Residuals, innermost: int, inputs: Sequence[torch.Tensor]) -> Tensors:
    """The outputs of ``program``; gradients are asked for at the level ``innermost`` first."""
    if any(map(is_batched_by_autograd, inputs)):
        return batched_by_function(lambda *given: _apply(program, residuals, innermost, given), inputs)
    transform = innermost_transform()
    if transform is None:
        return _at_the_bottom(program, residuals, inputs)
    if transform.is_vmap:
        return _batched(program, residuals, innermost, inputs, transform)
    return _wrapped(program, residuals, innermost, inputs, transform)


def _at_the_bottom(program: Program, residuals: Residuals, inputs: Sequence[torch.Tensor]) -> Tensors:
    """The outputs outside of transforms, where autograd and forward-mode AD may look on."""
    with torch.no_grad(), without_tangents():
        outputs = program.run(residuals, inputs)
    tangents = [tangent_of(x) for x in inputs]
    found: Tensors = ()
    if any(x is not None for x in tangents):
        with without_tangents():
            found = _pushed(program, inputs, tangents)
    return _recorded(program, residuals, outputs, found, inputs)


def _wrapped(
    program: Program, residuals: Residuals, innermost: int, inputs: Sequence[torch.Tensor], transform: Transform
) -> Tensors:
    """The outputs at a level of grad or jvp."""
    level = transform.level
    held = [unwrap_at(x, level) for x in inputs]
    lifted = [wrap_at(x, level) if x is inner else x for x, inner in zip(inputs, held, strict=True)]
    tangents = [tangent_of(x) for x in lifted]
    found: Tensors = ()
    with transform.left():
        outputs = _apply(program, residuals, innermost, held)
        if any(x is not None for x in tangents):
            inner = [None if x is None else unwrap_at(x, level) for x in tangents]
            found = _pushed(program, held, inner)
    outputs, found = (tuple(wrap_at(x, level) for x in values) for values in (outputs, found))
    return _recorded(program, residuals, outputs, found, lifted)


def _pushed(program: Program, inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]) -> Tensors:
    """The tangents of the inexact outputs."""
    if not any(program.inexact):
        return ()
    wrt = tuple(i for i, tangent in enumerate(tangents) if tangent is not None)
    return call(program.jvp(wrt), (*inputs, *(tangent for tangent in tangents if tangent is not None)))


def _recorded(
    program: Program, residuals: Residuals, outputs: Tensors, tangents: Tensors, inputs: Sequence[torch.Tensor]
) -> Tensors:
    """``outputs`` with their ``tangents``, if they have some, and as functions of ``inputs``."""
    if not tangents and not (torch.is_grad_enabled() and any(x.requires_grad for x in inputs)):
        return outputs
    with recorded_at_one_level():
        found: Tensors = Node.apply(program, residuals, outputs, tangents, *inputs)
    return found


def _batched(
    program: Program, residuals: Residuals, innermost: int, inputs: Sequence[torch.Tensor], transform: Transform
) -> Tensors:
    """The outputs of each example, at a level of vmap."""
    held, dims = unwrap_batch(inputs, transform.level)
    with transform.left():
        if all(dim is None for dim in dims):
            return _apply(program, residuals, innermost, held)
        for i in range(program.given, program.arity):
            x, dim = held[i], dims[i]
            held[i] = x.expand(transform.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            dims[i] = 0
        outside = innermost <= current_level()  # the gradient comes from outside of this vmap
        whole = outside and not any(map(repeats_elements, held))
        batched = program.vmap(tuple(dims), transform.randomness, whole=whole)
        outputs = _apply(batched, residuals, innermost, held)
    return tuple(add_batch(x, transform.level) for x in outputs)


class Node(OneLevelFunction):  # type: ignore[misc]  # PyTorch gives it no types
    """A call of a program in the graph of autograd of one level."""

    @staticmethod
    def forward(
        ctx: Any, program: Program, residuals: Residuals, outputs: Tensors, tangents: Tensors, *inputs: torch.Tensor
    ) -> Tensors:
        """The ``outputs``, which are computed already."""
        ctx.program, ctx.residuals, ctx.tangents = program, residuals, tangents
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        pairs = list(zip(outputs, program.inexact, strict=True))
        ctx.mark_non_differentiable(*(x for x, inexact in pairs if not inexact))
        ctx.like = [(x.shape, x.dtype, x.device) for x, inexact in pairs if inexact]
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        """The gradients of the inputs that need one."""
        wrt: Wrt = tuple(i for i, needed in enumerate(ctx.needs_input_grad[4:]) if needed)
        found: list[torch.Tensor | None] = [None] * ctx.program.arity
        given = [x for x, inexact in zip(cotangents, ctx.program.inexact, strict=True) if inexact]
        if any(x is not None for x in given):
            whole = [_zeros(*like) if x is None else x for x, like in zip(given, ctx.like, strict=True)]
            inputs = [unwrap_dead(x) for x in (*ctx.saved_tensors, *whole)]
            gradients = _apply(ctx.program.vjp(wrt), ctx.residuals, max(gradient_levels(inputs)), inputs)
            for i, gradient in zip(wrt, gradients, strict=True):
                found[i] = gradient
        return None, None, None, None, *found

    @staticmethod
    def jvp(ctx: Any, *_: torch.Tensor | None) -> tuple[Any, ...]:
        """The tangents of the outputs."""
        found = iter(ctx.tangents)
        return tuple(next(found, None) if inexact else None for inexact in ctx.program.inexact)


def _zeros(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)
