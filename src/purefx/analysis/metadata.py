"""The analysis: from a recording to what a caller can observe, in PyTorch's names.

    def f(x):                     input_info[0]     mutates_data
        x.mul_(2)                 output_info[0]    alias_of_input, base_idx 0, view_chain (aten.t,)
        y = x + 1                 output_info[1]    non_alias
        return x.t(), y, y[0]     output_info[2]    alias_of_intermediate_base_is_user_output, base_idx 1

Every answer is read off what the run has shown: storages, exact overlap of regions, version counters, grad
modes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from purefx.analysis.replay import Replay, Replayed, infer_replay
from purefx.analysis.tangents import history_of, infer_tangents
from purefx.capture.arguments import Leaf
from purefx.capture.captured import Capture, Input, Result, TensorResult
from purefx.capture.recording import Call, Effect, Recording, Region, Storage, Variable
from purefx.capture.session import capture
from purefx.functional.regions import disjoint
from purefx.layout import is_symbolic
from purefx.metadata import InputAliasInfo, OutputAliasInfo, OutputType, ProgramMetadata, ViewChain


def collect_metadata(
    f: Callable[..., Any], *, keep_input_mutations: bool = False, static_input_indices: Sequence[int] = ()
) -> Callable[..., ProgramMetadata]:
    """A function of ``f``'s positional arguments that returns what a caller can observe of that call.

    The arguments are only read.  Raises the error that ``f`` raises, UnknownArgumentType for an argument that
    is neither a tensor nor comparable, AutocastChanged if ``f`` leaves another autocast state behind.
    """

    def collect(*flat_args: Any) -> ProgramMetadata:
        captured = capture(f, flat_args, {})
        return infer_metadata(
            captured,
            infer_replay(captured),
            keep_input_mutations=keep_input_mutations,
            static_input_indices=static_input_indices,
        )

    return collect


def infer_metadata(
    capture: Capture,
    replay: Replay,
    *,
    keep_input_mutations: bool = False,
    static_input_indices: Sequence[int] = (),
) -> ProgramMetadata:
    """What a caller can observe of ``capture``, whose results are made as ``replay`` says."""
    arguments = arguments_of(capture)
    inputs = _Inputs(capture, keep_input_mutations=keep_input_mutations)
    input_info = tuple(map(inputs.info, arguments))
    outputs = _Outputs(capture, replay, arguments)
    output_info = tuple(outputs.info(result) for result in capture.results)
    tangents = infer_tangents(
        list(zip(arguments, input_info, strict=True)),
        list(zip(capture.results, output_info, strict=True)),
        outputs.saved,
    )
    parameters = {i for i, known in enumerate(arguments) if known and isinstance(known.tensor, torch.nn.Parameter)}
    left = None if capture.grad_after == capture.grad_before else capture.grad_after
    return ProgramMetadata(
        input_info=input_info,
        output_info=output_info,
        num_intermediate_bases=len(outputs.saved),
        keep_input_mutations=keep_input_mutations,
        static_input_indices=tuple(sorted({*static_input_indices, *parameters})),
        grad_enabled_mutation=left,
        tokens=MappingProxyType({}),
        traced_tangents=tuple(tangent.fake(capture.fake_mode) for tangent in tangents),
        traced_tangents_descs=tuple(tangent.of for tangent in tangents),
    )


def arguments_of(capture: Capture) -> tuple[Input | None, ...]:
    """The input behind each argument, None for what is no tensor; then the inputs that are no argument."""
    at: dict[int, Input] = {}
    lifted: list[Input] = []
    for known in capture.inputs:
        leaves = [source.index for source in known.sources if isinstance(source, Leaf)]
        at.update(dict.fromkeys(leaves, known))
        if not leaves:
            lifted.append(known)
    return (*(at.get(i) for i in range(len(capture.flat.leaves))), *lifted)


def element_writes(recording: Recording) -> dict[Storage, list[tuple[Call, Region]]]:
    """The calls that change elements, with the region that each changes, by storage and in order."""
    found: dict[Storage, list[tuple[Call, Region]]] = {}
    for call in recording:
        if call.effect is Effect.WRITE:
            for operand in call.written:
                found.setdefault(operand.region.storage, []).append((call, operand.region))
    return found


def writes_to(known: Input, writes: list[tuple[Call, Region]]) -> list[tuple[Call, Region]]:
    """Those of ``writes`` that change an element which ``known`` shows before or after the program.

    Only the storage that it came with counts: what it was given by ``set_`` belongs to somebody else.
    """
    shown = [known.before, known.after] if known.after.storage is known.before.storage else [known.before]
    return [(call, region) for call, region in writes if any(not disjoint(region, s) for s in shown)]


class _Inputs:
    """What becomes of the inputs of one capture."""

    def __init__(self, capture: Capture, *, keep_input_mutations: bool) -> None:
        self._inputs = capture.inputs
        self._writes = element_writes(capture.recording)
        resizing = [call for call in capture.recording if call.effect is Effect.STORAGE]
        self._resized = {operand.region.storage for call in resizing for operand in call.written}
        self._keep = keep_input_mutations

    def info(self, known: Input | None) -> InputAliasInfo:
        """What becomes of ``known``; None stands for an argument that is no tensor."""
        if known is None:
            return InputAliasInfo(*(False,) * 8, keep_input_mutations=self._keep)
        storage = known.before.storage
        calls = [call for call, _ in writes_to(known, self._writes.get(storage, []))]
        return InputAliasInfo(
            is_leaf=known.tensor.is_leaf,
            mutates_data=bool(calls),
            mutates_metadata=known.after != known.before,
            mutations_hidden_from_autograd=not calls or not self._counted(storage),
            mutations_under_no_grad_or_inference_mode=bool(calls)
            and all(call.modes.inference or not call.modes.grad for call in calls),
            mutation_inductor_storage_resize=storage in self._resized,
            mutates_storage_metadata=known.after.storage is not storage,
            requires_grad=known.fake.requires_grad,
            keep_input_mutations=self._keep,
        )

    def _counted(self, storage: Storage) -> bool:
        """Whether some tensor of ``storage`` counted a write, or has no counter (an inference tensor)."""
        sharing = [known for known in self._inputs if known.before.storage is storage]
        return any(known.writes or known.tensor.is_inference() for known in sharing)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a replayed result comes from: ``base``, and the ``chain`` of calls from there."""

    base: Variable
    chain: ViewChain


