"""Operators that PyTorch's transforms, or fake tensors, know less of than others: compared with eager, or a loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx

Function = Callable[..., Any]
leaves_of = torch.utils._pytree.tree_leaves
X = torch.linspace(-1.0, 1.0, 48, dtype=torch.float64).sin().view(2, 4, 6)


def channels_last(x: Tensor) -> Tensor:
    return (x.view(1, 2, 2, 6) * 2).to(memory_format=torch.channels_last).sin()


PIECEWISE: dict[str, Function] = {
    "_chunk_cat": lambda x: torch._chunk_cat([x, x * 2], 0, 2),
    "histogramdd": lambda x: torch.histogramdd(x[:, :2], [3, 3])[0],
    "histogram": lambda x: torch.histogram(x, 4)[0],
    "tensor_split": lambda x: torch.tensor_split(x, torch.tensor([1, 3]))[1] * 2,
    "channels_last": channels_last,
}


@pytest.mark.parametrize("name", PIECEWISE)
def test_an_operator_without_a_rule_runs_for_each_example(name: str) -> None:
    f = PIECEWISE[name]
    torch.testing.assert_close(torch.func.vmap(purefx.compile(f))(X), torch.stack([f(x) for x in X]))


def test_a_tensor_is_split_by_a_tensor() -> None:
    assert purefx.check(lambda x: torch.tensor_split(x, torch.tensor([1, 3])), X[0])
    assert purefx.check(lambda x: x.tensor_split(torch.tensor(2), dim=1), X[0])
    assert purefx.check(torch.tensor_split, X[0], torch.tensor([1, 3]))
    assert purefx.check(lambda x: torch.tensor_split(x, tensor_indices_or_sections=torch.tensor([1, 3])), X[0])


def solved(a: Tensor, b: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.lstsq(a, b).solution
    return solution


@pytest.mark.parametrize("driver", ["gelsy", "gels"])
@pytest.mark.parametrize("sizes", [(4, 2), (2, 4), (3, 3), (2, 4, 2)])
def test_least_squares_are_those_of_eager(sizes: tuple[int, ...], driver: str) -> None:
    a = torch.linspace(0.0, 3.0, torch.Size(sizes).numel(), dtype=torch.float64).sin().view(sizes).requires_grad_()
    b = torch.linspace(1.0, 2.0, sizes[-2] * 3, dtype=torch.float64).view(sizes[-2], 3).expand(*sizes[:-2], -1, -1)
    assert purefx.check(lambda a, b: tuple(torch.linalg.lstsq(a, b, driver=driver)), a, b.clone())


def test_so_are_their_derivatives() -> None:
    a, b = X[:, :, :2], X[0, :, 3:]

    def slope(f: Function) -> Function:
        return torch.func.grad(lambda a, b: f(a, b).sin().sum(), (0, 1))

    compiled = purefx.compile(solved)
    torch.testing.assert_close(slope(compiled)(a[0], b), slope(solved)(a[0], b))
    hessians = [torch.func.jacfwd(slope(f), (0, 1))(a[0], b) for f in (compiled, solved)]
    torch.testing.assert_close(*hessians)
    expected = [torch.stack(each) for each in zip(*(slope(solved)(x, b) for x in a), strict=True)]
    torch.testing.assert_close(list(torch.func.vmap(slope(compiled), (0, None))(a, b)), expected)


def test_residuals_that_depend_on_a_rank_are_refused() -> None:
    with pytest.raises(purefx.errors.DataDependentControlFlow):
        purefx.trace(lambda a, b: torch.linalg.lstsq(a, b, driver="gelsd"), X[0, :, :2], X[0])


def test_a_hook_does_not_stop_a_tangent() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda gradient: gradient * 3)
        return (y**3).sum()

    x = X[0, 0]
    torch.testing.assert_close(torch.func.hessian(purefx.compile(f))(x), torch.func.hessian(f)(x))


MASK = torch.tensor([True, False, True, True])
CHOSEN: dict[str, Function] = {
    "a mask": lambda x: x[MASK] * 2,
    "a sum of it": lambda x: x[MASK].sin().sum(0),
    "nonzero": lambda x: x.index_select(0, torch.nonzero(x.sum(1) > -9).view(-1)).cos(),
    "combinations": lambda x: torch.combinations(x[0], 2),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_what_is_chosen_by_values_has_tangents(name: str) -> None:
    f, x = CHOSEN[name], X[0]
    expected = torch.func.jvp(f, (x,), (x.cos(),))
    torch.testing.assert_close(torch.func.jvp(purefx.compile(f), (x,), (x.cos(),)), expected)
    inside = purefx.compile(lambda x: torch.func.jvp(f, (x,), (x.cos(),)))
    torch.testing.assert_close(inside(x), expected)


def test_a_tangent_of_a_view_of_such_sizes_is_refused() -> None:
    compiled = purefx.compile(lambda x: x[MASK].sum(0).sin().sum())
    with pytest.raises(purefx.errors.UnsupportedOperator, match="forward-mode AD of a view"):
        torch.func.hessian(compiled)(X[0])


def unsqueezed(x: Tensor) -> Tensor:
    y = x * 2
    y.unsqueeze_(0)
    return y


def turned_and_shown(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.view(-1, 1) * 2
    y.t_()
    return y, y[0]


TURNED: dict[str, Function] = {
    "unsqueeze_": unsqueezed,
    "t_": turned_and_shown,
    "quantile": lambda x: torch.quantile(x, 0.3),
    "quantiles": lambda x: torch.quantile(x, torch.tensor([0.3, 0.5], dtype=x.dtype), 0, keepdim=True),
    "stft": lambda x: torch.view_as_real(torch.stft(x, 4, window=torch.ones(4, dtype=x.dtype), return_complex=True)),
}


def weight(f: Function) -> Function:
    """A number that depends on each result of ``f`` in its own way."""
    leaves = torch.utils._pytree.tree_leaves
    return lambda x: sum((y * (i + 1)).sin().sum() for i, y in enumerate(leaves(f(x))))


@pytest.mark.parametrize("name", TURNED)
def test_results_of_another_geometry_have_second_derivatives(name: str) -> None:
    f, x = TURNED[name], X[0, 0].clone().requires_grad_()
    compiled = purefx.compile(f)
    expected = torch.func.hessian(weight(f))(X[0, 0])
    torch.testing.assert_close(torch.func.hessian(weight(compiled))(X[0, 0]), expected)
    (slope,) = torch.autograd.grad(weight(compiled)(x), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(slope.sum(), x)[0], expected.sum(0))


MASKS = torch.tensor([[True, False, True, False], [False, True, True, False]])
VALUES = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)


def put(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    y = x * 1
    y[mask] = values
    return y.sin()


def accumulated(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    return torch.index_put(x.view(2, 2), (mask.view(2, 2),), values * x[:2], accumulate=True)


@pytest.mark.parametrize("f", [put, accumulated])
def test_each_example_puts_values_at_a_mask_of_its_own(f: Function) -> None:
    xs, compiled = X[0, :2, :4], purefx.compile(f)

    def loop(xs: Tensor, values: Tensor) -> Tensor:
        return torch.stack([f(x, mask, v) for x, mask, v in zip(xs, MASKS, values, strict=True)])

    def batch(xs: Tensor, values: Tensor) -> Any:
        return torch.func.vmap(compiled)(xs, MASKS, values)

    torch.testing.assert_close(batch(xs, VALUES), loop(xs, VALUES))
    slopes = [torch.func.grad(lambda *args, g=g: g(*args).cos().sum(), (0, 1))(xs, VALUES) for g in (batch, loop)]
    torch.testing.assert_close(*slopes)
    twice = torch.func.vmap(batch, (0, None))(torch.stack([xs, xs + 1]), VALUES)
    torch.testing.assert_close(twice, torch.stack([loop(xs, VALUES), loop(xs + 1, VALUES)]))


def one(f: Function) -> Function:
    return torch.func.grad(lambda *args: f(*args).cos().sum())


def test_the_gradient_of_a_trace_is_that_of_each_example() -> None:
    xs, compiled = X[:, :, :4], purefx.compile(torch.trace)
    torch.testing.assert_close(torch.func.vmap(one(compiled))(xs), torch.stack([one(torch.trace)(x) for x in xs]))


@pytest.mark.parametrize("value", [3.0, torch.tensor([1.0, 2.0], dtype=torch.float64)])
def test_each_example_is_filled_at_its_own_places(value: Any) -> None:
    places, dims = torch.tensor([[0, -1], [2, 1]]), (0, 0, 0 if isinstance(value, Tensor) else None)

    def f(x: Tensor, places: Tensor, value: Any) -> Tensor:
        return x.index_fill(-1, places, value)

    values = value if isinstance(value, Tensor) else [value, value]
    expected = torch.stack([f(x, i, v) for x, i, v in zip(X, places, values, strict=True)])
    torch.testing.assert_close(torch.func.vmap(purefx.compile(f), dims)(X, places, value), expected)


def test_a_number_is_filled_as_a_row_of_one() -> None:
    filled = purefx.compile(lambda x: (x * 2).index_fill(0, torch.tensor([0]), 3.0) * x)
    torch.testing.assert_close(torch.func.vmap(filled)(X[0, 0]), 3 * X[0, 0])


def test_each_table_has_a_row_without_a_gradient() -> None:
    indices = torch.tensor([[[2, 1], [1, 2]], [[0, 2], [3, 3]]])

    def f(weight: Tensor, indices: Tensor) -> Tensor:
        return torch.nn.functional.embedding(indices, weight, padding_idx=2)

    def loop(weights: Tensor) -> Tensor:
        return torch.stack([f(w, i) for w, i in zip(weights, indices, strict=True)])

    compiled = torch.func.vmap(purefx.compile(f))
    torch.testing.assert_close(one(lambda weights: compiled(weights, indices))(X), one(loop)(X))


ABSOLUTE: dict[str, Function] = {
    "abs": lambda x, y: (x - y).abs(),
    "l1_loss": torch.nn.functional.l1_loss,
    "sign": lambda x, y: (x - y).sign() * x,
}


@pytest.mark.parametrize("name", ABSOLUTE)
def test_second_gradients_of_numbers_that_are_zero(name: str) -> None:
    def second(f: Function) -> Any:
        given = [torch.tensor(n, dtype=torch.float64, requires_grad=True) for n in (1.5, -0.5)]
        slopes = torch.autograd.grad(f(*given).cos(), given, create_graph=True)
        return torch.autograd.grad(sum(s.sin() for s in slopes), given)

    torch.testing.assert_close(second(purefx.compile(ABSOLUTE[name])), second(ABSOLUTE[name]))


def normalised(x: Tensor, weight: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    mean = mean.clone()
    y = torch.nn.functional.batch_norm(x, mean, torch.ones_like(mean), weight, training=True)
    return y.sin().sum(), mean


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, None), (0, 0, 0), (None, None, 0)])
def test_batch_normalisation_is_done_for_all_examples_at_once(dims: tuple[int | None, ...]) -> None:
    given = X, X[0, :2], X[1, :2]
    chosen = [x if dim == 0 else x[0] for x, dim in zip(given, dims, strict=True)]
    rows = [[x if dim is None else x[i] for x, dim in zip(chosen, dims, strict=True)] for i in range(2)]
    for f in (normalised, lambda *args: torch.func.grad(lambda *args: normalised(*args)[0], (0, 1))(*args)):
        compiled = purefx.compile(f)
        expected = [torch.stack(column) for column in zip(*(f(*row) for row in rows), strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # PyTorch tells where it runs one after the other
            found = torch.func.vmap(compiled, dims)(*chosen)
        torch.testing.assert_close(list(found), expected)


def normalised_by_given(x: Tensor, weight: Tensor, mean: Tensor) -> Tensor:
    variance = mean.square() + 0.5
    y = torch.nn.functional.batch_norm(x, mean, variance, weight, weight.cos(), training=False)
    return y.relu_().sin().sum()


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, None), (0, 0, 0), (None, None, 0)])
@pytest.mark.parametrize("dtypes", [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)])
def test_normalisation_by_given_statistics(dims: tuple[int | None, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    given = X.to(dtypes[0]), X[0, :2].to(dtypes[1]), X[1, :2].to(dtypes[1])
    chosen = [x if dim == 0 else x[0] for x, dim in zip(given, dims, strict=True)]
    rows = [[x if dim is None else x[i] for x, dim in zip(chosen, dims, strict=True)] for i in range(2)]
    gradient = torch.func.grad(normalised_by_given, (0, 1))

    def second(*args: Tensor) -> Any:
        return torch.func.jvp(lambda *own: gradient(*own, args[2]), args[:2], tuple(x.cos() for x in args[:2]))[1]

    for f in (normalised_by_given, gradient, second):
        expected = [leaves_of(f(*row)) for row in rows]
        found = leaves_of(torch.func.vmap(purefx.compile(f), dims)(*chosen))
        torch.testing.assert_close(found, [torch.stack(column) for column in zip(*expected, strict=True)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_of_the_digits_normalise_what_lies_far_from_zero(dtype: torch.dtype) -> None:
    x = 100 + X.to(dtype)
    weight, mean = (torch.full((x.shape[2],), value, dtype=dtype) for value in (1.0, 99.0))

    def f(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x, mean, torch.ones_like(mean) / 50, weight, training=False)

    for g in (f, torch.func.grad(lambda *args: f(*args).sin().sum(), (0, 1))):
        found = leaves_of(torch.func.vmap(purefx.compile(g), (0, None))(x, weight))
        expected = [torch.stack(column) for column in zip(*(leaves_of(g(row, weight)) for row in x), strict=True)]
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-3)
