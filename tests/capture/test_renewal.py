"""Views whose histories autograd makes anew after a write are those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from tests.functional.kinds import Programs, ramp
from tests.support.oracle import assert_same_as_eager

programs = Programs()


def alive(*sizes: int) -> Tensor:
    """A tensor with a history."""
    return ramp(*sizes).requires_grad_() * 1


def leaf(*sizes: int) -> Tensor:
    """A leaf that requires grad."""
    return ramp(*sizes).requires_grad_()


def hooked(tensor: Tensor, hook: Callable[[Tensor], Tensor]) -> Tensor:
    """``tensor`` with a hook on its gradient."""
    tensor.register_hook(hook)  # type: ignore[no-untyped-call]  # PyTorch gives it no types
    return tensor


# ---- after a change of geometry


@programs(lambda: (alive(2, 3),))
def a_view_is_written_after_its_base_was_turned(a: Tensor) -> Any:
    flat = a.view(-1)
    a.t_()
    flat.add_(torch.arange(6.0))
    return a * 2, flat


@programs(lambda: (alive(2, 3),))
def rows_are_written_between_turns(a: Tensor) -> Any:
    a.t_()
    a[0].mul_(3)
    a[1:].add_(a[0].sum())
    a.t_()
    return a[0]


@programs(lambda: (alive(3),))
def a_part_is_written_between_new_dimensions(a: Tensor) -> Any:
    a.unsqueeze_(0)
    a[:, 1:].mul_(3)
    a.unsqueeze_(-1)
    return a.sum(1)


@programs(lambda: (ramp(2, 3).requires_grad_(),))
def a_view_of_a_result_is_written_after_that_was_turned(x: Tensor) -> Any:
    h = x * 2
    row = h[0]
    h.t_()
    row.add_(1)
    return h, row


@programs(lambda: (ramp(3).requires_grad_(),))
def a_view_is_read_after_its_base_was_turned(x: Tensor) -> Any:
    y = x.reshape(1, 3) * 1
    row = y[0]
    y.t_()
    return row * 2


@programs(lambda: (alive(3, 3), ramp(3)))
def a_view_is_turned_and_then_written_and_read(a: Tensor, w: Tensor) -> Any:
    v = a[:2]
    v.t_()
    v.mul_(w[:, None])
    return v * v, a


@programs(lambda: (alive(2, 3), ramp(5)))
def a_view_is_given_other_memory_and_back(a: Tensor, other: Tensor) -> Any:
    v = a.detach()[0]
    memory, offset, sizes, strides = v.untyped_storage(), v.storage_offset(), v.size(), v.stride()
    v.set_(other)
    v.mul_(2)
    v.set_(memory, offset, sizes, strides)
    return v + 1, other


@programs(lambda: ((base := ramp(1, 4)).diagonal(), base))
def a_view_is_resized_to_the_sizes_that_it_has(a: Tensor, base: Tensor) -> Any:
    a.resize_(1)
    return base * a


@programs(lambda: ((base := ramp(4, 4))[1], base))
def a_view_is_turned_and_given_the_memory_of_its_base(v: Tensor, base: Tensor) -> Any:
    v.unsqueeze_(1)
    with torch.no_grad():
        v.set_(base)


# ---- a view that shows more than the view that it was taken of


@programs(lambda: (alive(10),))
def a_view_outside_of_its_view_is_written(c: Tensor) -> Any:
    inner = c.narrow(0, 3, 5)
    outer = inner.as_strided((1,), (2,), 0)
    with torch.no_grad():
        outer.add_(3)
    return inner * outer, outer, c


@programs(lambda: (alive(10),))
def a_piece_of_a_view_outside_of_its_view_is_written(c: Tensor) -> Any:
    inner = c.narrow(0, 3, 5)
    outer = inner.as_strided((2,), (2,), 0)
    outer[0:] += 3
    return inner, c * 2


@programs(lambda: (alive(10), alive(4)))
def a_view_that_shows_more_is_written_to_another_tensor(x: Tensor, y: Tensor) -> Any:
    outer = x[4:6].as_strided((2,), (2,), 0)
    y[:2] = outer
    y[2:].add_(outer)
    return outer, y * 1


@programs(lambda: (ramp(2, 3),))
def a_view_outside_of_its_view_is_read_as_integers(a: Tensor) -> Any:
    a.mul_(2)
    outer = a[1].as_strided((1, 1), (1, 4), 1)
    return outer.view(torch.int32), a


@programs(lambda: ((base := alive(4, 4)), base.as_strided((1, 2), (2, 1), 3).as_strided((1, 1), (4, 1), 12)))
def a_view_of_the_caller_outside_of_its_view_is_read_before_its_base_is_written(base: Tensor, outer: Tensor) -> Any:
    read = outer * 3
    base.mul_(2)
    return read, outer * 5


@programs(lambda: ((base := alive(4)), hooked(base[:2], lambda gradient: gradient * 10)))
def a_view_with_a_hook_of_the_caller_is_read_before_its_base_is_written(base: Tensor, part: Tensor) -> Any:
    read = part * 3
    base.mul_(2)
    return read


@programs(lambda: ((base := alive(4, 4)).as_strided((2,), (1,), 12).as_strided((1, 1), (1, 1), 0), base[2], leaf(1, 1)))
def a_view_of_the_caller_outside_of_its_view_is_saved_and_its_base_written(b: Tensor, c: Tensor, w: Tensor) -> Any:
    read = b * 3
    with torch.no_grad():
        c.mul_(2)
    return read + b.detach() * w


@programs(lambda: ((base := alive(4, 4)).split(2)[0], base[2], leaf(2, 4)))
def a_piece_of_the_caller_is_saved_and_its_base_written(b: Tensor, c: Tensor, w: Tensor) -> Any:
    read = b * 3
    with torch.no_grad():
        c.mul_(2)
    return read + b.detach() * w


@programs(lambda: (alive(3, 4).chunk(2)[0],))
def a_piece_of_the_caller_is_read_and_then_written_in_place(b: Tensor) -> Any:
    read = b * 2
    with torch.no_grad():
        b[b > 4] = 6
    return read


@programs(lambda: ((base := alive(3, 4)).diagonal(), base))
def a_view_outside_of_its_view_is_older_than_a_list_that_is_written(a: Tensor, base: Tensor) -> Any:
    outer = a.as_strided((2, 3), (3, 1), 6)
    torch._foreach_add_([a, base.clone()], 5)
    return outer


# ---- a history apart from the base's


@programs(lambda: ((base := ramp(2, 3)), base[0].requires_grad_(), ramp(3).requires_grad_()))
def a_view_with_a_history_apart_forgets_it(base: Tensor, row: Tensor, w: Tensor) -> Any:
    part = row[1:]
    with torch.no_grad():
        base.add_(1)
    return part[0], part * w[1:], row * 2


@programs(lambda: ((base := ramp(2, 3)), base[0].requires_grad_()))
def a_view_with_a_history_apart_forgets_it_as_a_list_is_written(base: Tensor, row: Tensor) -> Any:
    part = row[1:]
    with torch.no_grad():
        torch._foreach_add_([base], 1)
    return part[0], part * 3


@programs(lambda: ((base := ramp(4)).view(4).requires_grad_(), base.detach()))
def a_view_of_a_leaf_forgets_it_as_the_geometry_of_another_changes(a: Tensor, b: Tensor) -> Any:
    v = a.expand(2, -1)
    b.transpose_(0, 0)
    return v[0]


# ---- a view that is older than a write, and whose base is detached then


@programs(lambda: ((base := alive(2, 3)).view(-1), base))
def a_view_is_read_after_its_base_was_written_and_detached(a: Tensor, base: Tensor) -> Any:
    base.mul_(2)
    base.detach_()
    y = a * 3
    base.mul_(2)
    return y, a * 3


@programs(lambda: (ramp(2, 3).requires_grad_(),))
def a_view_of_a_result_is_read_after_that_was_written_and_detached(x: Tensor) -> Any:
    h = x * 2
    row = h[0]
    h.mul_(2)
    h.detach_()
    return row * 2, row, h


@programs(lambda: (ramp(2, 3).requires_grad_(),))
def a_view_of_a_result_is_read_before_and_after_that_was_detached(x: Tensor) -> Any:
    h = x * 2
    row = h[0]
    h.mul_(2)
    y = row * 2
    h.detach_()
    return row * 2, h, y


@programs(lambda: (ramp(2, 3).requires_grad_(),))
def a_piece_of_a_result_is_read_after_that_was_written_and_detached(x: Tensor) -> Any:
    h = x * 2
    row = h.unbind()[0]
    h.mul_(2)
    h.detach_()
    return row * 2


@programs(lambda: (alive(2, 3),))
def a_view_is_turned_and_used_and_its_base_detached(x: Tensor) -> Any:
    h = x * 2
    row = h[:1]
    h.mul_(2)
    row.t_()
    y = row * 2
    h.detach_()
    return row * 2, y, h


@programs(lambda: (alive(2, 3),))
def a_view_is_turned_unseen_and_its_base_detached(x: Tensor) -> Any:
    h = x * 2
    row = h[:1]
    with torch.no_grad():
        row.t_()
    h.detach_()
    return row * 2, h


@pytest.mark.parametrize("name", programs.names())
@pytest.mark.parametrize("system", [purefx.compile, purefx.functionalize], ids=["compile", "functionalize"])
def test_it_cannot_be_told_from_eager(name: str, system: Callable[..., Any]) -> None:
    program = programs[name]
    assert_same_as_eager(program.function, program.make, system=system, ignore=program.ignore)


def test_a_view_that_is_gone_does_not_stop_set() -> None:
    def f(a: Tensor, c: Tensor) -> Tensor:
        c[1:].set_(a)
        return c

    with pytest.raises(purefx.Refusal, match="other memory"):
        purefx.compile(f)(alive(4), ramp(4))


def test_a_view_is_refused_that_is_turned_and_whose_base_is_detached_then() -> None:
    def f(x: Tensor) -> Tensor:
        h = x * 2
        row = h[:1]
        row.t_()
        h.detach_()
        return row * 2

    with pytest.raises(purefx.Refusal, match="whose base was detached then"):
        purefx.compile(f)(alive(2, 3))


def test_a_view_is_refused_that_shows_more_by_its_own_history() -> None:
    def f(x: Tensor) -> Tensor:
        part = (x * 2)[:2]
        part.as_strided_((2,), (1,), 1)
        return part + 1

    with pytest.raises(purefx.Refusal, match="show more than the view that it is"):
        purefx.compile(f)(alive(4))
