"""Random geometries and chains of view steps, drawn from a seeded generator or by Hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

from hypothesis import strategies as st

from purefx.layout import (
    Chain,
    Diagonal,
    Expand,
    Geometry,
    NotViewable,
    Permute,
    Select,
    Slice,
    Squeeze,
    Step,
    Unfold,
    Unsqueeze,
    View,
)

MOST = 600
"""No sampled view has more elements."""

T = TypeVar("T")


def _select(random: Random, g: Geometry) -> Step:
    dim = random.randrange(g.rank)
    return Select(dim, random.randrange(-g.sizes[dim], g.sizes[dim]))


def _slice(random: Random, g: Geometry) -> Step:
    dim = random.randrange(g.rank)
    start, stop = sorted((random.randint(0, g.sizes[dim]), random.randint(0, g.sizes[dim])))
    return Slice(dim, start, max(stop, min(start + 1, g.sizes[dim])), random.choice((1, 1, 1, 2, 3)))


def _permute(random: Random, g: Geometry) -> Step:
    return Permute(tuple(random.sample(range(g.rank), g.rank)))


def _view(random: Random, g: Geometry) -> Step:
    left = g.numel
    sizes = []
    while left > 1:
        size = random.choice([size for size in range(1, left + 1) if left % size == 0])
        sizes.append(size)
        left //= size
    return View(tuple(sizes) if g.numel else g.sizes)


def _flatten(random: Random, g: Geometry) -> Step:
    dim = random.randrange(g.rank - 1)
    return View((*g.sizes[:dim], g.sizes[dim] * g.sizes[dim + 1], *g.sizes[dim + 2 :]))


def _diagonal(random: Random, g: Geometry) -> Step:
    dim1, dim2 = random.sample(range(g.rank), 2)
    return Diagonal(random.randint(1 - g.sizes[dim1], g.sizes[dim2] - 1), dim1, dim2)


def _expand(random: Random, g: Geometry) -> Step:
    sizes = tuple(random.choice((size, 2, 3)) if size == 1 else size for size in g.sizes)
    return Expand((random.randint(1, 3), *sizes) if random.random() < 0.3 else sizes)


def _unsqueeze(random: Random, g: Geometry) -> Step:
    return Unsqueeze(random.randint(0, g.rank))


def _squeeze(random: Random, g: Geometry) -> Step:
    return Squeeze(random.randrange(g.rank))


def _unfold(random: Random, g: Geometry) -> Step:
    dim = random.randrange(g.rank)
    return Unfold(dim, random.randint(1, g.sizes[dim]), random.randint(1, 3))


MAKERS: tuple[Callable[[Random, Geometry], Step], ...] = (
    _select, _slice, _slice, _permute, _view, _flatten, _diagonal, _expand, _unsqueeze, _squeeze, _unfold,
)  # fmt: skip


def seeded(draw: Callable[[Random], T]) -> st.SearchStrategy[T]:
    """What ``draw`` makes of a random generator, as a Hypothesis strategy."""
    return st.integers(0, 2**40).map(lambda seed: draw(Random(seed)))


randoms = st.integers(0, 2**40).map(Random)


def random_step(random: Random, g: Geometry) -> Step:
    """A step that eager accepts on ``g``."""
    while True:
        try:
            step = random.choice(MAKERS)(random, g)
            after = step.apply(g)
        except (NotViewable, ValueError, IndexError):
            continue
        if after.numel <= MOST and after.rank <= 6:
            return step


def random_chain(random: Random, g: Geometry, length: int) -> tuple[Chain, Geometry]:
    """``length`` steps that eager accepts on ``g``, and where they lead."""
    chain: Chain = ()
    for _ in range(length):
        step = random_step(random, g)
        chain, g = (*chain, step), step.apply(g)
    return chain, g


def random_contiguous(random: Random, *, least: int = 1) -> Geometry:
    """A row-major geometry of up to 4 dimensions."""
    sizes = tuple(random.choice((1, 2, 3, 4, 5, 6)) for _ in range(random.randint(least, 4)))
    return Geometry.contiguous(sizes, random.choice((0, 0, 3)))


def random_base(random: Random) -> Geometry:
    """What a base may be: row-major, transposed, with gaps, offset, expanded, or any other view."""
    g = random_contiguous(random)
    if random.random() < 0.5:
        return g
    return random_chain(random, g, random.randint(1, 3))[1]
