"""What the outputs of a program are functions of, for inputs of one kind.

The capture of a gradient notes it of the program that is differentiated (`Program.reaches`).  Of other programs the
graph tells, which knows nothing of what the program cuts off: it may say more than is true, and is asked where the
honest run would cost a capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch

from purefx._torch import outside_transforms, without_modes
from purefx.capture.turns import ONE_AT_A_TIME
from purefx.transforms.differentiated import Wrt
from purefx.transforms.gradients import Teller
from purefx.transforms.graphs import Graph, Tensors
from purefx.transforms.programs import Program, Some, Vjp, Vmap, fakes_like
from purefx.transforms.reach import Reach, infer_reach


def reach_of(program: Program, wrt: Wrt, inputs: Sequence[torch.Tensor]) -> Reach:
    """What the inexact outputs of ``program`` are functions of, among its inputs ``wrt``, for such as ``inputs``."""
    key = (wrt, program.kind(inputs))
    if key not in program.reaches:
        with ONE_AT_A_TIME, outside_transforms(), without_modes():
            program.reaches[key] = _reach(program, wrt, program.laid_out(fakes_like(inputs)))
    return program.reaches[key]


def _reach(program: Program, wrt: Wrt, inputs: Tensors) -> Reach:
    if (wrt, program.kind(inputs)) in program.reaches:
        return program.reaches[wrt, program.kind(inputs)]
    if isinstance(program, Vmap):
        return _reach(program.of, wrt, program.examples(inputs))
    normal = program.normal()
    if normal is not program:
        return _reach(normal, wrt, inputs)
    if program.teller is not Teller.PYTHON:
        with suppress(Exception):  # where its gradients raise, they raise when they are asked for
            return _reach_in_graph(program, wrt, inputs)
    return Reach.unknown(sum(program.inexact), wrt)


def pushes_of(program: Program, wrt: Wrt, inputs: Sequence[torch.Tensor]) -> tuple[bool, ...]:
    """Which inexact outputs of ``program`` have a tangent, where its inputs ``wrt`` have; those have been asked for."""
    key = (wrt, program.kind(inputs))
    if key not in program.pushes:
        with ONE_AT_A_TIME, outside_transforms(), without_modes():
            program.pushes[key] = _pushes(program, wrt, program.laid_out(fakes_like(inputs)))
    return program.pushes[key]


def _pushes(program: Program, wrt: Wrt, inputs: Tensors) -> tuple[bool, ...]:
    key = (wrt, program.kind(inputs))
    if key in program.pushes:
        return program.pushes[key]
    if isinstance(program, Vmap):
        return _pushes(program.of, wrt, program.examples(inputs))
    normal = program.normal()
    if normal is not program:
        return _pushes(normal, wrt, inputs)
    return tuple(map(bool, reach_of(program, wrt, inputs).inputs))


@torch.enable_grad()
def _reach_in_graph(program: Program, wrt: Wrt, inputs: Tensors) -> Reach:
    graph, places = graph_of(program, inputs)
    given = [x.detach().requires_grad_() if i in wrt else x for i, x in enumerate(inputs)]
    outputs = graph.batchable()(*given)
    return infer_reach([outputs[i] for i in inexact_places(program, places)], {i: given[i] for i in wrt})


def graph_of(program: Program, inputs: Tensors) -> tuple[Graph, tuple[int, ...]]:
    """A graph that computes the outputs of ``program``, and which of its outputs they are.

    A gradient that is served from what a forward has kept has no graph of its own.
    """
    if isinstance(program, Vjp):
        count = len(program.of.inexact)
        return program.of.joint(program.wrt).graph(inputs), tuple(range(count, count + len(program.wrt)))
    if isinstance(program, Some):
        graph, places = graph_of(program.of, inputs)
        return graph, tuple(places[i] for i in program.places)
    return program.graph(inputs), tuple(range(len(program.inexact)))


def inexact_places(program: Program, places: Sequence[int]) -> list[int]:
    """Those of ``places``, one for each output of ``program``, whose output is inexact."""
    return [place for place, inexact in zip(places, program.inexact, strict=True) if inexact]
