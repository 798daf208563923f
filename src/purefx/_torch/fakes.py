"""Dispatch modes and fake tensors."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch._ops import OpOverload  # the types of operators; no public spelling
from torch._subclasses.fake_tensor import (  # fake tensors have no public constructor
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx


def without_modes() -> AbstractContextManager[Any]:
    """Run on real tensors although dispatch modes (fake tensors, tracing) are active."""
    if not torch._C._len_torch_dispatch_stack() and not torch._ops._len_torch_dispatch_stack_pre_dispatch():  # type: ignore[no-untyped-call]
        return nullcontext()  # which takes a tenth of the time
    return torch.utils._python_dispatch._disable_current_modes()


@contextmanager
def containers_in_cond() -> Iterator[None]:
    """Let modes see ``cond`` with operands in containers: it is Dynamo that would flatten them, and keeps out."""
    module: Any = sys.modules[type(torch.ops.higher_order.cond).__module__]
    before, module.validate_subgraph_args_types = module.validate_subgraph_args_types, lambda operands: None
    try:
        yield
    finally:
        module.validate_subgraph_args_types = before


@contextmanager
def running_fake_kernels(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Run the fake kernels for ``tensors``: what fake tensors remember of earlier calls is not all that they do.

    It resizes nothing, and knows the sizes of tensors but not those of their storages.
    """
    mode = outer_fake_mode(tensors)
    if mode is None:
        yield
        return
    enabled, mode.cache_enabled = mode.cache_enabled, False
    try:
        yield
    finally:
        mode.cache_enabled = enabled


def outer_fake_mode(tensors: Sequence[torch.Tensor]) -> FakeTensorMode | None:
    """The mode of the first fake tensor among ``tensors``: its symbols must be used for ours."""
    return next((t.fake_mode for t in tensors if isinstance(t, FakeTensor)), None)


def without_dispatch() -> AbstractContextManager[None]:
    """Pass all dispatch to Python by, that of fake tensors too: for single calls of kernels that touch no memory.

    Other than `without_modes` it costs next to nothing.
    """
    guard: AbstractContextManager[None] = torch._C._DisableTorchDispatch()
    return guard


def is_traced_by_proxies() -> bool:
    """Whether ``make_fx`` runs: compiled code would hide from it what it is to see."""
    return get_proxy_mode() is not None


@contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Keep fake tensors from logging what their kernels raise: it is raised, or eager's error in its place."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def forget_new_symbols(mode: FakeTensorMode) -> None:
    """Let PyTorch not look for the new symbols of a capture among those of a graph that runs in ``mode``."""
    if mode.shape_env is not None:
        mode.shape_env.pending_fresh_unbacked_symbols.clear()


def trace_again(
    run: Callable[..., Any],
    examples: Sequence[Any],
    mode: FakeTensorMode | None,
    decompositions: Mapping[OpOverload, Callable[..., Any]],
) -> torch.fx.GraphModule:
    """The graph of ``run`` on ``examples``, fake tensors of ``mode`` and symbols, with ``decompositions`` applied."""
    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
    forget_new_symbols(mode)
    with mode, torch.no_grad(), torch._C._DisableAutocast():
        return make_fx(run, decomposition_table=dict(decompositions))(*examples)
