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
from purefx.transforms.differentiated import Wrt
from purefx.transforms.gradients import Teller
from purefx.transforms.graphs import Graph, Residuals, Split, Tensors, split, split_after
from purefx.transforms.history import graph_of, inexact_places, reach_of
from purefx.transforms.programs import Fixed, Program, fakes_like, plain
from purefx.transforms.reach import Reach
from purefx.transforms.shares import read_with, share


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What a forward has kept; ``teller`` tells the gradients of what is computed of that."""

    residuals: Residuals
    teller: Teller


@dataclass(frozen=True, slots=True, eq=False)
class Half:
    """The gradients of the inexact outputs ``of`` of a program with respect to ``wrt``, of what its forward has kept.

    ``backward`` takes residuals, those at ``residuals``, and what it reads of the inputs and of the cotangents of
    ``program``, which has these outputs.  The inputs ``saved`` are those that eager has saved, and those that it reads.
    Of what was ``kept`` it tells no more than it reads: the rest may have been written.
    """

    program: Program
    of: tuple[int, ...]
    wrt: Wrt
    backward: Backward
    saved: frozenset[int]
    residuals: frozenset[int]
    kept: Kept


@dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """A program in two, for gradients that are asked for later.

    ``forward`` returns the outputs, then more values; of these ``residuals`` are kept.  ``whole`` computes the
    gradients of all outputs, and has been made of ``pieces``.  The outputs are functions of what ``reach`` says.
    """

    forward: Program
    residuals: tuple[int, ...]
    whole: Half
    pieces: Split
    kept: Kept
    reach: Reach

    def read_by(self, of: tuple[int, ...]) -> tuple[tuple[int, ...], frozenset[int]]:
        """Which residuals, and which inputs of the program, the gradients of the outputs ``of`` read."""
        read = read_with(self.pieces.backward, *self._cotangents(of))
        count, first = len(self.residuals), self._first
        return tuple(sorted(x for x in read if x < count)), frozenset(x - count for x in read if count <= x < first)

    def half_of(self, of: tuple[int, ...], wrt: Wrt, places: tuple[int, ...], kept: Kept) -> Half | None:
        """The gradients of the outputs ``of``, of the residuals at ``places`` alone, which are ``kept``.

        None where they are no part of those of all.
        """
        whole, first, count = self.whole, self._first, len(self.residuals)
        own, others = self._cotangents(of)
        part = share(self.pieces.backward, [whole.wrt.index(i) for i in wrt], own, others)
        if part is None:
            return None
        order = [*places, *range(count, first), *(first + k for k in of)]
        takes = tuple(order.index(x) if isinstance(x, int) else x for x in part.takes)
        pieces = Split(self.pieces.forward, replace(part, takes=takes), tuple(range(len(places))), frozenset())
        return _half(whole.program.only(of), of, wrt, pieces, kept)

    @property
    def _first(self) -> int:
        """The place of the first cotangent."""
        return len(self.residuals) + self.whole.program.arity

    def _cotangents(self, of: tuple[int, ...]) -> tuple[frozenset[int], frozenset[int]]:
        """The places of the cotangents of the outputs ``of``, and of the others."""
        own = frozenset(self._first + k for k in of)
        return own, frozenset(self._first + k for k in self.whole.of) - own


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


def half_of(program: Program, of: tuple[int, ...], wrt: Wrt, inputs: Tensors, kept: Kept) -> Half | None:
    """The gradients of the outputs ``of`` of ``program``, where a call for ``inputs`` has ``kept`` something.

    None where they raise.
    """
    some = program.only(of)
    joint = _joint(some, wrt, inputs)
    pieces = None if joint is None else split_after(joint, kept.residuals, some.arity, len(of))
    return None if pieces is None else _half(some, of, wrt, pieces, kept)


def _split(program: Program, wrt: Wrt, inputs: Tensors) -> Halves | None:
    joint = _joint(program, wrt, inputs)
    if joint is None:
        return None
    count = len(program.inexact)
    pieces = split(joint, program.arity, count)
    known = _differentiable(pieces.forward, inputs)
    teller = program.teller if known is not None else max(program.teller, Teller.PROGRAM)
    kept = Kept(Residuals.of(pieces.forward, pieces.residuals), teller)
    half = _half(program, tuple(range(sum(program.inexact))), wrt, pieces, kept)
    forward = Forward(program, pieces, known)
    forward.teller = teller
    return Halves(forward, pieces.residuals, half, pieces, kept, reach_of(program, wrt, inputs))


def _joint(program: Program, wrt: Wrt, inputs: Tensors) -> Graph | None:
    """The graph of the outputs and the gradients; None where these raise."""
    graph, places = graph_of(program, inputs)
    like = graph.outputs_like()
    outputs = [like[i] for i in inexact_places(program, places)]
    cotangents = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in outputs]
    with suppress(Exception):
        return program.joint(wrt).graph((*inputs, *cotangents))
    return None


def _half(program: Program, of: tuple[int, ...], wrt: Wrt, pieces: Split, kept: Kept) -> Half:
    places = {x for x in pieces.backward.takes if isinstance(x, int)}
    count = len(pieces.residuals)
    read = sorted(x - count for x in places)
    reads = tuple(i for i in read if i >= 0)
    backward = Backward(program, wrt, pieces, reads)
    backward.teller = max(program.teller, kept.teller)
    saved = pieces.saved.union(i for i in reads if i < program.arity)
    residuals = frozenset(x for x in places if x < count)
    known = kept if len(residuals) == count else Kept(kept.residuals.none_but(residuals), kept.teller)
    return Half(program, of, wrt, backward, saved, residuals, known)


class Forward(Fixed):
    """The part of a `Joint` of ``of`` that computes the outputs, and after them what else is kept."""

    role = "forward"

    def __init__(self, of: Program, pieces: Split, differentiable: Sequence[bool] | None) -> None:
        count = len(of.inexact)
        kept = [False] * (len(pieces.forward.gives) - count) if differentiable is None else differentiable[count:]
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
        gradients, count = of.vjp(wrt), len(pieces.residuals)
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

    None where it has inputs that have none, such as the running mean of ``native_batch_norm``, or where it loops: fakes
    without symbols know nothing of ``while_loop``.
    """
    with torch.enable_grad(), suppress(RuntimeError, AttributeError):
        given = [x.detach().requires_grad_() if is_inexact(x.dtype) else x for x in inputs]
        return [x.requires_grad for x in graph.batchable()(*given)]
    return None
