"""Capture only reads: arguments, parameters, variables and modes are afterwards as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purefx
from purefx.errors import GlobalStateChanged
from tests.functional.kinds import ramp

held = ramp(3)


class Net(nn.Module):
    """A module whose call changes everything that it has."""

    buffer: Tensor
    last: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3).requires_grad_(requires_grad=False)
        self.tied = self.inner
        self.register_buffer("buffer", torch.zeros(3))
        self.extra = torch.ones(3)
        self.calls = 0

    def forward(self, x: Tensor, *, fail: bool = False) -> Tensor:
        """Write, rebind, count."""
        self.inner.weight.mul_(2)
        self.buffer = self.buffer + x
        self.extra.t_()
        self.last = self.buffer * 2
        self.calls += 1
        if fail:
            raise KeyError("asked for")
        return self.inner(x) + self.tied(x)


def writes(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    y.t_().mul_(2)
    held.zero_()
    torch.set_grad_enabled(False)
    return torch.rand(2), x.normal_()


def sets(x: Any, y: Any) -> Any:
    x.set_(y)
    y.resize_(9)
    y.data = x
    return x


def fails(x: Tensor, y: Tensor) -> None:
    writes(x, y)
    raise KeyError("asked for")


def facts(*tensors: Tensor) -> list[Any]:
    return [(t.tolist(), t._version, t.shape, t.stride(), t.data_ptr(), _size(t)) for t in tensors]


def _size(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


@pytest.mark.parametrize("function", [writes, sets, fails], ids=lambda f: f.__name__)
@pytest.mark.parametrize("front", [purefx.trace, purefx.explain, purefx.collect_metadata])
def test_arguments_variables_and_modes_are_untouched(front: Callable[..., Any], function: Callable[..., Any]) -> None:
    base = ramp(12)
    tensors = [base[3:9].view(2, 3)[:, 1:], base.view(3, 4)[:2, :2], base, held]
    before, seed = facts(*tensors), torch.get_rng_state()
    try:
        call = front(function) if front is purefx.collect_metadata else lambda *args: front(function, *args)
        call(*tensors[:2])
        assert torch.is_grad_enabled()
    except KeyError:
        assert function is fails
    finally:
        torch.set_grad_enabled(True)
    assert facts(*tensors) == before
    assert torch.equal(torch.get_rng_state(), seed)


def test_a_refusal_leaves_grad_mode_alone() -> None:
    def program(x: Tensor) -> Any:
        torch.set_grad_enabled(False)
        return bool(x.sum() > 0)

    try:
        with pytest.raises(purefx.Refusal):
            purefx.compile(program)(ramp(3))
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


@pytest.mark.parametrize("fail", [False, True])
def test_parameters_and_attributes_are_put_back(*, fail: bool) -> None:
    net = Net()
    objects = [net.inner.weight, net.inner.bias, net.buffer, net.extra]
    before, attributes = facts(*objects), dict(net.__dict__)
    try:
        purefx.trace(net, ramp(3), fail=fail)
    except KeyError:
        assert fail
    assert [id(x) for x in objects] == [id(x) for x in (net.inner.weight, net.inner.bias, net.buffer, net.extra)]
    assert facts(*objects) == before
    assert net.__dict__ == attributes
    assert net.calls == 0
    assert net.last is None


def test_a_failed_capture_leaves_nothing_in_the_cache() -> None:
    def program(x: Tensor, *, fail: bool) -> Tensor:
        if wrong:
            raise KeyError("asked for")
        return x.add_(1)

    compiled, wrong = purefx.compile(program), True
    x = ramp(3)
    with pytest.raises(KeyError):
        compiled(x, fail=True)
    wrong = False
    assert compiled(x, fail=True).tolist() == [1, 2, 3]


def test_a_capture_leaves_the_seed_alone() -> None:
    seed = torch.get_rng_state()
    try:
        with pytest.raises(GlobalStateChanged):
            purefx.trace(lambda x: (torch.manual_seed(0), x)[1], ramp(3))
        assert torch.equal(torch.get_rng_state(), seed)
    finally:
        torch.set_rng_state(seed)


def test_a_capture_of_cond_leaves_the_cond_of_eager_alone() -> None:
    def choose(x: Tensor) -> Any:
        return torch.cond(x.sum() > 100, lambda y: y.sin(), lambda y: y.cos(), (x,))

    def choose_too(x: Tensor) -> Any:
        return torch.cond(x.sum() > 100, lambda y: y + 1, lambda y: y + 2, (x,))

    torch._dynamo.reset()
    try:
        purefx.trace(choose, ramp(3))
        assert choose_too(ramp(3)).tolist() == [2, 3, 4]
    finally:
        torch._dynamo.reset()


def test_no_fake_stays_in_what_the_program_reaches() -> None:
    cells = [ramp(3)]
    purefx.trace(lambda x: cells[0].add_(x), ramp(3))
    assert type(cells[0]) is Tensor
    assert cells[0]._version == 0
    assert cells[0].tolist() == [0, 1, 2]
