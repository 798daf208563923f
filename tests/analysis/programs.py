"""Programs that write to their arguments, for the comparison with PyTorch's analysis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.analysis.case import Case, adding_to, leaf, live, plain

CASES: list[Case] = []
program = adding_to(CASES)


# ------------------------------------------------------------------------------------------------ input mutation
@program("input-mutation", lambda: (plain(2, 2),))
def writes_and_returns(x: Tensor) -> Any:
    x.add_(1)
    return x, x.view(-1), x + 1


@program("input-mutation", lambda: (plain(2), leaf(2)))
def gives_x_the_gradient_of_w(x: Tensor, w: Tensor) -> Any:
    x.add_(w)
    return x


@program("input-mutation", lambda: (live(3, 3), plain(3, 3), live(3, 3)))
def writes_two_of_three(a: Tensor, b: Tensor, c: Tensor) -> Any:
    a.mul_(2)
    c.mul_(3)
    return a + b + c


@program("input-mutation", lambda: (live(4, 4)[:, ::2],))
def writes_columns_with_gaps(x: Tensor) -> None:
    x.mul_(2)


@program("input-mutation", lambda: (plain(8)[::2], leaf(4)))
def gives_gaps_a_gradient(x: Tensor, w: Tensor) -> Any:
    x.mul_(w)
    return w * 2


@program("order", lambda: (plain(4), leaf(4)))
def is_overwritten_by_copy(x: Tensor, w: Tensor) -> Any:
    old = x * 3
    x.copy_(w)
    return old, x * 2


@program("containers", lambda: ({"a": plain(3), "b": leaf(3)}, [plain(2)]))
def writes_in_containers(d: dict[str, Tensor], xs: list[Tensor]) -> Any:
    d["a"].add_(1)
    xs[0].mul_(2)
    return {"sum": d["a"] + d["b"], "xs": xs}


@program("index-write", lambda: (plain(3, 2), torch.tensor([0, 2])))
def writes_rows_by_index(x: Tensor, rows: Tensor) -> Any:
    x[rows] = 0
    return x.index_put((rows,), x[1])


@program("empty", lambda: (plain(3),))
def writes_an_empty_slice(x: Tensor) -> Any:
    x[3:].add_(1)
    return x * 1


@program("foreach", lambda: ([leaf(3), leaf(2)], [plain(3), plain(2)]))
def steps_with_momentum(weights: list[Tensor], momenta: list[Tensor]) -> None:
    with torch.no_grad():
        torch._foreach_mul_(momenta, 0.9)
        torch._foreach_add_(weights, momenta, alpha=-0.1)


@program("out=", lambda: (plain(2, 3), torch.zeros(2, 3)))
def writes_out(x: Tensor, out: Tensor) -> Any:
    return torch.mul(x, 2, out=out)


@program("out-variant", lambda: (plain(2, 3), torch.empty(0)))
def grows_out(x: Tensor, out: Tensor) -> Any:
    torch.mul(x, 2, out=out)
    return out + 1


@program("random", lambda: (plain(16),))
def drops_in_place(x: Tensor) -> Any:
    return torch.nn.functional.dropout(x, 0.5, inplace=True) * 2


@program("copy", lambda: (plain(3, 3),))
def copies_into_a_diagonal(x: Tensor) -> Any:
    y = torch.zeros(3, 3)
    y.diagonal().copy_(x[0])
    return y


# ------------------------------------------------------------------------------------------- hidden from autograd
@program("hidden-mutation", lambda: (leaf(2, 2),))
def writes_under_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        x.add_(1)
    return x * 1


@program("hidden-mutation", lambda: (plain(2, 2),))
def writes_under_inference_mode(x: Tensor) -> Any:
    with torch.inference_mode():
        x.add_(1)
    return x * 1


@program("hidden-mutation", lambda: (plain(2, 2),))
def writes_in_both_modes(x: Tensor) -> Any:
    with torch.no_grad():
        x.add_(1)
    x.mul_(2)
    return x * 1


@program("hidden-mutation", lambda: (leaf(2, 2),))
def writes_a_detached(x: Tensor) -> Any:
    x.detach().add_(1)
    return x * 1


@program("hidden-mutation", lambda: (plain(2, 2),))
def writes_data(x: Tensor) -> Any:
    x.data.add_(1)
    return x * 1


@program("hidden-mutation", lambda: (live(2, 2),))
def writes_without_grad_through_a_view(x: Tensor) -> Any:
    flat = x.view(-1)
    with torch.no_grad():
        flat.mul_(2)
    return x * 3


@program("buffers", lambda: (plain(2, 3, 2, 2), torch.nn.Parameter(plain(3)), leaf(3), plain(3), plain(3)))
def updates_running_statistics(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Any:
    return torch.nn.functional.batch_norm(x, mean, var, w, b, training=True)
