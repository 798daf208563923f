"""Regions of one storage, found by the run of bytes that they span: a write meets few of many."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from purefx.capture.recording import Region
from purefx.functional.regions import disjoint


class Spanned(Protocol):
    """Something that lies in a region."""

    @property
    def region(self) -> Region:
        """Where it lies."""


T = TypeVar("T", bound=Spanned)


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A region that was written."""

    region: Region


@dataclass(frozen=True, slots=True, eq=False)
class _Entry(Generic[T]):
    start: int
    stop: int
    item: T


@dataclass(slots=True, eq=False)
class Patches(Generic[T]):
    """Items in regions of one storage.

    Invariant: ``_static`` is sorted by first byte, and no entry in it is longer than ``_longest``; ``_symbolic``
    holds the items whose span is not a number.
    """

    _static: list[_Entry[T]] = field(default_factory=list)
    _symbolic: list[T] = field(default_factory=list)
    _longest: int = 0

    def __iter__(self) -> Iterator[T]:
        yield from (entry.item for entry in self._static)
        yield from self._symbolic

    def __bool__(self) -> bool:
        return bool(self._static or self._symbolic)

    def add(self, item: T) -> None:
        """Add ``item``."""
        if not item.region.geometry.is_static:
            self._symbolic.append(item)
            return
        start, stop = byte_span(item.region)
        self._longest = max(self._longest, stop - start)
        insort(self._static, _Entry(start, stop, item), key=_start)

    def remove(self, item: T) -> None:
        """Take ``item`` out."""
        if not item.region.geometry.is_static:
            self._symbolic.remove(item)
            return
        at = bisect_left(self._static, byte_span(item.region)[0], key=_start)
        while self._static[at].item is not item:
            at += 1
        del self._static[at]

    def clear(self) -> None:
        """Take all out."""
        self._static.clear()
        self._symbolic.clear()
        self._longest = 0

    def meeting(self, region: Region) -> list[T]:
        """The items that share an element with ``region``, or might."""
        if not region.geometry.is_static:
            return [item for item in self if not disjoint(item.region, region)]
        start, stop = byte_span(region)
        found = [item for item in self._symbolic if not disjoint(item.region, region)]
        for at in range(bisect_left(self._static, start - self._longest, key=_start), len(self._static)):
            entry = self._static[at]
            if entry.start >= stop:
                break
            if entry.stop > start and not disjoint(entry.item.region, region):
                found.append(entry.item)
        return found


def byte_span(region: Region) -> tuple[int, int]:
    """The run of bytes that ``region`` touches."""
    low, high = region.geometry.span()
    return low * region.dtype.itemsize, high * region.dtype.itemsize


def _start(entry: _Entry[T]) -> int:
    return entry.start
