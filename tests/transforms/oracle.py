"""What transforms of functions mean, without functorch: loops over examples, and autograd.

``Oracle`` has the transforms of ``torch.func`` by their names and signatures (without ``has_aux``), for functions of
float64 tensors by position that return tensors, alone or in tuples. They nest: what one gives is such a function again.

- ``vmap`` is a loop over ``select`` of each batched argument, and a stack of the results; with the randomness "same",
  each example draws what the first has drawn. A write to an example is a write to the argument. A write to an argument
  that is not batched would be seen by the next example: callers avoid it.
- A derivative runs the function once, on differentiable copies of the arguments in the same strides, and writes back
  what it wrote. Gradients are those of ``torch.autograd.grad``, with a graph; ``jvp`` is the gradient of a gradient by
  its cotangent; a Jacobian is a loop over the elements of the results.

Autograd refuses some programs that have a derivative: they write a value that the backward reads, one of several views
that an operator gave, a leaf, or a result by ``out=``. ``Oracle(lenient=True)`` differentiates these too: it saves
copies, views one by one, and takes ``out=`` for a copy. ``Oracle(lenient=False)`` raises as autograd does in reverse;
forward derivatives know no such refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from purefx._torch import pytree

Function: TypeAlias = Callable[..., Any]
Dims: TypeAlias = int | tuple[int | None, ...] | None
Argnums: TypeAlias = int | tuple[int, ...]


@dataclass(frozen=True)
class Oracle:
    """The transforms; ``lenient`` says what they do where autograd itself refuses."""

    lenient: bool = True

    def vmap(
        self,
        func: Function,
        in_dims: Dims = 0,
        out_dims: Dims = 0,
        randomness: str = "error",
        *,
        chunk_size: int | None = None,
    ) -> Function:
        """The function of each example, one after another."""

        def looped(*args: Tensor) -> Any:
            dims = _for_each(in_dims, len(args))
            (size,) = {arg.size(dim) for arg, dim in zip(args, dims, strict=True) if dim is not None}
            state, results = torch.get_rng_state(), []
            for i in range(size):
                if randomness == "same":
                    torch.set_rng_state(state)
                results.append(func(*_example(args, dims, i)))
            return _stacked(results, out_dims)

        return looped

    def vjp(self, func: Function, *primals: Tensor) -> tuple[Any, Function]:
        """The result, and the function of cotangents, as the result is built, to a tuple of gradients."""
        run = self._run(func, primals, tuple(range(len(primals))))
        return run.result, lambda cotangents: tuple(run.pull(pytree.tree_leaves(cotangents)))

    def jvp(self, func: Function, primals: tuple[Tensor, ...], tangents: tuple[Tensor, ...]) -> tuple[Any, Any]:
        """The result, and its tangent."""
        result, push = self.linearize(func, *primals)
        return result, push(*tangents)

    def linearize(self, func: Function, *primals: Tensor) -> tuple[Any, Function]:
        """The result, and the function of tangents to its tangent."""
        run = Oracle()._run(func, primals, tuple(range(len(primals))))
        return run.result, lambda *tangents: run.like_result(run.push(tangents))

    def grad_and_value(self, func: Function, argnums: Argnums = 0) -> Function:
        """The gradient of a number, and the number."""

        def gradient(*args: Tensor) -> tuple[Any, Tensor]:
            run = self._run(func, args, _numbers(argnums))
            return _one_or_all(argnums, run.pull([torch.ones_like(run.result)])), run.result

        return gradient

    def grad(self, func: Function, argnums: Argnums = 0) -> Function:
        """The gradient of a number."""
        return lambda *args: self.grad_and_value(func, argnums)(*args)[0]

    def jacrev(self, func: Function, argnums: Argnums = 0) -> Function:
        """The derivative of each element of the result by each element of the arguments."""

        def jacobian(*args: Tensor) -> Any:
            run = self._run(func, args, _numbers(argnums))
            return run.like_result([_one_or_all(argnums, run.rows(n)) for n in range(len(run.outputs))])

        return jacobian

    def jacfwd(self, func: Function, argnums: Argnums = 0) -> Function:
        """The same, in another order of computation."""
        return Oracle().jacrev(func, argnums)

    def hessian(self, func: Function, argnums: Argnums = 0) -> Function:
        """The Jacobian of the Jacobian."""
        return self.jacfwd(self.jacrev(func, argnums), argnums)

    def _run(self, func: Function, args: Sequence[Tensor], argnums: tuple[int, ...]) -> _Run:
        """``func`` run on copies of ``args``, to be differentiated by those at ``argnums``; its writes come back."""
        with torch.enable_grad(), _lenient_autograd(on=self.lenient):
            tracked = {n % len(args): _tracked(args[n]) for n in argnums}
            given = [tracked.get(n, arg) for n, arg in enumerate(args)]
            copies = [copy_in_strides(arg) if self.lenient else arg for arg in given]
            versions = [copy._version for copy in copies]
            result = func(*copies)
            for n, (arg, copy, version) in enumerate(zip(args, copies, versions, strict=True)):
                if copy._version != version and copy is not arg:
                    if n in tracked and not self.lenient:
                        raise RuntimeError("an argument that is differentiated was written")
                    arg.detach().copy_(copy.detach())
        return _Run(list(tracked.values()), result, self.lenient)


@dataclass(frozen=True)
class _Run:
    """What a function gave for ``tracked``, with its graph."""

    tracked: list[Tensor]
    result: Any
    lenient: bool

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors of the result."""
        return pytree.tree_leaves(self.result)

    def like_result(self, leaves: Sequence[object]) -> Any:
        """Something for each tensor of the result, built as the result is."""
        return pytree.tree_unflatten(leaves, pytree.tree_structure(self.result))

    def pull(self, cotangents: Sequence[Tensor]) -> list[Tensor]:
        """The gradients by ``tracked``."""
        with _lenient_autograd(on=self.lenient):
            gradients = _gradients(self.outputs, self.tracked, cotangents)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(self.tracked, gradients, strict=True)]

    def push(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        """The tangents of the outputs: gradients are linear in cotangents, and their derivative is the transpose."""
        with torch.enable_grad(), _lenient_autograd(on=self.lenient):
            cotangents = [torch.zeros_like(output).requires_grad_() for output in self.outputs]
            gradients = _gradients(self.outputs, self.tracked, cotangents)
            there = [(g, t) for g, t in zip(gradients, tangents, strict=True) if g is not None]
            pushed = _gradients([g for g, _ in there], cotangents, [t for _, t in there])
        return [torch.zeros_like(y) if p is None else p for y, p in zip(self.outputs, pushed, strict=True)]

    def rows(self, n: int) -> list[Tensor]:
        """The Jacobians of output ``n`` by each of ``tracked``."""
        output = self.outputs[n]
        one_hot = torch.eye(output.numel(), dtype=output.dtype).reshape(-1, *output.shape)
        cotangents = [torch.zeros_like(other) for other in self.outputs]
        rows = [self.pull([*cotangents[:n], element, *cotangents[n + 1 :]]) for element in one_hot]
        return [
            torch.stack([row[k] for row in rows]).reshape(*output.shape, *x.shape)
            if rows
            else x.new_zeros(*output.shape, *x.shape)
            for k, x in enumerate(self.tracked)
        ]


def _gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """What autograd gives, with a graph; None where nothing depends on the input."""
    pairs = [(y, c) for y, c in zip(outputs, cotangents, strict=True) if y.requires_grad]
    if not pairs:
        return [None for _ in inputs]
    made, given = zip(*pairs, strict=True)
    return torch.autograd.grad(made, inputs, given, create_graph=True, allow_unused=True)


def _tracked(arg: Tensor) -> Tensor:
    """A copy that is a leaf, or has the history of ``arg`` if there is one."""
    copy = copy_in_strides(arg)
    return copy if copy.requires_grad else copy.requires_grad_()


def copy_in_strides(x: Tensor) -> Tensor:
    """A copy with the same strides and offset, which may repeat an element; its gradient is that of each index."""
    copy: Tensor = _CopyInStrides.apply(x)
    return copy


class _CopyInStrides(torch.autograd.Function):
    """The identity in other memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Elements that are repeated are written once."""
        last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        storage = torch.empty(x.storage_offset() + last + 1 if x.numel() else 0, dtype=x.dtype).untyped_storage()
        made = torch.empty(0, dtype=x.dtype).set_(storage, x.storage_offset(), x.size(), x.stride())
        once, source = made, x
        for dim in range(x.dim()):
            if x.stride(dim) == 0 and x.size(dim) > 1:
                once, source = once.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
        once.copy_(source)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient itself."""
        return gradient


# ---- structure


def _for_each(dims: Dims, count: int) -> tuple[int | None, ...]:
    return dims if isinstance(dims, tuple) else (dims,) * count


def _numbers(argnums: Argnums) -> tuple[int, ...]:
    return argnums if isinstance(argnums, tuple) else (argnums,)


def _one_or_all(argnums: Argnums, values: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return tuple(values) if isinstance(argnums, tuple) else values[0]


def _example(args: Sequence[Tensor], dims: Sequence[int | None], i: int) -> list[Tensor]:
    return [arg if dim is None else arg.select(dim, i) for arg, dim in zip(args, dims, strict=True)]


def _stacked(results: list[Any], out_dims: Dims) -> Any:
    """The results of the examples along ``out_dims``; the last of them where that is None."""
    spec = pytree.tree_structure(results[0])
    each = list(zip(*map(pytree.tree_leaves, results), strict=True))
    dims = _for_each(out_dims, len(each))
    leaves = [x[-1] if dim is None else torch.stack(x, dim) for x, dim in zip(each, dims, strict=True)]
    return pytree.tree_unflatten(leaves, spec)


# ---- autograd that refuses nothing


@contextmanager
def _lenient_autograd(*, on: bool) -> Iterator[None]:
    if not on:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(Tensor.clone, lambda saved: saved), _OneByOne():
        yield


DIM_OF: Final = {
    torch.Tensor.unbind: 1,
    torch.unbind: 1,
    torch.Tensor.split: 2,
    torch.split: 2,
    torch.Tensor.chunk: 2,
    torch.chunk: 2,
    torch.Tensor.tensor_split: 2,
    torch.tensor_split: 2,
}
"""Where functions that give several views are told their dimension."""


class _OneByOne(TorchFunctionMode):
    """Gives views one by one where a function gives several, and copies where it is told ``out=``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` gives, made of operators that autograd lets one write after."""
        kwargs = kwargs or {}
        if isinstance(kwargs.get("out"), Tensor):
            out = kwargs.pop("out")
            return out.copy_(func(*args, **kwargs))
        if func in DIM_OF:
            return _separate(func, args, kwargs)
        return func(*args, **kwargs)


def _separate(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, ...]:
    """The views that ``func`` gives, each made by an operator of its own."""
    tensor, place = args[0], DIM_OF[func]
    dim = kwargs.get("dim", args[place] if len(args) > place else 0)
    pieces = func(*args, **kwargs)
    if place == 1:
        return tuple(tensor.select(dim, i) for i in range(len(pieces)))
    starts = [sum(piece.size(dim) for piece in pieces[:n]) for n in range(len(pieces))]
    return tuple(tensor.narrow(dim, start, piece.size(dim)) for start, piece in zip(starts, pieces, strict=True))
