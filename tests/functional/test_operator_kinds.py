"""Operators of every kind: dtype views, lazy bits, lists, ``out=``, custom and random operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from tests.functional.kinds import Programs, ramp
from tests.support.oracle import assert_same_as_eager

programs = Programs()
VERSION = frozenset({"version"})
"""A custom operator counts its writes, and its kernel counts them again: no capture can know."""


def square() -> Tensor:
    """A matrix that is positive definite."""
    return torch.tensor([[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]])


@torch.library.custom_op("purefx_kinds::accumulate", mutates_args=("total", "counts"))
def accumulate(total: Tensor, x: Tensor, counts: list[Tensor], weight: float = 2.0) -> Tensor:
    total.add_(x, alpha=weight)
    for count in counts:
        count.add_(1)
    return x * weight


@accumulate.register_fake
def _(total: Tensor, x: Tensor, counts: list[Tensor], weight: float = 2.0) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("purefx_kinds::pair", mutates_args=())
def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x.sum(0)


@pair.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[1:])


@torch.library.custom_op("purefx_kinds::nothing", mutates_args=("x",))
def negate(x: Tensor) -> None:
    x.neg_()


def complex_ramp(*sizes: int) -> Tensor:
    return torch.complex(ramp(*sizes), ramp(*sizes) + 1)


# ---- dtypes and lazy bits


@programs(lambda: ((x := ramp(2, 4)), x.view(torch.int32)))
def bits_are_read_as_numbers(x: Tensor, bits: Tensor) -> Any:
    x[0].mul_(2)
    bits[1].zero_()
    return bits >> 23, x


@programs(lambda: (ramp(2, 4),))
def halves_of_a_number(x: Tensor) -> Any:
    halves = x.view(torch.int16)
    halves[:, ::2] = 0
    return halves, x.view(torch.uint8)[1]


def windows_and_column() -> tuple[Tensor, Tensor]:
    """Overlapping windows of a tensor, and a column of it."""
    whole = ramp(4, 4)
    return whole.unfold(0, 2, 1), whole[:, 3]


@programs(windows_and_column)
def another_dtype_is_read_of_memory_that_no_view_operator_leads_to(windows: Tensor, column: Tensor) -> Any:
    return column.view(torch.int32) + 1, windows.sum()


@programs(lambda: (torch.arange(8, dtype=torch.uint8),))
def bytes_become_wider(x: Tensor) -> Any:
    wide = x.view(torch.int32)
    wide += 1
    return wide.clone(), x


@programs(lambda: ((z := complex_ramp(3)), torch.view_as_real(z)))
def a_complex_number_and_its_parts(z: Tensor, parts: Tensor) -> Any:
    parts[:, 1] = 0
    z.mul_(1j)
    return z.real, parts


@programs(lambda: (complex_ramp(2, 2),))
def lazily_conjugated_and_negated(z: Tensor) -> Any:
    conjugate = z.conj()
    conjugate[0] += 2j
    z.imag.neg_()
    return conjugate, conjugate.imag, z.mH


@programs(lambda: (complex_ramp(4).conj(), ramp(4)))
def a_conjugated_argument_is_written(z: Tensor, x: Tensor) -> Any:
    z.copy_(x)
    z[2:].mul_(1 + 1j)
    return z.resolve_conj()


@programs(lambda: (complex_ramp(3).conj().imag, ramp(3)))
def a_negated_argument_is_written(x: Tensor, y: Tensor) -> Any:
    x.add_(y)
    return x.is_neg(), x * 1


# ---- operators on lists


@programs(lambda: ([ramp(2), ramp(3)], [ramp(2) + 1, ramp(3) + 1]))
def lists_are_written(xs: list[Tensor], ys: list[Tensor]) -> Any:
    torch._foreach_mul_(xs, 3)
    torch._foreach_addcdiv_(xs, ys, ys, 0.5)
    return torch._foreach_add(xs, ys)


@programs(lambda: ([(x := ramp(4))[:2], x[2:], x[1:3]],))
def a_list_of_overlapping_tensors(xs: list[Tensor]) -> Any:
    torch._foreach_add_(xs, 1)
    torch._foreach_copy_(xs[:1], xs[1:2])
    return xs[2] * 1


@programs(lambda: ([(x := ramp(3)), x], [torch.ones(3), torch.ones(3)]))
def a_list_with_a_repeated_tensor(xs: list[Tensor], ys: list[Tensor]) -> Any:
    torch._foreach_lerp_(xs, ys, 0.5)
    return xs


# ---- out=


@programs(lambda: (ramp(2, 3), torch.zeros(3, 2)))
def a_result_goes_into_a_transposed_argument(x: Tensor, out: Tensor) -> Any:
    return torch.exp(x, out=out.t()), out


@programs(lambda: (ramp(3, 4), torch.zeros(3), torch.zeros(3, dtype=torch.int64)))
def two_results_go_into_arguments(x: Tensor, values: Tensor, indices: Tensor) -> Any:
    torch.max(x.flip(1), 1, out=(values, indices))
    return indices + 1


@programs(lambda: (ramp(5), torch.zeros(0)))
def an_empty_out_argument_grows(x: Tensor, out: Tensor) -> Any:
    torch.cumsum(x, 0, out=out)
    return out[2:]


@programs(lambda: (ramp(3), torch.zeros(3, dtype=torch.float64)))
def an_out_argument_of_another_dtype(x: Tensor, out: Tensor) -> Any:
    return torch.add(x, 1, out=out)


@programs(lambda: (ramp(2, 3), ramp(6)))
def an_out_argument_is_an_operand(x: Tensor, y: Tensor) -> Any:
    torch.mul(x, 2, out=x)
    torch.cat([x.view(-1)[:3], y[:3]], out=y)
    return x


@programs(lambda: (ramp(2, 3), torch.zeros(3, 2).t(), torch.zeros(2, 6)[:, ::2]))
def out_arguments_of_the_right_sizes_keep_their_strides(x: Tensor, turned: Tensor, gaps: Tensor) -> Any:
    torch.sort(x, 0, out=(turned, torch.empty(0, dtype=torch.int64)))
    torch.sort(x, 1, descending=True, out=(gaps, torch.empty(0, dtype=torch.int64)))
    return turned.stride(), gaps.stride(), turned[0], turned + gaps


@programs(lambda: (ramp(2, 3), [torch.zeros(5), torch.zeros(9, 3).t()[:, 1:2], torch.zeros(0)]))
def out_arguments_of_other_sizes_get_the_strides_of_a_new_result(x: Tensor, outs: list[Tensor]) -> Any:
    for out in outs:
        torch.abs(x.t(), out=out)
    return [out.stride() for out in outs], outs[0][1:]


@programs(lambda: (square(), [torch.zeros(3, 3), torch.zeros(3, 3).t(), torch.zeros(3, 6)[:, ::2]]))
def linear_algebra_into_arguments_of_the_right_sizes(x: Tensor, outs: list[Tensor]) -> Any:
    for out in outs:
        torch.linalg.inv(x, out=out)
        inverse = out.view(9) if out.is_contiguous() else out.t()[0]
        torch.linalg.cholesky(x, out=out)
        torch.linalg.solve(x, out.clone(), out=out)
        torch.linalg.lu_factor(x, out=(out, torch.empty(0, dtype=torch.int32)))
    return [out.stride() for out in outs], inverse


@programs(lambda: (square(), square().t(), square()))
def linear_algebra_into_its_own_operand(x: Tensor, y: Tensor, z: Tensor) -> Any:
    torch.linalg.inv(x, out=x)
    torch.linalg.inv(y, out=y)
    torch.linalg.solve(z, torch.ones(3, 3), out=z)
    return x[0], y.stride()


@programs(lambda: (ramp(2, 3),))
def an_out_argument_made_inside_keeps_its_strides(x: Tensor) -> Any:
    out = torch.zeros(3, 4).t()[:2]
    torch.sort(x, 0, out=(out, torch.empty(0, dtype=torch.int64)))
    return out[1:]


@programs(lambda: (square(), torch.ones(3), torch.ones(3)))
def the_same_operator_resizes_its_out_arguments_again(x: Tensor, first: Tensor, second: Tensor) -> Any:
    for out in (first, second):
        torch.linalg.solve(x, torch.ones(3), out=out)
    return second[1:]


# ---- memory made inside that gets another size


@programs(lambda: (ramp(2),))
def an_empty_tensor_grows_and_is_written(x: Tensor) -> Any:
    z = torch.empty(0)
    early = z.view(0)
    z.resize_(2).copy_(x)
    return z[1:], early


@programs(lambda: (ramp(2),))
def a_tensor_grows_and_its_new_part_is_written(x: Tensor) -> Any:
    z, bits = torch.full((1,), 7.0), x * 3
    early = z[:1]
    z.resize_(2)[1:].copy_(x[1:])
    bits.resize_(4)[2:] = 5
    return z[1:], early, bits.view(torch.int32)[1:], bits.t()


@programs(lambda: (ramp(3, 4),))
def a_tensor_grows_and_is_resized_again(x: Tensor) -> Any:
    z = x.new_empty(0)
    z.resize_(3, 4).copy_(x)
    window = z.as_strided((2, 2), (1, 3), 4)
    z.resize_(2, 6)
    z.t_()
    window.add_(1)
    return z, z[1], window, z.data


@programs(lambda: (ramp(2),))
def a_storage_is_resized_and_set_again(x: Tensor) -> Any:
    b = torch.zeros(4)
    storage = b.untyped_storage()
    storage.resize_(32)
    b.set_(storage, 0, (8,))  # type: ignore[call-overload]  # the stub asks for strides
    b[4:].fill_(3)
    other = torch.empty(0)
    other.set_(b.untyped_storage(), 1, (2,)).add_(x)  # type: ignore[call-overload]  # the same
    return b[1:6], other


@programs(lambda: (ramp(3), ramp(2)))
def memory_made_inside_and_the_arguments_grow(x: Tensor, y: Tensor) -> Any:
    x.resize_(5).fill_(1)
    inside = torch.zeros(2)
    y.set_(inside)  # type: ignore[call-overload]  # the stub knows storages alone
    y.resize_(4).fill_(3)
    return x[1:], y[1:], inside


@programs(lambda: (ramp(3),))
def a_tensor_grows_in_inference_mode(x: Tensor) -> Any:
    with torch.inference_mode():
        z = torch.empty(0)
        z.resize_(3).copy_(x)
        return z[1:], z


@programs(lambda: (ramp(2), ramp(3)))
def storages_are_resized_past_the_dispatcher(x: Tensor, y: Tensor) -> Any:
    x.untyped_storage().resize_(16)
    x.add_(1)
    part = y[1:]
    y.untyped_storage().resize_(16)
    smaller, larger = torch.ones(4), torch.ones(3)
    front = smaller[:2]
    smaller.untyped_storage().resize_(8)
    larger.untyped_storage().resize_(24)
    return front, larger, larger.as_strided((6,), (1,)).fill_(2), part.add_(1)


# ---- custom operators


@programs(lambda: (ramp(3), ramp(3), [torch.zeros(2), torch.zeros(3)[:1]], torch.ones(1)), ignore=VERSION)
def a_custom_operator_writes_what_it_declares(total: Tensor, x: Tensor, counts: list[Tensor], y: Tensor) -> Any:
    first = accumulate(total, x, counts)
    return accumulate(total[1:2], y, counts, weight=0.5), first, total


@programs(lambda: ((x := ramp(4, 2)), x[1:3].t()), ignore=VERSION)
def a_custom_operator_writes_a_view(x: Tensor, turned: Tensor) -> Any:
    negate(turned)
    negate(x[:, 1])
    return pair(x)


# ---- random operators


@programs(lambda: (ramp(3, 4),))
def random_numbers_in_order(x: Tensor) -> Any:
    first = torch.rand(2)
    x.normal_()
    torch.randn(5)  # read by nothing, and still it moves the generator
    x[1].uniform_(2, 3)
    return first, torch.randint(0, 9, (4,)), torch.randperm(5)


@programs(lambda: (ramp(3, 4).t(), torch.full((4,), 0.5)))
def random_numbers_in_what_is_transposed(x: Tensor, p: Tensor) -> Any:
    x.exponential_()
    x[:, ::2].bernoulli_(0.3)
    return torch.bernoulli(p), torch.nn.functional.dropout(x, 0.5), p.multinomial(2)


@programs(lambda: ((x := ramp(6))[:4], x[2:]))
def random_numbers_in_overlapping_arguments(a: Tensor, b: Tensor) -> Any:
    a.random_(10)
    b.cauchy_()
    return a * 1


# ---- lists and others that one kernel writes


@programs(lambda: (*(ramp(3) + i for i in range(4)), torch.tensor(1.0)))
def a_fused_step(p: Tensor, g: Tensor, mean: Tensor, variance: Tensor, n: Tensor) -> Any:
    rates = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    torch._fused_adam_([p], [g], [mean], [variance], [], [n], **rates, amsgrad=False, maximize=False)
    return p * 2


@programs(lambda: (ramp(3), ramp(2), torch.zeros(1)))
def gradients_are_unscaled(g: Tensor, h: Tensor, found: Tensor) -> Any:
    torch._amp_foreach_non_finite_check_and_unscale_([g, h[1:]], found, torch.tensor(0.5))
    return h.sum(), g + found


@programs(lambda: (ramp(3),))
def a_fresh_tensor_is_what_it_is(x: Tensor) -> Any:
    y = x * 2
    lifted = torch.ops.aten.lift_fresh.default(y)
    lifted.add_(1)
    return y, lifted


# ---- what eager refuses


@programs(lambda: (ramp(3),))
def a_complex_number_in_a_real_tensor(x: Tensor) -> Any:
    return (x * 2).mul_(1j)


@programs(lambda: (ramp(3),))
def a_list_of_complex_numbers_in_real_tensors(x: Tensor) -> Any:
    torch._foreach_add_([x, x * 1], [2.0, 1j])


@programs(lambda: (ramp(3).expand(2, 3),))
def a_write_to_repeated_elements(x: Tensor) -> Any:
    return x.add_(1)


@programs(lambda: (ramp(5),))
def a_copy_onto_its_own_shifted_elements(x: Tensor) -> Any:
    return x[1:].mul_(x[:-1])


@programs(lambda: (ramp(5), ramp(4)))
def sizes_that_do_not_go_together(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    return x + y


@pytest.mark.parametrize("name", programs.names())
def test_it_cannot_be_told_from_eager(name: str) -> None:
    program = programs[name]
    assert_same_as_eager(program.function, program.make, system=purefx.compile, ignore=program.ignore)
