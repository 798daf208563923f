"""Programs by kind: each is a function and what makes its arguments, and each is compared with eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

Make = Callable[[], tuple[Any, ...]]
Function = Callable[..., Any]
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Program:
    """A function, what makes its arguments, and aspects that there is a reason not to compare."""

    function: Function
    make: Make
    ignore: frozenset[str]


class Programs(dict[str, Program]):
    """A table of programs, filled by decorating them: ``@programs(make_arguments)``."""

    def __init__(self) -> None:
        self._faults: dict[str, str] = {}

    def __call__(self, make: Make, *, ignore: frozenset[str] = NOTHING, fault: str = "") -> Function:
        """Add the decorated program under its name, said in words; ``fault`` says how it differs."""

        def add(function: Function) -> Function:
            name = function.__name__.replace("_", " ")
            assert name not in self, name
            self[name] = Program(function, make, ignore)
            self._faults[name] = fault
            return function

        return add

    def names(self, **faults: str) -> list[Any]:
        """The names as test parameters; those with a fault are expected to fail."""
        known = {**self._faults, **{name.replace("_", " "): fault for name, fault in faults.items()}}
        return [
            pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=known[name]) if known[name] else ())
            for name in self
        ]


def ramp(*sizes: int) -> Tensor:
    """Numbers 0, 1, 2, ... of the given sizes."""
    return torch.arange(float(math.prod(sizes))).reshape(sizes)
