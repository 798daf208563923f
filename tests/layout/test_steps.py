"""Each view step does to a geometry what its ATen op does to a tensor; simpler chains lead to the same."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import cast

import pytest
import torch
from hypothesis import given

from purefx.layout import (
    AsStrided,
    Chain,
    Diagonal,
    Expand,
    Geometry,
    NotViewable,
    Permute,
    Select,
    Slice,
    Squeeze,
    Step,
    Unfold,
    Unsqueeze,
    View,
    ViewDtype,
    compose,
    simplify,
)
from tests.layout.samples import random_base, random_chain, seeded


def run(step: Step, x: torch.Tensor) -> torch.Tensor:
    """The view that PyTorch makes."""
    packet, overload = step.op.split(".")
    op: Callable[..., torch.Tensor] = getattr(getattr(torch.ops.aten, packet), overload)
    return op(x, *step.arguments)


def geometry_of(x: torch.Tensor) -> Geometry:
    """The geometry of a tensor."""
    return Geometry(tuple(x.shape), x.stride(), cast(int, x.storage_offset()))


def tensor_with(g: Geometry, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """A tensor that has geometry ``g``, and numbered elements."""
    return torch.arange(g.span()[1] + 8, dtype=dtype).as_strided(g.sizes, g.strides, g.offset)


def _sample(random: Random) -> tuple[Geometry, Chain, Geometry]:
    base = random_base(random)
    return base, *random_chain(random, base, random.randint(1, 4))


samples = seeded(_sample)


@given(samples)
def test_a_step_makes_the_view_that_its_op_makes(sample: tuple[Geometry, Chain, Geometry]) -> None:
    base, chain, _ = sample
    x, g = tensor_with(base), base
    for step in chain:
        x, g = run(step, x), step.apply(g)
        assert geometry_of(x) == g, step


EDGES: tuple[Step, ...] = (
    Select(0, 9), Select(5, 0), Select(-1, -1), Slice(0, -3, -1), Slice(0, 5, 2), Slice(1, 9),
    Slice(0, 0, 3, 0),
    Slice(-1, 1, 100, 2), Permute((0, 0, 1)), Permute((0,)), Permute((-1, 0, 1)), View((-1,)), View((5, -1)),
    View((-1, -1)), View((2, 6)), View((0,)), View(()), View((0, 7)), View((1, 1)), Diagonal(0, 0, 0),
    Diagonal(7, 0, 1), Diagonal(-7, 0, 1), Diagonal(1, -1, 0), Expand((2,)), Expand((0, 4, 3)),
    Expand((1, 1, 4, 3)),
    Expand((3, -1, -1)), Expand((-1, 4, 3)), Expand((2, 2, 4, 3)), Unsqueeze(-1), Unsqueeze(9), Squeeze(0),
    Squeeze(-1), Squeeze(8), Unfold(0, 1, 1), Unfold(0, 0, 1), Unfold(0, 9, 1), Unfold(0, 1, 0),
    Unfold(-1, 2, 2),
    ViewDtype(torch.int64, 4, 8), ViewDtype(torch.int16, 4, 2), ViewDtype(torch.float32, 4, 4),
    AsStrided(Geometry((2, 2), (0, 1), 1)),
)  # fmt: skip
BASES = (
    Geometry((), ()), Geometry((4, 3), (3, 1)), Geometry((4, 3), (1, 4)), Geometry((0, 4), (4, 1)),
    Geometry((4, 0), (3, 1)), Geometry((1, 4), (9, 2), 3), Geometry((2, 1, 4), (4, 7, 1)), Geometry((12,),
    (1,)),
    Geometry((4, 1), (1, 1), 2), Geometry((1, 3, 2), (6, 2, 1)), Geometry((1, 2), (3, 1)), Geometry((1,),
    (5,)),
)  # fmt: skip


@pytest.mark.parametrize("base", BASES, ids=str)
@pytest.mark.parametrize("step", EDGES, ids=str)
def test_a_step_refuses_what_its_op_refuses(step: Step, base: Geometry) -> None:
    try:
        expected = geometry_of(run(step, tensor_with(base)))
    except (RuntimeError, IndexError):
        with pytest.raises(NotViewable):
            step.apply(base)
    else:
        assert step.apply(base) == expected


@given(samples)
def test_a_simpler_chain_leads_to_the_same_geometry(sample: tuple[Geometry, Chain, Geometry]) -> None:
    base, chain, view = sample
    simple = simplify(chain, base)
    assert compose(base, simple) == view
    assert len(simple) <= len(chain)
    assert simplify(simple, base) == simple


def test_simplify_merges_permutes_and_slices_and_drops_what_does_nothing() -> None:
    base = Geometry.contiguous((8, 6))
    assert simplify((Permute((1, 0)), Permute((1, 0))), base) == ()
    assert simplify((Slice(0, 1, 8), Slice(0, 1, 7, 2)), base) == (Slice(0, 2, 8, 2),)
    assert simplify((Slice(0, 0, 8), Unsqueeze(1), Squeeze(1), Select(0, 1)), base) == (Select(0, 1),)
    assert simplify((View((48,)), View((4, 12))), base) == (View((4, 12)),)


def test_a_view_of_another_dtype_is_never_dropped() -> None:
    cast = ViewDtype("float32", 4, 4)
    assert simplify((cast,), Geometry.contiguous((3,))) == (cast,)
