"""The way back through a view step: from the view's new value to a new value of what it was taken of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from purefx.layout.geometry import Geometry
from purefx.layout.moves import Expand, Permute, Squeeze, Unsqueeze
from purefx.layout.picks import Diagonal, Select, Slice, Unfold
from purefx.layout.recounts import AsStrided, View, ViewDtype
from purefx.layout.steps import Step
from purefx.layout.symbols import same
from purefx.layout.viewable import axis


@dataclass(frozen=True, slots=True)
class Scatter:
    """``torch.ops.aten.<op>(base_value, view_value, *arguments)``: the base with the view put back."""

    op: str
    arguments: tuple[object, ...]


def inverse(step: Step, before: Geometry, dtype: object = None) -> Step | Scatter:
    """How a new value of the view ``step`` of a tensor with geometry ``before`` becomes one of that tensor.

    A step that only rearranges gives the step back, to be run on the value (where a ``View`` comes back on a
    value that is not laid out for it, run it as a reshape). The others give a ``Scatter``. Either way, for a
    view without internal overlap: scatter then extract gives the value; scatter of what was extracted changes
    nothing.

    ``dtype`` is that of ``before``; only a ``ViewDtype`` needs it.

    For steps that repeat elements, and for ``AsStrided``, the scatter is an ``as_strided_scatter``: its
    geometry counts from the first element of ``before``, so it is right for a base value laid out as
    ``before``.
    """
    after = step.apply(before)
    match step:
        case Permute(dims):
            places = [axis(dim, before.rank) for dim in dims]
            return Permute(tuple(sorted(range(before.rank), key=places.__getitem__)))
        case Unsqueeze(dim):
            return Squeeze(axis(dim, after.rank))
        case Squeeze(dim):
            return step if after.rank == before.rank else Unsqueeze(axis(dim, before.rank))
        case View():
            return View(before.sizes)
        case Expand() if same(after.numel, before.numel):
            return View(before.sizes)
        case Slice() if after == before:
            return step
        case ViewDtype(_, from_itemsize, to_itemsize):
            if dtype is None:
                raise TypeError("the way back from a view of another dtype needs the base's dtype")
            return ViewDtype(dtype, to_itemsize, from_itemsize)
        case _:
            return _scatter(step, before, after)


def _scatter(
    step: Select | Slice | Diagonal | Expand | Unfold | AsStrided, before: Geometry, after: Geometry
) -> Scatter:
    match step:
        case Select():
            return Scatter("select_scatter.default", step.arguments)
        case Slice():
            return Scatter("slice_scatter.default", step.arguments)
        case Diagonal():
            return Scatter("diagonal_scatter.default", step.arguments)
        case Expand() | Unfold() | AsStrided():
            offset = after.offset - before.offset
            return Scatter("as_strided_scatter.default", (after.sizes, after.strides, offset))
        case _:
            assert_never(step)
