"""The front doors: functionalize, trace, compile, explain, check."""

from __future__ import annotations

import functools
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from types import MethodType
from typing import Any, ParamSpec, TypeVar

import torch

import purefx.report.check as checking
from purefx._torch import as_written, is_batching, is_transforming, pytree, untraced, without_modes
from purefx.autodiff.derived import Gradient
from purefx.autodiff.partition import Partition, check_partition
from purefx.capture.arguments import Leaf, alive, flatten
from purefx.capture.captured import name_of
from purefx.capture.session import is_capturing
from purefx.capture.turns import ONE_AT_A_TIME
from purefx.compilers import Backend, Compilers
from purefx.errors import PurefxError
from purefx.functional.reuse import Kept
from purefx.pipeline import (
    Stages,
    build,
    build_without_backend,
    compile_graph,
    engine_of,
    graph_module,
    run_stages,
)
from purefx.program import Program
from purefx.report.check import CheckReport
from purefx.report.conditions import Conditions, Guard, other_structure, varying
from purefx.report.explain import Explanation
from purefx.report.explain import explain as explain_stages
from purefx.runtime.leaves import leaves_of
from purefx.runtime.wrapper import Wrapper
from purefx.transforms.composer import CACHE_SIZE, Composer
from purefx.transforms.forward import inlined
from purefx.transforms.graphs import Engine

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger("purefx")


