"""The views of a program by strides, where a transform has wrapped what they are views of.

    x.t().as_strided((3,), (5,))      x: [4, 4]      under transforms: x.t().diagonal(0, 0, 1)[:3]

View operators know where a batch is.  What the tensors of the caller do not show has no place in a batch, and is
refused where one of them has one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

import torch

from purefx.capture.captured import Capture, Input
from purefx.capture.recording import Call, DataAccess, Region, Variable
from purefx.errors import TransformRefused
from purefx.functional.regions import chain_between, includes
from purefx.layout import Chain, Geometry, has_internal_overlap
from purefx.operators import aten
from purefx.runtime.scope import Scope
from purefx.runtime.write_back import chained
from purefx.transforms.foreign import foreign_memory
from purefx.transforms.levels import batch_levels


class Views(Scope):
    """A scope that spells ``as_strided`` as view operators, where they are known to lead to the same memory.

    ``values`` has the names of values with the histories of results that are written after they were detached; of
    those the writes to the results in ``seen`` have gradients.
    """

    values: Mapping[Variable, str] = MappingProxyType({})
    seen: Collection[Variable] = ()

    def call(self, call: Call) -> str:
        """The expression that runs a recorded call again."""
        detached = call.outputs[0].variable if _detaches(call) else None
        if detached is None or detached not in self.values:
            return self._view(call)
        return self._valued(self._view(call), detached)

    def rest(self) -> list[str]:
        """Statements that give their values to results that are views of something detached that nobody gets."""
        made = {call.outputs[0].variable for call in self.replay.statements if _detaches(call)}
        left = [variable for variable in self.values if variable not in made]
        return [f"{self.variables[x]} = {self._valued(f'{self.variables[x]}.detach()', x)}" for x in left]

    def _valued(self, view: str, variable: Variable) -> str:
        return f"{self.speller.name('valued', valued)}({view}, {self.values[variable]}, seen={variable in self.seen})"

    def _view(self, call: Call) -> str:
        if call.op is DataAccess.READ:
            return f"{self.spell(call.args[0])}.detach()"  # vmap knows no data
        if call.op is not aten.as_strided.default:
            return super().call(call)
        (operand,), (output,) = call.operands, call.outputs
        known = [(v.first, name) for v, name in self.variables.items() if v.first == v.last]
        holders = [(operand.region, self.spell(operand)), *known]
        for region, name in holders:
            chain = _chain(region, output.region)
            if chain is not None:
                return chained(self, name, chain) if chain else f"{name}.view_as({name})"
        for region, name in holders:
            if _reads_alike(region, output.region) and includes(region, output.region):
                return self._by_strides(name, region.geometry, output.region.geometry)
        return super().call(call)

    def _by_strides(self, name: str, shown: Geometry, wanted: Geometry) -> str:
        """``wanted`` of the tensor ``name``, which shows ``shown``."""
        sizes, strides, distance = map(
            self.speller.literal, (wanted.sizes, wanted.strides, wanted.offset - shown.offset)
        )
        return f"{name}.as_strided({sizes}, {strides}, {name}.storage_offset() + {distance})"


def valued(view: torch.Tensor, value: torch.Tensor, *, seen: bool) -> torch.Tensor:
    """``view``, of something detached, with the history of ``value``, whose elements it has."""
    with torch.set_grad_enabled(seen):
        return view.copy_(value)


def _detaches(call: Call) -> bool:
    return call.op in (aten.detach.default, DataAccess.READ)


def _chain(base: Region, region: Region) -> Chain | None:
    """View operators from ``base`` to ``region``, if both read the memory in the same way.

    Rule: none from a tensor that repeats elements.  Their gradient would be another one: that of ``as_strided`` is
    spread over all places of an element.
    """
    if not _reads_alike(base, region) or has_internal_overlap(base.geometry):
        return None
    return chain_between(base, region)


def _reads_alike(a: Region, b: Region) -> bool:
    """Whether the two read the same storage in the same way."""
    return a == b.at(a.geometry)


def laid_out(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """``value`` with the dimensions of an example in the order of ``strides`` in memory, without gaps.

    Rule: memory made inside is laid out as for a single example before it is viewed.

        y = x * 2                 under vmap y lies as the whole batch does, maybe with the batch in the middle;
        return y, y.view(-1)      then it cannot be viewed so
    """
    if value.stride() == strides:
        return value
    order = sorted(range(value.dim()), key=lambda dim: -strides[dim])
    return value.permute(order).contiguous().permute(sorted(range(value.dim()), key=order.__getitem__))


def infer_foreign(capture: Capture) -> Iterator[tuple[Input, TransformRefused]]:
    """The inputs in whose memory the program reaches what none of them shows, each with the refusal of that."""
    recording = capture.recording
    resized = {storage for call in recording for storage, _, _ in call.resized}
    for storage in dict.fromkeys(known.before.storage for known in capture.inputs):
        inputs = [known for known in capture.inputs if known.before.storage is storage]
        for region in recording.regions[storage] if storage not in resized else ():
            if not any(includes(known.before, region) for known in inputs):
                call, _ = recording.producers.get(region, (None, 0))
                name, where = ("a view", None) if call is None else (str(call.op), call.where)
                yield from ((x, foreign_memory(name, x.before.geometry, region.geometry, where)) for x in inputs)


def check_own(tensor: torch.Tensor, refusal: TransformRefused) -> None:
    """Raise ``refusal`` if ``tensor`` has a batch."""
    if batch_levels(tensor):
        raise TransformRefused(refusal.what, where=refusal.where, remedy=refusal.remedy)
