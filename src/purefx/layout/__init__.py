"""The algebra of strided layouts: overlap, cover, view steps, and the way from a geometry back to view ops.

Pure functions of sizes, strides and offsets. Nothing here imports torch; sizes may be ``torch.SymInt`` all
the same.
"""

from purefx.layout.chain import compose, simplify
from purefx.layout.geometry import Geometry
from purefx.layout.moves import Expand, Permute, Squeeze, Unsqueeze
from purefx.layout.overlap import covers, has_internal_overlap, overlaps
from purefx.layout.picks import Diagonal, Select, Slice, Unfold
from purefx.layout.recounts import AsStrided, View, ViewDtype
from purefx.layout.reify import reify, reify_dtype
from purefx.layout.scatter import Scatter, inverse
from purefx.layout.steps import Chain, Step
from purefx.layout.symbols import Int, holds, identity, is_symbolic, same
from purefx.layout.tiling import Join, Part, Piece, Rest, assemble, box_of
from purefx.layout.viewable import NotViewable

__all__ = [
    "AsStrided",
    "Chain",
    "Diagonal",
    "Expand",
    "Geometry",
    "Int",
    "Join",
    "NotViewable",
    "Part",
    "Permute",
    "Piece",
    "Rest",
    "Scatter",
    "Select",
    "Slice",
    "Squeeze",
    "Step",
    "Unfold",
    "Unsqueeze",
    "View",
    "ViewDtype",
    "assemble",
    "box_of",
    "compose",
    "covers",
    "has_internal_overlap",
    "holds",
    "identity",
    "inverse",
    "is_symbolic",
    "overlaps",
    "reify",
    "reify_dtype",
    "same",
    "simplify",
]
