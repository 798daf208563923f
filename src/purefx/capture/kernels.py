"""Running fake kernels, one time for all arguments that look alike.

    mm(float32[32, 64], float32[64, 64])      in the first layer: the fake kernel runs
    mm(float32[32, 64], float32[64, 64])      in the second: a result that looks like that of the first

A model repeats its layers, and what a fake kernel returns depends on nothing but what its arguments look like, on which
of them share memory, on the modes and on the default dtype.  Not remembered is what has symbols or known numbers in it,
what a kernel raises, and operators that are not PyTorch's own, that change geometries, or whose results depend on data.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from purefx._torch import (
    FakeTensor,
    OpOverload,
    running_fake_kernels,
    set_version,
    storage_key,
    without_dispatch,
)
from purefx.capture.given import Passed
from purefx.capture.own_kernels import OWN
from purefx.capture.recording import Operand, Region, Storage, Tree, Variable, geometry_of, has_geometry
from purefx.layout import Geometry
from purefx.operators import aten, facts

_PLAIN = frozenset(
    {int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)


@dataclass(frozen=True, slots=True)
class _Given:
    """The tensor that was given at ``position`` among the tensors."""

    position: int


@dataclass(frozen=True, slots=True)
class _New:
    """A new tensor: what it looks like, and the given tensor whose memory it shows, if any."""

    geometry: Geometry
    dtype: torch.dtype
    device: torch.device
    shows: _Given | None


_Made = _Given | _New


class _Look:
    """What the arguments of a call look like: ``key`` is equal for arguments that look alike.

    ``tensors`` has each tensor among them one time, and ``regions`` what these showed before the call.
    """

    def __init__(self, op: OpOverload) -> None:
        modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype())
        self.key: list[Any] = [op, *modes]
        self.tensors: list[FakeTensor] = []
        self.regions: list[Region] = []
        self._positions: dict[Variable, int] = {}
        self._memories: dict[Storage, int] = {}

    def note(self, given: Any, recorded: Any) -> bool:
        """Add an argument; false where it cannot be said what it looks like."""
        kind = type(given)
        if kind in _PLAIN:
            self.key += (kind, given)
            return True
        if kind is FakeTensor:
            return self._note_tensor(given, recorded)
        if kind is list or kind is tuple:
            self.key += (kind, len(given))
            return all(map(self.note, given, recorded))
        if kind is dict:
            self.key += (kind, *given)
            return all(map(self.note, given.values(), recorded.values()))
        return False

    def _note_tensor(self, tensor: FakeTensor, operand: Operand) -> bool:
        position = self._positions.setdefault(operand.variable, len(self.tensors))
        if position < len(self.tensors):
            self.key.append(_Given(position))
            return True
        region, geometry, size = operand.region, operand.region.geometry, tensor.untyped_storage().nbytes()
        memory = self._memories.setdefault(region.storage, len(self._memories))
        self.tensors.append(tensor)
        self.regions.append(region)
        self.key += (geometry.sizes, geometry.strides, geometry.offset, region.dtype, region.conj, region.neg)
        self.key += (memory, size, tensor.fake_device, tensor.fake_mode, tensor.requires_grad, tensor.is_inference())
        return geometry.is_static and type(size) is int and tensor.constant is None

    def is_unchanged(self) -> bool:
        """Whether the tensors still have the geometries that they had before the call."""
        return all(has_geometry(x, region.geometry) for x, region in zip(self.tensors, self.regions, strict=True))


SEES_STORAGE_SIZES = frozenset({aten._has_same_storage_numel.default, aten._new_zeros_with_same_feature_meta.default})
"""Operators of forward-mode AD whose answers depend on more than what fake tensors remember their calls by."""


class FakeKernels:
    """Runs operators on fake tensors.

    ``_results`` has what was returned, by what was given; None where it has to be computed each time.
    """

    def __init__(self) -> None:
        self._results: dict[Hashable, Tree | None] = {}

    def run(self, op: OpOverload, given: Passed, recorded: Passed) -> Any:
        """What ``op`` returns for the fakes ``given``, of which ``recorded`` has the operands."""
        look = _Look(op)
        if not (_depends_on_looks(op) and look.note(given, recorded) and look.tensors):
            with running_fake_kernels(given[0]) if op in SEES_STORAGE_SIZES else nullcontext():
                return OWN.get(op, op)(*given[0], **given[1])
        key = tuple(look.key)
        known = self._results.get(key)
        if known is not None:
            return _made(known, look.tensors)
        result = op(*given[0], **given[1])
        if key not in self._results:
            self._results[key] = _description(result, look.tensors) if look.is_unchanged() else None
        return result


@cache
def _depends_on_looks(op: OpOverload) -> bool:
    """Whether the results of ``op`` look the same wherever its arguments do, and it changes no geometry.

    What ``detach`` returns counts its writes with what it was given, also where no autograd is above to see to that.
    """
    known = facts(op)
    dependent = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(op.tags)
    other = dependent or known.out or known.writes_geometry or op is aten.detach.default or op in OWN
    return op.namespace == "aten" and not other


def _description(result: Any, tensors: list[FakeTensor]) -> Tree | None:
    """How to make the like of ``result``, given ``tensors``; None where that cannot be said."""
    if type(result) is not list and type(result) is not tuple:
        return _description_of_one(result, tensors)
    made = [_description_of_one(x, tensors) for x in result]
    new = [storage_key(x) for x, how in zip(result, made, strict=True) if isinstance(how, _New) and how.shows is None]
    return None if None in made or len(set(new)) < len(new) else type(result)(made)


def _description_of_one(x: Any, tensors: list[FakeTensor]) -> _Made | None:
    given = next((_Given(i) for i, tensor in enumerate(tensors) if tensor is x), None)
    if given is not None:
        return given
    if type(x) is not FakeTensor or x.layout is not torch.strided or x.constant is not None:
        return None
    geometry, key = geometry_of(x), storage_key(x)
    if x.requires_grad or x.is_conj() or x.is_neg() or not geometry.is_static:
        return None
    shows = next((_Given(i) for i, tensor in enumerate(tensors) if storage_key(tensor) == key), None)
    low, high = geometry.span()
    if shows is None and (low != 0 or high * x.itemsize != x.untyped_storage().nbytes()):
        return None  # memory of its own with a gap before or behind
    return _New(geometry, x.dtype, x.device, shows)


def _made(known: Tree, tensors: list[FakeTensor]) -> Any:
    """The result that ``known`` describes, given ``tensors``."""
    if isinstance(known, _Given):
        return tensors[known.position]
    if not isinstance(known, _New):
        return type(known)(_made(x, tensors) for x in known)
    geometry, mode = known.geometry, tensors[0].fake_mode
    with without_dispatch():
        if known.shows is None:
            meta = torch.empty_strided(geometry.sizes, geometry.strides, dtype=known.dtype, device="meta")
            return FakeTensor(mode, meta, known.device)
        memory = tensors[known.shows.position].untyped_storage()
        meta = torch.empty(0, dtype=known.dtype, device="meta")
        meta.set_(memory, geometry.offset, geometry.sizes, geometry.strides)
    made = FakeTensor(mode, meta, known.device)
    if not made.is_inference():
        set_version(made, 0)
    return made
