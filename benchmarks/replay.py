"""Outputs that are views are replayed on their base: each view costs no more than eager's own.

    python -m benchmarks.replay [--quick]

A call of the callable also checks its arguments and runs the graph. So that these do not count, each
program is run with one view and with many: the table shows what one view more costs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import purefx
from benchmarks.timing import Row, is_quick, medians, show

MANY = 33

Program = Callable[[Tensor], object]


def chain(n: int) -> Program:
    """One output: ``n`` views, each of the last."""

    def program(x: Tensor) -> Tensor:
        for _ in range(n):
            x = x.t()[:, :]
        return x

    return program


def slices_of_argument(n: int) -> Program:
    """``n`` outputs, each a slice of the argument."""
    return lambda x: [x[i : i + 2] for i in range(n)]


def slices_of_intermediate(n: int) -> Program:
    """``n`` outputs, each a slice of a tensor made in the program."""

    def program(x: Tensor) -> list[Tensor]:
        y = x + 1
        return [y[i : i + 2] for i in range(n)]

    return program


def unbound(n: int) -> Program:
    """``n`` outputs of one view op."""
    return lambda x: x[:n].unbind()


def views_after_write(n: int) -> Program:
    """``n`` outputs, each a slice of an argument that was written."""

    def program(x: Tensor) -> list[Tensor]:
        x.add_(1)
        return [x[i : i + 2] for i in range(n)]

    return program


def measure(make_program: Callable[[int], Program], *, rounds: int) -> Row:
    """What one view more costs in the callable and in eager."""
    x = torch.zeros(64, 64)
    contenders: dict[str, Callable[[], object]] = {}
    for n in (1, MANY):
        program = make_program(n)
        contenders[f"callable {n}"] = partial(purefx.compile(program), x)
        contenders[f"eager {n}"] = partial(program, x)
    times = medians(contenders, rounds=rounds, calls=50)

    def of_one_view(who: str) -> float:
        return (times[f"{who} {MANY}"] - times[f"{who} 1"]) / (MANY - 1)

    return Row(make_program.__name__, of_one_view("callable"), of_one_view("eager"), 1.1)


@torch.no_grad()
def main() -> None:
    """Print one table."""
    rounds = 5 if is_quick(__doc__) else 25
    programs = (chain, slices_of_argument, slices_of_intermediate, unbound, views_after_write)
    show("one view more", ("callable", "eager"), [measure(program, rounds=rounds) for program in programs])


if __name__ == "__main__":
    main()
