"""What an operator is given: its arguments as they are passed on, and as they are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from purefx.capture.recording import CONTAINERS, Operands, Tree, operands_of

Passed = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments and keyword arguments."""


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """``passed`` are arguments with fakes in them, ``recorded`` the same with operands in the place of the fakes.

    ``tensors`` are those fakes, and ``operands`` those operands, left to right.
    """

    passed: Passed
    recorded: Passed
    tensors: Sequence[torch.Tensor]
    operands: Operands

    @classmethod
    def of(cls, passed: Passed, recorded: Passed) -> Given:
        """The arguments ``passed``, of which ``recorded`` has the operands."""
        return cls(passed, recorded, tensors_of(passed), operands_of(recorded))


def tensors_of(tree: Tree) -> list[torch.Tensor]:
    """The tensors in ``tree``, left to right."""
    found: list[torch.Tensor] = []
    _collect(tree, found)
    return found


def _collect(tree: Tree, found: list[torch.Tensor]) -> None:
    if isinstance(tree, torch.Tensor):
        found.append(tree)
    elif isinstance(tree, CONTAINERS):
        for x in tree.values() if isinstance(tree, dict) else tree:
            _collect(x, found)
