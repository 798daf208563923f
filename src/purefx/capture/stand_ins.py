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

from purefx._torch import pytree
from purefx.capture.arguments import Held, Source
from purefx.capture.owners import ListTable, Owner, reached
from purefx.errors import EscapedState

MakeFake = Callable[[torch.Tensor, Source], torch.Tensor]
"""Gives the fake of a tensor, which it may give to several names: the fake of a fake of its own is that one."""

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
    lists = [(owner.value, list(owner.value)) for owner in owners if isinstance(owner.value, list | deque)]
    try:
        for owner in owners:
            for entry in list(owner.entries()):
                entry.table[entry.key] = make(entry.table[entry.key], entry)
        yield saved
        for elements, before in lists:
            if len(elements) != len(before):
                raise EscapedState(
                    "the program changes the length of a list that outlives the call",
                    where=None,
                    remedy="return what it adds, or keep it in a dict",
                )
    finally:
        for elements, before in lists:
            elements.clear()
            elements.extend(before)
        for owner, tables in saved:
            for table, old in zip(owner.tables, tables, strict=True):
                _restore(table, old)


def check_arguments(before: list[Any], after: Any) -> None:
    """Refuse a program that changed a container among its arguments: ``after`` has to have the leaves ``before``."""
    leaves = pytree.tree_leaves(after)
    if len(leaves) != len(before) or any(x is not y for x, y in zip(leaves, before, strict=True)):
        raise EscapedState(
            "the program changes a container among its arguments",
            where=None,
            remedy="return the new container, or write into the tensors that it holds",
        )


def _restore(table: dict[Any, Any], old: dict[Any, Any]) -> None:
    if not isinstance(table, ListTable):
        table.clear()
    table.update(old)  # of a list, whose elements are put back by themselves, what the table says of it
