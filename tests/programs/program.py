"""A program as data: source text for its inputs, its statements and its result, and the function they make.

The text is the program: what runs is what ``source`` prints, so that a failure can be pasted as a test.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from typing import cast

import torch
from torch import Tensor

from purefx.report.check import Held
from purefx.report.observe import Arguments, Raised, attempt
from tests.programs import vocabulary
from tests.programs.vocabulary import VOCABULARY
from tests.support.oracle import System

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
    """Inputs, statements and result; ``held`` makes the tensor ``w``, a global that the function reads.

    ``later`` is what the caller does after the call, with the arguments, the tensors ``r0``, ``r1``, ... of the
    result, and ``program`` itself.
    """

    setup: tuple[Statement, ...]
    parameters: tuple[str, ...]
    body: tuple[Statement, ...]
    result: str
    held: str | None = None
    later: tuple[Statement, ...] = ()

    def source(self) -> str:
        """The program as Python: ``make_inputs``, ``program`` and, if it does more than call that, ``caller``."""
        held = [f"w = {self.held}", ""] if self.held else []
        inputs = _function("make_inputs", (), self.setup, f"({', '.join(self.parameters)},)")
        program = _function("program", self.parameters, self.body, self.result)
        caller = self._caller() if self.later else []
        lines = [*held, *inputs, "", *program, "", *caller, ""]
        words = set(re.findall(r"\w+", " ".join(lines)))
        used = ", ".join(name for name in VOCABULARY if name in words)
        imports = ["import torch", *([f"from {vocabulary.__name__} import {used}"] if used else []), ""]
        return "\n".join([*imports, *lines])

    def _caller(self) -> list[str]:
        """The call, names for the tensors of its result, and what is done with them."""
        call = f"program({', '.join(self.parameters)})"
        names = {name for statement in self.later for name in re.findall(r"\br(\d+)\b", statement.text)}
        named = [Statement(f"r{n} = tensors(result)[{n}]") for n in sorted(map(int, names))]
        body = (Statement(f"result = {call}"), *named, *self.later)
        return _function("caller", ("program", *self.parameters), body, "result")

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
        """The program as a function of its inputs, without what the caller does later."""
        return cast(Callable[..., object], self._namespace["program"])

    def run(self, *inputs: object) -> object:
        """The result for these inputs, after all that the caller does."""
        return self.run_as(self.function)(*inputs)

    def run_as(self, function: Callable[..., object]) -> Callable[..., object]:
        """What the caller does, with ``function`` in the place of the program."""
        return partial(cast(Callable[..., object], self._namespace["caller"]), function) if self.later else function

    def under(self, system: System) -> System:
        """The system that makes of ``run`` the same caller, whose program is made by ``system``."""
        return lambda _: self.run_as(system(self.function))

    def outcome(self) -> object | Raised:
        """The result in eager, or the error."""
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            return attempt(lambda: self.run(*self.make_inputs()))

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
                yield replace(self, result=result, later=())
        for n in range(len(self.later)):
            yield replace(self, later=self.later[:n] + self.later[n + 1 :])
        for n in reversed(range(len(self.body))):
            yield replace(self, body=self.body[:n] + self.body[n + 1 :])


def _function(name: str, parameters: tuple[str, ...], body: tuple[Statement, ...], result: str) -> list[str]:
    lines = [line for statement in body for line in statement.lines()]
    return [
        f"def {name}({', '.join(parameters)}):",
        *(f"    {line}" for line in [*lines, f"return {result}"]),
    ]
