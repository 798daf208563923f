"""The refusal of memory that an example under vmap does not show: whose it is in a batch, nobody can tell.

torch.arange(6.0).view(3, 2)      a batch of two columns      elements 0 2 4 and 1 3 5
x.as_strided((2,), (1,))          of the first column         elements 0 1, and 1 is the other column's
"""

from __future__ import annotations

from purefx.errors import SourceLine, TransformRefused
from purefx.layout import Geometry


def foreign_memory(operator: str, shown: Geometry, asked: Geometry, where: SourceLine | None) -> TransformRefused:
    """That ``operator`` asks for ``asked`` of an example that shows ``shown``."""
    return TransformRefused(
        told(f"{operator} under vmap asks for memory that is not known to be the example's own", shown, asked),
        where=where,
        remedy="use select, slice, unfold, diagonal or view in the place of as_strided, or as_strided of the tensor"
        " that shows that memory; where examples lie interleaved, pass xs.movedim(in_dim, 0).contiguous()",
    )


def told(what: str, shown: Geometry, asked: Geometry) -> str:
    """``what``, with both geometries."""
    return f"{what}\n  the example: {_spelled(shown)}\n  asked for: {_spelled(asked)}"


def _spelled(g: Geometry) -> str:
    return f"sizes {g.sizes}, strides {g.strides}, offset {g.offset}"
