"""What the results of a call under transforms are functions of, and what a write to one of them breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import vmap

import purefx

Two = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
Outcome = list[Any] | str


def apart(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x.exp(), w.exp() + x.sin()


def of_one_value(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x.exp() * w
    return h.exp(), h.sin() * w


def of_a_sum(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x * 2 + w
    return h.exp(), h.sin()


def of_a_sine(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x.sin() + w
    return h * 1, h.sin()


def cut_off(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x.detach() * w, x.sin()


def written(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x.clone()
    y[1:].mul_(w[1:])
    return y.exp(), w.sin()


def of_nothing(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.ones(3), x * w


def without_a_slope(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = (x - x.detach()) * 1
    return h.sqrt(), h * w


FUNCTIONS: list[Two] = [apart, of_one_value, of_a_sum, of_a_sine, cut_off, written, of_nothing, without_a_slope]
AROUND: dict[str, Callable[[Any], Any]] = {
    "vmap": vmap,
    "shared": lambda f: lambda x, w: vmap(f, in_dims=(0, None))(x, w[0]),
}


def inputs() -> tuple[Tensor, Tensor]:
    x = torch.linspace(0.1, 1, 9).view(3, 3).requires_grad_()
    return x, (x.detach() + 1).requires_grad_()


def outcome(ask: Callable[[], Any]) -> Outcome:
    """What is found, as a list, or what is raised."""
    try:
        return [x.detach() if isinstance(x, Tensor) else x for x in ask()]
    except RuntimeError as error:
        return str(error)[:60]


def assert_same(ask: Callable[[Any], Any], function: Two) -> None:
    expected, found = outcome(lambda: ask(function)), outcome(lambda: ask(purefx.compile(function)))
    assert isinstance(found, str) == isinstance(expected, str), (expected, found)
    if isinstance(found, str):
        assert found == expected
    else:
        assert [x is None for x in found] == [x is None for x in expected]
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("around", ["vmap", "shared"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("order", [1, 2])
def test_no_gradient_is_none_and_no_zeros(function: Two, around: str, number: int, order: int) -> None:
    def ask(f: Any) -> Any:
        x, w = inputs()
        y = AROUND[around](f)(x, w)[number]
        if order == 2:
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return [*torch.autograd.grad(y.sum(), (x, w), allow_unused=True), y.requires_grad]

    def ask_for_all(f: Any) -> Any:
        x, w = inputs()
        y = AROUND[around](f)(x, w)[number]
        if order == 2:
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(y.sum(), (x, w))

    assert_same(ask, function)
    assert_same(ask_for_all, function)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_gradients_of_two_results_are_asked_for_one_after_the_other(function: Two) -> None:
    def ask(f: Any) -> Any:
        x, w = inputs()
        results = vmap(f)(x, w)
        differentiable = [y for y in results if y.requires_grad]
        return [g for y in differentiable for g in torch.autograd.grad(y.sum(), (x, w), allow_unused=True)]

    assert_same(ask, function)


def zero(x: Tensor) -> None:
    with torch.no_grad():
        x.zero_()


@pytest.mark.parametrize("function", [apart, of_one_value, of_a_sum, of_a_sine, written])
@pytest.mark.parametrize("number", [0, 1])
def test_a_write_to_a_result_breaks_the_backward_of_those_that_read_it(function: Two, number: int) -> None:
    def ask(f: Any) -> Any:
        x, w = inputs()
        results = vmap(f)(x, w)
        zero(results[0])
        return torch.autograd.grad(results[number].sum(), (x, w), allow_unused=True)

    assert_same(ask, function)


@pytest.mark.parametrize("function", [apart, of_one_value, of_a_sum, of_a_sine, written])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("around", ["vmap", "shared"])
def test_a_write_between_two_gradients_breaks_the_second_where_it_reads_that(
    function: Two, number: int, place: int, around: str
) -> None:
    def ask(f: Any) -> Any:
        x, w = inputs()
        (gradient,) = torch.autograd.grad(AROUND[around](f)(x, w)[number].sum(), x, create_graph=True)
        zero((x, w)[place])
        return torch.autograd.grad(gradient.sum(), (x, w), allow_unused=True)

    assert_same(ask, function)


@pytest.mark.parametrize("function", [apart, of_one_value, of_a_sum, of_a_sine])
def test_a_result_that_was_written_before_the_first_gradient_is_no_part_of_the_second(function: Two) -> None:
    def ask(f: Any) -> Any:
        x, w = inputs()
        results = vmap(f)(x, w)
        zero(results[0])
        (gradient,) = torch.autograd.grad(results[1].sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.sum(), (x, w), allow_unused=True)

    assert_same(ask, function)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("around", [lambda f: f, vmap])
@pytest.mark.parametrize("pushed", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("given", [inputs, lambda: [x.detach() for x in inputs()]])
def test_no_tangent_is_none_and_no_zeros(function: Two, around: Any, pushed: tuple[bool, ...], given: Any) -> None:
    def ask(f: Any) -> Any:
        leaves = given()
        with forward_ad.dual_level():
            pairs = zip(leaves, pushed, strict=True)
            duals = [forward_ad.make_dual(x, torch.ones_like(x)) if has_tangent else x for x, has_tangent in pairs]
            results = around(f)(*duals)
            found = [forward_ad.unpack_dual(y).tangent for y in results]
            flags = [y.requires_grad for y in (*results, *(t for t in found if t is not None))]
            return [*found, *flags]

    assert_same(ask, function)


def test_the_tangents_of_a_function_are_zeros_where_eager_makes_them() -> None:
    x, w = (x.detach() for x in inputs())
    for function in FUNCTIONS:
        expected = torch.func.jvp(lambda x, f=function: f(x, w), (x,), (x,))
        compiled = purefx.compile(function)
        found = torch.func.jvp(lambda x, f=compiled: f(x, w), (x,), (x,))
        torch.testing.assert_close(found, expected, equal_nan=True)
