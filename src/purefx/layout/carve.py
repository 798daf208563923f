"""Carving one geometry out of another: the index steps of each view dimension in the base, and the view ops.

``infer_plan`` writes the strides and the offset of a view as digits in the strides of its base. A ``Carver``
turns the plan into steps: per base dimension a select, a slice, a view or windows that split it; then
diagonals, and at last the order, the size-1 dimensions and the repeated ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from purefx.layout.geometry import Geometry
from purefx.layout.moves import Expand, Permute, Squeeze, Unsqueeze
from purefx.layout.overlap import digits
from purefx.layout.picks import Diagonal, Select, Slice, Unfold
from purefx.layout.recounts import View
from purefx.layout.steps import Step
from purefx.layout.symbols import Int, holds, is_one, same
from purefx.layout.viewable import NotViewable


class Use(NamedTuple):
    """View dimension ``dim`` takes ``length`` indices of a base dimension, ``step`` apart."""

    dim: int
    length: Int
    step: Int


@dataclass(frozen=True, slots=True)
class Plan:
    """For each base dimension: the index at which the view starts, and its uses, widest step first.

    Element ``sum(i[u.dim] * u.step for u in uses[k]) + starts[k]`` of each base dimension ``k`` is in its
    range.
    """

    starts: tuple[Int, ...]
    uses: tuple[tuple[Use, ...], ...]


def infer_plan(base: Geometry, view: Geometry, *, claims: bool) -> Plan | None:
    """How ``view`` lies in the dimensions of ``base``: None when it does not lie in them digit by digit.

    With ``claims``, dimensions of ``view`` that no stride pins down (size 1, or stride 0) use base dimensions
    of the same stride; without, they are left for the end.
    """
    order = _descending(base)
    strides = tuple(base.strides[dim] for dim in order)
    places = digits(view.offset - base.offset, strides)
    if places is None:
        return None
    starts: list[Int] = [0] * base.rank
    ends: list[Int] = [0] * base.rank
    uses: list[list[Use]] = [[] for _ in range(base.rank)]
    for dim, place in zip(order, places, strict=True):
        starts[dim] = ends[dim] = place
    free = []
    for dim, (size, stride) in enumerate(zip(view.sizes, view.strides, strict=True)):
        if is_one(size) or same(stride, 0):
            free.append(dim)
            continue
        steps = digits(stride, strides)
        if steps is None:
            return None
        for k, step in zip(order, steps, strict=True):
            if not same(step, 0):
                uses[k].append(Use(dim, size, step))
                ends[k] = ends[k] + (size - 1) * step
    if not all(holds(end < size) for end, size in zip(ends, base.sizes, strict=True)):
        return None
    if claims:
        _claim(base, view, free, uses)
    return Plan(tuple(starts), tuple(_widest_first(found) for found in uses))


def _descending(base: Geometry) -> list[int]:
    """The dimensions of ``base`` that tell elements apart, widest stride first."""
    order: list[int] = []
    for dim in range(base.rank):
        if is_one(base.sizes[dim]) or same(base.strides[dim], 0):
            continue
        place = len(order)
        while place and holds(base.strides[order[place - 1]] < base.strides[dim]):
            place -= 1
        order.insert(place, dim)
    return order


def _widest_first(uses: list[Use]) -> tuple[Use, ...]:
    for place in range(1, len(uses)):
        at = place
        while at and holds(uses[at - 1].step < uses[at].step):
            uses[at - 1], uses[at] = uses[at], uses[at - 1]
            at -= 1
    return tuple(uses)


def _claim(base: Geometry, view: Geometry, free: list[int], uses: list[list[Use]]) -> None:
    alike = sorted(range(base.rank), key=lambda k: not is_one(base.sizes[k]))
    for dim in free:
        size, stride = view.sizes[dim], view.strides[dim]
        for k in alike:
            if uses[k]:
                continue
            repeats = not is_one(size) and is_one(base.sizes[k])
            if repeats or (same(stride, base.strides[k]) and holds(size <= base.sizes[k])):
                uses[k].append(Use(dim, 1 if repeats else size, 1))
                break


class Tag(NamedTuple):
    """What a dimension is there for: base dimension ``base``, of which view dimension ``view`` is to be made.

    ``view`` is None as long as several may be, or none.
    """

    base: int
    view: int | None = None


class Carver:
    """The steps found so far.

    Invariant: ``steps`` lead from the base to ``g``, and ``tags[d]`` is what dimension ``d`` of ``g`` is
    there for.
    """

    def __init__(self, base: Geometry) -> None:
        self.g = base
        self.steps: list[Step] = []
        self.tags = [Tag(dim) for dim in range(base.rank)]

    def take(self, step: Step, tags: list[Tag]) -> None:
        """Add ``step``, after which the dimensions are there for ``tags``."""
        self.g = step.apply(self.g)
        self.steps.append(step)
        self.tags = tags

    def _retagged(self, dim: int, *new: Tag) -> list[Tag]:
        return [*self.tags[:dim], *new, *self.tags[dim + 1 :]]

    def carve(self, plan: Plan) -> None:
        """Make one dimension for each use, then one for each view dimension that uses several."""
        for first, second in _plain_diagonals(plan):
            self._take_diagonal(plan, first, second)
        for base in range(len(plan.uses)):
            if Tag(base) in self.tags:
                self._split(base, plan.starts[base], plan.uses[base])
        self._join_diagonals()

    def _take_diagonal(self, plan: Plan, first: int, second: int) -> None:
        start1, start2, (use,) = plan.starts[first], plan.starts[second], plan.uses[first]
        dims = self.tags.index(Tag(first)), self.tags.index(Tag(second))
        kept = [tag for tag in self.tags if tag.base not in (first, second)]
        self.take(Diagonal(start2 - start1, *dims), [*kept, Tag(first)])
        self._slice(len(kept), start1 if holds(start1 <= start2) else start2, use)

    def _split(self, base: int, start: Int, uses: tuple[Use, ...]) -> None:
        dim = self.tags.index(Tag(base))
        while len(uses) > 1:
            start = self._peel(dim, start, uses)
            dim = self.tags.index(Tag(base))
            uses = uses[1:]
        if uses:
            self._slice(dim, start, uses[0])
        elif is_one(self.g.sizes[dim]):
            self.take(Squeeze(dim), self._retagged(dim))
        else:
            self.take(Select(dim, start), self._retagged(dim))

    def _slice(self, dim: int, start: Int, use: Use) -> None:
        tags = self._retagged(dim, Tag(self.tags[dim].base, use.dim))
        if same(start, 0) and same(use.length, self.g.sizes[dim]) and is_one(use.step):
            self.tags = tags
        else:
            self.take(Slice(dim, start, start + (use.length - 1) * use.step + 1, use.step), tags)

    def _peel(self, dim: int, start: Int, uses: tuple[Use, ...]) -> Int:
        """Split the first of ``uses`` off, and return where the others start in the dimension left for them.

        By a view where the dimension falls into whole blocks of its step, else by windows.
        """
        wide, tag = uses[0], self.tags[dim]
        size = self.g.sizes[dim]
        if not holds(wide.step > 0):
            raise NotViewable(f"a dimension of size {size} is not walked in steps of {wide.step}")
        reach = sum((use.length - 1) * use.step for use in uses[1:])
        block = 0 if holds(start < wide.step) else start // wide.step
        inner = start - block * wide.step
        if holds(inner + reach < wide.step) and same(size % wide.step, 0):
            self._unflatten(dim, size // wide.step, wide.step)
            self._slice(dim, block, Use(wide.dim, wide.length, 1))
            return inner
        whole = wide.length * wide.step
        begin = start if holds(start + whole <= size) else size - whole
        if holds(begin >= 0) and holds(start - begin + reach < wide.step):
            self._narrow(dim, begin, whole)
            self._unflatten(dim, wide.length, wide.step)
            self.tags = self._retagged(dim, Tag(tag.base, wide.dim))
            return start - begin
        if not (same(start, 0) and same((size - reach - 1) // wide.step + 1, wide.length)):
            self._narrow(dim, start, (wide.length - 1) * wide.step + reach + 1)
        windows = [*self._retagged(dim, Tag(tag.base, wide.dim)), tag]
        self.take(Unfold(dim, reach + 1, wide.step), windows)
        return 0

    def _narrow(self, dim: int, start: Int, length: Int) -> None:
        if not (same(start, 0) and same(length, self.g.sizes[dim])):
            self.take(Slice(dim, start, start + length), self.tags)

    def _unflatten(self, dim: int, outer: Int, inner: Int) -> None:
        tag = self.tags[dim]
        sizes = (*self.g.sizes[:dim], outer, inner, *self.g.sizes[dim + 1 :])
        self.take(View(sizes), self._retagged(dim, Tag(tag.base, -1), tag))

    def _join_diagonals(self) -> None:
        for view in sorted({tag.view for tag in self.tags if tag.view is not None}):
            while len(dims := [dim for dim, tag in enumerate(self.tags) if tag.view == view]) > 1:
                tag = self.tags[dims[0]]
                kept = [tag for dim, tag in enumerate(self.tags) if dim not in dims[:2]]
                self.take(Diagonal(0, dims[0], dims[1]), [*kept, tag])

    def arrange(self, view: Geometry) -> None:
        """Bring the dimensions into the order of ``view``, with new ones where they belong."""
        self._permute()
        made = {tag.view for tag in self.tags}
        for dim in range(view.rank):
            if dim not in made:
                self.take(Unsqueeze(dim), [*self.tags[:dim], Tag(-1, dim), *self.tags[dim:]])
        if not all(map(same, self.g.sizes, view.sizes)):
            self.take(Expand(view.sizes), self.tags)

    def arrange_exactly(self, view: Geometry) -> None:
        """As ``arrange``, and give each new dimension of size 1 the stride it has in ``view``.

        A dimension unsqueezed at the end has stride 1, and a slice of it with a step has any other.
        """
        made = {tag.view for tag in self.tags}
        for dim in range(view.rank):
            if dim not in made:
                self._append(dim, view.sizes[dim], view.strides[dim])
        self._permute()

    def _append(self, view: int, size: Int, stride: Int) -> None:
        last = self.g.rank
        tags = [*self.tags, Tag(-1, view)]
        self.take(Unsqueeze(last), tags)
        if is_one(size) and not same(stride, 0):
            if not is_one(stride):
                self.take(Slice(last, 0, 1, stride), tags)
            return
        self.take(Expand((*self.g.sizes[:-1], 2 if is_one(size) else size)), tags)
        if is_one(size):
            self.take(Slice(last, 0, 1), tags)

    def _permute(self) -> None:
        places = [-1 if tag.view is None else tag.view for tag in self.tags]
        order = sorted(range(len(places)), key=places.__getitem__)
        if order != list(range(len(places))):
            self.take(Permute(tuple(order)), [self.tags[dim] for dim in order])


def _plain_diagonals(plan: Plan) -> list[tuple[int, int]]:
    """The pairs of base dimensions that one view dimension walks alone, with one step."""
    walked: dict[int, list[int]] = {}
    for base, uses in enumerate(plan.uses):
        for use in uses:
            walked.setdefault(use.dim, []).append(base)
    return [
        (bases[0], bases[1])
        for bases in walked.values()
        if len(bases) == 2
        and len(plan.uses[bases[0]]) == len(plan.uses[bases[1]]) == 1
        and same(plan.uses[bases[0]][0].step, plan.uses[bases[1]][0].step)
    ]
