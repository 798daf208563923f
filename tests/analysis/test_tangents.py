"""A tangent for each value of the graph that a backward may begin at, in the layout of a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from purefx import collect_metadata
from purefx.analysis.tangents import history_of
from purefx.metadata import (
    GraphResult,
    InputMutationAOTOutput,
    IntermediateBaseAOTOutput,
    MemoryFormatMeta,
    PlainAOTOutput,
    ProgramMetadata,
)


def leaf(*sizes: int) -> Tensor:
    return torch.ones(sizes, requires_grad=True)


def descriptions(program: Callable[..., Any], *args: Any) -> tuple[GraphResult, ...]:
    return collect_metadata(program)(*args).traced_tangents_descs


def test_arguments_come_first_then_outputs_then_bases() -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        x.mul_(w)
        y = w * 2
        return y.view(-1), w + 1, x, y.t(), w.detach() + 1

    assert descriptions(program, torch.ones(2, 2), leaf(2, 2)) == (
        InputMutationAOTOutput(0),
        PlainAOTOutput(1),
        IntermediateBaseAOTOutput(0),
    )


def test_a_base_without_history_has_no_tangent() -> None:
    def program(w: Tensor) -> Any:
        plain, computed = torch.ones(2, 2), w * 1
        return plain.view(-1), computed.view(-1)

    metadata = collect_metadata(program)(leaf(2, 2))
    assert metadata.num_intermediate_bases == 2
    assert metadata.traced_tangents_descs == (IntermediateBaseAOTOutput(1),)


def test_a_buffer_that_a_differentiable_row_is_copied_into_has_one() -> None:
    def program(w: Tensor) -> Any:
        rows = torch.zeros(2, 3)
        rows[1].copy_(w)
        return rows[0]

    assert descriptions(program, leaf(3)) == (IntermediateBaseAOTOutput(0),)


def test_there_is_none_under_no_grad() -> None:
    with torch.no_grad():
        assert descriptions(lambda w: w * 2, leaf(2)) == ()


def test_a_piece_whose_base_was_written_later_has_no_history() -> None:
    base = leaf(2, 3).clone()
    piece = base.unbind(0)[0]
    base.add_(1)
    with pytest.raises(RuntimeError, match="multiple views"):
        _ = piece.grad_fn
    assert history_of(piece) is None
    assert history_of(base) is base.grad_fn


def turned(w: Tensor) -> Any:
    return torch.empty(3, 2).t().copy_(w)


def gapped(w: Tensor) -> Any:
    return torch.empty(2, 6)[:, ::2].copy_(w)


def repeated(w: Tensor) -> Any:
    return (w * 2)[0].expand(4, 3)


def gradient_of_a_leaf_like(value: Tensor) -> Tensor:
    like = value.detach().requires_grad_()
    like.sum().backward()
    assert like.grad is not None
    return like.grad


@pytest.mark.parametrize("program", [turned, gapped, repeated])
def test_the_layout_is_that_of_the_gradient_of_a_leaf(program: Callable[..., Any]) -> None:
    w = leaf(2, 3)
    value = program(w)
    metadata = collect_metadata(lambda w: program(w).clone(memory_format=torch.preserve_format))(w)
    assert metadata.traced_tangent_metas == (layout_of(gradient_of_a_leaf_like(value.clone())),)


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[1:]])
def test_the_layout_of_a_written_argument_is_that_of_the_gradient_of_a_leaf(view: Callable[..., Any]) -> None:
    x = view(torch.ones(3, 4))
    expected = layout_of(gradient_of_a_leaf_like(x))
    metadata = collect_metadata(lambda x, w: x.add_(w))(x, leaf(1))
    assert metadata.traced_tangent_metas == (expected,)
    assert metadata.traced_tangents[0].dtype == x.dtype


def layout_of(tensor: Tensor) -> MemoryFormatMeta:
    return MemoryFormatMeta(tuple(tensor.shape), tensor.stride())


class Counting(torch.nn.Module):
    """A parameter and a buffer, one of which is written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.count = torch.nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Count, and multiply."""
        self.count.add_(1)
        return x * self.weight


def test_a_module_has_the_analysis_of_the_function_of_its_parameters_and_buffers() -> None:
    def function(x: Tensor, weight: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return x * weight

    reached = collect_metadata(Counting())(torch.ones(2))
    given = collect_metadata(function)(torch.ones(2), torch.nn.Parameter(torch.ones(2)), torch.zeros(()))
    assert comparable(reached) == comparable(given)
    assert reached.static_input_indices == (1,)
    assert [info.mutates_data for info in reached.input_info] == [False, False, True]


def comparable(metadata: ProgramMetadata) -> Any:
    return (
        metadata.input_info,
        metadata.output_info,
        metadata.static_input_indices,
        metadata.traced_tangents_descs,
        metadata.traced_tangent_metas,
    )