def infer_origin(result: TensorResult, replay: Replay, inputs: Sequence[Input]) -> Origin:
    """The argument or base whose memory ``result`` shows, and the replayed statements that lead from it.

    The base is the first that shows the storage of the result, looking from the result backwards.  What the
    program does to the geometry of the base itself is no part of the chain.
    """
    roots = {known.variable: (known.before.storage, known.after.storage) for known in inputs}
    roots |= {base.variable: (base.region.storage, base.variable.last.storage) for base in replay.bases}
    made = {variable: call for call in reversed(replay.statements) for variable in _made(call)}
    seen: dict[Variable, None] = {}
    calls: set[Call] = set()
    waiting = [result.variable]
    while waiting:
        variable = waiting.pop()
        if variable in seen:
            continue
        seen[variable] = None
        mine = [made[variable]] if variable in made else []
        if variable not in roots:
            mine += [c for c in replay.statements if any(o.variable is variable for o in c.written)]
        calls.update(mine)
        waiting.extend(o.variable for call in mine for o in call.operands)
    matching = (v for v in seen if v in roots and result.region.storage in roots[v])
    base = next(matching, result.variable)
    return Origin(base, tuple(call for call in replay.statements if call in calls))


def _made(call: Call) -> list[Variable]:
    operands = {operand.variable for operand in call.operands}
    return [o.variable for o in call.outputs if o.variable not in operands]


class _Outputs:
    """How the outputs of one capture relate to what the caller holds.

    ``saved`` are the bases that the outputs asked about so far have caused to be returned.
    """

    def __init__(self, capture: Capture, replay: Replay, arguments: Sequence[Input | None]) -> None:
        self._capture = capture
        self._replay = replay
        self._hows = dict(zip(map(id, capture.results), replay.results, strict=True))
        self._arguments = {known.variable: i for i, known in reversed(list(enumerate(arguments))) if known is not None}
        self._storages = {known.before.storage for known in capture.inputs}
        variables = [r.variable if isinstance(r, TensorResult) else None for r in capture.results]
        self._results = {v: i for i, v in reversed(list(enumerate(variables))) if v is not None}
        self._bases: dict[Variable, int] = {}

    @property
    def saved(self) -> tuple[Region, ...]:
        """The bases that are returned only so that outputs can be made from them."""
        regions = {base.variable: base.region for base in self._replay.bases}
        return tuple(regions[variable] for variable in self._bases)

    def info(self, result: Result) -> OutputAliasInfo:
        """How ``result`` relates to the others; to be called in the order of the results."""
        if not isinstance(result, TensorResult):
            return OutputAliasInfo(
                OutputType.non_alias,
                type(result.value),
                None,
                None,
                requires_grad=False,
                requires_grad_for_backward=False,
                view_chain=(),
            )
        kind, base, chain = self._relation(result)
        return OutputAliasInfo(
            output_type=kind,
            raw_type=self._type(result),
            base_idx=base,
            dynamic_dims=frozenset(i for i, n in enumerate(result.region.geometry.sizes) if is_symbolic(n)),
            requires_grad=result.fake.requires_grad,
            requires_grad_for_backward=history_of(result.fake) is not None,
            view_chain=chain,
        )

    def _type(self, result: TensorResult) -> type:
        owner = next((known for known in self._capture.inputs if known.variable is result.variable), None)
        return torch.Tensor if owner is None else type(owner.tensor)

    def _relation(self, result: TensorResult) -> tuple[OutputType, int | None, ViewChain]:
        if result.variable in self._arguments:
            return OutputType.is_input, self._arguments[result.variable], ()
        if _is_custom(result) and result.region.storage in self._storages:
            return OutputType.custom_function_view, None, ()
        if not isinstance(self._hows[id(result)], Replayed):
            return OutputType.non_alias, None, ()
        origin = infer_origin(result, self._replay, self._capture.inputs)
        if origin.base in self._arguments:
            return OutputType.alias_of_input, self._arguments[origin.base], origin.chain
        return self._of_intermediate(result, origin)

    def _of_intermediate(self, result: TensorResult, origin: Origin) -> tuple[OutputType, int | None, ViewChain]:
        if origin.base is result.variable:
            return OutputType.non_alias, None, origin.chain
        if origin.base in self._results:
            kind = OutputType.alias_of_intermediate_base_is_user_output
            return kind, self._results[origin.base], origin.chain
        known = origin.base in self._bases
        index = self._bases.setdefault(origin.base, len(self._bases))
        kind = OutputType.alias_of_intermediate if known else OutputType.alias_of_intermediate_save_as_output
        return kind, index, origin.chain


def _is_custom(result: TensorResult) -> bool:
    return isinstance(history_of(result.fake), BackwardCFunction)


__all__ = [
    "Origin",
    "arguments_of",
    "collect_metadata",
    "element_writes",
    "infer_metadata",
    "infer_origin",
    "writes_to",
]
