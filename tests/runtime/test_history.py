"""The histories of results, and who requires grad after a call, are those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx.errors import GradientsRefused
from tests.functional.kinds import Programs, ramp
from tests.programs.vocabulary import Negate, Shown, Square, View
from tests.support.oracle import assert_same_as_eager

programs = Programs()


def leaf(*sizes: int) -> Tensor:
    """A leaf that requires grad."""
    return ramp(*sizes).requires_grad_()


def alive(*sizes: int) -> Tensor:
    """A tensor with a history."""
    return leaf(*sizes) * 1


def plain_view(base: Tensor) -> Tensor:
    """A view of ``base`` that was taken without gradients."""
    with torch.no_grad():
        return base[:1]


# ---- views of what has become a leaf


@programs(lambda: (ramp(2, 3),))
def a_view_of_a_new_leaf_is_detached(a: Tensor) -> Any:
    a.requires_grad_()
    flat = a.view(6)
    return flat, flat.detach()


@programs(lambda: (alive(2, 3),))
def a_view_of_what_has_begun_anew_is_detached(a: Tensor) -> Any:
    a.detach_()
    a.requires_grad_()
    flat = a.view(6)
    return flat, flat.detach(), flat.detach()[1:]


@programs(lambda: (alive(2, 3),))
def a_view_of_what_is_detached_later_is_detached(a: Tensor) -> Any:
    flat = a.view(6)
    a.detach_()
    return flat, flat.detach(), a.view(6)


@programs(lambda: (ramp(3, 4),))
def a_view_of_what_was_made_inside_is_turned_before_that_is_a_leaf(a: Tensor) -> Any:
    base = a * 1
    view = base.t()
    view.t_()
    base.requires_grad_()
    return view, base, base[0]


@programs(lambda: (ramp(3, 4),))
def a_leaf_made_inside_is_turned_after_a_view_and_its_detached_alias_later(a: Tensor) -> Any:
    base = a * 1
    view = base[1:]
    base.t_()
    base.requires_grad_()
    late, apart = base[0], base.detach()
    apart.t_()
    return base, view, late, apart


@programs(lambda: (ramp(3, 4),))
def a_piece_of_what_is_a_leaf_then_has_no_history(a: Tensor) -> Any:
    base = torch.zeros(2, 2)
    piece = base.split(1)[1]
    base.requires_grad_()
    return piece


@programs(lambda: (ramp(3, 4).clone(),))
def a_view_by_a_function_is_turned_before_what_it_shows_is_a_leaf(a: Tensor) -> Any:
    view = View.apply(a)
    view.t_()
    a.requires_grad_()
    return view


@programs(lambda: (ramp(3, 4).clone(),))
def a_view_by_a_function_is_turned_and_what_it_shows_is_computed_with(a: Tensor) -> Any:
    view = View.apply(a)
    view.t_()
    a.requires_grad_()
    return view, a * 2


@programs(lambda: (ramp(3, 4),))
def what_a_view_by_a_function_shows_is_turned_before_it_is_a_leaf(a: Tensor) -> Any:
    base = a * 1
    view = View.apply(base)
    base.t_()
    base.requires_grad_()
    return view


# ---- leaves that are given other memory


@programs(lambda: (leaf(3), ramp(5)))
def a_leaf_has_other_sizes_between_two_uses(x: Tensor, y: Tensor) -> Any:
    first = (x * 2).sum()
    with torch.no_grad():
        x.set_(y)
    return first, (x * 3).sum()


@programs(lambda: (ramp(2, 4), leaf(4)))
def a_detached_alias_is_written_of_what_is_given_the_same_memory_later(a: Tensor, w: Tensor) -> Any:
    alias = a.detach()
    with torch.no_grad():
        a.set_(a.detach())
    alias.view(-1)[:4].copy_(w)
    return alias, a * 2


@programs(lambda: (ramp(2, 4), leaf(4)))
def a_detached_alias_is_written_of_what_is_turned_later(a: Tensor, w: Tensor) -> Any:
    alias = a.detach()
    a.t_()
    alias.view(-1)[:4].copy_(w)
    return alias, a * 2


# ---- views that are older than a write


@programs(lambda: (ramp(4),))
def a_view_is_older_than_the_writes_and_the_leaf(w: Tensor) -> Any:
    v = w[1:4:2]
    with torch.no_grad():
        w.mul_(2)
        w.requires_grad_()
        v.clamp_(max=2)
    return v


@programs(lambda: (leaf(2, 3),))
def a_leaf_ends_that_a_view_was_taken_of(x: Tensor) -> Any:
    v = x[0]
    x.requires_grad_(requires_grad=False)
    x.mul_(2)
    return v, x[1]


@programs(lambda: (ramp(4, 4), alive(4, 4)))
def a_view_without_grad_is_older_than_a_write_and_another_argument_is_resized(a: Tensor, b: Tensor) -> Any:
    a.resize_(12)
    with torch.no_grad():
        v = b.view(b.shape)
    b.copy_(b * 2)
    return v


@programs(lambda: (alive(4),))
def what_a_view_was_taken_of_is_written_unseen_and_detached(b: Tensor) -> Any:
    v = b[1:]
    v.detach().mul_(2)
    b.detach_()
    return v


@programs(lambda: (leaf(2, 3),))
def what_views_were_taken_of_inside_is_written_unseen_and_detached(x: Tensor) -> Any:
    y = x * 2
    row, other = y[0], y[1]
    y.detach().mul_(2)
    z = row * 3
    y.detach_()
    return row, other, z


@programs(lambda: (alive(4, 4),))
def a_view_is_written_of_what_depends_on_a_written_argument(a: Tensor) -> Any:
    a[0].copy_(a[1])
    v = (a * 2)[:, :2]
    v.zero_()
    return v


@programs(lambda: ((x := leaf(4)).unsqueeze(1), x.detach()))
def a_view_is_older_than_a_change_of_geometry_that_changes_nothing(b: Tensor, d: Tensor) -> Any:
    with torch.no_grad():
        v = b[1:3]
        d.t_()
    return v


@programs(lambda: (alive(2, 3),))
def a_view_is_older_than_a_write_and_a_turn(a: Tensor) -> Any:
    flat = a.view(-1)
    a.mul_(2)
    a.t_()
    return flat


@programs(lambda: (alive(2, 3), leaf(2, 3)))
def a_view_is_older_than_a_write_and_a_turn_and_written(a: Tensor, w: Tensor) -> Any:
    flat = a.view(6)
    a.mul_(w)
    a.t_()
    flat.mul_(2)
    return flat * 2


@programs(lambda: (leaf(1, 4).clone().diagonal(-1),))
def a_view_without_elements_is_written_by_a_function(a: Tensor) -> Any:
    Negate.apply(a)
    return a


@programs(lambda: (ramp(8)[::2].view(4, 1),))
def a_view_becomes_a_leaf_and_is_read_before_a_view_of_it_is_written(a: Tensor) -> Any:
    column = a[..., 0::2]
    a.requires_grad_()
    column.copy_(a + 1)
    return a


@programs(lambda: (base := ramp(2, 3).clone().requires_grad_(), base.chunk(1, 1)[0]))
def a_piece_of_what_is_detached_and_written_is_written(a: Tensor, piece: Tensor) -> Any:
    a.detach_()
    a.mul_(2)
    piece.mul_(2)


@programs(lambda: (plain_view(base := ramp(1, 4).clone().requires_grad_()), base.chunk(1, 1)[0]))
def a_piece_is_written_from_a_view_that_was_taken_without_gradients(a: Tensor, piece: Tensor) -> Any:
    piece.add_(a)


# ---- results whose geometry changes


@programs(lambda: (leaf(3, 3),))
def a_result_loses_a_dimension(x: Tensor) -> Any:
    y = x[:, :1].flip(1)
    y.squeeze_()
    return y


@programs(lambda: (leaf(2, 3),))
def a_result_is_turned_and_written(x: Tensor) -> Any:
    y = x * 2
    y.t_()
    y.mul_(x.t())
    y.unsqueeze_(0)
    return y, x + 1


@programs(lambda: (leaf(2, 3), leaf(3, 2)))
def a_result_is_turned_and_written_and_turned_past_autograd(x: Tensor, w: Tensor) -> Any:
    y, z = torch.zeros(2, 3), x * 2
    y.t_()
    y.add_(w)
    z.t_()
    z.mul_(w)
    z.t_()
    with torch.no_grad():
        y.unsqueeze_(0)
        z.unsqueeze_(-1)
    return y, z


@programs(lambda: (leaf(2, 3), leaf(6)))
def a_result_shows_less_of_itself_and_is_written(x: Tensor, w: Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        y.as_strided_((2, 2), (1, 2), 1)
    y.mul_(w[:2])
    return y, y[0], y.t()


@programs(lambda: (ramp(1, 4),))
def a_leaf_begins_that_was_turned(a: Tensor) -> Any:
    with torch.no_grad():
        v = a[0]
    a.t_()
    u = a[1]
    a.requires_grad_()
    with torch.no_grad():
        w = a[1]
    return a.view(2, 2), v, u, w


@programs(lambda: (ramp(1, 4),))
def a_leaf_begins_that_was_turned_and_has_a_hook(a: Tensor) -> Any:
    a.set_(a)
    a.requires_grad_()
    a.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]
    return a.view(2, 2)


@programs(lambda: (ramp(1, 4),))
def a_result_begins_that_was_turned(a: Tensor) -> Any:
    y = a * 2
    y.t_()
    u = y[0]
    y.requires_grad_()
    return y[0], y, u


@programs(lambda: (ramp(6), leaf(2, 3)))
def a_leaf_begins_whose_view_was_turned(c: Tensor, x: Tensor) -> Any:
    row = x[0]
    v = c[:4].view(2, 2)
    v.t_()
    c.requires_grad_()
    return row, v[0], c[1:]


@programs(lambda: ((base := ramp(6)).unfold(0, 2, 1), base[3], base))
def a_leaf_begins_whose_view_was_given_memory(d: Tensor, a: Tensor, c: Tensor) -> Any:
    d.set_(a)
    c.requires_grad_()
    return d.view(1)


@programs(lambda: (ramp(3, 3),))
def an_argument_is_written_and_turned_and_becomes_a_leaf_that_is_used(a: Tensor) -> Any:
    a.mul_(3)
    v = a[0]
    a.t_()
    u = a[1]
    a.requires_grad_()
    with torch.no_grad():
        a.mul_(2)
    return a * a, a[0], u, v


@programs(lambda: (ramp(3, 3),))
def a_result_is_turned_and_becomes_a_leaf_that_is_used(a: Tensor) -> Any:
    y = a * 2
    y.t_()
    u = y[0]
    y.requires_grad_()
    return y * y, y[0], u


@programs(lambda: (ramp(3, 3),))
def a_leaf_begins_that_is_used_and_whose_view_was_turned(a: Tensor) -> Any:
    v = a[:2].view(-1)
    v.unsqueeze_(0)
    a.requires_grad_()
    return v, (a * a).sum(), v[0], a[0]


@programs(lambda: (alive(3, 3),))
def an_argument_is_detached_and_turned_and_becomes_a_leaf(a: Tensor) -> Any:
    a.detach_()
    a.t_()
    a.requires_grad_()
    return a * a, a[0]


# ---- arguments that are turned after they are written


@programs(lambda: (alive(3, 4), leaf(4)))
def an_argument_is_written_and_shows_less(a: Tensor, w: Tensor) -> Any:
    a.mul_(w)
    y = a * 3
    a.as_strided_((3,), (2,), 1)
    return y, a * a


@programs(lambda: (alive(3, 4), leaf(4)))
def a_row_is_written_and_then_the_argument_shows_less(a: Tensor, w: Tensor) -> Any:
    a[1] = w * 2
    a.t_()
    a.as_strided_((3,), (2,), 1)
    with torch.no_grad():
        a.mul_(5)
    return a.sum()


@programs(lambda: (alive(3, 4), leaf(4)))
def an_argument_is_written_past_autograd_and_shows_less(a: Tensor, w: Tensor) -> Any:
    a.data.mul_(2)
    a.as_strided_((3,), (2,), 1)
    return a * w[1]


@programs(lambda: (alive(3, 4), leaf(4)))
def an_argument_is_written_and_turned_past_autograd(a: Tensor, w: Tensor) -> Any:
    a.mul_(w)
    with torch.no_grad():
        a.as_strided_((3, 4), (1, 3), 0)
    return a * 2


@programs(lambda: (alive(3, 4), leaf(4)))
def an_argument_is_written_past_autograd_and_shows_less_and_is_written(a: Tensor, w: Tensor) -> Any:
    a.data.add_(3)
    a.as_strided_((3,), (2,), 2)
    a.mul_(w[1:])
    return a * 2


@programs(lambda: ((a := alive(3, 4)), a.detach(), leaf(4)))
def what_shares_memory_is_written_after_an_argument_was_written_and_turned(a: Tensor, b: Tensor, w: Tensor) -> Any:
    a.mul_(w)
    d = a.detach()
    with torch.no_grad():
        a.as_strided_((1, 2), (2, 1), 1)
    d.add_(1)
    b.add_(1)
    return a * 2


@programs(lambda: (alive(3, 4), leaf(4)))
def an_argument_is_written_and_shows_less_and_is_written_and_turned(a: Tensor, w: Tensor) -> Any:
    row = a[0]
    a.mul_(w)
    a.as_strided_((2,), (1,), 2)
    u = a[:1]
    a.mul_(w[:2])
    a.unsqueeze_(0)
    return a * 2, row, u, a[0]


@programs(lambda: (alive(3, 3), leaf(3, 3)))
def a_piece_is_taken_of_what_is_turned_before_a_write(a: Tensor, w: Tensor) -> Any:
    a.mul_(w)
    a.t_()
    piece = a.unbind()[0]
    a.mul_(3)
    return piece


@programs(lambda: (alive(3, 3), leaf(3, 3)))
def a_part_is_written_of_what_shows_less(a: Tensor, w: Tensor) -> Any:
    y = w * a.data
    a.as_strided_((2, 2), (1, 2), 1)
    a[0] = w[0, :2]
    a.data.mul_(4)
    return a, y


@programs(lambda: ((base := alive(3, 4)), base[1], leaf(4)))
def a_row_is_written_by_itself_and_then_its_base_shows_less(a: Tensor, row: Tensor, w: Tensor) -> Any:
    row.mul_(w)
    old = a[2]
    a.as_strided_((3,), (2,), 1)
    return row.sum(), old


# ---- arguments that are detached and written


@programs(lambda: (alive(2, 3),))
def a_view_of_ones_own_is_used_of_what_was_written_and_detached(a: Tensor) -> Any:
    view = Shown.apply(a)
    a.mul_(2)
    a.detach_()
    return view * 3


@programs(lambda: (alive(2, 3),))
def views_of_ones_own_and_pieces_are_older_than_a_write_to_what_is_detached(a: Tensor) -> Any:
    view, piece = Shown.apply(a), a.unbind()[0]
    row = view[0]
    a.mul_(2)
    y = a * 2
    a.detach_()
    return row, view, piece, y, a[0]


@programs(lambda: (alive(2, 3),))
def views_are_taken_of_one_that_has_lost_its_history(b: Tensor) -> Any:
    turned, row, used = b.t(), b[1], b[0]
    b.detach_()
    b.mul_(2)
    y = used * 2
    return turned[0], turned, row[:2].expand(2, 2), used[1:], y, b[1]


@programs(lambda: (alive(2, 3), leaf(3)))
def views_are_older_than_the_detaching_and_a_write(b: Tensor, w: Tensor) -> Any:
    row, turned = b[0], b.t()
    rest = b[1][1:]
    y = rest * 2
    b.detach_()
    b.mul_(2)
    return row, turned * 2, rest, y, b[1], w * 2


@programs(lambda: ((base := alive(2, 3)).view(-1), base, leaf(3)))
def views_of_a_view_are_taken_after_its_base_is_detached_and_written(a: Tensor, base: Tensor, w: Tensor) -> Any:
    early = a[:2]
    base.mul_(w)
    base.detach_()
    return early, a[1:], a.unbind()[0], base[0]


@programs(lambda: ((base := alive(3, 3)), base[:2], base[1:], leaf(3)))
def views_keep_what_was_written_to_them_before_their_base_is_detached(
    base: Tensor, a: Tensor, c: Tensor, w: Tensor
) -> Any:
    old = c[0]
    a.mul_(w)
    c.mul_(w * 2)
    y = a * 1
    base.detach_()
    return y, c * 2, (a[1] * w).sum(), old, c[1], c.unbind()


@programs(lambda: ((base := alive(3, 3)), base[:2], base[1:], leaf(3)))
def a_view_keeps_what_was_written_to_its_base_and_another_does_not(
    base: Tensor, a: Tensor, c: Tensor, w: Tensor
) -> Any:
    base.mul_(w)
    y = c * 3
    base.detach_()
    return a * w, c * 2, y


@programs(lambda: ((base := torch.ones(6, requires_grad=True)).view(6), base))
def a_view_that_was_used_after_a_write_lives_on_when_its_leaf_is_none_any_more(a: Tensor, b: Tensor) -> Any:
    old = a[1:]
    with torch.no_grad():
        b.mul_(2)
    y = a * 3
    row = a[1:]
    b.detach_()
    return y, a * 2, row, old, b * 3, b[1:]


@programs(lambda: (alive(4), leaf(4)))
def views_of_what_was_written_live_on_when_it_is_detached(a: Tensor, w: Tensor) -> Any:
    lost = a[2:]
    a.mul_(w)
    row = a[1:]
    y = a * 2
    a.detach_()
    return row[:1], a.view(2, 2), y, lost, row


@programs(lambda: (ramp(4), leaf(4)))
def a_view_lives_on_with_the_history_that_a_write_began(a: Tensor, w: Tensor) -> Any:
    a.mul_(w)
    row = a[1:]
    a.detach_()
    return row


@programs(lambda: (alive(4), leaf(4)))
def what_was_written_by_a_view_lives_on_in_it_and_in_another(a: Tensor, w: Tensor) -> Any:
    row = a[1:]
    row.mul_(w[1:])
    head = a[:2]
    a.detach_()
    return row, head


@programs(lambda: (alive(4), leaf(4)))
def an_older_view_that_was_used_since_lives_on(a: Tensor, w: Tensor) -> Any:
    used, unused = a[1:], a[1:]
    a.mul_(w)
    y = used * 2
    a.detach_()
    return used, y, unused


@programs(lambda: (alive(4), leaf(4)))
def views_live_on_of_what_was_written_without_gradients(a: Tensor, w: Tensor) -> Any:
    used, unused = a[1:], a[1:]
    with torch.no_grad():
        a.mul_(w)
    y, row = used * 2, a[2:]
    a.detach_()
    return used, y, unused, row


@programs(lambda: (alive(4), leaf(4)))
def a_history_that_was_lost_gets_no_gradient_of_the_next(a: Tensor, w: Tensor) -> None:
    a.detach_()
    a.mul_(w)


@programs(lambda: (alive(4), leaf(4)))
def an_argument_is_detached_twice(a: Tensor, w: Tensor) -> Any:
    a.detach_()
    a.mul_(w)
    row = a[:2]
    a.detach_()
    return row


@programs(lambda: (leaf(4), leaf(4)))
def a_leaf_is_detached_twice(a: Tensor, w: Tensor) -> Any:
    old = a[1:]
    a.detach_()
    a.mul_(w)
    row = a[:2]
    a.detach_()
    return row, old


@programs(lambda: (alive(4), leaf(4)))
def views_of_a_result_live_on_when_it_is_detached(a: Tensor, w: Tensor) -> Any:
    y, z = a * w, a + w
    old = z[2:]
    row, late, sine = y[1:], z[:2] * 1, y[2:].sin()
    z.mul_(w)
    used, part = old * 3, z.chunk(2)[1]
    y.detach_()
    z.detach_()
    return row, sine, y, y[3:], part, old, used, late


@programs(lambda: (alive(4), leaf(4)))
def pieces_and_a_written_view_of_what_is_detached_live_on(a: Tensor, w: Tensor) -> Any:
    y, z = a * w, a + w
    pieces, row = y.unbind(), z[1:]
    row.mul_(w[1:])
    y.detach_()
    z.detach_()
    return pieces, z[:2], row


@pytest.mark.parametrize("change", [Tensor.t_, Tensor.requires_grad_], ids=["turned", "a leaf"])
def test_a_view_is_refused_of_what_is_detached_and_changed(change: Any) -> None:
    def f(a: Tensor) -> Any:
        y = a * 2
        if change is Tensor.t_:
            y.t_()
        row = y[1:]
        y.detach_()
        if change is Tensor.requires_grad_:
            y.requires_grad_()
        return row, y

    with pytest.raises(GradientsRefused, match="the history of what the program detaches"):
        purefx.trace(f, leaf(4))


def test_a_view_of_ones_own_is_refused_of_what_is_detached() -> None:
    def f(base: Tensor, a: Tensor) -> Any:
        a.mul_(2)
        base.detach_()
        return Shown.apply(a)

    base = alive(3, 3)
    with pytest.raises(GradientsRefused, match="detaches"):
        purefx.trace(f, base, base[:2])


def test_a_write_is_refused_that_a_view_keeps_of_what_is_a_leaf_then() -> None:
    def f(a: Tensor, base: Tensor) -> Tensor:
        a.mul_(2)
        base.detach_().requires_grad_()
        return a * base

    base = alive(3)
    with pytest.raises(GradientsRefused, match="then detaches what it is a view of"):
        purefx.trace(f, base.view(3), base)


@programs(lambda: (alive(4),))
def a_result_gets_other_sizes_without_gradients(a: Tensor) -> Any:
    y = torch.zeros(4)
    y.add_(a)
    with torch.no_grad():
        y.unsqueeze_(0)
    return y


@programs(lambda: (alive(2, 3), leaf(2, 3)))
def a_function_of_ones_own_writes_and_then_it_is_turned(a: Tensor, w: Tensor) -> None:
    Negate.apply(a)
    a.t_()


@programs(lambda: (alive(4),))
def an_argument_gets_another_size_when_it_is_detached(a: Tensor) -> None:
    a.detach_()
    a.resize_(3)


@programs(lambda: (ramp(4), leaf(4)))
def a_view_of_what_begins_a_history_is_older_than_a_write(a: Tensor, w: Tensor) -> Any:
    a.copy_(w + 1)
    column = a.unsqueeze(0).t()
    with torch.no_grad():
        column.copy_(column * 2)
    return column


def test_a_piece_that_has_lost_its_history_is_given() -> None:
    def f(a: Tensor, piece: Tensor) -> Tensor:
        a.add_(8)
        piece.view(torch.int32)
        return piece.detach()

    found = []
    for program in (f, purefx.compile(f)):
        base = alive(3, 4)
        a, piece = base.view(-1, 1), base.unbind(-1)[0]
        a.add_(1)
        found.append(program(a, piece).tolist())
    assert found[0] == found[1]


# ---- hooks on arguments that are written


@programs(lambda: (alive(3, 4), leaf(4)))
def an_argument_is_hooked_before_and_after_it_is_written(a: Tensor, w: Tensor) -> Any:
    a.register_hook(lambda gradient: gradient * 3)
    a.mul_(w)
    a.register_hook(lambda gradient: gradient * 5)
    return a * 2


@programs(lambda: ((base := alive(3, 4)), base[1], leaf(4)))
def a_base_is_hooked_after_a_row_of_it_is_written(a: Tensor, row: Tensor, w: Tensor) -> Any:
    row.mul_(w)
    a.register_hook(lambda gradient: gradient * 5)
    return (a * w).sum()


@programs(lambda: ((base := alive(3, 4)), base[1], base[1:], leaf(4)))
def views_are_hooked_between_writes(a: Tensor, row: Tensor, rows: Tensor, w: Tensor) -> Any:
    rows.register_hook(lambda gradient: gradient * 3)
    row.register_hook(lambda gradient: gradient * 5)
    y = row.sin()
    row.mul_(w)
    row.register_hook(lambda gradient: gradient * 7)
    return y, row * w, rows * 2


# ---- views of what shows other memory since


def swapped() -> tuple[Tensor, ...]:
    """A view whose base has been given other memory, and one that has been given other memory than its base."""
    bases = alive(3, 4), alive(3, 4)
    views = bases[0][1], bases[1][1]
    bases[0].data, views[1].data = ramp(3, 4), ramp(4)
    return (*views, *bases)


@programs(swapped)
def views_are_used_that_show_other_memory(a: Tensor, b: Tensor, base: Tensor, other: Tensor) -> Any:
    return a * 2, b * 2, a[1:], a.view(2, 2) * b.sum(), base * other


@programs(swapped)
def views_are_written_that_show_other_memory(a: Tensor, b: Tensor, base: Tensor, other: Tensor) -> Any:
    a.mul_(base.sum())
    b.mul_(a)
    return a * 3, b[1:], base * other


@programs(swapped)
def bases_are_written_of_views_that_show_other_memory(a: Tensor, b: Tensor, base: Tensor, other: Tensor) -> Any:
    older = a[1:], b[1:]
    base.mul_(2)
    other.mul_(a.sum())
    return a * 3, b * 3, older


@programs(swapped)
def bases_are_turned_of_views_that_show_other_memory(a: Tensor, b: Tensor, base: Tensor, other: Tensor) -> Any:
    base.t_()
    other.t_()
    return a * 3, b * 3


@programs(swapped)
def bases_are_detached_of_views_that_show_other_memory(a: Tensor, b: Tensor, base: Tensor, other: Tensor) -> Any:
    with torch.no_grad():
        base.mul_(2)
    base.detach_()
    other.detach_()
    return a * 3, b * 3


@programs(lambda: (alive(3, 4), ramp(3, 4)))
def memory_is_given_after_a_write_and_a_view_is_used_then(x: Tensor, y: Tensor) -> Any:
    alias = x.view(-1)
    x.mul_(2)
    x.data = y
    return alias * 2, x * 3


def test_a_view_that_shows_other_memory_and_is_turned_is_not_used() -> None:
    def f(view: Tensor, *_: Tensor) -> Tensor:
        view.unsqueeze_(0)
        return view * 2

    with pytest.raises(GradientsRefused, match="shows other memory now than the tensor whose history it has"):
        purefx.trace(f, *swapped())


@programs(lambda: (alive(3, 4), ramp(4, 3)))
def a_part_is_written_of_what_shows_other_memory_then(x: Tensor, y: Tensor) -> Any:
    x[1].mul_(3)
    x.data = y.t()
    return x


def test_a_written_part_that_other_memory_has_no_view_of_is_refused() -> None:
    def f(x: Tensor, y: Tensor) -> None:
        x.view(-1)[3:7].mul_(3)
        x.data = y.t()

    with pytest.raises(GradientsRefused, match="of other strides"):
        purefx.compile(f)(alive(3, 4), ramp(4, 3))


def neighbours() -> tuple[Tensor, ...]:
    whole = ramp(12)
    return whole[6:], whole[::2], leaf(4), ramp(6)


@programs(neighbours)
def a_view_shows_other_memory_once_its_base_is_written(x: Tensor, other: Tensor, w: Tensor, y: Tensor) -> Any:
    x[:4].copy_(w)
    other.data = y
    return other


@programs(lambda: (leaf(4), ramp(3, 4)))
def a_result_is_given_memory_of_other_sizes(x: Tensor, y: Tensor) -> Any:
    result = x * 2
    result.data = y
    return result


@programs(lambda: (leaf(3, 4), ramp(3, 4)))
def a_custom_view_shows_the_other_memory_of_a_leaf(x: Tensor, y: Tensor) -> Any:
    older = Shown.apply(x[0])
    x.data = y
    return Shown.apply(x), older


@programs(lambda: (alive(3, 4),))
def a_custom_view_is_taken_of_a_part_of_new_memory(x: Tensor) -> Any:
    x.data = torch.ones(3, 4)
    return Shown.apply(x.view(-1)[:4])[1:]


def test_what_is_written_and_swapped_has_no_custom_view() -> None:
    def f(x: Tensor) -> Any:
        x[0].mul_(2)
        x.data = torch.ones(3, 4)
        return Shown.apply(x[1])

    with pytest.raises(GradientsRefused, match="gives it other memory"):
        purefx.compile(f)(alive(3, 4))


@programs(lambda: (ramp(24)[3:9], alive(4)))
def a_view_is_given_memory_with_a_history(x: Tensor, y: Tensor) -> Any:
    x.set_(y)
    (y * 2).unsqueeze_(0)
    return x, y * 2


@programs(lambda: (ramp(24), alive(4)))
def what_has_no_history_is_written_and_then_given_memory_with_one(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    x.set_(y)


# ---- views of what is detached


@programs(lambda: ((base := alive(4, 4)), base[1]))
def a_view_keeps_the_history_of_what_is_detached_and_another_has_lost_it(base: Tensor, row: Tensor) -> Any:
    with torch.no_grad():
        base.mul_(2)
    view = base[3:5]
    base.detach_()
    return view, row[1:]


# ---- functions of the user's


@programs(lambda: ((base := alive(4, 4)), base[1]))
def functions_are_applied_to_views_of_what_was_written_and_detached(base: Tensor, row: Tensor) -> Any:
    other = base[2]
    with torch.no_grad():
        base.mul_(2)
    base.detach_()
    return Square.apply(row), Square.apply(other)  # type: ignore[no-untyped-call]


@programs(lambda: (leaf(3),))
def a_function_views_what_was_written_and_detached(x: Tensor) -> Any:
    y = x * 1
    row = y[:2]
    y[0] = 7
    y.detach_()
    return Shown.apply(row)  # type: ignore[no-untyped-call]


@programs(lambda: ((base := alive(3, 4)), base[1]))
def a_function_views_a_view_of_what_is_detached_and_written(base: Tensor, row: Tensor) -> Any:
    view = Shown.apply(row)  # type: ignore[no-untyped-call]
    base.detach_()
    with torch.no_grad():
        base[0] += 5
    return view


@programs(lambda: (alive(4, 4),))
def functions_are_applied_to_views_of_what_was_turned(x: Tensor) -> Any:
    row, pair = x[0], x[:2]
    pair.t_()
    x.t_()
    return Square.apply(row), Square.apply(pair)  # type: ignore[no-untyped-call]


# ---- versions that come again


@programs(lambda: ((x := alive(10))[2:4], x.data[1:4], x[:]))
def a_view_is_written_in_two_places_and_one_write_is_counted(_: Tensor, data: Tensor, view: Tensor) -> None:
    view[9] = 7
    data.mul_(2)


def view_without_grad() -> tuple[Tensor, Tensor]:
    """A view that was taken without gradients, and the bits of its base, which has a history."""
    base = alive(1, 4)
    with torch.no_grad():
        row = base.view(-1)
    return row, base.view(torch.int32)


@programs(view_without_grad)
def memory_is_given_of_what_a_view_is_taken_of_before_a_write(row: Tensor, bits: Tensor) -> Any:
    bit = bits.select(1, 3)
    bit.data = row.data
    first = row[0:1:2]
    with torch.no_grad():
        first.clamp_(max=7)
    return first, bit


@programs(lambda: (views_without_grad()[1],))
def a_detached_alias_is_given_the_memory_of_a_view_without_grad(view: Tensor) -> Any:
    alias = view.detach()
    alias.set_(view)
    return alias


# ---- turns that change nothing


@programs(lambda: (alive(3, 4),))
def a_turn_without_grad_that_changes_nothing_comes_before_a_write(x: Tensor) -> Any:
    with torch.no_grad():
        x.transpose_(0, 0)
    x.mul_(2)
    return x * 3


# ---- names of views in errors


def views_without_grad() -> tuple[Tensor, Tensor]:
    """Two views that were taken without gradients, of a base with a history."""
    base = alive(4, 4)
    with torch.no_grad():
        return base[:2], base.permute(0, 1)


@programs(views_without_grad)
def the_view_is_named_that_an_operator_takes_of_a_view(a: Tensor, _: Tensor) -> None:
    view = a[:, 1:]
    view.fill_diagonal_(9)


@programs(views_without_grad)
def the_view_is_named_that_an_operator_takes_by_itself(_: Tensor, b: Tensor) -> None:
    b.fill_diagonal_(9)


@programs(lambda: (Shown.apply(leaf(4)),))
def a_view_of_a_leaf_by_a_function_is_named(a: Tensor) -> None:
    a.mul_(2)


@programs(lambda: (Shown.apply(leaf(4)),))
def the_view_is_named_that_the_program_takes_of_it(a: Tensor) -> None:
    flat = a.view(-1)
    a.exp()
    flat.mul_(2)


def test_what_a_function_has_made_is_called_by_its_name() -> None:
    view = purefx.compile(Shown.apply)(alive(3))
    with pytest.raises(RuntimeError, match="Output 0 of Shown is a view and is being modified inplace"):
        view.add_(1)


# ---- lazily conjugated aliases


@programs(lambda: ((x := torch.complex(ramp(2, 3), ramp(2, 3) + 1)).conj().detach(), x[0]))
def a_conjugated_alias_is_written(a: Tensor, row: Tensor) -> Any:
    a.add_(a)
    return row, a[1]


@programs(lambda: ((x := torch.complex(alive(2, 3), ramp(2, 3) + 1)).conj().data, x))
def the_data_of_a_conjugate_is_written(a: Tensor, x: Tensor) -> Any:
    a.copy_(x.detach())
    return a * 2, x * 2


@programs(lambda: ((x := ramp(2, 3).to(torch.complex64)), x.conj().imag.detach()))
def a_negated_alias_is_written(x: Tensor, negated: Tensor) -> Any:
    negated.add_(1)
    return x, negated[0]


# ---- leaves that the program makes of views


@programs(lambda: (alive(2, 3),))
def a_leaf_is_a_view_of_what_is_detached(c: Tensor) -> Any:
    c.detach_()
    return c.transpose(0, 1).requires_grad_()


@programs(lambda: (alive(2, 3),))
def a_leaf_is_a_view_of_what_is_detached_and_read_before(c: Tensor) -> Any:
    y = c * 2
    c.fill_diagonal_(8)
    c.detach_()
    row = c[0].requires_grad_()
    return y, row, row * 3


@programs(lambda: (ramp(3, 3, 2),))
def a_piece_of_a_leaf_that_is_a_view(b: Tensor) -> Any:
    v = b[1:].requires_grad_()
    return v.unbind(0)[0]


@programs(lambda: (ramp(3, 2),))
def a_piece_of_a_leaf_that_is_a_view_is_older_than_a_write(a: Tensor) -> Any:
    v = a.view(3, 2).requires_grad_()
    piece, row = v.unbind()[0], v[1]
    with torch.no_grad():
        a.mul_(2)
    return piece, row


@programs(lambda: (ramp(3, 3), leaf(3)))
def a_view_of_a_leaf_that_is_a_view_next_to_what_is_computed_of_it(b: Tensor, w: Tensor) -> Any:
    v = b.t().requires_grad_()
    return v[0], v * w, w[1:]


@programs(lambda: (ramp(3, 4), leaf(4)))
def views_of_a_view_from_before_and_after_it_is_a_leaf(a: Tensor, w: Tensor) -> Any:
    v = a[1:]
    turned = v.t()
    row = turned[0]
    v.requires_grad_()
    with torch.no_grad():
        a.mul_(2)
    return v, turned, row, v[0], (v * w).sum()


@programs(lambda: (ramp(3, 4), leaf(4)))
def views_of_a_view_of_a_result_that_is_a_leaf(a: Tensor, w: Tensor) -> Any:
    y = a * 2
    row = y[0]
    early = row[1:]
    row.requires_grad_()
    return early, row[2:], Shown.apply(row), row * w


@programs(lambda: (ramp(3, 3),))
def a_view_of_a_leaf_that_is_not_returned(a: Tensor) -> Any:
    y = a * 2
    y.requires_grad_()
    return y[0]


@programs(lambda: (ramp(3, 3), leaf(3)))
def views_of_a_leaf_and_what_is_computed_of_it(a: Tensor, w: Tensor) -> Any:
    y = a * 2
    with torch.no_grad():
        v = y[1]
    plain = y[2]
    y.requires_grad_()
    return v, plain, y.t(), (y * w).sum()


@programs(lambda: (alive(4),))
def a_view_of_a_leaf_that_is_a_view_of_what_is_detached(a: Tensor) -> Any:
    a.detach_()
    v = a[:2]
    v.requires_grad_()
    return v[1:]


@programs(lambda: (alive(4),))
def views_of_what_is_detached_and_a_leaf_again(d: Tensor) -> Any:
    before = d[:2]
    d.detach_()
    plain = d[:2]
    d.requires_grad_()
    return before, plain, d[1:]


# ---- views of what a custom function returned


@programs(lambda: (leaf(6),))
def a_piece_of_a_view_of_ones_own(a: Tensor) -> Any:
    v = Shown.apply(a)
    return v.chunk(3, 0)[0], v


@programs(lambda: (alive(2, 3),))
def a_flat_view_of_a_view_of_ones_own(a: Tensor) -> Any:
    v = Shown.apply(a)
    return v, a, v, v.flatten(), v[0] * 2


@programs(lambda: (alive(4, 3),))
def views_of_a_view_of_ones_own_that_nobody_holds(a: Tensor) -> Any:
    v = Shown.apply(a)
    return v[1:, 2:], v[0], v.unbind()


@programs(lambda: (leaf(4, 3),))
def a_view_of_a_view_of_ones_own_of_a_view_of_ones_own(x: Tensor) -> Any:
    return Shown.apply(Shown.apply(x * 2)[0])[1:]


@programs(lambda: (alive(4, 3),))
def a_view_of_a_hooked_view_of_ones_own_next_to_what_is_computed_of_that(a: Tensor) -> Any:
    v = Shown.apply(a)
    v.register_hook(lambda gradient: gradient.clamp(max=3))
    return v[:2], v.sum()


@programs(lambda: (alive(4, 3), leaf(3)))
def a_view_of_a_view_of_ones_own_of_what_is_written(a: Tensor, w: Tensor) -> Any:
    a.mul_(w)
    v = Shown.apply(a)
    return v[0], (v * w).sum()


@programs(lambda: ((base := alive(2, 3))[:], base))
def a_function_gets_a_part_of_a_view_whose_base_is_written(a: Tensor, b: Tensor) -> Any:
    b.mul_(2)
    return View.apply(a[1])


@programs(lambda: ((base := alive(2, 3))[:], base))
def a_function_gets_what_a_view_shows_after_a_write_of_what_its_base_gives(a: Tensor, b: Tensor) -> Any:
    b.index_put_((torch.tensor([0, 1]),), b.sum(), accumulate=True)
    return View.apply(a.as_strided((2,), (1,), 2))


@programs(lambda: ((base := alive(2, 3))[:], base, leaf(3)))
def a_detached_part_of_a_view_is_written_after_its_base(a: Tensor, b: Tensor, w: Tensor) -> Any:
    b.mul_(2)
    part = a[1].detach()
    part.mul_(w)
    return part


def _of_a_view(a: Tensor, b: Tensor) -> Any:
    b.mul_(2)
    part = a[1:]
    part.t_()
    return View.apply(part)


def _and_returned(a: Tensor, b: Tensor) -> Any:
    b.mul_(2)
    part = b[1:]
    part.t_()
    return View.apply(part), part


def _before_the_write(a: Tensor, b: Tensor) -> Any:
    part = b[1:]
    part.t_()
    b.mul_(2)
    return View.apply(part), part


@pytest.mark.parametrize("program", [_of_a_view, _and_returned, _before_the_write])
def test_a_turned_part_of_what_is_written_is_not_given_to_a_function(program: Callable[..., Any]) -> None:
    base = alive(3, 3)
    with pytest.raises(GradientsRefused, match="turns a view of it, and takes what has another history"):
        purefx.compile(program)(base[:], base)


# ---- views that have no history when they are taken, and are written


@programs(lambda: (ramp(4, 2), leaf(4, 2)))
def a_view_is_written_of_what_had_no_history(x: Tensor, w: Tensor) -> Any:
    v = x[3:]
    v.copy_(w[:1])
    return x, v


@programs(lambda: (ramp(4, 2), leaf(4, 2)))
def a_view_of_such_a_view_is_written(x: Tensor, w: Tensor) -> Any:
    v = x[3:]
    u = v.view(2)
    u.copy_(w[0])
    return v, x, u


@programs(lambda: (leaf(4, 2),))
def a_view_is_used_after_its_base_has_got_a_history(w: Tensor) -> Any:
    x = torch.zeros(4, 2)
    v = x[3:]
    x.copy_(w)
    return v, x, v * 2


@programs(lambda: (ramp(4), leaf(4)))
def a_view_is_written_and_then_its_base_without_grad(x: Tensor, w: Tensor) -> Any:
    v = x[:2]
    v.add_(w[:2])
    with torch.no_grad():
        x.mul_(2)
    return v


@programs(lambda: ((x := ramp(4, 2))[0], x[1:], leaf(4, 2)))
def an_argument_is_a_view_of_what_another_is_written_to(x: Tensor, v: Tensor, w: Tensor) -> Any:
    x.copy_(w[0])
    v.mul_(2)
    return v, x


@programs(lambda: (ramp(5, 3)[1:], leaf(4, 3)))
def an_argument_without_a_history_is_turned_and_written_by_a_view(x: Tensor, w: Tensor) -> Any:
    x.t_()
    x[0].mul_(w[:, 0])
    return x * 1


# ---- writes of no elements


@programs(lambda: (alive(4, 2),))
def a_view_without_elements_is_written(x: Tensor) -> Any:
    x[2:2].mul_(2)
    return x * 1


@programs(lambda: (alive(0, 2),))
def a_column_of_what_is_empty_is_written(x: Tensor) -> Any:
    v = x[:, 0]
    v.mul_(2)
    return x * 1, v


@programs(lambda: (ramp(4, 2), leaf(4, 2)))
def the_history_begins_with_a_write_of_no_elements(x: Tensor, w: Tensor) -> Any:
    v = x[4:]
    v.copy_(w[:0])
    return x, v


# ---- leaves that get other memory or other sizes


@programs(lambda: (leaf(3, 3), leaf(3, 3)))
def a_leaf_is_set_to_a_leaf_that_is_written(a: Any, b: Tensor) -> Any:
    with torch.no_grad():
        a.set_(b)
        b.mul_(2)
    return a + b


@programs(lambda: (leaf(3, 3), ramp(4)))
def a_leaf_is_set_to_a_tensor_of_other_sizes(a: Any, b: Tensor) -> Any:
    with torch.no_grad():
        a.set_(b * 2)
        a.mul_(2)
    return a * b, a.view(2, 2)


@programs(lambda: (leaf(3, 3), ramp(9)))
def a_leaf_is_set_to_a_part_of_a_storage(a: Any, b: Tensor) -> Any:
    with torch.no_grad():
        a.set_(b.untyped_storage(), 1, (2,), (1,))
    return a * 3, b * 2


@programs(lambda: (leaf(3, 3), ramp(3)))
def a_leaf_and_another_change_places(a: Any, b: Any) -> Any:
    with torch.no_grad():
        former = a.detach()
        a.set_(b)
        b.set_(former)
    return a * 3, b * 2


@programs(lambda: (leaf(2, 3),))
def the_data_of_a_leaf_is_expanded(x: Any) -> Any:
    x.data = x.data[:1].unsqueeze(0).expand(4, 2, 3)
    return x * x


@programs(lambda: (leaf(2, 3),))
def the_data_of_a_leaf_is_of_another_dtype(x: Any) -> Any:
    x.data = x.data.double()
    return x * x


@programs(lambda: (leaf(2, 3),))
def a_leaf_is_turned_without_grad(x: Tensor) -> Any:
    with torch.no_grad():
        x.t_()
    return x * 2, x[0]


@programs(lambda: (leaf(3), ramp(2)))
def a_leaf_is_used_before_and_after_it_has_other_sizes(x: Any, y: Tensor) -> Any:
    z = x * 2
    x.data = y
    return z, x * 3


# ---- views of what depends on other results


@programs(lambda: (leaf(2, 3, 2),))
def a_written_view_of_a_view_of_a_copy_of_a_result(x: Tensor) -> Any:
    y = x * 2
    v = y.permute(1, 0, 2).flatten(1)[0].view(2, 2)
    v.add_(1)
    return y, v


# ---- what the caller writes before the backward


@programs(lambda: (alive(4, 4)[3][1],))
def what_is_saved_was_written_past_autograd(a: Tensor) -> Any:
    a.data.add_(5)
    return a * a, a


# ---- a copy that was reshaped


@programs(lambda: (alive(3, 4).t(),))
def a_reshaped_copy_is_written_and_viewed(a: Tensor) -> Any:
    flat = a.reshape(-1)
    flat.mul_(2)
    return flat.view(3, 4), flat.unbind()[1]


@programs(lambda: (alive(3, 4).t(),))
def a_reshaped_copy_is_turned(a: Tensor) -> Any:
    flat = a.reshape(-1)
    flat.unsqueeze_(0)
    return flat


@programs(lambda: (ramp(3, 4),))
def a_copy_is_held_with_what_shares_its_memory_unknown_to_autograd(a: Tensor) -> Any:
    copied = a.clone()
    flat = torch.ops.aten._unsafe_view.default(copied, [12])
    flat.mul_(2)
    return copied, flat[1:]


# ---- writes to no element


@programs(lambda: ((base := alive(1, 4)).view(4), base.diagonal(-1), base))
def nothing_is_written_to_a_view_without_elements(flat: Tensor, empty: Tensor, base: Tensor) -> Any:
    empty.mul_(empty)
    return flat * 2, base


@programs(lambda: (leaf(4), ramp(2, 4)))
def a_tensor_gets_the_history_of_what_is_written_to_no_element_of_it(w: Tensor, a: Tensor) -> Any:
    a[:, 4:].mul_(w[4:])
    return a * 2


# ---- views of what has become a leaf, taken after it was written


@programs(lambda: (torch.arange(4.0),))
def a_view_of_what_was_written_and_is_a_leaf_then(a: Tensor) -> Any:
    a[1:] += 6
    view = a[1:]
    a.requires_grad_()
    return view


@programs(lambda: (torch.arange(4.0),))
def a_view_of_a_view_is_taken_when_there_is_a_leaf(a: Tensor) -> Any:
    row = a[3]
    a.requires_grad_()
    return row.unsqueeze(0), row.detach()


@programs(lambda: ((a := ramp(4, 4)), a[:]))
def a_change_of_geometry_that_changes_nothing_is_counted(a: Tensor, b: Tensor) -> Any:
    a[:3] = 3
    a.squeeze_()
    view = b.unfold(1, 2, 2)
    view.requires_grad_()
    return view


@programs(lambda: (alive(2, 3),))
def an_alias_is_given_the_memory_that_it_has(a: Tensor) -> Any:
    alias = a.detach()
    alias.set_(a)
    return alias[1:]


# ---- views on the way to an alias with a history of its own


@programs(lambda: (leaf(2, 3),))
def a_view_of_what_the_graph_returns_lies_between_it_and_a_leaf(x: Tensor) -> Any:
    flat = (x * 2).view(6)
    with torch.no_grad():
        column = flat.unsqueeze(1)
    column.requires_grad_()
    return flat, column


@programs(lambda: (leaf(2, 3),))
def a_view_lies_between_what_the_graph_returns_and_a_view_of_ones_own(x: Tensor) -> Any:
    flat = (x * 2).view(6)
    return flat, Shown.apply(flat)


@programs(lambda: (alive(2, 3), leaf(3)))
def a_view_of_what_was_written_lies_between_it_and_a_leaf(a: Tensor, w: Tensor) -> Any:
    older = a[1]
    a.mul_(w)
    row = a[0]
    with torch.no_grad():
        alias, other = row.unsqueeze(0), older.unsqueeze(0)
    alias.requires_grad_()
    other.requires_grad_()
    return row, alias, older, other


@programs(lambda: (alive(2, 3), leaf(3)))
def a_view_of_what_was_written_lies_between_it_and_a_view_of_ones_own(a: Tensor, w: Tensor) -> Any:
    a.mul_(w)
    row = a[0]
    return row, Shown.apply(row)


# ---- results whose geometry is changed


@programs(lambda: (leaf(10, 1),))
def a_result_shows_a_part_of_what_was_computed(x: Tensor) -> Any:
    y = torch.stack([x, x])
    y.as_strided_((2, 3), (1, 2), 0)
    return y


@programs(lambda: (leaf(4, 2),))
def a_result_is_turned_past_autograd_which_knows_its_sizes_only(x: Tensor) -> Any:
    y = torch.cat([x, x], -1)
    y.t_()
    with torch.no_grad():
        y.t_()
    y.unsqueeze_(0)
    return y.squeeze(), y


def turn_unseen(x: Tensor) -> None:
    with torch.no_grad():
        x.t_()


def swap_dimensions(x: Tensor) -> None:
    x.data = x.data.t()


@programs(lambda: (leaf(2, 2),))
def a_result_is_turned_past_autograd_and_written(x: Tensor) -> Any:
    y = x * 2
    turn_unseen(y)
    return y.mul_(2)


@pytest.mark.parametrize("turn", [turn_unseen, swap_dimensions])
def test_a_write_to_a_view_of_a_result_that_was_turned_past_autograd_is_refused(turn: Callable[[Tensor], None]) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        view = y[0]
        turn(y)
        return y, view.mul_(2)

    with pytest.raises(GradientsRefused, match="changes the geometry of a result under"):
        purefx.trace(f, leaf(2, 2))


@pytest.mark.parametrize("last", [Tensor.t_, turn_unseen, swap_dimensions])
@pytest.mark.parametrize("first", [Tensor.t_, turn_unseen, swap_dimensions])
def test_a_function_writes_between_turns(first: Any, last: Any) -> None:
    def f(a: Tensor) -> Tensor:
        first(a)
        Negate.apply(a)
        last(a)
        return a

    assert_same_as_eager(f, lambda: (alive(3, 3),), system=purefx.compile)


def test_a_write_to_a_view_whose_dimensions_were_swapped_is_refused() -> None:
    def f(view: Tensor, w: Tensor) -> None:
        view.data = view.data.t()
        view.mul_(w)

    with pytest.raises(GradientsRefused, match=r"turns args\[0\], a view, by"):
        purefx.trace(f, alive(4, 3)[1:], leaf(3))


def turned_then_written(a: Tensor, row: Tensor, w: Tensor, turn: Callable[[Tensor], None]) -> Any:
    turn(a)
    row.mul_(w)
    return row * 2


def written_then_turned(a: Tensor, row: Tensor, w: Tensor, turn: Callable[[Tensor], None]) -> Any:
    row.mul_(w)
    turn(a)
    return a[1], row * 2


def turned_between_writes(a: Tensor, row: Tensor, w: Tensor, turn: Callable[[Tensor], None]) -> Any:
    row.mul_(w)
    turn(a)
    row.mul_(w)


def turned_about_a_write(a: Tensor, row: Tensor, w: Tensor, turn: Callable[[Tensor], None]) -> Any:
    turn(a)
    a[0].mul_(w)
    turn(a)


@pytest.mark.parametrize("turn", [Tensor.t_, turn_unseen, swap_dimensions])
@pytest.mark.parametrize("make", [ramp, alive])
@pytest.mark.parametrize(
    "program", [turned_then_written, written_then_turned, turned_between_writes, turned_about_a_write]
)
def test_a_base_is_turned_and_a_view_of_it_is_written(program: Any, make: Any, turn: Any) -> None:
    """A turn that autograd does not see leaves the gradient in the sizes and places that it had."""

    def arguments() -> tuple[Tensor, Tensor, Tensor]:
        a = make(3, 3).clone()
        return a, a.t()[2:], leaf(3)

    assert_same_as_eager(lambda a, row, w: program(a, row, w, turn), arguments, system=purefx.compile)


# ---- memory that the backward reads, and that the program has written


@programs(lambda: ((b := alive(2, 3)).data, b))
def what_is_saved_counts_apart_from_what_is_written(alias: Tensor, b: Tensor) -> Any:
    b.mul_(alias)
    return b


@programs(lambda: ((b := torch.arange(4.0)), b.data, leaf(4)))
def what_is_saved_is_written_by_way_of_what_counts_apart(b: Tensor, alias: Tensor, x: Tensor) -> Any:
    alias.add_(1)
    return x * b


@programs(lambda: (torch.arange(4.0), leaf(4)))
def what_is_saved_is_an_alias_that_counts_by_itself(a: Tensor, x: Tensor) -> Any:
    return a.data * x


def test_a_backward_reads_what_the_caller_writes_past_autograd_where_the_program_wrote() -> None:
    def f(a: Tensor, x: Tensor) -> Tensor:
        a[1:].add_(1)
        return x * a

    for program in (f, purefx.compile(f)):
        a, x = torch.ones(3), leaf(3)
        y = program(a, x)
        a.data.mul_(5)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert gradient.tolist() == [5.0, 10.0, 10.0]


# ---- a view that shows more of its base than what it was taken of


@programs(lambda: (alive(2, 3, 4).permute(1, 0, 2)[0:1],))
def a_view_of_more_is_asked_to_require_grad(a: Tensor) -> Any:
    stray = a.as_strided((3,), (1,), 2)
    stray.requires_grad_()
    return stray * stray


@programs(lambda: (alive(4, 4),))
def what_is_saved_shows_the_memory_of_a_result_and_counts_by_itself(b: Tensor) -> Any:
    y = b * b
    b.data = y.data
    return y[1]


@programs(lambda: (alive(2, 3).select(0, 1).detach(),))
def a_view_of_a_leaf_that_was_given_its_own_memory_and_written(a: Tensor) -> Any:
    a.set_(a)
    a.masked_fill_(a > 1, 7)
    a.requires_grad_()
    return a.view(3)


@programs(lambda: (leaf(2, 3),))
def a_view_of_a_leaf_that_was_written_by_what_counts_with_it_and_not_with_the_caller(b: Tensor) -> Any:
    alias = b.data
    flat = alias.view(-1)
    flat.detach().mul_(2)
    flat.requires_grad_()
    return flat.expand(2, -1), alias, flat


@programs(lambda: ((base := ramp(4, 4))[1:], base, alive(4)))
def a_view_that_is_given_its_own_memory_is_not_used_before_another_is_written(a: Tensor, b: Tensor, x: Tensor) -> Any:
    a.set_(a)
    x.mul_(2)
    a[2] = 7
    return b[0]


def test_a_view_whose_version_is_set_back_sees_a_later_write_of_its_base() -> None:
    def f(a: Tensor, b: Tensor) -> None:
        a.mul_(2)
        b.data.fill_(2)

    for program in (f, purefx.compile(f)):
        x = leaf(6)
        base = x * 1
        a, piece = base[2:], base.split(1)[0]
        program(a, piece)
        base.mul_(3)
        (gradient,) = torch.autograd.grad(a.sum(), x)
        assert gradient.tolist() == [0.0, 0.0, 6.0, 6.0, 6.0, 6.0]


# ---- leaves that are given other memory


@programs(lambda: (leaf(4), torch.arange(8.0)))
def a_leaf_is_given_memory_that_is_written_then(a: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        a.set_(b)
    b.mul_(2)
    return (a * a).sum()


@programs(lambda: (leaf(4, 3),))
def a_leaf_is_turned_by_being_given_its_own_memory(a: Tensor) -> Any:
    with torch.no_grad():
        a.set_(a.t())
    return a, a[1:], a * 2


@programs(lambda: (leaf(4), torch.arange(4.0), leaf(4)))
def a_leaf_is_given_other_memory_between_two_uses(a: Tensor, b: Tensor, w: Tensor) -> Any:
    y = a * w
    with torch.no_grad():
        a.set_(b)
    return y, y + a * a, a.sin()


@programs(lambda: (leaf(4), torch.arange(3.0)))
def a_leaf_is_given_fewer_elements_between_two_uses(a: Tensor, b: Tensor) -> Any:
    y = (a * 3).sum()
    with torch.no_grad():
        a.set_(b)
    return y, a * 2


def of_the_same_memory() -> tuple[Tensor, Tensor]:
    b = torch.arange(4.0)
    return b.detach().requires_grad_(), b


@programs(of_the_same_memory)
def a_leaf_is_given_the_memory_that_it_has_between_two_uses(a: Tensor, b: Tensor) -> Any:
    y = a * 3
    with torch.no_grad():
        a.set_(b)
    return y, y + a * a


@programs(of_the_same_memory)
def a_leaf_is_given_the_memory_that_it_has_after_its_use(a: Tensor, b: Tensor) -> Any:
    y = a.exp()
    with torch.no_grad():
        a.set_(b)
    return y


def test_a_leaf_is_refused_other_memory_twice() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        first = a * 3
        with torch.no_grad():
            a.set_(b)
        second = a * 2
        with torch.no_grad():
            a.set_(b.clone())
        return first + second + a

    with pytest.raises(GradientsRefused, match="other memory or sizes twice"):
        purefx.trace(f, leaf(4), torch.arange(4.0))


def test_gradients_arrive_at_a_leaf_that_got_the_memory_that_it_has() -> None:
    gradients = []
    for through in (lambda f: f, purefx.compile, purefx.functionalize):
        a, b = of_the_same_memory()
        through(a_leaf_is_given_the_memory_that_it_has_between_two_uses)(a, b)[1].sum().backward()
        gradients.append(a.grad)
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)


@pytest.mark.parametrize("size", [4, 3])
def test_gradients_arrive_at_a_leaf_as_it_was_and_as_it_is(size: int) -> None:
    def f(a: Tensor, b: Tensor) -> Any:
        y = (a * 3).sum()
        with torch.no_grad():
            a.set_(b)
        return y + (a * a).sum()

    seen: list[Any] = []
    for program in (f, purefx.compile(f)):
        a = leaf(4)
        try:
            program(a, ramp(size)).backward()
            seen.append(a.grad.tolist() if a.grad is not None else None)
        except RuntimeError as error:
            seen.append(str(error))
    assert seen[0] == seen[1]


@programs(lambda: (alive(3, 4),))
def a_view_of_ones_own_of_what_is_turned(a: Tensor) -> Any:
    a.t_()
    return Shown.apply(a)


def test_a_view_of_ones_own_is_refused_of_what_is_written_and_turned() -> None:
    def f(a: Tensor) -> Tensor:
        a.mul_(2)
        a.t_()
        return Shown.apply(a)

    with pytest.raises(GradientsRefused, match="takes what has another history of it"):
        purefx.trace(f, alive(3, 4))


# ---- leaves that require grad no more, and are written


@programs(lambda: (leaf(2, 3), leaf(3)))
def a_leaf_that_requires_grad_no_more_is_written(a: Tensor, w: Tensor) -> Any:
    y = a * 3
    a.requires_grad_(requires_grad=False)
    a.mul_(w)
    return y, a * 2


@programs(lambda: (ramp(2, 3)[1].requires_grad_(), leaf(3)))
def a_leaf_that_is_a_view_is_detached_and_written(a: Tensor, w: Tensor) -> Any:
    a.requires_grad_(requires_grad=False)
    a.add_(w)


@programs(lambda: (leaf(2, 3),))
def a_leaf_that_is_detached_is_written_with_a_leaf_that_shows_it(a: Tensor) -> Any:
    a.detach_()
    alias = Shown.apply(a)
    alias.requires_grad_()
    a.mul_(alias)


@programs(lambda: ((a := alive(4, 4)), a[2:], leaf(4)))
def what_is_saved_is_a_view_of_what_is_detached_and_written(a: Tensor, b: Tensor, w: Tensor) -> Any:
    a.detach_()
    y = (b * w).sum()
    with torch.no_grad():
        a.neg_()
    return y


# ---- what is turned or written by way of a view, and then detached


@programs(lambda: (alive(4, 4),))
def views_of_what_is_turned_and_then_detached(a: Tensor) -> Any:
    a.t_()
    row = a[2]
    a.detach_()
    return row, a[1], a, row * 2


@programs(lambda: ((a := alive(2, 3)), a.view(-1)))
def a_view_of_what_is_detached_after_a_view_was_written(a: Tensor, flat: Tensor) -> Any:
    flat.mul_(2)
    a.detach_()
    return a[1:], flat * 2


@programs(lambda: (torch.arange(4.0).requires_grad_(),))
def a_piece_of_a_leaf_that_requires_grad_no_more_is_a_leaf(a: Tensor) -> Any:
    y = a * 3
    a.detach_()
    piece = a.unbind(-1)[1]
    piece.requires_grad_()
    return piece, y


def test_a_write_to_a_leaf_that_ends_and_begins_is_refused_where_a_view_has_lost_its_history() -> None:
    def f(a: Tensor, b: Tensor) -> None:
        a.detach_()
        a.mul_(2)
        b.view(-1)
        a.requires_grad_()

    a = torch.arange(4.0).requires_grad_()
    with pytest.raises(GradientsRefused, match="and a view of it is used then"):
        purefx.trace(f, a, a.view(2, 2))


def test_a_hook_between_a_write_and_a_turn_is_refused() -> None:
    def f(a: Tensor) -> None:
        a.mul_(2)
        a.register_hook(lambda gradient: gradient * 3)
        a.t_()

    with pytest.raises(GradientsRefused, match="has got a hook after an earlier change"):
        purefx.trace(f, alive(2, 3))


def test_a_hook_on_what_is_turned_and_computed_with_is_refused() -> None:
    def f(a: Tensor) -> Tensor:
        a.t_()
        a.register_hook(lambda gradient: gradient[:1])
        return a * 2

    with pytest.raises(GradientsRefused, match="registers a hook on args\\[0\\] after it has written to it or turned"):
        purefx.trace(f, alive(2, 3))


@pytest.mark.parametrize("result", [0, 1])
def test_one_of_two_uses_of_a_leaf_that_is_given_other_sizes_between_them_is_differentiated(result: int) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first = (x * 2).sum()
        with torch.no_grad():
            x.set_(y)
        return first, (x * 3).sum()

    expected, found = leaf(3), leaf(3)
    f(expected, ramp(5))[result].backward()
    purefx.compile(f)(found, ramp(5))[result].backward()
    assert expected.grad is not None
    assert found.grad is not None
    assert expected.grad.tolist() == found.grad.tolist()


def written_unseen_and_used(x: Tensor) -> Any:
    with torch.no_grad():
        x.mul_(2)
    return x.sin()


def used_and_written_unseen(x: Tensor) -> Any:
    y = x * 3
    with torch.no_grad():
        x.mul_(2)
    return y


def used_before_and_after_an_unseen_write(x: Tensor) -> Any:
    y = x * 3
    x.detach().mul_(2)
    return y, x.cos() * y


@pytest.mark.parametrize(
    "program",
    [written_unseen_and_used, used_and_written_unseen, used_before_and_after_an_unseen_write],
    ids=lambda program: program.__name__,
)
@pytest.mark.parametrize("view", [lambda a: a[:2], lambda a: a.view(2, 2), lambda a: a.expand(1, 4)])
def test_a_view_that_is_written_unseen_is_differentiated_by_as_it_is_then(
    program: Callable[..., Any], view: Callable[[Tensor], Tensor]
) -> None:
    def gradients(f: Callable[..., Any]) -> list[Any]:
        x = leaf(4)
        given = view(x * 1)
        before = torch.autograd.graph.get_gradient_edge(given)
        results = f(given)
        results = results if isinstance(results, tuple) else (results,)
        return [
            torch.autograd.grad(result.sum(), [place, x], retain_graph=True, allow_unused=True)
            for result in results
            for place in (given, before)
        ]

    assert repr(gradients(purefx.compile(program))) == repr(gradients(program))


def test_a_leaf_is_given_other_memory_without_gradients_around() -> None:
    def program(x: Tensor) -> Any:
        x.set_(ramp(4))
        with torch.enable_grad():
            return x * 2

    seen = []
    for f in (program, purefx.compile(program)):
        x = leaf(3)
        with torch.no_grad():
            y = f(x)
        y.sum().backward()
        assert x.grad is not None
        seen.append((x.tolist(), x._version, y.tolist(), x.grad.tolist()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", programs.names())
@pytest.mark.parametrize("system", [purefx.compile, purefx.functionalize], ids=["compile", "functionalize"])
def test_it_cannot_be_told_from_eager(name: str, system: Callable[..., Any]) -> None:
    program = programs[name]
    assert_same_as_eager(program.function, program.make, system=system, ignore=program.ignore)
