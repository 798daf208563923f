"""What a storage holds while writes are being removed: a base value, and patches written over parts of it.

    buf = empty(3, 4)      base: empty
    buf[0] = a             base, patch row 0 = a          nothing is copied
    buf[2] = b             base, patches rows 0 and 2
    buf[2] * 2             reads b
    buf.sum()              cat([a, base[1], b])           one copy, when something crosses the regions

Rule: a write of one region never costs more than that region.  Without it, a buffer of N rows that is written
row by row is copied N times.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import fx

from purefx.capture.recording import Region
from purefx.functional.builder import Value
from purefx.functional.patches import Patches


@dataclass(eq=False, slots=True)
class Content:
    """The elements of ``region``: ``value``, except where a patch has newer ones.

    ``derived`` keeps the views of ``value`` that were needed so far.
    """

    region: Region
    value: Value
    patches: Patches[Content] = field(default_factory=Patches)
    derived: dict[Region, Value] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class Merge:
    """``after`` is the whole of ``content``, whose value was ``before``, with ``writes`` done in order.

    Each write is a region of the content (which lay in ``region``) with the node of its value.
    """

    content: Content
    before: fx.Node
    after: fx.Node
    region: Region
    writes: tuple[tuple[Region, fx.Node], ...]
