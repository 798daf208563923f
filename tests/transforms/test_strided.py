"""``as_strided`` under vmap is that of a loop over the examples, at each batch dimension and in each layout."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch._vmap_internals import _vmap as older_vmap
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jvp, vmap

from purefx import func
from purefx.errors import TransformRefused
from purefx.func import strided_batching
from purefx.layout import Geometry, covers
from purefx.transforms import batching
from tests.layout.samples import random_base, random_chain, randoms

View = Callable[[Tensor], Tensor]
Vmap = Callable[..., Any]

COUNT = 3
"""Examples in a batch."""


def numbers(*sizes: int) -> Tensor:
    return torch.rand(sizes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@dataclass(frozen=True)
class Layout:
    """Three examples of four rows and five columns, the batch first, as a view of a tensor of these sizes."""

    sizes: tuple[int, ...]
    taken: View

    def batch(self, dim: int) -> Tensor:
        """The examples, with the batch at ``dim``."""
        return self.taken(numbers(*self.sizes)).movedim(0, dim)


LAYOUTS = {
    "contiguous": Layout((COUNT, 4, 5), lambda x: x[:]),
    "transposed": Layout((COUNT, 5, 4), lambda x: x.mT),
    "interleaved": Layout((4, 5, COUNT), lambda x: x.movedim(2, 0)),
    "in the middle": Layout((5, COUNT, 4), lambda x: x.permute(1, 2, 0)),
    "stepped": Layout((2 * COUNT, 8, 5), lambda x: x[::2, ::2]),
    "a part": Layout((COUNT + 1, 6, 7), lambda x: x[1:, 1:5, 1:6]),
    "expanded": Layout((COUNT, 1, 5), lambda x: x.expand(COUNT, 4, 5)),
    "one for all": Layout((4, 5), lambda x: x.expand(COUNT, 4, 5)),
}

LAID_OUT = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
LAID_OUT_ONCE = pytest.mark.parametrize("layout", list(LAYOUTS.values())[:-2], ids=list(LAYOUTS)[:-2])
"""Those without repeated elements, which PyTorch neither writes nor gives tangents."""

DIMS = pytest.mark.parametrize("dim", [0, 1, 2])

VIEWS: dict[str, View] = {
    "itself": lambda x: x[:],
    "transpose": lambda x: x.mT,
    "rows": lambda x: x[1::2],
    "a column": lambda x: x[:, 3],
    "diagonal": lambda x: x.diagonal(1),
    "windows": lambda x: x.unfold(1, 3, 1),
    "repeated": lambda x: x[2].expand(2, 5),
    "one element": lambda x: x[2, 3],
    "nothing": lambda x: x[:, :0],
}

VIEWED = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())


def strided(view: View) -> View:
    """``view`` taken by ``as_strided``."""

    def run(x: Tensor) -> Tensor:
        wanted = view(x)
        return x.as_strided(wanted.shape, wanted.stride(), wanted.storage_offset())

    return run


def antidiagonal(x: Tensor) -> Tensor:
    """Four elements from the first row's fourth down to the left, to which no view operators lead."""
    down, right = x.stride()
    return x.as_strided((4,), (down - right,), x.storage_offset() + 3 * right)


def antidiagonal_of(x: Tensor) -> Tensor:
    return x.flip(1)[:, 1:].diagonal()


def looped(function: Callable[..., Tensor], *batches: Tensor, dim: int) -> Tensor:
    return torch.stack([function(*(xs.select(dim, i) for xs in batches)) for i in range(batches[0].shape[dim])])


# ------------------------------------------------------------------------------------------------- a block


@LAID_OUT
@DIMS
@VIEWED
def test_a_view_by_as_strided_is_that_view(layout: Layout, dim: int, view: View) -> None:
    xs = layout.batch(dim)
    with strided_batching():
        for transform in (vmap, older_vmap):
            assert torch.equal(transform(strided(view), in_dims=dim)(xs), looped(view, xs, dim=dim))


