"""A functional graph in terms of fewer operators, which compilers ask for: it is traced again, with decompositions.

    silu(x)      with the core decompositions of PyTorch      mul(x, sigmoid(x))

What is functional stays so.  A call of `OnCopies` would be taken apart into writes; it becomes a call of one operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import torch
from torch import fx

from purefx._torch import OpOverload, outer_fake_mode, trace_again
from purefx.functional.on_copies import OnCopies
from purefx.operators import aten

Decompositions = Mapping[OpOverload, Callable[..., Any]]
"""What operators are made of: for each a function that calls simpler ones."""


def decomposed(module: fx.GraphModule, examples: Sequence[Any], decompositions: Decompositions) -> fx.GraphModule:
    """The functional graph ``module`` with ``decompositions`` applied, and fake values in ``meta["val"]``."""
    fakes = [value for node in module.graph.nodes if isinstance(value := node.meta.get("val"), torch.Tensor)]
    return trace_again(_Decomposing(module).run, examples, outer_fake_mode(fakes), decompositions)


class _Decomposing(fx.Interpreter):
    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call ``target``; what runs on copies is one operator."""
        if isinstance(target, OnCopies):
            return _as_operator(target, args)
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Fetch a module, or a copy of a constant: compilers know constants by it."""
        found = super().get_attr(target, args, kwargs)
        return aten.lift_fresh_copy.default(found) if isinstance(found, torch.Tensor) else found


_known: dict[str, tuple[OnCopies, tuple[bool, ...]]] = {}
"""By name, what runs on copies, and which of its arguments are tensors.  Compiled code has the name in it."""


def _as_operator(op: OnCopies, given: Sequence[Any]) -> list[torch.Tensor]:
    tensors = tuple(isinstance(x, torch.Tensor) for x in given)
    name = f"{op.__name__} {uuid4().hex}"  # of no other process either: Inductor keeps code in files
    _known[name] = (op, tensors)
    sizes = [x for x in given if not isinstance(x, torch.Tensor)]
    made: list[torch.Tensor] = _on_copies([x for x in given if isinstance(x, torch.Tensor)], sizes, name)
    return made


def _run(tensors: Sequence[torch.Tensor], sizes: Sequence[int], name: str) -> list[torch.Tensor]:
    op, which = _known[name]
    left, numbers = iter(tensors), iter(sizes)
    return list(op(*[next(left) if is_tensor else next(numbers) for is_tensor in which]))


_on_copies = torch.library.custom_op(
    "purefx::on_copies", _run, mutates_args=(), schema="(Tensor[] tensors, SymInt[] sizes, str name) -> Tensor[]"
)
_on_copies.register_fake(_run)
