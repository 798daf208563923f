"""What a program reaches without being given it: modules, plain objects and containers that hold tensors.

    net                        a module: parameters, buffers, attributes
    acc.add                    the object of a bound method: its attributes
    state = {"mean": ...}      a dict or a list in a closure or a global: its entries

Each is an owner with tables, dicts from a key to a value; a list or a deque is seen as one.  For a run the tensors in
them are replaced by fakes, and what the program binds in them is bound again at each call.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from purefx._torch import is_cache, is_pullback
from purefx.capture.arguments import Binding, TableEntry
from purefx.errors import EscapedState, GradientsRefused, SourceLine, UnsupportedOperator

_LIBRARIES = ("torch", "builtins", "numpy", "collections", "functools", "typing", "purefx", "types", "abc", "re")

OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
"""Attributes by which PyTorch keeps what a module has; parameters and buffers are tables of their own."""


class ListTable(dict[Any, Any]):
    """A list or a deque as a table from positions to elements; changes of the table are changes of the list.

    Its ``items`` are the elements that the list had when the table was made: it keeps no fake that a run puts there.
    """

    def __init__(self, elements: list[Any] | deque[Any]) -> None:
        super().__init__(enumerate(elements))
        self._elements = elements

    def __setitem__(self, key: Any, value: Any) -> None:
        self._elements[key] = value

    def __getitem__(self, key: Any) -> Any:
        """The element at ``key`` as it is now."""
        return self._elements[key]

    def get(self, key: Any, default: Any = None) -> Any:
        """The element at ``key`` as it is now; ``default`` where the list has got shorter."""
        return self._elements[key] if key < len(self._elements) else default


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A place in a table."""

    table: dict[Any, Any]
    key: Any

    def read(self) -> Any:
        """The present value."""
        return self.table.get(self.key)

    def bind(self, value: Any) -> None:
        """Put ``value`` there."""
        self.table[self.key] = value


class TupleTable(dict[Any, Any]):
    """A tuple as a table from positions to elements; a change of one puts another tuple at the ``place`` of the first.

    Its ``items`` are the elements that the tuple had when the table was made.
    """

    def __init__(self, elements: tuple[Any, ...], place: Binding | Entry) -> None:
        super().__init__(enumerate(elements))
        self.place = place

    def __setitem__(self, key: Any, value: Any) -> None:
        now = self.place.read()
        changed = (*now[:key], value, *now[key + 1 :])
        self.place.bind(changed if type(now) is tuple else type(now)(*changed))

    def __getitem__(self, key: Any) -> Any:
        """The element at ``key`` as it is now."""
        return self.place.read()[key]

    def get(self, key: Any, default: Any = None) -> Any:
        """The element at ``key`` as it is now; ``default`` where something else is there."""
        now = self.place.read()
        return now[key] if isinstance(now, tuple) and key < len(now) else default


@dataclass(frozen=True, slots=True, eq=False)
class Owner:
    """Something that keeps tensors in ``tables``, under ``name``."""

    name: str
    value: Any
    tables: tuple[dict[Any, Any], ...]

    def entries(self) -> Iterator[TableEntry]:
        """The tensors in the tables."""
        for table in self.tables:
            for key, value in table.items():
                if isinstance(value, torch.Tensor):
                    yield TableEntry(table, key, self.spelled(key))

    def spelled(self, key: Any) -> str:
        """The entry ``key`` as the user would type it."""
        return f"{self.name}[{key!r}]" if isinstance(self.value, list | dict | deque | tuple) else f"{self.name}.{key}"


def find_owners(function: Callable[..., Any], leaves: Sequence[Any], names: Sequence[str] = ()) -> list[Owner]:
    """The owners that a call reaches: the function's own object, its closure, its globals, modules it is given.

    ``names`` are those of the ``leaves``.
    """
    found: dict[int, Owner] = {}
    _meet(found, "self", function)
    _meet_defaults(found, _bare(function))
    for binding in reached(function):
        _meet(found, binding.name, binding.read(), place=binding)
        _meet_defaults(found, binding.read())
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.nn.Module):
            _meet(found, names[i] if names else f"argument {i}", leaf)
    return list(found.values())


