"""The runner of a graph runs the very operators of the graph, however it spells them, less those that it need not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from purefx.pipeline import run_stages
from purefx.runtime.runner import build_runner
from tests.functional.kinds import Function, Programs, ramp
from tests.support.running import Running

programs = Programs()
aten = torch.ops.aten


@programs(lambda: (ramp(3, 4), ramp(4)))
def reductions_and_elements(x: Tensor, y: Tensor) -> Any:
    a = x.sum() + x.sum(1, keepdim=True) + x.mean() + x.mean(0) + x.amax(1, keepdim=True) + x.std(1, keepdim=True)
    b = torch.where(x > y, x**2, x.sqrt().tanh()) * (x == y).masked_fill(x < 2, value=True)
    return a + b, x.gather(1, torch.zeros(3, 1, dtype=torch.int64)), x.index_select(0, torch.tensor([2, 0]))


@programs(lambda: (ramp(2, 3, 4, 4), ramp(3)))
def networks(x: Tensor, y: Tensor) -> Any:
    z = nn.functional.conv2d(x, torch.ones(5, 3, 2, 2), y.sum().expand(5))
    z = nn.functional.batch_norm(z, torch.zeros(5), torch.ones(5))
    z = nn.functional.layer_norm(nn.functional.selu(z), (3,)).log_softmax(1) + nn.functional.gelu(z).softmax(1)
    return nn.functional.max_pool2d(z, 2), nn.functional.embedding(torch.tensor([0, 1]), z.flatten(1))


@programs(lambda: (ramp(3, 4),))
def made_and_copied(x: Tensor) -> Any:
    y = torch.ones(2, 4, dtype=torch.float64) + torch.full((4,), 2) + torch.zeros_like(x).sum() + torch.arange(4)
    x = x.t().clone(memory_format=torch.contiguous_format).t()
    x[1] = y.triu()[0].to(torch.float32)
    return torch.cat([x, x.cumsum(0)]), torch.stack([x, torch.nn.functional.pad(x, (1, 0))[:, 1:]]), x @ x.T


@pytest.mark.parametrize("name", programs)
def test_the_runner_runs_the_operators_of_the_graph(name: str) -> None:
    program = programs[name]
    functional = run_stages(program.function, program.make(), {}, dynamic=False).functional
    run, args = build_runner(functional), program.make()
    with Running() as running:
        run(*args)
    assert running.ops == [n.target for n in functional.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]


def ops_run(function: Function, *args: Tensor, unseen: bool = False) -> list[str]:
    """The names of the operators that the runner runs for ``function``, whose values are those of eager."""
    run = build_runner(run_stages(function, args, {}, dynamic=False).functional, unseen=unseen)
    with Running() as running:
        found = run(*args)
    expected = function(*args)
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(found, expected, strict=True))
    return running.names


def test_what_gives_its_operand_back_is_not_run() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = (x * 1 / 1.0) ** 1.0
        return y.view(3, 4).clone().exp(), y.expand(3, 4) + 2

    assert ops_run(function, ramp(3, 4)) == ["exp.default", "add.Tensor"]


def test_a_view_is_taken_once() -> None:
    assert ops_run(lambda x: (x.t() + 1, x.t() * 2), ramp(3, 4)) == ["t.default", "add.Tensor", "mul.Tensor"]


def test_an_operator_that_changes_dtype_or_strides_or_makes_an_output_is_run() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        dense = x.t().clone(memory_format=torch.contiguous_format)
        return x * 1, dense + 0, x.to(torch.int32) * 1.0 + 0, x.expand(2, 3, 4) * 1 + 0

    run = ops_run(function, ramp(3, 4))
    assert run.count("mul.Tensor") == 3
    assert run.count("clone.default") == 1


def test_a_complex_number_times_one_may_be_another() -> None:
    infinite = torch.tensor([complex(float("inf"), 1.0)])
    assert ops_run(lambda x: (torch.isnan(x * 1),), infinite)[0] == "mul.Tensor"


def test_a_batch_of_outer_products_is_one_of_elements() -> None:
    a, b = ramp(2, 3, 1), ramp(2, 1, 4)
    assert ops_run(lambda a, b: (a @ b,), a, b, unseen=True)[-1] == "mul.Tensor"
    assert ops_run(lambda a, b: (a @ b,), a, b)[-1] == "bmm.default"
    assert ops_run(lambda a, b: (a @ b,), ramp(2, 3, 2), ramp(2, 2, 4), unseen=True)[-1] == "bmm.default"


def test_a_small_constant_is_made_once_unless_it_is_an_output() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x + torch.ones(3), torch.zeros(3), x * torch.ones(3), torch.zeros(2, 3)

    made = ["ones.default", "zeros.default", "zeros.default"]
    assert [op for op in ops_run(function, ramp(3)) if op in made] == made
    assert [op for op in ops_run(function, ramp(3), unseen=True) if op in made] == made[1:]


def test_what_is_computed_with_elementwise_alone_is_not_expanded() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        mean, row = (x.sum().expand(3, 4) / 2).neg(), x.sum(1, keepdim=True).expand(3, 4)
        return mean * x, x - row

    ops = ops_run(function, ramp(3, 4))
    assert ops == ["sum.default", "div.Tensor", "neg.default", "sum.dim_IntList", "mul.Tensor", "sub.Tensor"]


def test_what_is_read_by_others_or_decides_the_layout_is_expanded() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        returned, read, dense = (n.expand(3, 4) / 2 for n in (x.sum(), x.mean(), x.amax()))
        wide = x.amin().double().expand(3, 4)
        return returned, returned * x, read.exp() * x, dense * x.t().contiguous().t(), wide * x

    assert ops_run(function, ramp(3, 4)).count("expand.default") == 4


def test_a_sum_whose_dimensions_are_left_out_again_keeps_none() -> None:
    def summed(dims: list[int], *sizes: int) -> int:
        return len(ops_run(lambda x: (x.sum(dims, keepdim=True).view(sizes).sqrt(),), ramp(3, 4)))

    assert summed([0], 4) == summed([-1], 3) == summed([0, 1]) == 2
    assert summed([0], 2, 2) == summed([0], 4, 1) == 3
    assert summed([], 1, 1) == 2


def test_a_cast_is_one_operator() -> None:
    assert ops_run(lambda x: ((x > 1).to(torch.float64), x.to(torch.int32)), ramp(3)) == [
        "gt.Scalar", "_to_copy.default", "_to_copy.default",
    ]  # fmt: skip
