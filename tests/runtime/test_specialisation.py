"""A compiled function is captured anew when, and only when, something that it is specialised on changes."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import purefx
import purefx.api
from tests.functional.kinds import ramp
from tests.runtime.counted import Counted


def plus(x: Any, *rest: Any, **named: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t + 1, (x, rest, named))


def captures(*calls: Any, function: Callable[..., Any] = plus) -> int:
    """How many captures the calls make; each is a tuple of arguments."""
    counted = Counted(function)
    for call in calls:
        counted(*call)
    return counted.captures


class Pair(NamedTuple):
    """A container that Python knows."""

    a: Any
    b: Any


@dataclass
class Box:
    """A container that only those know who registered it."""

    content: Any
    label: str


pytree.register_pytree_node(
    Box, lambda box: ([box.content], box.label), lambda content, label: Box(next(iter(content)), label)
)

x = ramp(4)
SAME: dict[str, tuple[Any, Any]] = {
    "other values": ((ramp(4),), (ramp(4) * 9,)),
    "storage offset": ((ramp(8)[:4],), (ramp(8)[3:7],)),
    "size of the storage": ((ramp(4),), (ramp(400)[:4],)),
    "equal numbers": ((x, 3, 2.5, 1j), (x, 3, 2.5, 1j)),
    "equal fractions": ((x, Fraction(1, 2)), (x, Fraction(2, 4))),
    "nan": ((x, math.nan), (x, float("nan"))),
    "equal strings": ((x, "ab"), (x, "".join(["a", "b"]))),
    "equal slices": ((x, slice(1, 3)), (x, slice(1, 3))),
    "named tuples": ((Pair(x, 1),), (Pair(ramp(4), 1),)),
    "registered types": ((Box(x, "l"),), (Box(ramp(4), "l"),)),
    "parameters of a kind": ((torch.nn.Parameter(x, requires_grad=False),),) * 2,
}
OTHER: dict[str, tuple[Any, Any]] = {
    "sizes": ((x,), (ramp(5),)),
    "rank": ((x,), (x.view(2, 2),)),
    "strides": ((ramp(2, 2),), (ramp(2, 2).t(),)),
    "stride of a size of one": ((ramp(1, 4),), (ramp(4, 1).t(),)),
    "dtype": ((x,), (x.double(),)),
    "a tensor or a parameter": ((x,), (torch.nn.Parameter(x, requires_grad=False),)),
    "lazy conjugation": ((x + 1j,), ((x + 1j).conj(),)),
    "lazy negation": ((x,), (x._neg_view(),)),
    "number of arguments": ((x,), (x, x.clone())),
    "a list or a tuple": (([x],), ((x,),)),
    "a tensor or None": ((x, x.clone()), (x, None)),
    "keys": (({"a": x},), ({"b": x},)),
    "order of the keys of a dict": (({"a": x, "b": ramp(1)},), ({"b": ramp(1), "a": x},)),
    "keys in an ordered dict": ((OrderedDict(a=x, b=x),), (OrderedDict(b=x, a=x),)),
    "1 or True": ((x, 1), (x, True)),
    "1 or 1.0": ((x, 1), (x, 1.0)),
    "0.0 or -0.0": ((x, 0.0), (x, -0.0)),
    "fractions": ((x, Fraction(1, 2)), (x, Fraction(1, 4))),
    "nan or a number": ((x, math.nan), (x, 1.0)),
    "strings": ((x, "a"), (x, "b")),
    "None or False": ((x, None), (x, False)),
    "dtypes as arguments": ((x, torch.float32), (x, torch.float64)),
    "slices": ((x, slice(1, 3)), (x, slice(1, 4))),
    "functions": ((x, math.sin), (x, math.cos)),
    "labels of registered types": ((Box(x, "l"),), (Box(x, "m"),)),
    "imaginary zeros": ((x, complex(0.0, 0.0)), (x, complex(0.0, -0.0))),
    "a tuple or a named tuple": (((x, 1),), (Pair(x, 1),)),
}


def named(table: dict[str, Any]) -> list[Any]:
    """The names of ``table`` as parameters."""
    return list(table)


@pytest.mark.parametrize("name", named(SAME))
def test_it_is_not_captured_anew_for(name: str) -> None:
    first, second = SAME[name]
    assert captures(first, second, first) == 1


@pytest.mark.parametrize("name", named(OTHER))
def test_it_is_captured_anew_for_other(name: str) -> None:
    first, second = OTHER[name]
    assert captures(first, second) == 2
    assert captures(first, second, first, second) == 2, "and both are kept"


def test_keyword_arguments_are_told_by_name_not_by_order() -> None:
    def f(x: Tensor, *, a: Tensor, b: Tensor) -> Tensor:
        return x + a * 2 - b

    counted = Counted(f)
    a, b = ramp(4), torch.ones(4)
    assert counted(ramp(4), a=a, b=b).tolist() == f(ramp(4), a=a, b=b).tolist()
    assert counted(ramp(4), b=b, a=a).tolist() == f(ramp(4), a=a, b=b).tolist()
    assert counted(ramp(4), a=b, b=a).tolist() == f(ramp(4), a=b, b=a).tolist()
    assert counted.captures <= 2


def test_results_come_in_the_containers_of_eager() -> None:
    counted = Counted(lambda x: (Pair(x, [None, x + 1]), Box({"k": (x, ())}, "label"), OrderedDict(z=1, a=x)))
    pair, box, ordered = counted(x)
    assert type(pair) is Pair
    assert pair.a is x
    assert (type(box), box.label, box.content["k"][1]) == (Box, "label", ())
    assert list(ordered) == ["z", "a"]


# ---- how many are kept


def test_the_least_recently_used_specialisation_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(purefx.api, "CACHE_SIZE", 2)
    counted = Counted(plus)
    with caplog.at_level(logging.INFO, "purefx"):
        for size in (1, 2, 1, 3):  # 2 is dropped
            counted(ramp(size))
        assert counted.captures == 3
        counted(ramp(1))
        assert counted.captures == 3
        counted(ramp(2))
        assert counted.captures == 4
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("purefx")]
    assert any(m.startswith("plus: capture 2") for m in messages)
    dropped = "plus: dropped specialisation 1 of more than 2; what varies from call to call: x.shape"
    assert any(m.startswith(dropped) for m in messages)


def reasons(caplog: pytest.LogCaptureFixture, calls: Callable[[], object]) -> list[str]:
    """Why each of ``calls`` was captured anew, and what was dropped."""
    with caplog.at_level(logging.INFO, "purefx"):
        calls()
    return [record.getMessage().partition(", as it does not hold that ")[2] for record in caplog.records]


def test_a_call_is_compared_with_what_fits_it_best(caplog: pytest.LogCaptureFixture) -> None:
    compiled = purefx.compile(lambda x, n: x * n)

    def calls() -> None:
        for x, n in ((ramp(2), 1), (ramp(3).double(), 2), (ramp(2), 5), (ramp(3), 2), ([ramp(2)] * 2, 1)):
            with contextlib.suppress(TypeError):
                compiled(x, n)

    assert reasons(caplog, calls)[1:] == ["n: == 1", "x: dtype is torch.float64", ""]
    assert caplog.messages[-1].endswith("capture 5, as it is given x[0]")


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (([x],), ([x, x + 1],), "it is given x[1]"),
        (({"a": x, "b": x + 1},), ({"a": x},), "it is not given x['b']"),
        (([x],), ((x,),), "a container in the arguments is of another type"),
        ((x, 1), (x,), "it is not given args[1]"),
    ],
)
def test_what_is_other_in_the_structure_of_the_arguments_is_named(
    caplog: pytest.LogCaptureFixture, first: tuple[Any, ...], second: tuple[Any, ...], reason: str
) -> None:
    compiled = purefx.compile(lambda x, *rest: [x, *rest])
    with caplog.at_level(logging.INFO, "purefx"):
        compiled(*first)
        compiled(*second)
    assert caplog.messages[-1].endswith(f"capture 2, as {reason}")


def test_what_a_written_argument_is_a_view_of_is_part_of_the_specialisation() -> None:
    weight = ramp(4).requires_grad_()

    def scaled(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(weight)
        return b * 2

    compiled = purefx.compile(scaled)
    base = torch.ones(8)
    compiled(base[:4], base.detach()[4:])
    base = torch.ones(8)
    assert compiled(base[:4], base[4:]).requires_grad
    assert captures((ramp(4),), (ramp(8)[:4],), function=lambda x: x.mul_(weight)) == 2


def test_the_default_device_is_part_of_the_specialisation_of_what_makes_tensors_of_nothing() -> None:
    compiled = purefx.compile(lambda: torch.ones(2))
    assert compiled().device.type == "cpu"
    with torch.device("meta"):
        assert compiled().device.type == "meta"
        assert captures((x,), (x,)) == 1


def test_a_float_is_told_in_the_users_words(caplog: pytest.LogCaptureFixture) -> None:
    compiled = purefx.compile(lambda x, n: x * n)
    assert reasons(caplog, lambda: [compiled(ramp(2), n) for n in (0.5, 1.5)]) == ["n: == 0.5"]


class Counting(torch.nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Call what is inside."""
        self.calls += 1
        result: Tensor = self.inner(x)
        return result


