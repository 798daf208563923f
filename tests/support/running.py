"""Which operators run."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Running(TorchDispatchMode):
    """Notes the operators that run, in ``ops``."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` gives."""
        self.ops.append(func)
        return func(*args, **(kwargs or {}))

    @property
    def names(self) -> list[str]:
        """Those of the operators, as ``add.Tensor``."""
        return [str(op).removeprefix("aten.") for op in self.ops]
