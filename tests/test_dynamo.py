"""purefx as a back end of torch.compile: graphs of Dynamo's behave as eager."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._higher_order_ops.while_loop import while_loop

import purefx
from purefx.dynamo import purefx as without_compiler
from purefx.pipeline import run_stages
from tests.functional.kinds import NOTHING, Programs, ramp
from tests.support.dynamo import WITH_INDUCTOR, Recording, through
from tests.support.oracle import assert_same_as_eager

programs = Programs()
pytestmark = pytest.mark.usefixtures("fresh_dynamo")


# ---- what a caller sees


@programs(lambda: (ramp(3, 4),))
def an_input_is_written_by_a_view(x: Tensor) -> Any:
    x[1].mul_(2)
    return x.sum()


@programs(lambda: (ramp(3, 4),))
def results_are_views_of_an_input(x: Tensor) -> Any:
    x.add_(1)
    return x.t(), x[0], x


@programs(lambda: (ramp(3, 4),))
def results_are_views_of_each_other(x: Tensor) -> Any:
    y = x + 1
    return y, y[0], y.view(-1)


@programs(lambda: ((x := ramp(6))[:4], x[2:]))
def overlapping_inputs_are_written(a: Tensor, b: Tensor) -> Any:
    a.mul_(3)
    return a + b


@programs(lambda: (ramp(4), ramp(4)))
def a_piece_of_a_split_is_written(x: Tensor, y: Tensor) -> Any:
    first, second = x.split(2)
    first.copy_(second)
    return y * x, second


@programs(lambda: ([ramp(2), ramp(3)], {"x": ramp(2)}))
def containers_go_in_and_out(xs: list[Tensor], named: dict[str, Tensor]) -> Any:
    xs[0].add_(named["x"])
    return {"all": xs, "one": named["x"] * 2}


@programs(lambda: (ramp(4), 3))
def a_number_is_given_and_returned(x: Tensor, n: int) -> Any:
    return x.mul_(n), n + 1, x.shape


@programs(lambda: (ramp(4),))
def random_numbers_are_those_of_eager(x: Tensor) -> Any:
    y = torch.rand(4) + nn.functional.dropout(x, 0.5)
    return y, x.bernoulli_(0.5)


@programs(lambda: (ramp(5), ramp(5) > 2))
def a_mask_selects_what_is_written(x: Tensor, mask: Tensor) -> Any:
    x[mask] = -1
    return x * 2


@programs(lambda: (ramp(2, 2),))
def constants_are_put_together(x: Tensor) -> Any:
    y = x.clone()[0:1]
    y[0, 0] = 8
    return y.squeeze(), torch.tensor([1.0, 2.0]) * x


@programs(lambda: (torch.zeros(6),))
def a_window_that_overlaps_itself_is_filled(x: Tensor) -> Any:
    h = x.clone()
    h.as_strided((3, 2), (1, 1)).fill_(5)
    return h


BACKENDS = {"no compiler": without_compiler, "inductor": WITH_INDUCTOR}


@pytest.mark.parametrize("below", BACKENDS)
@pytest.mark.parametrize("name", programs.names())
def test_a_program_cannot_be_told_from_eager(name: str, below: str) -> None:
    program = programs[name]
    assert_same_as_eager(program.function, program.make, system=through(BACKENDS[below]))


@pytest.mark.parametrize("below", BACKENDS)
def test_a_batch_of_gradients_is_taken_in_what_dynamo_runs(below: str) -> None:
    def function(x: Tensor, tangents: Tensor) -> Any:
        y = x * 2
        y[0].mul_(3)
        return torch.autograd.grad(y, x, tangents, is_grads_batched=True)

    def make() -> Any:
        return torch.arange(1.0, 4.0).requires_grad_(), torch.eye(3)

    assert_same_as_eager(function, make, system=through(BACKENDS[below], fullgraph=False))


@pytest.mark.parametrize("name", programs.names())
def test_a_program_of_any_size_cannot_be_told_from_eager(name: str) -> None:
    program = programs[name]
    assert_same_as_eager(program.function, program.make, system=through(without_compiler, dynamic=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_graph_break_between_a_view_and_its_write_is_not_seen(mode: Callable[[], Any]) -> None:
    def broken(x: Tensor) -> Any:
        row = x.add_(1)[0]
        torch._dynamo.graph_break()
        row.mul_(3)
        return row, x.t()

    def in_mode(x: Tensor) -> Any:
        with mode():
            return broken(x)

    ignore = (
        frozenset({"version"}) if mode is torch.inference_mode else NOTHING
    )  # there purefx.compile counts no writes
    assert_same_as_eager(
        in_mode, lambda: (ramp(2, 2),), system=through(without_compiler, fullgraph=False), ignore=ignore
    )


def test_parameters_and_buffers_are_found_and_written() -> None:
    def trained(model: Any) -> Any:
        with torch.no_grad():
            results = [model(ramp(3, 2) * scale) for scale in (1, 2)]
        return results, model.state_dict()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU())
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = trained(model)
    expected = (expected[0], {name: tensor.clone() for name, tensor in expected[1].items()})
    model.load_state_dict(state)
    found = trained(torch.compile(model, backend=without_compiler))
    torch.testing.assert_close(list(found[1].values()), list(expected[1].values()))
    torch.testing.assert_close(found[0], expected[0])


def test_a_module_that_a_graph_holds_is_called() -> None:
    traced = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2, bias=False)).requires_grad_(requires_grad=False))
    compiled = without_compiler(traced, [ramp(1, 2)])
    assert torch.equal(compiled(ramp(1, 2)), traced(ramp(1, 2)))


def steps(compile: Callable[[nn.Module], Any]) -> tuple[list[float], list[Tensor]]:
    """Losses and parameters of a small model trained for three steps, with dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2))
    run, optimizer, losses = compile(model), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for step in range(3):
        torch.manual_seed(step)
        loss = run(torch.randn(5, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [x.detach() for x in model.state_dict().values()]


@pytest.mark.parametrize("below", BACKENDS)
def test_a_model_is_trained_as_in_eager(below: str) -> None:
    found = steps(lambda model: torch.compile(model, backend=BACKENDS[below]))
    torch.testing.assert_close(found, steps(lambda model: model))


@pytest.mark.parametrize("below", BACKENDS)
def test_gradients_flow_through_writes_and_views(below: str) -> None:
    def f(x: Tensor, w: Tensor) -> Any:
        y = x * 2
        y[0].mul_(w)
        return y.t(), y.sum()

    def arguments() -> tuple[Tensor, Tensor]:
        return ramp(2, 3).requires_grad_(), ramp(3).requires_grad_()

    assert_same_as_eager(f, arguments, system=through(BACKENDS[below]))


# ---- captures


def test_inputs_that_share_memory_only_at_a_later_call_are_captured_anew() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    compiled = torch.compile(f, backend=without_compiler, fullgraph=True)
    for make in (lambda: (ramp(4), ramp(4)), lambda: ((b := ramp(6))[:4], b[1:5]), lambda: (ramp(4), ramp(4) + 1)):
        given, expected = make(), make()
        assert torch.equal(compiled(*given), f(*expected))
        assert [x.tolist() for x in given] == [x.tolist() for x in expected]


SIZED: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "a size in a view": (lambda x: (x.mul_(2).view(x.shape[0] * 2), x.shape[0]), lambda n: (ramp(n, 2),)),
    "sizes of two inputs": (lambda x, y: x @ y, lambda n: (ramp(3, n), ramp(n, 2))),
    "a stride": (lambda x: x + 1, lambda n: (ramp(n, 3 * n)[:, ::3],)),
    "part of a buffer": (lambda c, x: c[: x.shape[0]].copy_(x), lambda n: (ramp(9), ramp(n))),
    "a size in a branch": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x.sin() * x.shape[0], lambda x: x.cos(), (x,)),
        lambda n: (ramp(n, 2),),
    ),
    "a size in a loop": (
        lambda x: while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1],
        lambda n: (ramp(n, 2),),
    ),
}


