"""The pipeline from a call to a callable: capture, analysis, functional graph, backend, wrapper."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from purefx._torch import outside_transforms, pytree, storage_key, without_modes
from purefx.analysis.gradients import check_gradients
from purefx.analysis.replay import Replay, infer_replay
from purefx.autodiff.backward import Pattern
from purefx.autodiff.derived import Gradient, gradient_of, present_inputs
from purefx.autodiff.joint import Joint, derive, functionalize_jointly
from purefx.autodiff.levels import Level
from purefx.autodiff.partition import Partition
from purefx.capture.captured import Capture, Input, name_of, without_effects
from purefx.capture.fakes import has_symbols
from purefx.capture.session import capture
from purefx.capture.translation import NEEDS_DATA
from purefx.capture.turns import ONE_AT_A_TIME
from purefx.compilers import Backend, Compilers, one_by_one
from purefx.errors import BackendFailed, GradientsRefused, SourceLine, UnsupportedOperator
from purefx.functional.builder import Value
from purefx.functional.examples import example_of, example_of_value
from purefx.functional.known import find_number
from purefx.functional.reinplace import Reinplaced, with_in_place_writes
from purefx.functional.reuse import Kept
from purefx.functional.signature import (
    Functional,
    FunctionalBackward,
    FunctionalGraph,
    RootInput,
    SymbolInput,
    WrittenOutput,
    module_of,
)
from purefx.functional.verify import returned
from purefx.layout import Geometry, NotViewable
from purefx.runtime.derivatives import backward_graph
from purefx.runtime.differentiable import BackwardGraph, Derivatives
from purefx.runtime.first_run import checked_once, needs_first_run
from purefx.runtime.guards import ModuleGuard
from purefx.runtime.runner import build_runner
from purefx.runtime.wrapper import Wrapper, build_wrapper
from purefx.transforms.backward import composed
from purefx.transforms.graphs import Engine


@contextmanager
def _no_collections() -> Iterator[None]:
    """Put off Python's search for cycles: what a capture makes is needed until its end, and looked through in vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


