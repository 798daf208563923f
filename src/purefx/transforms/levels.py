"""Tensors under running transforms, seen as a program sees them: one example, without levels.

    vmap(f, in_dims=1)(x)      in f, x is a wrapper      its example: x.select(1, 0), a plain tensor

An example has the geometry, the dtype and the sharing of memory that a Python loop over the batch would give to ``f``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from purefx._torch import (
    below_all,
    bottom,
    is_batched_by_autograd,
    is_functorch_wrapped,
    is_plain,
    plain_have_tangents,
    primal_of,
    recordable,
    storage_key,
    tangent_of,
    unwrap,
)
from purefx.capture.edges import give_history
from purefx.capture.fakes import FakeFactory
from purefx.capture.recording import geometry_of
from purefx.capture.session import is_capturing
from purefx.layout import Geometry, has_internal_overlap, overlaps


def wrappings(tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, int | None, int]]:
    """From the outermost wrapper of ``tensor`` inwards: what it holds, the batch dimension in that, the level."""
    while is_functorch_wrapped(tensor):
        held = unwrap(tensor)
        yield held
        tensor = held[0]


def batch_levels(tensor: torch.Tensor) -> frozenset[int]:
    """The levels of vmap that ``tensor`` has a batch dimension at."""
    return frozenset(level for _, dim, level in wrappings(tensor) if dim is not None)


def is_recorded(tensor: torch.Tensor) -> bool:
    """Whether a gradient may be asked for with respect to ``tensor``, of a transform or of autograd."""
    return torch.is_grad_enabled() and below_all(tensor)[2]


OLDER_VMAP = -1
"""The level of the vmap of ``autograd.grad(is_grads_batched=True)``, which is below all."""


def levels_of(tensor: torch.Tensor) -> frozenset[int]:
    """The levels at which ``tensor`` has a batch, a gradient or a tangent; those outside of transforms are 0."""
    if is_batched_by_autograd(tensor):
        return frozenset({OLDER_VMAP})
    found = set()
    while is_functorch_wrapped(tensor):
        held, dim, level = unwrap(tensor)
        if dim is not None or tensor.requires_grad or tangent_of(tensor) is not None:
            found.add(level)
        tensor = held
    if tensor.requires_grad or (plain_have_tangents() and tangent_of(tensor) is not None):
        found.add(0)
    return frozenset(found)


def lineage(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Of each transform that differentiates, and of autograd: the tensor that ``tensor`` is a view of there, or itself.

    A write to one of two tensors becomes a part of the history of the other where the two have the same.
    """
    layers = [tensor, *(held for held, _, _ in wrappings(tensor))]
    own = [layer for layer in layers if not is_batch(layer)]
    return [x if x.is_inference() or x._base is None else x._base for x in own]


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Whether a transform that differentiates, or autograd, has its hands on ``tensor``."""
    while is_functorch_wrapped(tensor):
        held, dim, _ = unwrap(tensor)
        if dim is None:
            return True
        tensor = held
    return tensor.requires_grad or not is_plain(tensor)


def is_batch(tensor: torch.Tensor) -> bool:
    """Whether the outermost wrapper of ``tensor`` is one of vmap."""
    return is_functorch_wrapped(tensor) and unwrap(tensor)[1] is not None


def repeats_elements(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` shows an element in several places: a graph that takes it reads each element once."""
    inner = bottom(tensor)
    return not inner.is_contiguous() and has_internal_overlap(geometry_of(inner))


Differentiated = tuple[bool | None, ...]


