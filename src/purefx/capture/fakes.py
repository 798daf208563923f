"""Re-enacting the caller's tensors as fakes: the same sharing of memory, geometry, dtype and autograd state.

Rule: two tensors that share a block of memory get fakes that share one, at the same offsets.  What two
separately made fakes would hide, e.g. that ``a.add_(1)`` is seen through ``b = a.view(-1)``, is then simply true.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from purefx._torch import (
    ConstantSource,
    DimDynamic,
    FakeTensor,
    FakeTensorMode,
    ShapeEnv,
    StatelessSymbolicContext,
    count_writes_together,
    outer_fake_mode,
    resolve_op,
    storage_key,
    without_modes,
)
from purefx.layout import Geometry, reify_dtype

BOUNDLESS = 1 << 60
"""The size of a memory block whose tensors have symbolic sizes."""


Shape = tuple[tuple[int, ...], tuple[int, ...], int]


class FakeFactory:
    """Makes the fakes of one capture.  One real tensor object gives one fake."""

    def __init__(self, tensors: Sequence[torch.Tensor], *, dynamic: bool) -> None:
        outer = outer_fake_mode(tensors)
        env = outer.shape_env if outer is not None else None
        self.env = env if env is not None else ShapeEnv(duck_shape=False, specialize_zero_one=True)
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.dynamic = dynamic
        self._memories: dict[int, torch.UntypedStorage] = {}
        self._shapes: dict[Any, Shape] = {}
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._owners: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def make(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The fake of ``tensor``; in a dynamic capture its sizes, strides and offset are new symbols."""
        known = self._made.get(id(tensor))
        if known is None:
            self._made[id(tensor)] = known = (tensor, self._new(tensor, name))
        return known[1]

    def _new(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        geometry = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        if self.dynamic and tensor.dim():
            geometry = self._symbols(tensor, name)
        with torch.inference_mode() if tensor.is_inference() else nullcontext(), self.mode:
            fake = self._view_of_base(tensor, geometry, name)
            if fake is None:
                fake = self._by_itself(tensor, geometry)
                self._owners.setdefault(storage_key(tensor), []).append((tensor, fake))
        if isinstance(tensor, torch.nn.Parameter):
            fake._is_param = True  # type: ignore[attr-defined]  # makes isinstance(fake, Parameter) true
        return fake.requires_grad_() if tensor.requires_grad and not fake.requires_grad else fake

    def _view_of_base(self, tensor: torch.Tensor, geometry: Shape, name: str) -> torch.Tensor | None:
        """A view of the fake of the tensor that autograd knows as the base of ``tensor``."""
        base = None if tensor.is_inference() else tensor._base
        if base is None or base.is_neg() or (base.is_conj() and not tensor.is_conj()):
            return None
        made = self.make(base, f"{name}._base")
        with torch.set_grad_enabled(tensor.requires_grad or not base.requires_grad):
            return _with_bits(_view(made, tensor.dtype, geometry), tensor)

    def _by_itself(self, tensor: torch.Tensor, geometry: Shape) -> torch.Tensor:
        """A fake that autograd knows no base of; it counts writes with those that its tensor counts with."""
        sizes, strides, offset = geometry
        with torch.no_grad():
            for other, made in self._owners.get(storage_key(tensor), ()):
                if other.is_conj() or tensor.is_conj() or not count_writes_together(tensor, other):
                    continue
                alias = made.detach()  # an alias that counts with it; a view would have a base
                alias = alias if tensor.dtype == other.dtype else _flat(alias, tensor.dtype)
                return alias.as_strided_(sizes, strides, offset)
            with without_modes():
                meta = torch.empty(0, dtype=tensor.dtype, device="meta").set_(
                    self._memory(tensor), offset, sizes, strides
                )
            fake: torch.Tensor = FakeTensor(self.mode, meta, tensor.device)
            return _with_bits(fake, tensor)

    def _memory(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        key = storage_key(tensor)
        if key not in self._memories:
            nbytes = BOUNDLESS if self.dynamic else tensor.untyped_storage().nbytes()
            self._memories[key] = torch.empty(nbytes, dtype=torch.uint8, device="meta").untyped_storage()
        return self._memories[key]

    def _symbols(self, tensor: torch.Tensor, name: str) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        context = StatelessSymbolicContext(
            dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim(), constraint_sizes=[None] * tensor.dim()
        )
        sizes, strides, offset = self.env.create_symbolic_sizes_strides_storage_offset(
            tensor, ConstantSource(name), symbolic_context=context
        )
        return self._unified(tensor, (sizes, strides, offset))

    def _unified(self, tensor: torch.Tensor, shape: Shape) -> Shape:
        """Tensors of one shape that share memory have one set of symbols: of unrelated ones nothing can be told."""
        key = (storage_key(tensor), tuple(tensor.shape), tensor.stride())
        sizes, strides, _ = self._shapes.setdefault(key, shape)
        return sizes, strides, shape[2]


def _view(base: torch.Tensor, dtype: torch.dtype, shape: Shape) -> torch.Tensor:
    """A view of ``base`` with the given dtype and shape."""
    if dtype == base.dtype:
        return base.as_strided(*shape)
    own = Geometry(tuple(base.shape), base.stride(), base.storage_offset())
    chain = reify_dtype(own, base.itemsize, Geometry(*shape), dtype.itemsize, dtype)
    if chain is None:
        return _flat(base, dtype).as_strided(*shape)
    for step in chain:
        base = resolve_op(step.op)(base, *step.arguments)
    return base


def _flat(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """All the memory of ``tensor`` as elements of ``dtype``."""
    unit = max(tensor.itemsize, dtype.itemsize)
    count = tensor.untyped_storage().nbytes() // unit * (unit // tensor.itemsize)
    return tensor.as_strided((count,), (1,), 0).view(dtype)


def _with_bits(fake: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """``fake`` lazily conjugated and negated as ``tensor`` is."""
    if tensor.is_conj() != fake.is_conj():
        fake = torch.ops.aten._conj.default(fake)
    return torch.ops.aten._neg_view.default(fake) if tensor.is_neg() else fake
