"""The modules of backward graphs, as compilers get them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import purefx


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_no_input_of_a_backward_has_the_name_of_another_value(partition: Any) -> None:
    modules: list[fx.GraphModule] = []

    def own_code(module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        modules.append(module)
        return module.forward

    def run(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = (x * w).sin() * w
        return x.sum()

    given = torch.arange(3.0, requires_grad=True), torch.arange(3.0, requires_grad=True)
    slopes = []
    for program in (run, purefx.compile(run, own_code, partition=partition)):
        slopes.append(torch.autograd.grad(program(*given), given))
    assert all(torch.equal(a, b) for a, b in zip(*slopes, strict=True))
    assert all(node.target == node.name for node in modules[1].graph.find_nodes(op="placeholder"))
