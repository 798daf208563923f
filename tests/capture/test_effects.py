"""What a program does besides returning is done at each call: to modules, variables, aliases and modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purefx
from purefx.capture.recording import DataAccess
from tests.functional.kinds import Programs, ramp
from tests.support.oracle import assert_same_as_eager

programs = Programs()


class Meter(nn.Module):
    """A module with a buffer that its calls replace, write or remove."""

    total: Tensor

    def __init__(self, step: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.step = step
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Any:
        """One step."""
        return self.step(self, x)


def replaces(self: Any, x: Tensor) -> Any:
    self.total = self.total + x
    return self.total * 1


def replaces_and_writes(self: Any, x: Tensor) -> Any:
    old = self.total
    self.total = self.total.clone()
    self.total.add_(x)
    old.mul_(2)
    return old


def replaces_twice(self: Any, x: Tensor) -> Any:
    self.total = self.total + x
    first = self.total
    self.total = first[1:].repeat(2)[:3]
    return first


def takes_the_argument(self: Any, x: Tensor) -> Any:
    self.total = x
    self.total.add_(1)


def keeps_a_view(self: Any, x: Tensor) -> Any:
    self.head = self.total[:2]
    self.total.add_(x)
    return self.head.sum()


def sets_a_flag(self: Any, x: Tensor) -> Any:
    self.ready, self.name, self.scale = True, "meter", 2.5
    return x * self.scale


STEPS = [replaces, replaces_and_writes, replaces_twice, takes_the_argument, keeps_a_view, sets_a_flag]


def state(net: nn.Module) -> dict[str, Any]:
    """The attributes of ``net`` by value."""
    own = {name: x for name, x in net.__dict__.items() if name in ("head", "ready", "name", "scale")}
    return {n: x.tolist() if isinstance(x, Tensor) else x for n, x in {**dict(net.named_buffers()), **own}.items()}


@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_what_a_module_binds_is_bound_at_each_call(step: Callable[[Any, Tensor], Any]) -> None:
    net, expected = Meter(step), Meter(step)
    compiled = purefx.compile(net)
    for turn in range(3):
        x = ramp(3) + turn
        result, wanted = compiled(x.clone()), expected(x.clone())
        assert str(result) == str(wanted)
        assert state(net) == state(expected)


def test_a_number_that_a_module_counts_is_counted_at_each_call() -> None:
    def counts(self: Any, x: Tensor) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return x * self.calls

    net = Meter(counts)
    compiled = purefx.compile(net)
    assert [compiled(torch.ones(1)).item() for _ in range(3)] == [1, 2, 3]


def test_tied_parameters_are_one_input() -> None:
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)).requires_grad_(requires_grad=False)
    net[1].weight = net[0].weight
    program = purefx.trace(net, ramp(2, 3))
    assert [a.name for a in program.signature.arguments] == ["input", "self.0.weight"]
    assert len([n for n in program.graph.nodes if n.op == "placeholder"]) == 2


def test_a_tensor_of_a_closure_is_written_at_each_call() -> None:
    total = torch.zeros(3)
    compiled = purefx.compile(lambda x: total[1:].add_(x))
    for turn in range(1, 4):
        result = compiled(torch.ones(2))
        assert total.tolist() == [0, turn, turn]
        assert result.data_ptr() == total[1:].data_ptr()


# ---- data and detach, set_ there and back (D7)


def test_data_and_detach_are_told_apart() -> None:
    def program(x: Tensor) -> Any:
        return x.data, x.detach()

    calls = purefx.trace(program, ramp(3)).stages.capture.recording.calls
    assert [call.op for call in calls] == [DataAccess.READ, torch.ops.aten.detach.default]


@programs(lambda: (ramp(3), ramp(3) * 2))
def storages_are_written_by_bytes(x: Tensor, y: Tensor) -> Any:
    z = x + y
    x.untyped_storage()[3] = 64
    y.untyped_storage().copy_(x.untyped_storage())
    z.untyped_storage().fill_(0)
    return z


@programs(lambda: (ramp(3),))
def writes_by_data_do_not_count(x: Tensor) -> Any:
    x.data.add_(1)
    x.data[1:].mul_(2)
    return x.detach(), x.data


@programs(lambda: (ramp(3),))
def writes_by_detach_count(x: Tensor) -> Any:
    y, z = x.data, x.detach()
    z.add_(1)
    y.mul_(3)
    return y, z


@programs(lambda: (ramp(2, 3),))
def d7_set_to_another_and_back(x: Any) -> Any:
    storage, offset, size, stride = x.untyped_storage(), x.storage_offset(), x.size(), x.stride()
    x.set_(torch.ones(5))
    x.mul_(2)
    y = x * 1
    x.set_(storage, offset, size, stride)
    return y, x + 1


@programs(lambda: (ramp(3), ramp(3) + 5))
def d7_data_there_and_back(x: Tensor, y: Tensor) -> Any:
    kept = x.data
    x.data = y
    x.add_(1)
    x.data = kept
    x.mul_(2)
    return x + y


@programs(lambda: ((x := ramp(4)), x[1:]))
def d7_an_argument_leaves_its_alias(x: Any, tail: Tensor) -> Any:
    x.set_(x.clone())
    x.zero_()
    return tail * 1, x


# ---- modes


@programs(lambda: (ramp(3),))
def d6_grad_mode_is_left_off(x: Tensor) -> Any:
    y = x.view(-1)
    torch.set_grad_enabled(False)
    return y, x + 1


@programs(lambda: (ramp(3),))
def d6_grad_mode_is_turned_off_and_on(x: Tensor) -> Any:
    with torch.no_grad():
        x.mul_(2)
        with torch.enable_grad():
            y = x[1:]
    return y, torch.is_grad_enabled()


@programs(lambda: (ramp(4),))
def views_and_results_of_inference_mode(x: Tensor) -> Any:
    with torch.inference_mode():
        head = x[:2]
        y = x * 2
        z = y[1:]
    return head, y, z, [t.is_inference() for t in (head, y, z)]


@programs(lambda: (ramp(4),))
def a_write_in_inference_mode(x: Tensor) -> Any:
    with torch.inference_mode():
        x[1:].mul_(2)
    return x.view(2, 2)


@programs(lambda: (ramp(3),))
def a_write_to_an_inference_tensor_outside(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y.add_(1)


@pytest.mark.parametrize("name", programs.names())
def test_it_cannot_be_told_from_eager(name: str) -> None:
    program = programs[name]
    assert_same_as_eager(program.function, program.make, system=purefx.compile, ignore=program.ignore)


@pytest.mark.parametrize("name", programs.names())
def test_it_cannot_be_told_from_eager_under_no_grad(name: str) -> None:
    program = programs[name]
    with torch.no_grad():
        assert_same_as_eager(program.function, program.make, system=purefx.compile, ignore=program.ignore)
