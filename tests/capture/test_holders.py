"""State of a program in whatever holds it: watched and set again at each call, or refused; never a fake left behind."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purefx
from purefx.errors import EscapedState, GradientsRefused
from tests.functional.kinds import ramp

Program = Callable[[Tensor], Tensor]


class Adds(nn.Module):
    """Keeps the sum of what it was called with."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        """The sum so far, doubled."""
        self.total = self.total + x
        return self.total * 2


class Slotted:
    """An object without a dict."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = torch.zeros(2)


def add_to(holder: Any) -> Program:
    def program(x: Tensor) -> Tensor:
        holder.total = holder.total + x
        return holder.total * 2

    return program


def in_a_tuple() -> Program:
    modules = (Adds(),)
    return lambda x: modules[0](x)


def in_a_default() -> Program:
    def program(x: Tensor, module: nn.Module = Adds()) -> Any:  # noqa: B008  # the case
        return module(x)

    return program


def in_a_partial() -> Program:
    forward = functools.partial(Adds().forward)
    return lambda x: forward(x)


def in_methods_of_a_dict() -> Program:
    steps = {"add": Adds().forward}
    return lambda x: steps["add"](x)


def in_a_namespace() -> Program:
    return add_to(types.SimpleNamespace(total=torch.zeros(2)))


def in_an_object_of_an_object() -> Program:
    holder = types.SimpleNamespace(inner=types.SimpleNamespace(total=torch.zeros(2)))

    def program(x: Tensor) -> Tensor:
        holder.inner.total = holder.inner.total + x
        return holder.inner.total * 2

    return program


def in_a_function() -> Program:
    def program(x: Tensor) -> Tensor:
        program.calls += 1  # type: ignore[attr-defined]  # set below
        return x * program.calls  # type: ignore[attr-defined]  # as above

    program.calls = 0  # type: ignore[attr-defined]  # the case
    return program


def in_a_queue() -> Program:
    kept = deque([torch.zeros(2)], maxlen=1)

    def program(x: Tensor) -> Tensor:
        kept.append(kept[-1] + x)
        return kept[-1] * 2

    return program


WATCHED = [
    in_a_queue, in_a_tuple, in_a_default, in_a_partial, in_methods_of_a_dict, in_a_namespace, in_an_object_of_an_object,
    in_a_function,
]  # fmt: skip


@pytest.mark.parametrize("make", WATCHED)
def test_state_in_a_holder_goes_on_at_each_call(make: Callable[[], Program]) -> None:
    eager, compiled = make(), purefx.compile(make())
    for _ in range(3):
        assert eager(torch.ones(2)).tolist() == compiled(torch.ones(2)).tolist()


def test_a_tensor_in_an_unwatched_object_is_refused() -> None:
    with pytest.raises(EscapedState, match="does not watch"):
        purefx.compile(add_to(Slotted()))(ramp(2))


def test_a_gradient_of_a_tensor_in_an_unwatched_object_is_refused() -> None:
    """Autograd would give it the gradient of a capture, a fake."""
    holder = Slotted()
    holder.total.requires_grad_()
    compiled = purefx.compile(lambda x: x * holder.total)
    with pytest.raises(GradientsRefused, match="does not watch"):
        compiled(ramp(2))
    with torch.no_grad():
        assert compiled(ramp(2)).tolist() == [0, 0]


@pytest.mark.parametrize("holder", [list, deque])
def test_gradients_of_any_order_reach_leaves_in_a_container(holder: Callable[[list[Tensor]], Any]) -> None:
    w = torch.ones(2, requires_grad=True)
    held = holder([w])
    compiled = purefx.compile(lambda x: (x * held[0] ** 3).sum())
    (slope,) = torch.autograd.grad(compiled(torch.ones(2)), w, create_graph=True)
    slope.sum().backward()
    assert w.grad is not None
    assert (slope.tolist(), w.grad.tolist()) == ([3, 3], [6, 6])


def test_the_parameters_of_a_compiled_module_are_watched_behind_a_transform() -> None:
    module = nn.Linear(2, 2)
    compiled = purefx.compile(torch.func.vmap(purefx.compile(module)))
    compiled(ramp(3, 2)).sum().backward()
    expected = torch.autograd.grad(module(ramp(3, 2)).sum(), module.weight)[0]
    torch.testing.assert_close(module.weight.grad, expected)


class Notes(nn.Module):
    """Keeps plain values of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.place = (0,)
        self.made: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """``x`` times the number of calls."""
        self.place = (self.place[0] + 1,)
        self.made = {"size": x.shape, "dtype": x.dtype}
        return x * self.place[0]


def test_plain_values_of_any_kind_are_bound_at_each_call() -> None:
    module = Notes()
    compiled = purefx.compile(module)
    assert [compiled(torch.ones(1)).item() for _ in range(3)] == [1, 2, 3]
    assert module.made == {"size": torch.Size([1]), "dtype": torch.float32}


def test_an_object_that_is_bound_anew_is_refused() -> None:
    holder = types.SimpleNamespace(made=None)

    def program(x: Tensor) -> Tensor:
        holder.made = Slotted()
        return x

    with pytest.raises(EscapedState):
        purefx.compile(program)(ramp(2))


def test_a_parameter_that_was_none_is_noticed() -> None:
    module = nn.Linear(1, 1, bias=False).requires_grad_(requires_grad=False)
    compiled = purefx.compile(module)
    compiled(torch.ones(1))
    module.bias = nn.Parameter(torch.tensor([8.0]), requires_grad=False)
    assert compiled(torch.ones(1)).equal(module(torch.ones(1)))


def test_who_counts_writes_together_is_guarded() -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return b * 1

    compiled = purefx.compile(program)
    for view in (lambda x: x.view(-1), lambda x: x.data, lambda x: x.view(-1)):
        pairs = []
        for f in (program, compiled):
            x = torch.zeros(2)
            y = view(x)
            f(x, y)
            pairs.append((x._version, y._version))
        assert pairs[0] == pairs[1]


def test_writes_to_a_held_tensor_are_counted() -> None:
    held = (torch.zeros(2),)

    def program(x: Tensor) -> Tensor:
        held[0].add_(x)
        return held[0]

    compiled = purefx.compile(program)
    assert [compiled(torch.ones(2))._version for _ in range(2)] == [1, 2]
