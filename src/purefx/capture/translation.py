"""From what fake tensors raise to refusals that a user can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from purefx._torch import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from purefx.capture.frames import raising_line
from purefx.errors import DataDependentControlFlow, GradientsRefused, UnsupportedOperator

NEEDS_DATA = (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException)
_HAS_NO_FAKE = (UnsupportedOperatorException, UnsupportedFakeTensorException)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn the errors of fake tensors into refusals with the user's line; let the program's own errors through."""
    try:
        yield
    except NEEDS_DATA as error:
        raise DataDependentControlFlow(
            "Python needs a number that is in a tensor:"
            " in if, while, int(), bool(), range(), or an operator's argument",
            where=raising_line(error.__traceback__),
            remedy="express the choice with tensors (torch.where, masks, torch.cond; index_copy_ for a row),"
            " or compile the parts around it",
        ) from error
    except _HAS_NO_FAKE as error:
        raise UnsupportedOperator(
            f"{error} cannot run on fake tensors",
            where=raising_line(error.__traceback__),
            remedy="register a fake implementation (torch.library.register_fake)",
        ) from error
    except RuntimeError as error:
        _translate_runtime_error(error)
        raise


def _translate_runtime_error(error: RuntimeError) -> None:
    """PyTorch has no error classes for these."""
    text = str(error)
    if "has_fw_view()" in text:
        raise UnsupportedOperator(
            "forward-mode AD of a view whose sizes depend on the values of tensors",
            where=raising_line(error.__traceback__),
            remedy="use masks of the full size (torch.where) in the place of x[mask] and nonzero, or copy it (clone)",
        ) from error
    if "no fake impl registered" in text:
        raise UnsupportedOperator(
            text.splitlines()[0],
            where=raising_line(error.__traceback__),
            remedy="register a fake implementation (torch.library.register_fake)",
        ) from error
    if "modify sizes for customized tensor" in text:
        raise UnsupportedOperator(
            "resize_ of a tensor with symbolic sizes",
            where=raising_line(error.__traceback__),
            remedy="trace the function without dynamic=True",
        ) from error
    if "new_fn INTERNAL ASSERT" in text:  # autograd makes the history of a view anew, of a base without any
        raise GradientsRefused(
            "a view is used whose base was written and then detached (detach_)",
            where=raising_line(error.__traceback__),
            remedy="detach first, or take a new view of it after detach_()",
        ) from error
    if "numpy() is not supported for tensor subclasses" in text:
        raise DataDependentControlFlow(
            "the program turns a tensor into a NumPy array",
            where=raising_line(error.__traceback__),
            remedy="use the operators of torch, or wrap the function in a torch.library.custom_op",
        ) from error
