"""One decode step writes one position of two caches of length L: its cost grows with L as eager's does.

    python -m benchmarks.cache [--quick]

The position is written by assignment to a slice or by ``index_copy_``; the third program also attends to
the caches, so that eager's own time grows with L.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import purefx
from benchmarks.timing import Row, is_quick, medians, show

HEADS, HEAD_SIZE = 8, 64
POSITION = 100

Program = Callable[..., Tensor]


def slice_assignment(keys: Tensor, values: Tensor, x: Tensor, _: Tensor) -> Tensor:
    """Write one position that is a number of the program."""
    keys[:, :, POSITION : POSITION + 1] = x
    values[:, :, POSITION : POSITION + 1] = x * 2
    return x.sum()


def index_copy(keys: Tensor, values: Tensor, x: Tensor, position: Tensor) -> Tensor:
    """Write one position that is a value of a tensor."""
    keys.index_copy_(2, position, x)
    values.index_copy_(2, position, x * 2)
    return x.sum()


def attention(keys: Tensor, values: Tensor, x: Tensor, position: Tensor) -> Tensor:
    """Write one position, then attend to all of them."""
    keys.index_copy_(2, position, x)
    values.index_copy_(2, position, x * 2)
    return scaled_dot_product_attention(x, keys, values)


def make_arguments(length: int) -> tuple[Tensor, ...]:
    """Caches of ``length`` positions, what is written to one of them, and its index."""
    shape = (1, HEADS, length, HEAD_SIZE)
    return (
        torch.zeros(shape),
        torch.zeros(shape),
        torch.randn(1, HEADS, 1, HEAD_SIZE),
        torch.tensor([POSITION]),
    )


def measure(program: Program, length: int, *, rounds: int) -> tuple[float, float]:
    """Seconds of the callable and of eager."""
    compiled, arguments = purefx.compile(program), make_arguments(length)
    times = medians(
        {"callable": partial(compiled, *arguments), "eager": partial(program, *arguments)},
        rounds=rounds,
        calls=20,
    )
    return times["callable"], times["eager"]


@torch.no_grad()
def main() -> None:
    """Print a table for each program."""
    quick = is_quick(__doc__)
    lengths = [256, 2048] if quick else [256, 1024, 4096, 8192]
    for program in (slice_assignment, index_copy, attention):
        times = {length: measure(program, length, rounds=5 if quick else 25) for length in lengths}
        show(
            f"{program.__name__}: time of a call",
            ("callable", "eager"),
            [Row(f"L = {length}", *pair) for length, pair in times.items()],
        )
        shortest, *_, longest = lengths
        growth = [last / first for first, last in zip(times[shortest], times[longest], strict=True)]
        print(
            f"growth from L = {shortest} to {longest}: callable {growth[0]:.2f}, eager {growth[1]:.2f}, "
            f"ratio {growth[0] / growth[1]:.2f} (target: <= 1.2)\n"
        )


if __name__ == "__main__":
    main()
