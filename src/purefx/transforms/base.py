"""The user's function as a program of plain tensors: it takes the memory that it reads and returns what it computes.

    def f(x, w):           roots  (x, w)     outputs  new x, x * w
        x.add_(1)
        return x * w

The honest run gives the function views of copies of the roots, in the places where it finds its tensors, and reads its
writes off the copies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import torch

from purefx._torch import batch_of_each_vmap, pytree, tangent_of
from purefx.analysis.replay import Fresh, Replay
from purefx.capture.arguments import Held, Leaf, TableEntry
from purefx.capture.captured import Capture, Input, TensorResult, finder, name_of
from purefx.capture.edges import take_off_hooks
from purefx.capture.fakes import fake_like
from purefx.capture.owners import find_owners
from purefx.capture.recording import Region, Variable, geometry_of
from purefx.capture.stand_ins import fake_owners
from purefx.errors import TransformRefused
from purefx.functional.on_copies import OnCopies
from purefx.functional.regions import chain_between, once
from purefx.functional.roots import Root
from purefx.functional.signature import BaseOutput, Functional, NumberOutput, ResultOutput, RootInput, WrittenOutput
from purefx.layout import ViewDtype
from purefx.operators import apply_chain, is_inexact, without_overlap
from purefx.transforms.draws import Computed, Filled, infer_draws, with_draws
from purefx.transforms.gradients import Teller
from purefx.transforms.graphs import Engine, Graph, Tensors, capture_values
from purefx.transforms.levels import is_recorded
from purefx.transforms.node import call
from purefx.transforms.origins import UNREAD, infer_origins
from purefx.transforms.parts import in_parts, infer_parts
from purefx.transforms.programs import Fixed, Program


class Base(Fixed):
    """The user's function as it was captured; it detaches the inputs ``detached`` in place."""

    def __init__(
        self,
        engine: Engine,
        capture: Capture,
        replay: Replay,
        functional: Functional,
        teller: Teller,
        detached: Collection[Input],
    ) -> None:
        name = name_of(capture.function)
        self._capture = capture
        self._detached = detached
        self._parts = infer_parts(functional, capture)
        self.functional = in_parts(functional, self._parts, capture.recording)
        self._roots = [_root(given) for given in self.functional.inputs]
        written = {p.root for p in self._parts if p.root.written and not p.joined}
        self._overwritten = written - {_root(x) for x in functional.inputs}
        regions = [_region(output) for output in self.functional.outputs]
        inexact = [is_inexact(region.dtype) for region in regions]
        arity = len(self._roots)
        self._finders = {known: finder(known, capture.inputs) for known in capture.inputs}
        self._reached = [find for known, find in self._finders.items() if not isinstance(known.sources[0], Leaf)]
        self._owners = find_owners(capture.function, capture.flat.leaves)
        copying = any(isinstance(node.target, OnCopies) for node in functional.graph.nodes)
        self._rebound = [
            (how.variable, rebinding)
            for how, rebinding in zip(replay.rebound, capture.rebindings, strict=True)
            if isinstance(how, Fresh)
        ]
        graph = self._graph_of(functional)
        draws = infer_draws(graph, arity)
        by_storage = infer_origins(capture, self._roots)
        origins = [None if teller is Teller.PYTHON else by_storage.get(region.storage) for region in regions]
        self._apart = teller is Teller.PYTHON or any(UNREAD in origin for origin in origins if origin is not None)
        super().__init__(engine, name, arity + draws.count + self._apart, arity, inexact, with_draws(graph, draws))
        self.draws = draws
        self.teller = max(teller, Teller.PROGRAM) if copying or draws.dependent else teller
        self._drawing = [self._operands(draw) for draw in draws.each]
        self.origins = origins

    def _graph_of(self, functional: Functional) -> Graph:
        """The graph as a function of the parts.

        Rule: it reads each part by itself, since examples that share memory may be of batches that do not.

            vmap(lambda a, b: a * b, (0, None))(xs, xs[0])      the first example of a has the memory of b, no other has
        """
        if len(self._parts) > len(functional.roots) or any(p.joined or len(p.parts) > 1 for p in self._parts):
            return capture_values(self.function, list(map(self._example, self._roots)))
        takes = tuple(self._roots.index(_root(given)) for given in functional.inputs)
        return Graph(self._capture, functional, takes, tuple(range(len(functional.outputs))))

    def _example(self, root: Root) -> torch.Tensor:
        """A fake like ``root``, which requires grad if a tensor of it does."""
        fake = fake_like(root.region, self._capture.fake_mode)
        return fake.requires_grad_(any(member.fake.requires_grad for member in root.members))

    def check(self, leaves: Sequence[Any], original: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Raise TransformRefused where the function writes memory that ``leaves`` and what it reaches must not share.

        ``original`` gives the tensor that has an example.
        """
        if self._is_shared:
            for parts in self._parts:
                parts.check(lambda known: self._current(known, leaves, original), self._capture.inputs)

    def _current(
        self, known: Input, leaves: Sequence[Any], original: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """The tensor that ``known`` is now."""
        now = self._finders[known](leaves)
        if isinstance(known.sources[0], Leaf):
            return cast(torch.Tensor, now)
        return original(now) if isinstance(now, torch.Tensor) else original(known.tensor)

    @cached_property
    def _is_shared(self) -> bool:
        return any(p.root.written or (len(p.root.members) > 1 and len(p.parts) == 1) for p in self._parts)

    @cached_property
    def _rewritten(self) -> set[Root]:
        """What is read, and whose version a write after that moves: that of all that shares its memory."""
        written = {root.region.storage for root in self._roots if root.written}
        return {root for root in self._roots if root.region.storage in written} - self._overwritten

    def reached(self, leaves: Sequence[Any]) -> Iterator[torch.Tensor]:
        """The tensors that the function would find by itself now, besides ``leaves``."""
        return (tensor for find in self._reached if isinstance(tensor := find(leaves), torch.Tensor))

    def kept(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """``inputs`` as a backward may read them: copies of those that are written after the call.

        Of those that nothing reads only the batch is kept, in a tensor without elements.
        """
        if self._overwritten:
            pairs = zip(self._roots, inputs, strict=True)
            inputs = [x.detach().new_empty(0) if root in self._overwritten else x for root, x in pairs]
        if not self._rewritten or not any(map(is_recorded, inputs)):
            return inputs
        return [_Kept.apply(x) if root in self._rewritten else x for root, x in zip(self._roots, inputs, strict=True)]  # type: ignore[no-untyped-call]  # PyTorch gives it no types

    def call(self, *inputs: torch.Tensor) -> Tensors:
        """The outputs for the roots ``inputs``, whatever transforms have wrapped those."""
        drawn = self._drawn(inputs)
        apart = (batch_of_each_vmap(),) if self._apart else ()
        return call(self, (*self.kept(inputs), *drawn, *apart)) if self.inexact else ()

    def _drawn(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        """The random numbers of a call."""
        if not self._drawing:
            return ()
        found: Tensors = tuple(x.detach() for x in inputs)
        with torch.no_grad():
            for draw, operands, read in self._drawing:
                found += draw.draw(*(call(operands, [found[i] for i in read]) if operands else ()))
        return found[len(inputs) :]

    def _operands(self, draw: Filled | Computed) -> tuple[Filled | Computed, Program | None, Sequence[int]]:
        """``draw``, the program of the tensors that it reads, and which of the inputs and the draws that takes."""
        graph = None if isinstance(draw, Filled) else draw.operands
        if graph is None:
            return draw, None, ()
        read = sorted({x for x in graph.takes if isinstance(x, int)})
        takes = tuple(read.index(x) if isinstance(x, int) else x for x in graph.takes)
        given = sum(i < self.given for i in read)
        inexact = (True,) * len(graph.gives)
        program = Fixed(self.engine, f"drawn({self.name})", len(read), given, inexact, replace(graph, takes=takes))
        return draw, program, read

    def function(self, *inputs: torch.Tensor) -> Tensors:
        """The function on views of ``inputs``, or of copies where it writes; what it draws is none of them to it."""
        memory = self._memory(dict(zip(self._roots, inputs, strict=False)))
        given = {known: self._given(known, memory) for known in self._capture.inputs}
        args, kwargs = self._arguments(given)
        with self._put(given):
            results = pytree.tree_leaves(self._capture.function(*args, **kwargs))
            for tensor in given.values():
                take_off_hooks(tensor)  # they are on the tensors of the call
            tensors = {
                r.variable: x
                for r, x in zip(self._capture.results, results, strict=True)
                if isinstance(r, TensorResult)
            }
            tensors.update((variable, rebinding.table[rebinding.key]) for variable, rebinding in self._rebound)
        return tuple(self._output(output, memory, tensors) for output in self.functional.outputs)

    def _memory(self, given: dict[Root, torch.Tensor]) -> dict[Root, torch.Tensor]:
        """What stands for the parts in one run: where the function writes, copies that share what the parts share."""
        memory: dict[Root, torch.Tensor] = {}
        for parts in self._parts:
            memory.update((part, given[part]) for part in parts.early if part in given)
            if parts.joined:
                whole, region = _empty(parts.root.region), parts.root.region
                for part in parts.parts:
                    _view(whole, region, part.region).copy_(given[part])
                memory.update((part, _view(whole, region, part.region)) for part in parts.parts)
                continue
            for part in parts.parts:
                x = None if part in self._overwritten else given.get(part)
                memory[part] = _empty(part.region) if x is None else _copy(x) if part.written else x
        return memory

    def _given(self, known: Input, memory: dict[Root, torch.Tensor]) -> torch.Tensor:
        """A view of what stands for the memory of ``known``; no view where that is to be detached."""
        for root, tensor in memory.items():
            if known in root.members:
                if known in self._detached and len(root.members) == 1 and root.region == known.before:
                    return _copy(tensor)
                return _view(tensor.view_as(tensor), root.region, known.before)
        return _empty(known.before)

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
        wanted = variable.first
        if variable in tensors:
            return _view(tensors[variable], variable.last, wanted)
        views = [r for r in self._capture.results if isinstance(r, TensorResult) and r.region.storage is wanted.storage]
        for result in views:
            tensor = tensors[result.variable]
            base = tensor._base
            if base is None or _is_apart(tensor, base):
                continue
            if geometry_of(base) == wanted.geometry:  # not a view of it, inside of a transform
                return base
        made = _empty(wanted).zero_()
        for result in views:
            region = result.region.at(once(result.region.geometry))
            _view(made, wanted, region).copy_(_first(tensors[result.variable], region.geometry.sizes))
        return made


def _is_apart(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether ``view`` has a history or a tangent, and ``base`` none: a function made it, or the base is detached."""
    lacks_tangent = tangent_of(view) is not None and tangent_of(base) is None
    return lacks_tangent or (view.requires_grad and not base.requires_grad)


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


def _first(x: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor:
    """The first elements of ``x``, as many as ``sizes`` says."""
    for dim, size in enumerate(sizes):
        x = x.narrow(dim, 0, size)
    return x


def _view(base: torch.Tensor, shown: Region, wanted: Region) -> torch.Tensor:
    """What ``base``, which stands for ``shown``, has at ``wanted``."""
    chain = chain_between(shown, wanted)
    if chain is None:
        geometry = wanted.geometry
        offset = base.storage_offset() + geometry.offset - shown.geometry.offset
        return base.as_strided(geometry.sizes, geometry.strides, offset)
    for step in chain:
        if isinstance(step, ViewDtype):
            base = _reinterpreted(base, cast(torch.dtype, step.dtype))
        else:
            base = apply_chain(base, (step,))
    return base.conj() if wanted.conj != shown.conj else base


def _reinterpreted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x.view(dtype)``; of complex numbers and their parts by operators that have derivatives."""
    if x.is_complex() and dtype == x.dtype.to_real():
        return torch.view_as_real(x).view(*x.shape[:-1], -1)
    if dtype.is_complex and dtype.to_real() == x.dtype:
        return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return x.view(dtype)
