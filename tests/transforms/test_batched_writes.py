"""Values of examples written into tensors that the function makes: the tensor is one for each example."""

from __future__ import annotations

import pytest

from tests.transforms.layouts import numbers, permuted
from tests.transforms.support import assert_right, nest_of

pytest.importorskip("purefx.func")

ZEROS = "y = torch.zeros(3, dtype=torch.float64)"
WIDE = "y = torch.zeros(2, 3, dtype=torch.float64)"
PROGRAMS = {
    "copy_": (ZEROS, "y.copy_(a)"),
    "add_": (ZEROS, "y.add_(a)"),
    "add_ of a wider tensor": (WIDE, "y.add_(a)"),
    "mul_ of ones": ("y = torch.ones(3, dtype=torch.float64)", "y.mul_(a)", "y.mul_(a)"),
    "an element": (ZEROS, "y[1] = a.sum()"),
    "a slice": (ZEROS, "y[1:] = a[:2]"),
    "a slice, added to": (ZEROS, "y[::2] += a[1:]"),
    "a row": (WIDE, "y[0] = a"),
    "a row by its view": (WIDE, "row = y[1]", "row.copy_(a)"),
    "columns": (WIDE, "y.t()[0].copy_(a[:2])"),
    "a flat view": (WIDE, "y.view(-1)[2:5] = a", "y.mul_(2)"),
    "a diagonal": ("y = torch.zeros(3, 3, dtype=torch.float64)", "y.diagonal().copy_(a)"),
    "one of several": (WIDE, "y.unbind(0)[1].add_(a)"),
    "indices": (ZEROS, "y[torch.tensor([2, 0])] = a[:2]"),
    "index_put_": (ZEROS, "y.index_put_((torch.tensor([1, 1]),), a[:2], accumulate=True)"),
    "index_add_": (ZEROS, "y.index_add_(0, torch.tensor([1, 1]), a[:2])"),
    "index_copy_": (ZEROS, "y.index_copy_(0, torch.tensor([1]), a[:1])"),
    "masked_fill_": (ZEROS, "y.masked_fill_(a > 0, 0.5)", "y.add_(a)"),
    "scatter_": (ZEROS, "y.scatter_(0, torch.tensor([2, 0, 1]), a)"),
    "scatter_add_": (ZEROS, "y.scatter_add_(0, torch.tensor([1, 1, 0]), a)"),
    "where": (ZEROS, "y[a > 0] = 2.0", "y.mul_(a)"),
    "out": (ZEROS, "torch.sin(a, out=y)"),
    "out, a view": (WIDE, "torch.mul(a, a, out=y[1])"),
    "empty, filled": ("y = torch.empty(3, dtype=torch.float64)", "y.fill_(1.0)", "y.sub_(a)"),
    "new_zeros": ("y = a.new_zeros(3)", "y += a"),
    "a number": ("y = torch.zeros((), dtype=torch.float64)", "y += a.sum()"),
    "a loop": (ZEROS, "for i in range(3): y[i] = a[i] * y.sum() + a[0]"),
    "complex numbers": (
        "y = torch.zeros(3, dtype=torch.complex128)",
        "torch.view_as_real(y)[..., 1] = a",
        "y = torch.view_as_real(y * y)",
    ),
}
NESTS = {
    "vmap": ([2, 3], [], "func.vmap(f, in_dims=0)"),
    "vmap, the last": ([3, 2], [], "func.vmap(f, in_dims=-1, out_dims=-1)"),
    "vmap of vmap": ([2, 3, 4], ["func.vmap(f, in_dims=-1)"], "func.vmap(f)"),
    "vmap of grad": ([2, 3], ["gradient(func, f, 0)"], "func.vmap(f)"),
    "grad of vmap": ([2, 3], ["func.vmap(f)"], "gradient(func, f, 0)"),
    "vmap of jvp": ([2, 3], ["pushed(func, f)"], "func.vmap(f)"),
    "jvp of vmap": ([2, 3], ["func.vmap(f)"], "pushed(func, f)"),
    "vmap of vjp": ([2, 3], ["pulled(func, f)"], "func.vmap(f)"),
    "jacrev": ([3], [], "jacobian_reverse(func, f, 0)"),
    "jacfwd": ([3], [], "jacobian_forward(func, f, 0)"),
    "vmap of hessian": ([2, 3], ["second_derivative(func, f, 0)"], "func.vmap(f)"),
}


@pytest.mark.parametrize("around", NESTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_example_writes_a_tensor_of_its_own(program: str, around: str) -> None:
    sizes, inner, outer = NESTS[around]
    assert_right([nest_of([numbers(sizes, 0)], PROGRAMS[program], "y", [*inner, outer])])


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_second_argument_may_be_the_same_for_all(program: str) -> None:
    body = [*PROGRAMS[program], "y = y * b.sum()", "c = b * 1", "c[0] = a[0]"]
    turned = permuted([3, 2], 0, [1, 0])
    around = ["func.vmap(f, in_dims=(1, None))", "gradient(func, f, (0, 1))"]
    assert_right([nest_of([turned, numbers([4], 1)], body, "(y, c)", around)])


@pytest.mark.parametrize("result", ["y", "(y, a)", "(a, y, b)"])
def test_a_result_that_is_the_same_for_all_is_repeated(result: str) -> None:
    around = ["func.vmap(f, in_dims=(0, None))"]
    arguments = [numbers([2, 3], 0), numbers([3, 2], 1)]
    assert_right([nest_of(arguments, ["y = b * 2", "y[0] = 1.0"], result, around)])


def test_examples_that_lie_with_gaps_are_copied_without_what_lies_between() -> None:
    body = ["v = a.unbind(0)[3]", "a[torch.tensor([0, 1])] = v"]
    assert_right([nest_of([numbers([8, 2, 2], 0)], body, "a", ["func.vmap(f, in_dims=1)", "func.vmap(f, in_dims=2)"])])