def _meet_defaults(found: dict[int, Owner], function: Any) -> None:
    """What the defaults of a function of the user's hold."""
    function = getattr(function, "__func__", function)
    if isinstance(function, types.FunctionType) and is_users(function):
        code = function.__code__
        positional = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        named = zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
        for name, x in [*named, *(function.__kwdefaults__ or {}).items()]:
            _meet(found, name, x)


def _meet(found: dict[int, Owner], name: str, x: Any, depth: int = 0, *, place: Binding | Entry | None = None) -> None:
    """Add what is met by way of ``x``, which is at ``place``, if it can be put there again."""
    x = x.__wrapped__ if _is_compiled(x) else x
    if id(x) in found or depth > 4:
        return
    _check_no_optimizer(name, x)
    before = len(found)
    if isinstance(x, torch.nn.Module):
        for prefix, owner in x.named_modules():
            _check_no_script(".".join(filter(None, (name, prefix))), owner)
            _add(found, ".".join(filter(None, (name, prefix))), owner, (owner._parameters, owner._buffers, vars(owner)))
    elif (table := _table(x)) is not None:
        _add(found, name, x, (table,))
    else:
        inside = _add_tuple(found, name, x, place) if isinstance(x, tuple) and place is not None else None
        for i, (inner, value) in enumerate(_held_by(name, x)):
            _meet(found, inner, value, depth + 1, place=None if inside is None else Entry(inside, i))
        return
    for owner in list(found.values())[before:]:
        entries = [(Entry(table, key), value) for table in owner.tables for key, value in table.items()]
        for entry, value in entries:
            if _is_inner(owner, entry.key, value) and not isinstance(entry.table, TupleTable):
                _meet(found, owner.spelled(entry.key), value, depth + 1, place=entry)


def _add_tuple(found: dict[int, Owner], name: str, x: tuple[Any, ...], place: Binding | Entry) -> TupleTable | None:
    """The table of a tuple that holds tensors, by itself or in tuples; None for another."""
    if not _holds_tensors(x):
        return None
    table = TupleTable(x, place)
    found[id(table)] = Owner(name, x, (table,))
    return table


def _holds_tensors(x: Any) -> bool:
    if type(x) is tuple or hasattr(type(x), "_make"):
        return any(isinstance(value, torch.Tensor) or _holds_tensors(value) for value in x)
    return False


def _table(x: Any) -> dict[Any, Any] | None:
    """The table of a list, a deque, a dict, a user's object or a function with attributes; None for anything else."""
    if type(x) in (list, deque):
        return ListTable(x)
    if isinstance(x, dict) and type(x).__module__ in ("builtins", "collections"):
        return x
    if is_users_object(x) or (isinstance(x, types.FunctionType) and vars(x) and is_users(x)):
        table: dict[Any, Any] = vars(x)
        return table
    return None


def _held_by(name: str, x: Any) -> Iterator[tuple[str, Any]]:
    """What is met by way of ``x``, which can hold tensors only in what it holds itself."""
    if type(x) is tuple or hasattr(type(x), "_make"):
        yield from ((f"{name}[{i}]", value) for i, value in enumerate(x))
    elif isinstance(x, functools.partial):
        yield from [(name, value) for value in (x.func, *x.args, *x.keywords.values())]
    elif isinstance(x, types.MethodType):
        yield name, x.__self__


def _check_no_optimizer(name: str, x: Any) -> None:
    if isinstance(x, torch.optim.Optimizer):
        raise EscapedState(
            f"the program uses the optimizer {name}, whose state outlives the call",
            where=None,
            remedy="write the step as a function of parameters, gradients and state (torch.optim has functional forms)",
        )


def _check_no_script(name: str, module: torch.nn.Module) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedOperator(
            f"{name} is a module that torch.jit has compiled ({module.original_name}): it keeps its tensors where no "
            "fake can take their place",
            where=None,
            remedy="compile the Python module that it was made of, without torch.jit.script and torch.jit.trace",
        )


