"""What a function reaches besides its arguments is checked: modules, variables, who shares memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.functional.kinds import ramp
from tests.runtime.counted import Counted


class Net(nn.Module):
    """A module with everything that a module may have."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Dropout(1.0))
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Tensor) -> Any:
        """Scale, and apply the rest."""
        return self.inner(x) * self.scale


def add_hook(net: Any) -> Any:
    return net.inner[0].register_forward_hook(lambda module, args, out: out * 0 + 9)


def replace_hook(net: Any) -> None:
    net.inner[1]._forward_pre_hooks.clear()
    net.inner[1].register_forward_pre_hook(lambda module, args: (args[0] * 0 + 5,))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "training flag": lambda net: net.train(),
    "training flag of a submodule": lambda net: net.inner[1].train(),
    "hook": add_hook,
    "hook before": replace_hook,
    "submodule": lambda net: net.inner.__setitem__(0, nn.Identity()),
    "submodule more": lambda net: net.inner.append(nn.ReLU()),
    "parameter that requires grad": lambda net: net.inner[0].requires_grad_(),
    "parameter of another size": lambda net: setattr(net, "scale", torch.ones(1)),
    "parameter less": lambda net: net.inner[0].register_parameter("bias", None),
    "parameter shared with another": lambda net: setattr(net.inner[0], "bias", frozen(net.inner[0].weight[0])),
}


def frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach(), requires_grad=False)


@pytest.mark.parametrize("name", CHANGES)
def test_a_module_is_captured_anew_after_a_change_of(name: str) -> None:
    net = Net().eval().requires_grad_(requires_grad=False)
    counted = Counted(net)
    x = ramp(2, 3) + 1
    with torch.no_grad():
        assert torch.equal(counted(x), net(x))
        CHANGES[name](net)
        expected = net(x)
        assert torch.equal(counted(x), expected)
        assert counted.captures == 2
        assert torch.equal(counted(x), expected)
        assert counted.captures == 2


def test_a_module_is_captured_anew_after_one_hook_takes_the_place_of_another() -> None:
    net = Net().eval().requires_grad_(requires_grad=False)
    net.inner[1].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    counted = Counted(net)
    assert torch.equal(counted(ramp(2, 3)), net(ramp(2, 3)))
    replace_hook(net)
    assert torch.equal(counted(ramp(2, 3)), net(ramp(2, 3)))


def test_a_parameter_replaced_by_one_of_the_same_kind_needs_no_capture() -> None:
    net = Net().eval().requires_grad_(requires_grad=False)
    counted = Counted(net)
    before = counted(ramp(2, 3))
    net.inner[0].weight = frozen(torch.eye(3))
    net.scale = torch.full((3,), 2.0)
    net.inner[0].load_state_dict({"weight": torch.eye(3) * 3, "bias": torch.zeros(3)})
    assert torch.equal(counted(ramp(2, 3)), ramp(2, 3) * 6)
    assert not torch.equal(before, ramp(2, 3) * 6)
    assert counted.captures == 1


def test_a_module_as_an_argument_is_told_by_identity() -> None:
    first, second = (
        nn.Linear(3, 3).requires_grad_(requires_grad=False),
        nn.Linear(3, 3).requires_grad_(requires_grad=False),
    )
    counted = Counted(lambda net, x: net(x))
    x = ramp(2, 3)
    for net in (first, second, first):
        assert torch.equal(counted(net, x), net(x))
    assert counted.captures == 2


def test_a_method_belongs_to_its_object() -> None:
    first, second = (
        Net().eval().requires_grad_(requires_grad=False),
        Net().eval().requires_grad_(requires_grad=False),
    )
    for net in (first, second):
        assert torch.equal(Counted(net.forward)(ramp(2, 3)), net(ramp(2, 3)))


def test_a_variable_of_a_closure_bound_to_another_tensor_is_seen() -> None:
    weight = ramp(3)

    def program(x: Tensor) -> Tensor:
        return weight.mul_(2) + x

    counted = Counted(program)
    assert counted(torch.ones(3)).tolist() == [1, 3, 5]
    old, weight = weight, torch.ones(3)
    assert counted(torch.ones(3)).tolist() == [3, 3, 3]
    assert (old.tolist(), weight.tolist()) == ([0, 2, 4], [2, 2, 2])


def test_numbers_of_a_closure_are_fixed_at_the_capture() -> None:
    factor = 2
    counted = Counted(lambda x: x * factor)
    assert counted(torch.ones(2)).tolist() == [2, 2]
    factor = 3
    assert counted(torch.ones(2)).tolist() == [2, 2], "Python state is not checked: pass it as an argument"


# ---- who shares memory with whom


def double_and_add(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x + y


PATTERNS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "distinct": lambda base: (base[:4], torch.ones(4)),
    "twice the same": lambda base: (x := base[:4], x),
    "overlapping": lambda base: (base[:4], base[1:5]),
    "overlapping more": lambda base: (base[:4], base[2:6]),
    "overlapping before": lambda base: (base[2:6], base[:4]),
    "equal slices": lambda base: (base[:4], base[:4]),
    "disjoint": lambda base: (base[:4], base[4:8]),
    "distinct, shared with nobody": lambda base: (base[3:7].clone(), base[:4]),
}


def test_v4_v19_each_pattern_of_sharing_is_right_and_reused() -> None:
    counted = Counted(double_and_add)
    for turn in range(2):
        for name in [*PATTERNS, *reversed(PATTERNS)]:
            base, expected = ramp(8) + turn, ramp(8) + turn
            result = double_and_add(*PATTERNS[name](expected))
            assert torch.equal(counted(*PATTERNS[name](base)), result), name
            assert torch.equal(base, expected), name
        if turn == 0:
            captures = counted.captures
    assert counted.captures == captures <= len(PATTERNS)


def test_moving_both_by_the_same_distance_is_no_other_pattern() -> None:
    counted = Counted(double_and_add)
    for start in range(3):
        base, expected = ramp(8), ramp(8)
        assert torch.equal(
            counted(base[start : start + 4], base[start + 1 : start + 5]),
            double_and_add(expected[start : start + 4], expected[start + 1 : start + 5]),
        )
    assert counted.captures == 1


def test_sharing_between_an_argument_and_what_a_closure_holds_is_seen() -> None:
    held = ramp(4)
    counted = Counted(lambda x: x.add_(1) * held)
    assert counted(ramp(4)).tolist() == [0, 2, 6, 12]
    assert counted(held).tolist() == [1, 4, 9, 16]
    assert counted(ramp(4)).tolist() == [1, 4, 9, 16]
    assert counted.captures == 2


def test_sharing_between_parameters_is_seen() -> None:
    net = nn.Module()
    net.a, net.b = frozen(ramp(3)), frozen(ramp(3))

    def program(net: Any) -> Tensor:
        return net.a.add_(1) * net.b

    counted = Counted(program)
    assert counted(net).tolist() == [0, 2, 6]
    net.b = net.a
    assert counted(net).tolist() == [4, 9, 16]
    assert counted.captures == 2
