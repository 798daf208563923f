"""Run random programs under random transforms and print those that differ from the oracle, made small.

python -m tests.transforms --count 500 --seed 0 --system purefx.func
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import torch
from rich.console import Console
from rich.progress import track
from rich.syntax import Syntax

from tests.transforms.generate import THEMES, seeded_nests
from tests.transforms.judge import SYSTEMS, Declined, Stopped, Verdict, Wrong, judge, outcome, with_oracle
from tests.transforms.nest import Nest
from tests.transforms.oracle import Oracle


def smallest(nest: Nest, system: str, kind: type[Verdict]) -> Nest:
    """A nest with a verdict of the same kind, of which no simpler one that was tried has one."""
    for smaller in nest.smaller():
        if isinstance(judge(smaller, system), kind) and whole(smaller):
            return smallest(smaller, system, kind)
    return nest


def whole(nest: Nest) -> bool:
    """Whether the program has not lost a name."""
    return not isinstance(outcome(nest, with_oracle(Oracle())), NameError)


def main() -> int:
    """Run what the command line asks for; 1 if anything is wrong, or stops where autograd does not."""
    parser = argparse.ArgumentParser(prog="python -m tests.transforms", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first program")
    parser.add_argument("--system", choices=tuple(SYSTEMS), default="purefx.func")
    parser.add_argument("--theme", choices=tuple(THEMES), help="what programs are about besides views and writes")
    parser.add_argument("--show", type=int, default=5, help="how many of each kind are made small and printed")
    parser.add_argument("--only-wrong", action="store_true", help="show none that raise")
    parser.add_argument("--beside", action="store_true", help="functions reach the arguments by themselves, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    nests = seeded_nests(range(options.seed, options.seed + options.count), THEMES.get(options.theme))
    if options.beside:
        nests = ((seed, nest.beside()) for seed, nest in nests)
    shown = track(nests, total=options.count, description=options.system, console=console)
    verdicts = [(seed, nest, judge(nest, options.system)) for seed, nest in shown]
    kinds = (Wrong,) if options.only_wrong else (Wrong, Stopped)
    for kind in kinds:
        faults = [(seed, nest) for seed, nest, verdict in verdicts if isinstance(verdict, kind)]
        for seed, nest in faults[: options.show]:
            show(console, seed, smallest(nest, options.system, kind), options.system)
        console.print(f"{kind.__name__}: seeds {[seed for seed, _ in faults]}")
    counts = Counter(type(verdict).__name__ for _, _, verdict in verdicts)
    console.print(f"{options.system}, {options.count} programs: {dict(counts)}")
    return int(bool(counts["Wrong"] or counts["Stopped"]))


def show(console: Console, seed: int, nest: Nest, system: str) -> None:
    """Print the nest, and what is wrong with it."""
    console.rule(f"seed {seed}")
    console.print(Syntax(nest.source(), "python"))
    match judge(nest, system):
        case Wrong(why):
            console.print(why, markup=False, highlight=False)
        case Stopped(error) | Declined(error):
            console.print(f"{type(error).__name__}: {error}", markup=False, highlight=False)
        case other:
            console.print(repr(other))


if __name__ == "__main__":
    sys.exit(main())
