"""Programs that run others inside, or in other modes: transforms, control flow, sizes from data, modes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import purefx
from tests.functional.kinds import Programs, ramp
from tests.support.oracle import assert_same_as_eager

programs = Programs()


@pytest.fixture(autouse=True)
def _forget_what_dynamo_compiled() -> None:
    """Eager's ``cond`` is compiled by Dynamo, which falters after a run under a dispatch mode."""
    torch._dynamo.reset()


def shifted(x: Tensor) -> Tensor:
    """Writes to views of a copy of ``x``."""
    y = x.clone()
    y[1:].mul_(x[:-1])
    y.view(-1)[0].sin_()
    return y


# ---- transforms inside


@programs(lambda: (ramp(3, 4),))
def vmap_of_a_function_that_writes(x: Tensor) -> Any:
    return vmap(shifted)(x), vmap(shifted, in_dims=1, out_dims=1)(x)


@programs(lambda: (ramp(3, 4), torch.zeros(3)))
def vmap_that_writes_to_an_argument(x: Tensor, total: Tensor) -> Any:
    def add(row: Tensor, cell: Tensor) -> Tensor:
        cell.add_(row.sum())
        return row[0]

    return vmap(add)(x, total), total


@programs(lambda: (ramp(4), torch.ones(4)))
def jvp_of_a_function_that_writes(x: Tensor, t: Tensor) -> Any:
    return jvp(shifted, (x,), (t,))


@programs(lambda: (ramp(4), torch.ones(4)))
def jvp_of_jvp(x: Tensor, t: Tensor) -> Any:
    return jvp(lambda z: jvp(shifted, (z,), (t,))[1], (x,), (t,))


@programs(lambda: (ramp(4),))
def grad_of_grad(x: Tensor) -> Any:
    return grad(lambda z: grad(lambda y: shifted(y).sum())(z).sum())(x)


@programs(lambda: (ramp(4), torch.ones(4)))
def vjp_beside_a_write(x: Tensor, v: Tensor) -> Any:
    out, pull, *_ = vjp(shifted, x)
    x.add_(1)
    return out, pull(v)[0], x


@programs(lambda: (ramp(3) + 1,))
def jacobians_both_ways(x: Tensor) -> Any:
    return jacfwd(shifted)(x), jacrev(shifted)(x)


@programs(lambda: (ramp(3) + 1,))
def a_hessian(x: Tensor) -> Any:
    return hessian(lambda y: shifted(y).prod())(x)


@programs(lambda: (ramp(2, 3) + 1, torch.ones(3)))
def per_sample_gradients_are_accumulated(x: Tensor, total: Tensor) -> Any:
    def loss(w: Tensor, row: Tensor) -> Tensor:
        return (shifted(row) * w).sum()

    samples = vmap(grad(loss), in_dims=(None, 0))(torch.ones(3), x)
    total.add_(samples.sum(0))
    return samples[0]


@programs(lambda: (torch.ones(2, 3), {"weight": ramp(2, 3), "bias": ramp(2)}))
def a_module_with_parameters_as_arguments(x: Tensor, state: dict[str, Tensor]) -> Any:
    linear = torch.nn.Linear(3, 2)
    return functional_call(linear, {name: p.mul_(2) for name, p in state.items()}, (x,))


# ---- control flow of tensors


@programs(lambda: (ramp(3), torch.ones(()) > 0))
def cond_beside_a_write(x: Tensor, up: Tensor) -> Any:
    x.add_(1)
    return torch.cond(up, lambda y: y + 1, lambda y: y * 2, (x,))


@programs(lambda: (ramp(3),))
def cond_of_what_was_written(x: Tensor) -> Any:
    x.sub_(1)
    (y,) = torch.cond(x.sum() > 100, lambda y: (y.sin(),), lambda y: (y.cos(),), (x,))
    return y.add_(1)


@programs(lambda: (torch.tensor(0), ramp(3)))
def while_loop_beside_a_write(i: Tensor, x: Tensor) -> Any:
    x.add_(1)
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (i, x))


# ---- sizes and numbers that come from data


@programs(lambda: (torch.tensor([0.0, 3.0, 0.0, 5.0]),))
def places_of_what_is_not_zero(x: Tensor) -> Any:
    places = x.nonzero()
    x[0] = 1
    return places, places.view(-1), x.nonzero().sum()


@programs(lambda: (ramp(2, 3),))
def a_selection_by_a_mask(x: Tensor) -> Any:
    chosen = x[x > 2]
    chosen.mul_(2)
    return chosen, torch.cat([chosen, x.view(-1)])


@programs(lambda: (torch.tensor([3, 1, 3, 2]), ramp(4)))
def unique_values(keys: Tensor, x: Tensor) -> Any:
    values, inverse = keys.unique(return_inverse=True)
    return values, x.new_zeros(values.shape[0]).index_add_(0, inverse, x)


@programs(lambda: (torch.tensor(3), ramp(4)))
def a_number_is_used_as_a_value(n: Tensor, x: Tensor) -> Any:
    x.mul_(n.item())
    n.add_(1)
    return x + n.item(), n.item()


@programs(lambda: (torch.tensor(2.5), ramp(4)))
def a_number_is_filled_in(value: Tensor, x: Tensor) -> Any:
    x[1:3] = value.item()
    return torch.full((2,), value.sum().item())


# ---- modes


@programs(lambda: (ramp(3),))
def inference_mode_inside(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
        x.add_(1)
    return y, y.is_inference()


@programs(lambda: (ramp(3),))
def views_made_under_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        head = x[:2]
        head.mul_(2)
    return head


@programs(lambda: (ramp(2, 2), ramp(2, 2)))
def autocast_inside(x: Tensor, y: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ y
        x.copy_(z)
    return z, z + x


@programs(lambda: (ramp(3),))
def another_default_dtype_inside(x: Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return x + torch.ones(3), torch.tensor(0.5)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", programs.names())
def test_it_cannot_be_told_from_eager(name: str) -> None:
    program = programs[name]
    assert_same_as_eager(program.function, program.make, system=purefx.compile, ignore=program.ignore)
