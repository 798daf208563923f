"""PyTorch's own analysis and purefx's as plain data that can be compared field by field.

A fact is one field of one answer: ``facts["output 1 base_idx"]``.  Both sides name theirs alike, so that what differs
is a set of names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch._functorch._aot_autograd import descriptors
from torch._functorch._aot_autograd.collect_metadata_analysis import run_functionalized_fw_and_collect_metadata
from torch._functorch._aot_autograd.descriptors import TangentAOTInput
from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
from torch._subclasses.fake_tensor import FakeTensorMode

from purefx._torch import pytree
from purefx.metadata import (
    GraphResult,
    InputMutationAOTOutput,
    IntermediateBaseAOTOutput,
    PlainAOTOutput,
    ProgramMetadata,
)

Program = Callable[..., Any]
Facts = dict[str, object]

INPUT_FIELDS = (
    "is_leaf", "mutates_data", "mutates_metadata", "mutations_hidden_from_autograd",
    "mutations_under_no_grad_or_inference_mode", "mutation_inductor_storage_resize",
    "mutates_storage_metadata", "requires_grad", "keep_input_mutations",
)  # fmt: skip
PLACES = {InputMutationAOTOutput: "input", PlainAOTOutput: "output", IntermediateBaseAOTOutput: "base"}
REFUSAL = "refuses"
"""The fact that takes the place of all others where PyTorch's analysis raises an error."""


def facts_of(metadata: ProgramMetadata) -> Facts:
    """What purefx says."""
    return _facts(metadata, metadata.traced_tangents_descs)


def peer_facts(
    program: Program, args: tuple[Any, ...], *, keep_input_mutations: bool, static_input_indices: Sequence[int] = ()
) -> Facts:
    """What PyTorch says; ``REFUSAL`` alone where it raises instead."""
    try:
        metadata = peer_metadata(
            program, args, keep_input_mutations=keep_input_mutations, static_input_indices=static_input_indices
        )
        return _facts(metadata, _descriptions(metadata))
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        return {REFUSAL: f"{type(error).__name__}: {error}"}


def peer_metadata(
    program: Program, args: tuple[Any, ...], *, keep_input_mutations: bool, static_input_indices: Sequence[int]
) -> ViewAndMutationMeta:
    """PyTorch's own answer, for fakes of ``args``."""
    mode = FakeTensorMode()
    leaves, structure = pytree.tree_flatten(args)
    fakes = [mode.from_tensor(x) if isinstance(x, Tensor) else x for x in leaves]

    def flat(*flat_args: Any) -> Any:
        return pytree.tree_leaves(program(*pytree.tree_unflatten(flat_args, structure)))

    collect = run_functionalized_fw_and_collect_metadata(
        flat,
        flat_args_descs=[descriptors.PlainAOTInput(i) for i in range(len(leaves))],
        keep_input_mutations=keep_input_mutations,
        static_input_indices=list(static_input_indices),
    )
    with mode:
        return collect(*fakes)


def _descriptions(metadata: ViewAndMutationMeta) -> Iterator[GraphResult]:
    """Of which value each of PyTorch's tangents is the cotangent, in purefx's words."""
    bases = 0
    for tangent in metadata.traced_tangents_descs:
        match tangent:
            case TangentAOTInput(descriptors.InputMutationAOTOutput(descriptors.PlainAOTInput(idx))):
                yield InputMutationAOTOutput(idx)
            case TangentAOTInput(descriptors.PlainAOTOutput(idx)):
                yield PlainAOTOutput(idx)
            case TangentAOTInput(descriptors.IntermediateBaseAOTOutput()):
                yield IntermediateBaseAOTOutput(bases)
                bases += 1
            case _:
                raise AssertionError(f"a tangent of an unknown kind: {tangent}")


def _facts(metadata: ProgramMetadata | ViewAndMutationMeta, descriptions: Iterable[GraphResult]) -> Facts:
    whole: Facts = {
        "num_intermediate_bases": metadata.num_intermediate_bases,
        "keep_input_mutations": metadata.keep_input_mutations,
        "static_input_indices": tuple(metadata.static_input_indices),
        "grad_enabled_mutation": metadata.grad_enabled_mutation,
        "tokens": len(metadata.tokens),
    }
    for of, tangent in zip(descriptions, metadata.traced_tangents, strict=True):
        whole[f"tangent of {PLACES[type(of)]} {of.idx}"] = (tangent.dtype, tuple(tangent.shape), tangent.stride())
    return {**dict(_input_facts(metadata.input_info)), **dict(_output_facts(metadata.output_info)), **whole}


def _input_facts(infos: Sequence[Any]) -> Iterator[tuple[str, object]]:
    for i, info in enumerate(infos):
        for name in INPUT_FIELDS:
            yield f"input {i} {name}", getattr(info, name)
        yield f"input {i} mutation_type", info.mutation_type.name


def _output_facts(infos: Sequence[Any]) -> Iterator[tuple[str, object]]:
    for i, info in enumerate(infos):
        yield f"output {i} output_type", info.output_type.name
        yield f"output {i} base_idx", info.base_idx
        yield f"output {i} raw_type", Tensor if issubclass(info.raw_type, Tensor) else info.raw_type
        yield f"output {i} dynamic_dims", None if info.dynamic_dims is None else frozenset(info.dynamic_dims)
        yield f"output {i} requires_grad", info.requires_grad
        yield f"output {i} requires_grad_for_backward", info.requires_grad_for_backward
