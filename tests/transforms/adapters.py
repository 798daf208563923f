"""Transforms as functions of tensors to tensors: what a random nest applies, one around another.

Each takes ``func``, a library that names its transforms as ``torch.func`` does, and a function ``f`` of tensors.
Cotangents and tangents are made of values that outer transforms see. A program prints the source of those that it
uses, so each names only these and ``torch``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]


def leaves(result: Any) -> tuple[Tensor, ...]:
    if isinstance(result, torch.Tensor):
        return (result,)
    return tuple(leaf for part in result for leaf in leaves(part))


def flat(f: Function) -> Function:
    return lambda *args: leaves(f(*args))


def total(f: Function) -> Function:
    return lambda *args: sum(leaf.sin().sum() for leaf in leaves(f(*args)))


def gradient(func: Any, f: Function, argnums: Any) -> Function:
    return flat(func.grad(total(f), argnums))


def gradient_and_value(func: Any, f: Function, argnums: Any) -> Function:
    return flat(func.grad_and_value(total(f), argnums))


def beside(f: Function, args: tuple[Any, ...]) -> Function:
    """``f`` times a number made of ``args``, which it reaches by itself: the very tensors that it is called with."""

    def scaled(*given: Tensor) -> tuple[Tensor, ...]:
        scale = sum(arg.cos().sum() for arg in args)
        return tuple(leaf * scale for leaf in leaves(f(*given)))

    return scaled


def gradient_beside(func: Any, f: Function, argnums: Any) -> Function:
    return lambda *args: leaves(func.grad(total(beside(f, args)), argnums)(*args))


def pulled_beside(func: Any, f: Function) -> Function:
    def transformed(*args: Tensor) -> tuple[Tensor, ...]:
        results, pull = func.vjp(beside(f, args), *args)
        return (*results, *pull(tuple(result.cos() for result in results)))

    return transformed


def pushed_beside(func: Any, f: Function) -> Function:
    def transformed(*args: Tensor) -> tuple[Tensor, ...]:
        results, tangents = func.jvp(beside(f, args), args, tuple(arg.cos() for arg in args))
        return (*results, *tangents)

    return transformed


def pulled(func: Any, f: Function) -> Function:
    def transformed(*args: Tensor) -> tuple[Tensor, ...]:
        results, pull = func.vjp(flat(f), *args)
        return (*results, *pull(tuple(result.cos() for result in results)))

    return transformed


def pushed(func: Any, f: Function) -> Function:
    def transformed(*args: Tensor) -> tuple[Tensor, ...]:
        results, tangents = func.jvp(flat(f), args, tuple(arg.cos() for arg in args))
        return (*results, *tangents)

    return transformed


def linearized(func: Any, f: Function) -> Function:
    def transformed(*args: Tensor) -> tuple[Tensor, ...]:
        tangents = tuple(arg.cos() for arg in args)
        results, push = func.linearize(flat(f), *args)
        return (*results, *push(*tangents))

    return transformed


def jacobian_reverse(func: Any, f: Function, argnums: Any) -> Function:
    return flat(func.jacrev(flat(f), argnums))


def jacobian_forward(func: Any, f: Function, argnums: Any) -> Function:
    return flat(func.jacfwd(flat(f), argnums))


def second_derivative(func: Any, f: Function, argnums: Any) -> Function:
    return flat(func.hessian(flat(f), argnums))


ADAPTERS: tuple[Function, ...] = (
    leaves,
    flat,
    total,
    gradient,
    gradient_and_value,
    pulled,
    pushed,
    linearized,
    jacobian_reverse,
    jacobian_forward,
    second_derivative,
    beside,
    gradient_beside,
    pulled_beside,
    pushed_beside,
)
