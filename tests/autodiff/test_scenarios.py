"""What a caller does with the gradients of a call ends as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import purefx
from purefx._torch import pytree
from tests.autodiff.scenarios import SCENARIOS, Compile, Scenario


def itself(f: Any) -> Any:
    return f


def min_cut(f: Any) -> Any:
    return purefx.compile(f, partition="min_cut")


def by_interpreter(f: Any) -> Any:
    return purefx.compile(f, backend=lambda module, examples: torch.fx.Interpreter(module).run)


SYSTEMS = {
    "compile": purefx.compile,
    "functionalize": purefx.functionalize,
    "min_cut": min_cut,
    "a backend": by_interpreter,
}


def plain(seen: Any) -> list[Any]:
    return [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in pytree.tree_leaves(seen)]


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__.replace("_", " "))
def test_it_ends_as_in_eager(scenario: Scenario, name: str) -> None:
    system: Compile = SYSTEMS[name]
    expected, found = plain(scenario(itself)), plain(scenario(system))
    assert len(expected) == len(found)
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        same = (
            torch.allclose(a, b, rtol=1e-4, atol=1e-5)
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
            else a == b
        )
        assert same, f"observation {i}: eager {a}, compiled {b}"