def test_the_attribute_that_makes_a_program_be_captured_at_each_call_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purefx.api, "CACHE_SIZE", 2)
    compiled = purefx.compile(Counting())
    assert reasons(caplog, lambda: [compiled(ramp(2)) for _ in range(3)]) == ["self.calls == 0", "self.calls == 1", ""]
    assert caplog.messages[-1].endswith("what varies from call to call: self.calls")


def test_the_module_that_has_changed_is_named(caplog: pytest.LogCaptureFixture) -> None:
    module = Counting().inner
    compiled = purefx.compile(lambda x, net: net(x))

    def calls() -> None:
        compiled(ramp(2), module)
        module[1].eval()
        compiled(ramp(2), module)
        module[0].register_forward_hook(lambda *_: None)
        compiled(ramp(2), module)

    assert reasons(caplog, calls) == ["net.1: training as captured", "net.0: forward hooks as captured"]


def test_the_module_that_has_changed_before_the_gradient_of_a_gradient_is_named() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sigmoid())
    result = purefx.compile(module)(ramp(2)).sum()
    module[1].eval()
    with pytest.raises(purefx.Refusal, match=r"self\.1 has changed since the call \(training\)"):
        torch.autograd.grad(result, module[0].weight, create_graph=True)


def test_the_bound_is_the_documented_one() -> None:
    counted = Counted(plus)
    for size in range(1, purefx.api.CACHE_SIZE + 1):
        counted(ramp(size))
    for size in range(1, purefx.api.CACHE_SIZE + 1):
        counted(ramp(size))
    assert counted.captures == purefx.api.CACHE_SIZE