def _is_inner(owner: Owner, key: Any, value: Any) -> bool:
    """Whether ``value`` is met by way of ``owner`` alone: a module, an object, or what holds such."""
    if isinstance(owner.value, torch.nn.Module):
        kept_by_torch = key in OF_EVERY_MODULE or is_cache(owner.value, key)
        return isinstance(value, list | deque | dict | tuple) and not kept_by_torch
    return isinstance(value, torch.nn.Module | list | deque | dict | tuple | functools.partial | types.MethodType) or (
        is_users_object(value)
    )


def _add(found: dict[int, Owner], name: str, value: Any, tables: tuple[dict[Any, Any], ...]) -> None:
    found.setdefault(id(value), Owner(name, value, tables))


def is_users_object(x: Any) -> bool:
    """Whether ``x`` is an object of a class that is not PyTorch's nor Python's own, with attributes."""
    if isinstance(x, type | types.ModuleType | types.FunctionType | types.MethodType) or not hasattr(x, "__dict__"):
        return False
    return type(x) is types.SimpleNamespace or type(x).__module__.partition(".")[0] not in _LIBRARIES


def reached(function: Callable[..., Any]) -> Iterator[Binding]:
    """The variables that ``function`` reaches: closure cells, and the globals that its code names.

    Functions that are reached this way are searched too; of those of a library (``torch.func.grad(f)``) the cells.
    Raises GradientsRefused if one of them is what ``torch.func.vjp`` has returned: its graph is there.
    """
    for found in functions_of(function):
        if is_pullback(found):
            raise GradientsRefused(
                "the program reaches what torch.func.vjp has returned before, whose gradients go through that call",
                where=first_line_of(function),
                remedy="call vjp inside, or leave the program as it is (torch.func.vmap in the place of"
                " purefx.func.vmap, around what vjp has returned)",
            )
        yield from variables_of(found)


def functions_of(function: Callable[..., Any]) -> Iterator[types.FunctionType]:
    """The function whose code ``function`` runs, and those that it reaches by variables."""
    first = _code_of(function)
    waiting, seen = [first], {id(first)}
    while waiting:
        found = waiting.pop()
        if hasattr(found, "__code__"):
            yield found
        for binding in variables_of(found):
            x = binding.read()
            inner = _code_of(x) if callable(x) else None
            if isinstance(inner, types.FunctionType) and id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)


def _bare(function: Any) -> Any:
    """``function`` out of its ``functools.partial``, and out of what purefx has made of it."""
    while isinstance(function, functools.partial) or _is_compiled(function):
        function = function.func if isinstance(function, functools.partial) else function.__wrapped__
    return function


def _is_compiled(function: Any) -> bool:
    return type(function).__module__.startswith("purefx.") and hasattr(function, "__wrapped__")


def _code_of(function: Any) -> Any:
    """The function whose code a call of ``function`` runs."""
    function = _bare(function)
    function = getattr(function, "__func__", function)
    if isinstance(function, types.FunctionType | type | torch.nn.Module):
        return function
    return type(function).__call__ if callable(function) else function


def first_line_of(function: Any) -> SourceLine | None:
    """Where the code of ``function`` begins; None where it has none in Python."""
    code = getattr(_code_of(function), "__code__", None)
    return None if code is None else SourceLine(code.co_filename, code.co_firstlineno, code.co_name)


def is_users(function: types.FunctionType) -> bool:
    """Whether ``function`` is of no library whose globals are its own affair."""
    module = function.__globals__.get("__name__") or ""  # __module__ is that of what a decorator wraps
    return not module.startswith(("torch.", "transformers.", "purefx."))


def variables_of(function: Any) -> Iterator[Binding]:
    """The closure cells of ``function``, and the globals that its code names."""
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        yield Binding(name, cell)
    for name in _global_names(code) if is_users(function) else ():
        if name in function.__globals__:
            yield Binding(name, function.__globals__)


def _global_names(code: types.CodeType) -> Iterator[str]:
    """The names that ``code`` and the functions defined in it look up among globals."""
    for each in _codes(code):
        yield from each.co_names


def names_in(code: types.CodeType) -> set[Any]:
    """The names and texts in ``code`` and in the functions defined in it."""
    texts = {x for each in _codes(code) for x in each.co_consts if isinstance(x, str)}
    return texts.union(*(each.co_names for each in _codes(code)))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
