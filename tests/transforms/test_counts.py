"""Numbers in a tensor with a batch say how many elements an operator gives: masks, ``repeat_interleave``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx import errors, func
from tests.transforms.support import assert_right, nest_of

ROWS = "torch.tensor([[0.3, -0.2, 0.5], [-0.1, 0.4, 0.9]], dtype=torch.float64)"
UNEVEN = "torch.tensor([[0.3, -0.2, -0.5], [-0.1, 0.4, 0.9]], dtype=torch.float64)"
ONE_VALUE = ("y = a.sin()", "y[a > 0] = a.sum()")
ONE_ROW = ("y = a.sin().outer(a)", "y[a > 0] = a.cos()[None]")
COLUMNS = ("y = a.sin().outer(a)", "y[:, a > 0] = a[:, None]")
AS_MANY = ("y = a.sin()", "y[a > 0] = a[:2].cos()")
ADDED = ("y = a.sin()", "y.index_put_((a > 0,), a[:2].cos(), accumulate=True)")
TWO = ("y = a.sin().outer(a)", "y[a > 0, torch.tensor([0, 1])] = a[:2]")
READ = ("y = a[a > 0] * a[:2]",)
SUMMED = ("y = a[a > 0].sum() * a",)
NESTS = {
    "vmap": ["func.vmap(f)"],
    "vmap of grad": ["gradient(func, f, 0)", "func.vmap(f)"],
    "grad of vmap": ["func.vmap(f)", "gradient(func, f, 0)"],
    "vmap of jvp": ["pushed(func, f)", "func.vmap(f)"],
    "vmap of hessian": ["second_derivative(func, f, 0)", "func.vmap(f)"],
}


@pytest.mark.parametrize("around", NESTS)
@pytest.mark.parametrize("body", [ONE_VALUE, ONE_ROW, COLUMNS, AS_MANY, ADDED, TWO])
def test_each_example_writes_where_its_mask_says(body: tuple[str, ...], around: str) -> None:
    rows = [ROWS, UNEVEN] if body in (ONE_VALUE, ONE_ROW, AS_MANY) else [ROWS]
    assert_right(nest_of([row], body, "y", NESTS[around]) for row in rows)


def test_a_mask_may_choose_what_is_added_up_or_as_many_as_are_known() -> None:
    pairs = [(ROWS, READ), (ROWS, SUMMED), (UNEVEN, SUMMED)]
    assert_right(nest_of([rows], body, "y", ["func.vmap(f)"]) for rows, body in pairs)


def repeated(x: Tensor, times: Tensor) -> Tensor:
    return x.sin().repeat_interleave(times)


XS, TIMES = torch.arange(6.0).view(2, 3), torch.tensor([[1, 2, 0], [1, 1, 1]])


def test_how_many_elements_there_are_may_be_said() -> None:
    expected = torch.stack([repeated(x, times) * x for x, times in zip(XS, TIMES, strict=True)])
    assert torch.equal(func.vmap(lambda x, times: repeated(x, times) * x)(XS, TIMES), expected)
    with pytest.raises(RuntimeError):
        func.vmap(lambda x, times: repeated(x, times) * x)(XS, TIMES + 1)
    by_size = func.vmap(lambda x, times: x.sin().repeat_interleave(times, output_size=3) * x)
    assert torch.equal(by_size(XS, TIMES), expected)


def in_rows(x: Tensor, times: Tensor) -> Tensor:
    return x.view(3, 1).repeat_interleave(times, dim=0).sin().sum()


@pytest.mark.parametrize("function", [repeated, lambda x, times: repeated(x, times).square().sum(), in_rows])
@pytest.mark.parametrize("in_dims", [(0, 0), (None, 0), (0, None)])
def test_each_example_may_give_as_many_elements_as_the_first_without_saying(function: Any, in_dims: Any) -> None:
    given = [x if dim == 0 else x[0] for x, dim in zip((XS, TIMES), in_dims, strict=True)]

    def total(x: Tensor, f: Any = function) -> Tensor:
        return torch.func.vmap(f, in_dims)(x, given[1]).square().sum()

    compiled = purefx.compile(function)
    expected, found = (torch.func.vmap(f, in_dims)(*given) for f in (function, compiled))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.func.grad(total)(given[0], compiled), torch.func.grad(total)(given[0]))
    if in_dims[1] == 0:
        given[1] = TIMES + torch.tensor([[0], [1]])
        with pytest.raises(RuntimeError):
            torch.func.vmap(compiled, in_dims)(*given)


def test_counting_is_refused_where_the_numbers_have_a_batch() -> None:
    with pytest.raises(errors.TransformRefused, match=r"bincount(.|\n)*scatter_add"):
        torch.func.vmap(purefx.compile(torch.bincount))(TIMES)
