"""Systems that transform a program, and what the oracle says of what they do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

import purefx
from tests.transforms.adapters import leaves
from tests.transforms.nest import Nest
from tests.transforms.oracle import Oracle

Function = Callable[..., Any]
System = Callable[[Nest], Function]
TOLERANCE = 1e-8
"""Of the largest number that is compared: derivatives of three orders are sums of many terms."""


@dataclass(frozen=True)
class Gives:
    """The tensors of the result, and the arguments afterwards."""

    results: tuple[Tensor, ...]
    arguments: tuple[Tensor, ...]


@dataclass(frozen=True)
class Right:
    """The system gives what the oracle gives, or raises where it raises."""


@dataclass(frozen=True)
class Wrong:
    """The system gives something else, or gives something where the program raises."""

    why: str


@dataclass(frozen=True)
class Stopped:
    """The system raises where the oracle does not, or refuses what raises anyway with an error of its own."""

    error: Exception


@dataclass(frozen=True)
class Declined:
    """The system raises where the oracle does not, and where torch.func raises too around loops over examples."""

    error: Exception


@dataclass(frozen=True)
class NotConcerned:
    """The system does not say that it can do this program, or torch.func cannot do a pure program of these sizes."""


DERIVATIVES: Final = ("grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "vjp")
Verdict = Right | Wrong | Stopped | Declined | NotConcerned


def around_program(library: str, system: Callable[[Function], Function] = lambda f: f) -> System:
    """The transforms of a library around what ``system`` makes of the program."""
    return lambda nest: nest.under(import_module(library), system(nest.function))


def over_transforms(nest: Nest) -> Function:
    """What ``compile`` makes of the transformed program."""
    return purefx.compile(around_program("torch.func")(nest))


SYSTEMS: Final[dict[str, System]] = {
    "purefx.func": around_program("purefx.func"),
    "compile": around_program("torch.func", purefx.compile),
    "functionalize": around_program("torch.func", purefx.functionalize),
    "over": over_transforms,
    "torch.func": around_program("torch.func"),
}


UNDER_TORCH: Final = frozenset({"compile", "functionalize"})
"""Where the transforms are those of torch.func, and what they cannot do at all is no fault of the system."""


def judge(nest: Nest, name: str) -> Verdict:
    """What the system of that name makes of the nest; that over transforms is asked only what torch.func can do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "over" and any(text.startswith("linearized") for text in nest.transforms):
            return NotConcerned()  # torch.func.linearize traces, and is refused in a program that is captured
        if name == "over" and not isinstance(verdict(nest, SYSTEMS["torch.func"]), Right):
            return NotConcerned()
        found = verdict(nest, SYSTEMS[name])
        if name in UNDER_TORCH and not isinstance(found, Right) and not torch_can_do_a_pure_program(nest):
            return NotConcerned()
        return found


def verdict(nest: Nest, system: System) -> Verdict:
    """The same for any system. It is called twice: the second call must be as right as the first."""
    expected = outcome(nest, with_oracle(Oracle()))
    function: list[Function] = []

    def made(nest: Nest) -> Function:
        function[:] = function or [system(nest)]
        return function[0]

    first = compared(nest, expected, outcome(nest, made))
    return first if not isinstance(first, Right) else compared(nest, expected, outcome(nest, made))


def torch_can_do_a_pure_program(nest: Nest) -> bool:
    """Whether torch.func is right about the nest around a program without views and writes, of the same sizes."""
    sizes: list[torch.Size] = []

    def noting(*args: Tensor) -> Any:
        result = nest.function(*args)
        sizes[:] = [x.shape for x in leaves(result)]
        return result

    def pure(*args: Tensor) -> tuple[Tensor, ...]:
        number = torch.stack([arg.sin().sum() for arg in args]).sum()
        return tuple(number + torch.zeros(size, dtype=torch.float64) for size in sizes)

    outcome(nest, lambda nest: nest.under(Oracle(), noting))
    expected = outcome(nest, lambda nest: nest.under(Oracle(), pure))
    return isinstance(compared(nest, expected, outcome(nest, lambda nest: nest.under(torch.func, pure))), Right)


def with_loops(nest: Nest) -> Function:
    """The derivatives of torch.func, and a loop over examples in the place of its vmap."""
    derivatives = {name: getattr(torch.func, name) for name in DERIVATIVES}
    return nest.under(SimpleNamespace(vmap=Oracle().vmap, **derivatives), nest.function)


def with_oracle(oracle: Oracle) -> System:
    """The oracle as a system."""
    return lambda nest: nest.under(oracle, nest.function)


def outcome(nest: Nest, system: System) -> Gives | Exception:
    """What the system gives for fresh inputs, or the error."""
    inputs = nest.make_inputs()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            results = leaves(system(nest)(*inputs))
        except Exception as error:
            return error
    return Gives(tuple(x.detach() for x in results), tuple(x.detach() for x in inputs))


def compared(nest: Nest, expected: Gives | Exception, found: Gives | Exception) -> Verdict:
    """The verdict on an outcome."""
    if isinstance(expected, Exception):
        if isinstance(found, Exception):
            return Stopped(found) if isinstance(found, purefx.PurefxError) else Right()
        return Wrong(f"gives a result where the loop raises {type(expected).__name__}: {expected}")
    if isinstance(found, Exception):
        declined = isinstance(outcome(nest, with_loops), Exception)
        return Declined(found) if declined else Stopped(found)
    why = _difference("result", expected.results, found.results)
    why = why or _difference("argument", expected.arguments, found.arguments)
    return Wrong(why) if why else Right()


def _difference(of: str, expected: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> str:
    """The first difference, or nothing."""
    if len(expected) != len(found):
        return f"{len(expected)} {of}s expected, {len(found)} found"
    for n, (x, y) in enumerate(zip(expected, found, strict=True)):
        scale = max(1.0, x.abs().nan_to_num().max().item()) if x.numel() else 1.0
        try:
            torch.testing.assert_close(y, x, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True)
        except AssertionError as error:
            lines = " ".join(str(error).split())
            if x.shape != y.shape:
                return f"{of} {n}: {lines}"
            return f"{of} {n}: {lines}\n  expected {x.tolist()}\n  found    {y.tolist()}"
    return ""
