"""What modules of PyTorch keep of their parameters beside them."""

from __future__ import annotations

from typing import Any

from torch import nn

_OF_RNNS = frozenset({"_flat_weights", "_flat_weight_refs"})
"""Of LSTMs, GRUs and RNNs: the weights in the order of the kernel, and weak references by which they know those."""


def is_cache(module: object, key: Any) -> bool:
    """Whether the attribute ``key`` only tells what the parameters of ``module`` were when it ran last.

    The module makes it anew when one of them is another tensor, before anything reads it; so a program that leaves it
    stale is not seen by the next.
    """
    return key in _OF_RNNS and isinstance(module, nn.RNNBase)


def renew_cache(module: object) -> None:
    """Have ``module`` keep what its tables hold now, in a new list: it writes to the old one."""
    if isinstance(module, nn.RNNBase):
        attributes = vars(module)
        present = {**attributes, **module._parameters}
        attributes["_flat_weights"] = [present.get(name) for name in attributes["_flat_weights_names"]]


__all__ = ["is_cache", "renew_cache"]
