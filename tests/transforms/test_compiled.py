"""Compiled functions and their backwards under transforms: what runs, what it costs, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import purefx
from purefx import errors, func


def program(x: Tensor) -> Tensor:
    y = x * 2
    y[0].mul_(x[1])
    return y.sin()


def runs_as_it_is(module: Any, examples: Any) -> Any:
    return module.forward


X = torch.arange(12, dtype=torch.float64).reshape(3, 4).sin()
COTANGENTS = torch.arange(60, dtype=torch.float64).reshape(5, 3, 4).cos()


def batch_by_vmap(y: Tensor, x: Tensor) -> Tensor:
    return torch.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(COTANGENTS)


def batch_by_autograd(y: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(y, x, COTANGENTS, is_grads_batched=True)[0]


def second_by_autograd(y: Tensor, x: Tensor) -> Tensor:
    (batch,) = torch.autograd.grad(y, x, COTANGENTS, is_grads_batched=True, create_graph=True)
    return torch.autograd.grad(batch.square().sum(), x)[0]


def penalty(y: Tensor, x: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return torch.autograd.grad(gradient.square().sum(), x)[0]


def pushed(y: Tensor, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(COTANGENTS[0], COTANGENTS[1])
        return torch.cat(forward_ad.unpack_dual(torch.autograd.grad(y, x, dual)[0]))


@pytest.mark.parametrize("backend", [None, runs_as_it_is])
@pytest.mark.parametrize("differentiate", [batch_by_vmap, batch_by_autograd, second_by_autograd, penalty, pushed])
def test_c4_c6_the_backward_of_a_compiled_call_goes_through_transforms(
    differentiate: Callable[[Tensor, Tensor], Tensor], backend: Any
) -> None:
    compiled = purefx.compile(program, backend=backend)
    expected, found = (
        differentiate(f(x), x) for f in (program, compiled) for x in [X.clone().requires_grad_()]
    )  # fmt: skip
    torch.testing.assert_close(found, expected)
    assert compiled.runs.total() > 0


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_c6_the_hessians_of_torch_autograd(strategy: str) -> None:
    compiled = purefx.compile(program)
    expected, found = (
        torch.autograd.functional.hessian(
            lambda x, f=f: f(x).sum(), X, vectorize=strategy == "forward-mode", outer_jacobian_strategy=strategy
        )
        for f in (program, compiled)
    )
    torch.testing.assert_close(found, expected)


def test_c6_what_has_run_is_counted() -> None:
    compiled = purefx.compile(program)
    gradient = torch.func.vmap(torch.func.grad(lambda x: compiled(x).sum()))
    gradient(torch.stack([X, X]))
    assert dict(compiled.runs) == {"vmap(program)": 1, "vmap(vjp(program))": 1}
    gradient(torch.stack([X, X]))
    assert dict(compiled.runs) == {"vmap(program)": 2, "vmap(vjp(program))": 2}


def layer(w: Tensor, x: Tensor) -> Tensor:
    h = w @ x
    h[0] += 1
    return h.tanh_().sum()


def layer_with_a_cut(w: Tensor, x: Tensor) -> Tensor:
    h = w @ x
    h[0] += h.detach()[1]
    with torch.no_grad():
        scale = h.sum()
    return (h.tanh_() * scale).sum()


class Reversed(torch.autograd.Function):
    """The identity, with the gradient turned around and three times as large."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """A copy."""
        return x * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Another one."""
        return -3 * gradient


def layer_with_a_function(w: Tensor, x: Tensor) -> Tensor:
    h = Reversed.apply(w @ x)
    h[0] += 1
    return h.sin().sum()


@pytest.mark.parametrize("function", [layer, layer_with_a_cut, layer_with_a_function])
@pytest.mark.parametrize("way", ["autograd", "grad", "around"])
def test_gradients_of_what_examples_share_are_those_of_a_loop(function: Any, way: str) -> None:
    weight, xs = torch.arange(12, dtype=torch.float64).reshape(4, 3).cos(), X[:, :3] + 0.1
    leaf = weight.clone().requires_grad_()
    (expected,) = torch.autograd.grad(torch.stack([function(leaf, x) for x in xs]).sum(), leaf)
    compiled = purefx.compile(function)

    def total(w: Tensor, f: Any = compiled, vmap: Any = torch.func.vmap) -> Any:
        return vmap(f, in_dims=(None, 0))(w, xs).sum()

    match way:
        case "autograd":
            (found,) = torch.autograd.grad(total(leaf), leaf)
        case "grad":
            found = torch.func.grad(total)(weight)
        case _:
            found = purefx.compile(func.grad(lambda w: total(w, function, func.vmap)))(weight)
    torch.testing.assert_close(found, expected)


