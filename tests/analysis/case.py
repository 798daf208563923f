"""What a program to be analysed is: a function, and a maker of its arguments.

``arguments`` makes fresh, equal arguments each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Arguments = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """A program with its arguments; ``name`` is the function's."""

    kind: str
    function: Callable[..., Any]
    arguments: Arguments

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__


Decorate = Callable[[Callable[..., Any]], Callable[..., Any]]


def adding_to(cases: list[Case]) -> Callable[[str, Arguments], Decorate]:
    """A decorator, ``@program(kind, arguments)``, that adds the function to ``cases``."""

    def program(kind: str, arguments: Arguments) -> Decorate:
        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            cases.append(Case(kind, function, arguments))
            return function

        return add

    return program


def plain(*sizes: int) -> Tensor:
    """A tensor that needs no gradient."""
    return torch.arange(1.0, 1 + torch.Size(sizes).numel()).view(sizes).clone()


def leaf(*sizes: int) -> Tensor:
    """A leaf that requires grad."""
    return plain(*sizes).requires_grad_()


def live(*sizes: int) -> Tensor:
    """A tensor that was computed from a leaf."""
    return leaf(*sizes) + 1
