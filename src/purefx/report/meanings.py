"""What the inputs and outputs of the graphs of one program mean, in the user's words.

memory of x, and of y in it        written back: cache[1:]        result[0], base of result[1]
saved for the backward             tangent of result              gradient of w
"""

from __future__ import annotations

from typing import assert_never

from purefx.autodiff.levels import Level
from purefx.autodiff.targets import Alias, Slot, Target
from purefx.capture.captured import Input, TensorResult
from purefx.capture.recording import Region, Variable
from purefx.functional.regions import includes
from purefx.functional.roots import Root
from purefx.functional.seen import Shown
from purefx.functional.signature import (
    BaseOutput,
    ForwardInput,
    ForwardOutput,
    NumberOutput,
    ResidualOutput,
    ResultOutput,
    RootInput,
    SymbolInput,
    WrittenOutput,
)
from purefx.pipeline import Stages
from purefx.report.names import argument_names, identifier, named_results
from purefx.report.spelling import shortened, spell_part

_SAVED = "saved for the backward"


class Meanings:
    """The words for the inputs and outputs of the graphs of ``stages``."""

    def __init__(self, stages: Stages) -> None:
        capture = stages.capture
        self._joint = stages.joint
        self._arguments = argument_names(capture)
        self._results = [(name, r) for name, r in named_results(capture) if isinstance(r, TensorResult)]
        self._bound = [(x.name, x.result) for x in capture.rebindings if isinstance(x.result, TensorResult)]
        self._lines = {node.name: shortened(line) for node, line in stages.functional.lines.items()}
        self._saved = set() if stages.joint is None else set(stages.joint.residuals.values())

    def argument(self, known: Input) -> str:
        """The name of a tensor that the program was given, or that its backward alone reaches."""
        return self._arguments.get(known, known.name)

    def root_name(self, root: Root) -> str:
        """What the input for ``root`` is called."""
        return "base" if root.base is None else self.argument(root.base)

    def memory(self, root: Root) -> str:
        """Whose memory ``root`` is."""
        names = [self.argument(member) for member in root.members]
        if root.base is None:
            return f"synthetic base of {' and '.join(names)}"
        views = [n for member, n in zip(root.members, names, strict=True) if member is not root.base]
        return f"memory of {self.root_name(root)}" + (f", and of {' and '.join(views)} in it" if views else "")

    def part(self, root: Root, region: Region) -> str:
        """``region`` in terms of the tensor that stands for ``root``."""
        whole = root.region if root.base is None else root.base.before
        return spell_part(self.root_name(root), whole, region)

    def with_saved(self, meaning: str, given: ForwardInput | ForwardOutput) -> str:
        """``meaning``, and whether the backward is given the very value."""
        return f"{meaning}, {_SAVED}" if given in self._saved else meaning

    def output(self, output: ForwardOutput) -> str:
        """What becomes of an output of the graph."""
        if isinstance(output, ResidualOutput):
            return _SAVED
        return self.with_saved(self._output(output), output)

    def _output(self, output: WrittenOutput | ResultOutput | BaseOutput | NumberOutput) -> str:
        match output:
            case WrittenOutput(root, region):
                return f"written back: {self.part(root, region)}"
            case ResultOutput(variable, _):
                return " and ".join(self._shown_by(variable)) or "bound to an attribute"
            case BaseOutput(variable, region):
                known = self._shown_by(variable)
                views = [n for n, r in self._results if r.region.storage is region.storage and n not in known]
                return " and ".join(known or ["base"]) + (f", base of {' and '.join(views)}" if views else "")
            case NumberOutput():
                return "a number read out of a tensor"
            case _:
                assert_never(output)

    def _shown_by(self, variable: Variable) -> list[str]:
        return [name for name, result in self._results if result.variable is variable]

    def written(self, output: WrittenOutput) -> str:
        """The part of an argument that is written; where no argument includes it, the part of their synthetic base."""
        root, region = output.root, output.region
        for member in root.members if root.base is None else (root.base,):
            if includes(member.before, region):
                return spell_part(self.argument(member), member.before, region)
        return spell_part(f"the base of {' and '.join(map(self.argument, root.members))}", root.region, region)

    def slot(self, slot: Slot) -> str:
        """The value of which a tangent is the gradient."""
        return self._value(slot.output)

    def _value(self, output: WrittenOutput | ResultOutput | BaseOutput | Alias) -> str:
        match output:
            case WrittenOutput():
                return f"what is written to {self.written(output)}"
            case BaseOutput(variable, region):
                shown = [n for n, r in self._results if r.region.storage is region.storage]
                return " and ".join(self._shown_by(variable)) or f"the base of {' and '.join(shown)}"
            case ResultOutput(variable) | Alias(variable):
                return " and ".join(self._shown_by(variable)) or self._bound_to(variable)
            case _:
                assert_never(output)

    def _bound_to(self, variable: Variable) -> str:
        names = [name for name, result in self._bound if result.variable is variable]
        return " and ".join(names) or "a view that results are made from"

    def target(self, level: Level, target: Target) -> str:
        """The tensor that a gradient flows to from ``level``: of the caller, or an output of an earlier level."""
        match target.source:
            case Input() as known:
                name = self.argument(known)
                name = f"the base of {name}" if target.of_base else name
                return f"{name} as written" if target.place in level.stops else name
            case Slot() as slot:
                return self.slot(slot)
            case variable:
                return " and ".join(self._shown_by(variable)) or self._bound_to(variable)

    def history(self, shown: Shown) -> str:
        """The tensor whose history a write becomes a part of."""
        name = self.argument(shown.source)
        return f"the base of {name}" if shown.of_base else name

    def residual(self, name: str) -> str:
        """What the residual called ``name`` is."""
        assert self._joint is not None  # residuals are its
        source = self._joint.residuals[name]
        match source:
            case RootInput(_, root):
                return self.memory(root)
            case SymbolInput():
                return "a size"
            case ResidualOutput():
                return f"a value of the forward   {self._lines.get(name, '')}".rstrip()
            case NumberOutput():
                return "a number read out of a tensor"
            case _:
                return self._value(source)

    def residual_word(self, name: str) -> str:
        """What a residual is called that the graph itself does not read."""
        assert self._joint is not None  # residuals are its
        source = self._joint.residuals[name]
        return identifier(self.root_name(source.root)) if isinstance(source, RootInput) else name


__all__ = ["Meanings"]
