"""purefx: functional graphs of PyTorch programs that view and write tensors, indistinguishable from eager."""

from importlib.metadata import version

from purefx import func
from purefx.analysis.metadata import collect_metadata
from purefx.api import check, compile, explain, functionalize, trace
from purefx.dynamo import backend
from purefx.errors import PurefxError, Refusal
from purefx.program import Program

__all__ = [
    "Program",
    "PurefxError",
    "Refusal",
    "backend",
    "check",
    "collect_metadata",
    "compile",
    "explain",
    "func",
    "functionalize",
    "trace",
]

__version__ = version("purefx")
