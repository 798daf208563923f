"""Global state of PyTorch around a run: what a program may change, what it may not, and putting it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from purefx._torch import autocast_state, restore_autocast
from purefx.errors import AutocastChanged, GlobalStateChanged


@dataclass(frozen=True, slots=True)
class Ambient:
    """What the results of operators depend on besides their operands: autocast, and the default dtype."""

    autocast: Any
    dtype: torch.dtype

    @classmethod
    def present(cls) -> Ambient:
        """As it is now."""
        return cls(autocast_state(), torch.get_default_dtype())

    @contextmanager
    def restored(self) -> Iterator[None]:
        """As it was, for the time of a block."""
        present = Ambient.present()
        self._set()
        try:
            yield
        finally:
            present._set()

    def _set(self) -> None:
        restore_autocast(self.autocast)
        torch.set_default_dtype(self.dtype)


@contextmanager
def unchanged_globals() -> Iterator[list[bool]]:
    """Leave grad mode, autocast, default dtype and random state as they are found, whatever happens inside.

    A changed grad mode is the program's effect, and is put into the yielded list.  Anything else is refused.
    """
    grad, autocast, dtype, seed = (
        torch.is_grad_enabled(),
        autocast_state(),
        torch.get_default_dtype(),
        torch.get_rng_state(),
    )
    grad_after: list[bool] = []
    try:
        yield grad_after
        grad_after.append(torch.is_grad_enabled())
        if autocast_state() != autocast:
            raise AutocastChanged(
                "the program leaves autocast in another state than it found it in",
                where=None,
                remedy="use autocast as a context manager that ends inside the function",
            )
        if torch.get_default_dtype() != dtype:
            raise GlobalStateChanged(
                "the program leaves another default dtype", where=None, remedy="pass dtype= where tensors are made"
            )
    finally:
        torch.set_grad_enabled(grad)
        restore_autocast(autocast)
        torch.set_default_dtype(dtype)
        torch.set_rng_state(seed)
