"""The analysis says what a caller of eager can observe; PyTorch's own agrees, but where eager is with us."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._functorch._aot_autograd.collect_metadata_analysis import (
    run_functionalized_fw_and_collect_metadata,
)
from torch._functorch._aot_autograd.descriptors import PlainAOTInput
from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from purefx.analysis.metadata import collect_metadata, infer_metadata
from purefx.analysis.replay import infer_replay
from purefx.capture.session import capture
from purefx.errors import AutocastChanged, UnknownArgumentType
from purefx.metadata import InputAliasInfo, MutationType, OutputType, ProgramMetadata

Program = Callable[..., Any]
INPUT_FIELDS = (
    "is_leaf", "mutates_data", "mutates_metadata", "mutations_hidden_from_autograd",
    "mutations_under_no_grad_or_inference_mode", "mutation_inductor_storage_resize",
    "mutates_storage_metadata", "requires_grad", "keep_input_mutations",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A program with its arguments; ``differs``: what PyTorch answers otherwise, and why eager is with us."""

    program: Program
    arguments: Callable[[], tuple[Any, ...]]
    differs: dict[str, str] = field(default_factory=dict)


def ones(*sizes: int) -> Tensor:
    return torch.ones(sizes)


def peer_metadata(program: Program, args: tuple[Any, ...], *, keep: bool) -> ViewAndMutationMeta:
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x) if isinstance(x, Tensor) else x for x in args]
    collect = run_functionalized_fw_and_collect_metadata(
        lambda *flat: pytree.tree_leaves(program(*flat)),
        flat_args_descs=[PlainAOTInput(i) for i in range(len(args))],
        keep_input_mutations=keep,
    )
    with mode:
        return collect(*fakes)


def input_facts(metadata: ProgramMetadata | ViewAndMutationMeta) -> dict[str, object]:
    facts: dict[str, object] = {}
    infos: Sequence[Any] = metadata.input_info
    for i, info in enumerate(infos):
        facts.update({f"input {i} {name}": getattr(info, name) for name in INPUT_FIELDS})
        facts[f"input {i} mutation_type"] = info.mutation_type.name
    return facts


def output_facts(metadata: ProgramMetadata | ViewAndMutationMeta) -> dict[str, object]:
    facts: dict[str, object] = {}
    infos: Sequence[Any] = metadata.output_info
    for i, info in enumerate(infos):
        is_tensor = issubclass(info.raw_type, Tensor)
        facts[f"output {i} output_type"] = info.output_type.name
        facts[f"output {i} base_idx"] = info.base_idx
        facts[f"output {i} raw_type"] = Tensor if is_tensor else info.raw_type
        facts[f"output {i} dynamic_dims"] = None if info.dynamic_dims is None else frozenset(info.dynamic_dims)
        facts[f"output {i} requires_grad"] = info.requires_grad
    return facts


def facts_of(metadata: ProgramMetadata | ViewAndMutationMeta) -> dict[str, object]:
    whole = {
        "num_intermediate_bases": metadata.num_intermediate_bases,
        "keep_input_mutations": metadata.keep_input_mutations,
        "static_input_indices": tuple(metadata.static_input_indices),
        "grad_enabled_mutation": metadata.grad_enabled_mutation,
        "tokens": len(metadata.tokens),
    }
    return {**input_facts(metadata), **output_facts(metadata), **whole}


def reads_only(x: Tensor) -> Any:
    return x + 1


def writes_and_returns(x: Tensor) -> Any:
    x.add_(1)
    return x, x.view(-1), x + 1


def writes_a_row(x: Tensor) -> Any:
    x[0].mul_(2)
    return x[1]


def writes_under_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        x.add_(1)
    return x * 1


def writes_under_inference_mode(x: Tensor) -> Any:
    with torch.inference_mode():
        x.add_(1)
    return x * 1


def writes_in_both_modes(x: Tensor) -> Any:
    with torch.no_grad():
        x.add_(1)
    x.mul_(2)
    return x * 1


