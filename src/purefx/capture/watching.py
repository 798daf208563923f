"""What a program calls that fakes and a graph alone would get wrong: control flow, hooks, gradients, Python loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from purefx._torch import SETS_DATA, HigherOrderOperator
from purefx.capture.beyond import check_within
from purefx.capture.bodies import Capturing
from purefx.capture.branches import choose, loop
from purefx.capture.by_element import BY_ELEMENT, check_not_by_element
from purefx.capture.captured import Hook, Input
from purefx.capture.edges import edge_of, is_leaf
from purefx.capture.frames import current_line
from purefx.capture.meeting import COND, LOOP, STACKING, is_cond, is_loop
from purefx.capture.recurrent import run_lstm
from purefx.capture.tensors import variable_of
from purefx.errors import UnsupportedOperator


class Watching(TorchFunctionMode):
    """Sees the functions of PyTorch that a program calls; those `_WATCHED` are run in another way, or refused.

    ``capture`` captures the branches of ``cond``.  ``inputs`` are those that the program has so far: it may ask for
    gradients among them.  ``notice`` is told of tensors that have got other memory.  ``hooks`` has the hooks that are
    registered on tensors.  What is recorded of a run that is ``transformable`` has operators that transforms have rules
    for.
    """

    def __init__(
        self,
        capture: Capturing,
        inputs: Mapping[Any, Input],
        notice: Callable[[torch.Tensor], None],
        *,
        transformable: bool,
    ) -> None:
        super().__init__()
        self.capture = capture
        self.transformable = transformable
        self.inputs = inputs
        self.notice = notice
        self.hooks: list[Hook] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` gives."""
        watched = _WATCHED.get(func) or (_body_runner if isinstance(func, HigherOrderOperator) else None)
        if watched is None:
            return func(*args, **(kwargs or {}))
        return watched(self, func, args, kwargs or {})


def _cond(watching: Watching, func: Any, args: Any, kwargs: Any) -> Any:
    """``cond``, with branches that have derivatives of any order."""
    if not is_cond(func, args):
        return func(*args, **kwargs)
    with watching:
        return choose(watching.capture, *args, **kwargs)


def _while_loop(watching: Watching, func: Any, args: Any, kwargs: Any) -> Any:
    """``while_loop``, which has derivatives of any order."""
    if not is_loop(func, args):
        return func(*args, **kwargs)
    with watching:
        return loop(watching.capture, func, *args)


def _body_runner(_: Watching, func: Any, args: Any, kwargs: Any) -> Any:
    """Another operator that runs functions; UnsupportedOperator of a loop that no graph can hold."""
    if func.__name__ in ("scan", "map_impl"):
        raise UnsupportedOperator(
            f"{func.__name__} in a program",
            where=current_line(),
            remedy="use a Python loop over sizes, while_loop or torch.cond",
        )
    return func(*args, **kwargs)


def _gradient(watching: Watching, func: Any, args: Any, kwargs: Any) -> Any:
    check_within(watching.inputs.values(), *args[:2])
    return func(*args, **kwargs)


def _split(_: Watching, func: Any, args: Any, kwargs: Any) -> Any:
    """``tensor_split``, which reads the memory of a tensor of places."""
    by_name = "tensor_indices_or_sections"
    places = kwargs[by_name] if by_name in kwargs else args[1] if len(args) > 1 else None
    if not isinstance(places, torch.Tensor):
        return func(*args, **kwargs)
    rest = {name: x for name, x in kwargs.items() if name != by_name}
    return func(args[0], places.tolist(), *args[2:], **rest)


def _hook(watching: Watching, func: Any, args: Any, kwargs: Any) -> Any:
    result = func(*args, **kwargs)
    if (variable := variable_of(args[0])) is not None:
        table = args[0]._backward_hooks
        edge = None if is_leaf(args[0]) else edge_of(args[0])
        watching.hooks.append(Hook(variable, edge, table, result.id, table[result.id]))
    return result


def _late_hook(_: Watching, func: Any, args: Any, kwargs: Any) -> Any:
    raise UnsupportedOperator(
        "the program registers a hook that runs when a gradient has been accumulated",
        where=current_line(),
        remedy="register it outside of the function, once",
    )


def _swap(watching: Watching, func: Any, args: Any, kwargs: Any) -> Any:
    """``x.data = y``, which is noticed before what is written then by others that have the history of ``x``."""
    result = func(*args, **kwargs)
    if variable_of(args[0]) is not None:
        watching.notice(args[0])
    return result


def _lstm(watching: Watching, func: Any, args: Any, kwargs: Any) -> Any:
    return run_lstm(func, args, kwargs, transformable=watching.transformable)


def _by_element(_: Watching, func: Any, args: Any, kwargs: Any) -> Any:
    check_not_by_element(func, args)
    return func(*args, **kwargs)


_WATCHED: dict[Any, Callable[[Watching, Any, Any, Any], Any]] = {
    COND: _cond,
    LOOP: _while_loop,
    STACKING: _while_loop,
    torch.autograd.grad: _gradient,
    torch.tensor_split: _split,
    torch.Tensor.tensor_split: _split,
    torch.Tensor.register_hook: _hook,
    torch.Tensor.register_post_accumulate_grad_hook: _late_hook,
    SETS_DATA: _swap,
    torch.lstm: _lstm,
    **dict.fromkeys(BY_ELEMENT, _by_element),
}