class Examples:
    """The examples of the tensors of one call; the same tensor has the same example.

    Those of a call inside a capture are fakes of their own: the capture must find none of its tensors kept.  An example
    requires grad, as no leaf, where a transform asks for gradients by its tensor: so it would in a loop.  It does so
    only when it is run on, from `begin` on.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Seen] = {}
        self._fakes = FakeFactory((), dynamic=False) if is_capturing() else None
        self._begun = False

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The example of ``tensor``: itself, if it is plain."""
        with torch.no_grad():
            return self._of(tensor)[1]

    def of_all(self, leaves: Sequence[Any]) -> tuple[list[Any], Differentiated]:
        """``leaves`` with examples in the place of tensors, and whether these require grad, as no leaves.

        That is None of what is the example of itself, or no tensor.
        """
        with torch.no_grad():
            seen = [self._of(x) if isinstance(x, torch.Tensor) else (x, x, None) for x in leaves]
        return [example for _, example, _ in seen], tuple([recorded for _, _, recorded in seen])

    def begin(self) -> None:
        """Let the examples require grad."""
        self._begun = True
        for seen in list(self._known.values()):
            _give_history(seen)

    def original(self, example: torch.Tensor) -> torch.Tensor:
        """The tensor that has ``example``."""
        return next((tensor for tensor, made, _ in self._known.values() if made is example), example)

    def _of(self, tensor: torch.Tensor) -> _Seen:
        known = self._known.get(id(tensor))
        if known is None:
            known = self._known[id(tensor)] = self._made(tensor)
            example = known[1]
            if example is not tensor:
                self._known.setdefault(id(example), (example, example, None))
            if self._begun:
                _give_history(known)
        return known

    def _made(self, tensor: torch.Tensor) -> _Seen:
        inner, dims, recorded = below_all(tensor)
        example = _first(inner, dims) if dims else primal_of(inner)
        if example is tensor and self._fakes is None:
            return tensor, tensor, None
        if example.is_inference() and not tensor.is_inference():
            example = recordable(example)
        example = example.detach()
        return tensor, example if self._fakes is None else self._fakes.make(example, "an example"), recorded


_Seen = tuple[torch.Tensor, torch.Tensor, bool | None]
"""A tensor, its example, and whether that has gradients; None where it is the tensor itself."""


def _give_history(seen: _Seen) -> None:
    tensor, example, recorded = seen
    if recorded:
        give_history(example, tensor)


def are_apart(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether no example of ``a`` shares an element with an example of ``b`` of another number."""
    return storage_key(bottom(a)) != storage_key(bottom(b)) or _correspond(a, b)


def _first(inner: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The first example of a tensor that holds ``inner`` with batches at ``dims``, as `below_all` gives them."""
    example = primal_of(inner)
    for dim in reversed(dims):
        example = first_of(example, dim)
    return example


def first_of(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The first example of ``x``, whose batch is at ``dim``; of an empty batch a new tensor like its examples."""
    if x.shape[dim]:
        return x.select(dim, 0)
    sizes, strides = ([n for d, n in enumerate(row) if d != dim] for row in (x.shape, x.stride()))
    return x.new_empty_strided(sizes, strides)


Batch = dict[int, tuple[int, int]]
"""By level, the size and the stride of a batch dimension."""


def _batch(tensor: torch.Tensor) -> Batch:
    """The batch dimensions in the memory of ``tensor``."""
    found: Batch = {}
    layers = [(dim, level) for _, dim, level in wrappings(tensor)]
    sizes, strides = list(bottom(tensor).shape), list(bottom(tensor).stride())
    for dim, level in reversed(layers):
        if dim is not None:
            found[level] = (sizes.pop(dim), strides.pop(dim))
    return found


def _correspond(a: torch.Tensor, b: torch.Tensor) -> bool:
    batch = _batch(a)
    if a is b and any(size > 1 and not stride for size, stride in batch.values()):
        return True  # no write to it is possible, and PyTorch says so
    if batch != _batch(b):
        return not _overlap(a, geometry_of(bottom(a)), b, geometry_of(bottom(b)))
    return not any(
        _overlap(first, _others(first, batch, level), second, _shifted(second, batch))
        for level in batch
        for first, second in ((a, b), (b, a))
    )


def _overlap(a: torch.Tensor, first: Geometry, b: torch.Tensor, second: Geometry) -> bool:
    return overlaps(first, second, a.itemsize, b.itemsize)


def _others(tensor: torch.Tensor, batch: Batch, level: int) -> Geometry:
    """All examples that come after the first at ``level``, and at whatever distance from it at other levels."""
    geometry = _shifted(tensor, batch)
    sizes, strides, offset = list(geometry.sizes), list(geometry.strides), geometry.offset
    for other, (size, stride) in batch.items():
        sizes.append(size - 1 if other == level else 2 * size - 1)
        strides.append(stride)
        offset += stride if other == level else -(size - 1) * stride
    return Geometry(tuple(sizes), tuple(strides), offset)


def _shifted(tensor: torch.Tensor, batch: Batch) -> Geometry:
    """The first example of ``tensor``, as if its memory began far enough up for examples of negative numbers."""
    inner, dims, _ = below_all(tensor)
    geometry = geometry_of(_first(inner, dims))
    room = sum((size - 1) * stride for size, stride in batch.values())
    return Geometry(geometry.sizes, geometry.strides, geometry.offset + room)
