"""What ``trace`` returns: the functional graph of one call, its signature, and the callable around it."""

from __future__ import annotations

from typing import Any

from torch import fx

from purefx._torch import pytree
from purefx.pipeline import Stages
from purefx.runtime.wrapper import Wrapper


class Program:
    """A functional program.  Printing it shows the graph; calling it runs the program on arguments that fit."""

    def __init__(self, stages: Stages, module: fx.GraphModule, wrapper: Wrapper) -> None:
        self.stages = stages
        self.graph_module = module
        self.wrapper = wrapper

    @property
    def graph(self) -> fx.Graph:
        """The functional graph."""
        return self.graph_module.graph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; raises ValueError for arguments that it was not made for."""
        leaves = pytree.tree_leaves((args, kwargs))
        if not self.wrapper.matches(leaves):
            raise ValueError("the program was traced for other arguments: trace it again, or use purefx.compile")
        return self.wrapper.run(leaves)

    def __str__(self) -> str:
        return self.graph_module.code.strip()