def test_no_gradient_of_an_example_is_in_memory_where_operators_tell_that_of_the_batch() -> None:
    weight, xs = torch.ones(64, 64, requires_grad=True), torch.ones(100, 64)
    compiled = purefx.compile(layer)
    loss = torch.func.vmap(compiled, in_dims=(None, 0))(weight, xs).sum()
    with torch.profiler.profile(profile_memory=True) as profile:
        loss.backward()
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest < 100 * weight.numel() * weight.itemsize


def test_what_the_gradient_of_an_example_raises_is_raised_for_a_batch() -> None:
    def refused(x: Tensor) -> Tensor:
        y = torch.zeros(2, 3, dtype=x.dtype)
        flat = y.view(-1)
        flat[2:6] = x
        flat.mul_(2)
        return y.sum()

    with pytest.raises(RuntimeError) as expected:
        torch.func.grad(refused)(X[0])
    with pytest.raises(RuntimeError) as found:
        torch.func.grad(lambda x: torch.func.vmap(purefx.compile(refused))(x).sum())(X)
    assert str(found.value) == str(expected.value)


def test_c2_a_write_with_a_batch_to_an_argument_without_is_refused_before_anything_is_written() -> None:
    a, total = torch.zeros(3), torch.zeros(())

    def f(x: Tensor, a: Tensor) -> Tensor:
        a.add_(1)
        total.add_(x)
        return x

    with pytest.raises(errors.TransformRefused) as refused:
        func.vmap(f, in_dims=(0, 0))(torch.ones(3), a)
    assert "total has no batch dimension" in refused.value.what
    assert refused.value.where is not None
    assert refused.value.where.line == f.__code__.co_firstlineno + 2
    assert a.tolist() == [0, 0, 0]


def test_linearize_of_torch_is_refused_inside_of_a_program_and_that_of_purefx_is_not() -> None:
    def pushed(linearize: Any, x: Tensor) -> Any:
        result, push = linearize(lambda x: x.clone().mul_(2).sin() + torch.ones(4).sin(), x)
        return result, push(x)

    with pytest.raises(errors.UnsupportedOperator) as refused:
        purefx.compile(pushed)(torch.func.linearize, X[0])
    assert "linearize" in refused.value.remedy
    torch.testing.assert_close(purefx.compile(pushed)(func.linearize, X[0]), pushed(torch.func.linearize, X[0]))


def test_a_batch_of_a_batch_is_one_program() -> None:
    compiled = purefx.compile(lambda x: x.clone().mul_(2))
    twice = torch.func.vmap(torch.func.vmap(compiled, in_dims=1))
    torch.testing.assert_close(twice(COTANGENTS), COTANGENTS.transpose(1, 2) * 2)
    assert list(compiled.runs) == ["vmap(vmap(<lambda>))"]


def test_tangents_that_the_older_vmap_has_batched_lie_with_their_batch_outermost() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.nn.functional.embedding(torch.tensor([0, 2, 1]), x.view(2, 2).repeat(2, 1))

    inputs = (torch.arange(4, dtype=torch.float64).requires_grad_(),)
    assert torch.autograd.gradcheck(
        purefx.compile(function), inputs, check_forward_ad=True, check_batched_forward_grad=True
    )


def test_each_example_of_a_batch_has_its_own_branch() -> None:
    def program(x: Tensor) -> Tensor:
        chosen: Tensor = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x.sin(), (x,))
        return chosen

    batch = torch.stack([X, -X])
    assert (batch.sum((1, 2)) > 0).sum() == 1
    expected = torch.where(batch.sum((1, 2), keepdim=True) > 0, batch * 2, batch.sin())
    torch.testing.assert_close(torch.func.vmap(purefx.compile(program))(batch), expected)


def test_fake_kernels_may_print_tensors_in_forward_mode() -> None:
    """PyTorch prints what it looks for an overload for: tensors, and asks for their tangents."""

    def between(x: Tensor) -> Tensor:
        return x.clone().lerp_(x * 2, x * 3)

    found = torch.func.jvp(purefx.compile(between), (X,), (COTANGENTS[0],))
    torch.testing.assert_close(found, torch.func.jvp(between, (X,), (COTANGENTS[0],)))


@pytest.mark.parametrize(("dim", "index"), [(0, 1), (1, -1), (-1, 0)])
def test_the_gradient_of_a_row_that_was_scattered_is_that_of_a_loop(dim: int, index: int) -> None:
    """Of PyTorch's own vmap it is not: its rule for ``select_scatter`` counts each element of the row many times."""

    def program(x: Tensor, row: Tensor) -> Tensor:
        return torch.select_scatter(x, row, dim, index) * X[:, :3]

    x, rows = torch.stack([X[:, :3], -X[:, :3]]), torch.stack([X[:, 0], X[:, 1]])

    def total(rows: Tensor) -> Tensor:
        return torch.func.vmap(purefx.compile(program))(x, rows).sum()

    def looped(rows: Tensor) -> Tensor:
        return torch.stack([program(*each) for each in zip(x, rows, strict=True)]).sum()

    torch.testing.assert_close(torch.func.grad(total)(rows), torch.func.grad(looped)(rows))


