"""Programs of the kinds that compilers get wrong: aliased inputs and outputs, writes, geometry, storages."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from tests.functional.kinds import Programs, ramp
from tests.support.oracle import assert_same_as_eager

programs = Programs()


# ---- rows by numbers that are in tensors


@programs(lambda: (ramp(4, 3), torch.tensor(-2), ramp(3)))
def a_row_is_written_by_its_number(cache: Tensor, position: Tensor, x: Tensor) -> Any:
    cache[position] = x
    return cache[position] * 2, cache[position, 1:], cache.sum(0)


@programs(lambda: (ramp(4, 3), torch.tensor(1)))
def a_column_of_a_new_tensor_is_written_by_its_number(x: Tensor, n: Tensor) -> Any:
    y = x * 2
    v = y[..., n.item()]
    v.add_(1)
    y[1:, n] += 1
    return y, v, y[None, 0, n]


@programs(lambda: (ramp(2, 3, 4), torch.tensor(1), torch.tensor(-1)))
def numbers_in_two_dimensions(x: Tensor, i: Tensor, j: Tensor) -> Any:
    x[i, :, j].mul_(3)
    return x[i, None, :, j], x[:, i, j]


# ---- copies by Python


@programs(lambda: ((x := ramp(3, 4)), x[:, 1:3]))
def a_deep_copy_of_what_shares_memory(x: Tensor, part: Tensor) -> Any:
    first, second = copy.deepcopy([x, part])
    first.add_(1)
    return first, second, copy.deepcopy({"x": x, "again": x})


# ---- inputs that share memory


@programs(lambda: ((x := ramp(3, 5)), x.flatten()[4:9]))
def a_write_through_a_flat_part(whole: Tensor, part: Tensor) -> Any:
    part.mul_(-1)
    return whole.sum(1)


@programs(lambda: ((x := ramp(3, 5)), x.t(), x.diagonal()))
def a_write_through_a_diagonal(whole: Tensor, turned: Tensor, diagonal: Tensor) -> Any:
    diagonal.fill_(9)
    return turned + 1, whole[1]


@programs(lambda: ((x := ramp(9)), x[:6], x[3:]))
def both_overlapping_parts_are_written(whole: Tensor, head: Tensor, tail: Tensor) -> Any:
    head.add_(10)
    tail.mul_(2)
    return whole * 1, head[-1]


@programs(lambda: ((x := ramp(7))[1:5], x[3:6], x[::3]))
def three_windows_without_a_common_base(a: Tensor, b: Tensor, c: Tensor) -> Any:
    a.neg_()
    c.add_(b.sum())
    return a, b * 2, c


@programs(lambda: ((x := ramp(2, 6))[:, ::2], x[:, 1::2]))
def interleaved_columns_stay_apart(even: Tensor, odd: Tensor) -> Any:
    even.copy_(odd)
    odd.zero_()
    return even - odd


@programs(lambda: ((x := ramp(4)), x, x))
def one_tensor_three_times(a: Tensor, b: Tensor, c: Tensor) -> Any:
    a.add_(b)
    c.mul_(a)
    return b, a[1:]


@programs(lambda: ((x := ramp(2, 3)), x.expand(4, 2, 3)))
def an_expanded_alias_is_read_after_a_write(x: Tensor, wide: Tensor) -> Any:
    x[0].sub_(5)
    return wide.sum(0), wide


@programs(lambda: ((x := ramp(8)), x.unfold(0, 4, 2)))
def windows_of_what_is_written(x: Tensor, windows: Tensor) -> Any:
    x[3] = 100
    return windows.amax(1)


@programs(lambda: ([(x := ramp(6)), x[2:]], {"k": x[:3], "v": ramp(3)}))
def aliases_in_containers(pair: list[Tensor], named: dict[str, Tensor]) -> Any:
    named["k"].add_(named["v"])
    pair[1].mul_(3)
    return {"all": pair[0] * 1, "head": named["k"]}


@programs(lambda: ((x := ramp(3, 4)).detach()[1:], x.data[:, 2:]))
def aliases_that_autograd_does_not_know(rows: Tensor, columns: Tensor) -> Any:
    rows.add_(1)
    columns.mul_(2)
    return rows, columns


@programs(lambda: ((x := ramp(5)), x[:0], x[5:]))
def empty_aliases(x: Tensor, none: Tensor, end: Tensor) -> Any:
    x.add_(1)
    none.zero_()
    return end, none, x


# ---- outputs that share memory


@programs(lambda: (ramp(4, 3),))
def an_argument_a_view_and_a_view_of_the_view(x: Tensor) -> Any:
    columns = x.t()
    return x, columns, columns[1:], columns[1:]


@programs(lambda: (ramp(4, 3),))
def pieces_of_something_new(x: Tensor) -> Any:
    y = x.exp()
    return y.chunk(2), y.unbind(1)


@programs(lambda: (ramp(4, 3),))
def a_base_and_its_detached_self(x: Tensor) -> Any:
    y = x + 1
    return y, y.detach(), y.view_as(y)


@programs(lambda: (ramp(2, 3),))
def views_without_their_base(x: Tensor) -> Any:
    y = (x * 2).permute(1, 0)
    return y[0], y[1:], y.diagonal()


@programs(lambda: (ramp(6),))
def a_view_made_before_the_write(x: Tensor) -> Any:
    early = x.view(2, 3)
    x.add_(1)
    return early[0], x.view(3, 2)


@programs(lambda: (ramp(2, 2, 2),))
def the_same_new_tensor_twice(x: Tensor) -> Any:
    y = x.sum(0)
    return y, [y, (y, None, 4)]


@programs(lambda: (ramp(1, 3),))
def an_expanded_result(x: Tensor) -> Any:
    return (x * 2).expand(3, 3), x.expand(2, 3)


@programs(lambda: (ramp(2, 6),))
def views_that_may_copy(x: Tensor) -> Any:
    return x.reshape(-1), x.t().reshape(-1), x.contiguous(), x.t().contiguous()


# ---- writes to inputs


@programs(lambda: (ramp(4, 4), torch.tensor([3, 0]), torch.ones(2, 4)))
def rows_by_index(x: Tensor, rows: Tensor, values: Tensor) -> Any:
    x[rows] = values
    x.index_add_(0, rows, values, alpha=2)
    return x[rows]


@programs(lambda: (ramp(3, 4),))
def a_mask_and_a_scatter(x: Tensor) -> Any:
    x[x > 6] = -1
    x.masked_fill_(x == 2, 50)
    x.scatter_(1, torch.tensor([[0], [1], [2]]), 7.0)
    return x.cumsum(0)


@programs(lambda: (ramp(5), ramp(5)))
def only_one_of_two_is_written(x: Tensor, y: Tensor) -> Any:
    y.addcmul_(x, x, value=0.5)
    return x @ y


@programs(lambda: (ramp(3, 3),))
def nothing_is_returned(x: Tensor) -> None:
    x.tril_()
    x[2, 0] += 4


@programs(lambda: (torch.arange(6, dtype=torch.int16), ramp(6)))
def a_write_casts(small: Tensor, x: Tensor) -> Any:
    small.copy_(x * 1.5)
    small += 1
    return small.sum()


@programs(lambda: (ramp(4, 3)[:, :2],))
def a_write_to_what_has_gaps(x: Tensor) -> Any:
    x.t().addmm_(torch.ones(2, 2), ramp(2, 4))
    return x


@programs(lambda: (ramp(3),))
def a_write_that_changes_nothing(x: Tensor) -> Any:
    x.add_(0)
    x.copy_(x)
    return x.clone()


# ---- writes to geometry


@programs(lambda: (ramp(2, 3, 4),))
def axes_change_places(x: Tensor) -> Any:
    x.transpose_(0, 2)
    x.squeeze_()
    x[0].zero_()
    return x.stride(), x


@programs(lambda: ((x := ramp(2, 3)), x.view(-1)))
def geometry_of_one_alias_changes(x: Tensor, flat: Tensor) -> Any:
    x.t_()
    x[2].add_(100)
    return flat, x.unsqueeze_(1)


@programs(lambda: (ramp(3, 4),))
def turned_there_and_back(x: Tensor) -> Any:
    x.t_().mul_(2)
    x.t_()
    return x[0]


@programs(lambda: (ramp(12),))
def a_new_window_by_as_strided(x: Tensor) -> Any:
    x.as_strided_((2, 3), (4, 1), 1)
    x.neg_()
    return x.sum()


# ---- storages


@programs(lambda: (ramp(3),))
def an_argument_grows(x: Tensor) -> Any:
    x.resize_(5)
    x[3:] = torch.tensor([8.0, 9.0])
    return x * 2


@programs(lambda: (ramp(2, 4),))
def an_argument_shrinks(x: Tensor) -> Any:
    x.resize_(3).add_(1)
    return x.sum()


@programs(lambda: (ramp(4), ramp(2, 3)))
def an_argument_is_set_to_another(x: Any, y: Tensor) -> Any:
    x.add_(1)
    x.set_(y[1])
    x.mul_(2)
    return y


@programs(lambda: (ramp(4),))
def an_argument_is_set_to_nothing(x: Any) -> Any:
    part = x[1:]
    x.set_()
    return x, part * 1


@programs(lambda: ((x := ramp(4)), x[1:3], ramp(3)))
def an_alias_stays_where_it_was(x: Any, part: Tensor, other: Tensor) -> Any:
    x.mul_(10)
    x.set_(other)
    x.fill_(5)
    return part + 1


@programs(lambda: (ramp(3), ramp(3) + 7))
def two_arguments_change_places(x: Any, y: Any) -> Any:
    kept = x.detach()
    x.set_(y)
    y.set_(kept)
    x.add_(1)
    return x - y


@programs(lambda: (ramp(2, 3), ramp(3, 2)))
def data_is_swapped(x: Tensor, y: Tensor) -> Any:
    x.data = y.t()
    x.mul_(2)
    return y, x[0]


@pytest.mark.parametrize("name", programs.names())
def test_it_cannot_be_told_from_eager(name: str) -> None:
    program = programs[name]
    assert_same_as_eager(program.function, program.make, system=purefx.compile, ignore=program.ignore)


@pytest.mark.parametrize("name", programs.names())
def test_it_cannot_be_told_from_eager_in_inference_mode(name: str) -> None:
    program = programs[name]
    with torch.inference_mode():
        assert_same_as_eager(program.function, program.make, system=purefx.compile, ignore=program.ignore)


@pytest.mark.parametrize("number", [-5, 4])
def test_a_row_that_is_not_there_raises_before_anything_is_written(number: int) -> None:
    def program(x: Tensor, n: Tensor) -> Tensor:
        x.add_(1)
        x[n] = 7
        return x

    x = ramp(4)
    compiled = purefx.compile(program, backend=lambda module, examples: module.forward)
    with pytest.raises(RuntimeError, match="index out of range for tensor of size 4"):
        compiled(x, torch.tensor(number))
    assert torch.equal(x, ramp(4))


def test_a_leaf_is_differentiated_by_the_rows_that_numbers_choose() -> None:
    def program(x: Tensor, n: Tensor) -> Any:
        y = x * 2
        y[n] = x[n - 1] * x[n.item()]
        return y, y[n]

    assert_same_as_eager(program, lambda: (ramp(4, 2).clone().requires_grad_(), torch.tensor(2)), system=purefx.compile)