@LAID_OUT
@DIMS
def test_elements_that_no_view_operator_leads_to_are_shown(layout: Layout, dim: int) -> None:
    xs = layout.batch(dim)
    if xs.select(dim, 0).stride(0) <= xs.select(dim, 0).stride(1):
        return  # a stride below 0
    with strided_batching():
        assert torch.equal(vmap(antidiagonal, in_dims=dim)(xs), looped(antidiagonal_of, xs, dim=dim))


@LAID_OUT
@DIMS
@VIEWED
def test_gradients_flow_through_it(layout: Layout, dim: int, view: View) -> None:
    xs = layout.batch(dim)

    def loss(x: Tensor, taken: View) -> Tensor:
        return (taken(x).sin() * (1 + taken(x))).sum()

    def total(memory: Tensor) -> Tensor:
        return vmap(lambda x: loss(x, strided(view)), in_dims=dim)(layout.taken(memory).movedim(0, dim)).sum()

    def total_of_loop(memory: Tensor) -> Tensor:
        return torch.stack([loss(x, view) for x in layout.taken(memory)]).sum()

    def loss_of_strided(x: Tensor) -> Tensor:
        return loss(x, strided(view))

    memory = numbers(*layout.sizes)
    want = looped(grad(loss_of_strided), xs, dim=dim)
    with strided_batching():
        assert torch.allclose(vmap(grad(loss_of_strided), in_dims=dim)(xs), want)
        assert torch.allclose(grad(total)(memory), grad(total_of_loop)(memory))


@LAID_OUT_ONCE
@DIMS
@VIEWED
def test_tangents_flow_through_it(layout: Layout, dim: int, view: View) -> None:
    xs = layout.batch(dim)
    directions = xs.cos()

    def pushed(x: Tensor, t: Tensor, taken: View) -> Tensor:
        return jvp(lambda x: taken(x.clone()).sin(), (x,), (t,))[1]

    with strided_batching():
        found = vmap(lambda x, t: pushed(x, t, strided(view)), in_dims=dim)(xs, directions)
    assert torch.allclose(found, looped(lambda x, t: pushed(x, t, view), xs, directions, dim=dim))


@DIMS
@LAID_OUT_ONCE
@pytest.mark.parametrize("view", [VIEWS["rows"], VIEWS["diagonal"], VIEWS["a column"], VIEWS["itself"]])
def test_writes_through_it_land_in_the_batch(layout: Layout, dim: int, view: View) -> None:
    def write(x: Tensor, taken: View) -> Tensor:
        return taken(x).mul_(2).sum()

    xs, expected = layout.batch(dim), layout.batch(dim)
    want = looped(lambda x: write(x, view), expected, dim=dim)
    with strided_batching():
        assert torch.allclose(vmap(lambda x: write(x, strided(view)), in_dims=dim)(xs), want)
    assert torch.equal(xs, expected)


@LAID_OUT
@DIMS
def test_vmaps_nest(layout: Layout, dim: int) -> None:
    xs = torch.stack([layout.batch(dim), layout.batch(dim) + 1], -1)
    taken = strided(VIEWS["diagonal"])
    with strided_batching():
        found = vmap(vmap(taken, in_dims=dim), in_dims=-1)(xs)
    assert torch.equal(found, torch.stack([looped(VIEWS["diagonal"], x, dim=dim) for x in xs.unbind(-1)]))


# --------------------------------------------------------------------------- graphs and duals from outside


def recorded(view: View, written: View) -> tuple[Tensor, Tensor]:
    """A leaf, and what a graph computes of it: by writes to views, and by ``as_strided``."""
    x = numbers(4, 5).requires_grad_()
    y = x * 2
    written(y).mul_(3)
    strided(written)(y).sin_()
    return x, strided(view)(y).exp()


