"""The call of a program, as PyTorch's transforms see it: one node at each level that asks for derivatives of it.

    level 2  grad     unwrapped, asked of level 1, wrapped; a `Node` records how to have the gradients
    level 1  vmap     the batches taken off; the batched program is asked of what is below
    below             a compiled graph on plain tensors

So transforms nest to any depth.  PyTorch would walk through them in the same way for an ``autograd.Function`` with a
rule for each (``custom_function_call``), and take several times as long as the graph of a small model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from purefx._torch import (
    OneLevelFunction,
    Transform,
    add_batch,
    applied_at_one_level,
    batched_by_function,
    below_functionalize,
    in_forward_mode,
    innermost_transform,
    is_batched_by_autograd,
    is_batching_by_autograd,
    is_written,
    plain_have_tangents,
    saved_apart,
    tangent_of,
    unwrap_at,
    unwrap_batch,
    unwrap_dead,
    without_tangents,
    wrap_at,
)
from purefx.runtime.differentiable import check_versions
from purefx.transforms.differentiated import Wrt
from purefx.transforms.gradients import Teller
from purefx.transforms.graphs import Tensors
from purefx.transforms.halves import Half, Halves, Kept, halves_of
from purefx.transforms.history import pushes_of, reach_of
from purefx.transforms.levels import is_differentiated, levels_of, repeats_elements
from purefx.transforms.programs import Program
from purefx.transforms.ways import Asked, Way, ways_of

Unread = Mapping[int, tuple[torch.Tensor, int]]
"""Inputs by their positions, with versions."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What a call at ``level`` has kept for its gradients.

    ``backward`` takes ``residuals``, of the levels below, and what it ``reads`` of the inputs of the gradients.
    ``unread`` are inputs that nobody has looked at; they have to be at these versions where the whole program is asked
    instead.  ``kept`` tells what the residuals are, unless a batch has changed them.
    """

    backward: Program
    reads: tuple[int, ...]
    residuals: Sequence[torch.Tensor]
    level: int
    unread: Unread
    kept: Kept | None

    def given(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        """What ``backward`` takes."""
        return (*self.residuals, *[inputs[i] for i in self.reads])


def call(program: Program, inputs: Sequence[torch.Tensor]) -> Tensors:
    """The outputs of ``program`` for ``inputs``, whatever transforms have wrapped those."""
    return _call(program, unwrap_dead(inputs), None)


def _call(program: Program, inputs: Sequence[torch.Tensor], served: Served | None) -> Tensors:
    if is_batching_by_autograd() and any(map(is_batched_by_autograd, inputs)):
        return batched_by_function(lambda *given: _apply(program, given, served), inputs)
    return _apply(program, inputs, served)


def _apply(program: Program, inputs: Sequence[torch.Tensor], served: Served | None = None) -> Tensors:
    """The outputs of ``program``, which computes gradients that are ``served``, or has nothing to do with such."""
    transform = innermost_transform()
    if served is not None and (0 if transform is None else transform.level) < served.level:
        return _below(program, inputs, served)
    if transform is None and not plain_have_tangents() and not any(x.requires_grad for x in inputs):
        return _run(program, inputs, served)
    if transform is not None and transform.is_functionalize:
        return below_functionalize(lambda *given: _apply(program, given, served), inputs)
    if transform is not None and transform.is_vmap:
        return _batched(program, inputs, served, transform)
    return _differentiable(program, inputs, served, transform)


def _below(program: Program, inputs: Sequence[torch.Tensor], served: Served) -> Tensors:
    """The gradients from residuals, where these are; from the inputs alone, if others would differentiate a cut."""
    if _may_be_cut(served.backward, inputs):
        check_versions(list(served.unread.values()))
        return _apply(program, inputs)
    return _apply(served.backward, served.given(inputs))


def _may_be_cut(half: Program, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether ``half`` of a program may have other derivatives than the whole, and somebody may ask for them.

    Law: a derivative of a derivative is taken of the user's function, unless operators alone tell the derivatives.
    """
    by_program = half.teller is not Teller.OPERATORS
    return any(map(is_differentiated, inputs)) and (by_program or any(map(repeats_elements, inputs)))


