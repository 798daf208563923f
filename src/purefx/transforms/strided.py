"""``as_strided`` under vmap: of each example, which has only the memory that it shows.

PyTorch's rules add the batch dimension to the geometry that was asked for.  Where the examples lie interleaved in
memory, that shows one example the elements of another, without an error; the older vmap, which is behind
``is_grads_batched=True``, refuses all such layouts instead.  The rule here takes the geometry of the example (what
``stride()`` and ``storage_offset()`` say inside vmap), proves that it shows all that is asked for, and takes view
operators to there: they know where the batch dimension is, and what they give is a view, through which writes land.

A program cannot say which operators autograd runs for it in a backward, and no mode of Python sees them before vmap
does.  So the rules are registered with PyTorch's dispatcher, while a block asks for them, and leave PyTorch's own
to every thread that did not ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from purefx._torch import carried_value, register_vmap_rules, set_carried_value
from purefx.capture.frames import current_line
from purefx.capture.recording import geometry_of
from purefx.errors import TransformRefused
from purefx.layout import Chain, Geometry, Int, covers, reify
from purefx.operators import apply_chain
from purefx.transforms.foreign import foreign_memory, told
from purefx.transforms.levels import batch_levels

Kernel = Callable[..., torch.Tensor]
Sizes = Sequence[Int]

_OPEN_BLOCKS = "purefx.transforms.strided"
"""Under this name PyTorch carries, with a thread and into the backwards it starts, how many blocks are open."""


@contextmanager
def strided_batching() -> Iterator[None]:
    """Within it, ``as_strided`` under vmap is right for each example, or raises `purefx.errors.TransformRefused`.

    So are ``as_strided_copy`` and ``as_strided_scatter``, also where a backward calls them; ``as_strided_``, which no
    vmap keeps, is refused.  A ``storage_offset`` counts from where the storage of the first example begins, and moves
    on with the examples.

    A context manager and a decorator; it may be nested.  It holds for the thread that enters it, and for the backwards
    that this thread starts.  The rules are registered for the whole process while any thread is inside, and run
    PyTorch's own for the other threads; with the last block, also one that ends by an exception, they are gone.

    >>> xs = torch.arange(6.0).view(3, 2)  # two examples, interleaved: columns
    >>> with strided_batching():
    ...     torch.func.vmap(lambda x: x.as_strided((2,), (4,)), in_dims=1)(xs)
    tensor([[0., 4.],
            [1., 5.]])
    """
    before = carried_value(_OPEN_BLOCKS) or 0
    _registered.enter()
    set_carried_value(_OPEN_BLOCKS, before + 1)
    try:
        yield
    finally:
        set_carried_value(_OPEN_BLOCKS, before or None)
        _registered.leave()


class _Registered:
    """The rules, which PyTorch keeps for the whole process.

    Invariant: they are registered exactly while a block is open in some thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._unregister: Callable[[], None] = lambda: None

    def enter(self) -> None:
        """One block more."""
        with self._lock:
            if not self._blocks:
                self._unregister = register_vmap_rules(RULES, lambda: carried_value(_OPEN_BLOCKS) is not None)
            self._blocks += 1

    def leave(self) -> None:
        """One block less."""
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                self._unregister()


_registered = _Registered()


def _as_strided(
    own: Kernel, example: torch.Tensor, size: Sizes, stride: Sizes, storage_offset: Int | None = None
) -> torch.Tensor:
    shown, asked = _geometries(example, size, stride, storage_offset)
    chain = reify(shown, asked)
    if chain is not None:
        return _run(example, chain)
    _check_own("as_strided", shown, asked)
    try:
        return own(example, size, stride, storage_offset)  # it is right of memory that is the example's own
    except RuntimeError as error:  # the older vmap, where the batch is not the outermost dimension in memory
        raise foreign_memory("as_strided", shown, asked, current_line()) from error


def _as_strided_copy(
    own: Kernel, example: torch.Tensor, size: Sizes, stride: Sizes, storage_offset: Int | None = None
) -> torch.Tensor:
    shown, asked = _geometries(example, size, stride, storage_offset)
    _check_own("as_strided_copy", shown, asked)
    return example.as_strided(size, stride, storage_offset).clone(memory_format=torch.contiguous_format)


