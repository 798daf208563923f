"""Methods of storages that read or move the bytes of memory in Python, past the dispatcher: fakes have none.

Of a fake, ``x.untyped_storage().byteswap(x.dtype)`` reads an address that is none, which ends the process.  Sizes and
``resize_`` are known, and what writes by operators (``copy_``, ``fill_``, an index of bytes) is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from purefx.capture.frames import current_line
from purefx.errors import DataDependentControlFlow

_READING = (
    "__getitem__", "__copy__", "__deepcopy__", "tolist", "clone", "to", "cpu", "type", "share_memory_", "pin_memory",
    "double", "float", "half", "bfloat16", "long", "int", "short", "char", "byte", "bool",
)  # fmt: skip
BY_BYTE: dict[type, tuple[str, ...]] = {
    torch.UntypedStorage: (*_READING, "byteswap"),
    torch.TypedStorage: (*_READING, "__setitem__", "fill_"),  # which make a tensor of their own by an address
}
"""Such methods, by the class that Python finds them in."""


def refusing(kind: type, name: str) -> Callable[..., Any]:
    """The method ``name`` of storages of ``kind``, which raises DataDependentControlFlow where there are no bytes."""
    own = getattr(kind, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "meta":
            return own(self, *args, **kwargs)
        raise DataDependentControlFlow(
            f"{kind.__name__}.{name} reads or moves the bytes of memory in Python",
            where=current_line(),
            remedy="use operators on a tensor that shows them: x.view(torch.uint8), x.clone(), x.tolist()",
        )

    return method
