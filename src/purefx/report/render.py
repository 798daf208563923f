"""The graphs of a program as Python: its own, and that of its backward with the name of the function and ``_backward``.

def step(
x: float32[2],  # strides (1,)   memory of x, saved for the backward
):
...
def step_backward(
x: float32[2],  # strides (1,)   saved: memory of x
tangent_0: float32[],  # strides ()   tangent of result
):
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import assert_never

from purefx.autodiff.joint import Joint
from purefx.autodiff.levels import Level
from purefx.functional.signature import (
    BackwardInput,
    BackwardOutput,
    ForwardInput,
    FunctionalBackward,
    GradientOutput,
    ResidualInput,
    RootInput,
    SymbolInput,
    TangentInput,
    WrittenOutput,
)
from purefx.pipeline import Stages
from purefx.report.gradients import shown_backwards
from purefx.report.listing import Head, Listing
from purefx.report.meanings import Meanings
from purefx.report.names import function_name, identifier


def render(stages: Stages) -> str:
    """The functional graphs of ``stages`` as Python."""
    meanings, functional = Meanings(stages), stages.functional
    name = function_name(stages.capture.function)
    inputs = [_forward_input(meanings, given) for given in functional.inputs]
    listing = Listing(name, functional, inputs, [meanings.output(output) for output in functional.outputs])
    lines = list(listing.lines())
    if stages.joint is not None:
        words = {node.name: word for node, word in listing.words.items()}
        lines += _backwards(stages.joint, name, meanings, words)
    return "\n".join(lines)


def _forward_input(meanings: Meanings, given: ForwardInput) -> Head:
    match given:
        case SymbolInput(name, _):
            return Head(name, meanings.with_saved("a size", given))
        case RootInput(_, root):
            return Head(identifier(meanings.root_name(root)), meanings.with_saved(meanings.memory(root), given))
        case _:
            assert_never(given)


def _backwards(joint: Joint, name: str, meanings: Meanings, words: Mapping[str, str]) -> Iterator[str]:
    """The backward of each level: of all tangents together, or where that raises of each by itself."""
    for i, level in enumerate(joint.levels):
        whole = f"{name}_backward_{i}" if len(joint.levels) > 1 else f"{name}_backward"
        shown = shown_backwards(level)
        raised = [error for pattern, error in level.raised.items() if all(pattern)]
        if raised:
            yield from ("", f"# {whole} of all tangents together raises: {raised[0]}")
        for pattern, backward in shown.items():
            yield from ("", "")
            own = f"{whole}_of_tangent_{pattern.index(True)}" if raised else whole
            yield from _backward(own, level, backward, meanings, words)


def _backward(
    name: str, level: Level, graph: FunctionalBackward, meanings: Meanings, words: Mapping[str, str]
) -> Iterator[str]:
    inputs = [_backward_input(meanings, level, given, words) for given in graph.inputs]
    return Listing(name, graph, inputs, [_backward_output(meanings, level, o) for o in graph.outputs]).lines()


def _backward_input(meanings: Meanings, level: Level, given: BackwardInput, words: Mapping[str, str]) -> Head:
    match given:
        case ResidualInput(name, _):
            return Head(words.get(name) or meanings.residual_word(name), f"saved: {meanings.residual(name)}")
        case TangentInput(name, slot, _):
            return Head(name, f"tangent of {meanings.slot(level.slots[slot])}")
        case RootInput(_, root):
            return Head(identifier(meanings.root_name(root)), meanings.memory(root))
        case _:
            assert_never(given)


def _backward_output(meanings: Meanings, level: Level, output: BackwardOutput) -> str:
    match output:
        case GradientOutput(targets, _):
            return f"gradient of {' and '.join(meanings.target(level, level.targets[i]) for i in targets)}"
        case WrittenOutput(root, region):
            return f"written back: {meanings.part(root, region)}"
        case _:
            assert_never(output)


__all__ = ["render"]
