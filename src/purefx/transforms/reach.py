"""What the outputs of a program are functions of, as autograd sees it.

    x.sin(), w.exp()      the first is a function of x alone; they have nothing in common
    h = x.exp() * w       both are functions of x and w, and the first backward frees what the second needs
    h.sin(), h.cos()

Eager gives None, and not zeros, to what no gradient flows to, and a tangent to what is a function of something that has
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, get_gradient_edge

from purefx._torch import saved_by

Place = tuple[Node, int]

_FUNCTION: type = BackwardCFunction  # PyTorch's types do not say that it is a node


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Of each inexact output of a program, the positions of the inputs that it is a function of.

    ``groups`` has the outputs that are functions of anything, by their numbers among the inexact ones, together where
    their histories have a node in common that has saved something.
    """

    inputs: tuple[frozenset[int], ...]
    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def unknown(cls, outputs: int, inputs: Sequence[int]) -> Reach:
        """Each output may be a function of all inputs."""
        return cls((frozenset(inputs),) * outputs, (tuple(range(outputs)),) if outputs else ())

    def of(self, outputs: Sequence[int]) -> frozenset[int]:
        """The inputs that any of ``outputs`` is a function of."""
        return frozenset[int]().union(*(self.inputs[k] for k in outputs))


def infer_reach(outputs: Sequence[torch.Tensor], inputs: Mapping[int, torch.Tensor]) -> Reach:
    """What ``outputs`` are functions of, among ``inputs`` that require grad, by position."""
    edges = {i: get_gradient_edge(x) for i, x in inputs.items()}
    ends = {(edge.node, edge.output_nr): i for i, edge in edges.items()}
    found, behind = [], []
    for output in outputs:
        places = _places(output, ends)
        found.append(frozenset(ends[place] for place in places if place in ends))
        behind.append({node for node, _ in places - ends.keys() if _saves(node)})
    return Reach(tuple(found), _groups({k: behind[k] for k, reached in enumerate(found) if reached}))


def _places(output: torch.Tensor, ends: Mapping[Place, int]) -> set[Place]:
    """What gradients from ``output`` come by, up to ``ends``."""
    if not output.requires_grad:
        return set()
    edge = get_gradient_edge(output)
    found, waiting = {(edge.node, edge.output_nr)}, [(edge.node, edge.output_nr)]
    while waiting:
        place = waiting.pop()
        for node, number in () if place in ends else place[0].next_functions:
            if node is not None and (node, number) not in found:
                found.add((node, number))
                waiting.append((node, number))
    return found


def _saves(node: Node) -> bool:
    """Whether ``node`` has saved something, which is freed once it has run."""
    return isinstance(node, _FUNCTION) or bool(saved_by(node))


def _groups(behind: Mapping[int, set[Node]]) -> tuple[tuple[int, ...], ...]:
    """The keys of ``behind``, together where their sets meet."""
    groups: list[tuple[set[Node], tuple[int, ...]]] = []
    for k, nodes in behind.items():
        together = [group for group in groups if group[0] & nodes]
        groups = [group for group in groups if group not in together]
        groups.append((nodes.union(*(n for n, _ in together)), (*(i for _, group in together for i in group), k)))
    return tuple(sorted(tuple(sorted(group)) for _, group in groups))
