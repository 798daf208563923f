"""The transforms of torch.func that run, and their wrappers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CellType
from typing import Any

import torch
import torch.utils._pytree as pytree  # the flattening of what a pullback holds
from torch._functorch import eager_transforms  # knows whether a level of forward-mode AD is open
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack  # captures run outside of transforms

from purefx._torch.autograd import in_forward_mode, tangent_of, without_tangents


def is_functorch_wrapped(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` belongs to a running functorch transform: its memory is that of what it wraps."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def is_transforming() -> bool:
    """Whether a transform of torch.func runs, or a level of forward-mode AD is open."""
    return torch._C._functorch.peek_interpreter_stack() is not None or in_forward_mode()


def current_level() -> int:
    """The level of the innermost transform that runs; 0 where none does."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return max((interpreter.level() for interpreter in stack), default=0)


def batch_of_each_vmap() -> torch.Tensor:
    """A tensor without elements that has a batch at every vmap that runs: what takes it is run for each example."""
    functorch = torch._C._functorch
    stack = functorch.get_interpreter_stack() or ()
    levels = [functorch.CVmapInterpreterPtr(x) for x in stack if x.key() == functorch.TransformType.Vmap]
    with temporarily_clear_interpreter_stack():
        batch = torch.empty([*(level.batchSize() for level in levels), 0])
    for level in levels:
        batch = functorch._add_batch_dim(batch, 0, level.level())
    return batch


def is_batching() -> bool:
    """Whether one of the transforms that run is vmap."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == torch._C._functorch.TransformType.Vmap for level in stack)


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Leave the transforms of torch.func that run; operators see plain tensors again.

    Within a level of forward-mode AD that the user has opened, ``torch.func.jvp`` opens none of its own, since PyTorch
    has one level only; a counter of PyTorch's tells it that one is open.
    """
    opened = in_forward_mode() and not eager_transforms.JVP_NESTING
    with temporarily_clear_interpreter_stack(), _recording():
        eager_transforms.JVP_NESTING += opened
        try:
            yield
        finally:
            eager_transforms.JVP_NESTING -= opened


def _recording() -> AbstractContextManager[Any]:
    """Let autograd see operators, unless inference mode is on.

    A transform that differentiates switches the mode off, but not what the mode does to the dispatcher.
    """
    included = torch._C._dispatch_tls_local_include_set()
    if torch.is_inference_mode_enabled() or included.has(torch._C.DispatchKey.ADInplaceOrView):
        return nullcontext()
    return _without_inference()


@contextmanager
def _without_inference() -> Iterator[None]:
    gradients, tangents = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
    forward = nullcontext() if tangents else without_tangents()
    with torch.inference_mode(mode=False), torch.set_grad_enabled(gradients), forward:
        yield


def unwrap(tensor: torch.Tensor) -> tuple[torch.Tensor, int | None, int]:
    """What a wrapper of a transform holds, the dimension of it that is the batch (None if none), and the level."""
    functorch = torch._C._functorch
    dim = functorch.maybe_get_bdim(tensor)
    return functorch.get_unwrapped(tensor), None if dim < 0 else dim, functorch.maybe_get_level(tensor)


def below_all(tensor: torch.Tensor) -> tuple[torch.Tensor, list[int], bool]:
    """The plain tensor in all wrappers of ``tensor``, the batch dimensions, and whether any transform records it.

    The dimensions are those of the wrappers of vmap, the outermost first, each in what that wrapper holds.
    """
    functorch = torch._C._functorch
    wrapped, dim_of, held_by = functorch.is_functorch_wrapped_tensor, functorch.maybe_get_bdim, functorch.get_unwrapped
    dims, recorded, tensor = [], False, as_alive(tensor)
    while wrapped(tensor):
        dim = dim_of(tensor)
        if dim < 0:
            recorded = recorded or tensor.requires_grad
        else:
            dims.append(dim)
        tensor = as_alive(held_by(tensor))
    return tensor, dims, recorded or tensor.requires_grad


