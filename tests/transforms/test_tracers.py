"""A7: functionalize and compile, around and inside of transforms, nested, and seen by tracers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, func
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import purefx
from purefx.errors import TransformRefused

Wrap = Callable[[Any], Any]


def program(x: Tensor) -> Tensor:
    y = x.clone()
    y[0].mul_(x[1])
    y.view(-1).add_(1)
    return y.sin()


def write(x: Tensor) -> Tensor:
    x[0].mul_(2)
    return x.t()


X = torch.arange(6, dtype=torch.float64).view(3, 2).cos()
TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda f: f,
    "vmap": lambda f: lambda x: func.vmap(f)(torch.stack([x, x * 2])),
    "grad": lambda f: func.grad(lambda x: f(x).sum()),
    "vjp": lambda f: lambda x: func.vjp(f, x)[1](x)[0],
    "jvp": lambda f: lambda x: func.jvp(f, (x,), (x,))[1],
    "jacrev": func.jacrev,
    "hessian": lambda f: func.hessian(lambda x: f(x).sum()),
}
NESTS: dict[str, Callable[[Wrap, Any], Any]] = {
    "inside": lambda wrap, transform: transform(wrap(program)),
    "around": lambda wrap, transform: wrap(transform(program)),
    "both": lambda wrap, transform: wrap(transform(wrap(program))),
    "twice": lambda wrap, transform: transform(wrap(wrap(program))),
    "traced inside": lambda wrap, transform: make_fx(transform(wrap(program)))(X + 1),
    "traced around": lambda wrap, transform: make_fx(wrap(transform(program)))(X + 1),
    "traced with fakes": lambda wrap, transform: make_fx(transform(wrap(program)), tracing_mode="fake")(X + 1),
}


@pytest.mark.parametrize("wrap", [purefx.functionalize, purefx.compile])
@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a7_what_is_wrapped_composes_with_transforms_and_tracers(transform: str, nest: str, wrap: Wrap) -> None:
    found = NESTS[nest](wrap, TRANSFORMS[transform])(X.clone())
    torch.testing.assert_close(found, TRANSFORMS[transform](program)(X.clone()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wrap", [purefx.functionalize, purefx.compile])
@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_a7_fakes_go_through(transform: str, wrap: Wrap) -> None:
    fake = FakeTensorMode().from_tensor(X)
    found = TRANSFORMS[transform](wrap(program))(fake)
    assert (found.shape, found.stride()) == ((s := TRANSFORMS[transform](program)(X)).shape, s.stride())


@pytest.mark.parametrize("wrap", [purefx.functionalize, purefx.compile])
@pytest.mark.parametrize(
    ("function", "transform"), [(program, "itself"), (write, "itself"), (program, "vmap"), (program, "grad")]
)
def test_a7_symbols_of_a_tracer_stay_symbols(function: Any, transform: str, wrap: Wrap) -> None:
    traced = make_fx(wrap(TRANSFORMS[transform](function)), tracing_mode="symbolic")(X.clone())
    larger = torch.arange(20, dtype=torch.float64).view(5, 4).sin()
    given, expected = larger.clone(), larger.clone()
    torch.testing.assert_close(traced(given), TRANSFORMS[transform](function)(expected))
    assert torch.equal(given, expected)


def test_a7_symbols_under_a_transform_are_refused() -> None:
    with pytest.raises(TransformRefused, match="symbols for their sizes"):
        make_fx(func.grad(purefx.compile(lambda x: program(x).sum())), tracing_mode="symbolic")(X)


@pytest.mark.parametrize("wrap", [purefx.functionalize, purefx.compile])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("function", "transform"), [*((program, name) for name in TRANSFORMS), (write, "itself"), (write, "vmap")]
)
def test_a7_functionalize_of_torch_goes_around(function: Any, transform: str, traced: bool, wrap: Wrap) -> None:  # noqa: FBT001
    around = func.functionalize(TRANSFORMS[transform](wrap(function)))
    around = make_fx(around)(X.clone()) if traced else around
    given, expected = X.clone(), X.clone()
    torch.testing.assert_close(around(given), TRANSFORMS[transform](function)(expected))
    assert torch.equal(given, expected)
