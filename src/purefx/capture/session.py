"""One capture: from a function and its arguments to everything that the run has shown.

    capture(f, args, kwargs)  ->  Capture(recording, inputs, results, ...)

The arguments are only read.  While the program runs, the parameters and buffers of its modules are replaced by
fakes; afterwards they are put back, whatever happened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from purefx._torch import (
    FakeTensor,
    as_alive,
    containers_in_cond,
    counting_with,
    is_cache,
    is_functorch_wrapped,
    is_transforming,
    outside_transforms,
    pytree,
    quiet_fake_tensors,
    seeing_backwards,
    set_version,
    without_dynamo,
    without_modes,
    without_saved_tensor_hooks,
)
from purefx.capture.arguments import (
    PLAIN,
    TENSOR_TYPES,
    Flat,
    GradientOf,
    Held,
    Leaf,
    Source,
    as_left,
    check_tensor,
    flatten,
)
from purefx.capture.captured import Capture, Hook, Input, PlainResult, Rebinding, Result, Resumed, TensorResult
from purefx.capture.edges import edge_left, edge_of, edge_of_leaf, is_bare_view, is_leaf, take_off_hooks
from purefx.capture.escapes import check_nothing_escaped
from purefx.capture.fakes import FakeFactory
from purefx.capture.frames import current_line
from purefx.capture.global_state import Ambient, unchanged_globals
from purefx.capture.named_views import eager_names
from purefx.capture.owners import find_owners, first_line_of
from purefx.capture.python_methods import python_methods
from purefx.capture.recorder import KnownNumber, Recorder
from purefx.capture.recording import Operand, Recording
from purefx.capture.renewal import renewed_for_functions
from purefx.capture.stand_ins import Tables, check_arguments, fake_owners, fake_variables
from purefx.capture.translation import refusals
from purefx.capture.turns import ONE_AT_A_TIME
from purefx.capture.watching import Watching
from purefx.errors import EscapedState, GradientsRefused, SourceLine, UnknownOutputType

_running = threading.local()
"""How many captures run in this thread: ``depth``."""


def is_capturing() -> bool:
    """Whether a capture runs in this thread: what is called now is a part of the captured program."""
    return getattr(_running, "depth", 0) > 0


def nothing_known(recording: Recording, operand: Operand) -> None:
    """No number in a tensor is known before the program runs."""


def capture(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    dynamic: bool = False,
    known: KnownNumber = nothing_known,
    transformable: bool = True,
) -> Capture:
    """Run ``function`` once on fakes of its arguments and return what was seen.

    What is ``transformable`` has operators that transforms have rules for, even where eager runs others.
    ``known`` finds numbers that do not depend on the arguments (see `Recorder`).
    Raises the program's own errors as they are, and a `Refusal` for what cannot be compiled faithfully.
    """
    return _Session(function, flatten(args, kwargs), known, dynamic=dynamic, transformable=transformable).run()


@contextmanager
def _apart() -> Iterator[None]:
    """Wait for one's turn, and leave what the caller has around the call: modes, hooks on what is saved, Dynamo."""
    with ONE_AT_A_TIME, without_modes(), without_saved_tensor_hooks(), without_dynamo():
        yield


