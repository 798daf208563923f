"""Running an operator on fakes: its fake kernel, and what that leaves out of what eager's kernels do.

Eager refuses some writes, restrides what it has resized, and counts what a list operator writes.  Where a fake kernel
raises, eager's own error is raised in its place; where eager raises none, the operator is refused.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from purefx._torch import OpOverload, below_forward_mode, in_forward_mode, running_fake_kernels
from purefx.capture.effects import (
    count_list_writes,
    keep_geometry,
    restride_resized,
    shown_by_out,
    written_arguments,
    written_tensors,
)
from purefx.capture.frames import current_line
from purefx.capture.given import Given
from purefx.capture.kernels import FakeKernels
from purefx.capture.recording import Operands, operands_of
from purefx.capture.rehearsal import needs_rehearsal, rehearse, rehearse_dtypes, rehearse_error, rehearse_view
from purefx.capture.translation import NEEDS_DATA
from purefx.errors import UnsupportedOperator
from purefx.operators import Facts, aten, facts


def run_on_fakes(kernels: FakeKernels, func: OpOverload, known: Facts, given: Given) -> Any:
    """What ``func`` returns for fakes; raises what eager's own kernels raise."""
    if func is aten.view.default:
        rehearse_view(*given.passed[0])
    written = operands_of(written_arguments(func, *given.recorded)) if known.written else ()
    if written:
        return _run_writing(kernels, func, given, written)
    rehearse_dtypes(func, given)
    return _run_kernel(kernels, func, given)


def _run_writing(kernels: FakeKernels, func: OpOverload, given: Given, written: Operands) -> Any:
    """What ``func`` returns, which writes the operands ``written``."""
    if needs_rehearsal(func, given.operands, written):
        rehearse(func, *given.recorded)
    rehearse_dtypes(func, given)
    shown = shown_by_out(func, *given.passed)
    with running_fake_kernels(written_tensors(func, *given.passed)):
        result = _run_kernel(kernels, func, given)
    count_list_writes(func, *given.passed)
    if _has_grown(func, given, written):
        rehearse_error(func, *given.recorded)
    if any(before.is_resized for before in shown):
        restride_resized(func, *given.passed)
    keep_geometry(shown)
    return result


def _run_kernel(kernels: FakeKernels, func: OpOverload, given: Given) -> Any:
    """What the fake kernel of ``func`` returns; raises what eager's raises."""
    try:
        with below_forward_mode() if in_forward_mode() else nullcontext():
            return kernels.run(func, given.passed, given.recorded)
    except NEEDS_DATA:
        raise
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError) as error:
        if rehearse_error(func, *given.recorded) or _needs_numbers(error):  # eager does it
            raise UnsupportedOperator(
                f"{func} cannot run on fake tensors: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
                where=current_line(),
                remedy="wrap the call in a torch.library.custom_op with a fake implementation",
            ) from error
        raise


def _needs_numbers(error: Exception) -> bool:
    """Whether a fake kernel says that it takes no sizes that are symbols."""
    return any(told in str(error) for told in ("with symbolic sizes", "only concrete integers"))


def _has_grown(op: OpOverload, given: Given, before: Operands) -> bool:
    """Whether a fake kernel has resized what an in-place operator writes: eager's refuses to."""
    if facts(op).out or facts(op).writes_geometry:
        return False
    return any(
        x.dim() != o.region.geometry.rank or (o.region.geometry.is_static and tuple(x.shape) != o.region.geometry.sizes)
        for x, o in zip(written_tensors(op, *given.passed), before, strict=True)
    )
