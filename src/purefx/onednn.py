"""oneDNN's layer of an LSTM and its gradients, as operators that graphs can have.

    aten.mkldnn_rnn_layer           keeps a workspace for its backward if gradients are on when it runs
    purefx.mkldnn_rnn_layer         keeps it always: graphs run where they are off

    aten.mkldnn_rnn_layer_backward      PyTorch's fake kernel gives one tensor for the gradients of both biases
    purefx.mkldnn_rnn_layer_backward    two, as there are

The bytes that oneDNN keeps only it can tell: it is asked once for all layers that look alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from purefx._torch import HigherOrderOperator, OpOverload, schema_of, without_modes
from purefx.operators import aten

_LAYER = aten.mkldnn_rnn_layer.default
_BACKWARD = aten.mkldnn_rnn_layer_backward.default
_TENSORS = 7
"""How many arguments of a layer are tensors, those that come first."""

Results = tuple[torch.Tensor, ...]


def _run(*args: Any) -> Results:
    """A layer with its workspace, which autograd does not see."""
    tensors = [x.detach() for x in args[:_TENSORS]]
    with torch.enable_grad():
        found: Results = _LAYER(*tensors, *args[_TENSORS:])
    return found


def _fake_layer(*args: Any) -> Results:
    """A layer of fake tensors, with a workspace that has its size, if there is one."""
    found: Results = _LAYER(*args)
    if found[3] is None:  # gradients are off
        return found
    looks = tuple((tuple(x.shape), x.dtype) for x in args[:_TENSORS])
    kept = _workspace(looks, *[tuple(x) if isinstance(x, list) else x for x in args[_TENSORS:]])
    return (*found[:3], found[0].new_empty(kept, dtype=torch.uint8))


@cache
def _workspace(looks: tuple[tuple[tuple[int, ...], torch.dtype], ...], *rest: Any) -> int:
    with without_modes():
        return _run(*[torch.zeros(shape, dtype=dtype) for shape, dtype in looks], *rest)[3].numel()


def _fake_backward(*args: Any) -> Results:
    """The gradients of a layer of fake tensors, each in memory of its own."""
    found: Results = _BACKWARD(*args)
    return tuple(torch.empty_like(x) if any(x is y for y in found[:i]) else x for i, x in enumerate(found))


def _fake_run(*args: Any) -> Results:
    with torch.enable_grad():
        return _fake_layer(*args)


def _operator(op: OpOverload, run: Callable[..., Results], fake: Callable[..., Results]) -> OpOverload:
    """An operator of purefx with the name and the schema of ``op``."""
    schema = schema_of(op)
    name = schema.name.removeprefix("aten::")
    torch.library.custom_op(
        f"purefx::{name}", run, mutates_args=(), schema=str(schema).removeprefix(schema.name)
    ).register_fake(fake)
    made: OpOverload = getattr(torch.ops.purefx, name).default
    return made


_KEEPING = _operator(_LAYER, _run, _fake_run)
_GRADIENTS = _operator(_BACKWARD, lambda *args: _BACKWARD(*args), _fake_backward)

FAKE_KERNELS: dict[OpOverload, Callable[..., Results]] = {_LAYER: _fake_layer, _BACKWARD: _fake_backward}
"""What runs on fake tensors in the place of PyTorch's fake kernels."""

DIRECT: dict[Any, Callable[..., Results]] = {_KEEPING: _run, _GRADIENTS: _BACKWARD}
"""What does the same as our operators by a shorter way, where no tracer looks on."""


def in_graph(op: OpOverload | HigherOrderOperator, *, with_grad: bool) -> OpOverload | HigherOrderOperator:
    """The operator that a graph has for ``op``, which ran ``with_grad`` or without; itself, if it is not oneDNN's."""
    if op is _LAYER:
        return _KEEPING if with_grad else op
    return _GRADIENTS if op is _BACKWARD else op
