"""The recording of one run: a list of calls of ATen operators, with the memory that each tensor shows.

A recording is the program as it ran, writes and views included.  Three words carry it:

    Storage    a block of bytes.  Identity is the block's.
    Region     what a tensor shows of a storage: geometry, dtype, lazy conjugation and negation.  A value:
               two regions that are equal show the same elements, whoever made them.
    Variable   a tensor object of the program.  A write to its geometry (``t_``, ``set_``) changes its region.

A `Call` holds operands (a variable and the region it had) in place of tensors.  Nothing here knows about graphs,
gradients or the caller's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

import torch

from purefx._torch import HigherOrderOperator, OpOverload, has_symbolic_sizes
from purefx.errors import SourceLine
from purefx.layout import Geometry, Int

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""The types of numbers that stand for a size, or for a number in a tensor."""

Tree = Any
"""Nested lists, tuples and dicts of operands, symbols and plain Python values."""


@dataclass(eq=False, slots=True)
class Storage:
    """A block of memory met during a run; ``nbytes`` is its size when it was first seen."""

    index: int
    nbytes: Int
    device: torch.device

    def __repr__(self) -> str:
        return f"s{self.index}"


@dataclass(frozen=True, slots=True)
class Region:
    """The elements of ``storage`` that a tensor shows, and how it reads them."""

    storage: Storage
    geometry: Geometry
    dtype: torch.dtype
    conj: bool = False
    neg: bool = False

    def at(self, geometry: Geometry) -> Region:
        """The same reading of another region of the storage."""
        return Region(self.storage, geometry, self.dtype, self.conj, self.neg)

    @property
    def physical(self) -> Region:
        """The same elements as they lie in memory, without lazy conjugation and negation."""
        return Region(self.storage, self.geometry, self.dtype)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        sizes, strides = list(self.geometry.sizes), list(self.geometry.strides)
        return f"{dtype}{sizes} strides {strides} of {self.storage!r} at {self.geometry.offset}"


@dataclass(eq=False, slots=True)
class Variable:
    """A tensor object of the program; ``first`` is what it showed when it was made, ``last`` what it shows now."""

    index: int
    first: Region
    last: Region
    inference: bool = False

    def __repr__(self) -> str:
        return f"v{self.index}"


@dataclass(frozen=True, slots=True)
class Operand:
    """A variable, and the region that it had at the moment of the call."""

    variable: Variable
    region: Region


Operands = tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Modes:
    """The global state in which a call ran, as far as a caller can tell afterwards."""

    grad: bool
    inference: bool


class Effect(Enum):
    """What a call does besides returning new tensors."""

    NONE = "returns new tensors only"
    VIEW = "returns tensors that share storage with its operands"
    WRITE = "changes elements of its operands"
    GEOMETRY = "changes the geometry of an operand"
    STORAGE = "changes the size of a storage"


class DataAccess(Enum):
    """What goes past PyTorch's dispatcher; the value is its name in reports.

    ``READ`` is ``x.data``, an alias with a version counter of its own: the dispatcher takes it for ``detach``.
    ``SWAP`` is ``x.data = y``.
    """

    READ = "data_of"
    SWAP = "swap_data"


Operator = OpOverload | HigherOrderOperator | DataAccess
"""What a call runs."""

Resize = tuple[Storage, Int, Int]
"""A storage, and its size in bytes before and after."""


