"""Systems to test the tests with: eager itself, PyTorch's compiler, and systems wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from purefx._torch import pytree
from purefx.report.observe import Function


def eager(f: Function) -> Function:
    """The function itself, which nothing can tell from eager."""
    return f


def aot(f: Function) -> Function:
    """AOTAutograd by way of torch.compile, without code generation."""
    torch._dynamo.reset()
    return torch.compile(f, backend="aot_eager", fullgraph=True)


def on_outputs(change: Callable[[Tensor], object]) -> Callable[[Function], Function]:
    """The system that is eager but for ``change``, made to each output tensor."""

    def system(f: Function) -> Function:
        def wrong(*args: object, **kwargs: object) -> object:
            return pytree.tree_map_only(Tensor, change, f(*args, **kwargs))

        return wrong

    return system


def on_arguments(change: Callable[[Tensor], object]) -> Callable[[Function], Function]:
    """The system that is eager, run on what ``change`` makes of each argument tensor."""

    def system(f: Function) -> Function:
        def wrong(*args: object, **kwargs: object) -> object:
            return f(*pytree.tree_map_only(Tensor, change, args), **kwargs)

        return wrong

    return system


def then(after: Callable[..., object]) -> Callable[[Function], Function]:
    """The system that is eager, followed by ``after`` on the arguments."""

    def system(f: Function) -> Function:
        def wrong(*args: object, **kwargs: object) -> object:
            result = f(*args, **kwargs)
            after(*args)
            return result

        return wrong

    return system
