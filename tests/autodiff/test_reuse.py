"""A gradient that has gradients takes what the call has kept, and computes only the rest again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

import purefx
from tests.support.running import Running

LAYER = nn.Linear(3, 3)


def runs_of_the_gradient(f: Callable[[Tensor], Tensor]) -> Counter[str]:
    """The operators that run for a gradient of ``f`` with ``create_graph``, once that is compiled."""
    compiled, x = purefx.compile(f), torch.ones(3, 3, requires_grad=True)
    for _ in range(2):
        y = compiled(x).sum()
        with Running() as running:
            torch.autograd.grad(y, x, create_graph=True)
    return Counter(running.names)


def penalty_of(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The gradient of a gradient of ``f``."""

    def penalty(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), x)[0]

    return penalty


def test_kept_values_are_not_computed_again() -> None:
    def f(x: Tensor) -> Tensor:
        return LAYER(x.exp()).sigmoid().clone().mul_(2)

    runs = runs_of_the_gradient(f)
    assert not {"exp.default", "addmm.default", "sigmoid.default"} & set(runs)
    x = torch.rand(3, 3, requires_grad=True)
    torch.testing.assert_close(penalty_of(purefx.compile(f))(x), penalty_of(f)(x))


def test_what_was_not_kept_is_computed_again() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(lambda y: y.exp().sin().cos(), x, use_reentrant=False)

    assert runs_of_the_gradient(f)["exp.default"] == 1


def test_random_numbers_are_those_of_the_call() -> None:
    def f(x: Tensor) -> Tensor:
        return nn.functional.dropout(x.exp()) * x.sin()

    compiled, x = purefx.compile(f), torch.rand(8, 8, requires_grad=True)
    torch.manual_seed(0)
    found = penalty_of(compiled)(x)
    torch.manual_seed(0)
    torch.testing.assert_close(found, penalty_of(f)(x))


def test_a_kept_value_may_be_a_result_and_a_tangent() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return y, y * 2

    def penalty(function: Callable[[Tensor], tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
        y, z = function(x)
        (gradient,) = torch.autograd.grad((y, z), x, (y, y.detach()), create_graph=True)
        return torch.autograd.grad(gradient.sum(), x)[0]

    compiled, x = purefx.compile(f), torch.rand(3, requires_grad=True)
    torch.testing.assert_close(penalty(compiled, x), penalty(f, x))
    torch.testing.assert_close(penalty(compiled, x), penalty(f, x))


class Pair(nn.Module):
    """Two parameters and two other tensors that may change places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.second = nn.Parameter(torch.tensor([0.3, -0.5]))
        self.others = [torch.tensor([1.0, 2.0]), torch.tensor([0.3, -0.5])]

    def forward(self, x: Tensor) -> Tensor:
        """Each of them has a value that is kept."""
        first, second = (x * self.first.exp()).sin(), (x * self.second.exp()).cos()
        return first * second + (x * self.others[0].exp()).sin() + (x * self.others[1].exp()).cos()

    def swap(self) -> None:
        """Let them change places."""
        self.first, self.second = self.second, self.first
        self.others.reverse()


def test_tensors_that_have_changed_places_since_the_capture_are_not_taken_for_each_other() -> None:
    found = []
    for through in (lambda f: f, purefx.compile):
        pair, x = Pair(), torch.ones(2, requires_grad=True)
        program = through(pair)
        program(x)
        pair.swap()
        found.append(torch.autograd.grad(program(x).sum(), (x, pair.first, pair.second), create_graph=True))
    for gradient, expected in zip(*found, strict=True):
        torch.testing.assert_close(gradient, expected)


def test_what_is_kept_may_have_other_sizes_at_each_call() -> None:
    def f(x: Tensor) -> Tensor:
        return x[x > 0].exp().sin().sum()

    compiled = purefx.compile(f)
    for given in ([1.0, -1.0, 2.0], [1.0, 0.5, 2.0]):
        x = torch.tensor(given, requires_grad=True)
        torch.testing.assert_close(penalty_of(compiled)(x), penalty_of(f)(x))


def test_gradients_are_values_unless_they_share_memory() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x.t() @ x).sum() + (x + y).sin().sum()

    found = []
    for program in (f, purefx.compile(f)):
        x, y = (torch.linspace(-1, n, 6).view(3, 2).requires_grad_() for n in (1, 2))
        one, other = torch.autograd.grad(program(x, y), (x, y), create_graph=True)
        with torch.no_grad():
            one.mul_(2)
        found.append((one, other, torch.autograd.grad(one.sum() + other.sum(), x)[0]))
    torch.testing.assert_close(*found)
