"""Values of Python that a program may read and that no guard watches: a capture has them as they were.

    self.scale: 2.0            an attribute that is named in code which the program runs, as far as that can be told
    config['eps']: 1e-06       an entry of a dict
    limit: 3                   a variable

Code is only looked at: what is listed may not have been read, and what is read in roundabout ways is not listed.
"""

from __future__ import annotations

import reprlib
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from purefx.capture.arguments import PLAIN, Binding
from purefx.capture.captured import Capture
from purefx.capture.owners import (
    OF_EVERY_MODULE,
    Owner,
    find_owners,
    functions_of,
    is_users,
    is_users_object,
    names_in,
    variables_of,
)
from purefx.report.names import parameters_of, renamed


@dataclass(frozen=True, slots=True)
class Unchecked:
    """The values at ``places``, all of them ``value``, which a call takes as they were when it was captured."""

    places: tuple[str, ...]
    value: str


def infer_unchecked(capture: Capture) -> tuple[Unchecked, ...]:
    """The plain values that the program may read besides its arguments, and does not change; equal ones together."""
    owners = find_owners(capture.function, capture.flat.leaves, capture.flat.names)
    functions = _functions(capture, owners)
    names, bindings = _names(functions), [x for f in functions if is_users(f) for x in variables_of(f)]
    changed = {(id(rebinding.table), rebinding.key) for rebinding in capture.rebindings}
    parameters = parameters_of(capture.function)
    found: dict[tuple[str, str], list[str]] = {}
    owners += [owner for binding in bindings for owner in _holding(binding.name, binding.read())]
    for place, table, key, value in (*_variables(bindings), *_entries(owners, names)):
        if (id(table), key) not in changed:
            found.setdefault((key, reprlib.repr(value)), []).append(renamed(place, parameters))
    return tuple(Unchecked(tuple(dict.fromkeys(places)), value) for (_, value), places in found.items())


_Entry = tuple[str, Any, Any, Any]
"""The place of a value as the user would type it, the table that it is in, its key there, and the value."""


def _entries(owners: list[Owner], names: set[Any]) -> Iterator[_Entry]:
    """The plain values in ``owners``, and in objects in them, whose keys are among ``names``."""
    waiting, seen = deque(owners), set[int]()
    while waiting:
        owner = waiting.popleft()
        if id(owner.value) in seen:
            continue
        seen.add(id(owner.value))
        hidden = OF_EVERY_MODULE if isinstance(owner.value, torch.nn.Module) else ()
        for key, value in owner.tables[-1].items():
            if key not in names or key in hidden:
                continue
            if _is_plain(value):
                yield owner.spelled(key), owner.tables[-1], key, value
            waiting += _holding(owner.spelled(key), value)


def _holding(name: str, x: Any) -> list[Owner]:
    """``x`` as an owner, if it is a dict or an object of the user's."""
    table = x if type(x) is dict else vars(x) if is_users_object(x) else None
    return [] if table is None else [Owner(name, x, (table,))]


def _variables(bindings: list[Binding]) -> Iterator[_Entry]:
    """The plain values of ``bindings``."""
    for binding in bindings:
        value = binding.read()
        if _is_plain(value):
            yield binding.name, binding.place, binding.name, value


def _functions(capture: Capture, owners: list[Owner]) -> list[types.FunctionType]:
    """The functions that the program may call: those of variables, and methods that are named in one of these."""
    found = list(functions_of(capture.function))
    methods = [method for kind in {type(owner.value): None for owner in owners} for method in _methods(kind)]
    while called := [method for method in methods if method.__name__ in _names(found)]:
        methods = [method for method in methods if method not in called]
        found += dict.fromkeys(function for method in called for function in functions_of(method))
    return list(dict.fromkeys(found))


def _names(functions: list[types.FunctionType]) -> set[Any]:
    return {"forward", "__call__"}.union(*(names_in(function.__code__) for function in functions))


def _methods(kind: type) -> Iterator[types.FunctionType]:
    for base in kind.__mro__:
        if base is not torch.nn.Module:
            yield from (x for x in vars(base).values() if isinstance(x, types.FunctionType))


def _is_plain(value: Any) -> bool:
    """Whether ``value`` is a number, a text or another value that code can depend on, or a tuple of such."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN) and not isinstance(value, type | torch.Generator) and not callable(value)


__all__ = ["Unchecked", "infer_unchecked"]
