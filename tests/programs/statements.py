"""What a random program may say: a table of rows per kind of statement.

A row is given a scope, a name and the tensor of that name as it is at this point, and returns source text. It
may fail, or give text that eager refuses: the generator tries each text and discards what raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scope:
    """The tensors that a statement can name, and the choices it makes."""

    rng: Random
    tensors: Mapping[str, Tensor]

    def dim(self, tensor: Tensor) -> int:
        """A dimension, now and then counted from the end."""
        dim = self.rng.randrange(tensor.dim())
        return dim - tensor.dim() if self.rng.random() < 0.2 else dim

    def index(self, tensor: Tensor, dim: int) -> int:
        """An index that exists in ``dim``."""
        return self.rng.randrange(tensor.size(dim))

    def small(self) -> int:
        """A number to write or to add."""
        return self.rng.randint(1, 9)

    def slice(self, size: int) -> str:
        """A slice, mostly not empty, of something of ``size``."""
        start = self.rng.randrange(max(size, 1))
        stop = self.rng.randint(start + 1, size + 1)
        return self.rng.choice(
            (f"{start}:{stop}", f"{start}:", f":{stop}", "::2", f"{start}::2", f"{start}:{stop}:2", ":")
        )

    def slices(self, tensor: Tensor) -> str:
        """A slice or an index for each of the first dimensions."""
        n = self.rng.randint(1, tensor.dim())
        parts = [
            self.slice(tensor.size(d)) if self.rng.random() < 0.7 else str(self.index(tensor, d)) for d in range(n)
        ]
        return ", ".join(parts)

    def last_slice(self, tensor: Tensor) -> str:
        """A slice of the last dimension."""
        return f"..., {self.slice(tensor.size(-1))}"

    def shape(self, tensor: Tensor) -> str:
        """Other sizes for as many elements."""
        count = tensor.numel()
        divisors = [n for n in range(1, count + 1) if count % n == 0]
        first = self.rng.choice(divisors)
        return self.rng.choice(("-1", f"{first}, -1", f"-1, {first}", f"{first}, 1, {count // first}"))

    def order(self, tensor: Tensor) -> str:
        """A permutation of the dimensions."""
        return ", ".join(str(d) for d in self.rng.sample(range(tensor.dim()), tensor.dim()))

    def indices(self, tensor: Tensor, dim: int) -> str:
        """A tensor of distinct indices into ``dim``."""
        size = tensor.size(dim)
        return f"torch.tensor({sorted(self.rng.sample(range(size), self.rng.randint(1, size)))})"

    def partner(self, tensor: Tensor) -> str:
        """The name of a tensor that can be written into ``tensor``, or a number."""
        fitting = [name for name, other in self.tensors.items() if _fits(other, tensor)]
        return self.rng.choice(fitting) if fitting else str(self.small())

    def twin(self, tensor: Tensor) -> str:
        """The name of a tensor of the same sizes and dtype, perhaps of the same one."""
        fitting = [
            name for name, other in self.tensors.items() if (other.shape, other.dtype) == (tensor.shape, tensor.dtype)
        ]
        return self.rng.choice(fitting)

    def any(self) -> str:
        """Any name."""
        return self.rng.choice(list(self.tensors))

    def once(self, tensor: Tensor, other: str) -> str:
        """``other`` as one more element of a list with ``tensor`` in it, but none of its memory under autograd.

        The gradient of a list whose tensors overlap is wrong in PyTorch (docs/exactness.md).
        """
        partner = self.tensors[other]
        shared = partner.untyped_storage() is tensor.untyped_storage()
        return f"{other}.clone()" if shared and (partner.requires_grad or tensor.requires_grad) else other

    def may_turn(self, tensor: Tensor) -> bool:
        """Whether a change of its geometry is exact: not of a view with a history, nor of what has views with one."""
        return not (
            tensor.requires_grad and (tensor._is_view() or any(x._base is tensor for x in self.tensors.values()))
        )


def _fits(other: Tensor, tensor: Tensor) -> bool:
    try:
        wide = torch.broadcast_shapes(other.shape, tensor.shape) == tensor.shape
    except RuntimeError:
        return False
    return wide and torch.can_cast(other.dtype, tensor.dtype)


def _may_swap(tensor: Tensor) -> bool:
    """Whether ``x.data = y`` leaves ``x`` with a history that fits it (docs/exactness.md)."""
    return not (tensor.requires_grad and tensor._is_view())


def _room(tensor: Tensor) -> int:
    """How many elements a smaller ``resize_`` may ask for: more would show memory that nobody has written."""
    held = tensor.untyped_storage().nbytes() // tensor.element_size() - int(tensor.storage_offset())
    return min(tensor.numel(), held)


def _within_storage(scope: Scope, tensor: Tensor) -> str:
    """Sizes, strides and offset that stay within the storage."""
    rng, room = scope.rng, tensor.untyped_storage().nbytes() // tensor.element_size()
    strides = rng.choice(((1,), (2,), (1, 2), (2, 1), (4, 1), (1, 4), (3, 1)))
    sizes = tuple(rng.randint(1, 3) for _ in strides)
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return f"{sizes}, {strides}, {rng.randrange(room - last)}"


def _pieces(scope: Scope, name: str, tensor: Tensor) -> str:
    """One of the results of a view op that gives several."""
    dim = scope.dim(tensor)
    how = scope.rng.choice(("unbind({d})", "split({n}, {d})", "chunk({n}, {d})", "tensor_split({n}, {d})"))
    call = f"{name}.{how.format(d=dim, n=scope.rng.randint(1, 3))}"
    return f"{call}[{scope.rng.choice((0, 0, 1, -1))}]"


def _expand(scope: Scope, name: str, tensor: Tensor) -> str:
    sizes = [scope.rng.randint(2, 3) if size == 1 else -1 for size in tensor.shape]
    front = [2] if scope.rng.random() < 0.4 or 1 not in tensor.shape else []
    return f"{name}.expand({', '.join(map(str, front + sizes))})"


def _narrow(scope: Scope, name: str, tensor: Tensor) -> str:
    dim = scope.dim(tensor)
    start = scope.index(tensor, dim)
    return f"{name}.narrow({dim}, {start}, {scope.rng.randint(1, tensor.size(dim) - start)})"


def _select(scope: Scope, name: str, tensor: Tensor) -> str:
    dim = scope.dim(tensor)
    return f"{name}.select({dim}, {scope.index(tensor, dim)})"


def _unfold(scope: Scope, name: str, tensor: Tensor) -> str:
    dim = scope.dim(tensor)
    return f"{name}.unfold({dim}, {min(2, tensor.size(dim))}, {scope.rng.randint(1, 2)})"


def retyped(scope: Scope, name: str, tensor: Tensor) -> str:
    """A view of another dtype."""
    if tensor.is_complex():
        return scope.rng.choice((f"torch.view_as_real({name})", f"{name}.real", f"{name}.imag"))
    same_size = {
        torch.float32: "int32",
        torch.int32: "float32",
        torch.float64: "int64",
        torch.int64: "float64",
    }
    if scope.rng.random() < 0.2:
        return f"torch.view_as_complex({name})"
    return f"{name}.view(torch.{same_size[tensor.dtype]})"


def _hook(scope: Scope, name: str, tensor: Tensor) -> str:
    """A hook on what the program has computed: not on what the caller holds, nor on views.

    PyTorch itself crashes on ``y = x.view(-1); y.detach().zero_(); y.register_hook(...)`` for a leaf ``x``
    if grad mode is off.
    """
    given = [scope.tensors[name] for name in "abcdw" if name in scope.tensors]
    computed = [
        name
        for name, value in scope.tensors.items()
        if value.requires_grad and not value._is_view() and all(value is not known for known in given)
    ]
    return f"{scope.rng.choice(computed)}.register_hook(lambda gradient: gradient * 2)"


Row: TypeAlias = Callable[[Scope, str, Tensor], str]

VIEWS: tuple[Row, ...] = (
    lambda s, x, t: f"{x}[{s.index(t, 0)}]",
    lambda s, x, t: f"{x}[{s.slices(t)}]",
    lambda s, x, t: f"{x}[{s.slice(t.size(0))}]",
    lambda s, x, t: f"{x}[{s.last_slice(t)}]",
    _select,
    _narrow,
    lambda s, x, t: f"{x}.t()",
    lambda s, x, t: f"{x}.transpose({s.dim(t)}, {s.dim(t)})",
    lambda s, x, t: f"{x}.permute({s.order(t)})",
    lambda s, x, t: f"{x}.view({s.shape(t)})",
    lambda s, x, t: f"{x}.reshape({s.shape(t)})",
    lambda s, x, t: f"{x}.view({x}.shape)",
    lambda s, x, t: f"{x}.flatten()",
    lambda s, x, t: f"{x}.diagonal({s.rng.choice((0, 0, 1, -1))})",
    _expand,
    lambda s, x, t: f"{x}.unsqueeze({s.rng.randint(0, t.dim())})",
    lambda s, x, t: f"{x}.squeeze()",
    _pieces,
    _pieces,
    _unfold,
    retyped,
    lambda s, x, t: f"{x}.detach()",
    lambda s, x, t: f"{x}.data",
    lambda s, x, t: f"{x}.as_strided({_within_storage(s, t)})",
    lambda s, x, t: f"{x}.conj()",
    lambda s, x, t: f"{x}.contiguous()",
    lambda s, x, t: f"{x}.float()",
)

VALUES: tuple[Row, ...] = (
    lambda s, x, t: f"{x} + {s.small()}",
    lambda s, x, t: f"{x} * {s.partner(t)}",
    lambda s, x, t: f"{x} + {s.partner(t)}",
    lambda s, x, t: f"{x} - {s.partner(t)}",
    lambda s, x, t: f"{x}.sum()",
    lambda s, x, t: f"{x}.sum({s.dim(t)})",
    lambda s, x, t: f"{x}.mul(2)",
    lambda s, x, t: f"torch.cat([{x}, {s.twin(t)}], {s.dim(t)})",
    lambda s, x, t: f"torch.stack([{x}, {s.twin(t)}], {s.dim(t)})",
    lambda s, x, t: f"{x}.clone()",
    lambda s, x, t: f"torch.zeros_like({x})",
    lambda s, x, t: f"torch.where({x} > {s.small()}, {x}, {s.small()})",
    lambda s, x, t: f"{x}.masked_fill({x} > {s.small()}, {s.small()})",
    lambda s, x, t: f"{x}.index_select({(d := s.dim(t))}, {s.indices(t, d)})",
    lambda s, x, t: f"{x}[{s.indices(t, 0)}]",
    lambda s, x, t: f"{x}.flip({s.dim(t)})",
    lambda s, x, t: f"{x}.to(torch.{s.rng.choice(('float64', 'float32'))})",
    lambda s, x, t: f"torch.zeros({s.rng.choice(('4', '3, 4', '2, 2'))})",
    lambda s, x, t: f"torch.rand_like({x})",
)

WRITES: tuple[Row, ...] = (
    lambda s, x, t: f"{x}.add_({s.small()})",
    lambda s, x, t: f"{x}.add_({s.partner(t)})",
    lambda s, x, t: f"{x} += {s.small()}",
    lambda s, x, t: f"{x}.mul_(2)",
    lambda s, x, t: f"{x}.mul_({s.partner(t)})",
    lambda s, x, t: f"{x}.copy_({s.twin(t)})",
    lambda s, x, t: f"{x}.copy_({s.twin(t)} + 1)",
    lambda s, x, t: f"{x}.fill_({s.small()})",
    lambda s, x, t: f"{x}.zero_()",
    lambda s, x, t: f"{x}.neg_()",
    lambda s, x, t: f"{x}.clamp_(max={s.small()})",
    lambda s, x, t: f"{x}.masked_fill_({x} > {s.small()}, {s.small()})",
    lambda s, x, t: f"{x}[{s.index(t, 0)}] = {s.small()}",
    lambda s, x, t: f"{x}[{s.slices(t)}] = {s.small()}",
    lambda s, x, t: f"{x}[{s.slices(t)}] += {s.small()}",
    lambda s, x, t: f"{x}[{s.index(t, 0)}] = {s.partner(t[0])}",
    # a mask without dimensions is data-dependent control flow in PyTorch's own indexing: refused
    lambda s, x, t: (
        f"{x}[{x} > {s.small()}] = {s.small()}" if t.dim() and not t.is_complex() else f"{x}.fill_({s.small()})"
    ),
    lambda s, x, t: f"{x}[{s.indices(t, 0)}] = {s.small()}",
    lambda s, x, t: f"{x}.index_put_(({s.indices(t, 0)},), {x}.sum(), accumulate=True)",
    lambda s, x, t: f"{x}.index_copy_({(d := s.dim(t))}, torch.tensor([{s.index(t, d)}]), {x}.narrow({d}, 0, 1) + 1)",
    lambda s, x, t: f"{x}.index_fill_({(d := s.dim(t))}, {s.indices(t, d)}, {s.small()})",
    lambda s, x, t: f"{x}.scatter_({s.dim(t)}, torch.zeros({(1,) * t.dim()}, dtype=torch.int64), {s.small()})",
    lambda s, x, t: f"torch.add({s.twin(t)}, {s.small()}, out={x})",
    lambda s, x, t: f"torch.mul({s.twin(t)}, {s.twin(t)}, out={x})",
    lambda s, x, t: f"torch._foreach_add_([{x}, {s.once(t, s.any())}], {s.small()})",
    lambda s, x, t: f"torch._foreach_mul_([{x}, {s.once(t, s.twin(t))}], 2)",
    lambda s, x, t: f"torch._foreach_add_([{x}, {s.once(t, x)}], {s.small()})",
    lambda s, x, t: f"{x}.data.add_({s.small()})",
    lambda s, x, t: f"{x}.detach().mul_(2)",
    lambda s, x, t: f"{x}.uniform_()",
    lambda s, x, t: f"{x}.bernoulli_(0.5)",
    lambda s, x, t: f"{x}.random_(0, 5)",
    lambda s, x, t: f"{x}.fill_diagonal_({s.small()})",
)

GEOMETRY_WRITES: tuple[Row, ...] = (
    lambda s, x, t: f"{x}.t_()" if s.may_turn(t) else "",
    lambda s, x, t: f"{x}.transpose_({s.dim(t)}, {s.dim(t)})" if s.may_turn(t) else "",
    lambda s, x, t: f"{x}.unsqueeze_({s.rng.randint(0, t.dim())})" if s.may_turn(t) else "",
    lambda s, x, t: f"{x}.squeeze_()" if s.may_turn(t) else "",
    lambda s, x, t: f"{x}.as_strided_({_within_storage(s, t)})" if s.may_turn(t) else "",
    lambda s, x, t: f"{x}.set_({s.any()})" if not t.requires_grad else "",
    lambda s, x, t: f"{x}.data = {s.any() if not t.requires_grad else s.twin(t)}.data" if _may_swap(t) else "",
    lambda s, x, t: f"{x}.resize_({s.rng.randint(1, _room(t))})" if s.may_turn(t) else "",
    lambda s, x, t: f"{x}.detach_()",
)
"""Rare, and never on what the function holds."""

FUNCTIONS: tuple[Row, ...] = (
    lambda s, x, t: f"Square.apply({x})",
    lambda s, x, t: f"Negate.apply({x})",
    lambda s, x, t: f"View.apply({x})",
    lambda s, x, t: f"Compare.apply({x}, {s.small()})[0]",
    lambda s, x, t: f"Compare.apply({x}, {s.small()})[1]",
)
"""Where gradients are needed."""

AUTOGRAD: tuple[Row, ...] = (
    lambda s, x, t: f"{x}.requires_grad_()",
    lambda s, x, t: f"{x}.requires_grad_()",
    lambda s, x, t: f"{x}.requires_grad_(False)",
    lambda s, x, t: f"{x}.detach_()",
    lambda s, x, t: f"torch.set_grad_enabled({s.rng.random() < 0.5})",
    _hook,
    _hook,
)
"""What changes the state of autograd, where gradients are needed."""
