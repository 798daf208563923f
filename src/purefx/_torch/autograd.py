"""Autograd: the histories of views, hooks on what is saved, the backward that runs, forward-mode AD."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
import torch._functorch.utils as functorch_utils  # what each call of a function of the user's goes through
import torch.utils._pytree as pytree  # the flattening of what a node has saved
from torch._functorch import eager_transforms  # knows whether a level of forward-mode AD is open
from torch.autograd import forward_ad  # has the level that is open
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from purefx._torch.tensors import counting_with


def copy_view_rules(fake: torch.Tensor, tensor: torch.Tensor) -> None:
    """Let the view ``fake`` be written to in place where ``tensor`` may be: not a piece of ``unbind``, for one.

    How a view was made decides that; PyTorch keeps it in a field without a public name.
    """
    if fake._is_view() and not fake.is_inference():
        torch._C._autograd._set_creation_meta(fake, torch._C._autograd._get_creation_meta(tensor))


def view_rules(tensor: torch.Tensor) -> Any:
    """What decides whether the view ``tensor`` may be written to (see `copy_view_rules`)."""
    return torch._C._autograd._get_creation_meta(tensor)


def is_piece(view: torch.Tensor) -> bool:
    """Whether ``view`` is one of several that one operator returned, as those of ``unbind``."""
    return view._is_view() and view_rules(view) == torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE


def is_from_function(view: torch.Tensor) -> bool:
    """Whether ``view`` was returned by a function of the user's, so that autograd cannot make its history anew."""
    return view._is_view() and view_rules(view) == torch._C._autograd.CreationMeta.IN_CUSTOM_FUNCTION


@contextmanager
def before_functions(prepare: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Call ``prepare`` of each tensor that a function of the user's is applied to, before autograd looks at it.

    ``Function.apply`` calls no override, and may have been bound long before (``f = F.apply``); but it looks up what
    unwraps tensors of transforms that are over, and calls that first.
    """
    former = functorch_utils.unwrap_dead_wrappers

    def unwrap(args: tuple[Any, ...]) -> tuple[Any, ...]:
        for x in args:
            if isinstance(x, torch.Tensor):
                prepare(x)
        return former(args)

    functorch_utils.unwrap_dead_wrappers = unwrap
    try:
        yield
    finally:
        functorch_utils.unwrap_dead_wrappers = former


def accumulates() -> bool:
    """Whether the backward that runs adds up gradients at all leaves, and was not asked for those of some tensors."""
    valid: bool = torch.autograd._is_checkpoint_valid()  # type: ignore[no-untyped-call]  # it has no types
    return valid


def keeps_graph() -> bool:
    """Whether the backward that runs may be asked to run once more (``retain_graph=True``)."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Take off the hooks that the caller has set on what autograd saves: they are for the call, not for its capture."""
    hooks = []
    ignore_is_tracing = False
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(ignore_is_tracing)) is not None:
        hooks.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


READS_HISTORY: Callable[..., Any] = vars(torch._C.TensorBase)["grad_fn"].__get__
"""What a mode for torch functions sees where a program asks for ``x.grad_fn``."""


READS_DATA: Callable[..., Any] = vars(torch._C.TensorBase)["data"].__get__
"""What a mode for torch functions sees where a program asks for ``x.data``."""
SETS_DATA: Callable[..., Any] = vars(torch._C.TensorBase)["data"].__set__
"""What a mode for torch functions sees where a program does ``x.data = y``."""


def saved_by(node: Node) -> list[torch.Tensor]:
    """What ``node`` has saved, but for what hooks have packed: it looks at the versions of all when it runs."""
    saved = pytree.tree_leaves([getattr(node, name) for name in _names_of_saved(type(node))])
    found = [each.data for each in saved if each.unpack_hook is None]
    return [tensor for tensor in found if isinstance(tensor, torch.Tensor)]


def kept_by(nodes: Sequence[Any]) -> list[torch.Tensor]:
    """What functions of the user's that ``nodes`` are keep as attributes of their ``ctx``, and no node has saved.

    Autograd knows nothing of it, and looks at no version: the backward reads what is there then.
    """
    functions = [node for node in nodes if isinstance(node, BackwardCFunction)]
    attributes: list[Any] = pytree.tree_leaves([vars(node) for node in functions])
    kept = [x for x in attributes if isinstance(x, torch.Tensor)]
    if not kept:
        return []
    saved: list[Any] = [x for node in functions for x in saved_apart(node) or ()]
    saved = [x for x in (*saved, *(x for node in nodes for x in saved_by(node))) if x is not None]
    return [x for x in kept if not counting_with(x, saved)]


