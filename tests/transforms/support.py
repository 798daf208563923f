"""Nests written by hand, and the assertion that a system is right about them."""

from __future__ import annotations

from collections.abc import Iterable

from purefx.errors import TransformRefused
from tests.programs.program import Program, Statement
from tests.transforms.judge import Declined, NotConcerned, Right, Stopped, Verdict, judge
from tests.transforms.nest import Nest


def nest_of(arguments: Iterable[str], body: Iterable[str], result: str, transforms: Iterable[str]) -> Nest:
    """The program of arguments ``a``, ``b``, ... that says ``body``, under transforms from the inside."""
    named = dict(zip("abc", arguments, strict=False))
    setup = tuple(Statement(f"{name} = {text}") for name, text in named.items())
    return Nest(Program(setup, tuple(named), tuple(map(Statement, body)), result), tuple(transforms))


def assert_right(nests: Iterable[Nest], system: str = "purefx.func", *, refusals: int = 0) -> None:
    """Fail with the first program that the system is not right about, unless autograd declines it too; and count.

    It may refuse as many as ``refusals``.
    """
    verdicts = [(nest, judge(nest, system)) for nest in nests]
    wrong = [(nest, verdict) for nest, verdict in verdicts if not isinstance(verdict, Right | Declined | NotConcerned)]
    if len(wrong) > refusals or not all(_is_refusal(verdict) for _, verdict in wrong):
        nest, verdict = wrong[0]
        raise AssertionError(f"{len(wrong)} of {len(verdicts)}: {verdict}\n\n{nest.source()}")


def _is_refusal(verdict: Verdict) -> bool:
    return isinstance(verdict, Stopped) and isinstance(verdict.error, TransformRefused)
