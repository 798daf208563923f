"""Operators that write a tensor which they also read, at the very same region."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from tests.functional.kinds import Programs, ramp
from tests.support.oracle import assert_same_as_eager

programs = Programs()


@programs(lambda: (ramp(2, 2) + 1,))
def a_product_goes_into_its_factor(x: Tensor) -> Any:
    torch.mm(x, x, out=x)
    return x * 1


@programs(lambda: (ramp(3, 3) + 1,))
def a_product_goes_into_its_factor_inside_a_larger_tensor(x: Tensor) -> Any:
    y = x * 1
    z = y[:2, :2]
    torch.mm(z, z.clone(), out=z)
    return y


@programs(lambda: (ramp(5),))
def it_is_scattered_by_a_mask_of_itself(x: Tensor) -> Any:
    y = x * 1
    y.masked_scatter_(y > 0.2, y)
    return y


@programs(lambda: (ramp(4),))
def random_numbers_have_the_mean_that_they_replace(x: Tensor) -> Any:
    torch.normal(x, 1.0, out=x)
    return x * 1


@programs(lambda: (ramp(3, 3), ramp(3, 3)))
def a_row_is_added_its_product(x: Tensor, y: Tensor) -> Any:
    x[0].addmv_(y, x[0])
    return x * 1


@programs(lambda: (ramp(3, 3), ramp(3, 3)))
def a_batch_is_added_its_product(x: Tensor, y: Tensor) -> Any:
    x[None].baddbmm_(x[None], y[None])
    return x * 1


@programs(lambda: (ramp(3, 3),))
def a_matrix_is_added_its_product(x: Tensor) -> Any:
    y = x * 1.5
    y.addmm_(y, x)
    z = x + 1
    z.addmm_(x, z)
    return y, z


@programs(lambda: (ramp(3, 3), torch.tensor([1, 0])))
def columns_are_added_to_columns(x: Tensor, i: Tensor) -> Any:
    x.t()[:2].index_add_(0, i, x.t()[:2])
    return x * 1


@programs(lambda: (ramp(2, 3),))
def a_sum_goes_into_what_is_summed(x: Tensor) -> Any:
    y = x * 1
    torch.softmax(y, 1, out=y)
    torch.cumsum(y, 0, out=y)
    return torch.triu(y, out=y), x


@programs(lambda: (ramp(4).requires_grad_(), ramp(4).requires_grad_()))
def a_list_writes_an_element_twice_for_which_there_is_one_gradient(x: Tensor, w: Tensor) -> Any:
    y, z = x * w, x * 1
    rows = z.view(2, 2)
    torch._foreach_mul_([y, y[:2]], [w, w[:2]])
    torch._foreach_add_([rows, rows], 9)
    torch._foreach_mul_([z, z], w[0])
    torch._foreach_exp_([z, z])
    return y.sin(), z, rows


@pytest.mark.parametrize("name", programs.names())
def test_it_cannot_be_told_from_eager(name: str) -> None:
    program = programs[name]
    assert_same_as_eager(program.function, program.make, system=purefx.compile, ignore=program.ignore)


def elementwise(x: Tensor, y: Tensor) -> Any:
    x.add_(x)
    x.mul_(x)
    x.clamp_(x, x)
    x.copy_(x)
    x.floor_divide_(x)
    torch.where(y > 0, x, y, out=x)
    torch._foreach_mul_([x, y], [x, y])
    torch.cumsum(x, 0, out=x)
    mask = x > 0
    mask.masked_fill_(mask, 0)
    return y.addmm_(x, x), mask


def test_elementwise_operators_stay_functional() -> None:
    program = purefx.trace(elementwise, ramp(3, 3), ramp(3, 3))
    assert "on_copies" not in str(program.stages.functional.graph)
