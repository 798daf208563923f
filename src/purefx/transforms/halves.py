"""A program in two, where gradients are asked for after it has run.

    Forward   inputs                           -> outputs, residuals
    Backward  residuals, inputs, cotangents    -> gradients     takes only those that it reads

Both are cut from the one graph of outputs and gradients, and both are programs: transforms go through each.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

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

    ``forward`` returns the outputs, then residuals; ``backward`` takes those and what it reads of the inputs and the
    cotangents, and returns the gradients.  The inputs ``saved`` are those that eager has saved, and those that this
    reads.  Autograd has a history of the outputs ``with_history``.
    """

    forward: Program
    backward: Backward
    saved: frozenset[int]
    with_history: Sequence[bool]


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
    joint, graph = program.joint(wrt), None
    with suppress(Exception):
        graph = joint.graph((*inputs, *cotangents))
    if graph is None:
        return None
    pieces = split(graph, program.arity, len(outputs))
    known = _differentiable(pieces.forward, inputs)
    read = sorted({x - pieces.residuals for x in pieces.backward.takes if isinstance(x, int)})
    reads = tuple(i for i in read if i >= 0)
    halves = Halves(
        Forward(program, pieces, known),
        Backward(program, wrt, pieces, reads),
        pieces.saved.union(i for i in reads if i < program.arity),
        joint.with_history,
    )
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
        self.origins = of.origins

    def lay(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """``x`` as the whole program takes it."""
        return self.of.lay(i, x)


class Backward(Fixed):
    """The part of a `Joint` of ``of`` that computes gradients, of residuals first and then of what it ``reads``.

    Those are positions among the inputs and the cotangents.
    """

    def __init__(self, of: Program, wrt: Wrt, pieces: Split, reads: tuple[int, ...]) -> None:
        gradients, count = of.vjp(wrt), pieces.residuals
        places = {**{i: i for i in range(count)}, **{i + count: k + count for k, i in enumerate(reads)}}
        takes = tuple(places[x] if isinstance(x, int) else x for x in pieces.backward.takes)
        given = count + sum(i < of.given for i in reads)
        graph = replace(pieces.backward, takes=takes)
        super().__init__(gradients.engine, gradients.name, count + len(reads), given, gradients.inexact, graph)
        self.of = of
        self.reads = reads

    def lay(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """``x`` as the whole program takes it; a residual as it is."""
        first = self.arity - len(self.reads)
        if i < first:
            return x
        return self.of.lay(self.reads[i - first], x) if self.reads[i - first] < self.of.arity else plain(x)


def _differentiable(graph: Graph, inputs: Tensors) -> list[bool] | None:
    """Which outputs of ``graph`` have gradients: not the mean that ``native_layer_norm`` returns, for one.

    None where it has inputs that have none, such as the running mean of ``native_batch_norm``.
    """
    with torch.enable_grad(), suppress(RuntimeError):
        given = [x.detach().requires_grad_() if is_inexact(x.dtype) else x for x in inputs]
        return [x.requires_grad for x in graph.batchable()(*given)]
    return None
