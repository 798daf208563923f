"""The one oracle of the test-suite: eager. A system must not be told from it by anything a caller can see."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from purefx.report.check import differences_of_second_call
from purefx.report.compare import Difference, compare
from purefx.report.observe import Arguments, Function, Observation, observe

System = Callable[[Function], Function]
MakeArguments = Callable[[], Arguments | tuple[object, ...]]
NOTHING_IGNORED: frozenset[str] = frozenset()


def assert_same_as_eager(
    f: Function,
    make_arguments: MakeArguments,
    *,
    system: System,
    ignore: frozenset[str] = NOTHING_IGNORED,
    probes: bool = True,
) -> None:
    """Fail with every difference and the program if ``system(f)`` can be told from ``f``.

    ``make_arguments`` returns fresh, equal arguments each time. The second call must be as right as the
    first.
    ``ignore`` holds aspects, such as ``{"version"}``, that a test has a reason not to compare.
    """
    found = differences_from_eager(f, make_arguments, system=system, ignore=ignore, probes=probes)
    if found:
        lines = "\n".join(f"  {difference}" for difference in found)
        raise AssertionError(f"{len(found)} differences from eager:\n{lines}\n\nthe program:\n\n{source_of(f)}")


def differences_from_eager(
    f: Function,
    make_arguments: MakeArguments,
    *,
    system: System,
    ignore: frozenset[str] = NOTHING_IGNORED,
    probes: bool = True,
) -> tuple[Difference, ...]:
    """All differences, at the first call with its probes and at a second call of the same callable."""
    expected = observe(f, make_arguments, probes=probes)
    compiled = _compiled(system, f)
    first = observe(compiled, make_arguments, probes=probes)
    second = observe(compiled, make_arguments, probes=False)
    found = _differences(expected, first, second)
    return tuple(difference for difference in found if difference.what.aspect not in ignore)


def _differences(expected: Observation, first: Observation, second: Observation) -> tuple[Difference, ...]:
    return compare(expected, first) + differences_of_second_call(expected, second)


def _compiled(system: System, f: Function) -> Function:
    """``system(f)``; a refusal to compile is seen when it is called, as any other error."""
    try:
        return system(f)
    except Exception as error:
        refusal = error

    def refused(*args: object, **kwargs: object) -> object:
        raise refusal

    return refused


def source_of(f: Function) -> str:
    """The source of ``f``, as far as it is known; a program that prints itself does."""
    printed = getattr(getattr(f, "__self__", f), "source", None)
    if callable(printed):
        return str(printed())
    try:
        return inspect.getsource(f)
    except (OSError, TypeError):
        return repr(f)
