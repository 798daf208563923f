"""Tangents that are not there are zeros that stay zeros, whatever they are multiplied with: also infinity."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, func
from torch.autograd import forward_ad

import purefx

X = torch.tensor([1.0, float("inf"), 0.0, float("-inf"), float("nan")])
T = torch.tensor([0.5, 2.0, 3.0, 0.1, 1.0])
W = torch.tensor([2.0, float("inf"), 3.0, 1.0, 1.0])


def written(x: Tensor) -> Tensor:
    y = x * 1
    y[0:2].mul_(2)
    return y


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "a number": lambda x: x * 2 / 3,
    "a tensor": lambda x: W * x,
    "a quotient": lambda x: x / W,
    "a reciprocal": lambda x: 2 / x,
    "a logarithm": lambda x: x.log() * W,
    "sums": lambda x: (x * 2 + 1) * W - x,
    "views": lambda x: x.view(1, 5) * W.expand(2, 5),
    "a dot product": lambda x: x[:2].dot(W[:2]),
    "a cross product": lambda x: torch.linalg.cross(x[:3], W[:3]),
    "a complex number": lambda x: (x * (1 + 2j)).real,
    "a write": written,
}


def by_functions(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, t: func.jvp(f, (x,), (t,))[1]


def by_duals(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def tangent(x: Tensor, t: Tensor) -> Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(x, t))).tangent

    return tangent


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_tangent_at_infinity_is_that_of_eager(name: str) -> None:
    f = PROGRAMS[name]
    expected = by_functions(f)(X, T)
    found = {
        "around": purefx.compile(by_functions(f))(X, T),
        "inside": by_functions(purefx.compile(f))(X, T),
        "duals": purefx.compile(by_duals(f))(X, T),
    }
    for where, tangent in found.items():
        torch.testing.assert_close(tangent, expected, equal_nan=True, msg=lambda m, where=where: f"{where}: {m}")
