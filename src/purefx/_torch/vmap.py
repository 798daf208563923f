"""The older vmap of autograd, and rules that stand in for those of vmap."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

_BATCHED = torch._C._dispatch_key_parse("Batched")


def is_batching_by_autograd() -> bool:
    """Whether the vmap of ``autograd.grad(is_grads_batched=True)`` runs."""
    torch._C._vmapmode_increment_nesting()
    return torch._C._vmapmode_decrement_nesting() > 0


def is_batched_by_autograd(tensor: torch.Tensor) -> bool:
    """Whether ``autograd.grad(is_grads_batched=True)`` has wrapped ``tensor``: by a vmap older than torch.func's."""
    return torch._C._dispatch_keys(tensor).has(_BATCHED)


def batched_by_function(
    function: Callable[..., tuple[torch.Tensor, ...]], inputs: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor, ...]:
    """``function`` of ``inputs`` under ``torch.func.vmap``, in the place of the older vmap that has wrapped some."""
    dims = tuple(None if x is None or not is_batched_by_autograd(x) else 0 for x in inputs)
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    torch._C._vmapmode_decrement_nesting()
    try:
        given = [
            x if x is None or dim is None else torch._remove_batch_dim(x, level, 1, 0)
            for x, dim in zip(inputs, dims, strict=True)
        ]
        outputs = torch.func.vmap(function, in_dims=dims, randomness="same")(*given)
        return tuple(torch._add_batch_dim(_batch_outermost(x), 0, level) for x in outputs)
    finally:
        torch._C._vmapmode_increment_nesting()


def _batch_outermost(x: torch.Tensor) -> torch.Tensor:
    """``x``, in memory where its first dimension is the outermost: the older vmap gives no other view by strides."""
    return x if all(x.stride(0) >= stride for stride in x.stride()) else x.contiguous()


Rules = Mapping[str, Callable[..., Any]]


_RETIRED: deque[list[Any]] = deque(maxlen=256)
"""Kernels that are registered no more: another thread may be on its way into one, and wait for Python's lock."""


def register_vmap_rules(rules: Mapping[str, Rules], asked: Callable[[], bool]) -> Callable[[], None]:
    """Have ``rules``, by dispatch key and operator, stand in for PyTorch's where ``asked()``; returns what ends that.

    Each rule is called with PyTorch's own kernel and the operator's arguments.
    """
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)  # that there is a kernel already
        for key, table in rules.items():
            for name, rule in table.items():
                kernel = _vmap_kernel(_computed_kernel(name, key), rule, asked)
                library.impl(name, kernel, key, with_keyset=True)  # type: ignore[no-untyped-call]
    kernels = [_computed_kernel(name, key) for key, table in rules.items() for name in table]

    def end() -> None:
        _RETIRED.append(kernels)
        library._destroy()  # type: ignore[no-untyped-call]

    return end


def _computed_kernel(name: str, key: str) -> Any:
    """As `torch.library.get_kernel`, which does not know the key of the older vmap."""
    return torch._C._dispatch_get_computed_kernel_for_dispatch_key(f"aten::{name}", key)


def _vmap_kernel(own: Any, rule: Callable[..., Any], asked: Callable[[], bool]) -> Callable[..., Any]:
    def kernel(keys: Any, *arguments: Any) -> Any:
        run = partial(own.call_boxed, keys)
        return rule(run, *arguments) if asked() else run(*arguments)

    return kernel
