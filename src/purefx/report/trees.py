"""The tensors in what a caller holds, by the names that a user would write, and the leaves they have grown from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.autograd.graph import Node

from purefx._torch import pytree


def tensors_of(tree: object, name: str) -> dict[str, Tensor]:
    """The tensors of a pytree by the names a user would write; modules give parameters and buffers."""
    found: dict[str, Tensor] = {}
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        where = name + pytree.keystr(path)
        if isinstance(leaf, Tensor):
            found |= {where: leaf, **_inner_tensors(leaf, where)}
        elif isinstance(leaf, torch.nn.Module):
            held = {**dict(leaf.named_parameters(remove_duplicate=False)), **dict(leaf.named_buffers())}
            found |= {f"{where}.{part}": tensor for part, tensor in held.items()}
    return found


def is_wrapper(tensor: Tensor) -> bool:
    """Whether ``tensor`` only holds other tensors and has no elements of its own."""
    return hasattr(type(tensor), "__tensor_flatten__")


def _inner_tensors(tensor: Tensor, name: str) -> dict[str, Tensor]:
    if not is_wrapper(tensor):
        return {}
    parts = tensor.__tensor_flatten__()[0]  # type: ignore[attr-defined]  # what makes it a wrapper
    return {key: inner for part in parts for key, inner in tensors_of(getattr(tensor, part), f"{name}.{part}").items()}


def leaves_of(arguments: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The leaves that require grad among the arguments, and those from which an argument has grown."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in arguments.items():
        if tensor.requires_grad and tensor.is_leaf:
            found.setdefault(id(tensor), (name, tensor))
    for name, tensor in arguments.items():
        for n, leaf in enumerate(_grown_from(tensor)):
            found.setdefault(id(leaf), (f"leaf {n} of {name}", leaf))
    return dict(found.values())


def _grown_from(tensor: Tensor) -> list[Tensor]:
    """The leaves of a tensor's autograd history, in the order of a walk from it."""
    leaves: dict[int, Tensor] = {}
    todo: list[Node | None] = [tensor.grad_fn]
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            variable = getattr(node, "variable", None)
            if isinstance(variable, Tensor):
                leaves[id(variable)] = variable
            todo.extend(following for following, _ in node.next_functions)
    return list(leaves.values())
