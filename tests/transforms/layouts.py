"""Source text of arguments: distinct numbers between -1 and 1, of given sizes, in memory in some way."""

from __future__ import annotations

import math
from collections.abc import Sequence


def numbers(sizes: Sequence[int], n: int) -> str:
    """Row-major; argument ``n`` has other numbers than the others."""
    shaped = f".reshape({_listed(sizes)})" if len(sizes) != 1 else ""
    return f"torch.arange({math.prod(sizes)}, dtype=torch.float64).add({n}.3).mul(0.7).sin(){shaped}"


def permuted(sizes: Sequence[int], n: int, order: Sequence[int]) -> str:
    """Dimensions in memory in another order."""
    inverse = [order.index(dim) for dim in range(len(sizes))]
    return f"{numbers([sizes[dim] for dim in order], n)}.permute({_listed(inverse)})"


def stepped(sizes: Sequence[int], n: int, dim: int) -> str:
    """Every second element along ``dim``."""
    return f"{numbers(_with(sizes, dim, 2 * sizes[dim]), n)}[{':, ' * dim}::2]"


def part(sizes: Sequence[int], n: int, dim: int) -> str:
    """Behind other elements along ``dim``."""
    return f"{numbers(_with(sizes, dim, sizes[dim] + 1), n)}[{':, ' * dim}1:]"


def expanded(sizes: Sequence[int], n: int, dim: int) -> str:
    """One element for all along ``dim``."""
    return f"{numbers(_with(sizes, dim, 1), n)}.expand({_listed(sizes)})"


def channels_last(sizes: Sequence[int], n: int) -> str:
    """Of four dimensions, the second one in memory as the last."""
    return f"{numbers(sizes, n)}.contiguous(memory_format=torch.channels_last)"


def _with(sizes: Sequence[int], dim: int, size: int) -> list[int]:
    return [*sizes[:dim], size, *sizes[dim + 1 :]]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
