"""The transforms of ``torch.func`` for functions that view and write: each makes the function functional first.

    purefx.func.vmap(f)(xs)        torch.func.vmap(purefx.compile(f))(xs)

Signatures and results are those of ``torch.func``.  A function is captured as a loop over examples would run it, once
for each kind of arguments, so that whatever a loop can do in place is done under every transform; the errors that such
a loop raises are raised.  What a transform cannot keep is refused with `purefx.errors.TransformRefused`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from purefx._torch import add_batch, innermost_transform, is_of_graph, pytree
from purefx.api import Compiled, compile
from purefx.capture.session import is_capturing
from purefx.transforms.levels import batch_levels
from purefx.transforms.strided import strided_batching

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "strided_batching",
    "vjp",
    "vmap",
]

Function = Callable[..., Any]
Argnums = int | tuple[int, ...]
Dims = int | tuple[Any, ...]


def _functional(function: Function) -> Function:
    return function if isinstance(function, Compiled) or is_of_graph(function) else compile(function)


class _Called(torch.nn.Module):
    """A compiled module as a module: its parameters are those of ``inner``."""

    def __init__(self, compiled: Compiled) -> None:
        super().__init__()
        self.inner = compiled.function
        self._compiled = compiled

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the compiled module returns."""
        return self._compiled(*args, **kwargs)


def functional_call(
    module: torch.nn.Module,
    parameter_and_buffer_dicts: dict[str, torch.Tensor] | Sequence[dict[str, torch.Tensor]],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """What ``module``, which may be compiled, returns with other parameters and buffers in the place of its own."""
    given: Any = parameter_and_buffer_dicts
    if isinstance(module, Compiled):
        dicts = [given] if isinstance(given, dict) else given
        given = [{f"inner.{name}": x for name, x in named.items()} for named in dicts]
        module = _Called(module)
    return torch.func.functional_call(module, given, args, kwargs, tie_weights=tie_weights, strict=strict)


def vmap(
    func: Function,
    in_dims: Dims = 0,
    out_dims: Dims = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Function:
    """``func`` of each example of a batch, which is at ``in_dims`` of the arguments.

    ``func`` may write to what it makes, whether that has a batch or not, and to arguments that have one: these are
    written in place.  Raises TransformRefused if it writes something with a batch to an argument without.
    """
    function = _functional(func)
    if out_dims != 0:
        function = _with_batch(function, out_dims)
    return torch.func.vmap(function, in_dims, out_dims, randomness, chunk_size=chunk_size)


def _with_batch(function: Function, out_dims: Dims) -> Function:
    """``function`` under vmap, whose results have a batch where ``out_dims`` asks for a dimension of it.

    What all examples share, PyTorch repeats for ``out_dims=0``, and expands to wrong sizes for others.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        with suppress(ValueError):  # PyTorch will say that the two are not alike
            return pytree.tree_map(_repeated, out_dims, result)
        return result

    return call


def _repeated(dim: int | None, part: Any) -> Any:
    transform = innermost_transform()
    if dim is None or transform is None:
        return part
    level, size = transform.level, transform.batch_size
    return pytree.tree_map(
        lambda x: (
            add_batch(x.expand(size, *x.shape), level)
            if isinstance(x, torch.Tensor) and level not in batch_levels(x)
            else x
        ),
        part,
    )


def grad(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:  # noqa: FBT001, FBT002
    """The gradient of ``func``, which returns a number, with respect to the arguments ``argnums``."""
    return torch.func.grad(_functional(func), argnums, has_aux)


def grad_and_value(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:  # noqa: FBT001, FBT002
    """The gradient of ``func``, and what it returns."""
    return torch.func.grad_and_value(_functional(func), argnums, has_aux)


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> Any:
    """What ``func`` returns, and a function from cotangents to gradients; then the auxiliary output, if it has one."""
    return torch.func.vjp(_functional(func), *primals, has_aux=has_aux)


def jvp(func: Function, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False) -> Any:
    """What ``func`` returns, and its tangents; then the auxiliary output, if it has one."""
    return torch.func.jvp(_functional(func), primals, tangents, strict=strict, has_aux=has_aux)


def jacrev(func: Function, argnums: Argnums = 0, *, has_aux: bool = False, chunk_size: int | None = None) -> Function:
    """The Jacobian of ``func``, row by row in reverse mode."""
    return torch.func.jacrev(_functional(func), argnums, has_aux=has_aux, chunk_size=chunk_size)


def jacfwd(
    func: Function,
    argnums: Argnums = 0,
    has_aux: bool = False,  # noqa: FBT001, FBT002
    *,
    randomness: str = "error",
) -> Function:
    """The Jacobian of ``func``, column by column in forward mode."""
    return torch.func.jacfwd(_functional(func), argnums, has_aux, randomness=randomness)


def hessian(func: Function, argnums: Argnums = 0) -> Function:
    """The second derivatives of ``func``: forward over reverse."""
    return torch.func.hessian(_functional(func), argnums)


def linearize(func: Function, *primals: Any) -> tuple[Any, Function]:
    """What ``func`` returns at ``primals``, and its derivative there as a function of tangents.

    Inside of a program that is captured, the derivative runs ``func`` again.
    """
    function = _functional(func)
    if is_capturing():
        return function(*primals), lambda *tangents: torch.func.jvp(function, primals, tangents)[1]
    return torch.func.linearize(function, *primals)
