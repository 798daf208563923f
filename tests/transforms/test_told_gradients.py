"""Gradients that the program tells itself, by cuts, hooks and functions of its own: those of a loop over examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import batch_norm
from torch.utils.checkpoint import checkpoint

import purefx
from purefx import errors, func

Function = Callable[..., Any]
W = torch.tensor(2.0, dtype=torch.float64)
XS = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


class Clipped(torch.autograd.Function):
    """The identity; its gradient is not linear in what arrives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """The very tensor, which autograd makes a view of."""
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """What arrives, but no more than 1.5."""
        return gradient.clamp(-1.5, 1.5)


class Older(torch.autograd.Function):
    """A function that PyTorch's transforms refuse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """A copy."""
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The sign of what arrives."""
        return gradient.sign()


def clip(gradient: Tensor) -> Tensor:
    return gradient.clamp(-1.5, 1.5)


def hooked(w: Tensor, x: Tensor) -> Tensor:
    y = w * 1
    y.register_hook(clip)
    return y * x


def hooked_between_writes(w: Tensor, x: Tensor) -> Tensor:
    y = w * x
    y.mul_(2)
    y.register_hook(clip)
    y.mul_(3)
    return y


def hooked_result(w: Tensor, x: Tensor) -> Tensor:
    y = w * x
    y.register_hook(clip)
    return y


def hooked_node(w: Tensor, x: Tensor) -> Tensor:
    y = w * x
    assert y.grad_fn is not None
    y.grad_fn.register_hook(lambda inputs, outputs: tuple(None if g is None else g * 10 for g in inputs))
    return y * 1


def detached_in_place(w: Tensor, x: Tensor) -> Tensor:
    y = w * x
    z = y * 1
    y.detach_()
    return z * w + y * w


