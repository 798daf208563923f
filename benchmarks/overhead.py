"""What a call of the callable costs beyond eager, on functions that do next to nothing.

    python -m benchmarks.overhead [--quick]

The difference of the two columns is the check of the arguments, the graph's interpreter or code, and the
write-back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import purefx
from benchmarks.timing import Row, is_quick, medians, show

Program = Callable[..., object]


def pure(x: Tensor) -> Tensor:
    """No write, no view."""
    return x + 1


def write(x: Tensor) -> None:
    """One argument is written."""
    x.add_(1)


def views_of_one_base(first: Tensor, second: Tensor) -> Tensor:
    """Two arguments overlap."""
    first.add_(1)
    return second + 1


def many(tensors: dict[str, Tensor]) -> Tensor:
    """Twenty arguments in a dictionary."""
    return tensors["t0"] + tensors["t19"]


def measure(name: str, program: Program, arguments: tuple[object, ...], *, rounds: int) -> Row:
    """Seconds of one call of the callable and of eager."""
    compiled = purefx.compile(program)
    times = medians(
        {"callable": partial(compiled, *arguments), "eager": partial(program, *arguments)},
        rounds=rounds,
        calls=200,
    )
    return Row(name, times["callable"], times["eager"])


@torch.no_grad()
def main() -> None:
    """Print one table."""
    rounds = 5 if is_quick(__doc__) else 25
    x = torch.zeros(8)
    cases: list[tuple[str, Program, tuple[object, ...]]] = [
        ("x + 1", pure, (x,)),
        ("x.add_(1)", write, (x,)),
        ("overlapping arguments", views_of_one_base, (x[:6], x[2:])),
        ("dictionary of 20", many, ({f"t{i}": torch.zeros(8) for i in range(20)},)),
        ("nn.Linear", nn.Linear(8, 8), (x,)),
        ("four nn.Linear", nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), (x,)),
    ]
    show(
        "time of a call",
        ("callable", "eager"),
        [measure(name, program, arguments, rounds=rounds) for name, program, arguments in cases],
    )


if __name__ == "__main__":
    main()
