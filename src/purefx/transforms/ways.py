"""The nodes that a call needs at one level: which of its outputs are one, and how each has its gradients.

o, p = vmap(compiled)(x, w)      compiled: x.exp(), w.exp()      two nodes: a write to o breaks the backward of o
                                 h = x.exp(); h.sin(), h.cos()   one: the first backward frees what both read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from purefx.transforms.differentiated import Wrt
from purefx.transforms.gradients import Teller
from purefx.transforms.halves import Half, Halves, Kept, Part, half_of
from purefx.transforms.programs import Program
from purefx.transforms.reach import Reach


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """How gradients of the inexact outputs ``of`` of a program are had, with respect to its inputs ``wrt``.

    ``places`` are those and the inputs that have tangents, which the outputs have too if they ``have_tangents``.
    ``half`` serves the gradient of all these outputs from the residuals at ``residuals``, which are ``kept``; those may
    serve that of some.  Without either the whole program is differentiated.
    """

    program: Program
    of: tuple[int, ...]
    wrt: Wrt
    places: tuple[int, ...]
    have_tangents: bool
    half: Half | None
    kept: Kept | None
    residuals: tuple[int, ...]
    reach: Reach

    @property
    def missing(self) -> list[int]:
        """The outputs that ``half`` takes cotangents of, and that are functions of nothing."""
        return [] if self.half is None else [k for k in self.half.of if k not in self.of]

    def reached(self, of: tuple[int, ...]) -> Wrt:
        """The inputs that the outputs ``of`` are functions of."""
        return self.wrt if of == self.of else tuple(sorted(self.reach.of(of)))

    def half_of(self, of: tuple[int, ...], inputs: Sequence[torch.Tensor]) -> Half | None:
        """The half that serves the gradients of the outputs ``of``; None where the whole program is asked."""
        if of == self.of and self.half is not None:
            return self.half
        return None if self.kept is None else half_of(self.program, of, self.reached(of), inputs, self.kept)


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
    count = 0 if asked.kept is None else len(asked.kept.residuals.numbers)
    groups, whole = _groups(program, asked, apart=halves is not None), Part(None, asked.kept, tuple(range(count)))
    if halves is None:
        return tuple(_way(program, asked, of, whole) for of in groups)
    if len(groups) == 1:
        return (_way(program, asked, groups[0], replace(whole, half=halves.whole)),)
    nothing = Part(None, None, ())
    parts = [halves.part(of, inputs) if asked.reach.of(of) else nothing for of in groups]
    return tuple(_way(program, asked, of, part or nothing) for of, part in zip(groups, parts, strict=True))


def _way(program: Program, asked: Asked, of: tuple[int, ...], part: Part) -> Way:
    wrt, pushed = tuple(sorted(asked.reach.of(of))), any(asked.pushed[k] for k in of)
    places = tuple(sorted({*wrt, *asked.tangents})) if pushed else wrt
    return Way(program, of, wrt, places, pushed, part.half, part.kept, part.places, asked.reach)


_MANY = 8
"""More groups than this of outputs that have nothing in common are one: each costs a capture of its gradients."""


def _groups(program: Program, asked: Asked, *, apart: bool) -> list[tuple[int, ...]]:
    """The outputs that are one node each.

    Those that have gradients are together where Python makes these, which need not be a sum of those of each.
    """
    reached = tuple(k for k, inputs in enumerate(asked.reach.inputs) if inputs)
    alone = tuple(k for k, pushed in enumerate(asked.pushed) if pushed and k not in reached)
    found = [reached]
    if program.teller is not Teller.PYTHON:
        found = list(asked.reach.groups) if apart and len(asked.reach.groups) <= _MANY else found
        sides = [tuple(k for k in group if asked.pushed[k] is side) for group in found for side in (True, False)]
        found = sides if any(asked.pushed) else found
    return [group for group in (*found, alone) if group]
