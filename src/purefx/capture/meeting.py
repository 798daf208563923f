"""The tensors that a branch of ``torch.cond`` or the body of a loop reaches by itself: which, and others for them."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from purefx._torch import DispatchMode, outer_fake_mode, pytree, set_version, storage_key, without_modes
from purefx.capture.effects import written_tensors

COND = torch.ops.higher_order.cond
LOOP = torch.ops.higher_order.while_loop
STACKING = torch.ops.higher_order.while_loop_stack_output
"""A loop that returns what it carries after each step; what it was given if there is none."""


class _Passing(DispatchMode):
    """Notes the storages that are ``written``.  While a mode is active, Dynamo keeps out of ``cond`` in a branch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves its __init__ untyped
        self.written: set[object] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` gives."""
        self.written.update(map(storage_key, written_tensors(func, args, kwargs or {})))
        return func(*args, **(kwargs or {}))


class Meeting(TorchFunctionMode, ABC):
    """Meets the tensors that functions take, and that are neither ``operands`` nor what a function has returned.

    It keeps none of what functions have returned.  PyTorch may hold a mode for longer than it runs: then it has to
    ``forget`` its tensors.
    """

    def __init__(self, operands: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._known = {id(x): (x, x) for x in operands}
        self._returned: dict[int, weakref.ref[torch.Tensor]] = {}

    @abstractmethod
    def meet(self, tensor: torch.Tensor) -> torch.Tensor:
        """What stands for a tensor that is met for the first time."""

    @abstractmethod
    def run_cond(self, pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
        """What a ``cond`` in the branch gives."""

    @abstractmethod
    def run_loop(self, op: Any, test: Any, step: Any, carried: Any, additional: Any) -> Any:
        """What a loop in the branch gives, with ``op``."""

    def forget(self) -> None:
        """Let all tensors go."""
        self._known.clear()

    def stand_in(self, x: Any) -> Any:
        """What functions are given in the place of ``x``."""
        if not isinstance(x, torch.Tensor):
            return x
        returned = self._returned.get(id(x))
        if returned is not None and returned() is x:
            return x
        if id(x) not in self._known:
            self._known[id(x)] = (x, self.meet(x))
        return self._known[id(x)][1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` gives."""
        args, kwargs = pytree.tree_map(self.stand_in, (args, kwargs or {}))
        result = self._run(func, args, kwargs)
        made = (x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and id(x) not in self._known)
        self._returned.update((id(x), weakref.ref(x)) for x in made)
        return result

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if is_cond(func, args):
            with self:
                return self.run_cond(*args, **kwargs)
        if is_loop(func, args):
            with self:
                return self.run_loop(func, *args)
        return func(*args, **kwargs)


class _Noting(Meeting):
    """Notes what it meets in ``held``, and with ``operands`` in ``versions`` as it was then."""

    def __init__(self, operands: Sequence[torch.Tensor]) -> None:
        super().__init__(operands)
        self.held: list[torch.Tensor] = []
        self.versions = [(x, x._version) for x in operands if not x.is_inference()]

    def meet(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        self.held.append(tensor)
        if not tensor.is_inference():
            self.versions.append((tensor, tensor._version))
        return tensor

    def run_cond(self, pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
        """What a branch gives, after both have run."""
        result = true_fn(*operands)
        false_fn(*operands)
        return result

    def run_loop(self, op: Any, test: Any, step: Any, carried: Any, additional: Any) -> Any:
        """What the body gives, after both have run."""
        test(*carried, *additional)
        return step(*carried, *additional)


def met(branch: Callable[..., Any], operands: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], set[object]]:
    """The tensors that ``branch`` reaches by itself, in the order in which it does, and the storages that it writes."""
    passing = _Passing()
    with without_modes(), outer_fake_mode(operands) or nullcontext(), passing:
        given = [x.view_as(x) for x in operands]  # the branch may reach an operand by itself, too
        with torch.no_grad(), (noting := _Noting(given)):
            pytree.tree_map(noting.stand_in, branch(*given))
    held, noting.held = noting.held, []
    for tensor, version in reversed(noting.versions):
        set_version(tensor, version)
    noting.versions.clear()
    noting.forget()
    return held, passing.written


def is_cond(func: Any, args: Sequence[Any]) -> bool:
    """Whether ``func`` is a ``cond`` that the program calls: its branches are no bodies yet."""
    return func is COND and not isinstance(args[1], Body)


def is_loop(func: Any, args: Sequence[Any]) -> bool:
    """Whether ``func`` is a loop that the program calls: what it runs are no bodies yet."""
    return (func is LOOP or func is STACKING) and not isinstance(args[1], Body)


class Body:
    """What purefx itself gives to ``cond`` as a branch, and to ``while_loop``."""
