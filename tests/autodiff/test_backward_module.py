"""The modules of backward graphs, as compilers get them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import purefx


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_no_input_of_a_backward_has_the_name_of_another_value(partition: Any) -> None:
    modules: list[fx.GraphModule] = []

    def own_code(module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        modules.append(module)
        return module.forward

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x).tanh()
        return x.sum()

    layers = [nn.Linear(3, 3) for _ in range(3)]
    x = torch.ones(2, 3, requires_grad=True)
    slopes = []
    for program in (run, purefx.compile(run, own_code, partition=partition)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = program(x)
        slopes.append(torch.autograd.grad(loss, x)[0])
    assert torch.equal(*slopes)
    assert all(node.target == node.name for node in modules[1].graph.find_nodes(op="placeholder"))
