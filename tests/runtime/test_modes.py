"""The modes of PyTorch are part of what a compiled function is specialised on."""

from __future__ import annotations

import torch
from torch import Tensor

import purefx
from tests.functional.kinds import ramp
from tests.runtime.counted import Counted


def test_the_modes_of_autograd_are_part_of_the_specialisation() -> None:
    counted = Counted(lambda x: (x.detach() + 1, torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    modes = (torch.enable_grad, torch.no_grad, torch.inference_mode)
    for _ in range(2):
        seen = []
        for mode in modes:
            with mode():
                seen.append(counted(ramp(4))[1:])
        assert seen == [(True, False), (False, False), (False, True)]
    assert counted.captures == 3


def test_an_inference_tensor_is_captured_apart() -> None:
    with torch.inference_mode():
        inference = ramp(4)
    counted = Counted(lambda x: (x * 2, x.is_inference()))
    assert [counted(t)[1] for t in (ramp(4), inference, ramp(4))] == [False, True, False]


def test_autocast_is_part_of_the_specialisation() -> None:
    counted = Counted(lambda x: x @ x)
    assert counted(ramp(2, 2)).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert counted(ramp(2, 2)).dtype == torch.bfloat16
    assert counted(ramp(2, 2)).dtype == torch.float32
    assert counted.captures == 2


def test_the_dtype_of_autocast_is_part_of_the_specialisation() -> None:
    counted = Counted(lambda x: x @ x)
    fine = torch.full((2, 2), 1.0009765625)  # which float16 has and bfloat16 has not
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            assert torch.equal(counted(fine), fine @ fine)


def test_the_graph_is_left_alone_by_the_autocast_of_its_caller() -> None:
    def program(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return x @ x

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert purefx.compile(program)(ramp(2, 2)).dtype == torch.float32


def test_the_default_dtype_is_part_of_the_specialisation() -> None:
    counted = Counted(lambda x: x + torch.zeros(1))
    assert counted(ramp(4)).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert counted(ramp(4)).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert counted.captures == 2


def test_requires_grad_is_part_of_the_specialisation() -> None:
    counted = Counted(lambda x: x.requires_grad)
    plain, leaf = ramp(4), ramp(4).requires_grad_()
    assert [counted(plain), counted(leaf), counted(plain)] == [False, True, False]
    assert counted.captures == 2
