"""Where PyTorch's own rules fall short under transforms, in code that runs as a part of a capture.

x.mul_(x)               in forward mode the tangent of x is read after it has been written    x.mul_(x.clone())
torch.sin(x, out=y)     forward mode has no rule                                              y.copy_(torch.sin(x))
x.data                  has no gradient at the innermost level, but at the others             x.detach()
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from purefx._torch import READS_DATA, bottom, in_forward_mode, is_transforming, storage_key
from purefx.capture.recording import geometry_of

R = TypeVar("R")

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_AUGMENTED = frozenset(f"__i{name}__" for name in _BINARY)
_KEEPING = frozenset({"set_", "swap_"})
"""Writes that do not read the elements of their operands."""


class SeparateWrites(TorchFunctionMode):
    """A write reads no memory that it writes, and ``out=`` is a write like others.

    Without ``hooks`` none is registered on what requires no grad: a tangent has no use for what a gradient runs.
    """

    def __init__(self, *, hooks: bool = True) -> None:
        super().__init__()
        self._hooks = hooks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` gives."""
        kwargs = kwargs or {}
        if func is torch.Tensor.register_hook and not self._hooks and not args[0].requires_grad:
            return RemovableHandle(OrderedDict())
        if isinstance(kwargs.get("out"), torch.Tensor):
            return _to_out(func, args, kwargs)
        if args and isinstance(args[0], torch.Tensor) and _is_write(getattr(func, "__name__", "")):
            args = (args[0], *(_apart(x, args[0]) for x in args[1:]))
            kwargs = {name: _apart(x, args[0]) for name, x in kwargs.items()}
        return func(*args, **kwargs)


class DataIsDetached(TorchFunctionMode):
    """``x.data`` has no gradient for any transform."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` gives."""
        return args[0].detach() if func == READS_DATA else func(*args, **(kwargs or {}))


def inlined(function: Callable[..., R], args: Any, kwargs: Any) -> R:
    """``function`` as a part of a program that is captured."""
    detached = DataIsDetached() if is_transforming() else nullcontext()
    with detached, SeparateWrites() if in_forward_mode() else nullcontext():
        return function(*args, **kwargs)


def _is_write(name: str) -> bool:
    return name in _AUGMENTED or (name.endswith("_") and not name.endswith("__") and name not in _KEEPING)


def _apart(x: Any, written: torch.Tensor) -> Any:
    """``x``, or a copy of it if it is the very memory that is written; where it is a part of that, eager refuses."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return x
    inner, target = bottom(x), bottom(written)
    if storage_key(inner) != storage_key(target):
        return x
    read, write = geometry_of(inner), geometry_of(target)
    return x if read != write and read.is_dense and write.is_dense else x.clone()


def _to_out(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``func`` with its result copied to the tensor ``out``; with its own ``out``, if it has to resize that."""
    out = kwargs["out"]
    result = func(*args, **{name: x for name, x in kwargs.items() if name != "out"})
    return out.copy_(result) if result.shape == out.shape else func(*args, **kwargs)
