"""Programs whose arguments share storage, where a pure graph must not treat them as separate tensors.

    purefx check examples/aliased_inputs.py:overlapping_slices
    purefx explain examples/aliased_inputs.py:overlapping_slices
    python examples/aliased_inputs.py

Run as a script, it shows each program, the pure graph made of it, and whether the compiled program is the
same as eager.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

import purefx


def flattened(a: Tensor, b: Tensor) -> Tensor:
    """``b`` is ``a.view(-1)``: it must show what is written to ``a``, by a view of the updated ``a``."""
    a.add_(1)
    return b * 2


def flattened_arguments() -> tuple[Tensor, Tensor]:
    """A matrix and all of its elements in one row."""
    a = torch.arange(6.0).view(2, 3)
    return a, a.view(-1)


def overlapping_slices(head: Tensor, tail: Tensor) -> Tensor:
    """``head`` is ``x[:3]`` and ``tail`` is ``x[1:]``: neither covers the other: a base is made up."""
    head.mul_(10)
    tail.add_(1)
    return head + tail


def overlapping_slices_arguments() -> tuple[Tensor, Tensor]:
    """Two windows of three elements with two elements in common."""
    x = torch.arange(4.0)
    return x[:3], x[1:]


def elected_base(first: Tensor, whole: Tensor, last: Tensor) -> Tensor:
    """``whole`` covers the other two, which overlap: it is elected as their base, and written back alone."""
    first.add_(1)
    last.mul_(2)
    return whole.sum()


def elected_base_arguments() -> tuple[Tensor, Tensor, Tensor]:
    """A vector of six elements between its first four and its last four."""
    x = torch.arange(8.0)
    return x[1:5], x[1:7], x[3:7]


def two_dtypes(number: Tensor, bits: Tensor) -> Tensor:
    """``bits`` is ``number.view(torch.int32)``: flipping the sign bit of an integer negates the float."""
    bits.bitwise_xor_(-(2**31))
    return number + 1


def two_dtypes_arguments() -> tuple[Tensor, Tensor]:
    """Floats, and the integers that are stored in the same bytes."""
    number = torch.tensor([1.0, -2.0, 0.5])
    return number, number.view(torch.int32)


PROGRAMS: dict[Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]] = {
    flattened: flattened_arguments,
    overlapping_slices: overlapping_slices_arguments,
    elected_base: elected_base_arguments,
    two_dtypes: two_dtypes_arguments,
}


def main() -> None:
    """Show each program, its pure graph, and whether anything differs from eager."""
    for program, make_arguments in PROGRAMS.items():
        report = purefx.check(program, *make_arguments())
        print(inspect.getsource(program))
        print(purefx.trace(program, *make_arguments()))
        print(f"\n{program.__name__}:", "same as eager" if report.same else f"differs from eager\n{report}")
        print("-" * 80)


if __name__ == "__main__":
    main()