def idle(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize("view", [v for name, v in VIEWS.items() if name != "nothing"])
@pytest.mark.parametrize("written", [idle, VIEWS["rows"], VIEWS["diagonal"], VIEWS["transpose"]])
def test_gradients_of_a_graph_from_outside_are_had_for_a_batch_of_cotangents(view: View, written: View) -> None:
    x, y = recorded(view, written)

    def gradient(v: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, v, retain_graph=True)[0]

    for dim in range(y.dim() + 1):
        for lie in range(y.dim() + 1):
            vs = numbers(*y.shape[:lie], COUNT, *y.shape[lie:]).movedim(lie, dim)
            want = looped(gradient, vs, dim=dim)
            with strided_batching():
                assert torch.allclose(vmap(gradient, in_dims=dim)(vs), want)
                together = torch.autograd.grad(y, x, vs.movedim(dim, 0), retain_graph=True, is_grads_batched=True)
            assert torch.allclose(together[0], want)


@LAID_OUT
@DIMS
@VIEWED
def test_duals_from_outside_keep_their_tangents(layout: Layout, dim: int, view: View) -> None:
    xs = layout.batch(dim).contiguous()
    with forward_ad.dual_level(), strided_batching():
        dual = forward_ad.make_dual(xs, xs.mT.contiguous().mT.cos())
        found = vmap(lambda x: strided(view)(x).sin(), in_dims=dim)(dual)
        want = looped(lambda x: view(x).sin(), dual, dim=dim)
        for a, b in zip(forward_ad.unpack_dual(found), forward_ad.unpack_dual(want), strict=True):
            assert torch.allclose(a, b)


def test_vectorized_jacobians_go_through_it() -> None:
    x = numbers(4, 5)
    taken, view = strided(VIEWS["windows"]), VIEWS["windows"]
    want = torch.autograd.functional.jacobian(lambda x: view(x).sin(), x)
    with strided_batching():
        for strategy in ("reverse-mode", "forward-mode"):
            found = torch.autograd.functional.jacobian(lambda x: taken(x).sin(), x, vectorize=True, strategy=strategy)
            assert torch.allclose(found, want)
        assert torch.allclose(jacfwd(lambda x: taken(x).sin())(x), want)


# ---------------------------------------------------------------------------------------------- relatives


@pytest.mark.parametrize("transform", [vmap, older_vmap])
@LAID_OUT
@DIMS
def test_as_strided_copy_is_a_copy(layout: Layout, dim: int, transform: Vmap) -> None:
    xs = layout.batch(dim)

    def copied(x: Tensor) -> Tensor:
        wanted = VIEWS["diagonal"](x)
        return torch.as_strided_copy(x, wanted.shape, wanted.stride(), wanted.storage_offset()).mul_(2)

    with strided_batching():
        assert torch.equal(transform(copied, in_dims=dim)(xs), looped(VIEWS["diagonal"], xs, dim=dim) * 2)
    assert torch.equal(xs, layout.batch(dim))


@pytest.mark.parametrize("transform", [vmap, older_vmap])
@LAID_OUT
@DIMS
def test_as_strided_scatter_writes_to_a_copy(layout: Layout, dim: int, transform: Vmap) -> None:
    xs, source = layout.batch(dim), numbers(COUNT, 2)

    def put(x: Tensor, y: Tensor) -> Tensor:
        return torch.as_strided_scatter(x, y, (2,), (1,), x.storage_offset())

    want = looped(lambda x, y: put(in_memory_of_its_own(x), y), xs.movedim(dim, 0), source, dim=0)
    with strided_batching():
        assert torch.equal(transform(put, in_dims=(dim, 0))(xs, source), want)


def in_memory_of_its_own(x: Tensor) -> Tensor:
    """``x`` in new memory that is no longer than ``x`` reaches."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    memory = x.as_strided((span,), (1,)).clone()
    return memory.as_strided(x.shape, x.stride())


# ----------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("transform", [vmap, older_vmap])
def test_memory_of_others_is_refused_with_both_geometries(transform: Vmap) -> None:
    with strided_batching(), pytest.raises(TransformRefused) as refused:
        transform(lambda x: x.as_strided((2,), (1,)), in_dims=1)(torch.zeros(3, 2))
    what = str(refused.value)
    assert "the example: sizes (3,), strides (2,), offset 0" in what
    assert "asked for: sizes (2,), strides (1,), offset 0" in what
    assert "test_strided.py" in what
    assert "instead: use select, slice" in what


@pytest.mark.parametrize("transform", [vmap, older_vmap])
@pytest.mark.parametrize(
    "ask",
    [
        lambda x: torch.as_strided_copy(x, (2,), (1,)),
        lambda x: torch.as_strided_scatter(x, torch.zeros(4), (4,), (2,)),
        lambda x: x.as_strided_((2,), (2,)),
        lambda x: x.as_strided((3,), (2,), 1),
    ],
)
def test_relatives_refuse_it_too(transform: Vmap, ask: View) -> None:
    with strided_batching(), pytest.raises(TransformRefused, match="asked for"):
        transform(ask, in_dims=1)(torch.zeros(3, 2))


def test_tensors_without_a_batch_keep_all_their_memory() -> None:
    hidden = torch.arange(6.0)[::2]
    with strided_batching():
        found = vmap(lambda x: x + hidden.as_strided((3,), (1,)))(torch.zeros(2, 3))
        assert torch.equal(found, torch.arange(3.0).expand(2, 3))
        vmap(lambda x: x + hidden.as_strided_((2,), (1,), 1).sum())(torch.zeros(2))
    assert torch.equal(hidden, torch.tensor([1.0, 2.0]))


# -------------------------------------------------------------------------------------------------- scope


def kernels() -> str:
    """What PyTorch's dispatcher says of the operators whose rules are replaced."""
    names = ("as_strided", "as_strided_copy", "as_strided_scatter", "as_strided_", "_new_zeros_with_same_feature_meta")
    return "".join(torch._C._dispatch_dump(f"aten::{name}") for name in names)


def refuses() -> bool:
    try:
        vmap(lambda x: x.as_strided((2,), (1,)), in_dims=1)(torch.zeros(3, 2))
    except TransformRefused:
        return True
    return False


def test_afterwards_nothing_is_left() -> None:
    before = kernels()
    with strided_batching():
        assert refuses()
        assert kernels() != before
    assert not refuses()
    assert kernels() == before


def test_an_exception_ends_it_too() -> None:
    before = kernels()
    with pytest.raises(ZeroDivisionError), strided_batching():
        1 / 0  # noqa: B018
    assert not refuses()
    assert kernels() == before


def test_blocks_nest() -> None:
    before = kernels()
    with strided_batching():
        with strided_batching():
            assert refuses()
        assert refuses()
    assert not refuses()
    assert kernels() == before


def test_it_is_a_decorator() -> None:
    @strided_batching()
    def run() -> bool:
        return refuses()

    assert run()
    assert run()
    assert not refuses()


def test_other_threads_have_the_rules_of_pytorch() -> None:
    found: list[bool] = []
    with strided_batching():
        thread = Thread(target=lambda: found.append(refuses()))
        thread.start()
        thread.join()
        assert refuses()
    assert found == [False]


def test_threads_that_enter_and_leave_at_will_do_not_meet() -> None:
    before, barrier = kernels(), Barrier(4)
    found: list[bool] = []

    def run() -> None:
        barrier.wait()
        for _ in range(25):
            with strided_batching():
                found.append(refuses())
            found.append(not refuses())

    threads = [Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 200
    assert kernels() == before


# --------------------------------------------------------------------------------------------------- laws


def batch_of(base: Geometry, *, interleaved: bool) -> tuple[Tensor, int]:
    """A batch of examples that lie as ``base``, the batch first, and the factor of their strides and offsets."""
    length = base.span()[1]
    memory = torch.arange(COUNT * length, dtype=torch.float64)
    factor, step = (COUNT, 1) if interleaved else (1, length)
    strides = tuple(stride * factor for stride in base.strides)
    return memory.as_strided((COUNT, *base.sizes), (step, *strides), base.offset * factor), factor


def outcome(transform: Vmap, dim: int, xs: Tensor, asked: Geometry) -> Tensor | None:
    """What ``as_strided`` shows; None where it is refused."""
    try:
        with strided_batching():
            found: Tensor = transform(lambda x: x.as_strided(asked.sizes, asked.strides, asked.offset), in_dims=dim)(xs)
    except TransformRefused:
        return None
    return found


def scaled(g: Geometry, factor: int) -> Geometry:
    return Geometry(g.sizes, tuple(stride * factor for stride in g.strides), g.offset * factor)


def of_each(xs: Tensor, asked: Geometry) -> Tensor:
    step = xs.stride(0)
    return torch.stack([xs.as_strided(asked.sizes, asked.strides, asked.offset + i * step) for i in range(COUNT)])


@given(randoms)
def test_views_of_views_are_those_of_a_loop(random: Random) -> None:
    base = random_base(random)
    view = random_chain(random, base, random.randint(1, 4))[1]
    for interleaved in (False, True):
        xs, factor = batch_of(base, interleaved=interleaved)
        asked = scaled(view, factor)
        dim = random.randrange(xs.dim())
        for transform in (vmap, older_vmap):
            found = outcome(transform, dim, xs.movedim(0, dim), asked)
            if found is None:
                assert (transform, interleaved) == (older_vmap, True)
            else:
                assert torch.equal(found, of_each(xs, asked))


def random_request(random: Random, base: Geometry) -> Geometry:
    """Up to three dimensions in the memory up to the end of ``base``."""
    end = base.span()[1]
    sizes, strides = [], []
    offset = reach = random.randrange(end)
    for _ in range(random.randint(0, 3)):
        size, stride = random.randint(1, 3), random.randint(0, 6)
        if reach + (size - 1) * stride < end:
            reach += (size - 1) * stride
            sizes.append(size)
            strides.append(stride)
    return Geometry(tuple(sizes), tuple(strides), offset)


@given(randoms)
def test_it_is_refused_exactly_where_an_element_is_not_shown(random: Random) -> None:
    base = random_base(random)
    asked = random_request(random, base)
    xs, _ = batch_of(base, interleaved=False)
    dim = random.randrange(xs.dim())
    found = outcome(vmap, dim, xs.movedim(0, dim), asked)
    want = of_each(xs, asked)
    shown = set(xs[0].flatten().tolist()) if xs.numel() else set()
    assert (found is None) == (not set(want[0].flatten().tolist()) <= shown)
    assert found is None or torch.equal(found, want)


@given(randoms)
def test_what_a_captured_program_takes_is_the_same_in_any_layout(random: Random) -> None:
    base = random_base(random)
    asked = random_request(random, base)
    memory = torch.arange(base.span()[1], dtype=torch.float64)
    x = memory.as_strided(base.sizes, base.strides, base.offset)
    take = batching._STRIDED[torch.ops.aten.as_strided.default]
    arguments = (asked.sizes, asked.strides, asked.offset)
    if not covers(base, asked):
        with pytest.raises(TransformRefused, match="asked for"):
            take(base, x, *arguments)
        return
    want = memory.as_strided(*arguments)
    for value in (x, x.contiguous(), x.movedim(0, -1).contiguous().movedim(-1, 0) if x.dim() else x):
        assert torch.equal(take(base, value, *arguments), want)
    xs = torch.stack([x, x + 1], -1)
    assert torch.equal(vmap(lambda x: take(base, x, *arguments), in_dims=-1)(xs), torch.stack([want, want + 1]))


# ---------------------------------------------------------------------------------------- captured programs


@LAID_OUT
@DIMS
@VIEWED
def test_captured_programs_take_views_too(layout: Layout, dim: int, view: View) -> None:
    xs = layout.batch(dim)

    def loss(x: Tensor) -> Tensor:
        return (strided(view)(x) * strided(view)(x.clone())).sum()

    assert torch.equal(func.vmap(strided(view), in_dims=dim)(xs), looped(view, xs, dim=dim))
    assert torch.allclose(func.vmap(func.grad(loss), in_dims=dim)(xs), looped(grad(loss), xs, dim=dim))


@LAID_OUT
@DIMS
def test_captured_programs_reach_what_no_view_operator_leads_to(layout: Layout, dim: int) -> None:
    xs = layout.batch(dim)
    if xs.select(dim, 0).stride(0) <= xs.select(dim, 0).stride(1):
        return  # a stride below 0
    found = func.vmap(lambda x: antidiagonal(x).sin(), in_dims=dim)(xs)
    assert torch.allclose(found, looped(lambda x: antidiagonal_of(x).sin(), xs, dim=dim))


@DIMS
@LAID_OUT_ONCE
def test_a_view_goes_back_to_what_an_argument_shows(layout: Layout, dim: int) -> None:
    def back(x: Tensor) -> Tensor:
        return x[:1, :1].as_strided(x.shape, x.stride(), x.storage_offset())

    def back_and_write(x: Tensor) -> Tensor:
        return back(x).mul_(2)

    xs, expected = layout.batch(dim), layout.batch(dim)
    assert torch.equal(func.vmap(back, in_dims=dim)(xs), looped(back, xs, dim=dim))
    assert torch.equal(func.vmap(back_and_write, in_dims=dim)(xs), looped(back_and_write, expected, dim=dim))
    assert torch.equal(xs, expected)


def made_inside(x: Tensor, view: View) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, view(y)


@LAID_OUT_ONCE
@DIMS
@pytest.mark.parametrize(
    "view",
    [
        strided(VIEWS["diagonal"]),
        antidiagonal,
        lambda y: y[:1].as_strided((4,), (4,), 3),
        lambda y: y.view(-1),
    ],
    ids=["diagonal", "antidiagonal", "of a row", "flat"],
)
def test_views_of_what_is_made_inside_are_those_of_one_example(layout: Layout, dim: int, view: View) -> None:
    xs = layout.batch(dim).contiguous()
    y, taken = func.vmap(lambda x: made_inside(x, view), in_dims=dim)(xs)
    assert torch.equal(y, xs.movedim(dim, 0) * 2)
    assert torch.equal(taken, looped(lambda x: made_inside(x.contiguous(), view)[1], xs, dim=dim))
    assert taken.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.as_strided((2,), (1,)),
        lambda x: x.as_strided((2,), (1,)).sin(),
        lambda x: torch.as_strided_copy(x, (2,), (1,)),
        lambda x: x.as_strided((2,), (1,)).add_(1),
    ],
)
def test_captured_programs_are_refused_memory_of_others(ask: View) -> None:
    xs = torch.zeros(3, 2)
    with pytest.raises(TransformRefused) as refused:
        func.vmap(ask, in_dims=1)(xs)
    assert "the example: sizes (3,), strides (2,), offset 0" in str(refused.value)
    assert "asked for: sizes (2,), strides (1,), offset 0" in str(refused.value)
    assert torch.equal(xs, torch.zeros(3, 2))


def test_captured_programs_reach_all_memory_of_what_has_no_batch() -> None:
    hidden = torch.arange(6.0)[::2]
    found = func.vmap(lambda x, y: x + y.as_strided((3,), (1,)), in_dims=(0, None))(torch.zeros(2, 3), hidden)
    assert torch.equal(found, torch.arange(3.0).expand(2, 3))


def test_capturing_inside_a_block_is_as_outside() -> None:
    xs = numbers(4, 5, COUNT)
    for block in (nullcontext, strided_batching):
        with block():
            found = func.vmap(strided(VIEWS["windows"]), in_dims=2)(xs)
        assert torch.equal(found, looped(VIEWS["windows"], xs, dim=2))
