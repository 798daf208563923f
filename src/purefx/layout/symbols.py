"""Integers that may be symbols, and the one door through which they are compared.

In go sizes, strides and offsets: plain ``int``, or a symbolic integer such as ``torch.SymInt``. Out come
plain ``bool`` answers. The module knows a symbolic value by its ``node`` alone, so the algebra needs no
torch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Protocol, TypeAlias, cast

Int: TypeAlias = int
"""A plain or symbolic integer. Declared as ``int`` because a symbolic one computes as ``int`` does."""


Condition: TypeAlias = bool
"""A plain or symbolic truth value. ``if condition`` could raise on a symbolic one: ask ``holds``."""


class _Node(Protocol):
    """What is asked of the node of a symbolic value."""

    @property
    def expr(self) -> Hashable: ...
    @property
    def hint(self) -> int | None: ...
    def guard_or_false(self, file: str, line: int) -> bool: ...
    def statically_known_true(self, file: str, line: int) -> bool: ...


class _Symbolic(Protocol):
    """A symbolic value: a handle on a node."""

    @property
    def node(self) -> _Node: ...


def _node(value: object) -> _Node:
    return cast(_Symbolic, value).node


def is_symbolic(value: object) -> bool:
    """``value`` is neither a plain ``int`` nor a plain ``bool``."""
    return not isinstance(value, int)


def holds(condition: Condition) -> bool:
    """``condition`` is true: guarded on when it is symbolic and has a hint, False when nobody can tell."""
    if condition is True or condition is False:
        return condition
    return _node(condition).guard_or_false(__file__, 0) if is_symbolic(condition) else bool(condition)


def is_certain(condition: Condition) -> bool:
    """``condition`` is true whatever its symbols stand for. Adds no guard."""
    if condition is True or condition is False:
        return condition
    return _node(condition).statically_known_true(__file__, 0) if is_symbolic(condition) else bool(condition)


def identity(value: Int) -> Hashable:
    """What ``value`` is, to be compared and hashed without a guard: an int itself, else its expression."""
    return value if type(value) is int or not is_symbolic(value) else _node(value).expr


def same(first: Int, second: Int) -> bool:
    """The two are equal whatever their symbols stand for.

    Adds no guard: trying whether a symbolic size happens to be 6 would fix it to 6 when it is.
    """
    if type(first) is int and type(second) is int:
        return first == second
    return identity(first) == identity(second) or is_certain(first == second)


def same_all(first: tuple[Int, ...], second: tuple[Int, ...]) -> bool:
    """The two tuples have the same length and entries, as by ``same``."""
    return len(first) == len(second) and all(map(same, first, second))


def hint(value: Int) -> int | None:
    """The number that ``value`` had at capture, if it had one. Adds no guard: only to guess with."""
    return _node(value).hint if is_symbolic(value) else value


def quotients(value: Int, divisor: Int) -> Iterator[Int]:
    """Guesses at ``value // divisor``, the simplest first, for the caller to verify.

    Division of symbols seldom simplifies: ``(s + 1) // s`` stays as it is, and so does what contains it.
    """
    if not is_symbolic(value) and not is_symbolic(divisor):
        yield value // divisor
        return
    yield 0
    number, by = hint(value), hint(divisor)
    if number is not None and by:
        yield number // by
        yield (value - number % by) // divisor
    yield value // divisor


def is_one(size: Int) -> bool:
    """``size`` is 1 whatever its symbols stand for."""
    return size == 1 if type(size) is int else same(size, 1)


def product(values: tuple[Int, ...]) -> Int:
    """The product of ``values``; 1 when there are none."""
    result = 1
    for value in values:
        result = result * value
    return result
