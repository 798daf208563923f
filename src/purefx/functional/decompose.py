"""A functional graph in terms of fewer operators, which compilers ask for: it is traced again, with decompositions.

    silu(x)      with the core decompositions of PyTorch      mul(x, sigmoid(x))

What is functional stays so.  A call of `OnCopies` would be taken apart into writes; it becomes a call of one operator.
That operator has the tag of random ones where it draws numbers: compilers keep the order of these by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import torch
from torch import fx

from purefx._torch import OpOverload, outer_fake_mode, trace_again
from purefx.capture.recording import map_tree
from purefx.functional.on_copies import OnCopies, Slot
from purefx.operators import aten, facts

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


def as_one_call(op: OpOverload) -> Callable[..., torch.Tensor]:
    """What stands in a table for an operator of one result that a compiler must not look into."""

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        given: list[torch.Tensor] = []

        def slot(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            given.append(x)
            return Slot(len(given) - 1, None, x.dtype)

        own_args, own_kwargs = map_tree(slot, (args, kwargs))
        return _as_operator(OnCopies(op, own_args, own_kwargs, ()), given)[0]

    return call


def _as_operator(op: OnCopies, given: Sequence[Any]) -> list[torch.Tensor]:
    tensors = tuple(isinstance(x, torch.Tensor) for x in given)
    name = f"{op.__name__} {uuid4().hex}"  # of no other process either: Inductor keeps code in files
    _known[name] = (op, tensors)
    sizes = [x for x in given if not isinstance(x, torch.Tensor)]
    is_random = isinstance(op.op, OpOverload) and facts(op.op).random
    call = _random_on_copies if is_random else _on_copies
    made: list[torch.Tensor] = call([x for x in given if isinstance(x, torch.Tensor)], sizes, name)
    return made


def _run(tensors: Sequence[torch.Tensor], sizes: Sequence[int], name: str) -> list[torch.Tensor]:
    op, which = _known[name]
    left, numbers = iter(tensors), iter(sizes)
    return list(op(*[next(left) if is_tensor else next(numbers) for is_tensor in which]))


def _operator(name: str, tags: tuple[torch.Tag, ...] = ()) -> Callable[..., Any]:
    schema = "(Tensor[] tensors, SymInt[] sizes, str name) -> Tensor[]"
    made = torch.library.custom_op(f"purefx::{name}", _run, mutates_args=(), schema=schema, tags=tags)
    made.register_fake(_run)
    return made


_on_copies = _operator("on_copies")
_random_on_copies = _operator("random_on_copies", (torch.Tag.nondeterministic_seeded,))