def functionalize(function: Callable[P, R]) -> Callable[P, R]:
    """``function`` with its writes and aliasing taken out, captured anew at each call.

    What the caller sees is what ``function`` does in eager.  Inside ``make_fx`` and other tracers, what they see
    is the functional graph, followed by the writes to the arguments.
    """
    function = _as_written(function)

    @untraced
    @functools.wraps(function)
    def functionalized(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_capturing() and not is_batching():
            return inlined(function, args, kwargs)
        if is_transforming():
            composed: R = Composer(function, engine_of(None))(args, kwargs)
            return composed
        with without_modes():  # a tracer sees the symbols of its own tensors alone
            stages = run_stages(function, args, kwargs, dynamic=False)
            wrapper = build(stages, graph_module(stages).forward, GradientProgram, engine_of(None))
        result: R = wrapper.run(pytree.tree_leaves((args, kwargs)))
        return result

    return functionalized


def trace(
    function: Callable[..., Any], *args: Any, dynamic: bool = False, partition: Partition = "default", **kwargs: Any
) -> Program:
    """The functional program of a call of ``function``; the arguments are only read.

    ``dynamic`` makes the sizes of the arguments symbols: the program then runs at other sizes too.  ``partition`` is as
    in `compile`.  Raises the error that ``function`` raises, or a `Refusal`.
    """
    stages = run_stages(_as_written(function), args, kwargs, dynamic=dynamic, partition=partition)
    module = graph_module(stages)
    return Program(stages, module, build(stages, module.forward, GradientProgram, engine_of(None)))


def compile(
    function: Callable[P, R], backend: Backend | None = None, *, partition: Partition = "default"
) -> Callable[P, R]:
    """``function``, a callable or a module, compiled for each kind of arguments that it is called with.

    ``backend`` takes the functional graph and example inputs and returns a callable with the graph's signature;
    without one the graph runs as it is.  A call that no specialisation fits is captured anew, and the logger
    ``purefx`` tells at level INFO why the nearest does not; the least recently used of more than ``CACHE_SIZE`` is
    dropped, and it tells, as a warning, what varies.  ``partition`` decides what a call keeps for its backward: what
    autograd saves in eager, or what PyTorch's "min_cut" keeps, or what a partitioner of your own does.  Raises
    TypeError where function or backend cannot be called.
    """
    _check_callable("function", function)
    if backend is not None:
        _check_callable("backend", backend)
    check_partition(partition)
    function = _as_written(function)
    compiled = Compiled(function, None if backend is None else Compilers.alike(backend), partition)
    functools.update_wrapper(compiled, function, updated=())  # not the attributes: a module's are its own
    return compiled


def _as_written(function: Callable[P, R]) -> Callable[P, R]:
    """``function``; if torch.compile has made it, what it was made of, and the logger ``purefx`` says so."""
    written: Callable[P, R] = as_written(function)
    if written is not function:
        log.warning("%s: torch.compile made it; purefx takes what it was made of, without Dynamo", name_of(written))
    return written


def _check_callable(role: str, given: object) -> None:
    if not callable(given):
        instead = f"; a name goes to torch.compile(f, backend=purefx.backend({given!r}))" * isinstance(given, str)
        raise TypeError(
            f"the {role} given to purefx.compile cannot be called: it is of type {type(given).__name__}{instead}"
        )


class Compiled:
    """A compiled function.  ``specialisations`` are tried from the most recently used on."""

    effects = True
    """Whether calls write and keep what the function does."""

    def __init__(
        self,
        function: Callable[..., Any],
        compilers: Compilers | None,
        partition: Partition = "default",
        engine: Engine | None = None,
    ) -> None:
        self.function = function
        self.compilers = compilers
        self.partition = partition
        self.specialisations: OrderedDict[int, tuple[Any, Wrapper, Conditions]] = OrderedDict()
        self._captures = 0
        self._engine = engine_of(compilers) if engine is None else engine
        self._composer = Composer(function, self._engine, effects=self.effects)

    @property
    def runs(self) -> Counter[str]:
        """How often each program ran that was compiled for a transform or for a gradient of a gradient, by its name.

        ``vmap(vjp(f))`` is the gradient of ``f`` for each of a batch.  That PyTorch's own operators ran in the place of
        a compiled program cannot be: there is no such way.
        """
        return self._engine.runs

    def __getattr__(self, name: str) -> Any:
        """What the function has: the parameters of a module, ``train()``, ``state_dict()``."""
        if name == "function" or name.startswith("__"):  # asked for while a copy is made, too
            raise AttributeError(name)
        found = getattr(self.function, name)
        if (
            isinstance(found, MethodType)
            and found.__self__ is self.function
            and isinstance(self.function, torch.nn.Module)
        ):
            return functools.wraps(found)(functools.partial(self._called, found))
        return found

    def _called(self, method: MethodType, *args: Any, **kwargs: Any) -> Any:
        """What a ``method`` of the module returns; this, where that is the module (``eval()``, ``to(...)``)."""
        found = method(*args, **kwargs)
        return self if found is self.function else found

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """A method of ``owner``, where it was compiled in the body of a class."""
        return self if owner is None else MethodType(self, owner)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what is read back, captures anew."""
        return type(self), (self.function, self.compilers, self.partition)

    def __repr__(self) -> str:
        return f"<compiled {name_of(self.function)}: {len(self.specialisations)} specialisations>"

    @untraced
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function by the specialisation that fits, or capture one."""
        if is_capturing() and not is_batching():
            return inlined(self.function, args, kwargs)
        if is_transforming():
            return self._composer(args, kwargs)
        leaves, structure = leaves_of(args, kwargs)
        try:
            chosen = self._known(leaves, structure)
        except NotImplementedError:  # a wrapper of a transform that has ended shows no memory
            chosen = None
        if chosen is None:
            with ONE_AT_A_TIME:
                seen = alive(leaves)
                chosen = self._known(seen, structure) or self._captured(args, kwargs, seen, structure)
        return chosen.run(leaves)

    def _known(self, leaves: Any, structure: Any) -> Wrapper | None:
        """The specialisation that fits a call, if there is one."""
        known = tuple(reversed(self.specialisations.items()))
        for place, (number, (expected, wrapper, _)) in enumerate(known):
            if structure == expected and wrapper.matches(leaves):
                if place and number in self.specialisations:
                    self.specialisations.move_to_end(number)
                return wrapper
        return None

    def _captured(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Any, structure: Any) -> Wrapper:
        """A specialisation for a call that none fits."""
        if self.specialisations and log.isEnabledFor(logging.INFO):
            nearest = min(self._misfits(leaves, structure), key=len, default=())
            reason = f"it does not hold that {nearest[0]}" if nearest else self._other_structure(args, kwargs)
            log.info("%s: capture %d, as %s", name_of(self.function), self._captures + 1, reason)
        with without_modes():  # a tracer sees the symbols of its own tensors alone
            wrapper = self._specialised(args, kwargs, structure)
        if len(self.specialisations) > CACHE_SIZE:
            dropped, _ = self.specialisations.popitem(last=False)
            is_first = self._captures == CACHE_SIZE + 1  # to find out what varies takes longer than a capture
            varies = self._varying(leaves, structure) if is_first else ""
            log.warning(
                "%s: dropped specialisation %d of more than %d%s", name_of(self.function), dropped, CACHE_SIZE, varies
            )
        return wrapper

    def _varying(self, leaves: Any, structure: Any) -> str:
        return f"; what varies from call to call: {varying(self._misfits(leaves, structure))}"

    def _misfits(self, leaves: Any, structure: Any) -> list[list[Guard]]:
        """What does not hold of a call, by the specialisation for its structure, the newest first."""
        kept = reversed(self.specialisations.values())
        return [list(conditions.failing(leaves)) for expected, _, conditions in kept if structure == expected]

    def _other_structure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """In what the structure of the arguments is another than that of the last capture."""
        *_, conditions = self.specialisations[next(reversed(self.specialisations))]
        return other_structure(conditions, flatten(args, kwargs).names)

    def stages(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stages:
        """What a call that no specialisation fits is captured as."""
        return run_stages(
            self.function, args, kwargs, dynamic=False, partition=self.partition, effects=self.effects
        )  # fmt: skip

    def _specialised(self, args: tuple[Any, ...], kwargs: dict[str, Any], structure: Any) -> Wrapper:
        stages = self.stages(args, kwargs)
        again = functools.partial(
            GradientProgram, compilers=self.compilers, partition=self.partition, engine=self._engine
        )
        if self.compilers is None:
            wrapper = build_without_backend(stages, again, self._engine)
        else:
            forward = self.compilers.inference if stages.joint is None else self.compilers.forward
            wrapper = build(stages, compile_graph(stages, forward), again, self._engine)
        self.specialisations[self._captures] = (structure, wrapper, Conditions.of(stages.capture, wrapper))
        self._captures += 1
        return wrapper


class GradientProgram(Compiled):
    """The gradient of a compiled function, which runs its forward once more, without its effects.

    It is compiled when a gradient is asked for that has gradients itself (``create_graph=True``).  A call raises
    GradientsRefused if it needs what the call of the function has written over.
    """

    effects = False

    def __init__(
        self,
        gradient: Gradient,
        kept: Kept,
        compilers: Compilers | None = None,
        partition: Partition = "default",
        engine: Engine | None = None,
    ) -> None:
        super().__init__(gradient, compilers, partition, engine)
        self._kept = kept

    def __call__(
        self, leaves: tuple[Any, ...], tangents: tuple[torch.Tensor, ...], kept: tuple[torch.Tensor, ...]
    ) -> Any:
        """The gradient; it is counted in ``runs``, with those of the function."""
        self.runs[name_of(self.function)] += 1
        return super().__call__(leaves, tangents, () if is_transforming() else kept)

    def stages(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stages:
        """What a call is captured as, with what was kept in the place of what would be computed again.

        What was kept is computed by the graph of the function, and is like that at every call.  So are the leaves, with
        which a call of the function has been matched.
        """
        stages = super().stages(args, kwargs)
        first = len(stages.capture.flat.leaves) - len(args[2])
        sources = [(x.sources[0], x) for x in stages.capture.inputs]
        given = {s.index - first: x for s, x in sources if isinstance(s, Leaf) and s.index >= first}
        leaves = range(len(pytree.tree_leaves(args[0])))
        alike = frozenset(x for i, x in given.items() if i in self._kept.alike)
        alike |= {x for s, x in sources if isinstance(s, Leaf) and s.index in leaves}
        return replace(stages, functional=self._kept.used(stages.functional, given), alike=alike)


def explain(function: Callable[..., Any], *args: Any, partition: Partition = "default", **kwargs: Any) -> Explanation:
    """Who writes what, who shares memory with whom, how each result is made, and which copies exist and why.

    Also what is saved for the backward, under ``partition`` as in `compile`.
    """
    return explain_stages(run_stages(_as_written(function), args, kwargs, dynamic=False, partition=partition))


def check(
    function: Callable[..., Any],
    *args: Any,
    backend: Backend | None = None,
    partition: Partition = "default",
    **kwargs: Any,
) -> CheckReport:
    """Run ``function`` in eager and compiled, on equal copies of the arguments, and list what a caller sees differ.

    ``backend`` and ``partition`` are as in `compile`.
    """
    refusals: list[PurefxError] = []

    def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
        return _noting(compile(f, backend, partition=partition), refusals)

    report = checking.check(_as_written(function), *args, compile=compiled, **kwargs)
    if refusals:
        raise refusals[0]
    return report


def _noting(function: Callable[..., Any], refusals: list[PurefxError]) -> Callable[..., Any]:
    """``function``, with what purefx itself raises put into ``refusals``."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return inlined(function, args, kwargs)
        except PurefxError as error:
            refusals.append(error)
            raise

    return call
