"""Numbers in a tensor with a batch say how many elements an operator gives: masks, ``repeat_interleave``."""

from __future__ import annotations

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


@pytest.mark.parametrize("around", [lambda f: f, torch.func.grad])
def test_how_many_elements_an_example_gives_has_to_be_said(around: object) -> None:
    compiled = purefx.compile(lambda x, times: repeated(x, times).sum())
    with pytest.raises(errors.TransformRefused, match=r"test_counts.py:\d+ in repeated(.|\n)*output_size"):
        torch.func.vmap(around(compiled))(XS, TIMES)  # type: ignore[operator]  # a transform
