"""Random programs that view, write and return tensors, each statement tried as it is made.

The tensors of the program exist while it is generated; a statement that raises is discarded. A few programs
that raise are kept, as an error is an observation too. Tensors hold small whole numbers: sums are exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

import torch
from hypothesis import strategies as st
from torch import Tensor

from purefx.report.observe import Raised
from tests.programs.program import Program, Statement
from tests.programs.statements import (
    AUTOGRAD,
    FUNCTIONS,
    GEOMETRY_WRITES,
    VALUES,
    VIEWS,
    WRITES,
    Row,
    Scope,
    retyped,
)
from tests.programs.vocabulary import VOCABULARY, tensors

BASES = (
    "torch.arange(16.).reshape(4, 4)",
    "torch.arange(16.).reshape(4, 4)",
    "torch.arange(24.).reshape(2, 3, 4)",
    "torch.arange(10.)",
    "torch.arange(12.).reshape(3, 4).t()",
    "torch.arange(32.).reshape(4, 8)[:, ::2]",
    "torch.arange(12., dtype=torch.float64).reshape(3, 4)",
    "torch.arange(12).reshape(3, 4)",
    "torch.complex(torch.arange(6.), torch.arange(6.) + 1).reshape(2, 3)",
    "torch.arange(4.).reshape(1, 4)",
)
DIFFERENTIABLE_BASES = tuple(base for base in BASES if "arange(12)" not in base)
LEAVES = (
    "{}.clone().requires_grad_()",
    "{}.clone().requires_grad_().clone()",
    "{}.clone().requires_grad_() * 1",
    "{}",
)
HELD = "torch.arange(4.)"
CONSTANTS = ("None", "3", "2.5", "True", "'text'", "{x}.shape", "{x}.dim()", "{x}.numel()")
NAMES: dict[str, object] = {"torch": torch, **VOCABULARY}
LATER = 0.4
"""How many programs have a caller who does more than to call."""
AGAIN = 0.2
"""How much of that is a further call."""
KEPT_ERRORS = 0.05
"""How many of the writes that eager refuses stay in the program."""
INPUT_VIEWS: tuple[Row, ...] = (*VIEWS, retyped, retyped)


class Tape(Random):
    """The numbers in ``first``, then those of a seed. All that it chooses follows from ``random``."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.first: list[float] = []

    def random(self) -> float:
        """The next number."""
        return self.first.pop(0) if self.first else super().random()


