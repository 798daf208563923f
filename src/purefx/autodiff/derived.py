"""The gradient of a program as a program: what is compiled when somebody differentiates a gradient.

    gradient(leaves, tangents)  =  autograd.grad(f(*leaves), what f is a function of, tangents, create_graph=True)

It is captured, made functional and compiled as any other program, and its gradients are had in the same way: so a
compiled function has gradients of any order.  It runs the program's forward once more, without its effects; where the
call has kept values for its backward, the graph takes those, and computes what else it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from purefx._torch import pytree
from purefx.autodiff.backward import Pattern, Place, as_made, stopped
from purefx.autodiff.levels import Level
from purefx.autodiff.targets import Slot, Target
from purefx.capture.arguments import Leaf
from purefx.capture.captured import Capture, Input, TensorResult, finder, name_of
from purefx.capture.edges import edge_behind, edge_of, take_off_hooks
from purefx.capture.recording import Variable
from purefx.capture.tensors import variable_of
from purefx.capture.turns import ONE_AT_A_TIME
from purefx.errors import GradientsRefused
from purefx.functional.signature import BaseOutput, Functional, ResultOutput, RootInput, WrittenOutput

Tensors = tuple[torch.Tensor, ...]
Gradient = Callable[[tuple[Any, ...], Tensors, Tensors], tuple[torch.Tensor | None, ...]]
"""From the leaves of a call and the tangents of its outputs to the gradients of what it is a function of.

