"""``x.detach_()`` in a function under transforms: what it cuts off, of the argument too, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, jvp, vmap

import purefx
from purefx.errors import TransformRefused

Function = Callable[..., Any]


def the_argument(x: Tensor) -> Tensor:
    x.detach_()
    return x * 3


def the_argument_between_uses(x: Tensor) -> Tensor:
    y = x * 2
    x.detach_()
    return y + x


def what_a_view_was_taken_of(x: Tensor) -> Tensor:
    y = x * 2
    view = y.view(2, 1)
    y.detach_()
    return view


def what_views_were_taken_of_is_used_in_parts(x: Tensor) -> Any:
    y = x * 2
    view, row = y.view(2, 1), y[0]
    y.detach_()
    return view, row


def total(results: Any) -> Tensor:
    return sum((x.sum() for x in (results if isinstance(results, tuple) else (results,))), torch.zeros(()))


X = torch.tensor([1.0, 2.0])
TRANSFORMS: dict[str, Function] = {
    "tangents": lambda f: jvp(lambda x: f(x.clone()), (X,), (X,)),
    "gradients": lambda f: grad(lambda x: total(f(x.clone())) + x.sum())(X),
    "gradients of examples": lambda f: vmap(grad(lambda x: total(f(x.clone())) + x.sum()))(torch.ones(3, 2)),
    "gradients of gradients": lambda f: grad(lambda x: grad(lambda x: total(f(x.clone() * x)) + (x**3).sum())(x).sum())(
        X
    ),
    "a Jacobian": lambda f: jacrev(lambda x: f(x.clone() * x))(X),
    "what is computed of the argument afterwards": lambda f: grad(lambda x: _used_afterwards(f, x * 1) + x.sum())(X),
    "an argument that is a view": lambda f: grad(lambda x: total(f(x)))(X),
}


def _used_afterwards(f: Function, x: Tensor) -> Tensor:
    f(x)
    return (x * 3).sum()


def outcome(f: Function) -> str:
    try:
        return repr(f())
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    "program",
    [
        the_argument,
        the_argument_between_uses,
        what_a_view_was_taken_of,
        what_views_were_taken_of_is_used_in_parts,
    ],
    ids=lambda program: program.__name__,
)
def test_what_is_detached_in_place_is_as_in_eager(program: Function, transform: str) -> None:
    transformed = TRANSFORMS[transform]
    assert outcome(lambda: transformed(purefx.compile(program))) == outcome(lambda: transformed(program))


def test_a_view_keeps_its_tangent_in_forward_mode() -> None:
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(X, X)
        result = purefx.compile(what_a_view_was_taken_of)(x)
        tangent = torch.autograd.forward_ad.unpack_dual(result).tangent
    assert tangent.tolist() == [[2.0], [4.0]]


def written(x: Tensor) -> Tensor:
    x.detach_()
    x.mul_(2)
    return x * 3


def returned_with_a_view(x: Tensor) -> Any:
    y = x * 2
    view = y.view(2, 1)
    y.detach_()
    return view, y


@pytest.mark.parametrize("program", [written, returned_with_a_view], ids=lambda program: program.__name__)
def test_what_is_detached_and_written_or_returned_with_a_view_is_refused(program: Function) -> None:
    with pytest.raises(TransformRefused, match="detaches in place what it writes to, or returns together with a view"):
        jvp(lambda x: purefx.compile(program)(x.clone()), (X,), (X,))
