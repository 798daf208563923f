"""What ``trace`` returns: the functional graph of one call, its signature, and the callable around it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from torch import fx

from purefx._torch import pytree
from purefx.capture.arguments import alive
from purefx.capture.captured import name_of
from purefx.pipeline import Stages
from purefx.report.conditions import Conditions
from purefx.report.contract import Signature, infer_signature
from purefx.report.render import render
from purefx.runtime.wrapper import Wrapper

_OTHER = "the program was traced for other arguments (trace it again, or use purefx.compile)"


class Program:
    """A functional program.  Printing it shows the graph; calling it runs the program on arguments that fit.

    ``graph_module`` is the graph as a module, ``wrapper`` the generated functions around it.
    """

    def __init__(self, stages: Stages, module: fx.GraphModule, wrapper: Wrapper) -> None:
        self.stages = stages
        self.graph_module = module
        self.wrapper = wrapper

    @property
    def graph(self) -> fx.Graph:
        """The functional graph."""
        return self.graph_module.graph

    @property
    def backward_graphs(self) -> tuple[fx.Graph | None, ...]:
        """The functional graph of the backward, one for each node that a call is in the graph of autograd.

        One node is the rule; results that are functions of other results have one of their own.  None stands for a
        backward that raises when all tangents of the node are given.
        """
        levels = () if self.stages.joint is None else self.stages.joint.levels
        complete = [level.backwards.get((True,) * len(level.slots)) for level in levels]
        return tuple(None if backward is None else backward.graph for backward in complete)

    @cached_property
    def signature(self) -> Signature:
        """What becomes of each argument, and how each result is made."""
        return infer_signature(self.stages)

    def print(self) -> None:
        """Print the graph as Python, and the signature."""
        print(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; raises ValueError for arguments that it was not made for."""
        order = self.stages.capture.flat.keywords
        if kwargs.keys() == set(order):
            kwargs = {name: kwargs[name] for name in order}
        leaves, structure = pytree.tree_flatten((args, kwargs))
        if structure != self.stages.capture.flat.structure:
            raise ValueError(f"{_OTHER}: the structure of the arguments is another")
        seen = alive(leaves)
        if not self.wrapper.matches(seen):
            failing = Conditions.of(self.stages.capture, self.wrapper).failing(seen)
            raise ValueError(f"{_OTHER}: it must hold that {next(failing)}")
        return self.wrapper.run(leaves)

    def __repr__(self) -> str:
        capture = self.stages.capture
        extent = f"{len(capture.flat.leaves)} arguments, {len(capture.results)} results"
        return f"<Program of {name_of(capture.function)}: {extent}>"

    def __str__(self) -> str:
        """The graph as Python, then the signature as comments: the whole is Python that can be parsed."""
        facts = [str(fact) for fact in (*self.signature.arguments, *self.signature.results)]
        return "\n".join([render(self.stages), "", *(f"# {line}" for fact in facts for line in fact.splitlines())])
