"""Fake tensors that look like what a functional graph takes and computes: what compilers ask for."""

from __future__ import annotations

from typing import Any, assert_never

from purefx.capture.captured import Capture
from purefx.capture.fakes import fake_like
from purefx.capture.recording import Region
from purefx.functional.builder import Value
from purefx.functional.signature import GraphInput, ResidualInput, RootInput, SymbolInput, TangentInput


def example_of(capture: Capture, given: GraphInput) -> Any:
    """A fake tensor, or a symbol, that looks like the graph input ``given``."""
    match given:
        case RootInput(_, root):
            return fake_like(root.region, capture.fake_mode)
        case TangentInput(_, _, region):
            return fake_like(region, capture.fake_mode)
        case SymbolInput(_, symbol):
            return _number(capture, symbol)
        case ResidualInput(_, value, symbol):
            return _number(capture, symbol) if value is None else example_of_value(capture, value)
        case _:
            assert_never(given)


def _number(capture: Capture, expression: Any) -> Any:
    """A symbolic number; that of an expression without numbers read out of tensors has the value of the capture."""
    hint = expression.xreplace(capture.env.backed_var_to_val)
    if not expression.is_integer:
        return capture.env.create_symfloatnode(expression, hint=float(hint) if hint.is_number else None)
    return capture.env.create_symintnode(expression, hint=int(hint) if hint.is_number else None)


def example_of_value(capture: Capture, value: Value) -> Any:
    """A fake tensor that looks like ``value``."""
    storages = capture.recording.storages
    return fake_like(Region(storages[0], value.geometry, value.dtype), capture.fake_mode)
