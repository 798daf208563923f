"""purefx: functional graphs of PyTorch programs that view and write tensors, indistinguishable from eager."""

from purefx.api import compile, functionalize, trace  # noqa: A004
from purefx.errors import PurefxError, Refusal
from purefx.program import Program

__all__ = ["Program", "PurefxError", "Refusal", "compile", "functionalize", "trace"]
