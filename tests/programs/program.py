"""A program as data: source text for its inputs, its statements and its result, and the function they make.

The text is the program: what runs is what ``source`` prints, so that a failure can be pasted as a test.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import cast

from torch import Tensor

from purefx.report.check import Held
from purefx.report.observe import Arguments

_numbers = count()


@dataclass(frozen=True)
class Statement:
    """One line of a program, run with or without grad mode."""

    text: str
    no_grad: bool = False

    def lines(self) -> list[str]:
        """The line, in its block."""
        return ["with torch.no_grad():", f"    {self.text}"] if self.no_grad else [self.text]


@dataclass(frozen=True)
class Program:
    """Inputs, statements and result; ``held`` makes the tensor ``w``, a global that the function reads."""

    setup: tuple[Statement, ...]
    parameters: tuple[str, ...]
    body: tuple[Statement, ...]
    result: str
    held: str | None = None

    def source(self) -> str:
        """The program as Python: ``make_inputs`` and ``program``."""
        held = [f"w = {self.held}", ""] if self.held else []
        inputs = _function("make_inputs", (), self.setup, f"({', '.join(self.parameters)},)")
        program = _function("program", self.parameters, self.body, self.result)
        return "\n".join(["import torch", "", *held, *inputs, "", *program, ""])

    def __str__(self) -> str:
        return self.source()

    @cached_property
    def _namespace(self) -> dict[str, object]:
        """The names that the source defines; ``linecache`` knows the file, for tracebacks and Dynamo."""
        text, file = self.source(), f"<random program {next(_numbers)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        namespace: dict[str, object] = {"__name__": "random_program"}
        exec(compile(text, file, "exec"), namespace)
        return namespace

    @cached_property
    def _held_tensors(self) -> Held:
        return Held([cast(Tensor, self._namespace["w"])] if self.held else [])

    @property
    def function(self) -> Callable[..., object]:
        """The program as a function of its inputs."""
        return cast(Callable[..., object], self._namespace["program"])

    def run(self, *inputs: object) -> object:
        """The result for these inputs, which the program may write to."""
        return self.function(*inputs)

    def make_inputs(self) -> tuple[Tensor, ...]:
        """Fresh inputs, equal each time; what the function holds is put back too."""
        self._held_tensors.restore()
        return cast(Callable[[], tuple[Tensor, ...]], self._namespace["make_inputs"])()

    def make_arguments(self) -> Arguments:
        """The inputs, and the tensor that the function holds, as the oracle takes them."""
        inputs = self.make_inputs()
        return Arguments(inputs, held={"w": cast(Tensor, self._namespace["w"])} if self.held else {})

    def smaller(self) -> Iterator[Program]:
        """Programs that say less: a simpler result, one statement less; many of them do not run."""
        names = re.findall(r"\b(?:[abcdw]|v\d+)\b", self.result)
        together = f"({', '.join(dict.fromkeys(names))},)" if names else "None"
        results = ("None", *dict.fromkeys(names), together)
        for result in results:
            if len(result) < len(self.result):
                yield replace(self, result=result)
        for n in reversed(range(len(self.body))):
            yield replace(self, body=self.body[:n] + self.body[n + 1 :])


def _function(name: str, parameters: tuple[str, ...], body: tuple[Statement, ...], result: str) -> list[str]:
    lines = [line for statement in body for line in statement.lines()]
    return [
        f"def {name}({', '.join(parameters)}):",
        *(f"    {line}" for line in [*lines, f"return {result}"]),
    ]