def random_program(rng: Random, *, grad: bool = False) -> Program:
    """A program made of the choices of ``rng``; with ``grad`` some inputs are leaves or grown from leaves."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        while True:
            author = Author(rng, grad)
            program = author.write()
            if author.raises or not raises(program):
                return program


@st.composite
def programs(draw: st.DrawFn, *, grad: bool = False) -> Program:
    """Programs as Hypothesis draws and shrinks them: some first choices, and the seed of all others."""
    tape = Tape(draw(st.integers(0, 2**32 - 1)))
    tape.first = draw(st.lists(st.floats(0, 1, exclude_max=True, width=16), max_size=60))
    return random_program(tape, grad=grad)


def seeded_programs(seeds: range, *, grad: bool | None = None) -> Iterator[tuple[int, Program]]:
    """A program for each seed; where ``grad`` is None, every second one needs gradients."""
    for seed in seeds:
        yield seed, random_program(Random(seed), grad=seed % 2 == 1 if grad is None else grad)


def raises(program: Program) -> bool:
    """Whether eager raises."""
    return isinstance(program.outcome(), Raised)


@dataclass
class Author:
    """One program being written.

    Invariant: ``tensors`` are what the statements so far have made of fresh inputs; ``say`` alone sets them.
    """

    rng: Random
    grad: bool
    tensors: dict[str, Tensor] = field(default_factory=dict)
    bases: list[str] = field(default_factory=list)
    raises: bool = False
    program: Callable[..., object] | None = None

    def write(self) -> Program:
        """The whole program."""
        setup, parameters = self._inputs()
        self.tensors = {name: self.tensors[name] for name in parameters}
        held = HELD if self.rng.random() < 0.12 else None
        if held:
            self.tensors["w"] = torch.arange(4.0)
        body = [statement for n in range(self.rng.randint(1, 7)) for statement in self._statement(n)]
        program = Program(tuple(setup), tuple(parameters), tuple(body), self._result(), held)
        if self.raises or self.rng.random() >= LATER:
            return program
        return replace(program, later=tuple(self._later(program)))

    # ---- inputs

    def _inputs(self) -> tuple[list[Statement], list[str]]:
        setup: list[Statement] = []
        parameters: list[str] = []
        for name in "abcd"[: self.rng.choice((1, 2, 2, 2, 3, 3, 4))]:
            if not self.bases or self.rng.random() < 0.25:
                setup += self._base()
            setup += self._input(name, parameters)
            parameters.append(name)
        return setup, parameters

    def _base(self) -> list[Statement]:
        name = f"base{len(self.bases)}"
        text = self.rng.choice(DIFFERENTIABLE_BASES if self.grad else BASES)
        if self.grad:
            text = self.rng.choice(LEAVES).format(text)
        self.bases.append(name)
        return self.say(f"{name} = {text}")

    def _input(self, name: str, earlier: list[str]) -> list[Statement]:
        """The base itself, an earlier input, or a view, mostly of the newest base."""
        chance = self.rng.random()
        base = self.bases[-1] if self.rng.random() < 0.8 else self.rng.choice(self.bases)
        if chance < 0.2 or (earlier and chance < 0.28):
            source = base if chance < 0.2 else self.rng.choice(earlier)
            return self.say(f"{name} = {source}")
        no_grad = self.grad and self.rng.random() < 0.1
        first = self._try(INPUT_VIEWS, base, f"{name} = {{}}", no_grad=no_grad)
        if first and self.rng.random() < 0.4:
            first += self._try(VIEWS, name, f"{name} = {{}}", no_grad=no_grad)
        return first or self.say(f"{name} = {base}")

    # ---- statements

    def _statement(self, n: int) -> list[Statement]:
        """A view, a value or a write."""
        kinds: tuple[tuple[tuple[Row, ...], str], ...] = (
            (VIEWS, f"v{n} = {{}}"),
            (VALUES, f"v{n} = {{}}"),
            (WRITES, "{}"),
            (GEOMETRY_WRITES, "{}"),
        )
        if self.grad:
            kinds += ((FUNCTIONS, f"v{n} = {{}}"), (AUTOGRAD, "{}"))
        rows, form = self.rng.choices(kinds, weights=(35, 17, 43, 5, 6, 8)[: len(kinds)])[0]
        names = [name for name in self.tensors if name != "w" or rows is not GEOMETRY_WRITES]
        no_grad = self.rng.random() < (0.15 if self.grad else 0.04)
        return self._try(rows, self.recent(names), form, no_grad=no_grad)

    def recent(self, names: list[str]) -> str:
        """A name, rather one of the last."""
        return self.rng.choice(names[-3:] if self.rng.random() < 0.4 else names)

    def _try(self, rows: tuple[Row, ...], name: str, form: str, *, no_grad: bool) -> list[Statement]:
        """A statement made of one of the rows; none if each of some attempts raises."""
        for _ in range(6):
            text = self.text(rows, name)
            try:
                if text:
                    return self.say(form.format(text), no_grad=no_grad)
            except Exception:
                if form == "{}" and self.rng.random() < KEPT_ERRORS:
                    self.raises = True
                    return [Statement(text, no_grad)]
        return []

    def text(self, rows: tuple[Row, ...], name: str) -> str:
        """What one of the rows says of the tensor; nothing if that row has nothing to say of it."""
        try:
            return self.rng.choice(rows)(Scope(self.rng, self.tensors), name, self.tensors[name])
        except Exception:
            return ""

    # ---- what the caller does later

    def _later(self, program: Program) -> list[Statement]:
        """Writes to arguments and results, one after another, and further calls."""
        found = tensors(eval(program.result, {**NAMES, **self.tensors}))
        names = {*program.parameters, *(["w"] if program.held else [])}
        self.tensors = {name: tensor for name, tensor in self.tensors.items() if name in names}
        self.tensors |= {f"r{n}": tensor for n, tensor in enumerate(found)}
        self.program = program.function
        return [statement for _ in range(self.rng.randint(1, 3)) for statement in self._later_statement(program)]

    def _later_statement(self, program: Program) -> list[Statement]:
        if not self.tensors:
            return []
        rows: tuple[Row, ...] = WRITES
        if self.rng.random() < AGAIN:
            call = f"program({', '.join(program.parameters)})"
            rows = (lambda s, x, t: call,)
        no_grad = self.rng.random() < (0.3 if self.grad else 0.04)
        return self._try(rows, self.recent(list(self.tensors)), "{}", no_grad=no_grad)

    def say(self, text: str, *, no_grad: bool = False) -> list[Statement]:
        """The statement, run on the tensors."""
        statement = Statement(text, no_grad)
        names: dict[str, object] = {**NAMES, "program": self.program, **self.tensors}
        exec("\n".join(statement.lines()), names)
        self.tensors = {name: value for name, value in names.items() if isinstance(value, Tensor)}
        return [statement]

    # ---- the result

    def _result(self) -> str:
        """Values, inputs, views of them, constants; alone or in containers."""
        items = [self._item() for _ in range(self.rng.choice((0, 1, 1, 2, 2, 3, 4)))]
        if len(items) < 2:
            return items[0] if items else "None"
        if self.rng.random() < 0.2:
            items.append(self.rng.choice(items))
        match self.rng.choice(("tuple", "tuple", "tuple", "list", "dict", "nested")):
            case "list":
                return f"[{', '.join(items)}]"
            case "dict":
                return f"{{{', '.join(f'{key!r}: {item}' for key, item in zip('uvxyz', items, strict=False))}}}"
            case "nested":
                return f"({items[0]}, [{', '.join(items[1:])}, None], {{'x': {self._item()}}})"
            case _:
                return f"({', '.join(items)},)"

    def _item(self) -> str:
        name = self.recent(list(self.tensors))
        chance = self.rng.random()
        if chance < 0.1:
            return self.rng.choice(CONSTANTS).format(x=name)
        if chance < 0.35:
            return self._view_of(name)
        return name

    def _view_of(self, name: str) -> str:
        text = self.text(VIEWS, name)
        try:
            eval(text, {**NAMES, **self.tensors})
        except Exception:
            return name
        return text