The third argument is what the call has kept for its backward.
"""
Present = Callable[[Sequence[Any]], list[Any]]


def gradient_of(capture: Capture, level: Level, pattern: Pattern, check: Callable[[], None]) -> Gradient:
    """The gradient of the outputs of ``level`` that ``pattern`` tells, as a function that can be compiled.

    It calls ``check`` first, which raises where the forward would be another one now.

    Raises GradientsRefused where the program has written to what the gradient would have to read again.
    """
    function, whole = capture.function, capture.flat.whole
    places = {r.variable: i for i, r in reversed(list(enumerate(capture.results))) if isinstance(r, TensorResult)}
    if capture.rebindings or any(isinstance(o, WrittenOutput) for g in level.backwards.values() for o in g.outputs):
        raise _refusal()
    for slot in level.slots:
        _place(slot, places, capture)
    if {target.source for target in level.targets} & {hook.variable for hook in level.hooks} - places.keys():
        raise _refusal()  # a hook is on a view that only the run has in hand
    own = [target for target in level.targets if isinstance(target.source, Slot) or target.is_made]
    stops = [*own, *(target for target in level.targets if target.is_view)]

    def gradient(leaves: tuple[Any, ...], tangents: Tensors, _: Tensors) -> tuple[torch.Tensor | None, ...]:
        check()
        args, kwargs = whole(list(leaves))
        before = {t: edge_of(_source(t, leaves, places, capture, ())) for t in level.targets if t.is_given}
        with capture.ambient.restored():
            results = pytree.tree_leaves(function(*args, **kwargs))
        slots = [_tensor(slot, places, capture, results) for slot in level.slots]
        given = [_entered(x, slot) for x, slot, is_given in zip(slots, level.slots, pattern, strict=True) if is_given]
        inputs = [_source(target, leaves, places, capture, results) for target in level.targets]
        made = [x for target, x in zip(level.targets, inputs, strict=True) if target in own]
        hooks = [(tensor, hook) for tensor in (*slots, *made) for hook in take_off_hooks(tensor)]
        for tensor in inputs:
            take_off_hooks(tensor)  # they are on the tensors of the call, and run there
        ends = [before.get(target) or _end(target, x, places) for target, x in zip(level.targets, inputs, strict=True)]
        passed = [_edge(end) for target, end in zip(level.targets, ends, strict=True) if target in stops]
        with stopped(passed):
            found = torch.autograd.grad(given, ends, tangents, create_graph=True, allow_unused=True)  # type: ignore[arg-type]  # it takes tensors and edges together
        for tensor, hook in hooks:
            tensor.register_hook(hook)  # type: ignore[no-untyped-call]  # for what is differentiated next
        return tuple(found)

    gradient.__name__ = gradient.__qualname__ = f"gradient({name_of(function)})"
    return gradient


def looked_up(functional: Functional) -> list[Input]:
    """The tensors that ``functional`` only reads, and that each run finds elsewhere than among its leaves."""
    roots = [given.root for given in functional.inputs if isinstance(given, RootInput) and not given.root.written]
    return [known for root in roots for known in root.members if not isinstance(known.sources[0], Leaf)]


def present_inputs(capture: Capture, level: Level, functional: Functional) -> Present:
    """What a gradient of ``level`` would take from the caller now, as a function of a call's leaves.

    That are the tensors that it has `looked_up`, and those of the caller that it is a function of, or other values.
    """
    own = [t.source if isinstance(t.source, Input) and not t.of_base else None for t in level.targets]
    wanted = (*looked_up(functional), *own)
    finders = [_no_tensor if known is None else finder(known, capture.inputs) for known in wanted]

    def present(leaves: Sequence[Any]) -> list[Any]:
        with ONE_AT_A_TIME:  # a capture in another thread has fakes where the parameters are
            return [find(leaves) for find in finders]

    return present


def _no_tensor(_: Sequence[Any]) -> None:
    return None


def _place(slot: Slot, places: dict[Variable, int], capture: Capture) -> tuple[int, bool]:
    """Which result the tensor of ``slot`` is, or shows, or is the base of."""
    if not isinstance(slot.output, WrittenOutput) and slot.left is None:
        variable = slot.output.variable if slot.behind is None else variable_of(slot.fake)
        if variable in places:
            return places[variable], False
        for i, result in enumerate(capture.results):
            if isinstance(result, TensorResult) and result.fake._base is slot.fake:
                return i, True
    raise _refusal()


def _refusal() -> GradientsRefused:
    return GradientsRefused(
        "the gradient of a gradient of a program that writes to what it is given, or keeps something in an object",
        where=None,
        remedy="return new values; or compile the function that computes the gradient, with torch.autograd.grad inside",
    )


def _tensor(slot: Slot, places: dict[Variable, int], capture: Capture, results: Sequence[Any]) -> torch.Tensor:
    place, is_base = _place(slot, places, capture)
    result: torch.Tensor = results[place]
    return result if not is_base or result._base is None else result._base


def _source(
    target: Target, leaves: Sequence[Any], places: dict[Variable, int], capture: Capture, results: Sequence[Any]
) -> torch.Tensor:
    """The tensor that ``target`` is in a run of the gradient."""
    source = target.source
    if target.former:
        raise _refusal()
    if isinstance(source, Slot):
        return _tensor(source, places, capture, results)
    if not isinstance(source, Input):
        found: torch.Tensor = results[places[source] if source in places else _place_of_piece(target, capture)]
        return found
    tensor: torch.Tensor = finder(source, capture.inputs)(leaves)
    return tensor if not target.of_base or tensor._base is None else tensor._base


def _entered(tensor: torch.Tensor, slot: Slot) -> torch.Tensor | GradientEdge:
    """Where the gradient of ``slot`` enters: at ``tensor`` as it was made, or at what that shows."""
    if slot.behind is not None:
        return edge_behind(tensor, slot.behind)
    output, variable = slot.output, variable_of(slot.fake)
    if not isinstance(output, ResultOutput | BaseOutput) or variable is not output.variable:
        return tensor
    return as_made(tensor, variable.last, slot.region)


def _place_of_piece(target: Target, capture: Capture) -> int:
    """Which result the node of ``target`` has made, of which this is another piece."""
    for i, result in enumerate(capture.results):
        edge = edge_of(result.fake) if isinstance(result, TensorResult) else None
        if edge is not None and edge.node is target.edge.node:
            return i
    raise _refusal()


def _end(target: Target, tensor: torch.Tensor, places: dict[Variable, int]) -> torch.Tensor | GradientEdge:
    """Where gradients leave by ``target``, in a run that has made ``tensor`` of it, or another piece of the node."""
    if isinstance(target.source, Slot) and target.source.behind is not None:
        return edge_behind(tensor, target.source.behind)
    if not target.is_made or target.source in places:
        return tensor
    return GradientEdge(get_gradient_edge(tensor).node, target.edge.output_nr)


def _edge(end: torch.Tensor | GradientEdge) -> Place:
    edge = end if isinstance(end, GradientEdge) else get_gradient_edge(end)
    return edge.node, edge.output_nr