class _Session:
    """The state of one capture.  ``_inputs`` maps the identity of each real tensor to its input."""

    def __init__(
        self, function: Callable[..., Any], flat: Flat, known: KnownNumber, *, dynamic: bool, transformable: bool
    ) -> None:
        self._function = function
        self._flat = flat
        self._owners = find_owners(function, flat.leaves, flat.names)
        tensors = [x for x in flat.leaves if isinstance(x, torch.Tensor)]
        self._fakes = FakeFactory(tensors, dynamic=dynamic)
        self._recorder = Recorder(self._reach, known, self._fakes.mode)
        self._left: tuple[Hook, ...] = ()
        self._inputs: dict[int, Input] = {}
        self._watching = Watching(capture, self._inputs, self._recorder.notice, transformable=transformable)
        self._leaves: list[Input] = []
        self._hooks: dict[int, tuple[Any, ...]] = {}
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._held: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run(self) -> Capture:
        grad_before, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        with _apart(), unchanged_globals() as grad_after:
            args, kwargs = self._fake_arguments()
            given = self._flat.whole(pytree.tree_leaves((args, kwargs)))
            with fake_variables(self._function, self._make), fake_owners(self._owners, self._make) as swapped:
                for known in self._inputs.values():
                    known.writes = -_version(known.fake)
                outputs = self._call(args, kwargs)
                self._recorder.settle_detach()
                self._recorder.histories.settle()
                self._recorder.chance.check_kept()
                check_arguments(given, (args, kwargs), self._line_of)
                rebindings = tuple(self._rebindings(swapped))
            leaves, structure = pytree.tree_flatten(outputs)
            results = tuple(self._result(x, f"output {i}") for i, x in enumerate(leaves))
            bound = [rebinding.result for rebinding in rebindings]
            returned = [r.fake for r in [*results, *bound] if isinstance(r, TensorResult)]
            self._read_inputs(returned)
            has_graph = any(x.requires_grad for x in self._recorder.alive())
            roots = (self._function, *args, *kwargs.values()) if has_graph else ()
            check_nothing_escaped(self._recorder.alive(), [*self._fakes.made(), *returned], roots)
        modules = tuple((o.name, o.value) for o in self._owners if isinstance(o.value, torch.nn.Module))
        return Capture(
            self._function, self._recorder.recording, self._flat, tuple(self._inputs.values()), modules, results,
            structure, rebindings, grad_before, grad_after[0], inference, Ambient.present(), self._fakes.mode,
            self._fakes.dynamic, self._resumed, frozenset(self._recorder.histories.plain),
            frozenset(self._recorder.histories.known), self._left,
        )  # fmt: skip

    @contextmanager
    def _resumed(self) -> Iterator[Resumed]:
        """Enter the run once more, with fakes again where the program reaches tensors by itself."""
        with (
            _apart(),
            unchanged_globals(),
            python_methods(),
            refusals(),
            quiet_fake_tensors(),
            containers_in_cond(),
            fake_variables(self._function, self._make),
            fake_owners(self._owners, self._make) as swapped,
        ):
            self._recorder.chance.resume()
            with self._watching, seeing_backwards(self._watching), self._fakes.mode, self._recorder:
                yield Resumed(self._recorder, lambda: tuple(self._inputs.values()))
            self._put_back()
            for rebinding in self._rebindings(swapped):
                raise EscapedState(
                    f"the backward binds {rebinding.name}: a hook, or a function's own backward",
                    where=None,
                    remedy="return what it keeps, or register the hook outside, on the result",
                )

    def _fake_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves: list[Any] = list(self._flat.leaves)
        for i, (name, leaf) in enumerate(zip(self._flat.names, leaves, strict=True)):
            if isinstance(leaf, torch.Tensor):
                leaves[i] = self._input(leaf, Leaf(i, name)).fake
        return self._flat.whole(leaves)

    def _input(self, tensor: torch.Tensor, source: Source) -> Input:
        if (held := as_alive(tensor)) is not tensor:
            return self._input(held, as_left(source, held))
        known = self._inputs.get(id(tensor))
        if known is not None:
            known.sources.append(source)
            return known
        check_tensor(source.name, tensor)
        made = self._met(tensor, source, self._fakes.make(tensor, source.name))
        fake = made.fake
        if fake.requires_grad and made.was_leaf and not is_bare_view(fake):
            self._leaves.append(made)
        elif fake.requires_grad:
            made.edge = edge_of(fake)
        if fake.requires_grad and fake._base is not None:
            made.base_edge = edge_of(fake._base)
        if tensor.requires_grad and is_leaf(tensor) and tensor.grad is not None:
            made.grad = fake.grad = self._input(tensor.grad, GradientOf(made.tensor, f"{source.name}.grad")).fake
        return made

    def _met(self, tensor: torch.Tensor, source: Source, fake: torch.Tensor) -> Input:
        """The input that ``tensor`` is, with the fake that stands for it."""
        region = self._recorder.region(fake)
        made = Input([source], tensor, fake, self._recorder.variable(fake), region, region, writes=-_version(fake))
        made.was_leaf = is_leaf(fake)
        self._recorder.histories.watch(fake)
        self._inputs[id(tensor)] = made
        return made

    def _make(self, tensor: torch.Tensor, source: Source) -> torch.Tensor:
        is_left = is_functorch_wrapped(as_alive(tensor)) and not is_transforming()  # by vmap: operators refuse it
        return tensor if is_left or self._fakes.has_made(tensor) else self._input(tensor, source).fake

    def _reach(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake of a tensor that the program uses and has reached by itself.

        Autograd has seen the tensor and not the fake: what it would record for a gradient is in the caller's graph.
        """
        tensor = as_alive(tensor)
        if tensor.requires_grad and torch.is_grad_enabled():
            raise GradientsRefused(
                f"the program reaches a tensor of size {list(tensor.shape)} that requires grad,"
                " by way of an object that purefx does not watch",
                where=current_line(),
                remedy="pass the tensor as an argument, or keep it in a variable, a list, a dict or an attribute",
            )
        return self._lift(tensor)

    def _lift(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake of a tensor that the program has reached by itself, and that gets no gradient."""
        known = self._inputs.get(id(tensor))
        if known is None:
            name, version = f"a tensor of size {list(tensor.shape)} held outside", _version(tensor)
            check_tensor(name, tensor)
            with outside_transforms(), without_modes(), torch.no_grad():
                alias = tensor.detach()
                fake = self._fakes.make(alias if tensor.requires_grad else tensor, name)
                known = self._met(tensor, Held(tensor, None, name), fake)
            self._held.append((tensor, alias))
            if not tensor.is_inference():
                self._versions.append((tensor, version))
        return known.fake

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            names = eager_names(self._inputs.values(), self._recorder.recording)
            _running.depth = getattr(_running, "depth", 0) + 1
            with (
                names, python_methods(), refusals(), quiet_fake_tensors(), containers_in_cond(),
                renewed_for_functions(), self._watching, seeing_backwards(self._watching),
                self._fakes.mode, self._recorder,
            ):  # fmt: skip
                results = self._function(*args, **kwargs)
            self._left = tuple(hook for hook in self._watching.hooks if hook.remains)
            return results
        finally:
            _running.depth -= 1
            self._put_back()

    def _put_back(self) -> None:
        """Undo what the run did to real tensors that it reached by itself; refuse what is more than a count."""
        for tensor, version in self._versions:
            self._inputs[id(tensor)].writes += tensor._version - version  # autograd counts at the tensor it was given
            set_version(tensor, version)
        for tensor, alias in self._held:
            turned = isinstance(tensor, FakeTensor) and not isinstance(alias, FakeTensor)
            if turned or tensor.is_meta != alias.is_meta or tensor.stride() != alias.stride():
                tensor.data = alias
                raise EscapedState(
                    "the program changes the geometry or the storage of a tensor"
                    f" of size {list(alias.shape)} held outside",
                    where=None,
                    remedy="pass the tensor as an argument",
                )

    def _result(self, x: Any, name: str) -> Result:
        if isinstance(x, torch.nn.Parameter) and id(x) not in {id(k.fake) for k in self._inputs.values()}:
            raise UnknownOutputType(
                f"{name} is a parameter that the program made", where=None, remedy="return the tensor itself"
            )
        if isinstance(x, torch.Tensor):
            if type(x) not in TENSOR_TYPES:
                raise UnknownOutputType(
                    f"{name} is of the tensor subclass {type(x).__qualname__}",
                    where=None,
                    remedy="return the plain tensors that it holds",
                )
            known = self._inputs.get(id(x))
            fake = x if known is None else known.fake
            if not isinstance(fake, FakeTensor):
                fake = self._lift(fake)
            self._recorder.notice(fake)
            version, hooks = self._own_version(fake), self._hooks.setdefault(id(fake), take_off_hooks(fake))
            return TensorResult(self._recorder.variable(fake), self._recorder.region(fake), fake, version, hooks)
        if isinstance(x, PLAIN):
            return PlainResult(x)
        raise UnknownOutputType(
            f"{name} is of type {type(x).__module__}.{type(x).__qualname__}",
            where=None,
            remedy="return tensors, numbers, and containers of them",
        )

    def _line_of(self, x: Any) -> SourceLine | None:
        """The line that made ``x``, if it is a tensor of the run; else the first of the program."""
        made = self._recorder.recording.producers.get(self._recorder.region(x)) if isinstance(x, torch.Tensor) else None
        return first_line_of(self._function) if made is None else made[0].where

    def _own_version(self, fake: torch.Tensor) -> int | None:
        if fake.is_inference() or counting_with(fake, [known.fake for known in self._inputs.values()]):
            return None
        return fake._version

    def _rebindings(self, saved: Tables) -> Iterator[Rebinding]:
        fakes = {id(i.fake): i.tensor for i in self._inputs.values()}
        for owner, tables in saved:
            for table, old in zip(owner.tables, tables, strict=True):
                for key, value in [(k, table.get(k, v)) for k, v in table.items() if not is_cache(owner.value, k)]:
                    if not _is_unchanged(value, old.get(key, _ABSENT), fakes):
                        name = owner.spelled(key)
                        _check_state(name, value)
                        result = self._result(value, name) if isinstance(value, torch.Tensor) else PlainResult(value)
                        yield Rebinding(table, key, name, result, old.get(key))
                for key in [key for key in old if key not in table]:
                    yield Rebinding(table, key, owner.spelled(key), None, old[key])

    def _read_inputs(self, returned: list[torch.Tensor]) -> None:
        for leaf in self._leaves:
            leaf.edge = edge_of_leaf(leaf.fake, self._recorder.alive())
        for known in self._inputs.values():
            self._recorder.notice(known.fake)
            known.after = known.variable.last
            known.left = None if known.fake.requires_grad else edge_left(known.fake, returned)
            hooks = self._hooks.setdefault(id(known.fake), take_off_hooks(known.fake))
            late = known.variable in self._recorder.histories.changed
            known.hooks, known.late_hooks = ((), hooks) if late else (hooks, ())
            known.retains_grad = known.fake.retains_grad and not known.tensor.retains_grad
            known.writes += _version(known.fake)


_ABSENT = object()


def _is_unchanged(value: Any, old: Any, fakes: dict[int, torch.Tensor]) -> bool:
    """Whether ``value`` is ``old``, or a new container of the very tensors that were in the old one."""
    if value is old or fakes.get(id(value), value) is (as_alive(old) if isinstance(old, torch.Tensor) else old):
        return True
    if not isinstance(value, list | tuple) or type(value) is not type(old) or len(value) != len(old):
        return False
    pairs = zip(value, old, strict=True)
    return all(_is_unchanged(new, fakes.get(id(before), before), fakes) for new, before in pairs)


def _check_state(name: str, value: Any) -> None:
    """Refuse a changed entry ``name`` of an owner that the runtime cannot set again at each call."""
    if isinstance(value, torch.Tensor):
        return
    leaves = pytree.tree_leaves(value)
    if any(isinstance(x, torch.Tensor) for x in leaves):
        raise EscapedState(
            f"a container with tensors was bound to {name}",
            where=None,
            remedy="return it, or keep each tensor in an attribute of its own",
        )
    for x in leaves:
        if not isinstance(x, (*PLAIN, torch.Size, set, frozenset)):
            raise EscapedState(
                f"an object of type {type(x).__qualname__} was bound to {name}",
                where=None,
                remedy="return it, or make it before the call",
            )


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
