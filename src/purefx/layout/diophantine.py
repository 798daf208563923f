"""Bounded linear equations: whether ``sum(coefficient * x) == total`` has a solution in small integers.

Overlap of strided tensors is such a question, and hard in general. Real layouts are not: after terms that
fill a run are joined, bounds and greatest common divisors leave next to nothing to search. Plain integers
only.
"""

from __future__ import annotations

from math import gcd
from typing import TypeAlias

Term: TypeAlias = tuple[int, int]
"""``(coefficient, bound)``: a coefficient, not below 0, and the greatest value of its unknown."""


def joined(terms: list[Term]) -> list[Term]:
    """Fewer terms that reach the same sums, greatest coefficient first.

    ``a*x + k*a*y`` with ``x <= m``, ``y <= n`` reaches every multiple of ``a`` up to ``m + k*n`` when ``k <=
    m + 1``.
    """
    result: list[Term] = []
    for coefficient, bound in sorted(terms):
        if not coefficient or not bound:
            continue
        if result:
            small, reach = result[-1]
            times, rest = divmod(coefficient, small)
            if not rest and times <= reach + 1:
                result[-1] = (small, reach + times * bound)
                continue
        result.append((coefficient, bound))
    return result[::-1]


def has_solution(terms: list[Term], total: int) -> bool:
    """Some ``0 <= x[i] <= bound[i]`` give ``sum(coefficient[i] * x[i]) == total``. Exact."""
    terms = joined(terms)
    reaches = [0]
    divisors = [0]
    for coefficient, bound in reversed(terms):
        reaches.append(reaches[-1] + coefficient * bound)
        divisors.append(gcd(divisors[-1], coefficient))
    return _Search(terms, reaches[::-1], divisors[::-1]).solves(0, total)


class _Search:
    """A depth-first search over the terms, greatest coefficient first, that tries no sum twice.

    ``reaches[i]`` and ``divisors[i]`` are the greatest sum and the common divisor of the terms from ``i`` on.
    Invariant: ``_dead`` holds only pairs (term, total) that were searched and have no solution.
    """

    def __init__(self, terms: list[Term], reaches: list[int], divisors: list[int]) -> None:
        self.terms = terms
        self.reaches = reaches
        self.divisors = divisors
        self._dead: set[tuple[int, int]] = set()

    def solves(self, first: int, total: int) -> bool:
        """The terms from ``first`` on reach ``total``."""
        if total <= 0 or total >= self.reaches[first]:
            return total in (0, self.reaches[first])
        if total % self.divisors[first]:
            return False
        left = len(self.terms) - first
        if left == 1:
            return True
        if left == 2:
            return solves_two(self.terms[first], self.terms[first + 1], total)
        if (first, total) in self._dead:
            return False
        if any(self.solves(first + 1, rest) for rest in self._rests(first, total)):
            return True
        self._dead.add((first, total))
        return False

    def _rests(self, first: int, total: int) -> range:
        """What may remain of ``total`` after term ``first``: divisible, and in reach of those after it."""
        coefficient, bound = self.terms[first]
        low = max(0, -((self.reaches[first + 1] - total) // coefficient))
        high = min(bound, total // coefficient)
        stride = self.divisors[first + 1] // self.divisors[first]
        if stride > 1:
            unit = self.divisors[first]
            wanted = total // unit * pow(coefficient // unit, -1, stride) % stride
            low += (wanted - low) % stride
        return range(total - low * coefficient, total - high * coefficient - 1, -stride * coefficient)


def solves_two(first: Term, second: Term, total: int) -> bool:
    """``first`` and ``second`` reach ``total``: one residue class, met with one interval."""
    (a, most_a), (b, most_b) = first, second
    unit = gcd(a, b)
    if total % unit:
        return False
    low = max(0, -((most_b * b - total) // a))
    high = min(most_a, total // a)
    stride = b // unit
    wanted = total // unit * pow(a // unit, -1, stride) % stride if stride > 1 else 0
    return low + (wanted - low) % stride <= high


def has_double(terms: list[Term]) -> bool:
    """Two different choices of the unknowns give one sum. Exact; a coefficient may be 0.

    Their difference is a choice of ``-bound <= x <= bound``, not all 0, that sums to 0; the first that is not
    0 may be taken above 0.
    """
    live = sorted((term for term in terms if term[1]), reverse=True)
    if any(not coefficient for coefficient, _ in live):
        return True
    if nests(live):
        return False
    for place, (coefficient, bound) in enumerate(live):
        later = [(other, 2 * most) for other, most in live[place + 1 :]]
        shift = sum(other * most for other, most in live[place + 1 :])
        if has_solution([(coefficient, bound - 1), *later], shift - coefficient):
            return True
    return False


def nests(descending: list[Term]) -> bool:
    """Each coefficient exceeds what all the smaller ones reach together, so that sums are digits."""
    reach = 0
    for coefficient, bound in reversed(descending):
        if coefficient <= reach:
            return False
        reach += coefficient * bound
    return True
