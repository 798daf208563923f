"""Programs of plain tensors and what transforms make of them: each is captured, compiled and run as one graph.

    Vjp(p, wrt)      (inputs, cotangents) -> gradients
    Joint(p, wrt)    (inputs, cotangents) -> outputs and gradients
    Jvp(p, wrt)      (inputs, tangents)   -> outputs and tangents
    Vmap(p, dims)    p of each example of a batch

A derivative is had by an honest run: PyTorch's ``vjp`` or ``jvp`` of the user's function, recorded on fakes.  A batch
is had of a functional graph, where nothing is written or viewed that vmap would have to keep.  So each program has a
normal form, vmap outermost: a derivative of a batch is the batch of the derivative, summed for what has no batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from purefx._torch import FakeTensorMode, outside_transforms, tangent_of, with_memory, without_modes
from purefx.capture.turns import ONE_AT_A_TIME
from purefx.operators import without_overlap
from purefx.transforms.differentiated import Wrt, differentiated, inexact_of, replaced
from purefx.transforms.draws import Draws, with_draws
from purefx.transforms.forward import SeparateWrites
from purefx.transforms.gradients import Teller
from purefx.transforms.graphs import Engine, Graph, Tensors, capture_values
from purefx.transforms.levels import first_of
from purefx.transforms.origins import Origin
from purefx.transforms.reach import Reach

Dims = tuple[int | None, ...]
Kind = tuple[Any, ...]
"""What a graph is made for: the geometry of each input; its dtype and device are those of a capture, and no others."""


class Program(ABC):
    """A function from ``arity`` plain tensors to plain tensors; ``halves`` and ``ways`` have what has been made of it.

    ``inexact`` tells of each output whether it has a gradient: whether it is of floating point or complex.  The
    geometry of the first ``given`` inputs is part of the program; the others are contiguous.  ``reaches`` has what its
    outputs are functions of, and ``pushes`` which of them have a tangent, as far as it is known.
    """

    def __init__(self, engine: Engine, name: str, arity: int, given: int, inexact: Sequence[bool]) -> None:
        self.engine = engine
        self.name = name
        self.arity = arity
        self.given = given
        self.inexact = tuple(inexact)
        self.inexact_places = [i for i, has_gradient in enumerate(inexact) if has_gradient]
        self._graphs: dict[Kind, Graph] = {}
        self._compiled: dict[Kind, Callable[..., Tensors]] = {}
        self._derived: dict[Any, Program] = {}
        self.halves: dict[Any, Any] = {}
        self.ways: dict[Any, Any] = {}
        self.reaches: dict[tuple[Wrt, Kind], Reach] = {}
        self.pushes: dict[tuple[Wrt, Kind], tuple[bool, ...]] = {}

    role = "inference"
    """Which of the compilers its graph is for."""

    teller = Teller.OPERATORS
    """Who tells its gradients."""

    draws: Draws | None = None
    """Which of its inputs are random numbers that its function draws by itself."""

    origins: Sequence[Origin] = ()
    """What each of the first outputs is computed of; the others may be of all inputs."""

    def are_batches(self, dims: Sequence[int | None], count: int) -> list[bool]:
        """Which of ``count`` outputs have a batch, if the inputs have it at ``dims``."""
        told = [origin is None or any(dims[i] is not None for i in origin) for origin in self.origins]
        return told + [True] * (count - len(told))

    @abstractmethod
    def function(self, *inputs: torch.Tensor) -> Tensors:
        """The program as PyTorch runs it."""

    def graph(self, inputs: Sequence[torch.Tensor]) -> Graph:
        """The functional graph for inputs such as ``inputs``."""
        kind = self.kind(inputs)
        if kind not in self._graphs:
            with ONE_AT_A_TIME:
                if kind not in self._graphs:  # still: another thread may have been faster
                    self._graphs[kind] = self._captured(inputs)
        return self._graphs[kind]

    def run(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        """The outputs, computed by compiled code."""
        return self._run(self.laid_out(inputs))

    def vjp(self, wrt: Wrt) -> Program:
        """The gradients with respect to the inputs ``wrt``."""
        return self._derive(("vjp", wrt), lambda: Vjp(self, wrt))

    def joint(self, wrt: Wrt) -> Program:
        """The outputs, then the gradients with respect to the inputs ``wrt``."""
        return self._derive(("joint", wrt), lambda: Joint(self, wrt))

    def jvp(self, wrt: Wrt) -> Program:
        """The outputs, then the tangents of the inexact ones; the inputs ``wrt`` have tangents."""
        return self._derive(("jvp", wrt), lambda: Jvp(self, wrt))

    def vmap(self, dims: Dims, randomness: str, *, whole: bool = False) -> Program:
        """The program of each example: ``dims`` says which dimension of each input is the batch.

        Gradients will be asked for of the batch as a ``whole``, or of each example.
        """
        whole = whole and self.teller is Teller.OPERATORS
        return self._derive(("vmap", dims, randomness, whole), lambda: Vmap(self, dims, randomness, whole=whole))

    def only(self, chosen: Sequence[int]) -> Program:
        """The program that has the outputs ``chosen`` alone, which are counted among the inexact ones."""
        if len(chosen) == len(self.inexact):
            return self
        places = tuple(self.inexact_places[k] for k in chosen)
        return self._derive(("only", places), lambda: self.some(places))

    def some(self, places: tuple[int, ...]) -> Program:
        """The program of the inexact outputs at ``places``."""
        return Some(self, places)

    def normal(self) -> Program:
        """The same program with vmap outermost."""
        return self

    def _derive(self, key: Any, make: Callable[[], Program]) -> Program:
        if key not in self._derived:
            self._derived[key] = make()
        return self._derived[key]

    def _captured(self, inputs: Sequence[torch.Tensor]) -> Graph:
        return with_draws(capture_values(self.function, fakes_like(inputs)), self.draws)

    def laid_out(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        """``inputs`` in the geometry that the program takes."""
        return tuple([self.lay(i, x) for i, x in enumerate(inputs)])

    def lay(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """``x``, which is input number ``i``, in the geometry that the program takes."""
        return with_memory(x) if i < self.given else plain(with_memory(x))

    def kind(self, inputs: Sequence[torch.Tensor]) -> Kind:
        """What decides which graph is made for ``inputs``."""
        return tuple([(x.shape, x.stride()) for x in inputs])

    def _run(self, inputs: Tensors) -> Tensors:
        kind = self.kind(inputs)
        if kind not in self._compiled:
            with ONE_AT_A_TIME, outside_transforms(), without_modes():
                graph = self.graph(inputs)
                self._compiled[kind] = self.engine.callable(self.name, graph, self.role, teller=self.teller)
        return self._compiled[kind](*inputs)


class Derivative(Program):
    """A derivative of ``of`` with respect to its inputs ``wrt``; it takes more after the inputs of ``of``."""

    def __init__(self, of: Program, wrt: Wrt, arity: int, inexact: Sequence[bool]) -> None:
        super().__init__(of.engine, f"{type(self).__name__.lower()}({of.name})", arity, of.given, inexact)
        self.of = of
        self.wrt = wrt
        self.teller = of.teller
        self.draws = of.draws

    @abstractmethod
    def of_program(self, program: Program) -> Program:
        """The same derivative of ``program``."""

    @abstractmethod
    def batches(self, dims: Dims, places: Dims) -> tuple[Dims, Dims]:
        """Where the batch is in the further inputs, and in the outputs, if ``of`` has it at ``dims`` and ``places``.

        ``places`` are those of all outputs of ``of``.  An output with None is summed over the batch.
        """

    def normal(self) -> Program:
        """The derivative of a batch is the batch of the derivative, unless that is asked for of the whole."""
        return self._derive("normal", self._normal)

    def _normal(self) -> Program:
        of = self.of.normal()
        if not isinstance(of, Vmap) or of.whole:
            return self
        return self._of_batch(of)

    def _of_batch(self, of: Vmap) -> Vmap:
        """The derivative of each example of ``of``."""
        added, places = self.batches(of.dims, of.places)
        return Vmap(self.of_program(of.of), (*of.dims, *added), of.randomness, places)

    def _captured(self, inputs: Sequence[torch.Tensor]) -> Graph:
        normal = self.normal()
        if normal is not self:
            return normal.graph(inputs)
        of = self.of.normal()
        if isinstance(of, Vmap):  # its gradients are those of operators, but what the program raises is raised
            self._of_batch(of).example(inputs)
        return super()._captured(inputs)


class Vjp(Derivative):
    """The gradients of ``of``, with the forward once more."""

    def __init__(self, of: Program, wrt: Wrt) -> None:
        super().__init__(of, wrt, of.arity + sum(of.inexact), (True,) * len(wrt))

    def of_program(self, program: Program) -> Program:
        """The gradients of ``program``."""
        return program.vjp(self.wrt)

    def batches(self, dims: Dims, places: Dims) -> tuple[Dims, Dims]:
        """A gradient has the batch where its input has it, a cotangent where its output has it."""
        return inexact_of(self.of, places), tuple(dims[i] for i in self.wrt)

    def function(self, *inputs: torch.Tensor) -> Tensors:
        """PyTorch's gradients."""
        return differentiated(self.of, self.wrt, inputs)[1]


