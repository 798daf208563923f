"""What is made of a branch of ``torch.cond``: its gradients, its tangents, a batch of it, each a branch again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from purefx.capture.captured import name_of
from purefx.operators import without_overlap

Tensors = tuple[torch.Tensor, ...]
Branch = Callable[..., Tensors]


class Derived:
    """What is made of a ``branch``: called by ``what`` it is of that."""

    def __init__(self, branch: Branch, what: str) -> None:
        self.__name__ = f"{what} {name_of(branch)}"


class Gradient(Derived):
    """The gradients of ``branch`` with respect to the operands ``wrt``, for cotangents of its ``inexact`` results."""

    def __init__(self, branch: Branch, wrt: Sequence[int], inexact: Sequence[int]) -> None:
        super().__init__(branch, "the gradient of")
        self._of = _Chosen(branch, wrt, inexact)

    def __call__(self, *given: torch.Tensor) -> Tensors:
        """The gradients, of operands and cotangents."""
        operands, cotangents = self._of.parted(given)
        pull = torch.func.vjp(self._of.function(operands), *self._of.chosen(operands))[1]
        return tuple(pull(cotangents))


class Tangent(Derived):
    """The tangents of the ``inexact`` results of ``branch``, for tangents of the operands ``wrt``."""

    def __init__(self, branch: Branch, wrt: Sequence[int], inexact: Sequence[int]) -> None:
        super().__init__(branch, "the tangent of")
        self._of = _Chosen(branch, wrt, inexact)
        self._count = len(wrt)

    def __call__(self, *given: torch.Tensor) -> Tensors:
        """The tangents, of operands and their tangents."""
        operands, tangents = given[: -self._count], given[-self._count :]
        primals = tuple(map(without_overlap, self._of.chosen(operands)))  # a tangent lies like its primal
        return tuple(torch.func.jvp(self._of.function(operands), primals, tangents)[1])


class _Chosen:
    """A branch as a function of some operands that returns some results."""

    def __init__(self, branch: Branch, wrt: Sequence[int], inexact: Sequence[int]) -> None:
        self._branch, self._wrt, self._inexact = branch, wrt, inexact

    def parted(self, given: Tensors) -> tuple[Tensors, Tensors]:
        """The operands, and the cotangents after them."""
        count = len(given) - len(self._inexact)
        return given[:count], given[count:]

    def chosen(self, operands: Tensors) -> Tensors:
        """The operands that count."""
        return tuple(operands[i] for i in self._wrt)

    def function(self, operands: Tensors) -> Branch:
        """The results that count, of the operands that do; the others are those of ``operands``."""

        def run(*chosen: torch.Tensor) -> Tensors:
            replaced = dict(zip(self._wrt, chosen, strict=True))
            results = self._branch(*(replaced.get(i, x) for i, x in enumerate(operands)))
            return tuple(results[i] for i in self._inexact)

        return run


class Batch(Derived):
    """``branch`` of each of ``size`` examples; ``dims`` tells where the operands have their batch."""

    def __init__(self, branch: Branch, dims: Sequence[int | None], size: int, randomness: str) -> None:
        super().__init__(branch, "a batch of")
        self._branch, self._dims, self._size, self._randomness = branch, tuple(dims), size, randomness

    def __call__(self, *operands: torch.Tensor) -> Tensors:
        """The results of all examples, with the batch first."""
        if all(dim is None for dim in self._dims):
            return tuple(x.expand(self._size, *x.shape).clone() for x in self._branch(*operands))
        batched = torch.func.vmap(self._branch, self._dims, randomness=self._randomness)
        return tuple(batched(*operands))
