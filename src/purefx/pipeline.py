"""The pipeline from a call to a callable: capture, analysis, functional graph, backend, wrapper."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from purefx._torch import without_modes
from purefx.analysis.gradients import check_no_gradients
from purefx.analysis.replay import Replay, infer_replay
from purefx.capture.captured import Capture, name_of
from purefx.capture.fakes import fake_like
from purefx.capture.recording import Region
from purefx.capture.session import capture
from purefx.errors import BackendFailed, UnsupportedOperator
from purefx.functional.known import find_number
from purefx.functional.reinplace import with_in_place_writes
from purefx.functional.rewrite import functionalize
from purefx.functional.signature import Functional, RootInput, module_of
from purefx.layout import NotViewable
from purefx.runtime.first_run import checked_once, needs_first_run
from purefx.runtime.runner import build_runner
from purefx.runtime.wrapper import Wrapper, build_wrapper

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
"""A compiler: takes the functional graph and example inputs, returns a callable with the graph's signature."""


_ONE_AT_A_TIME = threading.RLock()
"""A capture puts fakes into modules and variables that other threads may capture too."""


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """What each stage made of one call, in order."""

    capture: Capture
    replay: Replay
    functional: Functional


def run_stages(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, dynamic: bool) -> Stages:
    """Capture a call of ``function`` and make its functional graph; the arguments are only read."""
    with _ONE_AT_A_TIME:
        captured = capture(function, args, kwargs, dynamic=dynamic, known=find_number)
    replay = infer_replay(captured)
    check_no_gradients(captured, replay)
    try:
        return Stages(captured, replay, functionalize(captured, replay))
    except NotViewable as error:  # a fake kernel has accepted what the operator's own kernel does not
        raise UnsupportedOperator(
            f"the sizes that fake tensors gave cannot be: {error}",
            where=None,
            remedy="run the function in eager: it raises there too, or report the operator",
        ) from error


def graph_module(stages: Stages) -> fx.GraphModule:
    """The functional graph as a module."""
    return module_of(stages.functional)


def build(stages: Stages, run_graph: Callable[..., Any]) -> Wrapper:
    """The wrapper that runs ``run_graph`` in the place of the functional graph."""
    if needs_first_run(stages.functional):
        run_graph = checked_once(stages.functional, run_graph)
    return build_wrapper(stages.capture, stages.replay, stages.functional, run_graph)


def build_without_backend(stages: Stages) -> Wrapper:
    """The wrapper that runs the graph as it is, with the writes in place again where that is safe."""
    if needs_first_run(stages.functional):
        return build(stages, build_runner(stages.functional))
    functional = with_in_place_writes(stages.functional)
    return build_wrapper(stages.capture, stages.replay, functional, build_runner(functional))


def compile_graph(stages: Stages, backend: Backend) -> Callable[..., Any]:
    """The functional graph as compiled by ``backend``; BackendFailed if that raises or returns no callable.

    At each call the number of outputs is checked, and BackendFailed raised if it is another than the graph's.
    The backend gets fake tensors as example inputs, and each node's fake value as ``meta["val"]``.
    """
    module = graph_module(stages)
    examples = [_example(stages, given) for given in stages.functional.inputs]
    storages = stages.capture.recording.storages
    with without_modes():
        for node, value in stages.functional.values.items() if storages else ():
            node.meta["val"] = fake_like(Region(storages[0], value.geometry, value.dtype), stages.capture.fake_mode)
    try:
        compiled = backend(module, examples)
    except Exception as error:
        raise BackendFailed(f"the backend {name_of(backend)} raised {type(error).__name__}: {error}") from error
    if not callable(compiled):
        raise BackendFailed(
            f"the backend {name_of(backend)} returned {type(compiled).__name__}, which cannot be called"
        )
    return _checked(compiled, len(stages.functional.outputs), name_of(backend))


def _checked(compiled: Callable[..., Any], count: int, name: str) -> Callable[..., Any]:
    if not count:
        return compiled

    def graph(*inputs: Any) -> Any:
        outputs = compiled(*inputs)
        found = len(outputs) if isinstance(outputs, tuple | list) else f"a {type(outputs).__name__}"
        if found != count:
            raise BackendFailed(f"what {name} compiled returned {found}, not the {count} outputs of the graph")
        return outputs

    return graph


def _example(stages: Stages, given: Any) -> Any:
    """A fake tensor, or a symbol, that looks like the graph input ``given``."""
    if not isinstance(given, RootInput):
        return given.symbol
    return fake_like(given.root.region, stages.capture.fake_mode)
