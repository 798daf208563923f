"""A view, then a write to its base or to it, under ``vmap(jvp(f))``: each kind of view, dimension and layout.

Where a view is impossible on the strides of an example, the loop over examples raises, and so must ``vmap``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transforms.layouts import channels_last, expanded, numbers, part, permuted, stepped
from tests.transforms.nest import Nest
from tests.transforms.support import assert_right, nest_of

pytest.importorskip("purefx.func")

VIEWS = {
    "select": "base.select(0, 1)",
    "select of the last": "base[..., 1]",
    "slice": "base[1:]",
    "step": "base[..., ::2]",
    "diagonal": "base.diagonal()",
    "diagonal of the last": "base.diagonal(1, -2, -1)",
    "flat": "base.view(-1)",
    "other sizes": "base.view(base.numel() // 2, 2)",
    "a dimension of 1": "base.view(1, *base.shape)",
    "unbind": "base.unbind(0)[1]",
    "unbind of the last": "base.unbind(-1)[0]",
    "unfold": "base.unfold(0, 2, 1)",
    "expand": "base.expand(2, *base.shape)",
    "transpose": "base.transpose(0, -1)",
}
BASES = {
    "the argument": "base = a",
    "a value": "base = a * 2",
    "zeros": "base = torch.zeros(a.shape, dtype=torch.float64)",
}
WRITES = {
    "all of the base": "base.sin_()",
    "a part of the base by another": "base[0] = a[-1].cos()",
    "the base, read at its end": "base.mul_(2.0).add_(a)",
    "the view": "view.tanh_()",
}
SIZES = ((4, 2, 6), (2, 4, 2, 6))


def layouts(sizes: tuple[int, ...]) -> Iterator[str]:
    """An argument of these sizes in each layout."""
    last = len(sizes) - 1
    yield numbers(sizes, 0)
    yield permuted(sizes, 0, range(last, -1, -1))
    yield permuted(sizes, 0, [*range(1, last + 1), 0])
    yield stepped(sizes, 0, last)
    yield stepped(sizes, 0, 0)
    yield part(sizes, 0, 1)
    if len(sizes) == 4:
        yield channels_last(sizes, 0)


def nests(view: str, base: str, sizes: tuple[int, ...]) -> Iterator[Nest]:
    """Each write, in each dimension of each layout."""
    for layout in layouts(sizes):
        for in_dim in range(len(sizes)):
            for name, write in WRITES.items():
                if not (name == "the view" and ("unfold" in view or "expand" in view)):
                    around = ["pushed(func, f)", f"func.vmap(f, in_dims={in_dim})"]
                    yield nest_of([layout], [base, f"view = {view}", write], "(view * 1, base * 1)", around)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_what_is_written_later(view: str, base: str, sizes: tuple[int, ...]) -> None:
    everything = list(nests(VIEWS[view], BASES[base], sizes))
    assert_right(everything[:: 1 if base == "the argument" else 5])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_numbers_of_complex_numbers_show_what_is_written_later(sizes: tuple[int, ...]) -> None:
    body = ["base = torch.complex(a, a.cos())", "view = torch.view_as_real(base)", "base.mul_(base)", "view[0] += 1"]
    assert_right(
        nest_of([layout], body, "view * 1", ["pushed(func, f)", f"func.vmap(f, in_dims={in_dim})"])
        for layout in layouts(sizes)
        for in_dim in range(len(sizes))
    )


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_an_expanded_argument_is_read(view: str) -> None:
    sizes = SIZES[0]
    assert_right(
        nest_of([expanded(sizes, 0, dim)], ["base = a", f"view = {VIEWS[view]}", "c = view.sin()"], "c", around)
        for dim in range(3)
        for in_dim in range(3)
        for around in (["gradient(func, f, 0)", f"func.vmap(f, in_dims={in_dim})"], [f"func.vmap(f, in_dims={in_dim})"])
    )
