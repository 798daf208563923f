"""What the tensors of a run are: which variable each is, and which region of which storage it shows.

Keeps storages alive, so that their identity is stable, but no tensor: autograd treats a tensor that only a
recording holds as its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import torch

from purefx._torch import memory_key, storage_key
from purefx.capture.frames import current_line
from purefx.capture.recording import (
    Operand,
    Recording,
    Region,
    Resize,
    Storage,
    Variable,
    geometry_of,
    has_geometry,
)
from purefx.errors import UnsupportedTensor
from purefx.layout import Int, same

QUANTISED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})
_VARIABLE = "_purefx_variable"


def variable_of(tensor: torch.Tensor) -> Variable | None:
    """The variable that ``tensor`` is, if it was met in a run."""
    return tensor.__dict__.get(_VARIABLE)


class Tensors:
    """The storages, variables and regions of the tensors of a run.

    Invariant: ``recording`` lists every storage and variable that was met, and each region that a tensor showed.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._storages: dict[int, Storage] = {}
        self._memories: dict[Storage, torch.UntypedStorage] = {}
        self._nbytes: dict[Storage, Int] = {}
        self._seen: list[weakref.ref[torch.Tensor]] = []
        self.meets: Callable[[torch.Tensor, Operand], None] | None = None
        """What is told of each tensor that is met."""

    def alive(self) -> Iterator[torch.Tensor]:
        """The tensors that were met and that somebody still holds."""
        return (tensor for tensor in (seen() for seen in self._seen) if tensor is not None)

    def region(self, tensor: torch.Tensor) -> Region:
        """What ``tensor`` shows at this moment."""
        if tensor.layout is not torch.strided or tensor.dtype in QUANTISED:
            kind = tensor.dtype if tensor.dtype in QUANTISED else tensor.layout
            raise UnsupportedTensor(
                f"a tensor of {kind} has no plain strided memory",
                where=current_line(),
                remedy="call to_dense() or dequantize() on it, or keep it outside the function",
            )
        return Region(self._storage(tensor), geometry_of(tensor), tensor.dtype, tensor.is_conj(), tensor.is_neg())

    def variable(self, tensor: torch.Tensor) -> Variable:
        """The variable that ``tensor`` is."""
        return self.operand(tensor).variable

    def operand(self, tensor: torch.Tensor) -> Operand:
        """The variable that ``tensor`` is, with what it shows now: one object as long as that is equal."""
        known = variable_of(tensor)
        if known is None:
            region = self.region(tensor)
            operand = Operand(self._new_variable(tensor, region), region)
        else:
            operand = Operand(known, known.last if self._shows(tensor, known.last) else self.region(tensor))
        if self.meets is not None:
            self.meets(tensor, operand)
        return operand

    def _shows(self, tensor: torch.Tensor, region: Region) -> bool:
        return (
            self._storages.get(storage_key(tensor)) is region.storage
            and has_geometry(tensor, region.geometry)
            and tensor.dtype is region.dtype
            and tensor.is_conj() is region.conj
            and tensor.is_neg() is region.neg
        )

    def show(self, variable: Variable, region: Region) -> Operand:
        """Note that ``variable`` shows ``region`` now."""
        variable.last = region
        self._recording.regions[region.storage].setdefault(region)
        return Operand(variable, region)

    def storage_of(self, memory: torch.UntypedStorage) -> Storage | None:
        """The storage that ``memory`` is, if a tensor has shown it."""
        return self._storages.get(memory_key(memory))

    def resized(self, operands: tuple[Operand, ...]) -> tuple[Resize, ...]:
        """The storages of ``operands`` whose size has changed since it was last asked for."""
        changed: list[Resize] = []
        for storage in dict.fromkeys(o.region.storage for o in operands):
            before, after = self._nbytes[storage], self._memories[storage].nbytes()
            if not same(before, after):
                changed.append((storage, before, after))
                self._nbytes[storage] = after
        return tuple(changed)

    def has_other_size(self, storage: Storage) -> bool:
        """Whether ``storage`` has certainly another size than when that was last asked for."""
        before, after = self._nbytes[storage], self._memories[storage].nbytes()
        return type(before) is int and type(after) is int and before != after

    def _storage(self, tensor: torch.Tensor) -> Storage:
        key = storage_key(tensor)
        known = self._storages.get(key)
        if known is not None:
            return known
        memory = tensor.untyped_storage()
        storage = self._storages[key] = Storage(len(self._storages), memory.nbytes(), tensor.device)
        self._memories[storage] = memory
        self._nbytes[storage] = storage.nbytes
        self._recording.storages.append(storage)
        self._recording.regions[storage] = {}
        return storage

    def _new_variable(self, tensor: torch.Tensor, region: Region) -> Variable:
        variable = Variable(len(self._recording.variables), region, region, tensor.is_inference())
        tensor.__dict__[_VARIABLE] = variable
        self._seen.append(weakref.ref(tensor))
        self._recording.variables.append(variable)
        self._recording.regions[region.storage].setdefault(region)
        return variable