def bottom(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor in all wrappers of ``tensor``."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


class Transform:
    """The innermost transform that runs, which is ``is_vmap`` or one with gradients or tangents."""

    __slots__ = ("_interpreter", "_key", "level")

    def __init__(self, interpreter: Any) -> None:
        self._interpreter = interpreter
        self._key = interpreter.key()
        self.level: int = interpreter.level()

    @property
    def is_vmap(self) -> bool:
        """Whether it is vmap."""
        return bool(self._key == _TRANSFORMS.Vmap)

    @property
    def is_functionalize(self) -> bool:
        """Whether it is ``torch.func.functionalize``, which keeps the values of written tensors in wrappers."""
        return bool(self._key == _TRANSFORMS.Functionalize)

    @property
    def batch_size(self) -> int:
        """Of vmap: how many examples there are."""
        return int(torch._C._functorch.CVmapInterpreterPtr(self._interpreter).batchSize())

    @property
    def randomness(self) -> str:
        """Of vmap: its argument ``randomness``."""
        return str(torch._C._functorch.CVmapInterpreterPtr(self._interpreter).randomness().name).lower()

    def left(self) -> AbstractContextManager[None]:
        """Leave it, for what its rules ask of the transform around it; derivatives are as enabled as they were there.

        As PyTorch's operators do it: without gradients inside, there are none outside.
        """
        functorch = torch._C._functorch
        if self._key == _TRANSFORMS.Grad and not functorch.CGradInterpreterPtr(self._interpreter).prevGradMode():
            return _Left(torch.no_grad())
        if self._key == _TRANSFORMS.Jvp and not functorch.CJvpInterpreterPtr(self._interpreter).prevFwdGradMode():
            return _Left(without_tangents())
        return _Left(nullcontext())


class _Left:
    """Without the innermost transform, in a context of ``modes``; written out, since calls go through some of these."""

    __slots__ = ("_layer", "_modes")

    def __init__(self, modes: AbstractContextManager[Any]) -> None:
        self._modes = modes

    def __enter__(self) -> None:
        self._layer = torch._C._functorch.pop_dynamic_layer_stack()
        self._modes.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._modes.__exit__(*error)
        torch._C._functorch.push_dynamic_layer_stack(self._layer)


_TRANSFORMS = torch._C._functorch.TransformType


def innermost_transform() -> Transform | None:
    """The innermost transform that runs; None where none does."""
    interpreter: Any = torch._C._functorch.peek_interpreter_stack()
    return None if interpreter is None else Transform(interpreter)


def unwrap_dead(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """``tensors`` without the wrappers of transforms that have ended; operators of PyTorch do so by themselves."""
    alive = torch._C._functorch.unwrap_if_dead
    return [x if alive(x) is x else as_alive(x) for x in tensors]


def is_of_graph(function: Callable[..., Any]) -> bool:
    """Whether ``function`` is what ``torch.func.vjp`` or ``linearize`` has returned: pure, of a graph that is there."""
    return getattr(function, "__module__", None) == eager_transforms.__name__


def is_pullback(function: Callable[..., Any]) -> bool:
    """Whether ``function`` is what ``torch.func.vjp`` has returned: it goes through tensors that it has left."""
    if not is_of_graph(function):
        return False
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell)]
    tensors = [x for x in pytree.tree_leaves(cells) if isinstance(x, torch.Tensor)]
    return any(x.requires_grad and as_alive(x) is not x for x in tensors)


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - or it raises
    except ValueError:
        return False
    return True


def as_alive(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` without the wrappers of transforms that have ended, however many."""
    held: torch.Tensor = torch._C._functorch.unwrap_if_dead(tensor)
    return tensor if held is tensor else as_alive(held)


def unwrap_at(tensors: Sequence[torch.Tensor], level: int) -> list[torch.Tensor]:
    """What the wrappers of a grad or jvp hold, if such of that ``level`` are among ``tensors``; else these.

    A transform wraps all its arguments, also what another one has left.
    """
    unwrap = torch._C._functorch._unwrap_for_grad
    return unwrap_dead([unwrap(x, level) for x in tensors])


def wrap_at(tensors: Sequence[torch.Tensor], level: int) -> tuple[torch.Tensor, ...]:
    """``tensors`` in wrappers of the grad or jvp that is at ``level``."""
    wrap = torch._C._functorch._wrap_for_grad
    return tuple([wrap(x, level) for x in tensors])


def unwrap_batch(tensors: Sequence[torch.Tensor], level: int) -> tuple[list[torch.Tensor], list[int | None]]:
    """What the vmap at ``level`` has wrapped, and where the batch is in that; None in what it has not."""
    unwrap = torch._C._functorch._unwrap_batched
    pairs = [unwrap(x, level) for x in tensors]
    return unwrap_dead([x for x, _ in pairs]), [dim for _, dim in pairs]


def add_batch(tensor: torch.Tensor, level: int) -> torch.Tensor:
    """``tensor``, whose first dimension is the batch, as the vmap at ``level`` wraps it."""
    return torch._C._functorch._add_batch_dim(tensor, 0, level)


OneLevelFunction: Any = torch.autograd.function._SingleLevelFunction
"""What ``autograd.Function`` is without the walk through all levels of transforms."""


def applied_at_one_level(function: Any, *args: Any) -> Any:
    """What a `OneLevelFunction` returns, while transforms run: the one who asks takes care of the levels."""
    functorch = torch._C._functorch
    before = functorch.get_single_level_autograd_function_allowed()
    functorch.set_single_level_autograd_function_allowed(True)
    try:
        return function.apply(*args)
    finally:
        functorch.set_single_level_autograd_function_allowed(before)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether neither a transform nor forward-mode AD has its hands on ``tensor``."""
    return not is_functorch_wrapped(tensor) and tangent_of(tensor) is None


def below_functionalize(
    function: Callable[..., tuple[torch.Tensor, ...]], inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """``function`` of what ``torch.func.functionalize`` has wrapped, without that transform; its results wrapped."""
    level, add_back_views = current_level(), True
    given = list(inputs)
    for i, x in enumerate(inputs):
        if _is_of(x, level):
            torch._functionalize_sync(x)  # what is written reaches its wrapper only when somebody looks
            given[i] = torch._C._functorch._unwrap_functional_tensor(x, add_back_views)
    with torch._functorch.pyfunctorch.temporarily_pop_interpreter_stack():
        outputs = function(*given)
    return tuple(torch._C._functorch._wrap_functional_tensor(x, level) for x in outputs)


def _is_of(tensor: torch.Tensor, level: int) -> bool:
    return is_functional_wrapper(tensor) and torch._C._functorch.maybe_get_level(tensor) == level


def is_functional_wrapper(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a wrapper of torch.func.functionalize."""
    return bool(torch._is_functional_tensor(tensor))
