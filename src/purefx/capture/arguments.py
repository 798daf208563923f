"""What a program is given: its arguments, the parameters and buffers of its modules, the tensors of its closure.

    args, kwargs  ->  leaves with the names that the user would type (args[0]['w'])
                      each a tensor, a module, or a plain value that the program is specialised on

The same tensor object met twice is one input.  `Source` says where the runtime finds the tensor at each call.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from purefx._torch import is_functional_wrapper, is_functorch_wrapped, pytree
from purefx.errors import GradientsRefused, InvisibleAliasing, UnknownArgumentType, UnsupportedTensor

PLAIN = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum, slice, range, torch.dtype, torch.device,
    torch.layout, torch.memory_format, torch.Generator, type, types.FunctionType, types.BuiltinFunctionType,
    types.MethodType, torch.SymInt, torch.SymFloat, torch.SymBool,
)  # fmt: skip
"""Types of arguments that a capture may be specialised on by value."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The tensor at position ``index`` among the flattened arguments."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class ModuleState:
    """A parameter or buffer, found in a dict of the module that owns it."""

    table: dict[str, Any]
    key: str
    name: str
    is_parameter: bool


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


Source = Leaf | ModuleState | Held | GradientOf


@dataclass(frozen=True, slots=True)
class Flat:
    """Arguments as a list of leaves, with the structure that makes them whole again."""

    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    structure: pytree.TreeSpec

    def whole(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments and keyword arguments that ``leaves`` make up."""
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return args, kwargs


def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flat:
    """The leaves of ``args`` and ``kwargs``; raises UnknownArgumentType for one that cannot be compared."""
    pairs, structure = pytree.tree_flatten_with_path((args, kwargs))
    names = tuple(_spelled(path) for path, _ in pairs)
    leaves = tuple(leaf for _, leaf in pairs)
    for name, leaf in zip(names, leaves, strict=True):
        _check_type(name, leaf)
    return Flat(leaves, names, structure)


def check_tensor(name: str, tensor: torch.Tensor) -> None:
    """Raise a refusal unless the memory of ``tensor`` can be seen, and it is no part of a graph of gradients."""
    if tensor.requires_grad and torch.is_grad_enabled() and not tensor.is_leaf:
        raise GradientsRefused(
            f"{name} is part of a graph that autograd records, and gradients are not supported yet",
            where=None,
            remedy="call the function under torch.no_grad(), or pass a detached tensor",
        )
    if is_functorch_wrapped(tensor) or is_functional_wrapper(tensor):
        raise InvisibleAliasing(
            f"{name} belongs to a running transform (vmap, grad, jvp or functionalize)",
            where=None,
            remedy="apply the transform inside: compile the transformed function, not the function under it",
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise UnsupportedTensor(
            f"{name} is a tensor of layout {tensor.layout}, without strided memory",
            where=None,
            remedy="pass to_dense() of it, or its values and indices",
        )


def find_modules(function: Callable[..., Any], leaves: tuple[Any, ...]) -> list[tuple[str, torch.nn.Module]]:
    """The modules that a call uses: the function itself or its owner, its closure, its globals, its arguments."""
    found: dict[int, tuple[str, torch.nn.Module]] = {}

    def meet(name: str, x: Any) -> None:
        if isinstance(x, torch.nn.Module):
            found.setdefault(id(x), (name, x))

    meet("self", function)
    meet("self", getattr(function, "__self__", None))
    for binding in reached(function):
        meet(binding.name, binding.read())
        meet(binding.name, getattr(binding.read(), "__self__", None))
    for i, leaf in enumerate(leaves):
        meet(f"argument {i}", leaf)
    return list(found.values())


def reached(function: Callable[..., Any]) -> Iterator[Binding]:
    """The variables that ``function`` reaches: closure cells, and the globals that its code names.

    Functions of the user's that are reached this way are searched too.
    """
    waiting, seen = [getattr(function, "__func__", function)], {id(function)}
    while waiting:
        for binding in _reached_directly(waiting.pop()):
            yield binding
            x = binding.read()
            inner = getattr(x, "__func__", x)
            if isinstance(inner, types.FunctionType) and id(inner) not in seen and _is_users(inner):
                seen.add(id(inner))
                waiting.append(inner)


def _is_users(function: types.FunctionType) -> bool:
    return not (function.__module__ or "").startswith(("torch.", "transformers."))


def _reached_directly(function: Any) -> Iterator[Binding]:
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        yield Binding(name, cell)
    for name in code.co_names:
        if name in function.__globals__:
            yield Binding(name, function.__globals__)


def module_states(name: str, module: torch.nn.Module) -> Iterator[ModuleState]:
    """The tensors of ``module`` and of the modules in it: parameters, buffers and plain attributes."""
    for prefix, owner in module.named_modules(remove_duplicate=True):
        path = ".".join(filter(None, (name, prefix)))
        for table in state_tables(owner):
            for key, value in table.items():
                if isinstance(value, torch.Tensor):
                    yield ModuleState(table, key, f"{path}.{key}", table is owner._parameters)


def state_tables(owner: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    """The dicts in which a module keeps tensors."""
    return owner._parameters, owner._buffers, owner.__dict__


def _spelled(path: tuple[Any, ...]) -> str:
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
