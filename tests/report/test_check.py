"""``check`` starts both sides from equal copies and leaves the caller's tensors alone."""

from __future__ import annotations

import warnings
from typing import Any, cast

import pytest
import torch
from functorch.compile import default_partition  # type: ignore[import-untyped]  # PyTorch's own
from torch import Tensor

import purefx
from purefx.report.check import check, copy_arguments
from purefx.report.observe import observe
from tests.support.systems import eager, on_arguments, on_outputs


def overlapping(base: Tensor) -> tuple[Tensor, ...]:
    return base[0], base.t(), base.view(-1)[3:], base.view(torch.int32), base


SAMPLES = {
    "views of one base": lambda: overlapping(torch.arange(12.0).reshape(3, 4)),
    "duplicates": lambda: (x := torch.ones(2), x),
    "a leaf and a view of it": lambda: (x := torch.ones(2, requires_grad=True), x[1:]),
    "views of what has grown": lambda: (x := torch.ones(2, 2, requires_grad=True) * 1, x[1], x.t()),
    "no base": lambda: (x := torch.ones(4), x.detach()[1:], x.data[::2]),
    "expanded": lambda: (torch.ones(1, 3).expand(2, 3),),
    "containers": lambda: ({"a": [torch.ones(2), None, 3]}, torch.nn.Parameter(torch.ones(2))),
    "complex": lambda: (
        x := torch.ones(2, 3, dtype=torch.complex64),
        torch.view_as_real(x),
        x.imag,
        x.conj(),
    ),
    "negated": lambda: (x := torch.ones(2, dtype=torch.complex64), x.conj().imag),
    "sparse": lambda: (torch.eye(2).to_sparse(),),
    "empty": lambda: (torch.zeros(0, 3), torch.zeros(())),
    "a view made without grad": lambda: (
        x := torch.ones(3, requires_grad=True),
        x.detach()[1:].requires_grad_(),
    ),
}


def same(*args: object) -> None:
    return None


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_copy_cannot_be_told_from_the_original(sample: str) -> None:
    def original() -> tuple[object, ...]:
        return cast(tuple[object, ...], SAMPLES[sample]())

    expected, copied = observe(same, original), observe(same, lambda: copy_arguments(original()))
    derived = {"grad_fn", "gradient"}
    known = {name: fact for name, fact in expected.facts.items() if isinstance(fact, str)}
    for name, fact in known.items():
        if name.aspect not in derived:
            assert (name, copied.facts[name]) == (name, fact)


def test_a_copy_shares_nothing_with_the_original() -> None:
    base = torch.zeros(4)
    copies = copy_arguments((base, base[1:]))
    copies[1].add_(1)
    assert copies[0].tolist() == [0, 1, 1, 1]
    assert base.tolist() == [0, 0, 0, 0]


def test_inference_tensors_stay_so() -> None:
    with torch.inference_mode():
        x = torch.zeros(4)
        y = x[1:]
    a, b = copy_arguments((x, y))
    assert a.is_inference()
    assert b.untyped_storage() is a.untyped_storage()


def test_a_parameter_passed_beside_its_module_stays_that_parameter() -> None:
    linear = torch.nn.Linear(2, 2)
    module, weight = copy_arguments((linear, linear.weight))
    assert module.weight is weight
    assert weight is not linear.weight


def test_the_report_of_what_is_the_same_is_true_and_short() -> None:
    report = check(lambda x, *, y: (x.add_(y), y), torch.ones(2), y=torch.ones(2), compile=eager)
    assert report
    assert str(report).startswith("same as eager: 2 outputs, 2 arguments, ")


def test_the_report_lists_what_differs() -> None:
    report = check(lambda x: x.add_(1), torch.ones(2), compile=on_arguments(Tensor.clone))
    assert not report.same
    assert "args[0]: value\n    eager     [2.0, 2.0] (float32)\n    compiled  [1.0, 1.0] (float32)" in str(report)


def test_arguments_are_left_as_they_were() -> None:
    x = torch.zeros(2)
    check(lambda x: x.add_(1), x, compile=eager)
    assert x.tolist() == [0, 0]
    assert x._version == 0


