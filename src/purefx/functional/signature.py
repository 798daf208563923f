"""What a functional graph takes and returns: a record for each of its inputs and outputs, in the graph's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from purefx.capture.recording import Region, Variable
from purefx.functional.builder import Value
from purefx.functional.contents import Merge
from purefx.functional.roots import Root
from purefx.functional.seen import Shown
from purefx.functional.writes import InPlace


@dataclass(frozen=True, slots=True, eq=False)
class RootInput:
    """A graph input: the memory of a root as it was before the call."""

    name: str
    root: Root


@dataclass(frozen=True, slots=True, eq=False)
class SymbolInput:
    """A graph input: a size symbol, whose value the prologue reads off the arguments."""

    name: str
    symbol: Any


@dataclass(frozen=True, slots=True, eq=False)
class TangentInput:
    """An input of a backward graph: the gradient of what the program's output number ``slot`` became."""

    name: str
    slot: int
    region: Region


@dataclass(frozen=True, slots=True, eq=False)
class ResidualInput:
    """An input of a backward graph: the value that the node ``name`` of the forward graph had, or a size."""

    name: str
    value: Value | None
    symbol: Any = None


ForwardInput = RootInput | SymbolInput
BackwardInput = ResidualInput | TangentInput | RootInput
GraphInput = ForwardInput | BackwardInput


@dataclass(frozen=True, slots=True, eq=False)
class WrittenOutput:
    """A graph output: what ``region`` of ``root`` holds after the call.

    ``whole`` is the node of all of the root, if the region has not been written since that was computed.
    ``shown`` is the tensor whose history the write becomes a part of; None where autograd does not see it.
    """

    root: Root
    region: Region
    whole: fx.Node | None
    shown: Shown | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ResultOutput:
    """A graph output: a result whose memory nobody else can reach.

    ``is_view`` tells that the graph returns a view of a tensor that nobody else has.
    """

    variable: Variable
    region: Region
    is_view: bool


@dataclass(frozen=True, slots=True, eq=False)
class BaseOutput:
    """A graph output: memory made inside that several results show; ``is_view`` as in `ResultOutput`."""

    variable: Variable
    region: Region
    is_view: bool


@dataclass(frozen=True, slots=True, eq=False)
class NumberOutput:
    """A graph output: a number that the program read out of a tensor.

    ``symbol`` is the symbolic number that the program returns, or the size symbol that the wrapper needs.
    """

    symbol: Any


@dataclass(frozen=True, slots=True, eq=False)
class ResidualOutput:
    """A graph output: a value that the backward needs; ``name`` is that of its node, or of what it is a copy of."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class GradientOutput:
    """An output of a backward graph: the gradient of each of ``targets``, which are positions."""

    targets: tuple[int, ...]
    region: Region


ForwardOutput = WrittenOutput | ResultOutput | BaseOutput | NumberOutput | ResidualOutput
BackwardOutput = GradientOutput | WrittenOutput
GraphOutput = ForwardOutput | BackwardOutput


@dataclass(frozen=True, slots=True, eq=False)
class FunctionalGraph:
    """A functional graph with its signature; position i of ``inputs`` is placeholder i, likewise ``outputs``."""

    graph: fx.Graph
    constants: dict[str, torch.Tensor | fx.GraphModule]
    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...]
    values: dict[fx.Node, Value]
    lines: dict[fx.Node, str]


@dataclass(frozen=True, slots=True, eq=False)
class Functional(FunctionalGraph):
    """The functional graph of a program."""

    inputs: tuple[ForwardInput, ...]
    outputs: tuple[ForwardOutput, ...]
    merges: tuple[tuple[Root, Merge], ...] = ()
    in_place: tuple[tuple[Root, InPlace], ...] = ()
    written: frozenset[Root] = frozenset()
    """The roots whose memory the graph itself writes."""

    @property
    def roots(self) -> list[Root]:
        """The roots that the graph reads, and those that are only written back."""
        read = [given.root for given in self.inputs if isinstance(given, RootInput)]
        written = [output.root for output in self.outputs if isinstance(output, WrittenOutput)]
        return list(dict.fromkeys([*read, *written]))


@dataclass(frozen=True, slots=True, eq=False)
class FunctionalBackward(FunctionalGraph):
    """The functional graph of the backward of a program, for one pattern of tangents.

    ``refusal`` is what eager raises unless all gradients are accumulated.
    """

    inputs: tuple[BackwardInput, ...]
    outputs: tuple[BackwardOutput, ...]
    refusal: RuntimeError | None = None


def module_of(functional: FunctionalGraph) -> fx.GraphModule:
    """The graph of ``functional`` as a module that can run."""
    return fx.GraphModule(dict(functional.constants), functional.graph, class_name="functional")
