"""From a functional backward graph to what the node of a compiled call runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, assert_never

import torch

from purefx.autodiff.joint import Joint
from purefx.autodiff.levels import Level
from purefx.functional.regions import chain_between
from purefx.functional.roots import Root
from purefx.functional.signature import (
    BackwardInput,
    FunctionalBackward,
    GradientOutput,
    ResidualInput,
    RootInput,
    TangentInput,
    WrittenOutput,
)
from purefx.operators import apply_chain
from purefx.runtime.differentiable import BackwardGraph, Tangent

Run = Callable[[list[Any]], Sequence[Any]]
"""Runs a backward graph on a list of inputs, which it may clear."""


def backward_graph(
    joint: Joint, level: Level, functional: FunctionalBackward, run: Run, composed: Run
) -> BackwardGraph:
    """What runs ``functional``, one of the backward graphs of ``level``, by ``run``; ``composed`` is for transforms."""
    kept = joint.kept(level)
    tensors = {name: i for i, name in enumerate(name for name, value in kept.items() if value is not None)}
    numbers = {name: i for i, name in enumerate(name for name, value in kept.items() if value is None)}
    gives: list[int | None] = [None] * max(len(level.targets), 1)
    writes: list[Any] = []
    for position, output in enumerate(functional.outputs):
        if isinstance(output, GradientOutput):
            for target in output.targets:
                gives[target] = position
        elif isinstance(output, WrittenOutput):
            writes.append((position, _writer(joint, output)))
    takes = tuple(_take(given, tensors, numbers) for given in functional.inputs)
    return BackwardGraph(run, composed, takes, tuple(gives), tuple(writes), functional.refusal)


def _take(given: BackwardInput, tensors: dict[str, int], numbers: dict[str, int]) -> int | Tangent | torch.Tensor:
    match given:
        case ResidualInput(name, value):
            return ~numbers[name] if value is None else tensors[name]
        case TangentInput(_, slot, region):
            return Tangent(slot, region.geometry, region.dtype)
        case RootInput(_, root):
            return _tensor_of(root)
        case _:
            assert_never(given)


def _tensor_of(root: Root) -> torch.Tensor:
    """The tensor of the caller that the backward reaches by itself."""
    assert root.base is not None, "tensors that the backward alone uses do not overlap"
    return root.base.tensor.detach()


def _writer(joint: Joint, output: WrittenOutput) -> Callable[[Sequence[torch.Tensor], torch.Tensor], None]:
    """The function that writes the value of ``output`` to the caller's memory."""
    root = output.root
    holder = root.base if root.base is not None else root.members[0]
    chain = chain_between(holder.before, output.region) or ()
    position = joint.roots_written.index(root)

    def write(tensors: Sequence[torch.Tensor], value: torch.Tensor) -> None:
        apply_chain(tensors[position], chain).copy_(value)

    return write
