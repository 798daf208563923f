"""The user's function as a program of plain tensors: it takes the memory that it reads and returns what it computes.

    def f(x, w):           roots  (x, w)     outputs  new x, x * w
        x.add_(1)
        return x * w

The honest run gives the function views of copies of the roots, in the places where it finds its tensors, and reads its
writes off the copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from purefx._torch import pytree, resolve_op, without_modes
from purefx.analysis.replay import Fresh, Replay
from purefx.capture.arguments import Held, Leaf, TableEntry
from purefx.capture.captured import Capture, Input, TensorResult
from purefx.capture.owners import find_owners
from purefx.capture.recording import Region, Variable, geometry_of
from purefx.capture.stand_ins import fake_owners
from purefx.errors import TransformRefused
from purefx.functional.regions import chain_between
from purefx.functional.roots import Root
from purefx.functional.signature import BaseOutput, Functional, NumberOutput, ResultOutput, RootInput, WrittenOutput
from purefx.layout import Geometry
from purefx.transforms.graphs import Engine, Graph, Tensors, without_overlap
from purefx.transforms.levels import tracks_gradients
from purefx.transforms.programs import Program


class Base(Program):
    """The user's function as it was captured."""

    def __init__(self, engine: Engine, name: str, capture: Capture, replay: Replay, functional: Functional) -> None:
        self._capture = capture
        self._functional = functional
        self._roots = [_root(given) for given in functional.inputs]
        regions = [_region(output) for output in functional.outputs]
        inexact = [region.dtype.is_floating_point or region.dtype.is_complex for region in regions]
        super().__init__(engine, name, len(self._roots), len(self._roots), inexact)
        self._graph = Graph(capture, functional, tuple(range(self.arity)), tuple(range(len(inexact))))
        self._owners = find_owners(capture.function, capture.flat.leaves)
        self._rebound = [
            (how.variable, rebinding)
            for how, rebinding in zip(replay.rebound, capture.rebindings, strict=True)
            if isinstance(how, Fresh)
        ]

    @property
    def is_writing(self) -> bool:
        """Whether the function writes to what it is given."""
        return any(isinstance(output, WrittenOutput) for output in self._functional.outputs)

    def kept(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """``inputs`` as a backward may read them: copies of those that are written after the call."""
        if not torch.is_grad_enabled() or not any(map(tracks_gradients, inputs)):
            return inputs
        return [_Kept.apply(x) if root.written else x for root, x in zip(self._roots, inputs, strict=True)]  # type: ignore[no-untyped-call]  # PyTorch gives it no types

    def graph(self, inputs: Any) -> Graph:
        """The graph of the call that was captured."""
        return self._graph

    def function(self, *inputs: torch.Tensor) -> Tensors:
        """The function on views of ``inputs``, or of copies where it writes."""
        memory = {root: _copy(x) if root.written else x for root, x in zip(self._roots, inputs, strict=True)}
        for root in self._functional.roots:
            memory.setdefault(root, _empty(root.region))
        given = {known: _given(known, memory) for known in self._capture.inputs}
        args, kwargs = self._arguments(given)
        with self._put(given):
            results = pytree.tree_leaves(self._capture.function(*args, **kwargs))
            tensors = {
                r.variable: x
                for r, x in zip(self._capture.results, results, strict=True)
                if isinstance(r, TensorResult)
            }
            tensors.update((variable, rebinding.table[rebinding.key]) for variable, rebinding in self._rebound)
        return tuple(self._output(output, memory, tensors) for output in self._functional.outputs)

    def _arguments(self, given: dict[Input, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = list(self._capture.flat.leaves)
        for known, tensor in given.items():
            for source in known.sources:
                if isinstance(source, Leaf):
                    leaves[source.index] = tensor
        return self._capture.flat.whole(leaves)

    @contextmanager
    def _put(self, given: dict[Input, torch.Tensor]) -> Iterator[None]:
        """Let the function find ``given`` where it finds its tensors."""
        sources = [(source, tensor) for known, tensor in given.items() for source in known.sources]
        bindings = [(s.binding, x) for s, x in sources if isinstance(s, Held) and s.binding is not None]
        before = [binding.read() for binding, _ in bindings]
        with fake_owners(self._owners, lambda tensor, _: tensor):
            try:
                for source, tensor in sources:
                    if isinstance(source, TableEntry):
                        source.table[source.key] = tensor
                for binding, tensor in bindings:
                    binding.bind(tensor)
                yield
            finally:
                for (binding, _), x in zip(bindings, before, strict=True):
                    binding.bind(x)

    def _output(
        self, output: Any, memory: dict[Root, torch.Tensor], tensors: dict[Variable, torch.Tensor]
    ) -> torch.Tensor:
        match output:
            case WrittenOutput(root, region):
                return _view(memory[root], root.region, region)
            case ResultOutput(variable):
                return tensors[variable]
            case BaseOutput(variable):
                return self._base(variable, tensors)
            case _:
                raise AssertionError("numbers are refused before")

    def _base(self, variable: Variable, tensors: dict[Variable, torch.Tensor]) -> torch.Tensor:
        """The tensor that several results are views of; where autograd does not know it, one that shows as much."""
        if variable in tensors:
            return tensors[variable]
        wanted = variable.first
        results = [r for r in self._capture.results if isinstance(r, TensorResult)]
        views = [(r.region, tensors[r.variable]) for r in results if r.region.storage is wanted.storage]
        for _, view in views:
            base = view._base
            if base is not None and geometry_of(base) == wanted.geometry:  # not a view of it, inside of a transform
                return base
        return _gathered(wanted, views)


class _Kept(torch.autograd.Function):
    """A copy that lies in memory as its original does, under any transform."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        """The copy."""
        return _copy(x) if without_overlap(x) is x else x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Nothing is needed for its derivatives."""

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
        """The cotangent itself."""
        return cotangent

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        """The tangent itself, in other memory as the copy is."""
        return tangent.clone()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: torch.Tensor) -> Any:
        """Copies of all examples at once."""
        return _Kept.apply(x), in_dims[0]  # type: ignore[no-untyped-call]  # PyTorch gives it no types


def _root(given: Any) -> Root:
    if isinstance(given, RootInput):
        return given.root
    raise _no_numbers()


def _region(output: Any) -> Region:
    if isinstance(output, NumberOutput):
        raise _no_numbers()
    region: Region = output.region
    return region


def _no_numbers() -> TransformRefused:
    return TransformRefused(
        "a program under a transform returns, or asks for, a number that depends on the values of tensors",
        where=None,
        remedy="return tensors, and compute with them (torch.where in the place of if)",
    )


def _copy(x: torch.Tensor) -> torch.Tensor:
    """A copy that lies in memory as ``x`` does, so that the function takes the same views of it."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def _empty(region: Region) -> torch.Tensor:
    geometry = region.geometry
    return torch.empty_strided(geometry.sizes, geometry.strides, dtype=region.dtype, device=region.storage.device)


def _gathered(wanted: Region, views: list[tuple[Region, torch.Tensor]]) -> torch.Tensor:
    """What ``wanted`` holds, as far as ``views`` of its memory show it."""
    if len({_real(region.dtype) for region in (wanted, *(region for region, _ in views))}) > 1:
        raise TransformRefused(
            "results share memory as numbers of several types, and autograd does not know what they are views of",
            where=None,
            remedy="return clones of them",
        )
    index = _choice(_as_reals(wanted), [_as_reals(region) for region, _ in views])
    found = torch.cat([_reals(view).reshape(-1) for _, view in views])[index]
    found = torch.view_as_complex(found) if wanted.dtype.is_complex else found
    return _empty(wanted).copy_(found)


def _choice(wanted: Geometry, shown: list[Geometry]) -> torch.Tensor:
    """Which element of tensors that lie as ``shown``, one after the other, each element of ``wanted`` is.

    Of an element that none shows it does not matter what it is.
    """
    with without_modes():
        places = [_places(geometry) for geometry in (wanted, *shown)]
        found = torch.zeros(max(geometry.span()[1] for geometry in (wanted, *shown)), dtype=torch.int64)
        found[torch.cat(places[1:])] = torch.arange(sum(len(x) for x in places[1:]))
        return found[places[0]].reshape(wanted.sizes)


def _places(geometry: Geometry) -> torch.Tensor:
    memory = torch.arange(max(geometry.span()[1], 1))
    return memory.as_strided(geometry.sizes, geometry.strides, geometry.offset).reshape(-1)


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def _reals(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _as_reals(region: Region) -> Geometry:
    """Where the real numbers of ``region`` are in its storage."""
    geometry = region.geometry
    if not region.dtype.is_complex:
        return geometry
    return Geometry((*geometry.sizes, 2), (*(2 * stride for stride in geometry.strides), 1), 2 * geometry.offset)


def _given(known: Input, memory: dict[Root, torch.Tensor]) -> torch.Tensor:
    for root, tensor in memory.items():
        if known in root.members:
            return _view(tensor.view_as(tensor), root.region, known.before)
    return _empty(known.before)


def _view(base: torch.Tensor, shown: Region, wanted: Region) -> torch.Tensor:
    """What ``base``, which stands for ``shown``, has at ``wanted``."""
    chain = chain_between(shown, wanted)
    if chain is None:
        geometry = wanted.geometry
        offset = base.storage_offset() + geometry.offset - shown.geometry.offset
        return base.as_strided(geometry.sizes, geometry.strides, offset)
    for step in chain:
        base = resolve_op(step.op)(base, *step.arguments)
    return base.conj() if wanted.conj != shown.conj else base
