"""Who shares storage with whom, in which elements, and a picture of it.

    elements 0 to 11, float32
      cache       0 to 11  ████████████████████████████████████████
      written     3 to 8   ··········████████████████████··········
      result[0]   3 to 5   ··········██████████····················

A bar spans the elements that any of the tensors shows.  A cell says that all (█), some (▒) or none (·) of the
elements that it stands for are the tensor's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product

from purefx.capture.captured import TensorResult
from purefx.capture.recording import Region, Storage
from purefx.functional.regions import disjoint, includes
from purefx.functional.signature import WrittenOutput
from purefx.layout import Geometry, covers, overlaps
from purefx.layout.symbols import hint
from purefx.pipeline import Stages
from purefx.report.names import argument_names, named_results
from purefx.report.spelling import dtype_name

WIDTH = 78
"""The most columns of a line of a picture."""
_SMALL = 4096
"""Up to this many elements of each tensor, common elements are counted one by one."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A tensor in the caller's hands after the call, or a written region, and what it shows."""

    name: str
    region: Region


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two tensors with an element in common.

    ``elements`` are the runs of storage elements that both show, the last one included, None where they are
    too many to list; ``relation`` says the same in words.
    """

    first: str
    second: str
    relation: str
    elements: tuple[tuple[int, int], ...] | None

    def __str__(self) -> str:
        runs = self.elements or ()
        places = ", ".join(_run(low, high) for low, high in runs[:4]) + (", ..." if len(runs) > 4 else "")
        return f"{self.first} {self.relation} {self.second}" + (f": {places}" if runs else "")


@dataclass(frozen=True, slots=True)
class Sharing:
    """The tensors of one storage, the regions of it that are written back, and the pairs that overlap."""

    storage: Storage
    tensors: tuple[Shown, ...]
    written: tuple[Region, ...]
    overlaps: tuple[Overlap, ...]

    @property
    def is_partly_written(self) -> bool:
        """Some tensor shows more of the storage than what is written back in one go."""
        return any(not includes(written, shown.region) for written in self.written for shown in self.tensors)

    @property
    def unit(self) -> Region:
        """A region of the narrowest dtype: storage elements are counted in it."""
        return min((shown.region for shown in self.tensors), key=lambda region: region.dtype.itemsize)


def infer_sharing(stages: Stages) -> tuple[Sharing, ...]:
    """For each storage that some tensor of the caller shows after the call: who shows what of it.

    A result that is an argument or another result is told once, under the first name.
    """
    shown: dict[Storage, dict[str, Region]] = {}
    for known, name in argument_names(stages.capture).items():
        shown.setdefault(known.after.storage, {})[name] = known.after
    told = {known.variable for known in stages.capture.inputs}
    for name, result in named_results(stages.capture):
        if isinstance(result, TensorResult) and result.variable not in told:
            told.add(result.variable)
            shown.setdefault(result.region.storage, {})[name] = result.region
    written: dict[Storage, list[Region]] = {}
    for output in stages.functional.outputs:
        if isinstance(output, WrittenOutput):
            written.setdefault(output.region.storage, []).append(output.region)
    return tuple(_sharing(storage, names, written.get(storage, [])) for storage, names in shown.items())


def _sharing(storage: Storage, names: dict[str, Region], written: Sequence[Region]) -> Sharing:
    tensors = tuple(Shown(name, region) for name, region in names.items())
    unit = min(region.dtype.itemsize for region in names.values())
    pairs = [(a, b) for a, b in combinations(tensors, 2) if not disjoint(a.region, b.region)]
    return Sharing(storage, tensors, tuple(written), tuple(_overlap(a, b, unit) for a, b in pairs))


def _overlap(a: Shown, b: Shown, unit: int) -> Overlap:
    contains, contained = includes(a.region, b.region), includes(b.region, a.region)
    if contains and contained:
        relation = "shows the same elements as"
    elif contains or contained:
        relation = "includes" if contains else "lies in"
    else:
        relation = "overlaps"
    first, second = _elements(a.region, unit), _elements(b.region, unit)
    common = None if first is None or second is None else _runs(sorted(first & second))
    return Overlap(a.name, b.name, relation, common)


def _elements(region: Region, unit: int) -> set[int] | None:
    """The storage elements of ``region``, counted in ``unit`` bytes; None for too many, or symbols."""
    g = in_units(region, unit)
    if g is None or g.numel > _SMALL:
        return None
    places = product(*(range(size) for size in g.sizes))
    return {g.offset + sum(i * s for i, s in zip(place, g.strides, strict=True)) for place in places}


def _runs(elements: Sequence[int]) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for element in elements:
        if runs and runs[-1][1] + 1 == element:
            runs[-1] = (runs[-1][0], element)
        else:
            runs.append((element, element))
    return tuple(runs)


def in_units(region: Region, unit: int) -> Geometry | None:
    """The geometry of ``region`` in elements of ``unit`` bytes, symbols at the captured call's sizes."""
    g = region.geometry
    known = [x for x in map(hint, (*g.sizes, *g.strides, g.offset)) if x is not None]
    if len(known) < 2 * g.rank + 1:
        return None
    plain = Geometry(tuple(known[: g.rank]), tuple(known[g.rank : -1]), known[-1])
    ratio = region.dtype.itemsize // unit
    return plain if ratio == 1 else plain.scaled(ratio)


def draw(sharing: Sharing) -> list[str]:
    """The picture of one storage; nothing where no tensor of it has an element."""
    unit = sharing.unit.dtype.itemsize
    rows = [*((s.name, s.region) for s in sharing.tensors), *(("written", r) for r in sharing.written)]
    known = [(name, g) for name, r in rows if (g := in_units(r, unit)) is not None and not g.is_empty]
    if not known:
        return []
    low = min(g.span()[0] for _, g in known)
    high = max(g.span()[1] for _, g in known)
    heads = [(_shortened(name), _run(g.span()[0], g.span()[1] - 1)) for name, g in known]
    widths = [max(map(len, column)) for column in zip(*heads, strict=True)]
    cells = _cells(low, high, WIDTH - sum(widths) - 6)
    title = f"{_elements_word(low, high - 1)}, {dtype_name(sharing.unit.dtype)}"
    lines = [
        f"  {name:{widths[0]}}  {run:{widths[1]}}  {_bar(g, cells)}"
        for (name, run), (_, g) in zip(heads, known, strict=True)
    ]
    return [title, *lines]


def _cells(low: int, high: int, width: int) -> list[Geometry]:
    """The runs of elements that the cells of a bar stand for, or of which several stand for one element."""
    extent = high - low
    if extent <= width:
        wide = min(width // extent, 8)
        return [Geometry((1,), (1,), low + i) for i in range(extent) for _ in range(wide)]
    edges = [low + extent * i // width for i in range(width + 1)]
    return [Geometry((b - a,), (1,), a) for a, b in pairwise(edges)]


def _bar(g: Geometry, cells: Sequence[Geometry]) -> str:
    return "".join("█" if covers(g, c) else "▒" if overlaps(g, c) else "·" for c in cells)


def _run(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _elements_word(low: int, high: int) -> str:
    return f"element {low}" if low == high else f"elements {low} to {high}"


def _shortened(name: str) -> str:
    return name if len(name) <= 28 else f"…{name[-27:]}"


__all__ = ["Overlap", "Sharing", "Shown", "draw", "in_units", "infer_sharing"]
