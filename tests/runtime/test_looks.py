"""One look at all tensors of a call: what passes looks like what was captured, and what does not is looked at again."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from purefx._torch import is_functorch_wrapped, looks_of
from tests.functional.kinds import ramp
from tests.runtime.counted import Counted


def left_by(transform: Any) -> Tensor:
    """What a transform has wrapped, which has ended."""
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x.sum()

    transform(keep)(ramp(4))
    return kept[0]


def made_in_inference_mode() -> Tensor:
    with torch.inference_mode():
        return ramp(4)


x = ramp(4)
KINDS: dict[str, Tensor] = {
    "plain": x,
    "plain, another": ramp(4),
    "longer": ramp(5),
    "square": ramp(2, 2),
    "turned": ramp(2, 2).t(),
    "double": x.double(),
    "requires grad": x.clone().requires_grad_(),
    "parameter": torch.nn.Parameter(x.clone()),
    "buffer": torch.nn.Buffer(x.clone()),
    "inference": made_in_inference_mode(),
    "negated": x._neg_view(),
    "complex": x + 1j,
    "conjugated": (x + 1j).conj(),
    "meta": x.to("meta"),
    "sparse": x.to_sparse(),
    "left by grad": left_by(torch.func.grad),
    "left by functionalize": left_by(torch.func.functionalize),
}


def described(tensor: Tensor) -> tuple[Any, ...]:
    """All that a look is to tell."""
    strided = (tensor.stride(),) if tensor.layout is torch.strided else ()
    bits = (tensor.is_inference(), tensor.is_neg(), tensor.is_conj(), is_functorch_wrapped(tensor))
    named = (type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad)
    return (*named, tensor.shape, *strided, *bits)


@pytest.mark.parametrize(("name", "other"), list(product(KINDS, KINDS)))
def test_what_passes_looks_alike(name: str, other: str) -> None:
    looks = looks_of([KINDS[name]])
    passes = looks is not None and looks.check(KINDS[other])
    assert not passes or described(KINDS[name]) == described(KINDS[other])


def test_a_tensor_like_it_passes_and_the_same_twice_does_not() -> None:
    looks, one = looks_of([ramp(4), ramp(4)]), ramp(4)
    assert looks is not None
    assert looks.check(ramp(4), one)
    assert not looks.check(one, one)


def test_a_mode_around_a_call_needs_no_capture() -> None:
    counted = Counted(lambda x: x + 1)
    counted(ramp(4))
    with FlopCounterMode(display=False):
        counted(ramp(4))
    assert counted.captures == 1
