"""Two processes train one model on halves of each batch: gradients are averaged over them, and they stay equal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import purefx
from purefx.report.observe import attempt
from tests.training.models import convolutional

PROCESSES, SEED, TIMEOUT = 2, 5, timedelta(seconds=60)
Wrap = Callable[[nn.Module], Callable[[Tensor], Tensor]]


def with_forward_compiled(model: nn.Module) -> nn.Module:
    """The module, whose forward is purefx's."""
    model.forward = purefx.compile(model.forward)
    return model


WAYS: dict[str, Wrap] = {
    "eager": DistributedDataParallel,
    "DDP of a compiled forward": lambda model: DistributedDataParallel(with_forward_compiled(model)),
    "DDP of torch.compile": lambda model: DistributedDataParallel(torch.compile(model, backend="purefx")),
    "torch.compile of DDP": lambda model: torch.compile(DistributedDataParallel(model), backend="purefx"),
}


def run_process(rank: int, folder: str) -> None:
    """Train by each way as one of the processes, and save what comes of it."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES, timeout=TIMEOUT
    )
    for name, wrap in WAYS.items():
        torch.save(attempt(partial(trained, wrap, rank)), Path(folder, f"{name} {rank}"))
    dist.destroy_process_group()


def trained(wrap: Wrap, rank: int) -> dict[str, Tensor]:
    """What five steps make of a model; each process has its own half of the batches, and its own dropout."""
    torch.manual_seed(SEED)
    task = convolutional()
    forward = wrap(task.model)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(SEED + rank)
    for inputs, targets in task.batches:
        half = slice(rank, None, PROCESSES)
        optimizer.zero_grad()
        task.loss(forward(inputs[half]), targets[half]).backward()
        optimizer.step()
    return task.model.state_dict()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Parameters and buffers that each way has given each process, or the error it raised there."""
    folder = tmp_path_factory.mktemp("ddp")
    spawn(run_process, (str(folder),), nprocs=PROCESSES)
    return {
        name: [torch.load(folder / f"{name} {rank}", weights_only=False) for rank in range(PROCESSES)] for name in WAYS
    }


@pytest.mark.parametrize("way", [way for way in WAYS if way != "eager"])
def test_two_processes_train_as_in_eager(way: str, results: dict[str, list[Any]]) -> None:
    for actual, expected in zip(results[way], results["eager"], strict=True):
        assert isinstance(actual, dict), actual
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("way", WAYS)
def test_both_processes_end_with_the_same_parameters(way: str, results: dict[str, list[Any]]) -> None:
    names = [name for name, _ in convolutional().model.named_parameters()]
    first, second = ([state[name] for name in names] for state in results[way])
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_processes_that_do_not_talk_end_with_different_parameters() -> None:
    first, second = (trained(lambda model: model, rank) for rank in range(PROCESSES))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(first, second)
