"""Run random programs through a system and print those that can be told from eager, made small.

python -m tests.programs --count 5000 --seed 0 --system purefx
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import cast

import torch
from rich.console import Console
from rich.progress import track
from rich.syntax import Syntax

from purefx.report.compare import Difference
from purefx.report.observe import Raised
from tests.programs.generate import seeded_programs
from tests.programs.program import Program
from tests.support.oracle import System, differences_from_eager

SYSTEMS = {
    "purefx": "purefx:compile",
    "eager": "tests.support.systems:eager",
    "aot": "tests.support.systems:aot",
}
SHOWN_DIFFERENCES = 6


@dataclass(frozen=True)
class Trial:
    """A system, and the aspects of what it does that are not compared."""

    system: System
    ignore: frozenset[str]

    def differences(self, program: Program) -> tuple[Difference, ...]:
        """What a caller can tell from eager."""
        return differences_from_eager(
            program.run, program.make_arguments, system=program.under(self.system), ignore=self.ignore
        )

    def smallest(self, program: Program) -> Program:
        """A program that still differs, of which no simpler one that was tried does."""
        for smaller in program.smaller():
            if self.still_differs(smaller):
                return self.smallest(smaller)
        return program

    def still_differs(self, program: Program) -> bool:
        """Whether the program differs, and has not lost a name."""
        outcome = program.outcome()
        whole = not (isinstance(outcome, Raised) and outcome.type_name in ("NameError", "UnboundLocalError"))
        return whole and bool(self.differences(program))


def load_system(name: str) -> System:
    """The system of that name, or at ``module:function``."""
    module, _, function = SYSTEMS.get(name, name).partition(":")
    return cast(System, getattr(import_module(module), function))


def main() -> int:
    """Run what the command line asks for; 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first program")
    parser.add_argument("--system", default="purefx", help="purefx, eager, or module:function")
    parser.add_argument("--grad", choices=("both", "with", "without"), default="both")
    parser.add_argument("--ignore", nargs="*", default=[], help="aspects not compared, such as version")
    parser.add_argument("--show", type=int, default=10, help="how many of those that differ are made small and printed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trial = Trial(load_system(options.system), frozenset(options.ignore))
    grad = {"both": None, "with": True, "without": False}[options.grad]
    programs = seeded_programs(range(options.seed, options.seed + options.count), grad=grad)
    console = Console()
    shown = track(programs, total=options.count, description=options.system, console=console)
    differing = [(seed, program) for seed, program in shown if trial.differences(program)]
    for seed, program in differing[: options.show]:
        show(console, seed, trial, program)
    console.print(f"{len(differing)} of {options.count} programs differ from eager ({options.system})")
    console.print(f"seeds: {[seed for seed, _ in differing]}" if differing else "")
    return int(bool(differing))


def show(console: Console, seed: int, trial: Trial, program: Program) -> None:
    """Print the program, made small, and its first differences."""
    small = trial.smallest(program)
    found = trial.differences(small)
    console.rule(f"seed {seed}: {len(found)} differences")
    console.print(Syntax(small.source(), "python"))
    for difference in found[:SHOWN_DIFFERENCES]:
        console.print(str(difference), markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
