"""Fakes in the place of what a program reaches by itself, for the time of one run.

Tensors in closure cells, globals and owners (modules, objects, containers) are replaced by fakes and put back
afterwards, whatever happened.  What the program then binds to them tells what it would have done in eager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from purefx._torch import pytree, renew_cache
from purefx.capture.arguments import Held, Source, spelled
from purefx.capture.owners import ListTable, Owner, TupleTable, reached
from purefx.errors import EscapedState, SourceLine

MakeFake = Callable[[torch.Tensor, Source], torch.Tensor]
"""Gives the fake of a tensor, which it may give to several names: the fake of a fake of its own is that one."""

Whole = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments and keyword arguments."""

Tables = list[tuple[Owner, list[dict[Any, Any]]]]


@contextmanager
def fake_variables(function: Callable[..., Any], make: MakeFake) -> Iterator[None]:
    """Fakes for the tensors in closure cells and globals; refuses a program that binds one to another value."""
    bindings = list({(b.name, id(b.place)): b for b in reached(function)}.values())
    originals = [binding.read() for binding in bindings]
    present = list(originals)
    try:
        for i, (binding, x) in enumerate(zip(bindings, originals, strict=True)):
            if isinstance(x, torch.Tensor):
                present[i] = make(x, Held(x, binding, binding.name))
                binding.bind(present[i])
        yield
        for binding, x in zip(bindings, present, strict=True):
            if binding.read() is not x:
                raise EscapedState(
                    f"the program binds the variable {binding.name} to another value",
                    where=None,
                    remedy=f"return the new value, or keep it as an attribute or entry of an object, a module or a "
                    f"dict; a tensor can be written into {binding.name} with copy_",
                )
    finally:
        for binding, x in zip(bindings, originals, strict=True):
            if binding.read() is not x:
                binding.bind(x)


@contextmanager
def fake_owners(owners: Sequence[Owner], make: MakeFake) -> Iterator[Tables]:
    """Fakes for the tensors of ``owners``; yields the tables as they were, which they are again afterwards."""
    saved = [(owner, [dict(table) for table in owner.tables]) for owner in owners]
    lists = [(owner.name, owner.value, list(owner.value)) for owner in owners if isinstance(owner.value, list | deque)]
    tuples = [
        (table, table.place.read()) for owner in owners for table in owner.tables if isinstance(table, TupleTable)
    ]
    try:
        for owner in owners:
            for entry in list(owner.entries()):
                entry.table[entry.key] = make(entry.table[entry.key], entry)
            renew_cache(owner.value)
        yield saved
        for name, elements, before in lists:
            if len(elements) != len(before):
                raise EscapedState(
                    f"the program changes the length of {name}, a list that outlives the call",
                    where=None,
                    remedy="return what it adds, or keep it in a dict",
                )
    finally:
        for _, elements, before in lists:
            elements.clear()
            elements.extend(before)
        for owner, tables in saved:
            for table, old in zip(owner.tables, tables, strict=True):
                _restore(table, old)
        for table, whole in reversed(tuples):  # the outermost of nested ones last
            table.place.bind(whole)


def check_arguments(before: Whole, after: Whole, line_of: Callable[[Any], SourceLine | None]) -> None:
    """Refuse a program that changed a container among its arguments: ``after`` has to have the leaves of ``before``.

    ``line_of`` knows the line that made what a container has now.
    """
    old, new = _leaves_by_path(before), _leaves_by_path(after)
    for path in {**old, **new}:
        present = new.get(path, _ABSENT)
        if present is not old.get(path, _ABSENT):
            raise EscapedState(
                f"the program changes {spelled(path[:-1])}, a container among its arguments",
                where=line_of(present),
                remedy="return the new container, or write into the tensors that it holds",
            )


_ABSENT = object()


def _leaves_by_path(tree: Whole) -> dict[tuple[Any, ...], Any]:
    """The leaves of arguments, by number where a type was registered without names for its parts."""
    try:
        return dict(pytree.tree_flatten_with_path(tree)[0])
    except ValueError:
        return {(pytree.SequenceKey(0), i): leaf for i, leaf in enumerate(pytree.tree_leaves(tree))}


def _restore(table: dict[Any, Any], old: dict[Any, Any]) -> None:
    if isinstance(table, TupleTable):
        return  # it is put back whole
    if not isinstance(table, ListTable):
        table.clear()
    table.update(old)  # of a list, whose elements are put back by themselves, what the table says of it
