"""Methods of tensors that call a function of Python for each element, in memory that fakes do not have.

Of a fake, ``x.apply_(lambda v: v + 1)`` reads an address that is none, which ends the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from purefx._torch import is_functorch_wrapped
from purefx.capture.frames import current_line
from purefx.errors import DataDependentControlFlow

BY_ELEMENT: dict[Callable[..., Any], int] = {torch.Tensor.apply_: 2, torch.Tensor.map_: 3, torch.Tensor.map2_: 4}
"""Such methods, and how many arguments each takes with the tensor."""


def check_not_by_element(func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Raise DataDependentControlFlow where ``func`` would call Python for each element.

    Where PyTorch refuses by itself, it does: with other arguments, with gradients, under a transform.
    """
    if BY_ELEMENT.get(func) == len(args) and not args[0].requires_grad and not is_functorch_wrapped(args[0]):
        raise DataDependentControlFlow(
            f"{func.__name__} calls a function of Python for each element of a tensor",
            where=current_line(),
            remedy="use the operators of torch (torch.where, masks), or wrap the call in a torch.library.custom_op",
        )