def cut(w: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = w * x
    return y * w


def swapped(w: Tensor, x: Tensor) -> Tensor:
    y = w * x
    y.data = x * 2
    return y * w


def saved_otherwise(w: Tensor, x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return w.sin() * x


def recomputed(w: Tensor, x: Tensor) -> Tensor:
    result: Tensor = checkpoint(lambda w: (w * x).sin(), w, use_reentrant=False)
    return result


def differentiated_inside(w: Tensor, x: Tensor) -> Tensor:
    z = (w * x).detach().requires_grad_()
    (slope,) = torch.autograd.grad(z**3, z)
    return slope * w


def kept(w: Tensor, x: Tensor) -> Tensor:
    y = w * x
    y.retain_grad()
    return y * 2


TOLD: dict[str, Function] = {
    "a function": lambda w, x: Clipped.apply(w) * x,
    "a function of each": lambda w, x: Clipped.apply(w * x).view(1).sum(),
    "an older function": lambda w, x: Older.apply(w) * x,
    "a hook": hooked,
    "a hook between writes": hooked_between_writes,
    "a hook on the result": hooked_result,
    "a hook on a node": hooked_node,
    "detach_": detached_in_place,
    "no_grad": cut,
    "data": swapped,
    "a gradient inside": differentiated_inside,
    "retain_grad": kept,
}
NOT_UNDER_GRAD: dict[str, Function] = {"saved tensors": saved_otherwise, "checkpoint": recomputed}
"""What PyTorch refuses while one of its transforms computes gradients."""


def loop(f: Function) -> Function:
    return lambda w, xs: torch.stack([f(w, x) for x in xs])


def total(batched: Function) -> Function:
    return lambda w: batched(w, XS).pow(2).sum() / 2


def by_autograd(function: Function, at: Tensor = W) -> Tensor:
    leaf = at.clone().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf)[0]


def vmapped(f: Function) -> Function:
    return torch.func.vmap(f, (None, 0))


WAYS: dict[str, Callable[[Function], Tensor]] = {
    "autograd": lambda f: by_autograd(total(vmapped(purefx.compile(f)))),
    "autograd of no leaf": lambda f: by_autograd(lambda w: total(vmapped(purefx.compile(f)))(w * 1)),
    "grad": lambda f: torch.func.grad(total(vmapped(purefx.compile(f))))(W),
    "around": lambda f: by_autograd(purefx.compile(total(func.vmap(f, (None, 0))))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", TOLD)
def test_gradients_of_a_batch_are_those_of_a_loop(program: str, way: str) -> None:
    f = TOLD[program]
    torch.testing.assert_close(WAYS[way](f), by_autograd(total(loop(f))))


@pytest.mark.parametrize("program", TOLD)
def test_so_are_those_of_each_example(program: str) -> None:
    f = TOLD[program]
    found = torch.func.vmap(torch.func.grad(purefx.compile(f)), (None, 0))(W, XS)
    torch.testing.assert_close(found, torch.stack([by_autograd(lambda w, x=x: f(w, x)) for x in XS]))


@pytest.mark.parametrize("program", NOT_UNDER_GRAD)
def test_what_autograd_saves_may_be_hooked(program: str) -> None:
    f = NOT_UNDER_GRAD[program]
    expected = by_autograd(total(loop(f)))
    torch.testing.assert_close(WAYS["autograd"](f), expected)
    torch.testing.assert_close(WAYS["around"](f), expected)
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        WAYS["grad"](f)


def shared(w: Tensor) -> Tensor:
    result: Tensor = Clipped.apply(w)
    return result


def shared_within(w: Tensor) -> Tensor:
    result: Tensor = func.vmap(lambda w, y: Clipped.apply(w) * y, (None, 0))(w, XS).sum()
    return result


@pytest.mark.parametrize("f", [shared, shared_within])
def test_what_all_examples_share_has_the_gradient_of_each(f: Function) -> None:
    def plain(w: Tensor) -> Tensor:
        return sum((Clipped.apply(w) * y for y in XS), torch.zeros(())) if f is shared_within else shared(w)

    compiled = purefx.compile(f)
    expected = by_autograd(total(lambda w, xs: torch.stack([plain(w) * x for x in xs])))

    def batch(w: Tensor, xs: Tensor) -> Any:
        return torch.func.vmap(lambda x: compiled(w) * x)(xs)

    torch.testing.assert_close(by_autograd(total(batch)), expected)
    torch.testing.assert_close(torch.func.grad(total(batch))(W), expected)


def test_a_hook_on_an_argument_is_put_on_that() -> None:
    def f(w: Tensor, x: Tensor) -> Tensor:
        w.register_hook(lambda g: g * 10)
        return w * x

    expected, found = (torch.func.grad(lambda w, g=g: vmapped(g)(w, XS).sum() + w)(W) for g in (f, purefx.compile(f)))
    torch.testing.assert_close(found, expected)
    with pytest.raises(errors.TransformRefused, match="a hook is registered on args"):
        torch.func.grad(lambda xs: torch.func.vmap(purefx.compile(f), (0, None))(xs, W).sum())(XS)


def test_a_hook_where_no_gradient_is_asked_for_raises_as_in_eager() -> None:
    with pytest.raises(RuntimeError, match="cannot register a hook"):
        torch.func.vmap(purefx.compile(hooked), (None, 0))(W, XS)


def test_a_hook_for_accumulated_gradients_is_refused() -> None:
    def f(w: Tensor, x: Tensor) -> Tensor:
        w.register_post_accumulate_grad_hook(lambda p: None)
        return w * x

    with pytest.raises(errors.UnsupportedOperator, match="accumulated"):
        vmapped(purefx.compile(f))(W.clone().requires_grad_(), XS)


def test_a_gradient_through_a_batch_that_a_function_has_made_a_view_of_is_not_cut_off() -> None:
    class Square(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * gradient

    def second(compiled: Callable[[Any], Any], x: Tensor) -> Any:
        square = compiled(lambda a: Square.apply(a * 1))
        gradient = compiled(torch.func.grad(lambda y: torch.func.vmap(square)(y).sin().sum()))
        return torch.func.vjp(gradient, x)[1](torch.ones_like(x))[0]

    x = torch.tensor([0.3, 0.6, 0.9])
    torch.testing.assert_close(second(purefx.compile, x), second(lambda f: f, x))


Y = torch.tensor([0.5, 0.6, 0.7], dtype=torch.float64)


def detached_and_written(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    v = x * y
    w = v.detach()
    w.copy_(v + y)
    return w, v


def views_of_it(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    v = x * y
    w = v.detach()
    first, last = w[:2], w[1:]
    w.mul_(y)
    return first, last, v


def views_and_it(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    v = x * y
    w = v.detach()
    part = w[:2]
    part.mul_(y[:2])
    return part, w, v


def detached_twice(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    v = x * y
    w, u = v.detach(), v.detach()
    w.mul_(y)
    u.mul_(y * y)
    return w, u, v


def detached_argument(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    w = x.detach()
    w.copy_(y * 2)
    return w, x * 1, x


def written_without_gradients(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        x.copy_(y * 2)
    return x * 1, x


def data_written(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    v = x * y
    w = v.data
    w.mul_(y)
    return w, v


def detached_without_gradients(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    v = x * y
    with torch.no_grad():
        w = v.detach()
    w.mul_(y)
    u = v.detach()
    with torch.no_grad():
        u.mul_(y)
    return w, u, v


APART = [
    detached_and_written,
    views_of_it,
    views_and_it,
    detached_twice,
    detached_argument,
    written_without_gradients,
    data_written,
    detached_without_gradients,
]


def weighed(f: Function, which: int) -> Function:
    """A number that depends on result number ``which`` of ``f`` alone, or on the first argument afterwards."""

    def weigh(x: Tensor, y: Tensor) -> Tensor:
        x = x * 1
        results = (*f(x, y), x)
        return results[which].sin().sum() + 0 * y.sum()

    return weigh


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("f", APART)
def test_results_that_share_memory_have_each_its_own_history(f: Function, which: int) -> None:
    x = Y + 1
    leaves = [x.clone().requires_grad_(), Y.clone().requires_grad_()]
    expected = torch.autograd.grad(weighed(f, which)(*leaves), leaves, allow_unused=True, materialize_grads=True)
    compiled = weighed(purefx.compile(f), which)
    torch.testing.assert_close(torch.func.grad(compiled, (0, 1))(x, Y), expected)

    def twice(x: Tensor, y: Tensor) -> Tensor:
        results: Tensor = torch.func.vmap(compiled)(x.expand(2, 3), y.expand(2, 3))
        return results.sum() / 2

    torch.testing.assert_close(torch.func.grad(twice, (0, 1))(x, Y), expected)
    if f is not data_written:  # PyTorch has no such tangents
        slopes = [torch.func.jacfwd(weighed(g, which), (0, 1))(x, Y) for g in (f, purefx.compile(f))]
        torch.testing.assert_close(*slopes)


def test_a_write_by_the_caller_is_seen_by_results_that_share_memory() -> None:
    def f(x: Tensor) -> Tensor:
        w, v = purefx.compile(detached_and_written)(x, Y)
        w.mul_(3)
        return v.detach().sum() + v.sum()

    def by_eager(x: Tensor) -> Tensor:
        w, v = detached_and_written(x, Y)
        w.mul_(3)
        return v.detach().sum() + v.sum()

    torch.testing.assert_close(torch.func.grad_and_value(f)(Y), torch.func.grad_and_value(by_eager)(Y))


def only_with_gradients(w: Tensor, x: Tensor) -> Tensor:
    y = w * 1
    if y.requires_grad:
        y.register_hook(clip)
    return y * x


AROUND: dict[str, Callable[[Function], Function]] = {
    "vmap of grad": lambda g: func.vmap(func.grad(g)),
    "torch's grad": lambda g: func.vmap(torch.func.grad(g)),
    "torch's vmap": lambda g: torch.func.vmap(func.grad(g)),
    "a loop": lambda g: purefx.compile(lambda ws: torch.stack([torch.func.grad(g)(w) for w in ws])),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("f", [hooked, only_with_gradients])
def test_a_hook_sees_the_gradient_of_an_example_within_a_captured_gradient(f: Function, around: str) -> None:
    ws = torch.stack([W, W / 3])
    expected = torch.stack([by_autograd(total(loop(f)), w) for w in ws])
    found = AROUND[around](total(func.vmap(f, (None, 0))))(ws)
    torch.testing.assert_close(found, expected)


def test_data_has_no_gradient_for_any_transform() -> None:
    value_and_slope = func.grad_and_value(lambda x: x.data.sin().sum())
    results, pull = func.vjp(value_and_slope, XS)
    torch.testing.assert_close(pull(tuple(map(torch.ones_like, results))), (torch.zeros_like(XS),))


def view_of_argument(x: Tensor) -> Tensor:
    v = x.view(-1)
    v.register_hook(torch.sin)
    return v


def view_beside(x: Tensor) -> tuple[Tensor, Tensor]:
    v = x * 2
    u = v.view(-1)
    u.register_hook(torch.sin)
    return v, u


def view_of_view(x: Tensor) -> tuple[Tensor, Tensor]:
    v = x * 2
    u = v.view(-1)
    u.register_hook(torch.sin)
    return v, u[0]


def view_of_what_is_lost(x: Tensor) -> Tensor:
    v = x.view(-1)
    v.register_hook(torch.sin)
    return v[0]


def view_after_a_write(x: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)
    v = x.view(-1)
    v.register_hook(torch.sin)
    return v, v[1]


def view_with_a_hook_taken_off(x: Tensor) -> Tensor:
    v = x.view(-1)
    v.register_hook(torch.sin).remove()
    return v[0]


VIEWS = [
    view_of_argument,
    view_beside,
    view_of_view,
    view_of_what_is_lost,
    view_after_a_write,
    view_with_a_hook_taken_off,
]


@pytest.mark.parametrize("f", VIEWS)
def test_a_hook_on_a_view_is_seen_by_what_is_returned_of_it(f: Function) -> None:
    x = torch.tensor([[0.3, 0.5]], dtype=torch.float64)

    def number(f: Function) -> Function:
        leaves = torch.utils._pytree.tree_leaves
        return lambda x: sum((y * (i + 1)).cos().sum() for i, y in enumerate(leaves(f(x * 1))))

    expected, compiled = by_autograd(number(f), x), number(purefx.compile(f))
    torch.testing.assert_close(by_autograd(compiled, x), expected)
    torch.testing.assert_close(torch.func.grad(compiled)(x), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(compiled))(x[None])[0], expected)
    batched = torch.func.grad(lambda xs: torch.func.vmap(compiled)(xs).sum())(x[None])
    torch.testing.assert_close(batched[0], expected)


def test_a_hook_on_a_view_that_is_written_over_is_refused() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        v = x * 2
        u = v.view(-1)
        u.register_hook(torch.sin)
        v.mul_(3)
        return v, u

    with pytest.raises(errors.GradientsRefused, match="a result with a hook"):
        purefx.compile(f)(torch.ones(2, 2, requires_grad=True))


def counts(w: Tensor, mean: Tensor, var: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    mean.add_((w.detach() * x).sin())
    return w * x, x * 2, w.detach() * x, w.sign() + var


def normalized(w: Tensor, mean: Tensor, var: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return (batch_norm(w * torch.stack([x, x.sin()])[:, None], mean, var, training=True),)


@pytest.mark.parametrize("f", [counts, normalized])
@pytest.mark.parametrize("around", [False, True])
def test_what_autograd_does_not_see_has_no_history(f: Function, *, around: bool) -> None:
    def steps(batched: Function) -> list[Any]:
        weights, mean, var = XS.clone().requires_grad_(), XS[:, None] * 0, XS[:, None] * 1
        for _ in range(2):  # a history of ``mean`` would reach back into the first step
            results = batched(weights, mean, var, W)
            results[0].sum().backward()
        return [weights.grad, mean, var, mean.requires_grad, *results, *(x.requires_grad for x in results)]

    dims = (0, 0, 0, None)
    found = func.vmap(f, dims) if around else torch.func.vmap(purefx.compile(f), dims)
    torch.testing.assert_close(steps(found), steps(torch.func.vmap(f, dims)))
