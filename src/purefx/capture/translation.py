"""From what fake tensors raise to refusals that a user can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from purefx._torch import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from purefx.capture.frames import raising_line
from purefx.errors import (
    DataDependentControlFlow,
    GradientsRefused,
    Refusal,
    UnsupportedOperator,
    UnsupportedTensor,
)

NEEDS_DATA = (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException)
_REGISTER = "register a fake implementation (torch.library.register_fake)"
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
            remedy=_REGISTER,
        ) from error
    except (RuntimeError, TypeError, IndexError) as error:
        _translate(error)
        raise


@dataclass(frozen=True, slots=True)
class _Known:
    """An error for which PyTorch has no class of its own, and the refusal that it amounts to.

    ``what`` is None where the first line of the error says it.
    """

    text: str
    refusal: type[Refusal]
    what: str | None
    remedy: str


_KNOWN = (
    _Known("no fake impl registered", UnsupportedOperator, None, _REGISTER),
    _Known(
        "has_fw_view()",
        UnsupportedOperator,
        "forward-mode AD of a view whose sizes depend on the values of tensors",
        "use masks of the full size (torch.where) in the place of x[mask] and nonzero, or copy it (clone)",
    ),
    _Known(
        "modify sizes for customized tensor",
        UnsupportedOperator,
        "resize_ of a tensor with symbolic sizes",
        "trace the function without dynamic=True",
    ),
    _Known(  # autograd makes the history of a view anew, of a base without any
        "new_fn INTERNAL ASSERT",
        GradientsRefused,
        "a view is used whose base was written and then detached (detach_)",
        "detach first, or take a new view of it after detach_()",
    ),
    _Known(
        "numpy() is not supported for tensor subclasses",
        DataDependentControlFlow,
        "the program turns a tensor into a NumPy array",
        "use the operators of torch, or wrap the function in a torch.library.custom_op",
    ),
    _Known(
        "len() of a 0-d tensor",
        DataDependentControlFlow,
        "Python asks how long a tensor without dimensions is, as torch.tensor([x.sum(), y]) does",
        "torch.stack([x.sum(), y])",
    ),
    _Known(
        "got FakeTensor",
        DataDependentControlFlow,
        "Python needs a number that is in a tensor: in the sizes of another",
        "x.item(), or compile the parts around it",
    ),
    _Known(
        "valid indices (got SymInt)",
        DataDependentControlFlow,
        "a tensor is indexed by a number that is in a tensor, together with index tensors, lists or masks",
        "index by a tensor with one element, or in two steps: x[n][mask]",
    ),
    _Known(
        "is already associated to a python object of type FakeTensor",
        UnsupportedTensor,
        "the program makes a tensor of another class out of a tensor (as_subclass, a lazy or a new parameter)",
        "make it outside, and pass the plain tensors that it holds",
    ),
    _Known(
        "because it has weakref associated with it",
        UnsupportedOperator,
        "the program swaps two tensors (swap_tensors, module.to() of another dtype)",
        "do it outside, or use copy_",
    ),
    _Known(
        "_apply(): Couldn't swap",
        UnsupportedOperator,
        "the program converts a module to another dtype or device",
        "convert it outside, or compute with converted parameters (torch.func.functional_call)",
    ),
)


def _translate(error: Exception) -> None:
    """Raise the refusal that ``error`` amounts to, if it is known to amount to one."""
    text = str(error)
    for known in _KNOWN:
        if known.text in text:
            what = text.splitlines()[0] if known.what is None else known.what
            raise known.refusal(what, where=raising_line(error.__traceback__), remedy=known.remedy) from error