def _as_strided_scatter(
    own: Kernel,
    example: torch.Tensor,
    source: torch.Tensor,
    size: Sizes,
    stride: Sizes,
    storage_offset: Int | None = None,
) -> torch.Tensor:
    """The example in memory of its own, at the same geometry, and then the source there.

    What lies between its elements is nobody's, and may be written.
    """
    shown, asked = _geometries(example, size, stride, storage_offset)
    kept = _without_repeats(shown)
    length = kept.span()[1]
    if not covers(Geometry((length,), (1,), 0), asked):
        raise foreign_memory("as_strided_scatter", shown, asked, current_line())
    memory = _zeros(length, example, source)
    result = _at(memory, kept).copy_(example)
    _at(memory, asked).copy_(source)
    return result


def _as_strided_inplace(
    own: Kernel, example: torch.Tensor, size: Sizes, stride: Sizes, storage_offset: Int | None = None
) -> torch.Tensor:
    """PyTorch's rules leave the geometry as it was, and say nothing."""
    shown, asked = _geometries(example, size, stride, storage_offset)
    if shown == asked:
        return example
    raise TransformRefused(
        told("as_strided_ under vmap gives an example another geometry, which vmap cannot keep", shown, asked),
        where=current_line(),
        remedy="take a view and use it in the place of the tensor: x = x.as_strided(...)",
    )


def _new_tangent(
    own: Kernel, tangent: torch.Tensor, primal: torch.Tensor, self_num_batch_dims: int = 0
) -> torch.Tensor:
    """Zeros at the geometry of the primal.  PyTorch's rule refuses tangents that lie interleaved in memory."""
    if self_num_batch_dims:
        return own(tangent, primal, self_num_batch_dims)
    shown = geometry_of(primal)
    return _at(_zeros(shown.span()[1], tangent, primal), shown)


def _if_batched(rule: Kernel) -> Kernel:
    """``rule`` where a tensor has a batch: ``torch.func.vmap`` asks for tensors from outside, too."""

    def run(own: Kernel, *given: object) -> torch.Tensor:
        batched = any(isinstance(x, torch.Tensor) and batch_levels(x) for x in given)
        return rule(own, *given) if batched else own(*given)

    return run


_RULES: dict[str, Kernel] = {
    "as_strided": _as_strided,
    "as_strided_copy": _as_strided_copy,
    "as_strided_scatter": _as_strided_scatter,
    "as_strided_": _as_strided_inplace,
}
RULES = {
    "FuncTorchBatched": {name: _if_batched(rule) for name, rule in _RULES.items()},  # torch.func.vmap
    "Batched": {**_RULES, "_new_zeros_with_same_feature_meta": _new_tangent},  # the vmap before it
}
"""By dispatch key, the operators of ATen whose rules are replaced.  Each rule is given PyTorch's own kernel first."""


def _geometries(
    example: torch.Tensor, size: Sizes, stride: Sizes, storage_offset: Int | None
) -> tuple[Geometry, Geometry]:
    """What the example shows, since vmap leaves the batch dimension out; and what is asked for."""
    shown = geometry_of(example)
    return shown, Geometry(tuple(size), tuple(stride), shown.offset if storage_offset is None else storage_offset)


def _without_repeats(g: Geometry) -> Geometry:
    """``g``, or what a clone has in its place where elements of ``g`` share one of memory by a stride of 0."""
    if not any(stride == 0 and size > 1 for size, stride in zip(g.sizes, g.strides, strict=True)):
        return g
    return geometry_of(torch.empty_strided(g.sizes, g.strides, device="meta").clone())


def _zeros(length: Int, *batched: torch.Tensor) -> torch.Tensor:
    """New memory of the dtype of the first, one for each example of every vmap that batches one of them."""
    joined = sum(tensor.new_zeros(()) for tensor in batched)
    assert isinstance(joined, torch.Tensor)
    return joined.new_zeros((length,), dtype=batched[0].dtype)


def _at(memory: torch.Tensor, g: Geometry) -> torch.Tensor:
    return memory.as_strided(g.sizes, g.strides, g.offset)


def _run(example: torch.Tensor, chain: Chain) -> torch.Tensor:
    if not chain:
        return example.expand(example.shape)  # a view of its own: vmap does not know alias everywhere
    return apply_chain(example, chain)


def _check_own(operator: str, shown: Geometry, asked: Geometry) -> None:
    """Raise unless all that is asked for is certain to be what the example shows."""
    if not covers(shown, asked):
        raise foreign_memory(operator, shown, asked, current_line())
