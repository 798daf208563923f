"""The backward of a compiled call under transforms: vmap over its tangents, tangents that have tangents.

vmap(lambda v: torch.autograd.grad(y, x, v))(vs)      y was computed by a compiled function, outside of vmap
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from purefx._torch import with_memory
from purefx.capture.captured import Capture, name_of
from purefx.errors import TransformRefused
from purefx.functional.signature import FunctionalBackward, ResidualInput, TangentInput
from purefx.runtime.derivatives import Run
from purefx.runtime.differentiable import Tangent, coerced
from purefx.transforms.graphs import Engine, Graph, Tensors
from purefx.transforms.node import call
from purefx.transforms.programs import Fixed


class CallBackward(Fixed):
    """A backward graph of a compiled call, as a function of what the call saved and of the tangents.

    ``execute`` runs it; it takes a list.
    """

    def __init__(self, engine: Engine, capture: Capture, functional: FunctionalBackward, execute: Run) -> None:
        arity, count = len(functional.inputs), len(functional.outputs)
        graph = Graph(capture, functional, tuple(range(arity)), tuple(range(count)))
        super().__init__(engine, f"backward({name_of(capture.function)})", arity, arity, (True,) * count, graph)
        self._execute = execute
        self._tangents = {
            i: Tangent(x.slot, x.region.geometry, x.region.dtype)
            for i, x in enumerate(functional.inputs)
            if isinstance(x, TangentInput)
        }

    def lay(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """``x`` as the backward graph takes it for its input number ``i``."""
        x = with_memory(x)
        return coerced(x, self._tangents[i]) if i in self._tangents else x

    def _run(self, inputs: Tensors) -> Tensors:
        self.engine.runs[self.name] += 1
        with torch.no_grad():
            return tuple(self._execute(list(inputs)))


def composed(engine: Engine, capture: Capture, functional: FunctionalBackward, execute: Run) -> Run:
    """What runs a backward graph on inputs that transforms have wrapped."""
    program = CallBackward(engine, capture, functional, execute)
    sizes = any(isinstance(x, ResidualInput) and x.value is None for x in functional.inputs)

    def run(inputs: list[Any]) -> Sequence[torch.Tensor]:
        if sizes:
            raise TransformRefused(
                "a transform of the backward of a program that was captured with dynamic shapes",
                where=None,
                remedy="capture it with static shapes",
            )
        return call(program, inputs)

    return run
