"""purefx through torch.compile, as a system of the oracle, and a compiler that remembers what it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

import purefx
from purefx.dynamo import DynamoBackend
from tests.support.oracle import System

WITH_INDUCTOR = purefx.backend("inductor")


def through(backend: DynamoBackend, *, fullgraph: bool = True, dynamic: bool | None = None) -> System:
    """The system that is torch.compile with ``backend``."""

    def system(f: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(f, backend=backend, fullgraph=fullgraph, dynamic=dynamic)
        return compiled

    return system


class Recording:
    """A compiler that runs graphs as they are, and remembers them."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []
        self.examples: list[list[Any]] = []

    def __call__(self, module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        """Compile ``module``."""
        self.graphs.append(module)
        self.examples.append(examples)
        return module.forward
