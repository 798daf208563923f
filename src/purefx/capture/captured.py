"""What one capture gives: the recording of the run, the inputs before and after it, the results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from purefx._torch import FakeTensorMode, ShapeEnv, pytree
from purefx.capture.arguments import Flat, GradientOf, Held, Leaf, Source, TableEntry
from purefx.capture.global_state import Ambient
from purefx.capture.recorder import Recorder
from purefx.capture.recording import Recording, Region, Variable


@dataclass(slots=True, eq=False)
class Input:
    """A tensor that the program was given, and what became of it.

    ``edge`` is where its gradient leaves the program, as it was before the run; ``base_edge`` that of its ``_base``.
    ``left`` is where those of its views do that live on with a history which it had, and the program has cut off.
    ``hooks`` are those that the program registers on it, ``late_hooks`` those on what the program has made of it.  From
    the call on it ``retains_grad`` that is no leaf, as the program has asked.
    """

    sources: list[Source]
    tensor: torch.Tensor
    fake: torch.Tensor
    variable: Variable
    before: Region
    after: Region
    grad: torch.Tensor | None = None
    writes: int = 0
    was_leaf: bool = True
    edge: GradientEdge | None = None
    base_edge: GradientEdge | None = None
    left: GradientEdge | None = None
    hooks: tuple[Any, ...] = ()
    late_hooks: tuple[Any, ...] = ()
    retains_grad: bool = False

    @property
    def name(self) -> str:
        """The name of the first source, as the user would type it."""
        return self.sources[0].name


Finder = Callable[[Sequence[Any]], Any]
"""What finds something now, from the leaves of a call."""


def finder(known: Input, inputs: Sequence[Input]) -> Finder:
    """What finds the tensor that ``known``, one of ``inputs``, is at a call; it may find something else there."""
    match known.sources[0]:
        case Leaf(index):
            return itemgetter(index)
        case TableEntry(table, key):
            return lambda _: table.get(key)
        case Held(tensor, binding):
            return lambda _: tensor if binding is None else binding.read()
        case GradientOf(tensor):
            owner = finder(next(x for x in inputs if x.tensor is tensor), inputs)
            return lambda leaves: getattr(owner(leaves), "grad", None)


@dataclass(frozen=True, slots=True, eq=False)
class TensorResult:
    """A tensor that the program hands out: what it showed at the end, and its fake.

    ``version`` is its count of writes, where no tensor of the caller counts with it; ``hooks`` are those that the
    program registered on it.
    """

    variable: Variable
    region: Region
    fake: torch.Tensor
    version: int | None
    hooks: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class PlainResult:
    """A value without tensors: the same at each call of this specialisation, unless it is a symbol."""

    value: Any


Result = TensorResult | PlainResult


@dataclass(frozen=True, slots=True, eq=False)
class Rebinding:
    """The program bound an attribute or an entry (``name``) anew: ``table[key] = result``; it was ``before``."""

    table: dict[Any, Any]
    key: Any
    name: str
    result: Result | None
    before: Any

    @property
    def plain(self) -> bool:
        """Whether the old value was no tensor: the program may have computed the new one from it in Python."""
        return not isinstance(self.before, torch.Tensor)


def without_effects(capture: Capture) -> Capture:
    """``capture`` as that of a program which binds nothing, registers no hooks and counts no writes."""
    for known in capture.inputs:
        known.writes, known.hooks, known.late_hooks, known.retains_grad = 0, (), (), False
    results = tuple(replace(r, hooks=()) if isinstance(r, TensorResult) else r for r in capture.results)
    return replace(capture, results=results, rebindings=(), hooks=())


def name_of(function: Callable[..., Any]) -> str:
    """The name of ``function``; that of its class for a callable object."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


@dataclass(frozen=True, slots=True, eq=False)
class Hook:
    """A hook that the program has registered on ``variable``, as long as ``table`` has it; it is at ``edge``."""

    variable: Variable
    edge: GradientEdge | None
    table: dict[int, Any]
    number: int
    function: Any

    @property
    def remains(self) -> bool:
        """Whether nobody has removed it."""
        return self.number in self.table


@contextmanager
def taken_off(hooks: Collection[Hook]) -> Iterator[None]:
    """Let ``hooks`` not run."""
    tables = {id(hook.table): hook.table for hook in hooks}
    before = [(table, dict(table)) for table in tables.values()]
    for hook in hooks:
        hook.table.pop(hook.number, None)
    try:
        yield
    finally:
        for table, found in before:
            table.clear()
            table.update(found)


@dataclass(frozen=True, slots=True, eq=False)
class Resumed:
    """A run that goes on: its recorder, and its inputs so far."""

    recorder: Recorder
    inputs: Callable[[], tuple[Input, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """What one run has shown.

    ``resume`` enters the run once more: what then runs on its fakes, as their backward, is recorded after it.
    ``plain_views`` are views of what did not require grad when they were taken, ``known_views`` those whose histories
    autograd has made, or looked at; ``hooks`` are those that the program leaves on tensors, returned or not.
    """

    function: Callable[..., Any]
    recording: Recording
    flat: Flat
    inputs: tuple[Input, ...]
    modules: tuple[tuple[str, torch.nn.Module], ...]
    results: tuple[Result, ...]
    structure: pytree.TreeSpec
    rebindings: tuple[Rebinding, ...]
    grad_before: bool
    grad_after: bool
    inference: bool
    ambient: Ambient
    fake_mode: FakeTensorMode
    dynamic: bool
    resume: Callable[[], AbstractContextManager[Resumed]]
    plain_views: frozenset[Variable]
    known_views: frozenset[Variable]
    hooks: tuple[Hook, ...] = ()

    @property
    def env(self) -> ShapeEnv:
        """What is known of the symbols in sizes."""
        env = self.fake_mode.shape_env
        assert env is not None  # every mode of ours has one
        return env