def _differentiable(
    program: Program, inputs: Sequence[torch.Tensor], served: Served | None, transform: Transform | None
) -> Tensors:
    """The outputs at a level of grad or jvp, or outside of all, where autograd and forward-mode AD may look on."""
    level = _Level(program, inputs, transform)
    together = level.asks_for_tangents_alone and level.tangents_reach_no_further()
    count, halves = len(program.inexact), None
    with _outside() if transform is None else transform.left():
        if together:
            found = level.ask(program.jvp(tuple(level.tangents)), (*level.held, *level.held_tangents))
        elif level.wrt and served is None and (halves := _halves(level)) is not None:
            found = level.ask(halves.forward, level.held)
        else:
            found = level.ask(program, level.held, served)
    if not level.wrt and not level.tangents:
        return level.wrapped(found)
    outputs, tangents = level.wrapped(found[:count]), level.wrapped(found[count:]) if together else ()
    if level.tangents and not together:
        tangents = _tangents_alone(level)
    residuals = () if served is None else served.residuals
    if halves is not None:
        residuals = [found[i] for i in halves.residuals]
    past = Past(level.number, {}) if served is None else Past(served.level, served.unread)
    made, inexact = list(outputs), program.inexact_places
    for way in _ways(level, halves, None if served is None else served.kept):
        own = [outputs[inexact[k]] for k in way.of]
        pushed = [tangents[k] for k in way.of] if way.have_tangents else ()
        missing = {k: outputs[inexact[k]].detach() for k in way.missing}
        given = Given(inputs, own, pushed, missing, [residuals[i] for i in way.source.residuals], past)
        with level.recording(way):
            recorded = applied_at_one_level(Node, way, given, *[inputs[i] for i in way.places])
        for k, x in zip(way.of, recorded, strict=True):
            made[inexact[k]] = x
    return tuple(made)


def _ways(level: _Level, halves: Halves | None, kept: Kept | None) -> Sequence[Way]:
    """The nodes that the outputs of a call need."""
    program, tangents = level.program, tuple(level.tangents)
    reach = reach_of(program, level.wrt, level.held) if halves is None else halves.reach
    pushed = pushes_of(program, tangents, level.held) if tangents else (False,) * len(reach.inputs)
    asked = Asked(reach, pushed, tangents, kept if halves is None else halves.kept)
    return ways_of(program, asked, halves, level.held)


def _tangents_alone(level: _Level) -> Tensors:
    """The tangents of the outputs, where those belong to fewer levels.

    They are computed below the transform, where a jvp around it has its own tangents of them; outside of all, with
    forward mode off, where autograd may differentiate them.

        jacfwd(jacfwd(f))       the inner tangents are a batch that the value has not; the outer jvp looks on
    """
    program, count = level.program.jvp(tuple(level.tangents)), len(level.program.inexact)
    if level.transform is None:
        with without_tangents():
            return _call(program, (*level.inputs, *level.tangents.values()), None)[count:]
    with level.transform.left():
        found = level.ask(program, (*level.held, *level.held_tangents))
    return level.wrapped(found[count:])


class _Level:
    """What a level of grad or jvp has to do with a call; number 0 is outside of all transforms.

    ``held`` are the inputs as the levels below see them.  Gradients may be asked for with respect to ``wrt``, and
    ``tangents`` has those that there are; both are empty where the outputs have none.
    """

    def __init__(self, program: Program, inputs: Sequence[torch.Tensor], transform: Transform | None) -> None:
        self.program, self.inputs, self.transform = program, inputs, transform
        self.number = 0 if transform is None else transform.level
        self.held = inputs if transform is None else unwrap_at(inputs, self.number)
        own = [i for i, x in enumerate(inputs) if transform is None or x is not self.held[i]]
        own = own if any(program.inexact) else []
        self.wrt: Wrt = tuple(i for i in own if inputs[i].requires_grad) if torch.is_grad_enabled() else ()
        with_tangents = plain_have_tangents() if transform is None else in_forward_mode()
        known = {i: tangent_of(inputs[i]) for i in own} if with_tangents else {}
        self.tangents = {i: x for i, x in known.items() if x is not None}

    @property
    def asks_for_tangents_alone(self) -> bool:
        """Whether there are tangents, and autograd of this level records neither the inputs nor them."""
        recorded = self.transform is None and any(x.requires_grad for x in self.tangents.values())
        return bool(self.tangents) and not self.wrt and not recorded

    def tangents_reach_no_further(self) -> bool:
        """Whether the tangents belong to no more levels than a value that is computed of the inputs."""
        further = frozenset[int]().union(*map(levels_of, self.held_tangents))
        return not further or further <= frozenset[int]().union(*map(levels_of, self.inputs))

    @cached_property
    def held_tangents(self) -> Sequence[torch.Tensor]:
        """The tangents as the levels below see them."""
        tangents = list(self.tangents.values())
        return tangents if self.transform is None else unwrap_at(tangents, self.number)

    def ask(self, program: Program, inputs: Sequence[torch.Tensor], served: Served | None = None) -> Tensors:
        """The outputs of ``program`` as the levels below see them; that of the transform has been left."""
        if self.transform is not None:
            return _apply(program, inputs, served)
        return _run(program, inputs, served)

    def recording(self, way: Way) -> AbstractContextManager[Any]:
        """Let autograd and forward-mode AD see what the outputs of a node have of theirs."""
        if not self.tangents:
            return nullcontext()
        if not way.have_tangents:
            return without_tangents()
        return nullcontext() if way.wrt else torch.no_grad()

    def wrapped(self, outputs: Tensors) -> Tensors:
        """``outputs`` as this level sees them."""
        return outputs if self.transform is None else wrap_at(outputs, self.number)


