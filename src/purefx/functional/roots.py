"""Which tensors of the caller share elements, and what stands for their memory in the functional graph.

    a, b = x, x.view(-1)      a written      root: a (it includes b); b is a view op of a's new value
    a, b = x[:3], x[1:]       a written      root: a synthetic base, elements 0 to 4 of the storage
    a, b = x[::2], x[1::2]    a written      two roots: they share no element
    a, b = x[:3], x[1:]       read only      two roots: nobody can tell

The decision is taken after the recording, so it knows every region that the program reads or writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from purefx.capture.captured import Input
from purefx.capture.recording import Effect, Recording, Region, Storage
from purefx.functional.regions import disjoint, includes, once
from purefx.layout import Geometry, has_internal_overlap, holds


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """Memory of the caller that the graph takes as one input.

    ``base`` is the member that includes all others, or None: then a synthetic base with ``region`` is made up.
    """

    region: Region
    base: Input | None
    members: tuple[Input, ...]
    written: bool


_Held = tuple[Root, list[Region]]
"""A root, and the regions that lie in it."""


def infer_roots(recording: Recording, inputs: Sequence[Input]) -> tuple[Root, ...]:
    """The roots of all inputs, in the order of their first member."""
    by_storage: dict[Storage, list[Input]] = {}
    for known in inputs:
        by_storage.setdefault(known.before.storage, []).append(known)
    writes = written_regions(recording)
    roots: list[Root] = []
    for storage, members in by_storage.items():
        roots.extend(_storage_roots(members, list(recording.regions[storage]), writes.get(storage, [])))
    return tuple(roots)


def written_regions(recording: Recording) -> dict[Storage, list[Region]]:
    """The regions whose elements some call changes, by storage; a resized storage counts as a whole."""
    found: dict[Storage, dict[Region, None]] = {}
    for call in recording:
        if call.effect in (Effect.WRITE, Effect.STORAGE):
            for operand in call.written:
                found.setdefault(operand.region.storage, {})[operand.region] = None
        for storage, _, _ in call.resized:
            found.setdefault(storage, {}).update(dict.fromkeys(recording.regions[storage]))
    return {storage: list(regions) for storage, regions in found.items()}


def _storage_roots(members: list[Input], regions: list[Region], writes: list[Region]) -> Iterable[Root]:
    shown = list(dict.fromkeys(m.before for m in members))
    strays = [r for r in regions if _existed(r) and not any(includes(s, r) for s in shown)]
    groups = ([*group, *stray] for group, stray in _merged(shown, strays, writes))
    roots = [(_root(group, members, writes), group) for group in groups]
    while (met := _meeting(roots)) is not None:
        one, other = met
        group = [*one[1], *other[1]]
        both = _root(group, members, writes), group
        roots = [both if held is one else held for held in roots if held is not other]
    return [root for root, _ in roots]


def _root(everything: list[Region], members: list[Input], writes: list[Region]) -> Root:
    """The root in which all regions of ``everything`` lie, some of them those of ``members``."""
    inside = tuple(m for m in members if m.before in everything)
    written = any(not disjoint(w, r) for w in writes for r in everything)
    bases = [m for m in inside if all(includes(m.before, r) for r in everything)]
    overlapping = None if written or not bases else bases[0]
    base = next((m for m in bases if not has_internal_overlap(once(m.before.geometry))), overlapping)
    return Root(base.before if base is not None else _hull(everything), base, inside, written)


def _meeting(roots: list[_Held]) -> tuple[_Held, _Held] | None:
    """Two roots of which one is made up, and has elements in it that the other is to hold; one is written."""
    for held in roots:
        for other in roots if held[0].base is None else ():
            written = other is not held and (held[0].written or other[0].written)
            if written and any(not disjoint(held[0].region, region) for region in other[1]):
                return held, other
    return None


def _merged(
    shown: list[Region], strays: list[Region], writes: list[Region]
) -> Iterable[tuple[list[Region], list[Region]]]:
    """Groups of regions that must share a root: they overlap and one is written, or a stray region meets them."""
    groups: list[tuple[list[Region], list[Region]]] = []
    for region, is_stray in [*((s, True) for s in strays), *((s, False) for s in shown)]:
        joined: tuple[list[Region], list[Region]] = ([], [region]) if is_stray else ([region], [])
        kept = []
        for group in groups:
            others = [*group[0], *group[1]]
            touching = any(not disjoint(region, o) for o in others)
            written = any(not disjoint(w, r) for w in writes for r in [region, *others])
            if touching and (written or is_stray or group[1]):
                joined = (group[0] + joined[0], group[1] + joined[1])
            else:
                kept.append(group)
        groups = [*kept, joined]
    homeless = [region for group in groups if not group[0] for region in group[1]]
    housed = [group for group in groups if group[0]]
    return [(housed[0][0], housed[0][1] + homeless), *housed[1:]]


def _existed(region: Region) -> bool:
    """Whether the storage had all of ``region`` before the program ran."""
    if region.geometry.is_empty:
        return False
    return holds(region.geometry.span()[1] * region.dtype.itemsize <= region.storage.nbytes)


def _hull(regions: list[Region]) -> Region:
    """The shortest run of memory that holds all ``regions``, as elements of their smallest dtype."""
    smallest = min(regions, key=lambda r: r.dtype.itemsize)
    unit = smallest.dtype.itemsize
    spans = [
        (low * r.dtype.itemsize // unit, high * r.dtype.itemsize // unit)
        for r in regions
        for low, high in [r.geometry.span()]
    ]
    low, high = min(s for s, _ in spans), max(e for _, e in spans)
    ratio = max(r.dtype.itemsize for r in regions) // unit
    if ratio > 1:  # whole elements of the larger dtypes
        end = smallest.storage.nbytes // unit
        low, high = low // ratio * ratio, min(-(-high // ratio) * ratio, end)
    return Region(smallest.storage, Geometry((high - low,), (1,), low), smallest.dtype)
