"""What a caller of eager finds after a call that it did not find before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

from purefx._torch import pytree


@dataclass(frozen=True)
class Before:
    """A tensor argument before the call: its values, a tensor that shares its memory, and its state."""

    values: Tensor
    alias: Tensor
    version: int
    history: Node | None


@dataclass(frozen=True)
class EagerRun:
    """The flat arguments and results after a call; ``before`` has an entry for each tensor argument, by its place."""

    args: tuple[Any, ...]
    results: tuple[Any, ...]
    before: dict[int, Before]

    def is_written(self, i: int) -> bool:
        """The memory that argument ``i`` came with has other elements."""
        return not self.before[i].values.equal(self.before[i].alias)

    def is_counted(self, i: int) -> bool:
        """The version of argument ``i`` is another."""
        return bool(self.args[i]._version != self.before[i].version)

    def is_moved(self, i: int) -> bool:
        """Argument ``i`` has another storage."""
        return not share_storage(self.args[i], self.before[i].alias)

    def has_its_history(self, i: int) -> bool:
        """Autograd says of argument ``i`` what it said before."""
        return self.args[i].grad_fn is self.before[i].history


def share_storage(a: Tensor, b: Tensor) -> bool:
    """Whether the two tensors show one block of memory."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def run_eager(function: Callable[..., Any], args: tuple[Any, ...]) -> EagerRun:
    """Call ``function`` and look at what it was given and what it gave."""
    leaves = pytree.tree_leaves(args)
    before = {
        i: Before(x.detach().clone(), x.detach(), x._version, x.grad_fn)
        for i, x in enumerate(leaves)
        if isinstance(x, Tensor)
    }
    results = function(*args)
    return EagerRun(tuple(leaves), tuple(pytree.tree_leaves(results)), before)
