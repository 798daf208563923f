"""Where PyTorch's analysis says something else than purefx's, why, and what eager shows of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.support.eager_run import EagerRun, share_storage
from tests.support.peer_metadata import REFUSAL


@dataclass(frozen=True)
class Disagreement:
    """``fields`` differ because of ``reason``; ``seen`` looks at a run of eager and says whether purefx is right.

    ``keep`` are the values of ``keep_input_mutations`` with which they differ.
    """

    fields: frozenset[str]
    reason: str
    seen: Callable[[EagerRun], bool]
    keep: tuple[bool, ...] = (False, True)


def differs(
    fields: str, reason: str, seen: Callable[[EagerRun], bool], *, keep: tuple[bool, ...] = (False, True)
) -> Disagreement:
    """A disagreement about ``fields``, written as "input 0: mutates_data mutation_type; tokens"."""
    names: set[str] = set()
    for part in fields.split("; "):
        place, colon, rest = part.partition(": ")
        names |= {f"{place} {name}" for name in rest.split()} if colon else {part}
    return Disagreement(frozenset(names), reason, seen, keep)


def written_through_another(i: int, other: int) -> Disagreement:
    """Argument ``i`` shares memory with argument ``other``, by way of which it is written."""
    return differs(
        f"input {i}: mutates_data mutations_hidden_from_autograd mutation_type",
        f"argument {i} reads what is written to argument {other}, and its version counts the write",
        lambda run: share_storage(run.args[i], run.args[other]) and run.is_written(i) and run.is_counted(i),
    )


def without_new_history(i: int, *, keep: tuple[bool, ...] = (False,)) -> Disagreement:
    """Argument ``i`` is written so that autograd does not record it."""
    return differs(
        f"tangent of input {i}",
        f"the write to argument {i} leaves its grad_fn as it was: no cotangent of the new value enters the program",
        lambda run: run.is_written(i) and run.has_its_history(i),
        keep=keep,
    )


def uncounted(i: int) -> Disagreement:
    """Argument ``i`` is written and its version does not tell."""
    return differs(
        f"input {i}: mutations_hidden_from_autograd",
        f"argument {i} is written, and its version is what it was",
        lambda run: run.is_written(i) and not run.is_counted(i),
    )


def shares_memory(i: int, other: int) -> Disagreement:
    """Outputs ``i`` and ``other`` show one storage."""
    return differs(
        f"output {i}: output_type base_idx",
        f"outputs {i} and {other} share memory: a write into one is seen in the other",
        lambda run: share_storage(run.results[i], run.results[other]),
    )


def shows_its_base(i: int) -> Disagreement:
    """Output ``i`` is a view, of which a caller can have the base."""
    return differs(
        f"output {i}: output_type base_idx",
        f"output {i} is a view of a tensor that can be had: _base",
        lambda run: run.results[i]._base is not None and run.results[i]._base is not run.results[i],
    )


def comes_from_its_base(i: int) -> Disagreement:
    """Output ``i`` is a view of a value that was recorded."""
    return differs(
        f"tangent of output {i}",
        f"the node of output {i} leads to that of its base and nowhere else: the base is what the program computed",
        lambda run: leads_to_its_base(run.results[i]),
    )


def leads_to_its_base(result: torch.Tensor) -> bool:
    """Whether a backward from ``result`` goes to its base, and nowhere else."""
    base, node = result._base, result.grad_fn
    if base is None or node is None:
        return False
    return [following for following, _ in node.next_functions] == [base.grad_fn]


def is_a_view_of_the_first_argument(i: int) -> Disagreement:
    """Output ``i`` is a view of argument 0."""
    return differs(
        f"output {i}: output_type; tangent of output {i}",
        f"output {i} is a view of the argument, and its node leads to the argument's",
        lambda run: run.results[i]._base is run.args[0] and leads_to_its_base(run.results[i]),
    )


def is_a_leaf(i: int) -> Disagreement:
    """Output ``i`` requires grad and has no history."""
    return differs(
        f"output {i}: requires_grad_for_backward",
        f"output {i} is a leaf: a backward ends there, and never enters the program by it",
        lambda run: run.results[i].requires_grad and run.results[i].is_leaf and run.results[i].grad_fn is None,
    )


BASE = "the base can be had, and so it is what the graph returns"
MOVED = "x has another storage after the call"
DISAGREEMENTS: dict[str, tuple[Disagreement, ...]] = {
    "writes_an_empty_slice": (
        differs(
            "input 0: mutates_data mutations_hidden_from_autograd mutation_type",
            "no element is written",
            lambda run: not run.is_written(0),
        ),
    ),
    "steps_with_momentum": (without_new_history(0), without_new_history(1)),
    "grows_out": (
        differs(
            "input 1: mutates_metadata",
            "out has other sizes after the call",
            lambda run: run.args[1].shape != run.before[1].values.shape,
        ),
        differs(
            "input 1: mutation_type",
            "out has other sizes after the call, which no graph can give it",
            lambda run: run.args[1].shape != run.before[1].values.shape,
            keep=(True,),
        ),
    ),
    "writes_under_no_grad": (without_new_history(0),),
    "writes_a_detached": (without_new_history(0, keep=(False, True)),),
    "writes_data": (uncounted(0),),
    "writes_without_grad_through_a_view": (without_new_history(0),),
    "updates_running_statistics": (
        uncounted(3),
        uncounted(4),
        differs(
            "static_input_indices",
            "argument 1 is a parameter",
            lambda run: isinstance(run.args[1], torch.nn.Parameter),
        ),
    ),
    "writes_the_matrix": (written_through_another(1, 0),),
    "writes_an_overlapping_slice": (written_through_another(1, 0),),
    "writes_a_live_matrix": (
        written_through_another(1, 0),
        differs(
            "tangent of input 1",
            "the write to a changes the grad_fn of b",
            lambda run: run.args[1].requires_grad and not run.has_its_history(1),
        ),
    ),
    "writes_the_detached_of_a_leaf": (written_through_another(0, 1),),
    "returns_one_of_the_same": (
        differs(
            "output 0: base_idx",
            "both arguments are the object that is returned: the first is as right as the last",
            lambda run: run.results[0] is run.args[0] and run.args[0] is run.args[1],
        ),
    ),
    "writes_the_bits": (written_through_another(1, 0),),
    "returns_inputs_and_values": (is_a_leaf(1),),
    "returns_one_view_of_a_base": (
        shows_its_base(0),
        comes_from_its_base(0),
        differs(
            "num_intermediate_bases; tangent of base 0", BASE, lambda run: run.results[0]._base.grad_fn is not None
        ),
    ),
    "returns_one_view_of_a_plain_base": (
        shows_its_base(0),
        differs("num_intermediate_bases", BASE, lambda run: run.results[0]._base is not None),
    ),
    "returns_a_plain_base_and_views": (shares_memory(1, 0), shares_memory(2, 0)),
    "returns_a_view_and_its_detached": (
        shares_memory(0, 1),
        differs(
            "output 1: output_type",
            "both outputs show the memory of w + 1, which is neither: output 1 is its transpose",
            lambda run: run.results[1]._base is not None and run.results[1]._base is not run.results[0],
        ),
    ),
    "returns_the_same_twice": (
        differs("tangent of output 1", "both outputs are one object", lambda run: run.results[0] is run.results[1]),
    ),
    "returns_a_leaf_of_the_same_memory": (
        shares_memory(0, 1),
        is_a_leaf(0),
        differs("tangent of output 0", "a backward ends at a leaf", lambda run: run.results[0].is_leaf),
    ),
    "returns_a_no_grad_view": (
        shows_its_base(0),
        differs(
            "num_intermediate_bases; tangent of base 0", BASE, lambda run: run.results[0]._base.grad_fn is not None
        ),
    ),
    "unbinds_an_input": tuple(is_a_view_of_the_first_argument(i) for i in range(3)),
    "unbinds_an_intermediate": (
        *(shows_its_base(i) for i in range(2)),
        *(comes_from_its_base(i) for i in range(2)),
        differs(
            "num_intermediate_bases; tangent of base 0",
            "both pieces have one base",
            lambda run: run.results[0]._base is run.results[1]._base,
        ),
    ),
    "unbinds_and_returns_the_base": (
        *(shows_its_base(i) for i in (1, 2)),
        *(comes_from_its_base(i) for i in (1, 2)),
    ),
    "takes_over_a_storage": (differs(REFUSAL, "eager runs it", lambda run: run.is_moved(0), keep=(False,)),),
    "swaps_data": (
        differs("input 0: mutates_metadata mutates_storage_metadata mutation_type", MOVED, lambda run: run.is_moved(0)),
    ),
    "swaps_data_and_writes": (
        differs("input 0: mutates_metadata mutates_storage_metadata", MOVED, lambda run: run.is_moved(0)),
        differs(
            "input 0: mutates_data mutations_hidden_from_autograd",
            "the elements that x came with are not written",
            lambda run: not run.is_written(0),
        ),
        differs("input 1: mutates_data mutation_type", "y reads the written elements", lambda run: run.is_written(1)),
    ),
    "narrows_data": (
        differs(
            "input 0: mutates_metadata mutation_type",
            "x has other sizes after the call",
            lambda run: run.args[0].shape != run.before[0].values.shape,
        ),
    ),
    "frees_storage": (
        differs(
            "input 0: mutation_inductor_storage_resize mutation_type",
            "the storage has no bytes after the call",
            lambda run: run.args[0].untyped_storage().nbytes() == 0,
        ),
    ),
    "returns_a_leaf_of_its_own": (
        is_a_leaf(1),
        differs("tangent of output 1", "a backward ends at a leaf", lambda run: run.results[1].is_leaf),
    ),
    "applies_a_dirty_function": (
        differs("tangent of output 1", "both outputs are one object", lambda run: run.results[0] is run.results[1]),
    ),
    "applies_a_dirty_function_to_an_input": (
        differs(
            "output 0: output_type base_idx; tangent of output 0",
            "the output is the argument",
            lambda run: run.results[0] is run.args[0],
        ),
    ),
    "pushes_forward": (
        shows_its_base(0),
        differs("num_intermediate_bases", BASE, lambda run: run.results[0]._base is not None),
    ),
    "takes_a_jacobian": (
        shows_its_base(0),
        differs("num_intermediate_bases", BASE, lambda run: run.results[0]._base is not None),
    ),
    "logs_twice": (
        differs(
            "tokens",
            "eager orders effects by running them, and so does the graph: nothing is passed from one to the next",
            lambda run: len(run.results) == 1,
        ),
    ),
    "takes_a_parameter": (
        differs(
            "static_input_indices",
            "argument 0 is a parameter",
            lambda run: isinstance(run.args[0], torch.nn.Parameter),
        ),
    ),
}
