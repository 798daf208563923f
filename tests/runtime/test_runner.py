"""The runner of a graph runs the very operators of the graph, however it spells them, less those that it need not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from purefx.pipeline import run_stages
from purefx.runtime.runner import build_runner
from tests.functional.kinds import Function, Programs, ramp

programs = Programs()
aten = torch.ops.aten


class Recorded(TorchDispatchMode):
    """The operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


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
    with Recorded() as recorded:
        run(*args)
    assert recorded.ops == [n.target for n in functional.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]


def ops_run(function: Function, *args: Tensor, unseen: bool = False) -> list[str]:
    """The names of the operators that the runner runs for ``function``, whose values are those of eager."""
    run = build_runner(run_stages(function, args, {}, dynamic=False).functional, unseen=unseen)
    with Recorded() as recorded:
        found = run(*args)
    expected = function(*args)
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(found, expected, strict=True))
    return [str(op).removeprefix("aten.") for op in recorded.ops]


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
