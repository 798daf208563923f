"""Every private name of PyTorch that purefx uses, each with the reason.

Nothing else in the package names a private part of ``torch``; when PyTorch moves something, this file changes.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Literal, ParamSpec, TypeVar

import torch
import torch.utils._pytree as pytree  # the flattening that torch.compile and transformers register types with
from functorch.compile import (  # type: ignore[import-untyped]  # public, and without types
    min_cut_rematerialization_partition as min_cut_partition,
)
from torch._C._dynamo.eval_frame import set_eval_frame  # what Dynamo does with the frames that are called
from torch._dynamo import OptimizedModule  # what torch.compile makes of a module
from torch._dynamo.source import ConstantSource  # names a size symbol; the symbol factory asks for a source
from torch._functorch import eager_transforms  # knows whether a level of forward-mode AD is open
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack  # captures run outside of transforms
from torch._ops import HigherOrderOperator, OpOverload  # the types of operators; no public spelling
from torch._subclasses.fake_tensor import (  # fake tensors have no public constructor
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.autograd import forward_ad  # has the level that is open
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
    free_unbacked_symbols,
)
from torch.fx.passes.fake_tensor_prop import FakeTensorProp  # gives nodes the fake values that partitioners read
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see ATen operators
from torch.utils._sympy.interp import sympy_interp  # lowers a size expression to graph nodes
from torch.utils._sympy.printers import PythonPrinter  # prints a size expression as Python
from torch.utils._sympy.reference import PythonReferenceAnalysis

__all__ = [
    "ConstantSource",
    "DataDependentOutputException",
    "DimDynamic",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "FakeTensorProp",
    "GuardOnDataDependentSymNode",
    "HigherOrderOperator",
    "OpOverload",
    "PythonPrinter",
    "PythonReferenceAnalysis",
    "ShapeEnv",
    "StatelessSymbolicContext",
    "TorchDispatchMode",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
    "free_unbacked_symbols",
    "min_cut_partition",
    "pytree",
    "sympy_interp",
]

P = ParamSpec("P")
R = TypeVar("R")


def storage_key(tensor: torch.Tensor) -> int:
    """The identity of the memory block of ``tensor``; ``data_ptr`` is no identity (empty and fake tensors)."""
    return memory_key(tensor.untyped_storage())


def memory_key(memory: torch.UntypedStorage) -> int:
    """The identity of ``memory``; two Python objects may stand for one block."""
    key: int = memory._cdata
    return key


def has_symbolic_sizes(tensor: torch.Tensor) -> bool:
    """Whether a size, stride or the offset of ``tensor`` is a symbol: to look for one in Python costs more."""
    symbolic: bool = tensor._has_symbolic_sizes_strides
    return symbolic


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of ``tensor``, to undo what a capture counted on a tensor of the caller."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def count_writes_together(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a write to ``a`` moves the version of ``b``: true of ``x.detach()``, not of ``x.data``."""
    return bool(counting_with(a, [b]))


