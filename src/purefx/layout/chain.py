"""Chains of view steps: what they lead to, and shorter ones that lead to the same."""

from __future__ import annotations

from purefx.layout.geometry import Geometry
from purefx.layout.moves import Permute, Squeeze, Unsqueeze
from purefx.layout.picks import Slice
from purefx.layout.recounts import View, ViewDtype
from purefx.layout.steps import Chain, Step
from purefx.layout.viewable import NotViewable, axis


def compose(g: Geometry, chain: Chain) -> Geometry:
    """The geometry that ``chain`` makes of ``g``: the steps one after the other."""
    for step in chain:
        g = step.apply(g)
    return g


def simplify(chain: Chain, base: Geometry) -> Chain:
    """A chain that is no longer than ``chain``, and equal to it on ``base``.

    ``compose(base, simplify(chain, base)) == compose(base, chain)``, strides of size-1 dimensions included: a
    shorter piece is taken only where it gives the very same geometry.
    """
    kept: list[Step] = []
    before = [base]
    for step in chain:
        after = step.apply(before[-1])
        while kept and (merged := _merged(kept[-1], step, before[-2], after)) is not None:
            kept.pop()
            before.pop()
            step = merged
        if isinstance(step, ViewDtype) or after != before[-1]:
            kept.append(step)
            before.append(after)
    return tuple(kept)


def _merged(first: Step, second: Step, before: Geometry, after: Geometry) -> Step | None:
    """One step from ``before`` to ``after``, where ``first`` and ``second`` are known to make one."""
    match first, second:
        case Permute(inner), Permute(outer):
            candidate: Step = Permute(tuple(inner[dim] for dim in outer))
        case Slice(), Slice() if axis(first.dim, before.rank) == axis(second.dim, before.rank):
            candidate = _merged_slices(first, second, before)
        case (View() | Unsqueeze() | Squeeze(), View(sizes)):
            candidate = View(sizes)
        case (Unsqueeze() | Squeeze() | View(), Unsqueeze() | Squeeze()) if after == before:
            candidate = View(after.sizes)
        case _:
            return None
    try:
        return candidate if candidate.apply(before) == after else None
    except NotViewable:
        return None


def _merged_slices(first: Slice, second: Slice, before: Geometry) -> Slice:
    size = before.sizes[axis(first.dim, before.rank)]
    start, stop = first.bounds(size)
    inner_start, inner_stop = second.bounds(first.apply(before).sizes[axis(first.dim, before.rank)])
    begin = start + inner_start * first.step
    end = begin + (inner_stop - inner_start) * first.step
    return Slice(first.dim, begin, end if end <= stop else stop, first.step * second.step)
