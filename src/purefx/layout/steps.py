"""View ops as values: what each one does to a geometry, and how it is spelled in ATen.

``torch.ops.aten.<step.op>(x, *step.arguments)`` makes the view of ``x`` whose geometry is
``step.apply(geometry of x)``. Where eager would refuse the view, ``apply`` raises ``NotViewable``.
"""

from __future__ import annotations

from typing import TypeAlias

from purefx.layout.moves import Expand, Permute, Squeeze, Unsqueeze
from purefx.layout.picks import Diagonal, Select, Slice, Unfold
from purefx.layout.recounts import AsStrided, View, ViewDtype

Step: TypeAlias = (
    Select | Slice | Permute | View | Diagonal | Expand | Unsqueeze | Squeeze | Unfold | ViewDtype | AsStrided
)
Chain: TypeAlias = tuple[Step, ...]
