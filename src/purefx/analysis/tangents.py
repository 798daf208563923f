"""The tangents: for which of the values that the graph returns a backward may be given a cotangent.

    def f(x, w):                  0    the new value of x: its grad_fn is another than before the call
        x.mul_(w)                 1    output 1: made inside, with a grad_fn
        y = w * 2                 -    output 0 is x itself, output 2 needs no gradient
        return x, y, y.detach()

A backward that begins at a value which is made by replay comes through the replayed view to the value that it was
made from.  So that value has a tangent, and the view has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.autograd.graph import Node

from purefx._torch import FakeTensorMode
from purefx.capture.captured import Input, Result, TensorResult
from purefx.capture.fakes import fake_like
from purefx.capture.recording import Region, Variable
from purefx.layout import Geometry
from purefx.metadata import (
    GraphResult,
    InputAliasInfo,
    InputMutationAOTOutput,
    IntermediateBaseAOTOutput,
    OutputAliasInfo,
    OutputType,
    PlainAOTOutput,
)

FRESH = (OutputType.non_alias, OutputType.custom_function_view)
"""The types of outputs that the graph itself returns."""
SAVED = (OutputType.alias_of_intermediate_save_as_output, OutputType.alias_of_intermediate)
"""The types of outputs that are made from a base that the graph returns for them."""


@dataclass(frozen=True, slots=True)
class Tangent:
    """The cotangent of what the graph returns ``of`` the program, laid out as ``region``."""

    of: GraphResult
    region: Region

    def fake(self, mode: FakeTensorMode) -> torch.Tensor:
        """A tensor with memory of its own that looks like the tangent.

        Rule: as autograd lays out the gradient of a leaf.  Strides without gaps and repetitions are kept; a
        gradient of any other value (``expand``, every second row) is row-major.
        """
        geometry = self.region.geometry
        kept = geometry if geometry.is_dense else Geometry.contiguous(geometry.sizes)
        return fake_like(self.region.at(kept), mode)


def history_of(fake: torch.Tensor) -> Node | None:
    """How autograd says that ``fake`` was made: None for a leaf, and where it refuses to say.

    It refuses for a piece of a multi-output view whose base was written later; no backward can begin there.
    """
    try:
        return fake.grad_fn
    except RuntimeError:
        return None


def infer_tangents(
    inputs: Sequence[tuple[Input | None, InputAliasInfo]],
    outputs: Sequence[tuple[Result, OutputAliasInfo]],
    bases: Sequence[Region],
) -> tuple[Tangent, ...]:
    """The tangents of written arguments, of outputs, and of the intermediate ``bases``, in this order."""
    return (*_of_inputs(inputs), *_of_outputs(outputs), *_of_bases(outputs, bases))


def _of_inputs(inputs: Sequence[tuple[Input | None, InputAliasInfo]]) -> Iterator[Tangent]:
    for i, (known, info) in enumerate(inputs):
        if known is not None and info.mutates_data and _has_new_history(known, info):
            yield Tangent(InputMutationAOTOutput(i), known.after)


def _has_new_history(known: Input, info: InputAliasInfo) -> bool:
    """Whether autograd says otherwise than before the call how ``known`` was made."""
    if known.was_leaf:
        return history_of(known.fake) is not None
    unseen = info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode
    return info.requires_grad and not unseen


def _of_outputs(outputs: Sequence[tuple[Result, OutputAliasInfo]]) -> Iterator[Tangent]:
    seen: set[Variable] = set()
    for i, (result, info) in enumerate(outputs):
        if isinstance(result, TensorResult) and result.variable not in seen:
            seen.add(result.variable)
            if info.output_type in FRESH and info.requires_grad_for_backward:
                yield Tangent(PlainAOTOutput(i), result.region)


def _of_bases(outputs: Sequence[tuple[Result, OutputAliasInfo]], bases: Sequence[Region]) -> Iterator[Tangent]:
    recorded = {info.base_idx for result, info in outputs if info.output_type in SAVED and _base_has_history(result)}
    for i, region in enumerate(bases):
        if i in recorded:
            yield Tangent(IntermediateBaseAOTOutput(i), region)


def _base_has_history(result: Result) -> bool:
    base = result.fake._base if isinstance(result, TensorResult) else None
    return base is not None and history_of(base) is not None