@pytest.mark.parametrize("name", SIZED)
def test_one_graph_runs_at_many_sizes(name: str) -> None:
    function, make = SIZED[name]
    compiler = Recording()
    compiled = torch.compile(function, backend=purefx.backend(compiler), fullgraph=True, dynamic=True)
    for n in (4, 5, 6, 8):
        given, expected = make(n), make(n)
        torch.testing.assert_close(compiled(*given), function(*expected), rtol=0, atol=0)
        torch.testing.assert_close(given, expected, rtol=0, atol=0)
    assert len(compiler.graphs) == 1


def test_inductor_runs_one_graph_at_many_sizes() -> None:
    compiled = torch.compile(SIZED["a size in a view"][0], backend=WITH_INDUCTOR, fullgraph=True, dynamic=True)
    for n in (3, 4, 5):
        x = ramp(n, 2)
        torch.testing.assert_close(compiled(x), (ramp(n, 2).mul_(2).view(n * 2), n))
        assert torch.equal(x, ramp(n, 2) * 2)


def test_a_number_that_is_no_size_is_specialised_on() -> None:
    compiler = Recording()
    compiled = torch.compile(lambda x, n: x * n, backend=purefx.backend(compiler), fullgraph=True, dynamic=True)
    for n in (3, 4, 3):
        assert torch.equal(compiled(ramp(4), n), ramp(4) * n)
    assert len(compiler.graphs) == 2


