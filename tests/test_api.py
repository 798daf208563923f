"""The front doors take every kind of callable, and give back what the callable gives."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purefx
from purefx.functional.verify import check_functional
from tests.functional.kinds import ramp

FRONTS = {"compile": purefx.compile, "functionalize": purefx.functionalize}


def scaled(x: Tensor, y: float = 2, *, z: float = 3) -> Tensor:
    """A line."""
    return x * y + z


class Accumulator:
    """Callables of every kind, around one tensor."""

    def __init__(self) -> None:
        self.total = torch.zeros(2)

    def __call__(self, x: Tensor) -> Tensor:
        """Add ``x``."""
        return self.total.add_(x) * 1

    def add(self, x: Tensor) -> Tensor:
        """Add ``x``."""
        return self(x)

    @staticmethod
    def plain(x: Tensor) -> Tensor:
        """Nothing of the object."""
        return x.add_(1)

    @classmethod
    def of_class(cls, x: Tensor) -> Tensor:
        """Nothing of the object."""
        return cls.plain(x)


class Scale(nn.Module):
    """A module with attributes of many names."""

    def __init__(self) -> None:
        super().__init__()
        self.function, self.backend, self.specialisations = 3, "b", 1

    def forward(self, x: Tensor) -> Any:
        """Scale."""
        return x * self.function


CALLABLES: dict[str, Callable[[], Callable[..., Any]]] = {
    "a function": lambda: scaled,
    "a partial": lambda: functools.partial(scaled, y=5),
    "an object": Accumulator,
    "a method": lambda: Accumulator().add,
    "a static method": lambda: Accumulator.plain,
    "a class method": lambda: Accumulator().of_class,
    "a lambda with a default": lambda: lambda x, by=2: x.mul_(by),
    "a module": lambda: nn.Linear(2, 2).requires_grad_(requires_grad=False),
    "a method of a module": lambda: nn.Linear(2, 2).requires_grad_(requires_grad=False).forward,
    "a torch function": lambda: torch.sin,
    "a decorated function": lambda: torch.no_grad()(scaled),
}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("name", CALLABLES)
def test_every_kind_of_callable_is_taken(name: str, front: str) -> None:
    torch.manual_seed(0)
    function = FRONTS[front](CALLABLES[name]())
    torch.manual_seed(0)
    expected = CALLABLES[name]()
    for _ in range(2):
        assert torch.equal(function(ramp(2)), expected(ramp(2)))


@pytest.mark.parametrize("front", FRONTS)
def test_name_signature_and_documentation_stay(front: str) -> None:
    function = FRONTS[front](scaled)
    assert (function.__name__, function.__doc__) == ("scaled", "A line.")
    assert inspect.signature(function) == inspect.signature(scaled)


def test_a_module_may_have_attributes_of_any_name() -> None:
    assert purefx.compile(Scale())(ramp(2)).tolist() == [0, 3]


def test_a_tensor_that_an_object_binds_anew_is_seen() -> None:
    accumulator = Accumulator()
    compiled = purefx.compile(accumulator.add)
    assert compiled(torch.ones(2)).tolist() == [1, 1]
    accumulator.total = torch.zeros(2)
    assert compiled(torch.ones(2)).tolist() == [1, 1]


def test_compiled_functions_may_call_each_other() -> None:
    inner = purefx.compile(lambda x: x.add_(1))
    outer = purefx.compile(lambda x: inner(x) * 2)
    x = ramp(2)
    assert [outer(x).tolist(), outer(x).tolist(), inner(x).tolist()] == [[2, 4], [4, 6], [3, 4]]


def test_a_compiled_function_may_be_called_by_many_threads() -> None:
    compiled, failed = purefx.compile(lambda x: x.mul_(2) + 1), []

    def work() -> None:
        for i in range(30):
            if compiled(torch.ones(i % 5 + 1)).tolist() != [3] * (i % 5 + 1):
                failed.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


# ---- what is returned

RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "nothing": lambda x: None,
    "numbers": lambda x: (1, 2.5, True, "text", 3j),
    "facts of tensors": lambda x: (x.dtype, x.device, x.dim(), x.stride()),
    "a size": lambda x: (x.shape, (x + 1).size()),
    "a parameter": lambda x: nn.Parameter(x * 2, requires_grad=False),
    "empty containers": lambda x: ((), [], {}),
    "a text of a tensor": str,
}
FAULTS = {
    "a parameter": "what the graph returns is a plain tensor",
    "a text of a tensor": "the text of a fake is handed out",
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.xfail(reason=FAULTS[n]) if n in FAULTS else ()) for n in RESULTS]
)
def test_what_is_returned_has_the_type_of_eager(name: str) -> None:
    compiled = purefx.compile(RESULTS[name])
    for _ in range(2):
        result, expected = compiled(ramp(2)), RESULTS[name](ramp(2))
        assert type(result) is type(expected)
        assert repr(result) == repr(expected)


def test_a_program_runs_at_other_values_and_refuses_other_kinds() -> None:
    program = purefx.trace(scaled, ramp(2), z=1)
    assert program(ramp(2) + 1, z=1).tolist() == [3, 5]
    for args, z in (((ramp(3),), 1), ((ramp(2),), 2)):
        with pytest.raises(ValueError, match="traced for other arguments"):
            program(*args, z=z)


@pytest.mark.parametrize(("args", "named"), [((ramp(2),), {}), ((ramp(2),), {"y": 1}), (([ramp(2)],), {"z": 1})])
def test_a_program_refuses_arguments_of_another_structure(args: Any, named: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="traced for other arguments"):
        purefx.trace(scaled, ramp(2), z=1)(*args, **named)


def test_a_program_tells_keyword_arguments_by_name_or_refuses() -> None:
    program = purefx.trace(lambda *, x, y: x - y, x=torch.ones(2), y=torch.zeros(2))
    with contextlib.suppress(ValueError):
        assert program(y=torch.zeros(2), x=torch.ones(2)).tolist() == [1, 1]


def test_the_backend_gets_a_functional_graph_with_examples() -> None:
    seen: list[tuple[torch.fx.GraphModule, list[Any]]] = []

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        seen.append((module, examples))
        return module

    x = ramp(2, 6)
    assert purefx.compile(lambda x, y: (x * y.add_(1)).sum(0), backend)(x, x[0]).shape == (6,)
    ((module, examples),) = seen
    check_functional(module.graph)
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    assert len(placeholders) == len(examples)
    for node, example in zip(placeholders, examples, strict=True):
        assert (node.meta["val"].shape, node.meta["val"].stride()) == (example.shape, example.stride())
    assert all("val" in n.meta for n in module.graph.nodes if n.op == "call_function")


def test_a_compiled_module_has_what_the_module_has() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    compiled: Any = purefx.compile(module)
    assert list(compiled.parameters()) == list(module.parameters())
    assert compiled.eval() is compiled
    assert compiled.to(torch.float64).requires_grad_(requires_grad=False) is compiled
    assert not module.training
    assert module[0].weight.dtype is torch.float64
    assert not hasattr(compiled, "no_such_thing")


def test_a_method_may_be_compiled_in_the_body_of_its_class() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor(factor))

        @purefx.compile
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(2) * self.factor

    for factor in (3.0, 5.0):
        module, x = Scaled(factor), torch.ones(2)
        module(x).sum().backward()
        assert x.tolist() == [2.0, 2.0]
        assert module.factor.grad is not None
        assert module.factor.grad.item() == 4.0
    assert len(Scaled.forward.specialisations) == 2


def test_a_copy_of_a_compiled_module_has_parameters_of_its_own() -> None:
    module = torch.nn.Linear(2, 1)
    compiled: Any = purefx.compile(module)
    x = torch.ones(1, 2)
    expected = compiled(x)
    copied = copy.deepcopy(compiled)
    with torch.no_grad():
        module.weight.zero_()
    assert torch.equal(copied(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(compiled))(x), module(x))


def test_an_unknown_partition_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no partition 'mincut'"):
        purefx.compile(lambda x: x, partition="mincut")  # type: ignore[arg-type]  # that is the point
