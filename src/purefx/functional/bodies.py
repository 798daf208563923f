"""Control-flow operators (cond, while_loop, ...): their bodies become functional graphs of their own."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from purefx._torch import FakeTensor, FakeTensorMode, ShapeEnv
from purefx.capture.recording import Call, Operand, Region, operands_of
from purefx.errors import UnsupportedOperator
from purefx.functional.builder import Builder

Body = Callable[[Any, Sequence[Operand], ShapeEnv], fx.GraphModule]

_OPERANDS: dict[str, slice] = {"cond": slice(3, None), "while_loop": slice(2, None)}
"""Where the operands of the bodies stand among the arguments, for the operators whose bodies are understood."""


def with_bodies(call: Call, builder: Builder, body: Body) -> Call:
    """``call`` with a graph module in the place of each function among its arguments."""
    name = call.op.__name__
    if name not in _OPERANDS:
        raise UnsupportedOperator(
            f"the higher-order operator {name} has no functional form here",
            where=call.where,
            remedy="use torch.cond, while_loop, or plain Python control flow on sizes",
        )
    operands = operands_of(call.args[_OPERANDS[name]])
    args = tuple(
        builder.module(body(x, operands, builder.env)) if isinstance(x, types.FunctionType) else x for x in call.args
    )
    return replace(call, args=args)


def example(region: Region, env: ShapeEnv) -> torch.Tensor:
    """A fake tensor that looks like ``region``."""
    geometry = region.geometry
    meta = torch.empty_strided(geometry.sizes, geometry.strides, dtype=region.dtype, device="meta")
    made: torch.Tensor = FakeTensor(FakeTensorMode(shape_env=env), meta, region.storage.device)
    return made
