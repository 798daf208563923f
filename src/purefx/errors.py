"""The errors of purefx: one class per kind, each with what happened, where in the user's code, and what to do.

A program that cannot be compiled faithfully is refused (`Refusal`) when it is captured, before any argument is
touched.  An error that eager PyTorch would raise is not wrapped: the same error leaves purefx.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"

    @property
    def trace(self) -> str:
        """It as a line of a traceback, with the source that is there."""
        source = linecache.getline(self.file, self.line).strip()
        return f'  File "{self.file}", line {self.line}, in {self.function}\n' + (f"    {source}\n" if source else "")

    @classmethod
    def parsed(cls, text: str) -> SourceLine | None:
        """The line that is spelled ``text``; None of no such text."""
        place, _, function = text.partition(" in ")
        file, _, number = place.rpartition(":")
        return cls(file, int(number), function) if number.isdigit() else None


class PurefxError(Exception):
    """The root of every error that purefx itself raises."""


class Refusal(PurefxError):
    """The program cannot be compiled faithfully: what happened, where, and what to do instead."""

    def __init__(self, what: str, *, where: SourceLine | None, remedy: str) -> None:
        place = "" if where is None else f"\n  at {where}"
        super().__init__(f"{what}{place}\n  instead: {remedy}")
        self.what = what
        self.where = where
        self.remedy = remedy


class DataDependentControlFlow(Refusal):
    """Python asked for the value of a tensor that exists only when the program runs."""


class UnknownArgumentType(Refusal):
    """An argument is neither a tensor, nor a module, nor a value that can be compared."""


class UnknownOutputType(Refusal):
    """The program returns an object that cannot be made again at each call."""


class GlobalStateChanged(Refusal):
    """The program leaves a global setting of PyTorch (seed, default dtype) in another state than it found it in."""


class AutocastChanged(GlobalStateChanged):
    """The program leaves autocast in another state than it found it in."""


class InvisibleAliasing(Refusal):
    """An argument whose memory cannot be seen, so that nobody could tell whom it aliases."""


class UndeclaredWrite(Refusal):
    """An operator changed an argument, or returned it, although its schema does not say so."""


class GradientsRefused(Refusal):
    """What the program, or its caller, does with gradients is not kept."""


class TransformRefused(Refusal):
    """A transform (vmap, grad, jvp) cannot be kept for this program, or for this call."""


class UnsupportedTensor(Refusal):
    """A tensor whose memory is not strided: sparse, quantised, nested or opaque."""


class UnsupportedOperator(Refusal):
    """An operator that cannot be run on fake tensors, or whose effect has no functional form."""


class EscapedState(Refusal):
    """The program stored a tensor of the capture in an object that outlives the call."""


class BackendFailed(PurefxError):
    """The compiler given as ``backend`` raised, or returned something that cannot be called."""


class ImpureGraph(PurefxError):
    """A graph that was promised to be functional is not: a defect of purefx, never of the program."""
