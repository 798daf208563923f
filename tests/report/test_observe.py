"""An observation is the same for equal calls, and a system that is wrong in any one way is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from purefx._torch import FakeTensorMode
from purefx.report.compare import compare
from purefx.report.observe import Arguments, Elements, Function, Name, Raised, observe
from tests.support.oracle import System, assert_same_as_eager, differences_from_eager
from tests.support.systems import eager, on_arguments, on_outputs, then

Make = Callable[[], tuple[object, ...]]


def double(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)
    return x.t(), y + 1


def separate() -> tuple[Tensor, Tensor]:
    return torch.arange(6.0).reshape(2, 3), torch.ones(2)


def overlapping() -> tuple[Tensor, Tensor]:
    base = torch.arange(6.0).reshape(2, 3)
    return base, base.view(-1)[2:4]


def grown() -> tuple[Tensor, Tensor]:
    leaf = torch.arange(6.0).reshape(2, 3).requires_grad_()
    return leaf * 1, torch.ones(2, requires_grad=True)


def untouched(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, y


def pieces(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (*x.unbind(0), y.detach())


@pytest.mark.parametrize("f", [double, untouched, pieces])
@pytest.mark.parametrize("make", [separate, overlapping, grown])
def test_eager_cannot_be_told_from_eager(f: Function, make: Make) -> None:
    assert_same_as_eager(f, make, system=eager)


@dataclass(frozen=True)
class Wrong:
    """A system, a program and arguments that show it wrong, and an aspect in which they do."""

    system: System
    f: Function
    make: Make
    aspect: str


def write_through_data(x: Tensor, y: Tensor) -> None:
    y.data.add_(1)


def refuse(f: Function) -> Function:
    def wrong(*args: object) -> object:
        raise NotImplementedError("no")

    return wrong


def swallow(f: Function) -> Function:
    def wrong(*args: object) -> object:
        try:
            return f(*args)
        except RuntimeError:
            return None

    return wrong


def other_error(f: Function) -> Function:
    def wrong(*args: object) -> object:
        try:
            return f(*args)
        except RuntimeError as error:
            raise ValueError("not eager's words") from error

    return wrong


def fails(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x + torch.ones(7)


def only_once(f: Function) -> Function:
    """Right at the first call and its four probes."""
    calls: list[int] = []

    def wrong(*args: object) -> object:
        calls.append(1)
        return f(*args) if len(calls) < 6 else (torch.zeros(3, 2), torch.zeros(2))

    return wrong


def listed(f: Function) -> Function:
    def wrong(*args: object) -> object:
        return list(f(*args))  # type: ignore[call-overload]

    return wrong


def grad_mode_left_off(f: Function) -> Function:
    def wrong(*args: object) -> object:
        result = f(*args)
        torch.set_grad_enabled(mode=False)
        return result

    return wrong


def restrided(tensor: Tensor) -> Tensor:
    return tensor.contiguous() if tensor.dim() > 1 else tensor


def swapped_pieces(f: Function) -> Function:
    """Select each piece instead of unbinding: equal values, another history."""

    def wrong(x: Tensor, y: Tensor) -> object:
        return (x[0], x[1], y.detach())

    return wrong


def fake(tensor: Tensor) -> Tensor:
    return FakeTensorMode().from_tensor(tensor)


WRONG = {
    "a fake tensor leaked": Wrong(on_outputs(fake), double, separate, "class"),
    "outputs cloned": Wrong(on_outputs(Tensor.clone), double, separate, "shares storage with"),
    "outputs detached": Wrong(on_outputs(Tensor.detach), double, grown, "requires_grad"),
    "an output is a view of itself": Wrong(on_outputs(lambda t: t.view_as(t)), untouched, separate, "same object as"),
    "a base too few": Wrong(on_outputs(lambda t: t.detach()), pieces, separate, "is a view of"),
    "a write dropped": Wrong(on_arguments(Tensor.clone), double, separate, "value"),
    "sharing of arguments lost": Wrong(on_arguments(Tensor.clone), double, overlapping, "value"),
    "a write too many": Wrong(then(lambda x, y: y.add_(0)), double, separate, "version"),
    "a write unseen by autograd": Wrong(then(write_through_data), double, separate, "value"),
    "wrong strides": Wrong(on_outputs(restrided), double, separate, "strides"),
    "wrong offset": Wrong(on_outputs(lambda t: torch.cat([t, t])[len(t) :]), double, separate, "storage offset"),
    "wrong dtype": Wrong(on_outputs(Tensor.double), double, separate, "dtype"),
    "wrong class": Wrong(on_outputs(torch.nn.Parameter), double, separate, "class"),
    "a geometry write too many": Wrong(then(lambda x, y: x.t_()), double, separate, "sizes"),
    "gradients scaled": Wrong(on_outputs(lambda t: t * 2 - t.detach()), untouched, grown, "gradient"),
    "the history of a view lost": Wrong(swapped_pieces, pieces, grown, "grad_fn"),
    "random numbers drawn": Wrong(then(lambda x, y: torch.rand(1)), double, separate, "random state afterwards"),
    "grad mode left off": Wrong(grad_mode_left_off, double, separate, "grad mode afterwards"),
    "another container": Wrong(listed, double, separate, "structure"),
    "refused": Wrong(refuse, double, separate, "error type"),
    "an error swallowed": Wrong(swallow, fails, separate, "error type"),
    "another error": Wrong(other_error, fails, separate, "error message"),
    "the second call wrong": Wrong(only_once, double, separate, "value"),
    "grad accumulated": Wrong(then(lambda x, y: torch.ones(2).mul(y).sum().backward()), untouched, grown, "grad"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_system_is_caught(wrong: Wrong) -> None:
    found = differences_from_eager(wrong.f, wrong.make, system=wrong.system)
    assert wrong.aspect in {difference.what.aspect for difference in found}


def test_sharing_that_no_attribute_shows_is_seen_by_a_probe() -> None:
    seen = observe(lambda x: x.detach(), lambda: (torch.zeros(2),))
    after = seen.facts[Name("args[0] after a write into result", "value")]
    assert isinstance(after, Elements)
    assert after.tensor.tolist() == [1, 1]


def test_an_attribute_that_raises_is_a_fact() -> None:
    def f(x: Tensor) -> Tensor:
        piece = x.unbind(0)[0]
        with torch.no_grad():
            piece.add_(1)
        return piece

    seen = observe(f, lambda: (torch.ones(2, 2, requires_grad=True) * 1,))
    assert isinstance(seen.facts[Name("result", "grad_fn")], Raised)
    assert not compare(seen, observe(f, lambda: (torch.ones(2, 2, requires_grad=True) * 1,)))


def test_names_are_spelled_as_the_caller_would() -> None:
    seen = observe(lambda x, w: {"y": x[0]["w"]}, lambda: Arguments(([{"w": torch.ones(1)}],), {"w": torch.ones(1)}))
    assert seen.arguments == ("args[0][0]['w']", "kwargs['w']")
    assert seen.outputs == ("result['y']",)


def test_the_random_state_of_the_caller_is_left_alone() -> None:
    before = torch.get_rng_state()
    observe(lambda x: x.uniform_(), lambda: (torch.zeros(2),))
    assert torch.equal(before, torch.get_rng_state())


def test_a_rounding_error_is_no_difference() -> None:
    system = on_outputs(lambda t: t.mul_(1 + 1e-7))
    found = differences_from_eager(lambda x: x + 0.1, lambda: (torch.rand(3),), system=system)
    assert "value" not in {difference.what.aspect for difference in found}


def test_the_failure_shows_differences_and_the_program() -> None:
    with pytest.raises(AssertionError, match=r"shares storage with(.|\n)*the program:(.|\n)*x\.mul_\(2\)"):
        assert_same_as_eager(double, separate, system=on_outputs(Tensor.clone))


def test_sparse_and_lazily_conjugated_values_are_read() -> None:
    def make() -> tuple[Tensor, Tensor]:
        return torch.eye(2).to_sparse(), torch.ones(2, dtype=torch.complex64)

    assert_same_as_eager(lambda s, c: (s * 2, c.conj(), c.conj().imag), make, system=eager)
