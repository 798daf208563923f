"""What every benchmark shares: interleaved timing, and a table of ratios.

Times on a shared machine drift, ratios of interleaved runs much less: in each round every contender runs
once, and the median over the rounds counts. One thread; the garbage collector runs between the runs, never
within.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: two quantities, such as seconds, and the most that their ratio may be, if anything."""

    name: str
    quantity: float
    compared_with: float
    target: float | None = None

    @property
    def ratio(self) -> float:
        """How many times as much."""
        return self.quantity / self.compared_with


def is_quick(description: str | None) -> bool:
    """Parse the command line, whose one option is ``--quick``: fewer rounds and smaller sizes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes")
    return bool(parser.parse_args().quick)


def medians(contenders: Mapping[str, Run], *, rounds: int, calls: int = 1) -> dict[str, float]:
    """Seconds of one call of each contender: the median over interleaved rounds of ``calls`` calls."""
    torch.set_num_threads(1)
    for run in contenders.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    console = Console(stderr=True)
    title = ", ".join(contenders)
    for _ in track(range(rounds), title, console=console, transient=True, disable=not console.is_terminal):
        for name, run in contenders.items():
            times[name].append(seconds(run, calls) / calls)
    return {name: statistics.median(measured) for name, measured in times.items()}


def seconds(run: Run, calls: int) -> float:
    """How long ``calls`` calls take, with no garbage collection within."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return time.perf_counter() - start
    finally:
        gc.enable()


def show(title: str, columns: tuple[str, str], rows: list[Row], *, spell: Callable[[float], str] | None = None) -> None:
    """Print a table; ``columns`` says what was measured and what it is compared with, ``spell`` in which unit."""
    spell = spell or duration
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in (*columns, "ratio", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        quantities = spell(row.quantity), spell(row.compared_with)
        table.add_row(row.name, *quantities, f"{row.ratio:.2f}", verdict(row))
    Console().print(table)


def duration(length: float) -> str:
    """Seconds in the unit that suits them."""
    for unit, scale in (("s", 1), ("ms", 1e3)):
        if length * scale >= 1:
            return f"{length * scale:.2f} {unit}"
    return f"{length * 1e6:.1f} us"


def verdict(row: Row) -> str:
    """The target of a row, and whether it is met."""
    if row.target is None:
        return "none"
    return f"<= {row.target:.2f} " + ("met" if row.ratio <= row.target else "[bold red]missed[/]")