def writes_a_detached(x: Tensor) -> Any:
    x.detach().add_(1)
    return x * 1


def writes_data(x: Tensor) -> Any:
    x.data.add_(1)
    return x * 1


def transposes(x: Tensor) -> Any:
    x.t_()
    return x, x.view(-1) if x.is_contiguous() else x[0]


def transposes_there_and_back(x: Tensor) -> Any:
    x.t_()
    x.t_()
    return x[0]


def transposes_and_writes(x: Tensor) -> Any:
    x.t_()
    x.add_(1)
    return x * 1


def resizes(x: Tensor) -> Any:
    x.resize_(2, 1)
    return x * 1


def returns_twice(x: Tensor) -> Any:
    y = x * 2
    return x, x, y, y


def returns_values(x: Tensor) -> Any:
    return x.shape[0], None, 2.5, x * 1


def takes_a_number(x: Tensor, n: int) -> Any:
    return x + n


def leaves_grad_off(x: Tensor) -> Any:
    torch.set_grad_enabled(False)
    return x * 1


def views_of_both(a: Tensor, b: Tensor) -> Any:
    return b.t(), a.view(-1)


def detaches(x: Tensor) -> Any:
    return x.detach(), x.expand(3, *x.shape)


def gives_x_the_gradient_of_w(x: Tensor, w: Tensor) -> Any:
    x.add_(w)
    return x


def views_of_a_differentiable_base(w: Tensor) -> Any:
    y = w * 2
    return y, y[0], y.detach()


def one_view_of_a_base(w: Tensor) -> Any:
    return (w * 2).view(-1)


def views_of_a_base_that_only_they_show(w: Tensor) -> Any:
    y = w * 2
    return y.view(-1), y.t()


def swaps_storage(x: Tensor, y: Tensor) -> Any:
    x.data = y
    return x * 1


def swaps_storage_and_writes(x: Tensor, y: Tensor) -> Any:
    x.data = y
    x.add_(1)
    return x * 1


def writes_the_first(a: Tensor, b: Tensor) -> Any:
    a.add_(1)
    return b * 1


