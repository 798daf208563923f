"""A program in two, where gradients are asked for after it has run.

    Forward   inputs                           -> outputs, residuals
    Backward  residuals, inputs, cotangents    -> gradients

Both are cut from the one graph of outputs and gradients, and both are programs: transforms go through each.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from purefx._torch import outside_transforms, without_modes
from purefx.capture.turns import ONE_AT_A_TIME
from purefx.operators import is_inexact
from purefx.transforms.gradients import Teller
from purefx.transforms.graphs import Graph, Split, Tensors, split
from purefx.transforms.programs import Fixed, Program, Wrt, fakes_like, plain


@dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """A program in two, for gradients that are asked for later.

    ``forward`` returns the outputs, then residuals; ``backward`` takes those, the inputs and the cotangents, and
    returns the gradients.
    """

    forward: Program
    backward: Program


def halves_of(program: Program, wrt: Wrt, inputs: Sequence[torch.Tensor]) -> Halves | None:
    """``program`` for inputs such as ``inputs``, and for their gradients with respect to ``wrt``, in two.

    None where the gradients raise: so they will again, if anybody asks for them.
    """
    key = (wrt, program.kind(inputs))
    if key not in program.halves:
        with ONE_AT_A_TIME, outside_transforms(), without_modes():
            program.halves[key] = _split(program, wrt, program.laid_out(fakes_like(inputs)))
    found: Halves | None = program.halves[key]
    return found


def _split(program: Program, wrt: Wrt, inputs: Tensors) -> Halves | None:
    outputs = program.graph(inputs).outputs_like()
    cotangents = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in outputs]
    cotangents = [x for x, inexact in zip(cotangents, program.inexact, strict=True) if inexact]
    joint = None
    with suppress(Exception):
        joint = program.joint(wrt).graph((*inputs, *cotangents))
    if joint is None:
        return None
    pieces = split(joint, program.arity, len(outputs))
    known = _differentiable(pieces.forward, inputs)
    halves = Halves(Forward(program, pieces, known), Backward(program, wrt, pieces))
    for half in (halves.forward, halves.backward):
        half.teller = program.teller if known is not None else max(program.teller, Teller.PROGRAM)
    return halves


class Forward(Fixed):
    """The part of a `Joint` of ``of`` that computes the outputs, and residuals after them."""

    role = "forward"

    def __init__(self, of: Program, pieces: Split, differentiable: Sequence[bool] | None) -> None:
        kept = (False,) * pieces.residuals if differentiable is None else differentiable[len(of.inexact) :]
        inexact = (*of.inexact, *kept)
        super().__init__(of.engine, of.name, of.arity, of.given, inexact, pieces.forward)
        self.of = of

    def laid_out(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        """``inputs`` as the whole program takes them."""
        return self.of.laid_out(inputs)


class Backward(Fixed):
    """The part of a `Joint` of ``of`` that computes gradients from residuals, which are its first inputs."""

    def __init__(self, of: Program, wrt: Wrt, pieces: Split) -> None:
        gradients = of.vjp(wrt)
        arity, given = pieces.residuals + gradients.arity, pieces.residuals + gradients.given
        super().__init__(gradients.engine, gradients.name, arity, given, gradients.inexact, pieces.backward)
        self.of = of

    def laid_out(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        """The inputs among ``inputs`` as the whole program takes them."""
        count = self.given - self.of.given
        residuals, own, cotangents = inputs[:count], inputs[count:][: self.of.arity], inputs[count + self.of.arity :]
        return (*residuals, *self.of.laid_out(own), *map(plain, cotangents))


def _differentiable(graph: Graph, inputs: Tensors) -> list[bool] | None:
    """Which outputs of ``graph`` have gradients: not the mean that ``native_layer_norm`` returns, for one.

    None where it has inputs that have none, such as the running mean of ``native_batch_norm``.
    """
    with torch.enable_grad(), suppress(RuntimeError):
        given = [x.detach().requires_grad_() if is_inexact(x.dtype) else x for x in inputs]
        return [x.requires_grad for x in graph.batchable()(*given)]
    return None
