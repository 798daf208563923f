"""Compilers below purefx follow the conventions of PyTorch's aot_autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._decomp import core_aten_decompositions
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table

import purefx
from purefx.autodiff.partition import Partition
from purefx.compilers import Compilers
from purefx.dynamo import DynamoBackend
from purefx.functional.verify import check_functional
from tests.functional.kinds import ramp
from tests.support.dynamo import WITH_INDUCTOR, Recording, through
from tests.support.oracle import assert_same_as_eager

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def written(a: Tensor, b: Tensor) -> Any:
    """Writes one of two tensors that may overlap, and returns a view."""
    a.mul_(3)
    y = a + b
    return y, y[0]


def test_a_compiler_gets_a_functional_graph_with_fake_examples() -> None:
    compiler = Recording()
    torch.compile(written, backend=purefx.backend(compiler))(ramp(4), ramp(4))
    ((graph,), (examples,)) = compiler.graphs, compiler.examples
    check_functional(graph.graph)
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    assert [node.meta["val"].shape for node in placeholders] == [x.shape for x in examples]
    assert all(isinstance(x, torch._subclasses.FakeTensor) for x in examples)


def test_each_node_has_the_line_that_it_comes_from() -> None:
    compiler = Recording()
    purefx.compile(written, backend=compiler)(ramp(4), ramp(4))
    (graph,) = compiler.graphs
    traces = [node.stack_trace or "" for node in graph.graph.nodes if node.op == "call_function"]
    assert any(trace.endswith("in written\n    a.mul_(3)\n") for trace in traces)
    assert any(trace.startswith(f'  File "{__file__}", line ') for trace in traces)


def test_symbols_are_given_as_pytorch_gives_them() -> None:
    compiler = Recording()
    torch.compile(lambda x: x.view(x.shape[0] * 2) + 1, backend=purefx.backend(compiler), dynamic=True)(ramp(5, 2))
    assert isinstance(compiler.examples[0][0], torch.SymInt)


def test_the_sizes_that_a_backward_takes_are_symbols_too() -> None:
    seen: list[list[str]] = []

    def compiler(module: fx.GraphModule, examples: list[Any]) -> Any:
        seen.append([type(example).__name__ for example in examples])
        return module.forward

    compiled = torch.compile(lambda x: x.exp().sum() / x.shape[0], backend=purefx.backend(compiler), dynamic=True)
    for n in (3, 6):
        x = torch.ones(n, 2, requires_grad=True)
        compiled(x).backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, torch.ones(n, 2).exp() / n)
    assert [set(kinds) for kinds in seen] == [{"FakeTensor", "SymInt"}] * 2


def test_inductor_trains_at_many_sizes() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w).exp().sum(0) / x.shape[0]).sum()

    compiled = torch.compile(f, backend=WITH_INDUCTOR, dynamic=True)
    w = torch.ones(4, 5, requires_grad=True)
    for n in (3, 6):
        gradients = [torch.autograd.grad(g(torch.ones(n, 4) / n, w), w)[0] for g in (f, compiled)]
        torch.testing.assert_close(*gradients)


def dropped_after_a_norm(x: Tensor) -> Tensor:
    return F.dropout(F.layer_norm(x, (8,)), 0.3)


def filled_after_a_norm(x: Tensor) -> Tensor:
    return F.softmax(x, -1) + x.detach().sin().bernoulli_(0.4)


def drawn_with_and_without_copies(x: Tensor) -> Tensor:
    h = torch.zeros(6, 8)
    y = F.dropout(x.softmax(-1), 0.3)
    h[:, ::2].uniform_()
    z = torch.rand_like(x)
    h[:, 1::2].normal_()
    return y + z + F.dropout(F.layer_norm(h + x + z, (8,)), 0.3)


RANDOM = (dropped_after_a_norm, filled_after_a_norm, drawn_with_and_without_copies)


@pytest.mark.parametrize("partition", ["default", "min_cut"])
@pytest.mark.parametrize("function", RANDOM)
def test_inductor_draws_the_numbers_of_eager(function: Callable[[Tensor], Tensor], partition: Partition) -> None:
    x = torch.sin(torch.arange(48.0)).view(6, 8).requires_grad_()
    compiled = torch.compile(function, backend=purefx.backend("inductor", partition=partition))
    made = []
    for run in (function, compiled):
        torch.manual_seed(0)
        y = run(x)
        made.append((y, *torch.autograd.grad(y.square().sum(), x), torch.get_rng_state()))
    torch.testing.assert_close(*made)


def rows_and_then_a_choice(x: Tensor, rows: Tensor) -> Tensor:
    y = x + 1
    y[rows] = 5.0
    y[y > 1.5] = -1.0
    return y


def rows_in_another_order(x: Tensor, rows: Tensor) -> Tensor:
    y = x.exp()
    y[rows] = y[:4].clone()
    return y


def rows_in_any_order(x: Tensor, rows: Tensor) -> Tensor:
    y = x.exp()
    y[torch.randperm(6)] = y.clone()
    return y


WRITTEN_BY_INDEX = (rows_and_then_a_choice, rows_in_another_order, rows_in_any_order)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", WRITTEN_BY_INDEX)
def test_inductor_writes_by_index_what_eager_writes(function: Callable[..., Tensor], *, dynamic: bool) -> None:
    def make() -> tuple[Tensor, Tensor]:
        return torch.sin(torch.arange(24.0)).view(6, 4), torch.tensor([2, 1, 0, 3])

    assert_same_as_eager(function, make, system=through(WITH_INDUCTOR, dynamic=dynamic))


def test_the_passes_of_the_user_run_in_inductor() -> None:
    seen: list[int] = []
    with config.patch(
        post_grad_custom_post_pass=lambda graph: seen.append(len(graph.nodes)), force_disable_caches=True
    ):
        torch.compile(lambda x: x + 1, backend=WITH_INDUCTOR)(ramp(2))
    assert seen


def test_a_table_of_decompositions_does_not_undo_what_inductor_must_not_see() -> None:
    x = torch.sin(torch.arange(48.0)).view(6, 8).requires_grad_()
    table = {**core_aten_decompositions(), **select_decomp_table()}
    compiled = torch.compile(dropped_after_a_norm, backend=purefx.backend("inductor", decompositions=table))
    assert not compiled(x).isnan().any()


def test_a_boxed_callable_gets_one_list_that_it_may_empty() -> None:
    def boxing(module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        def run(inputs: list[Any]) -> Any:
            given = tuple(inputs)
            inputs.clear()
            return list(module(*given))

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    assert_same_as_eager(written, lambda: ((x := ramp(6))[:4], x[2:]), system=through(purefx.backend(boxing)))
    assert_same_as_eager(written, lambda: ((x := ramp(6))[:4], x[2:]), system=lambda f: purefx.compile(f, boxing))


def test_what_is_compiled_must_return_a_tuple() -> None:
    backend = purefx.backend(lambda module, examples: lambda x: x + 1)
    with pytest.raises(purefx.PurefxError, match="returned a Tensor, not the 1 outputs"):
        torch.compile(lambda x: x + 1, backend=backend)(ramp(2))


def test_outputs_that_compiled_code_made_as_views_show_no_base() -> None:
    backend = purefx.backend(lambda module, examples: lambda x: ((x + 1).view(-1).view(2),))
    assert_same_as_eager(lambda x: x + 1, lambda: (ramp(2),), system=through(backend))


def test_a_graph_without_gradients_goes_to_the_inference_compiler() -> None:
    forward, backward, inference = Recording(), Recording(), Recording()
    backend = purefx.backend(forward, backward, inference_compiler=inference)
    torch.compile(lambda x: x + 1, backend=backend)(ramp(2))
    assert (len(forward.graphs), len(backward.graphs), len(inference.graphs)) == (0, 0, 1)


def test_graphs_with_gradients_go_to_the_forward_and_the_backward_compiler() -> None:
    forward, backward, inference = Recording(), Recording(), Recording()
    compiled = torch.compile(nn.Linear(2, 2), backend=purefx.backend(forward, backward, inference_compiler=inference))
    result = compiled(ramp(3, 2))
    assert (len(forward.graphs), len(backward.graphs), len(inference.graphs)) == (1, 0, 0)
    result.sum().backward()
    assert (len(forward.graphs), len(backward.graphs), len(inference.graphs)) == (1, 1, 0)


def test_the_first_compiler_stands_in_for_the_others() -> None:
    forward, backward = Recording(), Recording()

    def runs(backend: DynamoBackend) -> list[int]:
        compilers = backend.compilers
        assert isinstance(compilers, Compilers)
        before = len(forward.graphs), len(backward.graphs)
        for compiler in (compilers.forward, compilers.backward, compilers.inference):
            compiler(fx.symbolic_trace(lambda x: (x + 1,)), [ramp(2)])
        return [len(forward.graphs) - before[0], len(backward.graphs) - before[1]]

    assert runs(purefx.backend(forward)) == [3, 0]
    assert runs(purefx.backend(forward, backward)) == [2, 1]


def test_decompositions_are_applied_to_the_functional_graph() -> None:
    compiler = Recording()

    def silu(x: Tensor) -> Tensor:
        return x * x.sigmoid()

    backend = purefx.backend(compiler, decompositions={torch.ops.aten.silu.default: silu})
    x = ramp(3)
    with torch.autocast("cpu"):
        result = torch.compile(lambda x: nn.functional.silu(x.add_(1)), backend=backend)(x)
    torch.testing.assert_close(result, nn.functional.silu(ramp(3) + 1))
    called = [node.target for node in compiler.graphs[0].graph.nodes if node.op == "call_function"]
    assert called == [torch.ops.aten.add.Tensor, torch.ops.aten.sigmoid.default, torch.ops.aten.mul.Tensor]
    assert all("val" in node.meta for node in compiler.graphs[0].graph.nodes if node.op == "call_function")
    check_functional(compiler.graphs[0].graph)


def test_a_writing_operator_without_a_twin_stays_one_call_when_decomposed() -> None:
    @torch.library.custom_op("test_dynamo::add_both_", mutates_args={"x", "y"})
    def add_both_(x: Tensor, y: Tensor, n: int) -> None:
        x.add_(n)
        y.add_(2 * n)

    def f(x: Tensor, out: Tensor) -> Tensor:
        add_both_(x[0], x[1], x.shape[0])
        return out.copy_(x[0] * x[1])

    uncounted = frozenset({"version"})  # eager counts the writes inside the operator too
    assert_same_as_eager(f, lambda: (ramp(2, 2), ramp(2)), system=through(WITH_INDUCTOR), ignore=uncounted)


def test_no_random_number_is_drawn_by_compiling() -> None:
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    assert torch.equal(torch.compile(lambda: torch.rand(4) * 1, backend=WITH_INDUCTOR)(), expected)


def test_an_unknown_name_of_a_compiler_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no compiler 'indutcor'"):
        purefx.backend("indutcor")


def test_an_unknown_partition_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no partition 'max_cut'"):
        purefx.backend(Recording(), partition="max_cut")  # type: ignore[arg-type]  # that is the point


def test_options_that_it_does_not_have_are_told(caplog: pytest.LogCaptureFixture) -> None:
    torch.compile(lambda x: x + 1, backend=purefx.backend(Recording()), options={"level": 3})(ramp(2))
    assert "has no options" in caplog.text
