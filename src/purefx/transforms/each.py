"""An operator under vmap for one example after the other: it has no rule there, or gives each example other sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from purefx._torch import pytree
from purefx.transforms.levels import batch_levels


def each(op: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``op``, one example after the other."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    returned: list[pytree.TreeSpec] = []

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        replaced = dict(zip(places, tensors, strict=True))
        given = pytree.tree_unflatten([replaced.get(i, x) for i, x in enumerate(leaves)], structure)
        around = each if any(map(batch_levels, tensors)) else applied  # another vmap
        results, how = pytree.tree_flatten(around(op, *given))
        returned[:] = [how]
        return tuple(results)

    found = _Each.apply(run, *(leaves[i] for i in places))  # type: ignore[no-untyped-call]  # PyTorch gives it no types
    return pytree.tree_unflatten(found, returned[0])


def applied(op: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``op``, of what has no batch."""
    return op(*args, **kwargs)


class _Each(torch.autograd.Function):
    """What has no rule, one example after the other; its gradients are those of what runs for each."""

    @staticmethod
    def forward(op: Callable[..., Any], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """It is called of batches alone."""
        raise AssertionError("nothing has a batch")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Nothing is kept."""

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], op: Callable[..., Any], *inputs: torch.Tensor) -> Any:
        """The outputs for each example."""
        pairs = list(zip(inputs, in_dims[1:], strict=True))
        rows = [op(*(x if dim is None else x.select(dim, i) for x, dim in pairs)) for i in range(info.batch_size)]
        outputs = tuple(torch.stack(column) for column in zip(*rows, strict=True))
        return outputs, (0,) * len(outputs)
