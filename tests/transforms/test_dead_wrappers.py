"""Tensors that are left over from a transform that has ended: operators of PyTorch see what they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx


def left_over() -> Tensor:
    """What a gradient has seen: a wrapper in a wrapper, which requires grad and has no memory that can be asked for."""
    kept: list[Tensor] = []
    inner = torch.func.grad(lambda x, z: (kept.append(x), (x * z).sum())[1])
    torch.func.grad(lambda z: inner(z, z).sum())(torch.ones(3))
    return kept[0]


def traced(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: purefx.trace(f, x)(x)


PROGRAMS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x * 3,
    lambda x: x.mul_(3),
    lambda x: x[1:],
    lambda x: (x.add_(1), x.view(3, 1))[1],
    lambda x: x.as_strided((2,), (1,), 1).add_(1),
]


@pytest.mark.parametrize("compile", [purefx.compile, purefx.functionalize, traced])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_tensor_that_a_transform_has_left_is_what_it_holds(
    program: Callable[[Tensor], Tensor], compile: Callable[..., Any]
) -> None:
    compiled = compile(program)
    for make in (left_over, lambda: torch.ones(3), left_over):
        x, expected = make(), make()
        result, wanted = compiled(x), program(expected)
        torch.testing.assert_close((result, x), (wanted, expected))
        assert (result is x, result.requires_grad, result._is_view()) == (
            wanted is expected,
            wanted.requires_grad,
            wanted._is_view(),
        )
    assert len(getattr(compiled, "specialisations", [1])) == 1


def test_two_of_them_may_be_passed() -> None:
    compiled = purefx.compile(lambda x, y: x * y)
    compiled(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True))
    for _ in range(2):
        assert compiled(left_over(), left_over()).tolist() == [1.0] * 3
        assert not compiled(left_over(), torch.ones(3)).requires_grad
    assert len(compiled.specialisations) == 2


def test_a_program_of_plain_tensors_is_traced_inside_of_a_transform() -> None:
    plain = torch.ones(3)
    gradient = torch.func.grad(lambda y: (purefx.trace(lambda x: x * 3, plain)(plain) * y).sum())
    assert gradient(torch.ones(3)).tolist() == [3.0] * 3


@pytest.mark.parametrize("inner", [lambda f: f, torch.func.grad])
def test_what_vmap_has_left_is_refused_as_in_eager_and_only_where_it_is_used(inner: Callable[..., Any]) -> None:
    state = {"left": torch.ones(2), "other": torch.ones(2)}

    def keep(x: Tensor) -> Tensor:
        state["left"] = x * 2
        return x.sum()

    torch.func.vmap(inner(keep))(torch.ones(3, 2))
    compiled = purefx.compile(lambda x: x + state["other"])
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    for f in (lambda x: x + state["left"], purefx.compile(lambda x: x + state["left"])):
        with pytest.raises(RuntimeError, match="escaped from inside a function being vmapped"):
            f(torch.ones(2))
    state["left"] = torch.ones(2)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