def saved_apart(ctx: Any) -> list[torch.Tensor] | None:
    """What the function of ``ctx`` has saved, with no look at versions; None where hooks have packed it.

    ``ctx.saved_tensors`` looks at those of all; what a backward reads may be less.
    """
    saved = ctx._raw_saved_tensors
    return None if any(each.unpack_hook is not None for each in saved) else [each.data for each in saved]


def is_written(ctx: Any, place: int) -> bool:
    """Whether what the function of ``ctx`` has saved at ``place``, none of its results, was written since."""
    try:
        ctx._raw_saved_tensors[place].unpack()
    except RuntimeError:
        return True
    return False


@cache
def _names_of_saved(kind: type) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_raw_saved_") and not issubclass(kind, BackwardCFunction)]


def has_saved_tensor_hooks() -> bool:
    """Whether hooks are set on what autograd saves."""
    ignore_is_tracing = False
    return torch._C._autograd._top_saved_tensors_default_hooks(ignore_is_tracing) is not None


def in_forward_mode() -> bool:
    """Whether a level of forward-mode AD is open."""
    return forward_ad._current_level >= 0


def plain_have_tangents() -> bool:
    """Whether a tensor that no transform has wrapped may have a tangent: ``torch.func.jvp`` has its own in wrappers.

    PyTorch has one level, which either the user or ``torch.func.jvp`` has opened; a counter of its tells who.
    """
    return forward_ad._current_level >= 0 and not eager_transforms.JVP_NESTING


@contextmanager
def seeing_backwards(mode: TorchFunctionMode) -> Iterator[None]:
    """Let ``mode`` see what this thread's backwards call: hooks, functions' own backwards, what checkpoints run again.

    A mode is put aside while a function runs that it has seen, and ``torch.autograd.grad`` is one.
    """
    functions: Any = torch.autograd
    thread, run = threading.get_ident(), functions._engine_run_backward

    def seen(*args: Any, **kwargs: Any) -> Any:
        with mode if threading.get_ident() == thread else nullcontext():
            return run(*args, **kwargs)

    functions._engine_run_backward = seen
    try:
        yield
    finally:
        functions._engine_run_backward = run


@contextmanager
def below_forward_mode() -> Iterator[None]:
    """Let fake kernels be: what prints a tensor asks for its tangent, of which nothing is known below autograd.

    PyTorch prints the operands of an operator whose overload it looks for.
    """
    level, forward_ad._current_level = forward_ad._current_level, -1
    try:
        yield
    finally:
        forward_ad._current_level = level


def without_tangents() -> AbstractContextManager[None]:
    """Switch forward-mode AD off, as `torch.no_grad` switches off reverse mode; public it is not."""
    return torch.autograd.forward_ad._set_fwd_grad_enabled(mode=False)


def tangent_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tangent of ``tensor`` in forward-mode AD, which has one level; None if it has none.

    An inference tensor has none, and must not be asked.  What is public does the same, and takes four times as long.
    """
    if forward_ad._current_level < 0 or tensor.is_inference():
        return None
    tangent: torch.Tensor | None = torch._C._VariableFunctions._unpack_dual(tensor, level=0)[1]
    return tangent


def primal_of(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` without its tangent in forward-mode AD; itself, if it has none."""
    if forward_ad._current_level < 0 or tangent_of(tensor) is None:
        return tensor
    primal: torch.Tensor = torch.autograd.forward_ad.unpack_dual(tensor).primal  # type: ignore[no-untyped-call]
    return primal


def carried_value(name: str) -> Any:
    """What this thread, or the one whose backward it runs, has set under ``name``; None if nothing.

    Values of `threading.local` do not reach the threads of a backward.
    """
    return torch._C._get_obj_in_tls(name) if torch._C._is_key_in_tls(name) else None


def set_carried_value(name: str, value: Any) -> None:
    """Set what `carried_value` gives; None takes it away."""
    if value is not None:
        torch._C._stash_obj_in_tls(name, value)
    elif torch._C._is_key_in_tls(name):
        torch._C._remove_obj_from_tls(name)
