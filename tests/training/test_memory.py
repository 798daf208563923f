"""What a training step saves, and the most that it allocates at once, is at most what eager needs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
from torch import Tensor

import purefx
from benchmarks.memory import peak_bytes, saved_bytes
from tests.training.models import TASKS, Task
from tests.training.test_training import Compile, WithLoss, task_named

SMALL = 1.02
"""Sums of gradients are made in another order: one small tensor more may be alive at the peak."""


def measured(compile: Compile, task: Task) -> tuple[int, int]:
    """Bytes saved by a call, and at the peak of a step, of a model that has been trained for one step."""
    model = WithLoss(copy.deepcopy(task.model), task.loss)
    loss_of: Callable[..., Tensor] = compile(model)
    batch = task.batches[0]

    def step() -> None:
        loss_of(*batch).backward()
        model.zero_grad()

    step()
    return saved_bytes(partial(loss_of, *batch), [*batch, *model.parameters()]), peak_bytes(step)


@pytest.mark.parametrize("name", TASKS)
def test_a_step_needs_at_most_the_memory_that_it_needs_in_eager(name: str) -> None:
    saved, peak = measured(purefx.compile, task_named(name))
    eager_saved, eager_peak = measured(lambda model: model, task_named(name))
    assert saved <= eager_saved, f"{saved / eager_saved:.2f} times as much saved"
    assert peak <= eager_peak * SMALL, f"a peak {peak / eager_peak:.2f} times as high"


def test_what_is_kept_by_a_step_is_seen() -> None:
    task, kept = task_named("recurrent"), []
    eager_saved, eager_peak = measured(lambda model: model, task)

    def wasteful(model: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(inputs: Tensor, targets: Tensor) -> Tensor:
            scaled = inputs.repeat(8, 1, 1).requires_grad_() * 2
            kept.append(scaled)
            return model(inputs, targets) + scaled.square().sum() * 0

        return run

    saved, peak = measured(wasteful, task)
    assert saved > eager_saved
    assert peak > eager_peak
