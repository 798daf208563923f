"""Without a backend, what a program writes to the caller's memory is written in place; where not, it is said why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx.operators import aten
from purefx.pipeline import reinplaced, run_stages
from purefx.report.copies import WriteBack
from tests.functional.kinds import ramp
from tests.support.oracle import assert_same_as_eager


def operators(f: Callable[..., Any], *args: Any) -> list[Any]:
    """What runs in the place of ``f`` where no backend compiles it."""
    graph = reinplaced(run_stages(f, args, {}, dynamic=False)).functional.graph
    return [node.target for node in graph.nodes if node.op == "call_function"]


def row_by_tensor(cache: Tensor, x: Tensor, position: Tensor) -> Tensor:
    cache[position] = x
    return cache.sum(0)


def rows_by_numbers(cache: Tensor, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    cache[:, first.item()] = x[0, 0]
    cache[second] = x[0]
    return cache * 2


def row_of_view(cache: Tensor, x: Tensor, position: Tensor) -> Tensor:
    keys = cache.t()[1:]
    keys[position] += x[:, 0]
    return keys.sum(0) + cache.sum()


KINDS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a row": (row_by_tensor, (ramp(4, 3), ramp(3), torch.tensor(2))),
    "from the end": (row_by_tensor, (ramp(4, 3), ramp(3), torch.tensor(-1))),
    "strided": (row_by_tensor, (ramp(4, 6)[:, ::2], ramp(3), torch.tensor(1))),
    "two that cross": (rows_by_numbers, (ramp(4, 3), ramp(4, 3), torch.tensor(1), torch.tensor(0))),
    "of a view": (row_of_view, (ramp(4, 3), ramp(4, 3), torch.tensor(1))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_whose_number_is_in_a_tensor_is_written_in_place(kind: str) -> None:
    f, args = KINDS[kind]
    ran = operators(f, *args)
    assert {aten.copy_.default, aten.add_.Tensor} & set(ran)
    assert not {aten.cat.default, aten.clone.default, aten.select_scatter.default} & set(ran)
    assert purefx.check(f, *args)


def test_nothing_is_written_where_the_number_of_a_row_is_out_of_range() -> None:
    cache = torch.zeros(4, 3)
    compiled = purefx.compile(row_by_tensor)
    compiled(cache, torch.zeros(3), torch.tensor(0))
    with pytest.raises(RuntimeError, match="out of range"):
        compiled(cache, torch.ones(3), torch.tensor(4))
    assert not cache.any()


@pytest.mark.parametrize("f", [row_by_tensor, lambda cache, x, i: cache.index_copy_(0, i[None], x[None]).sum(0)])
def test_an_inference_tensor_is_written_in_place_in_inference_mode(f: Callable[..., Any]) -> None:
    with torch.inference_mode():
        args = (ramp(4, 3) + 0, ramp(3) + 0, torch.tensor(2))
        assert not {aten.cat.default, aten.index_copy.default} & set(operators(f, *args))
        assert purefx.check(f, *args)
        compiled = purefx.compile(f)
        assert torch.equal(compiled(*args), args[0].sum(0))
        assert torch.equal(args[0][2], args[1])


def layer_by_layer(cache: Tensor, x: Tensor, positions: Tensor) -> Tensor:
    for layer in cache.unbind(0):
        layer.index_copy_(0, positions, x)
        x = x + layer.sum(0)
    return x


def twice_by_a_view(cache: Tensor, x: Tensor, positions: Tensor) -> Tensor:
    keys = cache[0]
    keys[positions] = x
    before = keys.sum()
    keys.mul_(2)
    return cache.sum() + keys[0] + before


def a_part_of_what_was_written(cache: Tensor, x: Tensor, positions: Tensor) -> Tensor:
    cache[1].copy_(x[0])
    cache[:, 0].index_add_(0, positions, x)
    cache[1, 1:].sub_(1)
    return cache.sum(0)


VIEWS: dict[str, Callable[..., Any]] = {
    "layer by layer": layer_by_layer,
    "twice": twice_by_a_view,
    "a part": a_part_of_what_was_written,
    "only written": lambda cache, x, i: cache[0].index_copy_(0, i, x),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_is_written_in_place_by_any_operator(kind: str) -> None:
    args = (ramp(2, 4, 3), ramp(1, 3), torch.tensor([1]))
    ran = operators(VIEWS[kind], *args)
    assert not {aten.cat.default, aten.clone.default, aten.index_copy.default, aten.index_put.default} & set(ran)
    assert purefx.check(VIEWS[kind], *args)


def reads_the_old_part(cache: Tensor, x: Tensor) -> Tensor:
    old = cache[0] * 1
    other = torch.zeros(4, 3)
    other.copy_(cache[0])
    cache[0].mul_(x)
    return other + old + cache[1]


def reads_another_part(cache: Tensor, x: Tensor) -> Tensor:
    cache[1].copy_(cache[0])
    cache[0].mul_(x)
    cache[1].mul_(x)
    return cache.sum(0)


def swaps_parts(cache: Tensor, x: Tensor) -> Tensor:
    cache[0].mul_(x)
    cache[1].copy_(cache[0])
    cache[0].add_(1)
    return cache + cache[:, :1]


def overlapping_parts(cache: Tensor, x: Tensor) -> Tensor:
    cache[:, 1:].mul_(x)
    cache[0].add_(1)
    y = cache[:, :2].sum()
    cache[:, 1].mul_(y)
    return cache.sum(0)


def a_part_of_a_part(cache: Tensor, x: Tensor) -> Tensor:
    keys = cache[0].mul_(x)
    before = keys.sum()
    keys[1:].add_(before)
    return cache + keys[0]


def a_part_is_returned(cache: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    part = cache[0].mul_(x)
    return part * 1, part, cache[1].add_(part)


def a_part_is_kept(cache: Tensor, x: Tensor) -> Tensor:
    kept = torch.zeros(2, 4, 3)
    kept[0].copy_(cache[0].mul_(x))
    cache[0].add_(1)
    return kept.sum(0)


PARTS = (
    reads_the_old_part, reads_another_part, swaps_parts, overlapping_parts, a_part_of_a_part, a_part_is_returned,
    a_part_is_kept,
)  # fmt: skip


@pytest.mark.parametrize("f", PARTS)
@pytest.mark.parametrize("strided", [False, True])
def test_writes_of_parts_keep_what_is_read_of_them(f: Callable[..., Any], *, strided: bool) -> None:
    cache = ramp(2, 4, 6)[:, :, ::2] if strided else ramp(2, 4, 3)
    assert purefx.check(f, cache, ramp(3) + 2)


def obstacles(f: Callable[..., Any], *args: Any) -> list[str]:
    """Why ``f`` does not write in place."""
    return [copy.obstacle for copy in purefx.explain(f, *args).copies if isinstance(copy, WriteBack)]


def written_in_the_mode(cache: Tensor) -> Tensor:
    with torch.inference_mode():
        cache[0] = 1
        return cache.sum()


def read_before(a: Tensor, b: Tensor) -> Tensor:
    a[0].copy_(b)
    b.add_(1)
    return a.sum()


def written_twice(a: Tensor, b: Tensor) -> None:
    a.add_(1)
    b.copy_(a)
    a.add_(1)


def seen_by_autograd(cache: Tensor, x: Tensor) -> Tensor:
    cache[1].copy_(x)
    return cache.sum()


def by_data(w: Tensor) -> Tensor:
    w.data.mul_(2)
    return w.sum()


@torch.library.custom_op("purefx_tests::doubled_beside", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def inference_tensor() -> Tensor:
    with torch.inference_mode():
        return torch.zeros(4, 3)


OBSTACLES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "outside of inference mode": (written_in_the_mode, (inference_tensor(),)),
    "what it held before is read after": (read_before, (ramp(2, 3), ramp(3))),
    "its new value is a result, is written elsewhere": (written_twice, (ramp(3), ramp(3))),
    "autograd sees the write": (seen_by_autograd, (ramp(2, 3), ramp(3).requires_grad_())),
    "its version counter does not move": (by_data, (ramp(3).requires_grad_(),)),
    "operators that are not PyTorch's": (lambda x: doubled(x.mul_(2)), (ramp(3),)),
}


@pytest.mark.parametrize("said", OBSTACLES)
def test_it_is_said_why_a_write_is_not_in_place(said: str) -> None:
    f, args = OBSTACLES[said]
    found = obstacles(f, *args)
    assert any(said in obstacle for obstacle in found), found
    assert said in " ".join(str(purefx.explain(f, *args)).split())


def test_what_is_only_written_needs_no_reason() -> None:
    assert obstacles(lambda cache, x: cache[1].copy_(x), ramp(2, 3), ramp(3)) == [""]


def a_row_is_copied_between_the_writes_of_another(a: Tensor) -> None:
    a[0].add_(1)
    a[1].copy_(a[0])
    a[0].mul_(2)


def what_it_was_is_copied_back(a: Tensor) -> Tensor:
    kept = torch.empty(4, 3).copy_(a.add_(1))
    a.mul_(2)
    total = a.sum()
    a.copy_(kept)
    return total


def a_row_that_it_had_is_copied_back(a: Tensor) -> Tensor:
    kept = torch.empty(3).copy_(a[0].add_(1))
    a[0].mul_(2)
    total = a.sum()
    a[0].copy_(kept)
    return total


@pytest.mark.parametrize(
    "f", [a_row_is_copied_between_the_writes_of_another, what_it_was_is_copied_back, a_row_that_it_had_is_copied_back]
)
def test_a_value_that_leaves_the_graph_is_not_written_over(f: Callable[..., Any]) -> None:
    assert_same_as_eager(f, lambda: (ramp(4, 3),), system=purefx.compile)


def a_window_is_copied_into_another(head: Tensor, middle: Tensor, tail: Tensor) -> Tensor:
    head.mul_(2)
    tail.copy_(middle[:3])
    return middle * 1


def test_a_part_of_what_is_in_memory_is_not_taken_for_another_part() -> None:
    def windows() -> tuple[Tensor, ...]:
        whole = ramp(9)
        return whole[:4], whole[2:6], whole[5:8]

    assert_same_as_eager(a_window_is_copied_into_another, windows, system=purefx.compile)
