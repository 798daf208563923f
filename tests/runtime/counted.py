"""A compiled function that counts its captures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import purefx


class Counted:
    """``function`` compiled, and how many captures its calls have made."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.captures = 0
        self._compiled = purefx.compile(function, self._backend)

    def _backend(self, module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        self.captures += 1
        return module.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled function."""
        return self._compiled(*args, **kwargs)