def _run(program: Program, inputs: Sequence[torch.Tensor], served: Served | None) -> Tensors:
    return program.run(inputs) if served is None else served.backward.run(served.given(inputs))


def _halves(level: _Level) -> Halves | None:
    """The halves of the program; None where it has to be differentiated as a whole."""
    halves = halves_of(level.program, level.wrt, level.held)
    is_last = level.transform is None  # below it nobody differentiates
    return halves if halves is None or is_last or not _may_be_cut(halves.forward, level.held) else None


@contextmanager
def _outside() -> Iterator[None]:
    with torch.no_grad(), without_tangents():
        yield


def _batched(program: Program, inputs: Sequence[torch.Tensor], served: Served | None, transform: Transform) -> Tensors:
    """The outputs of each example, at a level of vmap."""
    held, dims = unwrap_batch(inputs, transform.level)
    kept, places = ([], []) if served is None else unwrap_batch(served.residuals, transform.level)
    with transform.left():
        if all(dim is None for dim in (*dims, *places)):
            return _apply(program, held, served)
        size, randomness = transform.batch_size, transform.randomness
        for i in range(program.given, program.arity):
            x, dim = held[i], dims[i]
            held[i] = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
            dims[i] = 0
        if served is not None:
            read = (*places, *[dims[i] for i in served.reads])
            backward = served.backward.vmap(read, randomness)
            is_batch = any(dim is not None for dim in read)  # else it knows no number of examples, and the whole does
            served = replace(served, backward=backward, residuals=kept, kept=None) if is_batch else None
        whole = not any(map(repeats_elements, held))
        outputs = _apply(program.vmap(tuple(dims), randomness, whole=whole), held, served)
        batches = program.are_batches(dims, len(outputs)) if size else [True] * len(outputs)
        outputs = tuple([x if is_batch else x.select(0, 0) for x, is_batch in zip(outputs, batches, strict=True)])
    level = transform.level
    return tuple([add_batch(x, level) if batch else x for x, batch in zip(outputs, batches, strict=True)])


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """The ``level`` of the call that has kept residuals, and what may have been written since it was given."""

    level: int
    unread: Unread


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A call that has been computed: ``outputs`` are those of a node, with their ``tangents``.

    ``missing`` are outputs like which zeros are their cotangents.
    """

    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    tangents: Sequence[torch.Tensor]
    missing: Mapping[int, torch.Tensor]
    residuals: Sequence[torch.Tensor]
    past: Past


class Node(OneLevelFunction):  # type: ignore[misc]  # PyTorch gives it no types
    """Outputs of a call in the graph of autograd of one level; it is given what has derivatives there.

    Autograd saves the residuals, and the inputs that eager would save: it frees them after a backward, and sees it if
    they are written.

        out = vmap(exp)(x); out.add_(1)     ``out`` is a residual: its backward raises what eager's raises
    """

    @staticmethod
    def forward(ctx: Any, way: Way, given: Given, *_: torch.Tensor) -> Tensors:
        """The outputs, which are computed already."""
        ctx.set_materialize_grads(False)
        ctx.way, ctx.tangents, ctx.past = way, given.tangents, given.past
        ctx.like = {k: (x.shape, x.dtype, x.device) for k, x in given.missing.items()}
        inputs, residuals = given.inputs, given.residuals
        known = way.source.saved
        saved = range(len(inputs)) if known is None else known
        ctx.inputs = [None if i in saved else x for i, x in enumerate(inputs)]
        ctx.unread = {i: _now(x) for i, x in enumerate(ctx.inputs) if x is not None and not x.is_inference()}
        own = known is not None and len(way.of) > 1
        ctx.results = {
            i: _now(x.detach()) for i, x in enumerate(residuals) if own and any(x is y for y in given.outputs)
        }
        ctx.save_for_backward(*[x for i, x in enumerate(inputs) if i in saved], *residuals)
        return tuple(given.outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        """The gradients of the inputs that need one."""
        way: Way = ctx.way
        needed = ctx.needs_input_grad[2:]
        known = {k: x for k, x in zip(way.of, cotangents, strict=True) if x is not None}
        given = tuple(known)
        if not given:
            return None, None, *(None for _ in needed)
        half, inputs, residuals = _read(ctx, given)
        program, wrt = (way.program.only(given), way.reached(given)) if half is None else (half.program, half.wrt)
        whole = [known[k] if k in known else _zeros(*ctx.like[k]) for k in (given if half is None else half.of)]
        served = None if half is None else _served(ctx, half, given, inputs, residuals)
        gradients = _call(program.vjp(wrt), unwrap_dead([*inputs, *whole]), served)
        found = dict(zip(wrt, gradients, strict=True))
        return None, None, *(found.get(i) if asked else None for i, asked in zip(way.places, needed, strict=True))

    @staticmethod
    def jvp(ctx: Any, *_: torch.Tensor | None) -> tuple[Any, ...]:
        """The tangents of the outputs."""
        return tuple(ctx.tangents)


def _read(ctx: Any, given: tuple[int, ...]) -> tuple[Half | None, list[torch.Tensor], list[torch.Tensor]]:
    """The half for the outputs ``given``, if there is one, the inputs and the residuals.

    Raises if something was written that it reads, or that eager has saved for these.
    """
    way: Way = ctx.way
    half, unread = way.half_of(given), ctx.past.unread
    if half is None:
        check_versions(list(unread.values()))
        return None, *_apart(ctx, ctx.saved_tensors)
    if way.reads_all(given):
        check_versions([ctx.unread[i] for i in half.saved if i in ctx.unread])
        return half, *_apart(ctx, ctx.saved_tensors)
    data = saved_apart(ctx)
    inputs, residuals = _apart(ctx, ctx.saved_tensors if data is None else data)
    check_versions([known[i] for known in (unread, ctx.unread) for i in half.saved if i in known])
    check_versions([ctx.results[i] for i in half.residuals if i in ctx.results])
    places = {i: place for place, i in enumerate(i for i, x in enumerate(ctx.inputs) if x is None)}
    read = [places[i] for i in half.saved if i in places]
    read += [len(places) + i for i in half.residuals if i not in ctx.results]
    if data is not None and any(is_written(ctx, place) for place in read):
        _apart(ctx, ctx.saved_tensors)  # raises
    return half, inputs, residuals


def _served(
    ctx: Any, half: Half, given: tuple[int, ...], inputs: Sequence[torch.Tensor], residuals: Sequence[torch.Tensor]
) -> Served:
    """What ``half`` takes; of inputs that it does not read it is told whether they were written."""
    past, unread = ctx.past, ctx.unread
    if not ctx.way.reads_all(given) and saved_apart(ctx) is not None:
        saved = [i for i, x in enumerate(ctx.inputs) if x is None]
        others = [(place, i) for place, i in enumerate(saved) if i not in half.saved and not inputs[i].is_inference()]
        unread = {**unread, **{i: (inputs[i], inputs[i]._version - is_written(ctx, place)) for place, i in others}}
    backward = half.backward
    return Served(backward, backward.reads, residuals, past.level, {**unread, **past.unread}, half.kept)


def _apart(ctx: Any, saved: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The inputs and the residuals, of which ``saved`` has those that autograd keeps."""
    rest = iter(unwrap_dead(saved))
    return [next(rest) if x is None else x for x in ctx.inputs], list(rest)


def _now(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x, x._version


def _zeros(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)
