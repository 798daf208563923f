"""``purefx.func`` is ``torch.func``: its signatures, and what a nest does not say (randomness, chunks, ``has_aux``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx.errors import TransformRefused
from tests.transforms.layouts import numbers
from tests.transforms.support import assert_right, nest_of

func: Any = pytest.importorskip("purefx.func")
NAMES = (
    "vmap",
    "grad",
    "grad_and_value",
    "vjp",
    "jvp",
    "jacrev",
    "jacfwd",
    "hessian",
    "linearize",
    "functional_call",
)
X = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], dtype=torch.float64)


def doubled_in_place(x: Tensor) -> Tensor:
    """``2 * x.sin()``, by views and writes."""
    y = x.sin()
    view = y.view(-1)
    view[:1].mul_(2)
    y[1:].mul_(2)
    return view


def number(x: Tensor) -> Tensor:
    """The sum of that."""
    return doubled_in_place(x).sum()


@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_those_of_torch(name: str) -> None:
    theirs = inspect.signature(getattr(torch.func, name)).parameters
    ours = inspect.signature(getattr(func, name)).parameters
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values() if not p.name.startswith("_")
    ]


# ---- random numbers


def drawn(x: Tensor) -> Tensor:
    """Random numbers, written to a tensor made inside."""
    y = torch.zeros(3, dtype=torch.float64)
    y.copy_(torch.rand(3, dtype=torch.float64))
    return x + y


def drawn_in_place(x: Tensor) -> Tensor:
    """Random numbers by an operator that writes."""
    y = x.clone()
    y[:2].uniform_()
    return y


def dropped(x: Tensor) -> Tensor:
    """Dropout in place."""
    y = x * 1
    torch.nn.functional.dropout(y.view(-1), 0.5, training=True, inplace=True)
    return y


def dropped_out_of_place(x: Tensor) -> Tensor:
    """The same without a write."""
    return torch.nn.functional.dropout(x * 1, 0.5, training=True)


RANDOM = (drawn, drawn_in_place, dropped)
EQUAL = torch.full((4, 3), 0.5, dtype=torch.float64)


def seeded(function: Callable[..., Any], *args: Any) -> Any:
    """What the function gives after a seed."""
    torch.manual_seed(0)
    return function(*args)


@pytest.mark.parametrize("f", RANDOM)
def test_the_same_numbers_are_drawn_for_all_examples(f: Callable[[Tensor], Tensor]) -> None:
    result = seeded(func.vmap(f, randomness="same"), EQUAL)
    assert all(torch.equal(row, result[0]) for row in result)
    assert torch.equal(result[0], seeded(f, EQUAL[0]))


def test_each_example_draws_its_own_numbers() -> None:
    for f in (drawn, drawn_in_place):
        result = seeded(func.vmap(f, randomness="different"), EQUAL)
        assert len({tuple(row.tolist()) for row in result}) == 4
    many = torch.ones(64, 3, dtype=torch.float64)
    assert len({tuple(row.tolist()) for row in seeded(func.vmap(dropped, randomness="different"), many)}) > 1


def test_numbers_are_those_of_torch() -> None:
    for randomness in ("same", "different"):
        expected = seeded(torch.func.vmap(dropped_out_of_place, randomness=randomness), EQUAL)
        assert torch.equal(seeded(func.vmap(dropped, randomness=randomness), EQUAL), expected)


@pytest.mark.parametrize("f", RANDOM)
def test_random_numbers_are_refused_unless_one_says_how(f: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match="randomness"):
        func.vmap(f)(EQUAL.clone())
    with pytest.raises(RuntimeError, match="randomness"):
        func.vmap(func.grad(lambda x: f(x).sum()), randomness="error")(EQUAL.clone())


def test_gradients_see_the_numbers_that_were_drawn() -> None:
    def scaled(x: Tensor) -> Tensor:
        y = torch.zeros(3, dtype=torch.float64)
        y.uniform_()
        return (x * y).sum()

    gradient = seeded(func.vmap(func.grad(scaled), randomness="different"), EQUAL)
    value = seeded(func.vmap(scaled, randomness="different"), EQUAL)
    torch.testing.assert_close((gradient * EQUAL).sum(1), value)
    assert len({tuple(row.tolist()) for row in gradient}) == 4


# ---- chunks


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 5, 7])
def test_chunks_cannot_be_told_from_the_whole(chunk_size: int) -> None:
    body = ["v = a.view(-1)", "a.mul_(2.0)", "y = torch.zeros(3, dtype=torch.float64)", "y.copy_(v)", "y.sin_()"]
    around = f"func.vmap(f, in_dims=(1, None), out_dims=(1, 0), chunk_size={chunk_size})"
    assert_right([nest_of([numbers([3, 5], 0), numbers([2], 1)], body, "(y, v * b.sum())", [around])])


def test_chunks_draw_numbers_of_their_own() -> None:
    result = seeded(func.vmap(drawn, randomness="different", chunk_size=2), EQUAL)
    assert len({tuple(row.tolist()) for row in result}) == 4


@pytest.mark.parametrize("chunk_size", [1, 2, 4])
def test_a_jacobian_may_be_made_in_chunks(chunk_size: int) -> None:
    expected = torch.diag(2 * X[0].cos())
    torch.testing.assert_close(func.jacrev(doubled_in_place, chunk_size=chunk_size)(X[0]), expected)
    torch.testing.assert_close(func.jacfwd(doubled_in_place, randomness="error")(X[0]), expected)


# ---- what comes beside


def test_something_may_come_beside_the_result() -> None:
    def beside(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y = doubled_in_place(x)
        return y.sum(), {"y": y}

    x, value, slope = X[0], 2 * X[0].sin(), 2 * X[0].cos()
    for transform in (func.grad, func.jacrev, func.jacfwd):
        gradient, aux = transform(beside, has_aux=True)(x)
        torch.testing.assert_close(gradient, slope)
        torch.testing.assert_close(aux["y"], value)
    gradient, (result, aux) = func.grad_and_value(beside, has_aux=True)(x)
    torch.testing.assert_close((gradient, result, aux["y"]), (slope, value.sum(), value))
    result, pull, aux = func.vjp(beside, x, has_aux=True)
    torch.testing.assert_close((result, pull(torch.ones_like(result))[0], aux["y"]), (value.sum(), slope, value))
    result, tangent, aux = func.jvp(beside, (x,), (x,), has_aux=True)
    torch.testing.assert_close((result, tangent, aux["y"]), (value.sum(), (slope * x).sum(), value))


def test_arguments_and_results_may_be_trees() -> None:
    def f(tree: dict[str, Any], *, scale: float) -> dict[str, Tensor]:
        y = tree["x"] * scale
        y[0].add_(tree["pair"][0])
        return {"y": y, "z": tree["pair"][1]}

    tree = {"x": X, "pair": (torch.ones((), dtype=torch.float64), X)}
    in_dims = ({"x": 0, "pair": (None, 0)},)
    result = func.vmap(lambda t: f(t, scale=3.0), in_dims=in_dims, out_dims={"y": 1, "z": 0})(tree)
    expected = X * 3
    expected[:, 0] += 1
    torch.testing.assert_close(result, {"y": expected.t(), "z": X})
    gradient = func.grad(lambda t, scale: f(t, scale=scale)["y"].sum())(tree, scale=3.0)
    assert gradient["x"].tolist() == [[3.0] * 3] * 2
    assert (gradient["pair"][0].item(), gradient["pair"][1].abs().sum().item()) == (3.0, 0.0)


def test_a_linear_map_is_made_of_one_run() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        y.mul_(2)
        return x.sin() * y

    x, y = X[0].clone(), X[1].clone()
    result, push = func.linearize(f, x, y)
    expected_x, expected_y = X[0].clone(), X[1].clone()
    expected, expected_push = torch.func.linearize(f, expected_x, expected_y)
    assert torch.equal(y, expected_y)  # which runs it twice
    torch.testing.assert_close(result, expected)
    zeros = torch.zeros_like(x)
    torch.testing.assert_close(push(x, zeros), expected_push(x, zeros))


def test_a_module_is_called_with_other_parameters() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
            self.register_buffer("count", torch.zeros((), dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            y = x * self.weight
            y[:1].mul_(2)
            return y.sum()

    module = Scaled()
    count = torch.zeros((), dtype=torch.float64)

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        result: Tensor = func.functional_call(module, {"weight": weight, "count": count.clone()}, (x,))
        return result

    gradients = func.vmap(func.grad(loss), in_dims=(None, 0))(torch.ones(3, dtype=torch.float64), X)
    expected = X.clone()
    expected[:, 0] *= 2
    torch.testing.assert_close(gradients, expected)
    assert (module.count.item(), count.item()) == (0.0, 0.0)


def test_a_compiled_module_is_called_with_other_parameters() -> None:
    module = torch.nn.Linear(3, 2, dtype=torch.float64)
    compiled = purefx.compile(module)
    weights = {name: x.detach() * 2 for name, x in module.named_parameters()}

    def loss(call: Any, module: Any, weights: dict[str, Tensor]) -> Tensor:
        result: Tensor = call(module, weights, (X[:, :3],)).square().sum()
        return result

    expected = torch.func.grad(partial(loss, torch.func.functional_call, module))(weights)
    torch.testing.assert_close(func.grad(partial(loss, func.functional_call, compiled))(weights), expected)
    torch.testing.assert_close(torch.func.grad(partial(loss, func.functional_call, compiled))(weights), expected)


def test_transforms_of_both_libraries_nest() -> None:
    theirs = import_module("torch.func")
    expected = torch.stack([torch.diag(-2 * row.sin()) for row in X])
    for outer, inner in ((func, theirs), (theirs, func)):
        torch.testing.assert_close(outer.vmap(inner.jacfwd(inner.grad(number)))(X.clone()), expected)
        torch.testing.assert_close(inner.vmap(outer.jacfwd(inner.grad(number)))(X.clone()), expected)
    torch.testing.assert_close(func.vmap(func.hessian(number))(X.clone()), expected)


@pytest.mark.parametrize("out_dims", [0, 1, -1, (1, None)])
def test_what_all_examples_share_may_have_its_batch_anywhere(out_dims: Any) -> None:
    shared = torch.arange(6.0).view(3, 2)
    own, found = func.vmap(lambda x: (x * 2, shared), out_dims=out_dims)(X)
    first, second = out_dims if isinstance(out_dims, tuple) else (out_dims, out_dims)
    assert torch.equal(own, (X * 2).movedim(0, first))
    assert torch.equal(found, shared if second is None else torch.stack([shared] * 2, second))
    with pytest.raises((ValueError, IndexError)):
        func.vmap(lambda x: (x, shared), out_dims=(1, 1, 5))(X)


def by_tuple(lib: Any, x: Tensor) -> Tensor:
    held = (x[0] * 2,)
    return lib.vmap(lambda y: y * held[0])(x)


def by_tuple_in_dict(lib: Any, x: Tensor) -> Tensor:
    held = {"pair": (x[0] * 2, x)}
    return lib.vmap(lib.grad(lambda y: (y * held["pair"][0]).sum()))(x)


def by_default(lib: Any, x: Tensor) -> Tensor:
    return lib.vmap(lambda x: lib.vmap(lambda y, held=(x * 2,): y * held[0])(x.view(3, 1)))(x)


def differentiated(lib: Any, x: Tensor) -> Tensor:
    def total(x: Tensor) -> Tensor:
        first, held = x[0] * 2, [x[1] * 3]
        result: Tensor = lib.vmap(lambda y: y * first * held[0])(x).sum()
        return result

    return lib.grad(total)(x)


def linearized(lib: Any, x: Tensor) -> Tensor:
    return lib.vmap(lib.linearize(doubled_in_place, x[0])[1])(x)


@pytest.mark.parametrize("program", [by_tuple, by_tuple_in_dict, by_default, differentiated, linearized])
def test_a_program_in_a_program_may_reach_what_that_has_made(program: Callable[[Any, Tensor], Tensor]) -> None:
    expected = program(torch.func, X)
    torch.testing.assert_close(program(func, X), expected)
    torch.testing.assert_close(purefx.compile(partial(program, func))(X), expected)


def held_by_tuple(x: Tensor) -> Tensor:
    return func.vmap(lambda y, held=(x[0] * 2,): y * held[0])(x).sum()


def batch_held_by_tuple(x: Tensor) -> Tensor:
    return func.vmap(lambda y, held=(x * 2,): y * held[0].sum())(x).sum()


def test_what_a_transform_has_wrapped_is_not_reached_by_tuples() -> None:
    for run in (torch.func.grad(held_by_tuple), purefx.compile(torch.func.grad(held_by_tuple))):
        with pytest.raises(purefx.Refusal, match=r"test_func.py:(.|\n)*pass the tensor as an argument"):
            run(X)
    with pytest.raises(TransformRefused, match="pass the tensor as an argument"):
        torch.func.vmap(batch_held_by_tuple)(X)
