"""What a program is given: its arguments, the parameters and buffers of its modules, the tensors of its closure.

    args, kwargs  ->  leaves with the names that the user would type (args[0]['w'])
                      each a tensor, a module, or a plain value that the program is specialised on

The same tensor object met twice is one input.  `Source` says where the runtime finds the tensor at each call.
"""

from __future__ import annotations

import enum
import numbers
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from purefx._torch import FakeTensor, as_alive, is_functional_wrapper, is_functorch_wrapped, pytree
from purefx.errors import InvisibleAliasing, UnknownArgumentType, UnsupportedTensor

PLAIN = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum, slice, range, torch.dtype, torch.device,
    torch.layout, torch.memory_format, torch.Generator, type, types.FunctionType, types.BuiltinFunctionType,
    types.MethodType, torch.SymInt, torch.SymFloat, torch.SymBool, numbers.Number,
)  # fmt: skip
"""Types of arguments that a capture may be specialised on by value."""


TENSOR_TYPES = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor})
"""The classes of tensors whose memory is their own."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The tensor at position ``index`` among the flattened arguments."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class TableEntry:
    """A tensor in a table of what owns it: a parameter or a buffer of a module, an attribute, an entry of a dict."""

    table: dict[Any, Any]
    key: Any
    name: str

    def is_same(self, other: TableEntry) -> bool:
        """Whether ``other`` is the same entry, by whatever name."""
        return self.table is other.table and bool(self.key == other.key)


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """A variable that a function reaches: a closure cell, or a global."""

    name: str
    place: types.CellType | dict[str, Any]

    def read(self) -> Any:
        """The present value; None where it is not bound."""
        if isinstance(self.place, dict):
            return self.place.get(self.name)
        try:
            return self.place.cell_contents
        except ValueError:
            return None

    def bind(self, value: Any) -> None:
        """Bind the variable to ``value``."""
        if isinstance(self.place, dict):
            self.place[self.name] = value
        else:
            self.place.cell_contents = value


class LeftBinding(Binding):
    """A variable that holds what a transform has left, and gives what that holds."""

    def read(self) -> Any:
        """The present value, without the wrappers of transforms that have ended."""
        return _alive(Binding.read(self))


class LeftTable(dict[Any, Any]):
    """A table that has what a transform has left, and gives what that holds."""

    def __init__(self, table: dict[Any, Any]) -> None:
        super().__init__()
        self._table = table

    def __setitem__(self, key: Any, value: Any) -> None:
        self._table[key] = value

    def __getitem__(self, key: Any) -> Any:
        """The present value, without the wrappers of transforms that have ended."""
        return _alive(self._table[key])

    def get(self, key: Any, default: Any = None) -> Any:
        """The same; ``default`` where there is none."""
        return _alive(self._table.get(key, default))


def _alive(x: Any) -> Any:
    return as_alive(x) if isinstance(x, torch.Tensor) else x


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A tensor that the program reaches by itself: a closure, a global, an attribute.

    ``binding`` is the variable that holds it, where there is one: the runtime checks that it still does.
    """

    tensor: torch.Tensor
    binding: Binding | None
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class GradientOf:
    """The gradient that a leaf of the caller has when the program begins."""

    tensor: torch.Tensor
    name: str


Source = Leaf | TableEntry | Held | GradientOf


@dataclass(frozen=True, slots=True)
class Flat:
    """Arguments as a list of leaves, with the structure that makes them whole again."""

    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    structure: pytree.TreeSpec
    keywords: tuple[str, ...]

    def whole(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments and keyword arguments that ``leaves`` make up."""
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return args, kwargs


def as_left(source: Source, tensor: torch.Tensor) -> Source:
    """Where ``tensor`` is found at each call, which the wrapper at ``source`` of a transform that has ended holds."""
    match source:
        case Held(_, Binding() as binding, name):
            return Held(tensor, LeftBinding(binding.name, binding.place), name)
        case TableEntry(table, key, name):
            return TableEntry(LeftTable(table), key, name)
        case Held(_, _, name):
            return Held(tensor, None, name)
        case _:
            return source


def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flat:
    """The leaves of ``args`` and ``kwargs``; raises UnknownArgumentType for one that cannot be compared."""
    names, given, structure = _named_leaves(args, kwargs)
    leaves = tuple(alive(given))
    for name, leaf in zip(names, leaves, strict=True):
        _check_type(name, leaf)
    return Flat(leaves, names, structure, tuple(kwargs))


def alive(leaves: Iterable[Any]) -> list[Any]:
    """``leaves`` without the wrappers of transforms that have ended: to operators these are what they hold."""
    return [*map(_alive, leaves)]


def check_tensor(name: str, tensor: torch.Tensor) -> None:
    """Raise a refusal unless the memory of ``tensor`` can be seen."""
    if is_functorch_wrapped(tensor) or is_functional_wrapper(tensor):
        raise InvisibleAliasing(
            f"{name} belongs to a running transform (vmap, grad, jvp or functionalize)",
            where=None,
            remedy="apply the transform inside: compile the transformed function, not the function under it",
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantised" if tensor.is_quantized else "nested" if tensor.is_nested else f"of layout {tensor.layout}"
        raise UnsupportedTensor(
            f"{name} is a tensor that is {kind}, without plain strided memory",
            where=None,
            remedy="pass to_dense() of it, or its values and indices",
        )
    if type(tensor) not in TENSOR_TYPES:
        raise UnsupportedTensor(
            f"{name} is of the tensor subclass {type(tensor).__module__}.{type(tensor).__qualname__}",
            where=None,
            remedy="pass the plain tensors that it holds, and make the subclass inside the function",
        )


def _named_leaves(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[str, ...], tuple[Any, ...], pytree.TreeSpec]:
    try:
        pairs, structure = pytree.tree_flatten_with_path((args, kwargs))
    except ValueError:  # a type that was registered without names for its parts
        unnamed, structure = pytree.tree_flatten((args, kwargs))
        return tuple(f"leaf {i}" for i in range(len(unnamed))), tuple(unnamed), structure
    return tuple(spelled(path) for path, _ in pairs), tuple(leaf for _, leaf in pairs), structure


def spelled(path: tuple[Any, ...]) -> str:
    """What lies at ``path`` in arguments and keyword arguments, as the user would type it."""
    where, *rest = path
    name = "args" if where.idx == 0 else "kwargs"
    return name + "".join(map(str, rest))


def _check_type(name: str, leaf: Any) -> None:
    if isinstance(leaf, torch.Tensor):
        check_tensor(name, leaf)
    elif not isinstance(leaf, (torch.nn.Module, *PLAIN)):
        raise UnknownArgumentType(
            f"{name} is of type {type(leaf).__module__}.{type(leaf).__qualname__}, which purefx cannot compare",
            where=None,
            remedy="pass its tensors and numbers, or register the type with torch.utils._pytree",
        )
