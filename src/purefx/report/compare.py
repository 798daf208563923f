"""Two observations side by side: which facts of a call are not the same in a system as in eager.

Elements of floating dtypes agree within what fits the dtype; everything else has to be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from purefx.report.observe import Elements, Fact, Name, Observation, Raised


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that is not the same; None where that side has no such fact at all."""

    what: Name
    eager: Fact | None
    system: Fact | None

    def __str__(self) -> str:
        eager, system = ("not there" if fact is None else str(fact) for fact in (self.eager, self.system))
        return f"{self.what}\n    eager     {eager}\n    compiled  {system}"


@dataclass(frozen=True, slots=True)
class _Tolerance:
    rtol: float
    atol: float


_TOLERANCES: Mapping[torch.dtype, _Tolerance] = {
    torch.float16: _Tolerance(1e-2, 1e-3),
    torch.bfloat16: _Tolerance(2e-2, 1e-2),
    torch.float32: _Tolerance(1e-5, 1e-6),
    torch.complex64: _Tolerance(1e-5, 1e-6),
    torch.float64: _Tolerance(1e-10, 1e-12),
    torch.complex128: _Tolerance(1e-10, 1e-12),
}
_VIEWS = (
    "Alias Diagonal Expand Imag Permute Real Select Slice Split SplitWithSizes Squeeze T Transpose Unbind "
    "Unfold Unsqueeze View ViewAsComplex ViewAsReal"
)
_VIEW_NODES = frozenset(f"{view}Backward{n}" for view in _VIEWS.split() for n in range(4))


_ERROR = Name("call", "error type")
_MESSAGE = Name("call", "error message")


def compare(
    expected: Observation, actual: Observation, *, rtol: float | None = None, atol: float | None = None
) -> tuple[Difference, ...]:
    """The facts of ``expected`` (eager) and ``actual`` (a system) that are not the same, in eager's order.

    ``rtol`` and ``atol`` replace what fits each floating dtype; other dtypes must agree exactly. Where a side
    raised, only the errors are compared: that side has no results, and eager has run half of the program.
    """
    eager, system = expected.facts, actual.facts
    if _ERROR in eager or _ERROR in system:
        eager, system = _only_errors(eager), _only_errors(system)
    pairs = ((name, eager.get(name), system.get(name)) for name in {**eager, **system})
    return tuple(Difference(*pair) for pair in pairs if not _agree(*pair, rtol=rtol, atol=atol))


def _only_errors(facts: Mapping[Name, Fact]) -> Mapping[Name, Fact]:
    return {_ERROR: facts.get(_ERROR, "none"), _MESSAGE: facts.get(_MESSAGE, "")}


def _agree(name: Name, eager: Fact | None, system: Fact | None, *, rtol: float | None, atol: float | None) -> bool:
    match eager, system:
        case Elements(expected), Elements(actual):
            return _close(expected, actual, rtol, atol)
        case Raised(expected_type), Raised(actual_type):
            return expected_type == actual_type
        case str(expected_node), str(actual_node) if name.aspect == "grad_fn":
            return _same_history(expected_node, actual_node)
        case _:
            return eager == system


def _same_history(expected: str, actual: str) -> bool:
    """Equal nodes; but of a computed value a caller can only expect that there is some node.

    Rule: a node of a view op is kept, any other may be another. ``x[0]`` must say SelectBackward0 to whoever
    reads it, as that decides what a later write does; ``x + 1`` has the node of the compiled program, not
    AddBackward0.
    """
    return expected == actual or ("None" not in (expected, actual) and expected not in _VIEW_NODES)


def _close(expected: Tensor, actual: Tensor, rtol: float | None, atol: float | None) -> bool:
    if expected.shape != actual.shape or expected.dtype != actual.dtype or expected.device != actual.device:
        return False
    fitting = _TOLERANCES.get(expected.dtype)
    if fitting is None:
        return torch.equal(expected, actual)
    return torch.allclose(
        actual,
        expected,
        rtol=fitting.rtol if rtol is None else rtol,
        atol=fitting.atol if atol is None else atol,
        equal_nan=True,
    )
