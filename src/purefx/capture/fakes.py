"""Re-enacting the caller's tensors as fakes: the same sharing of memory, geometry, dtype and autograd state.

Rule: two tensors that share a block of memory get fakes that share one, at the same offsets.  What two
separately made fakes would hide, e.g. that ``a.add_(1)`` is seen through ``b = a.view(-1)``, is then simply true.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch._dynamo.source import ConstantSource

from purefx._torch import (
    DimDynamic,
    FakeTensor,
    FakeTensorMode,
    ShapeEnv,
    StatelessSymbolicContext,
    outer_fake_mode,
    storage_key,
)

BOUNDLESS = 1 << 60
"""The size of a memory block whose tensors have symbolic sizes."""


class FakeFactory:
    """Makes the fakes of one capture.  One real tensor object gives one fake."""

    def __init__(self, tensors: Sequence[torch.Tensor], *, dynamic: bool) -> None:
        outer = outer_fake_mode(tensors)
        env = outer.shape_env if outer is not None else None
        self.env = env if env is not None else ShapeEnv(duck_shape=False, specialize_zero_one=True)
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.dynamic = dynamic
        self._memories: dict[int, torch.UntypedStorage] = {}

    def make(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The fake of ``tensor``; in a dynamic capture its sizes, strides and offset are new symbols."""
        sizes, strides, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        if self.dynamic and tensor.dim():
            sizes, strides, offset = self._symbols(tensor, name)
        with torch.inference_mode() if tensor.is_inference() else nullcontext(), torch.no_grad():
            meta = torch.empty(0, dtype=tensor.dtype, device="meta").set_(
                self._memory(tensor), offset, sizes, strides
            )
            fake: torch.Tensor = FakeTensor(self.mode, meta, tensor.device)
            with self.mode:
                fake = torch._conj(fake) if tensor.is_conj() else fake
                fake = torch._neg_view(fake) if tensor.is_neg() else fake
        if isinstance(tensor, torch.nn.Parameter):
            fake._is_param = True  # type: ignore[attr-defined]  # makes isinstance(fake, Parameter) true
        return fake.requires_grad_() if tensor.requires_grad else fake

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
        made = self.env.create_symbolic_sizes_strides_storage_offset(
            tensor, ConstantSource(name), symbolic_context=context
        )
        return made
