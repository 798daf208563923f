"""Fakes in the place of what a program reaches by itself, for the time of one run.

Tensors in closure cells, globals and modules are replaced by fakes and put back afterwards, whatever happened.
What the program then binds to them tells what it would have done in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from purefx._torch import FakeTensor, pytree
from purefx.capture.arguments import Binding, Held, ModuleState, Source, module_states, reached, state_tables
from purefx.errors import EscapedState

MakeFake = Callable[[torch.Tensor, Source], torch.Tensor]
Tables = list[tuple[torch.nn.Module, list[dict[str, Any]]]]


@contextmanager
def fake_variables(function: Callable[..., Any], make: MakeFake) -> Iterator[None]:
    """Fakes for the tensors in closure cells and globals; refuses a program that binds one to another value."""
    bindings = list(reached(function))
    saved = [(b, b.read()) for b in bindings if isinstance(b.read(), torch.Tensor)]
    fakes = [(b, make(x, Held(x, b, b.name))) for b, x in saved if not isinstance(x, FakeTensor)]
    containers = [(b, x, _copied(x)) for b in bindings for x in [b.read()] if type(x) in (list, dict, set)]
    try:
        for binding, fake in fakes:
            binding.bind(fake)
        yield
        for binding, fake in fakes:
            if binding.read() is not fake:
                raise EscapedState(
                    f"the program binds the variable {binding.name} to another value",
                    where=None,
                    remedy=f"return the new value, or write it into {binding.name} with copy_",
                )
        for binding, x, before in containers:
            _check_container(binding, x, before)
    finally:
        for binding, tensor in saved:
            binding.bind(tensor)
        for _, x, before in containers:
            if _holds_fakes(x):
                x.clear()
                x.extend(before) if isinstance(x, list) else x.update(before)


@contextmanager
def fake_modules(modules: list[tuple[str, torch.nn.Module]], make: MakeFake) -> Iterator[Tables]:
    """Fakes for the parameters, buffers and tensor attributes of ``modules``; yields the tables as they were."""
    owners = dict.fromkeys(owner for _, module in modules for owner in module.modules())
    saved = [(owner, [dict(table) for table in state_tables(owner)]) for owner in owners]
    try:
        for name, module in modules:
            for state in list(module_states(name, module)):
                _replace(state, make)
        yield saved
    finally:
        for owner, tables in saved:
            for table, old in zip(state_tables(owner), tables, strict=True):
                table.clear()
                table.update(old)


def check_arguments(before: list[Any], after: Any) -> None:
    """Refuse a program that changed a container among its arguments: ``after`` has to have the leaves ``before``."""
    leaves = pytree.tree_leaves(after)
    if len(leaves) != len(before) or any(x is not y for x, y in zip(leaves, before, strict=True)):
        raise EscapedState(
            "the program changes a container among its arguments",
            where=None,
            remedy="return the new container, or write into the tensors that it holds",
        )


def _replace(state: ModuleState, make: MakeFake) -> None:
    tensor = state.table[state.key]
    if not isinstance(tensor, FakeTensor):
        state.table[state.key] = make(tensor, state)


def _copied(container: Any) -> Any:
    return container.copy()


def _holds_fakes(x: Any) -> bool:
    leaves = x if isinstance(x, set) else pytree.tree_leaves(x)
    return any(isinstance(leaf, FakeTensor) for leaf in leaves)


def _check_container(binding: Binding, x: Any, before: Any) -> None:
    if _holds_fakes(x) and not _holds_fakes(before):
        raise EscapedState(
            f"the program puts a tensor into {binding.name}, which outlives the call",
            where=None,
            remedy="return the tensor",
        )