def test_first_calls_of_several_threads_wait_for_each_other() -> None:
    module = torch.nn.Linear(4, 1, dtype=torch.float64)
    expected = torch.func.grad(lambda x: module(x).square().sum())(X)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(10):
            compiled = purefx.compile(lambda x: module(x).square().sum())
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(lambda _, f=compiled: torch.func.grad(f)(X), range(4)))
            torch.testing.assert_close(found, [expected] * 4)
    finally:
        sys.setswitchinterval(interval)


def test_a_write_without_gradients_to_a_leaf_is_none_that_autograd_sees() -> None:
    def program(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.mul_(2)
        return x.sin()

    def gradients(f: Any) -> Any:
        x = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(torch.func.vmap(f)(x).sum(), x)
        return x.detach(), gradient

    torch.testing.assert_close(gradients(purefx.compile(program)), gradients(program))


@pytest.mark.parametrize("out_dim", [0, 1, -1])
@pytest.mark.parametrize("write", [Tensor.zero_, lambda x: x.fill_(2), lambda x: x.copy_(torch.arange(3.0))])
def test_what_is_computed_of_an_overwritten_batch_has_that_batch(write: Any, out_dim: int) -> None:
    """PyTorch's vmap takes the size of a result without a batch from beside its sizes, if ``out_dims`` is not 0."""

    def overwritten(x: Tensor) -> Tensor:
        write(x)
        return x * 3

    xs, expected = torch.ones(2, 3), torch.ones(2, 3)
    found = torch.func.vmap(purefx.compile(overwritten), out_dims=out_dim)(xs)
    torch.testing.assert_close(found, torch.func.vmap(overwritten, out_dims=out_dim)(expected))
    assert torch.equal(xs, expected)


def test_a_list_of_tensors_in_a_closure_keeps_no_fakes() -> None:
    kept = [torch.full((3,), 2.0), torch.ones(3)]
    x = torch.tensor([0.1, 0.2, 0.3])

    def f(x: Tensor) -> Tensor:
        return x.sin() * kept[0]

    compiled = purefx.compile(f)
    found = torch.func.grad(lambda x: compiled(x).sum())(x)
    torch.testing.assert_close(found, 2 * x.cos())
    kept[0] = torch.full((3,), 5.0)
    torch.testing.assert_close(torch.func.grad(lambda x: compiled(x).sum())(x), 5 * x.cos())


def _by_detach(x: Tensor) -> Tensor:
    kept = x.detach()
    kept.mul_(2)
    return (x * kept).sum()


def _by_data(x: Tensor) -> Tensor:
    x.data[1:].add_(3)
    return (x * x).sum()


def _by_out(x: Tensor) -> Tensor:
    torch.mul(x.detach(), 3, out=x.detach())
    return (x**2).sum()


@pytest.mark.parametrize("function", [_by_detach, _by_data, _by_out])
def test_an_argument_is_written_past_autograd_under_grad(function: Any) -> None:
    for transformed in (purefx.func.grad(function), torch.func.grad(purefx.compile(function))):
        expected, found = torch.arange(3.0), torch.arange(3.0)
        assert torch.equal(torch.func.grad(function)(expected), transformed(found))
        assert torch.equal(expected, found)


def test_tangents_that_have_a_batch_that_their_value_has_not_have_tangents() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        return y[1:].mul_(x[0]).sin_().sum()

    x, twice = torch.tensor([0.5, 1.0, 2.0]), torch.func.jacfwd(torch.func.jacfwd(purefx.compile(f)))
    expected = torch.func.hessian(f)(x)
    assert expected.any()
    torch.testing.assert_close(twice(x), expected)
    torch.testing.assert_close(torch.func.vmap(twice)(x.expand(2, 3)), expected.expand(2, 3, 3))


def test_the_gradient_with_respect_to_a_tangent_needs_no_primal_that_requires_grad() -> None:
    x, tangent = torch.tensor([0.5, 1.0]), torch.ones(2, requires_grad=True)
    with forward_ad.dual_level():
        out = purefx.compile(torch.sin)(forward_ad.make_dual(x, tangent))
        (gradient,) = torch.autograd.grad(forward_ad.unpack_dual(out).tangent.sum(), tangent)
    torch.testing.assert_close(gradient, x.cos())


def test_a_result_that_was_written_is_no_residual_any_more() -> None:
    compiled = purefx.compile(torch.exp)

    def slope(x: Tensor) -> Tensor:
        out = compiled(x)
        out[0].add_(1)
        return out.sum()

    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.func.grad(slope)(torch.ones(3))
    out = torch.func.vmap(compiled)(x)
    out.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