class Joint(Derivative):
    """The outputs of ``of``, and the gradients."""

    def __init__(self, of: Program, wrt: Wrt) -> None:
        super().__init__(of, wrt, of.arity + sum(of.inexact), (*of.inexact, *(True,) * len(wrt)))

    def of_program(self, program: Program) -> Program:
        """The outputs of ``program``, and the gradients."""
        return program.joint(self.wrt)

    def batches(self, dims: Dims, places: Dims) -> tuple[Dims, Dims]:
        """A gradient has the batch where its input has it, a cotangent where its output has it."""
        return inexact_of(self.of, places), (*places, *(dims[i] for i in self.wrt))

    def function(self, *inputs: torch.Tensor) -> Tensors:
        """What PyTorch computes."""
        outputs, gradients = differentiated(self.of, self.wrt, inputs)
        return (*outputs, *gradients)


class Jvp(Derivative):
    """The outputs of ``of``, and the tangents of those that are inexact."""

    def __init__(self, of: Program, wrt: Wrt) -> None:
        super().__init__(of, wrt, of.arity + len(wrt), (*of.inexact, *(True,) * sum(of.inexact)))

    def of_program(self, program: Program) -> Program:
        """The outputs of ``program``, and the tangents."""
        return program.jvp(self.wrt)

    def batches(self, dims: Dims, places: Dims) -> tuple[Dims, Dims]:
        """A tangent has the batch where its input or output has it."""
        return tuple(dims[i] for i in self.wrt), (*places, *inexact_of(self.of, places))

    def function(self, *inputs: torch.Tensor) -> Tensors:
        """What PyTorch computes."""
        own, tangents = inputs[: self.of.arity], inputs[self.of.arity :]

        def inexact(*chosen: torch.Tensor) -> tuple[Tensors, Tensors]:
            with SeparateWrites(hooks=False):
                outputs = self.of.function(*replaced(own, self.wrt, chosen))
            known = [tangent_of(x) is not None for x in inexact_of(self.of, outputs)]
            self.of.pushes[self.wrt, self.of.kind(own)] = tuple(known)
            return inexact_of(self.of, outputs), outputs

        primals = tuple(without_overlap(own[i]) for i in self.wrt)  # a tangent lies like its primal
        _, found, outputs = cast(Any, torch.func.jvp(inexact, primals, tangents, has_aux=True))
        return (*outputs, *found)


