"""A buffer of N rows of 256 elements, written row by row: linear to trace, and as fast to run as eager.

    python -m benchmarks.pieces [--quick]

In ``new buffer`` the function makes the buffer and returns it; in ``argument`` it writes into one of the
caller's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import purefx
from benchmarks.timing import Row, is_quick, medians, show

WIDTH = 256
RUN_ROWS = 1024

Program = Callable[..., Tensor]
MakeArguments = Callable[[int], tuple[Tensor, ...]]


def new_buffer(x: Tensor) -> Tensor:
    """Write each row of a buffer made here."""
    return argument(torch.zeros_like(x), x)


def argument(buffer: Tensor, x: Tensor) -> Tensor:
    """Write each row of the caller's buffer."""
    for i in range(len(x)):
        buffer[i] = x[i] * 2 + 1
    return buffer


PROGRAMS: dict[str, tuple[Program, MakeArguments]] = {
    "new buffer": (new_buffer, lambda n: (torch.randn(n, WIDTH),)),
    "argument": (argument, lambda n: (torch.zeros(n, WIDTH), torch.randn(n, WIDTH))),
}


def show_tracing(name: str, program: Program, make: MakeArguments, sizes: list[int], *, rounds: int) -> None:
    """Print how the time to trace grows from each size to its double."""
    times = medians({str(n): partial(purefx.trace, program, *make(n)) for n in sizes}, rounds=rounds)
    rows = [
        Row(f"{n} -> {double} rows", times[str(double)], times[str(n)], 2.3) for n, double in itertools.pairwise(sizes)
    ]
    if RUN_ROWS in sizes:
        rows.append(Row(f"{RUN_ROWS} rows / 2 s", times[str(RUN_ROWS)], 2.0, 1.0))
    show(f"{name}: growth of the time to trace", ("time", "compared with"), rows)


def show_running(name: str, program: Program, make: MakeArguments, n: int, *, rounds: int) -> None:
    """Print what a call of the callable costs, measured by eager."""
    compiled, arguments = purefx.compile(program), make(n)
    times = medians({"callable": partial(compiled, *arguments), "eager": partial(program, *arguments)}, rounds=rounds)
    show(
        f"{name}: run time",
        ("callable", "eager"),
        [Row(f"{n} rows", times["callable"], times["eager"], 1.2)],
    )


@torch.no_grad()
def main() -> None:
    """Print two tables for each program."""
    quick = is_quick(__doc__)
    sizes = [64, 128, 256] if quick else [256, 512, RUN_ROWS, 2 * RUN_ROWS]
    for name, (program, make) in PROGRAMS.items():
        show_tracing(name, program, make, sizes, rounds=2 if quick else 3)
        show_running(name, program, make, sizes[-1] if quick else RUN_ROWS, rounds=5 if quick else 25)


if __name__ == "__main__":
    main()