def test_what_the_closure_holds_is_put_back() -> None:
    held = torch.zeros(2, 3)

    def f(x: Tensor) -> Tensor:
        held.add_(x)
        held.t_()
        return held

    x = torch.ones(1, requires_grad=True)
    assert check(f, x, compile=eager)
    assert (held.tolist(), held.requires_grad, held.stride()) == ([[0.0] * 3] * 2, False, (3, 1))
    assert held._version == 0


def test_an_argument_may_share_storage_with_what_the_closure_holds() -> None:
    held = torch.zeros(4)
    report = check(lambda x: held.add_(1) + x.sum(), held[1:], compile=on_arguments(Tensor.clone))
    assert not report
    assert check(lambda x: held.add_(1) + x.sum(), held[1:], compile=eager)


class Counter(torch.nn.Module):
    """Counts its calls, in a buffer and in a number."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.number = 0

    def forward(self, x: Tensor) -> Tensor:
        """Add the number of calls."""
        self.number += 1
        self.calls += 1
        return x + self.calls * self.number


def test_a_module_is_copied_and_starts_equal_for_both() -> None:
    module = Counter()
    assert check(module, torch.ones(2), compile=eager)
    assert check(module.forward, torch.ones(2), compile=eager)
    assert check(lambda m, x: m(x), module, torch.ones(2), compile=eager)
    assert check(lambda x: module(x), torch.ones(2), compile=eager)
    assert (module.number, module.calls.item()) == (0, 0)


def test_a_module_whose_buffer_is_not_written_is_caught() -> None:
    module = torch.nn.BatchNorm1d(2)
    report = check(module, torch.rand(3, 2), compile=lambda f: torch.nn.BatchNorm1d(2, track_running_stats=False))
    assert "f.running_mean: value" in str(report)


def test_outputs_cloned_are_caught_on_arguments_that_overlap() -> None:
    base = torch.arange(4.0)
    assert not check(lambda x, y: (x.add_(1), y[0]), base[:3], base[1:], compile=on_outputs(Tensor.clone))


def test_state_that_is_kept_in_python_is_the_same_for_both_sides_and_afterwards() -> None:
    """A6: a counter in a closure's dict or in an object counts on each side from where it stood."""
    state = {"calls": 1}
    tally = Tally()

    def count(x: Tensor) -> Tensor:
        state["calls"] += 1
        return x * state["calls"]

    assert check(count, torch.ones(2), compile=purefx.compile)
    assert check(tally.count, torch.ones(2), compile=purefx.compile)
    assert (state, tally.calls) == ({"calls": 1}, 0)


class Tally:
    """An object that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def count(self, x: Tensor) -> Tensor:
        """``x`` times the number of calls."""
        self.calls += 1
        return x * self.calls


def test_a_report_on_a_program_that_raises_says_so() -> None:
    report = check(lambda x: x.view(7), torch.ones(2), compile=purefx.compile)
    assert str(report) == "both raise RuntimeError: shape '[7]' is invalid for input of size 2"


def test_check_compiles_with_the_partition_that_it_is_given() -> None:
    asked: list[str] = []

    def partition(*args: Any, **kwargs: Any) -> Any:
        asked.append("asked")
        return default_partition(*args, **kwargs)

    x = torch.ones(2, 2, requires_grad=True)
    assert purefx.check(lambda x: (x @ x).sin().sum(), x, partition=partition)
    assert asked
    with pytest.raises(ValueError, match="there is no partition"):
        purefx.check(torch.sin, x, partition="least")  # type: ignore[arg-type]  # the case


def test_a_function_of_torch_jit_is_its_own_copy() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(_doubled)
    assert purefx.check(scripted, torch.ones(2))


def _doubled(x: Tensor) -> Tensor:
    return x.mul_(2)


def test_a_module_that_holds_itself_is_checked() -> None:
    module = torch.nn.Linear(2, 2)
    vars(module)["again"] = module.forward
    assert purefx.check(module, torch.ones(2))
