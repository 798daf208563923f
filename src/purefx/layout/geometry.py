"""The geometry of a strided tensor: where in its storage each index lives.

A value type without a tensor and without torch. Counting is in elements; what an element is, bytes or wider,
is the caller's.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from purefx.layout.symbols import Int, holds, identity, is_certain, is_one, product, same, same_all

_NUMBERS = frozenset({int, bool})


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """Places index ``i`` of a tensor at storage element ``offset + sum(i * strides)``.

    Equality is exact, not "same elements": a caller can see the stride of a size-1 dimension. It compares
    what symbols are, not what they stand for, and so adds no guard.
    ``is_static`` says that no entry is symbolic.
    """

    sizes: tuple[Int, ...]
    strides: tuple[Int, ...]
    offset: Int = 0
    is_static: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        static = _NUMBERS.issuperset(map(type, (*self.sizes, *self.strides, self.offset)))
        object.__setattr__(self, "is_static", static)

    @classmethod
    def contiguous(cls, sizes: tuple[Int, ...], offset: Int = 0) -> Geometry:
        """The row-major geometry of ``sizes``, with the strides that PyTorch gives a new tensor."""
        strides: list[Int] = []
        step = 1
        for size in reversed(sizes):
            strides.append(step)
            step = step if holds(size <= 1) else step * size
        return cls(tuple(sizes), tuple(reversed(strides)), offset)

    def _key(self) -> Hashable:
        if self.is_static:
            return (self.sizes, self.strides, self.offset)
        return (tuple(map(identity, self.sizes)), tuple(map(identity, self.strides)), identity(self.offset))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Geometry) and self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.sizes)

    @property
    def numel(self) -> Int:
        """The number of indices."""
        return product(self.sizes)

    @property
    def is_empty(self) -> bool:
        """The tensor has no element."""
        return any(holds(size == 0) for size in self.sizes)

    def span(self) -> tuple[Int, Int]:
        """The least run ``low <= element < high`` that holds every element, if there is one."""
        if self.is_empty:
            return (self.offset, self.offset)
        low = high = self.offset
        for size, stride in zip(self.sizes, self.strides, strict=True):
            reach = (size - 1) * stride
            if is_certain(reach < 0):
                low = low + reach
            else:
                high = high + reach
        return (low, high + 1)

    def shifted(self, by: Int) -> Geometry:
        """The same tensor, ``by`` elements later in the storage."""
        return self if type(by) is int and by == 0 else Geometry(self.sizes, self.strides, self.offset + by)

    def scaled(self, ratio: int) -> Geometry:
        """The same bytes in elements ``ratio`` times smaller, which a new last dimension counts."""
        strides = tuple(stride * ratio for stride in self.strides)
        return Geometry((*self.sizes, ratio), (*strides, 1), self.offset * ratio)

    def essential(self) -> tuple[tuple[Int, Int], ...]:
        """The (size, stride) of each dimension whose size is not 1: what decides where elements live."""
        return tuple((size, stride) for size, stride in zip(self.sizes, self.strides, strict=True) if not is_one(size))

    @property
    def is_contiguous(self) -> bool:
        """Row-major, the strides of size-1 dimensions aside. An empty tensor is."""
        return self.is_empty or self._runs_on(self.essential()[::-1])

    @property
    def is_dense(self) -> bool:
        """A permutation of row-major, size-1 dimensions aside: each element of the span is one index's."""
        return self.is_empty or self._runs_on(by_stride(self.essential())[::-1])

    @staticmethod
    def _runs_on(dims: tuple[tuple[Int, Int], ...]) -> bool:
        step: Int = 1
        for size, stride in dims:
            if not same(stride, step):
                return False
            step = step * size
        return True

    def same_layout(self, other: Geometry) -> bool:
        """Equal sizes, and equal strides where more than one index makes them matter; offsets aside.

        Empty tensors of equal sizes have the same layout.
        """
        if not same_all(self.sizes, other.sizes):
            return False
        if self.strides is other.strides or self.is_empty:
            return True
        triples = zip(self.sizes, self.strides, other.strides, strict=True)
        return all(same(mine, theirs) or is_one(size) for size, mine, theirs in triples)


def by_stride(dims: tuple[tuple[Int, Int], ...]) -> tuple[tuple[Int, Int], ...]:
    """The (size, stride) pairs, widest stride first; pairs of equal or undecided strides keep their order."""
    if all(isinstance(stride, int) for _, stride in dims):
        return tuple(sorted(dims, key=lambda dim: -dim[1]))
    ordered: list[tuple[Int, Int]] = []
    for dim in dims:
        place = len(ordered)
        while place and holds(ordered[place - 1][1] < dim[1]):
            place -= 1
        ordered.insert(place, dim)
    return tuple(ordered)
