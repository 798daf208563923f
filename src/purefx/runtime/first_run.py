"""The first run of a graph with custom operators, which finds out whether they keep to their schemas.

A kernel that writes to an argument, or returns it, without saying so in its schema makes every functional graph
wrong.  Fake tensors cannot show it; so the first run looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from purefx._torch import OpOverload, pytree, storage_key
from purefx.errors import SourceLine, UndeclaredWrite
from purefx.functional.signature import Functional, module_of
from purefx.operators import facts, is_pure


def needs_first_run(functional: Functional) -> bool:
    """Whether ``functional`` calls operators whose schemas are not PyTorch's own."""
    return any(isinstance(n.target, OpOverload) and facts(n.target).custom for n in functional.graph.nodes)


def checked_once(functional: Functional, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, but the first call interprets the graph and raises UndeclaredWrite for an operator that lies."""
    return _CheckedOnce(functional, run)


class _CheckedOnce:
    """Invariant: ``_checked`` is true from the first call on in which every operator kept to its schema."""

    def __init__(self, functional: Functional, run: Callable[..., Any]) -> None:
        self._functional = functional
        self._run = run
        self._checked = False

    def __call__(self, *inputs: Any) -> Any:
        if self._checked:
            return self._run(*inputs)
        result = _Checking(self._functional).run(*inputs)
        self._checked = True
        return result


class _Checking(fx.Interpreter):
    """Runs a graph and compares the arguments of custom operators before and after."""

    def __init__(self, functional: Functional) -> None:
        super().__init__(module_of(functional))
        self._lines = {node.name: line for node, line in functional.lines.items()}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        if not (isinstance(n.target, OpOverload) and facts(n.target).custom and is_pure(n.target)):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        before = [x.clone() for x in given]
        result = n.target(*args, **kwargs)
        for tensor, old in zip(given, before, strict=True):
            if not torch.equal(_bytes(tensor), _bytes(old)):
                tensor.copy_(old)
                raise self._refusal(n, "changed one of its arguments", "mutates_args")
        memory = {storage_key(x) for x in given}
        if any(isinstance(x, torch.Tensor) and storage_key(x) in memory for x in pytree.tree_leaves(result)):
            raise self._refusal(n, "returned memory of one of its arguments", "a copy of the result")
        return result

    def _refusal(self, node: fx.Node, what: str, fix: str) -> UndeclaredWrite:
        remedy = f"declare it ({fix}), or let the operator return new tensors"
        line = self._lines.get(node.name, "")
        return UndeclaredWrite(
            f"{node.target} {what}, but its schema does not say so", where=SourceLine.parsed(line), remedy=remedy
        )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
