"""From a geometry back to view ops: the chain of steps that makes this view of that base.

The inverse of ``compose``, as far as there is one. The chain consists of what a user could have written, so
that autograd records real views, and never of ``as_strided``.
"""

from __future__ import annotations

from purefx.layout.carve import Carver, infer_plan
from purefx.layout.chain import simplify
from purefx.layout.geometry import Geometry, by_stride
from purefx.layout.moves import Permute, Squeeze, Unsqueeze
from purefx.layout.picks import Select, Slice
from purefx.layout.recounts import View, ViewDtype
from purefx.layout.steps import Chain, Step
from purefx.layout.symbols import Int, is_one, same
from purefx.layout.viewable import NotViewable


def reify(base: Geometry, view: Geometry) -> Chain | None:
    """View steps, none of them ``AsStrided``, that lead from ``base`` to ``view``; None if none were found.

    ``compose(base, reify(base, view)) == view``, strides of size-1 dimensions included. Of an empty ``view``
    only the sizes are met: it has no element that could be somewhere else.
    """
    if base == view:
        return ()
    try:
        if view.is_empty:
            return _empty(base, view)
        return None if base.is_empty else _nonempty(base, view)
    except NotViewable:
        return None


def _nonempty(base: Geometry, view: Geometry) -> Chain | None:
    chain = _carved(base, view, claims=True)
    if chain is not None and len(chain) == 1:
        return chain
    return (
        _reshaped(base, view)
        or chain
        or _unsqueezed(base, view)
        or _carved(base, view, claims=False)
        or _flattened(base, view)
    )


def _carved(base: Geometry, view: Geometry, *, claims: bool) -> Chain | None:
    """Steps that work on the dimensions of ``base`` as they are."""
    plan = infer_plan(base, view, claims=claims)
    if plan is None:
        return None
    carver = Carver(base)
    carver.carve(plan)
    if claims:
        carver.arrange(view)
    else:
        carver.arrange_exactly(view)
    return tuple(carver.steps) if carver.g == view else None


def _reshaped(base: Geometry, view: Geometry) -> Chain | None:
    """One ``View``, if that is all there is to it."""
    if not same(base.offset, view.offset) or not same(base.numel, view.numel):
        return None
    step = View(view.sizes)
    try:
        return (step,) if step.apply(base) == view else None
    except NotViewable:
        return None


def _unsqueezed(base: Geometry, view: Geometry) -> Chain | None:
    """One ``Unsqueeze`` among dimensions of size 1 that strides alone tell apart."""
    if view.rank != base.rank + 1 or not same(base.offset, view.offset):
        return None
    for dim in range(view.rank):
        if is_one(view.sizes[dim]) and Unsqueeze(dim).apply(base) == view:
            return (Unsqueeze(dim),)
    return None


def _flattened(base: Geometry, view: Geometry) -> Chain | None:
    """Steps that first bring ``base`` to the fewest dimensions, widest stride first, then carve."""
    prelude = _flattening(base)
    flat = base
    for step in prelude:
        flat = step.apply(flat)
    for claims in (True, False):
        chain = _carved(flat, view, claims=claims)
        if chain is not None:
            return simplify((*prelude, *chain), base)
    return None


def _flattening(base: Geometry) -> list[Step]:
    steps: list[Step] = []
    for dim in range(base.rank - 1, -1, -1):
        if is_one(base.sizes[dim]):
            steps.append(Squeeze(dim))
        elif same(base.strides[dim], 0):
            steps.append(Select(dim, 0))
    dims = [dim for dim in base.essential() if not same(dim[1], 0)]
    ordered = by_stride(tuple((place, stride) for place, (_, stride) in enumerate(dims)))
    order = tuple(place for place, _ in ordered)
    if order != tuple(range(len(order))):
        steps.append(Permute(order))
    merged: list[tuple[Int, Int]] = []
    for size, stride in (dims[place] for place in order):
        if merged and same(merged[-1][1], size * stride):
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    if len(merged) != len(dims):
        steps.append(View(tuple(size for size, _ in merged)))
    return steps


def _empty(base: Geometry, view: Geometry) -> Chain:
    """Nothing of ``base``, counted by the sizes of ``view``; the first dimension tells that it is nothing."""
    steps: list[Step] = []
    if not base.is_empty:
        steps += [Slice(0, 0, 0)] if base.rank else [Unsqueeze(0), Slice(0, 0, 0)]
    steps.append(View(view.sizes))
    return simplify(tuple(steps), base)


def reify_dtype(base: Geometry, base_itemsize: int, view: Geometry, view_itemsize: int, dtype: object) -> Chain | None:
    """As ``reify``, for a view whose elements are of ``dtype``, and of another size than the base's.

    Each geometry counts in its own elements. The chain has exactly one ``ViewDtype``.
    """
    cast = ViewDtype(dtype, base_itemsize, view_itemsize)
    if base_itemsize == view_itemsize:
        return _followed(reify(base, view), (cast,))
    if base_itemsize > view_itemsize:
        return _after_cast(base, view, (cast,)) or _after_cast(base, view, (Unsqueeze(base.rank), cast))
    ratio = view_itemsize // base_itemsize
    wide = view.scaled(ratio)
    if view.rank and same(view.strides[-1], 1):
        narrow = Geometry((*view.sizes[:-1], view.sizes[-1] * ratio), (*wide.strides[:-2], 1), wide.offset)
        chain = _followed(reify(base, narrow), (cast,))
        if chain is not None and _leads(base, chain, view):
            return chain
    chain = _followed(reify(base, wide), (cast, Squeeze(view.rank)))
    return chain if chain is not None and _leads(base, chain, view) else None


def _followed(chain: Chain | None, rest: Chain) -> Chain | None:
    return None if chain is None else (*chain, *rest)


def _after_cast(base: Geometry, view: Geometry, start: Chain) -> Chain | None:
    flat = base
    try:
        for step in start:
            flat = step.apply(flat)
    except NotViewable:
        return None
    rest = reify(flat, view)
    return None if rest is None else (*start, *rest)


def _leads(base: Geometry, chain: Chain, view: Geometry) -> bool:
    g = base
    try:
        for step in chain:
            g = step.apply(g)
    except NotViewable:
        return False
    return g == view or (view.is_empty and g.same_layout(view))
