"""Programs whose arguments share memory, or whose outputs do, for the comparison with PyTorch's analysis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.analysis.case import Case, adding_to, leaf, live, plain

CASES: list[Case] = []
program = adding_to(CASES)


# -------------------------------------------------------------------------------------------- inputs that alias
def same_twice() -> tuple[Any, ...]:
    """One tensor as two arguments."""
    x = plain(2, 2)
    return x, x


def matrix_and_its_view() -> tuple[Any, ...]:
    """A matrix, and all of it as a vector."""
    x = plain(2, 2)
    return x, x.view(-1)


def two_slices() -> tuple[Any, ...]:
    """Two slices that overlap."""
    x = plain(4)
    return x[:3], x[1:]


def two_halves() -> tuple[Any, ...]:
    """Two slices that do not."""
    x = plain(4)
    return x[:2], x[2:]


def number_and_its_bits() -> tuple[Any, ...]:
    """The bits of a tensor, and the tensor."""
    x = plain(4)
    return x.view(torch.int32), x


@program("aliased-input", matrix_and_its_view)
def writes_the_matrix(a: Tensor, b: Tensor) -> Any:
    a.add_(1)
    return b * 1


@program("aliased-input", two_slices)
def writes_an_overlapping_slice(a: Tensor, b: Tensor) -> Any:
    a.add_(1)
    return b * 1


@program("aliased-input", two_halves)
def writes_one_of_two_halves(a: Tensor, b: Tensor) -> Any:
    a.add_(1)
    return b * 1


@program("aliased-input", lambda: (x := live(2, 2), x.view(-1)))
def writes_a_live_matrix(a: Tensor, b: Tensor) -> Any:
    a.mul_(2)
    return (b * 3).sum()


@program("aliased-input", lambda: (w := leaf(4), w.detach()))
def writes_the_detached_of_a_leaf(w: Tensor, quiet: Tensor) -> Any:
    quiet.mul_(2)
    return w * 3


@program("aliased-input", lambda: (x := plain(2, 2), x.view(4, 1)))
def returns_views_of_both(a: Tensor, b: Tensor) -> Any:
    return b.t(), a.view(-1)


@program("dupe", same_twice)
def writes_one_of_the_same(a: Tensor, b: Tensor) -> Any:
    a.add_(1)
    return b * 1


@program("dupe", same_twice)
def returns_one_of_the_same(a: Tensor, b: Tensor) -> Any:
    return a


@program("metadata-dupe", lambda: (x := plain(2, 3), x))
def transposes_one_of_the_same(a: Tensor, b: Tensor) -> Any:
    a.t_()
    return a + b


@program("metadata-alias", lambda: (x := plain(2, 2), x.view(2, 2)))
def transposes_one_alias(a: Tensor, b: Tensor) -> Any:
    a.t_()
    return a + b


@program("dtype-view", number_and_its_bits)
def writes_the_bits(bits: Tensor, x: Tensor) -> Any:
    bits.bitwise_xor_(-(2**31))
    return x * 2


# ------------------------------------------------------------------------------------ outputs that alias inputs
@program("output-alias", lambda: (plain(2, 2), leaf(2)))
def returns_inputs_and_values(x: Tensor, w: Tensor) -> Any:
    y = x * 2
    return x, w, y, x.shape[0], None, 2.5


@program("output-alias", lambda: (live(2, 3),))
def returns_views_of_a_live_input(x: Tensor) -> Any:
    return x.view(-1), x[1:], x.reshape(3, 2), x[...]


@program("output-alias", lambda: (leaf(2, 3),))
def returns_expanded(x: Tensor) -> Any:
    return x.expand(3, 2, 3), x.diagonal(), x.unfold(1, 2, 1)


@program("view-chain", lambda: (plain(2, 3, 4),))
def returns_a_long_chain(x: Tensor) -> Any:
    return x.transpose(0, 2)[1:].unsqueeze(0)[..., 0].flatten(1), x.permute(2, 0, 1).select(0, 1)


@program("dtype-view", lambda: (torch.complex(plain(3), plain(3)),))
def returns_other_dtypes(z: Tensor) -> Any:
    return torch.view_as_real(z), z.real, z.conj(), z.view(torch.float32)


@program("detach", lambda: (leaf(2, 2),))
def returns_detached(x: Tensor) -> Any:
    return x.detach(), x.data


@program("as_strided", lambda: (plain(6),))
def returns_as_strided(x: Tensor) -> Any:
    return x.as_strided((2, 2), (3, 1), 1), x.view(2, 3)


# ------------------------------------------------------------------------------- outputs that alias intermediates
@program("intermediate", lambda: (leaf(2, 2),))
def returns_one_view_of_a_base(w: Tensor) -> Any:
    return (w * 2).view(-1)


@program("intermediate", lambda: (plain(2, 2),))
def returns_one_view_of_a_plain_base(x: Tensor) -> Any:
    return (x * 2).view(-1)


@program("intermediate", lambda: (leaf(2, 2),))
def returns_two_views_of_a_base(w: Tensor) -> Any:
    y = w * 2
    return y.view(-1), y.t()


@program("intermediate", lambda: (leaf(2, 2),))
def returns_a_base_and_views(w: Tensor) -> Any:
    y = w * 2
    return y, y[0], y.detach()


@program("intermediate", lambda: (plain(2, 2),))
def returns_a_plain_base_and_views(x: Tensor) -> Any:
    y = x * 2
    return y, y[0], y.detach()


@program("intermediate", lambda: (leaf(2, 2),))
def returns_a_view_and_its_detached(w: Tensor) -> Any:
    y = (w + 1).t()
    return y.detach(), y


@program("intermediate", lambda: (leaf(3),))
def returns_the_same_twice(w: Tensor) -> Any:
    y = w * 2
    return y, (y,)


@program("intermediate", lambda: (leaf(3),))
def returns_a_leaf_of_the_same_memory(w: Tensor) -> Any:
    y = w * 2
    return y.detach().requires_grad_(), y


@program("intermediate", lambda: (leaf(2, 2),))
def returns_a_no_grad_view(w: Tensor) -> Any:
    y = w * 2
    with torch.no_grad():
        return y.view(-1)


@program("history", lambda: (leaf(3),))
def copies_into_a_buffer(w: Tensor) -> Any:
    rows = torch.zeros(2, 3)
    rows[1].copy_(w)
    return rows, rows[0]


@program("in-place view", lambda: (plain(2, 3), leaf(2, 3)))
def copies_into_the_base_of_a_view(x: Tensor, w: Tensor) -> Any:
    base = x.clone()
    row = base[0]
    base.copy_(w)
    return row, base


# ------------------------------------------------------------------------------------------- multi-output views
@program("multi-view", lambda: (live(3, 3),))
def unbinds_an_input(x: Tensor) -> Any:
    return x.unbind(0)


@program("multi-view", lambda: (leaf(2, 3),))
def unbinds_an_intermediate(w: Tensor) -> Any:
    return (w * 2).unbind(0)


@program("multi-view", lambda: (leaf(2, 3),))
def unbinds_and_returns_the_base(w: Tensor) -> Any:
    y = w * 2
    return (y, *y.unbind(0))


@program("multi-view", lambda: (plain(4, 2),))
def writes_pieces(x: Tensor) -> Any:
    first, second = x.split(2)
    first.add_(1)
    return second, x.chunk(2)[0]


@program("multi-view", lambda: (leaf(2, 3),))
def writes_the_base_of_pieces(w: Tensor) -> Any:
    base = w.clone()
    piece = base.unbind(0)[0]
    base.add_(1)
    return piece.detach().clone(), base
