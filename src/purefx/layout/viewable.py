"""What the view steps share: the refusal of a view, and decisions that refuse rather than guess."""

from __future__ import annotations

from purefx.layout.symbols import Int, holds, same


class NotViewable(ValueError):
    """Eager refuses this view of this geometry, or whether it does depends on an unknown size."""


def axis(dim: int, rank: int) -> int:
    """``dim`` counted from the front."""
    if not -rank <= dim < rank:
        raise NotViewable(f"dimension {dim} of a tensor with {rank} dimensions")
    return dim % rank if rank else 0


def least(first: Int, second: Int) -> Int:
    """The smaller of the two."""
    if holds(first <= second):
        return first
    if holds(second <= first):
        return second
    raise NotViewable(f"which of {first} and {second} is smaller is not known")


def equal(first: Int, second: Int) -> bool:
    """The two are equal; guarded on where they may not be."""
    return same(first, second) or holds(first == second)


def replaced(values: tuple[Int, ...], dim: int, *new: Int) -> tuple[Int, ...]:
    """``values`` with ``new`` where entry ``dim`` was."""
    return (*values[:dim], *new, *values[dim + 1 :])