@dataclass(eq=False, slots=True)
class Call:
    """One operator as it ran.  ``results`` is the tree that it returned.

    ``repeats`` is an earlier random call whose numbers this one draws again.  ``seen`` tells that autograd sees what it
    writes: gradients are on, and one of its operands requires grad at that moment.
    """

    op: Operator
    args: tuple[Tree, ...]
    kwargs: dict[str, Tree]
    results: Tree
    operands: Operands
    outputs: Operands
    written: Operands
    effect: Effect
    modes: Modes
    where: SourceLine | None
    fresh: tuple[Storage, ...] = ()
    resized: tuple[Resize, ...] = ()
    repeats: Call | None = None
    seen: bool = False

    @property
    def overload(self) -> OpOverload:
        """The operator of a call that runs one of PyTorch's, as every call that writes elements does."""
        assert isinstance(self.op, OpOverload), f"{self.op} has no schema"
        return self.op

    @property
    def runnable(self) -> OpOverload | HigherOrderOperator:
        """The operator of a call that a graph can have in it."""
        assert not isinstance(self.op, DataAccess), f"{self.op} runs in no graph"
        return self.op

    @property
    def is_hidden(self) -> bool:
        """Whether autograd knows nothing of the memory that the result shares: ``reshape`` makes such of a copy."""
        return str(self.op) == "aten._unsafe_view.default"

    @property
    def is_idle(self) -> bool:
        """Whether the call is a ``resize_`` to the sizes that are there, which PyTorch does not count as a write."""
        return str(self.op) == "aten.resize_.default" and self.operands[0].region == self.written[0].region

    def __str__(self) -> str:
        outputs = ", ".join(f"{o.variable!r}: {o.region}" for o in self.outputs)
        operands = ", ".join(repr(o.variable) for o in self.operands)
        return f"{self.op}({operands}) -> {outputs}  # {self.effect.name.lower()}"


@dataclass(eq=False, slots=True)
class Constant:
    """A tensor that the program made of Python numbers: known when it is captured, and never written."""

    value: torch.Tensor


@dataclass(eq=False, slots=True)
class Recording:
    """All calls of a run, in order.

    ``producers`` maps a region to the call and the operand that first showed it: the program's own way from
    one region of a storage to another.  ``moved`` are the variables that ``set_`` has given memory, be it the same.
    """

    calls: list[Call] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    producers: dict[Region, tuple[Call, int]] = field(default_factory=dict)
    regions: dict[Storage, dict[Region, None]] = field(default_factory=dict)
    moved: set[Variable] = field(default_factory=set)

    def __iter__(self) -> Iterator[Call]:
        return iter(self.calls)

    def __str__(self) -> str:
        return "\n".join(map(str, self.calls))


def geometry_of(tensor: torch.Tensor) -> Geometry:
    """The geometry of ``tensor`` as it is now."""
    return Geometry(tuple(tensor.shape), tuple(tensor.stride()), cast(Int, tensor.storage_offset()))


def has_geometry(tensor: torch.Tensor, geometry: Geometry) -> bool:
    """Whether ``geometry`` is that of ``tensor`` as it is now."""
    if not geometry.is_static or has_symbolic_sizes(tensor):
        return geometry_of(tensor) == geometry
    return (
        tensor.shape == geometry.sizes
        and tensor.stride() == geometry.strides
        and tensor.storage_offset() == geometry.offset
    )


def restrided(call: Call) -> Region:
    """The region that a call of ``as_strided`` or ``as_strided_copy`` reads."""
    region, (_, sizes, strides, *rest) = call.operands[0].region, call.args
    offset = rest[0] if rest and rest[0] is not None else region.geometry.offset
    return region.at(Geometry(tuple(sizes), tuple(strides), offset))


CONTAINERS = (list, tuple, dict)


def map_tree(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """``tree`` with ``function`` applied to everything in it that is not a list, tuple, dict or slice."""
    if not isinstance(tree, CONTAINERS):
        return function(tree)
    if isinstance(tree, dict):
        return {key: map_tree(function, x) for key, x in tree.items()}
    items = [map_tree(function, x) if isinstance(x, CONTAINERS) else function(x) for x in tree]
    if isinstance(tree, list):
        return items
    return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)


def operands_of(tree: Tree) -> Operands:
    """The operands in ``tree``, left to right."""
    found: list[Operand] = []
    _collect(tree, found)
    return tuple(found)


def _collect(tree: Tree, found: list[Operand]) -> None:
    if isinstance(tree, Operand):
        found.append(tree)
    elif isinstance(tree, CONTAINERS):
        for x in tree.values() if isinstance(tree, dict) else tree:
            _collect(x, found)
