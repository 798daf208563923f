"""Models trained for five steps by a system end with the losses, parameters and buffers that eager gives them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purefx
from examples.train import OPTIMIZERS
from tests.support.systems import eager
from tests.training.models import TASKS, Recurrent, Task

Compile = Callable[[Any], Any]
SEED = 3


@dataclass
class Trained:
    """What training leaves behind."""

    losses: list[float] = field(default_factory=list)
    state: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)


def torch_compile(model: nn.Module) -> Any:
    """PyTorch's own front door, with purefx below it."""
    torch._dynamo.reset()
    return torch.compile(model, backend="purefx")


@cache
def task_named(name: str) -> Task:
    torch.manual_seed(0)
    return TASKS[name]()


def assert_trained_alike(actual: Trained, expected: Trained) -> None:
    torch.testing.assert_close(vars(actual), vars(expected))


# ---- where the loss is computed


class WithLoss(nn.Module):
    """A model and the loss of its logits as one module."""

    def __init__(self, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch."""
        return self.loss(self.model(inputs), targets)


def in_module(compile: Compile, model: nn.Module, task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    return compile(WithLoss(model, task.loss))


def in_function(compile: Compile, model: nn.Module, task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    return compile(lambda inputs, targets: task.loss(model(inputs), targets))


def outside(compile: Compile, model: nn.Module, task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    compiled = compile(model)
    return lambda inputs, targets: task.loss(compiled(inputs), targets)


PLACES = {"module": in_module, "function": in_function, "outside": outside}


# ---- training


def train(compile: Compile, task: Task, optimizer_name: str, *, place: str = "module", seed: int = SEED) -> Trained:
    """Five steps on a copy of the task's model; the optimizer runs in eager."""
    model = copy.deepcopy(task.model)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    loss_of = PLACES[place](compile, model, task)
    torch.manual_seed(seed)
    trained = Trained()
    for inputs, targets in task.batches:
        optimizer.zero_grad()
        loss = loss_of(inputs, targets)
        loss.backward()
        optimizer.step()
        trained.losses.append(loss.item())
    trained.state = model.state_dict()
    trained.gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return trained


@cache
def trained_by_eager(task_name: str, optimizer: str) -> Trained:
    return train(eager, task_named(task_name), optimizer)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("task", TASKS)
def test_a_compiled_model_trains_as_in_eager(task: str, optimizer: str, place: str) -> None:
    trained = train(purefx.compile, task_named(task), optimizer, place=place)
    assert_trained_alike(trained, trained_by_eager(task, optimizer))


@pytest.mark.parametrize("task", TASKS)
def test_a_model_whose_backward_recomputes_trains_as_in_eager(task: str) -> None:
    trained = train(partial(purefx.compile, partition="min_cut"), task_named(task), "SGD")
    assert_trained_alike(trained, trained_by_eager(task, "SGD"))


@pytest.mark.parametrize("task", TASKS)
def test_torch_compile_with_purefx_trains_as_in_eager(task: str) -> None:
    trained = train(torch_compile, task_named(task), "AdamW")
    assert_trained_alike(trained, trained_by_eager(task, "AdamW"))


@pytest.mark.parametrize("task", TASKS)
def test_another_dropout_trains_otherwise(task: str) -> None:
    with pytest.raises(AssertionError):
        assert_trained_alike(train(eager, task_named(task), "SGD", seed=SEED + 1), trained_by_eager(task, "SGD"))


# ---- gradients beyond a step


def accumulated(compile: Compile) -> Trained:
    """Gradients of two batches added up, through one model that is called twice before the backward."""
    task = task_named("recurrent")
    model = copy.deepcopy(task.model)
    loss_of = in_module(compile, model, task)
    torch.manual_seed(SEED)
    losses = [loss_of(*batch) for batch in task.batches[:2]]
    for loss in losses:
        loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return Trained([loss.item() for loss in losses], gradients=gradients)


def test_two_calls_before_their_backwards_add_up_their_gradients() -> None:
    assert_trained_alike(accumulated(purefx.compile), accumulated(eager))


def trained_through_a_buffer(compile: Compile) -> Trained:
    """The caller owns the buffer; the program fills it, and the loss is taken of what the caller holds."""
    torch.manual_seed(0)
    model = Recurrent(8)
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    run_into = compile(model.run_into)
    trained = Trained()
    for inputs in torch.randn(5, 6, 2, 8):
        optimizer.zero_grad()
        outputs = torch.zeros_like(inputs)
        run_into(outputs, inputs)
        loss = outputs.square().mean()
        loss.backward()
        optimizer.step()
        trained.losses.append(loss.item())
    trained.state = model.state_dict()
    return trained


def test_a_loss_of_the_callers_buffer_reaches_the_parameters() -> None:
    assert_trained_alike(trained_through_a_buffer(purefx.compile), trained_through_a_buffer(eager))


def frozen(compile: Compile, *, freeze_after: int) -> Trained:
    """Some parameters are frozen after a few steps."""
    task = task_named("convolutional")
    model = copy.deepcopy(task.model)
    loss_of = in_module(compile, model, task)
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    torch.manual_seed(SEED)
    for step, batch in enumerate(task.batches):
        if step == freeze_after:
            model.get_submodule("0").requires_grad_(requires_grad=False)
        optimizer.zero_grad()
        loss_of(*batch).backward()
        optimizer.step()
    return Trained(state=model.state_dict(), gradients={n: p.grad for n, p in model.named_parameters()})


def test_parameters_frozen_between_steps_stay_and_the_others_learn() -> None:
    assert_trained_alike(frozen(purefx.compile, freeze_after=2), frozen(eager, freeze_after=2))
