"""The analysis says what a caller of eager can observe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx.analysis.metadata import collect_metadata, infer_metadata
from purefx.analysis.replay import infer_replay
from purefx.capture.session import capture
from purefx.errors import AutocastChanged, UnknownArgumentType
from purefx.metadata import InputAliasInfo, MutationType, OutputType, ProgramMetadata
from tests.analysis.programs_of_state import logs_twice

Program = Callable[..., Any]


def ones(*sizes: int) -> Tensor:
    return torch.ones(sizes)


def reads_only(x: Tensor) -> Any:
    return x + 1


def writes_data(x: Tensor) -> Any:
    x.data.add_(1)
    return x * 1


def writes_the_first(a: Tensor, b: Tensor) -> Any:
    a.add_(1)
    return b * 1


def leaves_grad_off(x: Tensor) -> Any:
    torch.set_grad_enabled(False)
    return x * 1


def views_only(x: Tensor) -> Any:
    return (x * 2).unbind(0)


def matrix_and_its_view() -> tuple[Any, ...]:
    x = ones(2, 2)
    return x, x.view(-1)


def only_input(program: Program, *args: Any) -> InputAliasInfo:
    return collect_metadata(program)(*args).input_info[0]


def chain_names(metadata: ProgramMetadata, output: int) -> list[str]:
    return [str(call.op) for call in metadata.output_info[output].view_chain]


def test_a_write_by_data_leaves_the_version_as_it_was() -> None:
    x = ones(2, 2)
    version = x._version
    writes_data(x)
    assert x._version == version
    assert only_input(writes_data, ones(2, 2)).mutations_hidden_from_autograd


def test_a_write_to_one_argument_is_a_write_to_its_view() -> None:
    a, b = matrix_and_its_view()
    writes_the_first(a, b)
    assert b.tolist() == [2.0] * 4
    first, second = collect_metadata(writes_the_first)(*matrix_and_its_view()).input_info
    assert first.mutates_data
    assert second.mutates_data


def test_a_write_to_columns_is_no_write_to_the_other_columns() -> None:
    x = ones(4)
    first, second = collect_metadata(writes_the_first)(x[::2], x[1::2]).input_info
    assert first.mutates_data
    assert not second.mutates_data


def test_results_that_share_memory_in_eager_have_one_base() -> None:
    first, second = views_only(ones(2, 2))
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    metadata = collect_metadata(views_only)(ones(2, 2))
    assert [(o.output_type, o.base_idx) for o in metadata.output_info] == [
        (OutputType.alias_of_intermediate_save_as_output, 0),
        (OutputType.alias_of_intermediate, 0),
    ]
    assert metadata.num_intermediate_bases == 1


def test_the_view_chain_starts_at_the_base_and_ends_at_the_output() -> None:
    def program(x: Tensor) -> Any:
        y = x * 2
        rows = y.unbind(0)
        return x.t()[0], y, rows[1].unsqueeze(0)

    metadata = collect_metadata(program)(ones(2, 3))
    assert chain_names(metadata, 0) == ["aten.t.default", "aten.select.int"]
    assert chain_names(metadata, 1) == []
    assert chain_names(metadata, 2) == ["aten.unbind.int", "aten.unsqueeze.default"]
    assert metadata.output_info[2].base_idx == 1


def test_an_in_place_view_of_an_output_belongs_to_its_chain() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.view(3, 2)
        y.t_()
        return y

    assert chain_names(collect_metadata(program)(ones(2, 3)), 0) == ["aten.view.default", "aten.t_.default"]


def test_set_changes_the_storage_of_the_argument() -> None:
    def program(x: Tensor, y: Tensor) -> None:
        torch.ops.aten.set_.source_Tensor(x, y)

    info = only_input(program, ones(2), ones(3))
    assert info.mutates_storage_metadata
    assert info.mutates_metadata
    assert not info.mutates_data
    assert info.mutation_type is MutationType.MUTATED_OUT_GRAPH


def test_set_there_and_back_makes_no_alias() -> None:
    def program(x: Tensor) -> Tensor:
        home, away = x.untyped_storage(), torch.ones(4)
        with torch.no_grad():
            x.set_(away.untyped_storage(), 0, (4,), (1,))
        out = x.view(2, 2)
        with torch.no_grad():
            x.set_(home, 0, (3,), (1,))
        return out

    x = ones(3)
    assert program(x).untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    metadata = collect_metadata(program)(ones(3))
    assert metadata.output_info[0].output_type is OutputType.non_alias
    assert metadata.input_info[0].mutation_type is MutationType.NOT_MUTATED


def test_data_there_and_back_makes_no_alias() -> None:
    def program(x: Tensor) -> Tensor:
        home = x.data
        x.data = torch.ones(4)
        out = x.view(2, 2)
        x.data = home
        return out

    x = ones(3)
    assert program(x).untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    metadata = collect_metadata(program)(ones(3))
    assert metadata.output_info[0].output_type is OutputType.non_alias
    assert not metadata.input_info[0].mutates_storage_metadata


def test_a_write_before_set_is_a_write_to_what_the_argument_came_with() -> None:
    def program(x: Tensor, y: Tensor) -> None:
        x.add_(1)
        torch.ops.aten.set_.source_Tensor(x, y)

    x = ones(2)
    view = x[:]
    program(x, ones(2))
    assert view.tolist() == [2.0, 2.0]
    assert only_input(program, ones(2), ones(2)).mutates_data


def test_a_custom_function_that_returns_a_view_is_named() -> None:
    class Reshape(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view(-1)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0].view(2, 2)

    metadata = collect_metadata(lambda w: Reshape.apply(w))(ones(2, 2).requires_grad_())
    assert metadata.output_info[0].output_type is OutputType.custom_function_view


def test_parameters_and_named_arguments_are_static() -> None:
    collect = collect_metadata(lambda a, b, c: a + b + c, static_input_indices=(0,))
    parameter = torch.nn.Parameter(ones(2), requires_grad=False)
    assert collect(ones(2), ones(2), parameter).static_input_indices == (0, 2)


def test_tensors_that_the_program_reaches_by_itself_come_after_the_arguments() -> None:
    held = torch.zeros(2)

    def program(x: Tensor) -> Tensor:
        held.add_(x)
        return held

    metadata = collect_metadata(program)(ones(2))
    assert [info.mutates_data for info in metadata.input_info] == [False, True]
    assert metadata.output_info[0].output_type is OutputType.is_input
    assert metadata.output_info[0].base_idx == 1


def test_the_grad_mode_that_the_program_leaves_is_reported() -> None:
    assert collect_metadata(leaves_grad_off)(ones(2)).grad_enabled_mutation is False
    assert torch.is_grad_enabled()
    assert collect_metadata(reads_only)(ones(2)).grad_enabled_mutation is None


def test_an_autocast_state_that_is_left_behind_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        torch.set_autocast_enabled("cpu", enabled)
        return x * 1

    before = torch.is_autocast_enabled("cpu")
    enabled = not before
    try:
        with pytest.raises(AutocastChanged):
            collect_metadata(program)(ones(2))
    finally:
        torch.set_autocast_enabled("cpu", before)


def test_an_argument_of_unknown_type_is_refused_with_position_and_type() -> None:
    with pytest.raises(UnknownArgumentType, match=r"args\[1\] is of type builtins\.object"):
        collect_metadata(reads_only)(ones(2), object())


def test_symbolic_sizes_are_dynamic_dimensions() -> None:
    captured = capture(lambda x: x.view(-1), (ones(2, 3),), {}, dynamic=True)
    metadata = infer_metadata(captured, infer_replay(captured))
    assert metadata.output_info[0].dynamic_dims == frozenset({0})


def test_a_view_made_after_a_geometry_write_does_not_repeat_it() -> None:
    def program(x: Tensor) -> Tensor:
        x.transpose_(0, 1)
        return x.t()

    assert chain_names(collect_metadata(program)(ones(2, 3)), 0) == ["aten.t.default"]


def test_effects_need_no_tokens_since_the_graph_keeps_them_in_order() -> None:
    calls = [node.args[0] for node in purefx.trace(logs_twice, ones(2)).graph.nodes if "log" in str(node.target)]
    assert [str(x) for x in calls] == ["args_0", "add_tensor"]
    assert collect_metadata(logs_twice)(ones(2)).tokens == {}
