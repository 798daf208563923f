"""The nodes that a call needs at one level: which of its outputs are one, and how each has its gradients.

o, p = vmap(compiled)(x, w)      compiled: x.exp(), w.exp()      two nodes: a write to o breaks the backward of o
                                 h = x.exp(); h.sin(), h.cos()   one: the first backward frees what both read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from purefx._torch import outside_transforms, without_modes
from purefx.capture.turns import ONE_AT_A_TIME
from purefx.transforms.differentiated import Wrt
from purefx.transforms.gradients import Teller
from purefx.transforms.graphs import Tensors
from purefx.transforms.halves import Half, Halves, Kept, half_of
from purefx.transforms.programs import Program, fakes_like
from purefx.transforms.reach import Reach


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What a node has the gradients of its outputs from, besides the whole program.

    The residuals at ``residuals`` are ``kept``.  The gradients of all these outputs read the inputs ``saved``, or it is
    not known what.  They are a part of those of ``halves``, or the ``whole``.
    """

    kept: Kept | None = None
    residuals: tuple[int, ...] = ()
    saved: frozenset[int] | None = None
    halves: Halves | None = None
    whole: Half | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """How gradients of the inexact outputs ``of`` of a program are had, with respect to its inputs ``wrt``.

    ``places`` are those and the inputs that have tangents, which the outputs have too if they ``have_tangents``.
    ``inputs`` are fakes like those of the call.
    """

    program: Program
    of: tuple[int, ...]
    wrt: Wrt
    places: tuple[int, ...]
    have_tangents: bool
    reach: Reach
    source: Source
    inputs: Tensors
    _known: dict[tuple[int, ...], Half | None] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        """The outputs that the gradients of all take cotangents of, and that are functions of nothing."""
        whole = self.source.whole
        return [] if whole is None else [k for k in whole.of if k not in self.of]

    def reads_all(self, of: tuple[int, ...]) -> bool:
        """Whether the gradients of the outputs ``of`` read all that has been saved for them."""
        return of == self.of and self.source.saved is not None

    def reached(self, of: tuple[int, ...]) -> Wrt:
        """The inputs that the outputs ``of`` are functions of."""
        return self.wrt if of == self.of else tuple(sorted(self.reach.of(of)))

    def half_of(self, of: tuple[int, ...]) -> Half | None:
        """The half that serves the gradients of the outputs ``of``; None where the whole program is asked."""
        if of not in self._known:
            with ONE_AT_A_TIME, outside_transforms(), without_modes():
                self._known[of] = self._half_of(of)
        return self._known[of]

    def _half_of(self, of: tuple[int, ...]) -> Half | None:
        source, wrt, found = self.source, self.reached(of), None
        if source.kept is None or (source.whole is not None and of == self.of):
            return source.whole
        if source.halves is not None and self.program.teller is not Teller.PYTHON:
            found = source.halves.half_of(of, wrt, source.residuals, source.kept)
        return half_of(self.program, of, wrt, self.inputs, source.kept) if found is None else found


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of the outputs of a program: they have ``reach``, and tangents where they are ``pushed``.

    The inputs at ``tangents`` have some.  Gradients may be had of what is ``kept``.
    """

    reach: Reach
    pushed: tuple[bool, ...]
    tangents: Wrt
    kept: Kept | None


def ways_of(program: Program, asked: Asked, halves: Halves | None, inputs: Sequence[torch.Tensor]) -> tuple[Way, ...]:
    """The nodes of a call for such as ``inputs``; its forward half has run, if it has ``halves``."""
    if asked not in program.ways:
        program.ways[asked] = _ways(program, asked, halves, inputs)
    found: tuple[Way, ...] = program.ways[asked]
    return found


def _ways(program: Program, asked: Asked, halves: Halves | None, inputs: Sequence[torch.Tensor]) -> tuple[Way, ...]:
    with outside_transforms(), without_modes():
        like = program.laid_out(fakes_like(inputs))
    groups, found = _groups(program, asked, apart=halves is not None), []
    for of in groups:
        wrt, pushed = tuple(sorted(asked.reach.of(of))), any(asked.pushed[k] for k in of)
        places = tuple(sorted({*wrt, *asked.tangents})) if pushed else wrt
        source = _source(of, asked.kept, halves, is_whole=len(groups) == 1)
        found.append(Way(program, of, wrt, places, pushed, asked.reach, source, like))
    return tuple(found)


def _source(of: tuple[int, ...], kept: Kept | None, halves: Halves | None, *, is_whole: bool) -> Source:
    if kept is None:
        return Source()
    every = tuple(range(len(kept.residuals.numbers)))
    if halves is None:
        return Source(kept, every)
    if is_whole:
        return Source(kept, every, halves.whole.saved, halves, halves.whole)
    residuals, saved = halves.read_by(of)
    return Source(Kept(kept.residuals.only(residuals), kept.teller), residuals, saved, halves)


def _groups(program: Program, asked: Asked, *, apart: bool) -> list[tuple[int, ...]]:
    """The outputs that are one node each.

    Those that have gradients are together where Python makes these, which need not be a sum of those of each.
    """
    reached = tuple(k for k, inputs in enumerate(asked.reach.inputs) if inputs)
    alone = tuple(k for k, pushed in enumerate(asked.pushed) if pushed and k not in reached)
    found = [reached]
    if program.teller is not Teller.PYTHON:
        found = list(asked.reach.groups) if apart else found
        sides = [tuple(k for k in group if asked.pushed[k] is side) for group in found for side in (True, False)]
        found = sides if any(asked.pushed) else found
    return [group for group in (*found, alone) if group]