class Some(Program):
    """The outputs of ``of`` at ``places``, which are inexact."""

    def __init__(self, of: Program, places: tuple[int, ...]) -> None:
        super().__init__(of.engine, of.name, of.arity, of.given, (True,) * len(places))
        self.of = of
        self.places = places
        self.teller = of.teller
        self.draws = of.draws
        told = len(of.origins)
        self.origins = [of.origins[i] if i < told else None for i in places]

    def function(self, *inputs: torch.Tensor) -> Tensors:
        """Those of its outputs."""
        outputs = self.of.function(*inputs)
        return tuple(outputs[i] for i in self.places)

    def normal(self) -> Program:
        """Some outputs of a batch are the batch of these."""
        of = self.of.normal()
        return self if of is self.of else of._derive(("only", self.places), lambda: of.some(self.places))

    def graph(self, inputs: Sequence[torch.Tensor]) -> Graph:
        """The graph of the whole program, of which it gives less."""
        graph = self.of.graph(inputs)
        return replace(graph, gives=tuple(graph.gives[i] for i in self.places))

    def lay(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """``x`` as the whole program takes it."""
        return self.of.lay(i, x)


class Vmap(Program):
    """``of`` for each example: the batch of each input is at ``dims``, that of each output is put at ``places``.

    Its gradients are those of each example, summed for what has no batch; or, if it is differentiated as a ``whole``,
    those of the operators that run for all examples at once.  Then no gradient of an example is ever in memory.
    """

    def __init__(
        self, of: Program, dims: Dims, randomness: str, places: Dims | None = None, *, whole: bool = False
    ) -> None:
        super().__init__(of.engine, f"vmap({of.name})", of.arity, of.given, of.inexact)
        self.of = of
        self.teller = of.teller
        self.origins = of.origins
        self.dims = dims
        self.randomness = randomness
        self.whole = whole
        self.places = (0,) * len(of.inexact) if places is None else places

    def some(self, places: tuple[int, ...]) -> Program:
        """The batch of these outputs of each example."""
        of, moved = self.of.some(places), tuple(self.places[i] for i in places)
        return Vmap(of, self.dims, self.randomness, moved, whole=self.whole)

    def function(self, *inputs: torch.Tensor) -> Tensors:
        """PyTorch's vmap of the graph of one example."""
        return self._batched(inputs)(*inputs)

    def _captured(self, inputs: Sequence[torch.Tensor]) -> Graph:
        return capture_values(self._batched(inputs), fakes_like(inputs))

    def example(self, inputs: Sequence[torch.Tensor]) -> Graph:
        """The graph of an example; raises what the program raises for it."""
        with outside_transforms(), without_modes():  # those of a derivative that is being captured
            return self.of.graph(self.examples(fakes_like(inputs)))

    def examples(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        """The first example of each of ``inputs``."""
        return tuple(x if dim is None else first_of(x, dim) for x, dim in zip(inputs, self.dims, strict=True))

    def _batched(self, inputs: Sequence[torch.Tensor]) -> Callable[..., Tensors]:
        one = self.example(inputs).batchable(self.randomness)

        def batched(*given: torch.Tensor) -> Tensors:
            outputs = torch.func.vmap(one, in_dims=self.dims, randomness=self.randomness)(*given)
            return tuple(map(_placed, outputs, self.places))

        return batched


class Fixed(Program):
    """A program whose one graph was made before it."""

    def __init__(
        self, engine: Engine, name: str, arity: int, given: int, inexact: Sequence[bool], graph: Graph
    ) -> None:
        super().__init__(engine, name, arity, given, inexact)
        self._graph = graph

    def function(self, *inputs: torch.Tensor) -> Tensors:
        """The graph."""
        return self._graph.batchable()(*inputs)

    def graph(self, inputs: Sequence[torch.Tensor]) -> Graph:
        """The graph, which was made for the very inputs that it gets."""
        return self._graph

    def kind(self, inputs: Sequence[torch.Tensor]) -> Kind:
        """Nothing: there is one graph."""
        return ()


def _placed(x: torch.Tensor, place: int | None, depth: int = 0) -> torch.Tensor:
    """``x`` with the batch that is its dimension ``depth`` put at ``place`` among those after; summed for None."""
    return x.sum(depth) if place is None else x.movedim(depth, depth + place)


def plain(x: torch.Tensor) -> torch.Tensor:
    """``x`` contiguous, with its elements in memory as they are."""
    return x.contiguous().resolve_conj().resolve_neg()


def fakes_like(inputs: Sequence[torch.Tensor]) -> Tensors:
    """Fakes like ``inputs``, each with memory of its own."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return tuple(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in inputs)
