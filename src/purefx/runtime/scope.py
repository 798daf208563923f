"""The names of one wrapper: of the call's leaves, the caller's tensors, graph outputs and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, assert_never

import torch

from purefx.analysis.counters import Counters
from purefx.analysis.replay import Fresh, How, Itself, Plain, Replay, Replayed
from purefx.autodiff.joint import Joint
from purefx.autodiff.levels import Level
from purefx.autodiff.targets import Alias, Slot
from purefx.capture.arguments import Leaf
from purefx.capture.captured import Capture, Input
from purefx.capture.recording import Call, Operand, Storage, Variable
from purefx.functional.roots import Root
from purefx.functional.signature import ForwardOutput, Functional, NumberOutput
from purefx.runtime.guards import spell_symbols
from purefx.runtime.spelling import Speller


class Scope:
    """What the parts of a wrapper are made of, and the names that they share.

    ``grad`` tells whether the statements that are being made run with gradients.
    ``examples`` are inputs that stand for tensors of the caller, whose history is theirs; ``alike`` are such at every
    call.

    Invariant: ``unique`` alone makes names, and no name stands for two things.  ``variables``, ``roots``, ``outputs``
    and ``storages`` grow in the order in which the wrapper's statements make what they name.
    """

    def __init__(self, capture: Capture, replay: Replay, functional: Functional, joint: Joint | None = None) -> None:
        self.capture = capture
        self.replay = replay
        self.functional = functional
        self.joint = joint
        self.examples: frozenset[Input] = frozenset()
        self.alike: frozenset[Input] = frozenset()
        self.earlier: dict[Input, str] = {}
        self.former: dict[Input | None, str] = {}
        self.left: dict[Input, str] = {}
        self.grad = capture.grad_before
        self.early: set[Call] = set()
        self.from_functions: set[Variable] = set()
        self.remembered: dict[Input, None] = {}
        self.counters = Counters(capture, replay.statements)
        self._taken: set[str] = {"graph", "leaves", "torch", "no_grad", "derivatives", "seed"}
        self.leaves = [self.unique(name, "x") for name in capture.flat.names]
        self.inputs = {known: self._input_name(known) for known in capture.inputs}
        self.variables: dict[Variable, str] = {known.variable: name for known, name in self.inputs.items()}
        self.symbols = spell_symbols(capture, self.inputs) if capture.dynamic else {}
        self.speller = Speller({symbol: str(symbol) for symbol in self.symbols})
        self.outputs: dict[ForwardOutput, str] = {}
        self.roots: dict[Root, str] = {}
        self.storages: dict[Storage, str] = {}

    @property
    def levels(self) -> tuple[Level, ...]:
        """The nodes of the call; none where autograd sees nothing of it."""
        return () if self.joint is None else self.joint.levels

    def unique(self, wanted: str, fallback: str) -> str:
        """A new name, like ``wanted`` if that has a letter or digit in it."""
        short = wanted.removeprefix("args").replace("kwargs", "")
        name = "".join(c if c.isalnum() else "_" for c in short).strip("_") or fallback
        name = f"arg{name}" if name[0].isdigit() else name
        unique, number = name, 1
        while unique in self._taken:
            number += 1
            unique = f"{name}_{number}"
        self._taken.add(unique)
        return unique

    def no_grad(self) -> str:
        """The expression that begins a block without gradients."""
        return f"{self.speller.name('no_grad', torch.no_grad)}()"

    def version(self, known: Input) -> str:
        """The name of the version that ``known`` had before the call."""
        self.remembered[known] = None
        return f"{self.inputs[known]}_version"

    def made(self, variable: Variable) -> str:
        """The name of ``variable``, which a statement makes if it has none yet."""
        if variable not in self.variables:
            self.variables[variable] = self.unique("view", "view")
        return self.variables[variable]

    def number(self, symbol: Any) -> str:
        """The expression of a size symbol, or the number that it is certain to be for these arguments."""
        return self.speller.expression(self.capture.env.replace(symbol))

    def result(self, how: How) -> str:
        """The expression of a result."""
        match how:
            case Itself(source):
                return self.inputs[source]
            case Fresh(variable, _) | Replayed(variable):
                return self.variables[variable]
            case Plain(value):
                numbers = (n for o, n in self.outputs.items() if isinstance(o, NumberOutput) and o.symbol is value)
                number = next(numbers, None)
                return self.speller.literal(value) if number is None else number
            case _:
                assert_never(how)

    def call(self, call: Call) -> str:
        """The expression that runs a recorded call again."""
        return self.speller.call(call, self.spell)

    def spell(self, x: Any) -> str:
        """An argument of a recorded call."""
        if isinstance(x, Operand):
            return self.variables[x.variable]
        if isinstance(x, Storage):
            return self.storages[x]
        if isinstance(x, (list, tuple)) and any(isinstance(i, Operand) for i in x):
            return f"[{', '.join(self.spell(i) for i in x)}]"
        return self.speller.literal(x)

    def _input_name(self, known: Input) -> str:
        source = known.sources[0]
        return self.leaves[source.index] if isinstance(source, Leaf) else self.unique(known.name, "held")


def makers_of(calls: Sequence[Call], wanted: set[Variable], *, written: bool = False) -> list[Call]:
    """Those of ``calls`` that make the ``wanted`` variables, to which it adds what they are made of.

    With ``written`` those that only change them are among these.
    """
    found = []
    for call in reversed(calls):
        if wanted & {o.variable for o in (*call.outputs, *(call.written if written else ()))}:
            wanted |= {o.variable for o in call.operands}
            found.append(call)
    return found[::-1]


def take_early(scope: Scope, calls: Sequence[Call], wanted: set[Variable], *, written: bool = False) -> list[Call]:
    """The `makers_of` the ``wanted`` variables that have not run yet; they run early now.

    Law: what runs early is what something is made of, in the order of the program, and no statement after that: a
    tensor that is turned later is taken as it was.
    """
    early = [call for call in makers_of(calls, wanted, written=written) if call not in scope.early]
    scope.early.update(early)
    return early


def indented(lines: list[str]) -> list[str]:
    """``lines`` one block further in."""
    return [f"    {line}" for line in lines]


def name_of_slot(scope: Scope, slot: Slot) -> str:
    """The name of what gets its history by ``slot``."""
    return scope.variables[slot.output.variable] if isinstance(slot.output, Alias) else scope.outputs[slot.output]


def with_grad(emit: Callable[[Scope], list[str]]) -> Callable[[Scope], list[str]]:
    """``emit``, whose statements run with gradients."""

    @wraps(emit)
    def emit_with_grad(scope: Scope) -> list[str]:
        before, scope.grad = scope.grad, True
        lines = emit(scope)
        scope.grad = before
        return lines if before or not lines else ["with torch.enable_grad():", *indented(lines)]

    return emit_with_grad