def writes_one_of_two_halves(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    return y * 1


def base_and_views(x: Tensor) -> Any:
    y = x * 2
    return y, y[0], y.detach()


def views_only(x: Tensor) -> Any:
    return (x * 2).unbind(0)


def frees_storage(x: Tensor) -> Any:
    torch.ops.inductor.resize_storage_bytes_(x, 0)
    return x.shape[0]


def same_twice() -> tuple[Any, ...]:
    x = ones(2, 2)
    return x, x


def matrix_and_its_view() -> tuple[Any, ...]:
    x = ones(2, 2)
    return x, x.view(-1)


def two_halves() -> tuple[Any, ...]:
    x = ones(4)
    return x[:2], x[2:]


def leaf() -> tuple[Any, ...]:
    return (ones(2, 2).requires_grad_(),)


SHARED = "in eager these results share memory: a write into one is seen in the other"
BASE = "in eager the result is a view, and its base can be had: result._base"
ONE_VIEW = ("output 0 output_type", "output 0 base_idx", "num_intermediate_bases")
STORAGE = "in eager x has the other tensor's data_ptr after the call"
CASES = [
    Case(reads_only, lambda: (ones(2, 2),)),
    Case(writes_and_returns, lambda: (ones(2, 2),)),
    Case(writes_a_row, lambda: (ones(2, 2),)),
    Case(writes_under_no_grad, lambda: (ones(2, 2),)),
    Case(writes_under_no_grad, leaf),
    Case(writes_under_inference_mode, lambda: (ones(2, 2),)),
    Case(writes_in_both_modes, lambda: (ones(2, 2),)),
    Case(writes_a_detached, lambda: (ones(2, 2),)),
    Case(transposes, lambda: (ones(2, 3),)),
    Case(transposes_there_and_back, lambda: (ones(2, 3),)),
    Case(transposes_and_writes, lambda: (ones(2, 3),)),
    Case(resizes, lambda: (ones(2, 2),)),
    Case(returns_twice, lambda: (ones(2, 2),)),
    Case(returns_values, lambda: (ones(2, 2),)),
    Case(takes_a_number, lambda: (ones(2, 2), 3)),
    Case(leaves_grad_off, lambda: (ones(2, 2),)),
    Case(views_of_both, lambda: (ones(2, 2), ones(2, 3))),
    Case(views_of_both, lambda: (x := ones(2, 2), x.view(4, 1))),
    Case(detaches, lambda: (ones(2, 2),)),
    Case(gives_x_the_gradient_of_w, lambda: (ones(2), ones(2).requires_grad_())),
    Case(views_of_a_differentiable_base, leaf),
    Case(one_view_of_a_base, leaf, dict.fromkeys(ONE_VIEW, BASE)),
    Case(one_view_of_a_base, lambda: (ones(2, 2),), dict.fromkeys(ONE_VIEW, BASE)),
    Case(views_of_a_base_that_only_they_show, leaf),
    Case(writes_data, lambda: (ones(2, 2),), {
        "input 0 mutations_hidden_from_autograd": "in eager x._version is what it was before the call",
    }),
    Case(swaps_storage, lambda: (ones(2), ones(2)), {
        "input 0 mutates_metadata": STORAGE,
        "input 0 mutates_storage_metadata": STORAGE,
        "input 0 mutation_type": STORAGE,
    }),
    Case(swaps_storage_and_writes, lambda: (ones(2), ones(2)), {
        "input 0 mutates_data": "in eager a view of x from before the call still reads the old elements",
        "input 0 mutates_metadata": STORAGE,
        "input 0 mutates_storage_metadata": STORAGE,
        "input 0 mutations_hidden_from_autograd": "in eager the elements that x came with are not written",
        "input 1 mutates_data": "in eager y reads the written elements after the call",
        "input 1 mutation_type": "in eager y reads the written elements after the call",
    }),
    Case(writes_the_first, matrix_and_its_view, {
        "input 1 mutates_data": "in eager b, a view of a, reads the written elements",
        "input 1 mutation_type": "in eager b, a view of a, reads the written elements",
        "input 1 mutations_hidden_from_autograd": "in eager b._version counts the write to a",
    }),
    Case(writes_one_of_two_halves, two_halves),
    Case(writes_the_first, same_twice),
    Case(lambda a, b: a, same_twice, {
        "output 0 base_idx": "both arguments are the same object: the first is as right as the last",
    }),
    Case(base_and_views, lambda: (ones(2, 2),), {
        "output 1 output_type": SHARED, "output 1 base_idx": SHARED,
        "output 2 output_type": SHARED, "output 2 base_idx": SHARED,
    }),
    Case(views_only, lambda: (ones(2, 2),), {
        "output 0 output_type": SHARED, "output 0 base_idx": SHARED,
        "output 1 output_type": SHARED, "output 1 base_idx": SHARED, "num_intermediate_bases": SHARED,
    }),
    Case(frees_storage, lambda: (ones(2, 2),), {
        "input 0 mutation_inductor_storage_resize": "in eager the storage has 0 bytes after the call",
        "input 0 mutation_type": "in eager the storage has 0 bytes after the call",
    }),
]  # fmt: skip


@pytest.mark.parametrize("keep", [False, True], ids=["out_of_graph", "in_graph"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.program.__name__)
def test_agrees_with_pytorch_except_where_eager_is_with_us(case: Case, *, keep: bool) -> None:
    ours = facts_of(collect_metadata(case.program, keep_input_mutations=keep)(*case.arguments()))
    theirs = facts_of(peer_metadata(case.program, case.arguments(), keep=keep))
    torch.set_grad_enabled(True)
    different = {name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)}
    assert different == set(case.differs)


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