Again = Callable[[Gradient, Kept], Gradient]
"""What compiles the gradient of a program, which is handed over what a call has kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """What each stage made of one call, in order.  Its inputs ``alike`` are such at every call."""

    capture: Capture
    replay: Replay
    functional: Functional
    joint: Joint | None = None
    alike: frozenset[Input] = frozenset()


def run_stages(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    dynamic: bool,
    partition: Partition = "default",
    effects: bool = True,
) -> Stages:
    """Capture a call of ``function`` and make its functional graph; the arguments are only read.

    Sizes that are symbols of a tracer stay symbols, though it is not ``dynamic``.
    ``partition`` decides what is kept for the backward.  Without ``effects`` only the values of the results are wanted,
    and what the program writes and keeps is left out: raises GradientsRefused if it matters.
    """
    try:
        dynamic = dynamic or any(map(has_symbols, pytree.tree_leaves((args, kwargs))))
        with ONE_AT_A_TIME, _no_collections(), outside_transforms():
            captured = capture(function, args, kwargs, dynamic=dynamic, known=find_number, transformable=False)
            captured = captured if effects else without_effects(captured)
            replay = infer_replay(captured, values=not effects)
            check_gradients(captured)
            return Stages(captured, replay, *functionalize_jointly(captured, replay, partition, effects=effects))
    except NEEDS_DATA as error:
        raise UnsupportedOperator(
            "how the parts of a tensor lie to each other depends on numbers in tensors",
            where=None,
            remedy="write them by masks or index tensors, or compile the parts around the writes",
        ) from error
    except NotViewable as error:  # a fake kernel has accepted what the operator's own kernel does not
        raise UnsupportedOperator(
            f"the sizes that fake tensors gave cannot be: {error}",
            where=None,
            remedy="run the function in eager: it raises there too, or report the operator",
        ) from error


def engine_of(compilers: Compilers | None) -> Engine:
    """What makes and runs the programs that transforms make of a function."""
    return Engine(compilers, compile_functional)


def graph_module(stages: Stages) -> fx.GraphModule:
    """The functional graph as a module, whose nodes have their fake values and lines."""
    _annotate(stages.capture, stages.functional)
    return module_of(stages.functional)


def _annotate(capture: Capture, functional: FunctionalGraph) -> None:
    """Give each node its fake value as ``meta["val"]``, and the line of the user that it comes from."""
    with without_modes():
        for node, value in functional.values.items():
            node.meta["val"] = example_of_value(capture, value)
    for node, text in functional.lines.items():
        line = SourceLine.parsed(text)
        node.stack_trace = None if line is None else line.trace


def build(stages: Stages, run_graph: Callable[..., Any], again: Again, engine: Engine) -> Wrapper:
    """The wrapper that runs ``run_graph`` in the place of the functional graph; ``engine`` compiles backwards.

    ``again`` compiles gradients whose gradients are asked for.
    """
    if needs_first_run(stages.functional):
        run_graph = checked_once(stages.functional, run_graph)
    return _wrapper(stages, stages.functional, run_graph, again, engine)


def _wrapper(
    stages: Stages, functional: Functional, run_graph: Callable[..., Any], again: Again, engine: Engine
) -> Wrapper:
    joint = stages.joint
    if joint is None:
        return build_wrapper(stages.capture, stages.replay, functional, run_graph, alike=stages.alike)

    def derived(level: Level, pattern: Pattern) -> BackwardGraph:
        with ONE_AT_A_TIME:
            graph = derive(stages.capture, stages.replay, joint, level, pattern)
        run = _boxed(stages, graph, engine.compilers)
        return backward_graph(joint, level, graph, run, composed(engine, stages.capture, graph, run))

    unchanged = partial(_check_unchanged, ModuleGuard.of(stages.capture.modules))

    def differentiated(level: Level, pattern: Pattern) -> Gradient:
        sources = [joint.residuals[name] for name, value in joint.kept(level).items() if value is not None]
        computed = {i: x for i, x in enumerate(sources) if not isinstance(x, RootInput | SymbolInput)}
        kept = Kept.of(stages.functional, list(computed.values()))
        gradient = again(gradient_of(stages.capture, level, pattern, unchanged), kept)
        return lambda leaves, tangents, saved: gradient(leaves, tangents, tuple([saved[i].detach() for i in computed]))

    derivatives = tuple(
        Derivatives(partial(derived, x), partial(differentiated, x), present_inputs(stages.capture, x, functional))
        for x in joint.levels
    )
    return build_wrapper(stages.capture, stages.replay, functional, run_graph, (joint, derivatives), stages.alike)


def _check_unchanged(modules: ModuleGuard) -> None:
    """Raise GradientsRefused if ``modules`` are not as they were."""
    name, asked = modules.changed()
    if name or asked:
        raise GradientsRefused(
            f"the gradient of a gradient runs the forward again, and {name} has changed since the call ({asked})",
            where=None,
            remedy="take the gradient before train(), eval() or a change of the module",
        )


def _boxed(stages: Stages, graph: FunctionalBackward, compilers: Compilers | None) -> Callable[[list[Any]], Any]:
    """What runs a backward graph: it takes a list of inputs."""
    if compilers is None:
        return build_runner(graph, boxed=True)
    compiled = compile_functional(stages.capture, graph, compilers.backward)
    return lambda inputs: compiled(*inputs)


def build_without_backend(stages: Stages, again: Again, engine: Engine) -> Wrapper:
    """The wrapper that runs the graph as it is, with the writes in place again where that is safe."""
    if needs_first_run(stages.functional):
        return build(stages, build_runner(stages.functional), again, engine)
    functional = reinplaced(stages).functional
    return _wrapper(stages, functional, build_runner(functional), again, engine)


def reinplaced(stages: Stages) -> Reinplaced:
    """The graph as it runs without a backend."""
    if needs_first_run(stages.functional):
        written = [output.root for output in stages.functional.outputs if isinstance(output, WrittenOutput)]
        return Reinplaced(stages.functional, dict.fromkeys(written, "the program has operators that are not PyTorch's"))
    joint = stages.joint
    kept = () if joint is None else [x for x in joint.residuals.values() if not isinstance(x, RootInput | SymbolInput)]
    return with_in_place_writes(stages.functional, kept, inference=stages.capture.inference)


def compile_graph(stages: Stages, backend: Backend) -> Callable[..., Any]:
    """The functional graph as compiled by ``backend`` (see `compile_functional`)."""
    return compile_functional(stages.capture, stages.functional, backend)


def compile_functional(capture: Capture, functional: FunctionalGraph, backend: Backend) -> Callable[..., Any]:
    """``functional`` as compiled by ``backend``; BackendFailed if that raises or returns no callable.

    At each call the number of outputs is checked, at the first their sizes and dtypes, and BackendFailed raised if they
    are others than the graph's.
    The backend gets fake tensors as example inputs, each node's fake value as ``meta["val"]``, and the line of the user
    that it comes from as its ``stack_trace``.
    """
    module = module_of(functional)
    examples = [example_of(capture, given) for given in functional.inputs]
    _annotate(capture, functional)
    try:
        compiled = backend(module, examples)
    except Exception as error:
        raise BackendFailed(f"the backend {name_of(backend)} raised {type(error).__name__}: {error}") from error
    if not callable(compiled):
        raise BackendFailed(
            f"the backend {name_of(backend)} returned {type(compiled).__name__}, which cannot be called"
        )
    return _checked(one_by_one(compiled), functional, name_of(backend))


def _checked(compiled: Callable[..., Any], functional: FunctionalGraph, name: str) -> Callable[..., Any]:
    if not functional.outputs:
        return compiled
    count = len(functional.outputs)
    expected = [functional.values.get(node) for node in returned(functional.graph)]

    def graph(*inputs: Any) -> Any:
        outputs = compiled(*inputs)
        found = len(outputs) if isinstance(outputs, tuple | list) else f"a {type(outputs).__name__}"
        if found != count:
            raise BackendFailed(f"what {name} compiled returned {found}, not the {count} outputs of the graph")
        if expected:
            _check_outputs(outputs, expected, name)
            _check_memory(inputs, outputs, expected, name)
            expected.clear()
        return outputs

    return graph


def _check_outputs(outputs: Sequence[Any], expected: Sequence[Value | None], name: str) -> None:
    """Raise BackendFailed unless ``outputs`` look like ``expected``, where the sizes of that are numbers."""
    for i, (output, value) in enumerate(zip(outputs, expected, strict=True)):
        if value is None or not value.geometry.is_static:
            continue
        found, wanted = f"a {type(output).__name__}", f"{value.dtype}{list(value.geometry.sizes)}"
        if isinstance(output, torch.Tensor):
            found = f"{output.dtype}{list(output.shape)}"
        if found == wanted and not _lies_as(output, value.geometry):
            found, wanted = f"of strides {output.stride()}", f"of strides {value.geometry.strides}"
        if found != wanted:
            raise BackendFailed(f"output {i} of what {name} compiled is {found}, not {wanted} as in the graph")


def _lies_as(output: torch.Tensor, geometry: Geometry) -> bool:
    """Whether ``output`` has the strides of ``geometry``, as far as they are seen; not where elements are repeated."""
    pairs = zip(geometry.sizes, output.stride(), geometry.strides, strict=True)
    return 0 in geometry.sizes or 0 in geometry.strides or all(a == b for size, a, b in pairs if size > 1)


def _check_memory(inputs: Sequence[Any], outputs: Sequence[Any], expected: Sequence[Value | None], name: str) -> None:
    """Raise BackendFailed if an output has the memory of an input or of another output, as it has not in the graph."""
    owners = {storage_key(x): f"input {i}" for i, x in enumerate(inputs) if _has_memory(x)}
    for i, (output, value) in enumerate(zip(outputs, expected, strict=True)):
        if value is None or not _has_memory(output) or value.origin.op != "call_function":
            continue
        owner = owners.setdefault(storage_key(output), f"output {i}")
        same = [other for other in expected[:i] if other is not None and other.origin is value.origin]
        if owner != f"output {i}" and not same:
            raise BackendFailed(
                f"output {i} of what {name} compiled has the memory of {owner}: it has its own in the graph"
            )


def _has_memory(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.numel() > 0