def counting_with(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those of ``others`` whose version a write to ``tensor`` moves.

    PyTorch has no way to ask; so the counter is moved on and put back.
    """
    if tensor.is_inference():
        return []
    version = tensor._version
    equal = [x for x in others if not x.is_inference() and x._version == version]
    if not equal:
        return []
    torch.autograd.graph.increment_version(tensor)
    found = [x for x in equal if x._version != version]
    set_version(tensor, version)
    return found


def copy_view_rules(fake: torch.Tensor, tensor: torch.Tensor) -> None:
    """Let the view ``fake`` be written to in place where ``tensor`` may be: not a piece of ``unbind``, for one.

    How a view was made decides that; PyTorch keeps it in a field without a public name.
    """
    if fake._is_view() and not fake.is_inference():
        torch._C._autograd._set_creation_meta(fake, torch._C._autograd._get_creation_meta(tensor))


def swap_contents(a: torch.Tensor, b: torch.Tensor) -> None:
    """Let each of two Python objects be the tensor that the other was.

    ``torch.utils.swap_tensors`` refuses to where a graph of gradients holds one, or a weak reference.
    """
    torch._C._swap_tensor_impl(a, b)


@contextmanager
def without_overrides() -> Iterator[None]:
    """Take the tensors of classes with ``__torch_function__`` as plain ones."""
    with torch._C.DisableTorchFunctionSubclass():
        yield


def takes_hooks_off(func: Callable[..., Any]) -> bool:
    """Whether ``func`` is what ``set_`` calls from within, of a tensor whose class overrides functions."""
    descriptor: Any = torch.Tensor._backward_hooks
    return bool(func == descriptor.__set__)


def holders_in_python(tensor: torch.Tensor) -> int:
    """How many references Python has to ``tensor``, the caller's own among them.

    While others than Python hold it (a graph of gradients), PyTorch has one reference of its own.
    """
    others: bool = tensor._use_count() > 1  # type: ignore[attr-defined]  # PyTorch's stubs leave it out
    return sys.getrefcount(tensor) - 2 - others


def view_rules(tensor: torch.Tensor) -> Any:
    """What decides whether the view ``tensor`` may be written to (see `copy_view_rules`)."""
    return torch._C._autograd._get_creation_meta(tensor)


def is_piece(view: torch.Tensor) -> bool:
    """Whether ``view`` is one of several that one operator returned, as those of ``unbind``."""
    return view._is_view() and view_rules(view) == torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE


def is_from_function(view: torch.Tensor) -> bool:
    """Whether ``view`` was returned by a function of the user's, so that autograd cannot make its history anew."""
    return view._is_view() and view_rules(view) == torch._C._autograd.CreationMeta.IN_CUSTOM_FUNCTION


def accumulates() -> bool:
    """Whether the backward that runs adds up gradients at all leaves, and was not asked for those of some tensors."""
    valid: bool = torch.autograd._is_checkpoint_valid()  # type: ignore[no-untyped-call]  # it has no types
    return valid


def keeps_graph() -> bool:
    """Whether the backward that runs may be asked to run once more (``retain_graph=True``)."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Take off the hooks that the caller has set on what autograd saves: they are for the call, not for its capture."""
    hooks = []
    ignore_is_tracing = False
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(ignore_is_tracing)) is not None:
        hooks.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


READS_HISTORY: Callable[..., Any] = vars(torch._C.TensorBase)["grad_fn"].__get__
"""What a mode for torch functions sees where a program asks for ``x.grad_fn``."""


READS_DATA: Callable[..., Any] = vars(torch._C.TensorBase)["data"].__get__
"""What a mode for torch functions sees where a program asks for ``x.data``."""


def has_saved_tensor_hooks() -> bool:
    """Whether hooks are set on what autograd saves."""
    ignore_is_tracing = False
    return torch._C._autograd._top_saved_tensors_default_hooks(ignore_is_tracing) is not None


def without_modes() -> AbstractContextManager[Any]:
    """Run on real tensors although dispatch modes (fake tensors, tracing) are active."""
    if not torch._C._len_torch_dispatch_stack() and not torch._ops._len_torch_dispatch_stack_pre_dispatch():  # type: ignore[no-untyped-call]
        return nullcontext()  # which takes a tenth of the time
    return torch.utils._python_dispatch._disable_current_modes()


