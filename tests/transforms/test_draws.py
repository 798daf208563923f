"""Random numbers under transforms: those of eager where eager draws, and drawn once for a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import alpha_dropout, dropout, rrelu

import purefx
from purefx import errors, func

Function = Callable[..., Any]
XS = torch.arange(6, dtype=torch.float64).view(3, 2) / 5
W = torch.ones(2, dtype=torch.float64)

PROGRAMS: dict[str, Function] = {
    "nothing": lambda w, x: torch.randn(2),
    "beside": lambda w, x: (torch.rand(2, 1).t(), x),
    "shared": lambda w, x: dropout(w),
    "like": lambda w, x: torch.rand_like(w) + torch.randint_like(w, 9),
    "integers": lambda w, x: torch.randint(9, (2,)) + torch.randperm(4)[:2],
    "chosen by what all share": lambda w, x: torch.bernoulli(w.sigmoid()),
    "chosen by each": lambda w, x: torch.bernoulli(x.sigmoid()) + torch.normal(x, w) + torch.poisson(x),
    "one of another": lambda w, x: torch.bernoulli(torch.rand(2)) + torch.multinomial(torch.rand(4), 2) + x,
    "filled": lambda w, x: (x * 1).exponential_() + alpha_dropout(x, training=True),
    "thrown away": lambda w, x: (torch.rand(3), x + torch.rand(2))[1],
}


def outcome(function: Function, *args: Any) -> tuple[Any, Any]:
    """What it gives or raises after a seed, and the next random number."""
    torch.manual_seed(0)
    try:
        result = function(*args)
    except RuntimeError as error:
        return str(error), None
    return result, torch.rand(())


def assert_same(found: Any, expected: Any, **tolerance: float) -> None:
    """Compare outcomes."""
    if isinstance(expected[0], str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize("randomness", ["different", "same", "error"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_numbers_and_errors_are_those_of_vmap(program: str, randomness: str) -> None:
    f, found = PROGRAMS[program], purefx.compile(PROGRAMS[program])
    expected, given = (outcome(torch.func.vmap(g, (None, 0), randomness=randomness), W, XS) for g in (f, found))
    assert_same(given, expected, rtol=0, atol=0)


@pytest.mark.parametrize("inner", ["different", "same"])
@pytest.mark.parametrize("outer", ["different", "same"])
@pytest.mark.parametrize("program", ["nothing", "shared", "chosen by what all share"])
def test_each_level_of_vmap_says_who_draws(program: str, outer: str, inner: str) -> None:
    def twice(f: Function) -> Function:
        row = torch.func.vmap(f, (None, 0), randomness=inner)
        return torch.func.vmap(row, (None, 0), randomness=outer)

    f = PROGRAMS[program]
    expected, found = (outcome(twice(g), W, XS) for g in (f, purefx.compile(f)))
    assert_same(found, expected, rtol=0, atol=0)


def loss(w: Tensor, x: Tensor) -> Tensor:
    mask = torch.bernoulli((w * x).sigmoid())
    return (dropout((w * x).sin(), 0.3) * torch.rand(2) * mask).pow(3).sum()


def total(f: Function, randomness: str) -> Function:
    return lambda w: torch.func.vmap(f, (None, 0), randomness=randomness)(w, XS).sum()


ORDERS: dict[str, Callable[[Function], Function]] = {
    "tangent": lambda f: lambda w: torch.func.jvp(f, (w, W), (W, W)),
    "second gradient": lambda f: torch.func.grad(lambda w: torch.func.grad(f)(w, W).sum()),
    "tangent of gradient": lambda f: lambda w: torch.func.jvp(lambda w: torch.func.grad(f)(w, W), (w,), (W,)),
    "gradient of batch": lambda f: torch.func.grad(total(f, "different")),
    "second gradient of batch": lambda f: torch.func.jacrev(torch.func.jacrev(total(f, "different"))),
    "batch of tangents": lambda f: (
        lambda w: torch.func.vmap(lambda x: torch.func.jvp(f, (w, x), (W, x)), randomness="different")(XS)
    ),
    "batch of second gradients": lambda f: (
        lambda w: torch.func.vmap(lambda x: torch.func.jacrev(torch.func.grad(f))(w, x), randomness="different")(XS)
    ),
}


@pytest.mark.parametrize("order", ORDERS)
def test_derivatives_see_the_numbers_that_were_drawn(order: str) -> None:
    transform = ORDERS[order]
    expected = outcome(transform(loss), W)
    torch.testing.assert_close(outcome(transform(purefx.compile(loss)), W), expected)
    torch.testing.assert_close(outcome(purefx.compile(transform(purefx.compile(loss))), W), expected)


def test_numbers_fill_a_tensor_in_the_order_of_its_memory() -> None:
    def columns(x: Tensor) -> Tensor:
        return x.expand(3, 2).clone().t()[:, ::2].uniform_()

    compiled = purefx.compile(columns)
    of_one, of_each, of_all = (
        outcome(torch.func.vmap(compiled, randomness="same"), XS),
        outcome(torch.func.vmap(compiled, randomness="different"), XS),
        outcome(torch.func.vmap(columns, randomness="different"), XS),
    )
    assert torch.equal(of_one[0], outcome(columns, XS[0])[0].expand(3, 2, 2))
    assert_same(of_each, of_all, rtol=0, atol=0)


def test_numbers_for_a_tensor_made_inside_are_drawn_for_each_example() -> None:
    def drawn(x: Tensor) -> Tensor:
        return torch.zeros(2).bernoulli_(torch.full((2,), 0.5))

    result, _ = outcome(func.vmap(drawn, randomness="different"), XS)
    assert len({tuple(row) for row in result.tolist()}) > 1


def test_an_operator_without_a_rule_of_vmap_is_refused() -> None:
    with pytest.raises(errors.TransformRefused, match="no rule"):
        func.vmap(lambda x: rrelu(x, training=True), randomness="same")(XS)


def test_derivatives_see_the_numbers_that_permuted_memory_was_filled_with() -> None:
    def program(x: Tensor) -> Tensor:
        return dropout(x * 0.5) * x

    def pushed(f: Function) -> Function:
        return lambda x: torch.func.jvp(f, (x,), (x,))[1]

    x, compiled = torch.arange(1.0, 10.0).view(3, 3).t(), purefx.compile(program)
    torch.manual_seed(0)
    kept = program(x) != 0
    for transformed in (pushed(compiled), torch.func.grad(lambda x: pushed(pushed(compiled))(x).sum())):
        torch.manual_seed(0)
        assert torch.equal(transformed(x) != 0, kept)
