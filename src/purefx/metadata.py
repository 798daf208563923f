"""What a caller can observe of a program, under the names that PyTorch's ``ViewAndMutationMeta`` gave it.

The names and the booleans are PyTorch's, so that both answers can be compared field by field; purefx itself
decides nothing by them.  What each field says is said here; that it is true is the promise of
``purefx.analysis.metadata``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import torch

from purefx.capture.recording import Call
from purefx.layout import Int

ViewChain = tuple[Call, ...]
"""The recorded calls that make an output from its base, in order."""


class MutationType(Enum):
    """Who makes an argument's change happen: nobody, the graph, or what runs after it."""

    NOT_MUTATED = 1
    MUTATED_IN_GRAPH = 2
    MUTATED_OUT_GRAPH = 3


class OutputType(Enum):
    """How an output relates to the memory that the caller holds.

    ``non_alias``                                  memory that the graph returns, or no tensor
    ``alias_of_input``                             shares storage with an argument
    ``is_input``                                   the very object that was passed
    ``alias_of_intermediate_save_as_output``       shows a base made inside, as the first output to do so
    ``alias_of_intermediate``                      shows a base that an earlier output has saved
    ``alias_of_intermediate_base_is_user_output``  shows a base that is itself an output
    ``unsafe_view_alias``                          a view whose base is hidden; never the answer here, because
                                                   eager shows the base (``_base``): such a base is saved
    ``custom_function_view``                       a custom autograd function's view of an argument
    """

    non_alias = 1
    alias_of_input = 2
    is_input = 3
    alias_of_intermediate_save_as_output = 4
    alias_of_intermediate = 5
    alias_of_intermediate_base_is_user_output = 6
    unsafe_view_alias = 7
    custom_function_view = 8


@dataclass(frozen=True, slots=True)
class InputAliasInfo:
    """What becomes of one argument.

    ``mutates_data``              elements that it shows, before or after the call, are written
    ``mutates_metadata``          sizes, strides, offset or storage are others afterwards than before
    ``mutates_storage_metadata``  the storage is another (``set_``, ``.data =``)
    ``mutations_hidden_from_autograd``
                                  no write counted on its version (``x.data.add_``); true of no write at all
    ``mutations_under_no_grad_or_inference_mode``
                                  there were writes, and all ran under one of these modes
    ``mutation_inductor_storage_resize``
                                  the storage was freed or grown in place, as FSDP does
    ``requires_grad``             after the call; ``is_leaf`` is before it
    """

    is_leaf: bool
    mutates_data: bool
    mutates_metadata: bool
    mutations_hidden_from_autograd: bool
    mutations_under_no_grad_or_inference_mode: bool
    mutation_inductor_storage_resize: bool
    mutates_storage_metadata: bool
    requires_grad: bool
    keep_input_mutations: bool

    @property
    def mutation_type(self) -> MutationType:
        """By whom a change is made.

        In the graph, if that is wanted and autograd would not see the difference: the argument keeps its
        geometry and needs no gradient, or autograd was not to see the write in eager either.
        """
        stored = self.mutates_data or self.mutates_storage_metadata or self.mutation_inductor_storage_resize
        if not (stored or self.mutates_metadata):
            return MutationType.NOT_MUTATED
        unseen = self.mutations_hidden_from_autograd or self.mutations_under_no_grad_or_inference_mode
        plain = not self.mutates_metadata and not self.requires_grad
        if self.keep_input_mutations and stored and (plain or unseen):
            return MutationType.MUTATED_IN_GRAPH
        return MutationType.MUTATED_OUT_GRAPH


@dataclass(frozen=True, slots=True)
class OutputAliasInfo:
    """How one output relates to the others and to the arguments.

    ``base_idx`` counts arguments for the two ``input`` types, outputs for ``..._base_is_user_output``,
    intermediate bases for the other two ``intermediate`` types, and is None for the rest.
    ``dynamic_dims`` are the dimensions whose size is a symbol, None for what is no tensor.
    ``requires_grad_for_backward`` is whether autograd has recorded how it was made (``grad_fn``): a leaf, and a
    view that was made under no_grad of what requires grad, require grad without it.
    """

    output_type: OutputType
    raw_type: type
    base_idx: int | None
    dynamic_dims: frozenset[int] | None
    requires_grad: bool
    requires_grad_for_backward: bool
    view_chain: ViewChain


@dataclass(frozen=True, slots=True)
class InputMutationAOTOutput:
    """The new value of argument ``idx``, which the program wrote so that autograd recorded it."""

    idx: int


@dataclass(frozen=True, slots=True)
class PlainAOTOutput:
    """Output ``idx``."""

    idx: int


@dataclass(frozen=True, slots=True)
class IntermediateBaseAOTOutput:
    """Intermediate base ``idx``."""

    idx: int


GraphResult = InputMutationAOTOutput | PlainAOTOutput | IntermediateBaseAOTOutput
"""What the graph returns, by what it is for."""


@dataclass(frozen=True, slots=True)
class MemoryFormatMeta:
    """The layout that a tangent is traced with; one that arrives in another at run time is coerced to it."""

    size: tuple[Int, ...]
    stride: tuple[Int, ...]


@dataclass(frozen=True, slots=True)
class ProgramMetadata:
    """What a caller can observe of a program.

    ``input_info`` has an entry for each argument, and after them one for each tensor that the program reached
    by itself.  ``static_input_indices`` are those that the caller named, and the parameters.
    ``grad_enabled_mutation`` is the grad mode that the program leaves behind, None if it is the one it found.
    ``tokens`` is empty: effects keep their order in the graph.

    ``traced_tangents`` has a fake tensor for each value that the graph returns and that autograd has recorded:
    written arguments first, then outputs, then intermediate bases.  ``traced_tangents_descs`` says of which
    value each is the cotangent.  What is made from another value by replay has none: autograd goes through the
    replayed view.
    """

    input_info: tuple[InputAliasInfo, ...]
    output_info: tuple[OutputAliasInfo, ...]
    num_intermediate_bases: int
    keep_input_mutations: bool
    static_input_indices: tuple[int, ...]
    grad_enabled_mutation: bool | None
    tokens: Mapping[str, torch.Tensor]
    traced_tangents: tuple[torch.Tensor, ...]
    traced_tangents_descs: tuple[GraphResult, ...]

    @property
    def traced_tangent_metas(self) -> tuple[MemoryFormatMeta, ...]:
        """The layouts of the tangents."""
        return tuple(MemoryFormatMeta(tuple(t.shape), t.stride()) for t in self.traced_tangents)


__all__ = [
    "GraphResult",
    "InputAliasInfo",
    "InputMutationAOTOutput",
    "IntermediateBaseAOTOutput",
    "MemoryFormatMeta",
    "MutationType",
    "OutputAliasInfo",
    "OutputType",
    "PlainAOTOutput",
    "ProgramMetadata",
    "ViewChain",
]