@contextmanager
def running_fake_kernels(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Run the fake kernels for ``tensors``: what fake tensors remember of earlier calls is not all that they do.

    It resizes nothing, and knows the sizes of tensors but not those of their storages.
    """
    mode = outer_fake_mode(tensors)
    if mode is None:
        yield
        return
    enabled, mode.cache_enabled = mode.cache_enabled, False
    try:
        yield
    finally:
        mode.cache_enabled = enabled


def outer_fake_mode(tensors: Sequence[torch.Tensor]) -> FakeTensorMode | None:
    """The mode of the first fake tensor among ``tensors``: its symbols must be used for ours."""
    return next((t.fake_mode for t in tensors if isinstance(t, FakeTensor)), None)


def without_dispatch() -> AbstractContextManager[None]:
    """Pass all dispatch to Python by, that of fake tensors too: for single calls of kernels that touch no memory.

    Other than `without_modes` it costs next to nothing.
    """
    guard: AbstractContextManager[None] = torch._C._DisableTorchDispatch()
    return guard


def is_functorch_wrapped(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` belongs to a running functorch transform: its memory is that of what it wraps."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def is_transforming() -> bool:
    """Whether a transform of torch.func runs, or a level of forward-mode AD is open."""
    return torch._C._functorch.peek_interpreter_stack() is not None or in_forward_mode()


def in_forward_mode() -> bool:
    """Whether a level of forward-mode AD is open."""
    return forward_ad._current_level >= 0


def plain_have_tangents() -> bool:
    """Whether a tensor that no transform has wrapped may have a tangent: ``torch.func.jvp`` has its own in wrappers.

    PyTorch has one level, which either the user or ``torch.func.jvp`` has opened; a counter of its tells who.
    """
    return forward_ad._current_level >= 0 and not eager_transforms.JVP_NESTING


@contextmanager
def below_forward_mode() -> Iterator[None]:
    """Let fake kernels be: what prints a tensor asks for its tangent, of which nothing is known below autograd.

    PyTorch prints the operands of an operator whose overload it looks for.
    """
    level, forward_ad._current_level = forward_ad._current_level, -1
    try:
        yield
    finally:
        forward_ad._current_level = level


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
    with temporarily_clear_interpreter_stack():
        eager_transforms.JVP_NESTING += opened
        try:
            yield
        finally:
            eager_transforms.JVP_NESTING -= opened


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
    dims, recorded = [], False
    while wrapped(tensor):
        dim = dim_of(tensor)
        if dim < 0:
            recorded = recorded or tensor.requires_grad
        else:
            dims.append(dim)
        tensor = held_by(tensor)
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


def without_tangents() -> AbstractContextManager[None]:
    """Switch forward-mode AD off, as `torch.no_grad` switches off reverse mode; public it is not."""
    return torch.autograd.forward_ad._set_fwd_grad_enabled(mode=False)


def unwrap_dead(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """``tensors`` without the wrappers of transforms that have ended; operators of PyTorch do so by themselves."""
    return [*map(torch._C._functorch.unwrap_if_dead, tensors)]


def unwrap_at(tensors: Sequence[torch.Tensor], level: int) -> list[torch.Tensor]:
    """What the wrappers of a grad or jvp hold, if such of that ``level`` are among ``tensors``; else these."""
    unwrap = torch._C._functorch._unwrap_for_grad
    return [unwrap(x, level) for x in tensors]


def wrap_at(tensors: Sequence[torch.Tensor], level: int) -> tuple[torch.Tensor, ...]:
    """``tensors`` in wrappers of the grad or jvp that is at ``level``."""
    wrap = torch._C._functorch._wrap_for_grad
    return tuple([wrap(x, level) for x in tensors])


def unwrap_batch(tensors: Sequence[torch.Tensor], level: int) -> tuple[list[torch.Tensor], list[int | None]]:
    """What the vmap at ``level`` has wrapped, and where the batch is in that; None in what it has not."""
    unwrap = torch._C._functorch._unwrap_batched
    pairs = [unwrap(x, level) for x in tensors]
    return [x for x, _ in pairs], [dim for _, dim in pairs]


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


def tangent_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tangent of ``tensor`` in forward-mode AD, which has one level; None if it has none.

    What is public does the same, and takes four times as long.
    """
    if forward_ad._current_level < 0:
        return None
    tangent: torch.Tensor | None = torch._C._VariableFunctions._unpack_dual(tensor, level=0)[1]
    return tangent


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether neither a transform nor forward-mode AD has its hands on ``tensor``."""
    return not is_functorch_wrapped(tensor) and tangent_of(tensor) is None


def primal_of(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` without its tangent in forward-mode AD; itself, if it has none."""
    if tangent_of(tensor) is None:
        return tensor
    primal: torch.Tensor = torch.autograd.forward_ad.unpack_dual(tensor).primal  # type: ignore[no-untyped-call]
    return primal


def with_memory(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``; if it is one of the zeros without memory that autograd makes, a tensor of zeros.

    Not all of PyTorch's kernels know those: some read whatever memory they come upon.
    """
    return torch.zeros_like(tensor) if tensor._is_zerotensor() else tensor


_BATCHED = torch._C._dispatch_key_parse("Batched")


def is_batching_by_autograd() -> bool:
    """Whether the vmap of ``autograd.grad(is_grads_batched=True)`` runs."""
    torch._C._vmapmode_increment_nesting()
    return torch._C._vmapmode_decrement_nesting() > 0


def is_batched_by_autograd(tensor: torch.Tensor) -> bool:
    """Whether ``autograd.grad(is_grads_batched=True)`` has wrapped ``tensor``: by a vmap older than torch.func's."""
    return torch._C._dispatch_keys(tensor).has(_BATCHED)


def batched_by_function(
    function: Callable[..., tuple[torch.Tensor, ...]], inputs: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor, ...]:
    """``function`` of ``inputs`` under ``torch.func.vmap``, in the place of the older vmap that has wrapped some."""
    dims = tuple(None if x is None or not is_batched_by_autograd(x) else 0 for x in inputs)
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    torch._C._vmapmode_decrement_nesting()
    try:
        given = [
            x if x is None or dim is None else torch._remove_batch_dim(x, level, 1, 0)
            for x, dim in zip(inputs, dims, strict=True)
        ]
        outputs = torch.func.vmap(function, in_dims=dims, randomness="same")(*given)
        return tuple(torch._add_batch_dim(_batch_outermost(x), 0, level) for x in outputs)
    finally:
        torch._C._vmapmode_increment_nesting()


def _batch_outermost(x: torch.Tensor) -> torch.Tensor:
    """``x``, in memory where its first dimension is the outermost: the older vmap gives no other view by strides."""
    return x if all(x.stride(0) >= stride for stride in x.stride()) else x.contiguous()


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


def is_traced_by_proxies() -> bool:
    """Whether ``make_fx`` runs: compiled code would hide from it what it is to see."""
    return get_proxy_mode() is not None


def is_functional_wrapper(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a wrapper of torch.func.functionalize."""
    return bool(torch._is_functional_tensor(tensor))


def schema_of(op: OpOverload) -> torch.FunctionSchema:
    """The schema of ``op``."""
    return op._schema


def overload_packet(op: OpOverload, name: str) -> Any | None:
    """The operator named ``name`` in the namespace of ``op``, or None."""
    namespace = op.namespace
    return getattr(getattr(torch.ops, namespace), name, None)


def find_overload(packet: Any, name: str) -> OpOverload | None:
    """The overload ``name`` of ``packet``, or None."""
    return getattr(packet, name, None)


def autocast_state() -> Any:
    """The autocast state that a program may not change: per device whether it is on, and its dtype."""
    devices = ("cpu", "cuda")
    return [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]


def resolve_op(name: str) -> OpOverload:
    """The ATen overload spelled ``name``, e.g. "select.int"."""
    packet, overload = name.split(".")
    op: OpOverload = getattr(getattr(torch.ops.aten, packet), overload)
    return op


def restore_autocast(state: Any) -> None:
    """Put back what `autocast_state` returned."""
    for device, (enabled, dtype) in zip(("cpu", "cuda"), state, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


@contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Keep fake tensors from logging what their kernels raise: it is raised, or eager's error in its place."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, into which Dynamo does not look; PyTorch leaves the types of its decorator open."""
    outside: Callable[P, R] = torch.compiler.disable(function, reason="purefx compiles it")  # type: ignore[no-untyped-call]
    return outside


@contextmanager
def without_dynamo() -> Iterator[None]:
    """Run what ``torch.compile`` has made as it was written.

    Dynamo gives up for good a function that it meets below a dispatch mode: it stays in eager until a reset.
    ``set_stance`` refuses where Dynamo is looking, so that it has to look away first.
    """
    looking = set_eval_frame(None)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        set_eval_frame(looking)


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """What ``torch.compile`` has made ``function`` of; itself, if it has not made it."""
    if isinstance(function, OptimizedModule):
        module: torch.nn.Module = function._orig_mod
        return module
    if isinstance(function, MethodType):
        method = as_written(function.__func__)
        return function if method is function.__func__ else MethodType(method, function.__self__)
    if isinstance(function, FunctionType) and hasattr(function, "_is_torch_compile"):  # a module inside is told, too
        original: Callable[..., Any] = vars(function)["_torchdynamo_orig_callable"]
        return original
    return function


def inductor_for(
    graphs: Literal["forward", "backward", "inference"],
) -> Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]:
    """The compiler of Inductor for such graphs, which must be functional.

    Its public functions take graphs that are not functional yet, and functionalize them by AOTAutograd.
    """
    from torch._inductor.compile_fx import compile_fx_inner  # seconds that only its users pay

    def inductor(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        output = module.graph.output_node()
        output.meta["user_visible_output_idxs"] = range(len(pytree.tree_leaves(output.args)))  # their strides are kept
        with _eager_random_numbers():
            compiled: Callable[..., Any] = compile_fx_inner(
                module, example_inputs, is_backward=graphs == "backward", is_inference=graphs == "inference"
            )
        return compiled

    return inductor


def inductor_decompositions() -> Mapping[OpOverload, Callable[..., Any]]:
    """The operators that Inductor has no lowering for, and what it wants them to be made of."""
    from torch._inductor.decomposition import select_decomp_table

    with _eager_random_numbers():
        table: Mapping[OpOverload, Callable[..., Any]] = select_decomp_table()
    return table


def _eager_random_numbers() -> AbstractContextManager[Any]:
    """Have Inductor draw the numbers that eager draws; its own generator gives others."""
    from torch._inductor import config

    return config.patch(fallback_random=True)  # type: ignore[no-any-return]


def trace_again(
    run: Callable[..., Any],
    examples: Sequence[Any],
    mode: FakeTensorMode | None,
    decompositions: Mapping[OpOverload, Callable[..., Any]],
) -> torch.fx.GraphModule:
    """The graph of ``run`` on ``examples``, fake tensors of ``mode`` and symbols, with ``decompositions`` applied."""
    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
    if mode.shape_env is not None:
        mode.shape_env.pending_fresh_unbacked_symbols.clear()  # those of the capture are not in the new graph
    with mode, torch.no_grad(), torch._C._DisableAutocast():
        return make_fx(run, decomposition_table=dict(decompositions))(*examples)


Rules = Mapping[str, Callable[..., Any]]

_RETIRED: deque[list[Any]] = deque(maxlen=256)
"""Kernels that are registered no more: another thread may be on its way into one, and wait for Python's lock."""


def register_vmap_rules(rules: Mapping[str, Rules], asked: Callable[[], bool]) -> Callable[[], None]:
    """Have ``rules``, by dispatch key and operator, stand in for PyTorch's where ``asked()``; returns what ends that.

    Each rule is called with PyTorch's own kernel and the operator's arguments.
    """
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)  # that there is a kernel already
        for key, table in rules.items():
            for name, rule in table.items():
                kernel = _vmap_kernel(_computed_kernel(name, key), rule, asked)
                library.impl(name, kernel, key, with_keyset=True)  # type: ignore[no-untyped-call]
    kernels = [_computed_kernel(name, key) for key, table in rules.items() for name in table]

    def end() -> None:
        _RETIRED.append(kernels)
        library._destroy()  # type: ignore[no-untyped-call]

    return end


def _computed_kernel(name: str, key: str) -> Any:
    """As `torch.library.get_kernel`, which does not know the key of the older vmap."""
    return torch._C._dispatch_get_computed_kernel_for_dispatch_key(f"aten::{name}", key)


def _vmap_kernel(own: Any, rule: Callable[..., Any], asked: Callable[[], bool]) -> Callable[..., Any]:
    def kernel(keys: Any, *arguments: Any) -> Any:
        run = partial(own.call_boxed, keys)
        return rule(run, *arguments) if asked() else run(*arguments)

    return kernel


def carried_value(name: str) -> Any:
    """What this thread, or the one whose backward it runs, has set under ``name``; None if nothing.

    Values of `threading.local` do not reach the threads of a backward.
    """
    return torch._C._get_obj_in_tls(name) if torch._C._is_key_in_tls(name) else None


def set_carried_value(name: str, value: Any) -> None:
    """Set what `carried_value` gives; None takes it away."""
    if value is not None:
        torch._C._stash_obj_in_tls(name, value)
    elif torch._C._is_key_in_tls(name):
        torch._C._remove_obj_from_tls(name)