def test_what_raises_with_symbols_is_captured_at_each_size(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(function: Any, args: Any, kwargs: Any, *, dynamic: bool, **options: Any) -> Any:
        if dynamic:
            raise RuntimeError("no symbols, please")
        return run_stages(function, args, kwargs, dynamic=dynamic, **options)

    monkeypatch.setattr("purefx.dynamo.run_stages", raising)
    compiler = Recording()
    compiled = torch.compile(lambda x: x.mul_(2)[0], backend=purefx.backend(compiler), dynamic=True)
    with caplog.at_level(logging.INFO, logger="purefx"):
        for rows in (4, 6, 4):
            assert torch.equal(compiled(ramp(rows, 3)), ramp(rows, 3)[0] * 2)
    assert caplog.text.count("symbols for them raise: no symbols, please") == len(compiler.graphs) == 2


def test_nothing_is_captured_while_dynamo_compiles() -> None:
    module = fx.symbolic_trace(lambda x: x.view(7))
    compiled = without_compiler(module, [ramp(3)])
    with pytest.raises(RuntimeError, match="shape '\\[7\\]' is invalid"):
        compiled(ramp(3))
    assert compiled(ramp(7)).shape == (7,)


# ---- together with Dynamo


FRONTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "compile": purefx.compile,
    "functionalize": purefx.functionalize,
}


@pytest.mark.parametrize("front", FRONTS)
def test_dynamo_does_not_look_into_what_purefx_compiled(front: str) -> None:
    inner = FRONTS[front](lambda x: x.mul_(2) + 1)
    assert torch.compile(lambda x: inner(x + 1) - 1, backend="eager")(ramp(2)).tolist() == [2, 4]


DOORS: dict[str, Callable[..., object]] = {
    "check": purefx.check,
    "explain": purefx.explain,
    "trace": purefx.trace,
    "collect_metadata": lambda f, x: purefx.collect_metadata(f)(x),
    **{name: lambda f, x, front=front: front(f)(x) for name, front in FRONTS.items()},
}


class Doubling(nn.Module):
    """Has a method that torch.compile can make something of."""

    def forward(self, x: Tensor) -> Tensor:
        """Twice ``x``."""
        return x.mul_(2) + 1


def double(x: Tensor) -> Tensor:
    """Twice ``x``."""
    return x.mul_(2) + 1


MADE: dict[str, Callable[[Recording], Callable[..., Any]]] = {
    "function": lambda compiler: torch.compile(double, backend=compiler),
    "module": lambda compiler: torch.compile(Doubling(), backend=compiler),
    "method": lambda compiler: MethodType(torch.compile(Doubling.forward, backend=compiler), Doubling()),
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("door", DOORS)
def test_what_torch_compile_has_made_is_looked_at_without_dynamo_which_takes_it_afterwards(
    door: str, kind: str
) -> None:
    compiler = Recording()
    made = MADE[kind](compiler)
    assert DOORS[door](made, ramp(3)) is not None
    assert not compiler.graphs
    assert made(ramp(3)).tolist() == [1, 3, 5]
    assert len(compiler.graphs) == 1


def test_dynamo_takes_afterwards_what_a_captured_program_has_called() -> None:
    compiler = Recording()
    made = torch.compile(double, backend=compiler)
    purefx.explain(lambda x: made(x) * 2, ramp(3))
    made(ramp(3))
    assert len(compiler.graphs) == 1


def test_a_loop_runs_in_eager_after_a_capture_of_it() -> None:
    def counted(x: Tensor) -> Any:
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1]

    purefx.trace(counted, ramp(3))
    assert torch.equal(counted(ramp(3)), ramp(3) * 8)


