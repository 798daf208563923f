"""The functional graph: which inputs it has, which views it makes again, and how little it gives back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx.functional.signature import BaseOutput, ResultOutput, RootInput, WrittenOutput
from purefx.functional.verify import check_functional
from tests.functional.kinds import ramp
from tests.support.oracle import assert_same_as_eager


def program_of(function: Callable[..., Any], *args: Any) -> purefx.Program:
    """The traced program, whose graph the verifier accepts."""
    program = purefx.trace(function, *args)
    check_functional(program.graph)
    return program


def ops(program: purefx.Program) -> list[str]:
    """The operators of the graph, in order, without namespace and overload."""
    return [str(n.target).split(".")[1] for n in program.graph.nodes if n.op == "call_function"]


def bases(program: purefx.Program) -> list[str | None]:
    """For each input of the graph the argument that it is; None for a synthetic base."""
    inputs = [g for g in program.stages.functional.inputs if isinstance(g, RootInput)]
    return [None if g.root.base is None else g.root.base.name for g in inputs]


def kinds(program: purefx.Program) -> list[type]:
    return [type(output) for output in program.stages.functional.outputs]


def written(program: purefx.Program) -> list[int]:
    """How many elements each write-back has."""
    return [o.region.geometry.numel for o in program.stages.functional.outputs if isinstance(o, WrittenOutput)]


def write_first(a: Tensor, b: Tensor) -> Tensor:
    a.add_(1)
    return b * 2


# ---- A: inputs that share memory


def test_a1_the_same_tensor_twice_is_one_input() -> None:
    x = ramp(3)
    program = program_of(write_first, x, x)
    assert bases(program) == ["args[0]"]
    assert ops(program) == ["add", "mul"]


def test_a1_equal_views_are_one_input_whatever_their_objects() -> None:
    x = ramp(3, 4)
    program = program_of(write_first, x[1:], x[1:])
    assert len(bases(program)) == 1
    assert ops(program) == ["add", "mul"]


@pytest.mark.parametrize(
    ("view", "chain"),
    [
        (lambda x: x.view(-1), ["view"]),
        (lambda x: x.t(), ["permute"]),
        (lambda x: x[1], ["select"]),
        (lambda x: x[:, 1:3], ["slice"]),
        (lambda x: x.diagonal(), ["diagonal"]),
        (lambda x: x.unsqueeze(1).expand(3, 2, 4), ["unsqueeze", "expand"]),
        (lambda x: x.view(torch.int32), ["view"]),
    ],
    ids=["view", "t", "select", "slice", "diagonal", "expand", "dtype"],
)
def test_a2_a_covering_input_is_elected_and_the_view_is_made_again(
    view: Callable[[Tensor], Tensor], chain: list[str]
) -> None:
    x = ramp(3, 4)
    program = program_of(write_first, x, view(x))
    assert bases(program) == ["args[0]"]
    assert ops(program) == ["add", *chain, "mul"]
    assert written(program) == [12]


def test_a2_the_covering_input_is_elected_wherever_it_stands() -> None:
    x = ramp(3, 4)
    program = program_of(write_first, x[0], x)
    assert bases(program) == ["args[1]"]
    assert written(program) == [4]


def test_a3_where_none_covers_the_others_a_base_is_made_up() -> None:
    x = ramp(5)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            program = program_of(write_first, x[:3], x[1:])
        assert bases(program) == [None]
        (placeholder,) = (n for n in program.graph.nodes if n.op == "placeholder")
        assert program.stages.functional.values[placeholder].geometry.sizes == (5,)
        assert "as_strided" not in ops(program)
        assert [f.name for f in program.signature.arguments] == ["a", "b"]


@pytest.mark.parametrize(
    "cut",
    [lambda x: (x[::2], x[1::2]), lambda x: (x[:3], x[3:]), lambda x: (x, x[:0]), lambda x: (x[4:], x[:4])],
    ids=["interleaved", "halves", "empty", "swapped halves"],
)
def test_a3_inputs_without_a_common_element_stay_apart(cut: Callable[[Tensor], Any]) -> None:
    program = program_of(write_first, *cut(ramp(8)))
    assert None not in bases(program)
    assert {"add", "mul"} <= set(ops(program)) <= {"add", "slice", "mul"}


def test_a3_overlapping_inputs_that_are_only_read_stay_apart() -> None:
    x = ramp(5)
    assert bases(program_of(lambda a, b: a * b, x[:4], x[1:])) == ["args[0]", "args[1]"]


def test_a4_views_that_are_all_written_are_written_back_once() -> None:
    def program(a: Tensor, b: Tensor, c: Tensor) -> None:
        a.add_(1)
        b.mul_(2)
        c.sub_(3)

    x = ramp(3, 4)
    assert written(program_of(program, x, x.view(-1), x.t())) == [12]
    assert sum(written(program_of(program, x[:2], x[1:], x[1]))) <= 12


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: (x[0], x[:, 1]),
        lambda x: (x.t()[1:], x.diagonal()),
        lambda x: (x[1:, :2], x[:2, 1:]),
        lambda x: (x.view(-1)[2:9], x[::2]),
    ],
    ids=["row and column", "columns and diagonal", "windows", "run and rows"],
)
def test_a5_relations_are_chains_of_views_not_as_strided(cut: Callable[[Tensor], Any]) -> None:
    x = ramp(4, 4)
    assert not [op for op in ops(program_of(write_first, *cut(x))) if "as_strided" in op]
    assert not [op for op in ops(program_of(write_first, cut(x)[1], x)) if "as_strided" in op]


def write_both(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(2)
    b[0] = 1
    return a.sum() + b.sum()


def test_a8_inputs_of_different_dtypes_over_one_storage_are_one_input() -> None:
    x, z = ramp(4), torch.zeros(3, dtype=torch.complex64)
    for a, b in ((x, x.view(torch.int32)), (x.view(torch.int16), x), (z, torch.view_as_real(z)), (z.imag, z)):
        program = program_of(write_both, a, b)
        assert len(bases(program)) == 1
        assert not [op for op in ops(program) if "as_strided" in op]


# ---- outputs


def test_d10_outputs_are_written_regions_then_results_then_bases() -> None:
    def program(x: Tensor) -> Any:
        y, z = x * 2, x.sum()
        x.add_(1)
        return y[0], z, y, x

    assert kinds(program_of(program, ramp(3))) == [WrittenOutput, ResultOutput, BaseOutput]


def test_b4_a_result_that_nobody_else_shares_needs_no_base() -> None:
    assert kinds(program_of(lambda x: (x * 2).t().contiguous(), ramp(2, 3))) == [ResultOutput]


def test_e4_only_the_written_region_is_given_back() -> None:
    def program(cache: Tensor, x: Tensor) -> Tensor:
        cache[:, 7:8].copy_(x)
        return cache.sum()

    program_ = program_of(program, torch.zeros(2, 64, 3), torch.ones(2, 1, 3))
    assert written(program_) == [6]
    assert "slice_scatter" not in ops(program_)


def test_a_write_through_a_view_reads_only_what_it_writes() -> None:
    def program(x: Tensor) -> None:
        x[1].mul_(2)

    assert ops(program_of(program, ramp(3, 4))) == ["select", "mul"]


@pytest.mark.parametrize("where", ["argument", "inside"])
def test_e3_nodes_grow_with_the_rows_that_are_written(where: str) -> None:
    def fill(buffer: Tensor | None, x: Tensor) -> Tensor:
        buffer = torch.zeros_like(x) if buffer is None else buffer
        for i in range(len(x)):
            buffer[i] = x[i] * 2
        return buffer.sum()

    def nodes(rows: int) -> int:
        buffer = torch.zeros(rows, 3) if where == "argument" else None
        return len(program_of(fill, buffer, ramp(rows, 3)).graph.nodes)

    small, large = nodes(8), nodes(16)
    assert nodes(32) - large == 2 * (large - small)
    assert large <= 16 * 3 + 8


# ---- what stays, and what goes


def test_random_operators_stay_in_order_though_nothing_reads_them() -> None:
    def program(x: Tensor) -> Any:
        torch.rand(2)
        y = torch.randn(3)
        x.normal_()
        torch.randperm(4)
        return y

    assert ops(program_of(program, ramp(3))) == ["rand", "randn", "normal_functional", "randperm"]


def test_what_nothing_reads_is_gone() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        y.exp().sum()
        z = x.clone()
        z.add_(1)
        return x * 2

    program_ = program_of(program, ramp(3), ramp(3))
    assert ops(program_) == ["mul"]
    assert bases(program_) == ["args[0]"]


def test_geometry_writes_and_swaps_of_data_leave_no_trace_in_the_graph() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.t_().unsqueeze_(0)
        x.data = y
        return x.add_(1)

    program_ = program_of(program, ramp(2, 3), ramp(3))
    assert ops(program_) == ["add"]
    assert bases(program_) == ["args[1]"]


def test_a_write_and_its_undoing_by_a_whole_write_is_one_write() -> None:
    def program(x: Tensor, y: Tensor) -> None:
        x.mul_(2)
        x[1:].sub_(4)
        x.copy_(y)

    assert ops(program_of(program, ramp(3), ramp(3))) == ["clone"]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.empty(2).copy_((x * 2)[2:]),
        lambda x: copied_and_written(x[1:]),
        lambda x: (x * 2)[2:],
    ],
)
def test_a_result_with_memory_of_its_own_has_no_more_than_eager_gives(program: Any) -> None:
    """The value may be a part of another, or have the offset of an argument; the result starts its storage."""
    assert_same_as_eager(program, lambda: (ramp(4),), system=purefx.compile)


def copied_and_written(x: Tensor) -> Tensor:
    made = torch.empty(3)
    made.copy_(x)
    made[::2] = 5.0
    return made


def test_memory_without_a_common_root_is_read_as_the_dtype_it_is_asked_for() -> None:
    def arguments() -> tuple[Tensor, ...]:
        base = torch.arange(4.0).reshape(1, 4)
        return base.unfold(1, 2, 1), base.view(torch.int32)

    assert_same_as_eager(lambda a, b: b.expand(2, -1) * 1, arguments, system=purefx.compile)


def test_repeated_elements_that_overlap_are_taken_once() -> None:
    def arguments() -> tuple[Tensor, ...]:
        return (torch.arange(12.0).reshape(3, 4).unfold(1, 2, 1).expand(2, -1, -1, -1),)

    assert_same_as_eager(lambda a: a.flip(0), arguments, system=purefx.compile)


def test_memory_that_is_made_up_takes_in_what_lies_in_it() -> None:
    """What ``view`` shows is of no argument; a base made up of it and of ``a`` has the first element of ``b`` in it."""

    def program(a: Tensor, b: Tensor) -> Tensor:
        view = b.as_strided((2,), (1,), 0)
        b.mul_(5)
        b[0] += 6
        return view

    def arguments() -> tuple[Tensor, ...]:
        memory = torch.arange(32.0)
        return memory[6:8], memory[2::8]

    assert_same_as_eager(program, arguments, system=purefx.compile)


def test_a_value_that_is_copied_on_is_not_overwritten() -> None:
    """The new value of ``b`` is that of ``a`` between its two writes."""

    def program(a: Tensor, b: Tensor) -> None:
        a.add_(1)
        b.copy_(a)
        a.add_(1)

    assert purefx.check(program, torch.zeros(2), torch.zeros(2))


def test_a_result_is_not_the_argument_that_it_was_copied_from() -> None:
    def program(a: Tensor) -> Tensor:
        a.add_(1)
        kept = torch.empty(2)
        kept.copy_(a)
        a.add_(1)
        return kept

    assert purefx.check(program, torch.zeros(2))
