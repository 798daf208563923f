"""Re-enacting the caller's tensors as fakes: the same sharing of memory, geometry, dtype and autograd state.

Rule: two tensors that share a block of memory get fakes that share one, at the same offsets.  What two
separately made fakes would hide, e.g. that ``a.add_(1)`` is seen through ``b = a.view(-1)``, is then simply true.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch.autograd.graph import increment_version

from purefx._torch import (
    ConstantSource,
    DimDynamic,
    FakeTensor,
    FakeTensorMode,
    ShapeEnv,
    StatelessSymbolicContext,
    copy_view_rules,
    count_writes_together,
    outer_fake_mode,
    set_version,
    storage_key,
    without_dispatch,
)
from purefx.capture.edges import give_history, has_lost_history, is_bare_view, is_begun, is_leaf, is_view_without_grad
from purefx.capture.recording import Region, geometry_of
from purefx.errors import GradientsRefused
from purefx.layout import Geometry, Int, identity, is_symbolic, reify_dtype
from purefx.layout.symbols import hint
from purefx.operators import apply_chain, aten

Ints = tuple[Int, ...]
BOUNDLESS = 1 << 60
"""The size of a memory block whose tensors have symbolic sizes."""


class FakeFactory:
    """Makes the fakes of one capture.  One real tensor object gives one fake."""

    def __init__(self, tensors: Sequence[torch.Tensor], *, dynamic: bool) -> None:
        outer = outer_fake_mode(tensors)
        env = outer.shape_env if outer is not None else None
        self.env = env if env is not None else ShapeEnv(duck_shape=False, specialize_zero_one=True)
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.mode.cache_enabled &= not dynamic  # what it remembers of symbols is used by no other capture
        self.dynamic = dynamic
        self._memories: dict[int, torch.UntypedStorage] = {}
        self._shapes: dict[Hashable, Geometry] = {}
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._own: set[int] = set()
        self._owners: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def make(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The fake of ``tensor``; in a dynamic capture its sizes, strides and offset are new symbols."""
        known = self._made.get(id(tensor))
        if known is None:
            self._made[id(tensor)] = known = (tensor, self._new(tensor, name))
            self._own.add(id(known[1]))
        return known[1]

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` is one of the fakes."""
        return id(tensor) in self._own

    def made(self) -> Iterator[torch.Tensor]:
        """All fakes so far."""
        return (fake for _, fake in self._made.values())

    def _new(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        geometry = geometry_of(tensor)
        if self.dynamic and tensor.dim():
            geometry = self._symbols(tensor, name)
        kind = tensor.is_inference()  # an inference tensor or none, whatever the mode of the call
        other = torch.is_inference_mode_enabled() is not kind
        with torch.inference_mode(mode=kind) if other else nullcontext():
            with self.mode:
                fake = self._view_of_base(tensor, geometry, name)
                if fake is None:
                    fake = self._by_itself(tensor, geometry)
                    self._owners.setdefault(storage_key(tensor), []).append((tensor, fake))
            if isinstance(tensor, torch.nn.Parameter):
                fake._is_param = True  # makes isinstance(fake, Parameter) true
            if tensor.requires_grad and not fake.requires_grad:
                if is_leaf(tensor):
                    fake.requires_grad_()
                else:
                    give_history(fake)
        return fake

    def _view_of_base(self, tensor: torch.Tensor, geometry: Geometry, name: str) -> torch.Tensor | None:
        """A view of the fake of the tensor that autograd knows as the base of ``tensor``."""
        base = None if tensor.is_inference() else tensor._base
        if base is None or base.is_neg() or (base.is_conj() and not tensor.is_conj()):
            return None
        made = self.make(base, f"{name}._base")
        swapped = storage_key(base) != storage_key(tensor)
        if swapped and not has_room(made, geometry, tensor.itemsize):
            return self._stray_view(made, tensor, geometry, name)
        with torch.set_grad_enabled(not is_view_without_grad(tensor)):
            fake = view_like(made, tensor, geometry)
        if tensor.requires_grad and not fake.requires_grad and not is_leaf(tensor):
            fake = _view_of_leaf(fake)
        copy_view_rules(fake, tensor)
        if has_lost_history(tensor):
            increment_version(fake)
        if is_begun(tensor) and is_bare_view(fake):
            fake.requires_grad_()
        if swapped:  # ``x.data = y`` leaves the base and the history of x as they are, and those of its views
            fake.data = self._by_itself(tensor, geometry)
        return fake

    def _stray_view(self, base: torch.Tensor, tensor: torch.Tensor, geometry: Geometry, name: str) -> torch.Tensor:
        """A view of ``base`` that shows other memory, at a place that ``base`` has no memory for.

        Rule: autograd makes its history anew by that place, and takes it of the fake of the base.
        """
        if tensor.requires_grad:
            raise GradientsRefused(
                f"{name} was a view of the history that it has, and shows other memory now",
                where=None,
                remedy="pass a copy of it",
            )
        view = base.view(base.shape)
        view.data = self._by_itself(tensor, geometry)
        return view

    def _by_itself(self, tensor: torch.Tensor, geometry: Geometry) -> torch.Tensor:
        """A fake that autograd knows no base of; it counts writes with those that its tensor counts with."""
        sizes, strides, offset = geometry.sizes, geometry.strides, geometry.offset
        with torch.no_grad():
            for other, made in self._owners.get(storage_key(tensor), ()):
                if not count_writes_together(tensor, other):
                    continue
                alias = _without_bits(made).detach()  # an alias that counts with it; a view would have a base
                alias = alias if tensor.dtype == other.dtype else _flat(alias, tensor.dtype)
                version = alias._version
                alias.as_strided_(sizes, strides, offset)
                set_version(alias, version)
                return _with_bits(alias, tensor).detach()
            with without_dispatch():
                empty = torch.empty(0, dtype=tensor.dtype, device="meta")
                meta = empty.set_(self._memory(tensor), offset, sizes, strides)
            fake: torch.Tensor = FakeTensor(self.mode, meta, tensor.device)
            if not fake.is_inference():
                set_version(fake, 0)
            return _with_bits(fake, tensor).detach() if tensor.is_conj() or tensor.is_neg() else fake

    def _memory(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        key = storage_key(tensor)
        if key not in self._memories:
            nbytes = BOUNDLESS if self.dynamic else tensor.untyped_storage().nbytes()
            self._memories[key] = torch.empty(nbytes, dtype=torch.uint8, device="meta").untyped_storage()
        return self._memories[key]

    def _symbols(self, tensor: torch.Tensor, name: str) -> Geometry:
        context: StatelessSymbolicContext[Any, Any] = StatelessSymbolicContext(
            dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim(), constraint_sizes=[None] * tensor.dim()
        )
        sizes, strides, offset = self.env.create_symbolic_sizes_strides_storage_offset(
            _at_hints(tensor), ConstantSource(name), symbolic_context=context
        )
        return self._unified(tensor, Geometry(cast(Ints, sizes), cast(Ints, strides), cast(Int, offset)))

    def _unified(self, tensor: torch.Tensor, geometry: Geometry) -> Geometry:
        """Tensors of one shape that share memory have one set of symbols: of unrelated ones nothing can be told."""
        key = (storage_key(tensor), *(tuple(map(identity, row)) for row in (tensor.shape, tensor.stride())))
        first = self._shapes.setdefault(key, geometry)
        return Geometry(first.sizes, first.strides, geometry.offset)


def _at_hints(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or one of its geometry at the sizes that the symbols of another capture stand for."""
    if not has_symbols(tensor):
        return tensor
    geometry = geometry_of(tensor)
    rows = (geometry.sizes, geometry.strides, (geometry.offset,))
    sizes, strides, (offset,) = ([hint(number) or 0 for number in row] for row in rows)
    return torch.empty(0, dtype=tensor.dtype, device="meta").as_strided(sizes, strides, offset)


def has_symbols(x: Any) -> bool:
    """Whether ``x`` is a tensor with sizes that are symbols of another capture."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return False
    return any(map(is_symbolic, (*x.shape, *x.stride())))


def view_like(base: torch.Tensor, tensor: torch.Tensor, geometry: Geometry | None = None) -> torch.Tensor:
    """A view of ``base`` that shows what ``tensor`` does, by as few operators as that takes."""
    return _with_bits(_view(base, tensor.dtype, geometry or geometry_of(tensor)), tensor)


def fake_like(region: Region, mode: FakeTensorMode) -> torch.Tensor:
    """A fake tensor with memory of its own that looks like ``region``; lazy bits aside."""
    geometry = region.geometry
    meta = torch.empty_strided(geometry.sizes, geometry.strides, dtype=region.dtype, device="meta")
    made: torch.Tensor = FakeTensor(mode, meta, region.storage.device)
    return made


def _view(base: torch.Tensor, dtype: torch.dtype, geometry: Geometry) -> torch.Tensor:
    """A view of ``base`` with the given dtype and geometry."""
    sizes, strides, offset = geometry.sizes, geometry.strides, geometry.offset
    if dtype == base.dtype:
        return base.as_strided(sizes, strides, offset)
    if base.dtype.is_complex and base.dtype.to_real() == dtype:
        return torch.view_as_real(base).as_strided(sizes, strides, offset)
    if dtype.is_complex and dtype.to_real() == base.dtype:
        pairs = base.as_strided((*sizes, 2), (*(2 * stride for stride in strides), 1), 2 * offset)
        return torch.view_as_complex(pairs)
    chain = reify_dtype(geometry_of(base), base.itemsize, geometry, dtype.itemsize, dtype)
    if chain is None:
        return _flat(base, dtype).as_strided(sizes, strides, offset)
    return apply_chain(base, chain)


def has_room(base: torch.Tensor, geometry: Geometry, itemsize: int) -> bool:
    """Whether the memory of ``base`` has all elements of ``geometry``, as far as that is known."""
    return geometry.is_static and geometry.span()[1] * itemsize <= base.untyped_storage().nbytes()


def _view_of_leaf(view: torch.Tensor) -> torch.Tensor:
    """``view`` with a history of its own: it was taken of a view that requires grad, of a base that does not."""
    view.requires_grad_()
    with torch.enable_grad():
        return view.view_as(view)


def _flat(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """All the memory of ``tensor`` as elements of ``dtype``."""
    unit = max(tensor.itemsize, dtype.itemsize)
    count = tensor.untyped_storage().nbytes() // unit * (unit // tensor.itemsize)
    return tensor.as_strided((count,), (1,), 0).view(dtype)


def _without_bits(fake: torch.Tensor) -> torch.Tensor:
    """``fake`` as it lies in memory, neither lazily conjugated nor negated."""
    fake = aten._conj.default(fake) if fake.is_conj() else fake
    return aten._neg_view.default(fake) if fake.is_neg() else fake


def _with_bits(fake: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """``fake`` lazily conjugated and negated as ``tensor`` is."""
    if tensor.is_conj() != fake.is_conj():
        fake = aten._conj.default(fake)
    return aten._neg_view.default(fake) if tensor.is_neg() else fake