@pytest.mark.parametrize("kind", MADE)
def test_it_is_said_that_torch_compile_has_made_what_is_looked_at(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    assert purefx.explain(MADE[kind](Recording()), ramp(3)).name in ("double", "Doubling", "forward")
    assert "torch.compile made it; purefx takes what it was made of" in caplog.text


def test_torch_compile_knows_the_back_end_by_its_name_without_an_import() -> None:
    program = """
import sys
import torch

f = torch.compile(lambda x: x.mul_(2) + 1, backend="purefx", fullgraph=True)
assert "purefx.dynamo" in sys.modules
x = torch.ones(2)
print(f(x).tolist(), x.tolist())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout == "[3.0, 3.0] [2.0, 2.0]\n", ran.stderr


def test_a_parameter_whose_data_is_swapped_between_uses_gets_both_gradients() -> None:
    def f(p: Tensor, fresh: Tensor) -> Tensor:
        y = p * p
        with torch.no_grad():
            p.data = fresh * 2
        return y + p

    found = []
    for program in (f, torch.compile(f, backend="purefx")):
        p = torch.ones(3, requires_grad=True)
        program(p, torch.full((3,), 5.0)).sum().backward()
        assert p.grad is not None
        found.append((p.grad.tolist(), p.tolist(), p._version))
    assert found[0] == found[1]


@pytest.mark.parametrize("module", [nn.Dropout(0.5), nn.LayerNorm(4), nn.ELU(0.3)])
def test_numbers_that_dynamo_passes_in_tensors_may_be_chosen_by(module: nn.Module) -> None:
    compiled = torch.compile(module, backend=without_compiler, dynamic=True)
    for rows in (2, 3):
        x = ramp(rows, 4)
        torch.manual_seed(0)
        expected = module(x)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(x), expected)


def test_a_number_that_changes_is_not_specialised_on_where_nothing_is_chosen_by_it() -> None:
    compiled = torch.compile(lambda x, p: x * p, backend=without_compiler)
    schedule = torch.compile(lambda x, p: nn.functional.dropout(x, p) * p, backend=without_compiler)
    for p in (0.1, 0.2, 0.3):
        torch.testing.assert_close(compiled(ramp(3), p), ramp(3) * p)
        torch.manual_seed(0)
        expected = nn.functional.dropout(ramp(3), p) * p
        torch.manual_seed(0)
        torch.testing.assert_close(schedule(ramp(3), p), expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_draws_the_same_numbers_again(*, reentrant: bool) -> None:
    def inner(x: Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(nn.functional.dropout, x, use_reentrant=reentrant)

    def nested(x: Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda x: inner(x) * 2, x, use_reentrant=False)

    for f in (inner, nested) if not reentrant else (inner,):
        x = torch.ones(1000, requires_grad=True)
        y = torch.compile(f, backend=without_compiler)(x)
        y.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, y.detach())


def test_a_parameter_whose_data_is_swapped_for_what_it_has_gets_both_gradients() -> None:
    def f(p: Tensor, fresh: Tensor) -> Tensor:
        y = p.exp()
        p.data = fresh
        return y + p.sin()

    found = []
    for program in (f, torch.compile(f, backend="purefx")):
        p, fresh = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
        for _ in range(2):  # the second time it shows that memory already
            program(p, fresh).sum().backward()
        assert p.grad is not None
        found.append(p.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_writes_what_it_reaches_by_itself(*, reentrant: bool) -> None:
    def trained(system: Any) -> list[Any]:
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU(inplace=True))

        def f(x: Tensor) -> Tensor:
            for _ in range(2):
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)
            return x

        compiled, x = system(f), ramp(4, 3).sin().requires_grad_()
        for _ in range(2):
            compiled(x).square().sum().backward()
        return [x.grad, *(w.grad for w in block.parameters()), *block.buffers()]

    torch.testing.assert_close(trained(through(without_compiler)), trained(lambda f: f))
