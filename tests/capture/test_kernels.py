"""Fake kernels run one time for all arguments that look alike, and what is made alike is no other than they return."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx._torch import FakeTensor, FakeTensorMode, storage_key
from purefx.capture.kernels import FakeKernels
from purefx.capture.recording import Recording, geometry_of, map_tree
from purefx.capture.tensors import Tensors
from purefx.operators import aten


class Counting(FakeTensorMode):
    """Fake tensors that write down which of their kernels run."""

    def __init__(self) -> None:
        super().__init__()
        self.run: list[Any] = []

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a kernel."""
        self.run.append(func)
        return super().dispatch(func, types, args, kwargs or {})


def run_twice(op: Any, make: Callable[[], tuple[Any, ...]]) -> tuple[int, tuple[Any, ...], Any, Any]:
    """How many fake kernels two runs of ``op`` take, the arguments of the second, and what both return."""
    kernels, tensors = FakeKernels(), Tensors(Recording())
    with Counting() as mode:
        calls = [make() for _ in range(2)]
        mode.run.clear()
        results = [kernels.run(op, (args, {}), (map_tree(partial(as_operand, tensors), args), {})) for args in calls]
    return mode.run.count(op), calls[1], *results


def as_operand(tensors: Tensors, x: Any) -> Any:
    """What a recording has in the place of ``x``."""
    return tensors.operand(x) if isinstance(x, Tensor) else x


def look(x: Any) -> Any:
    """What can be seen of a fake, or of what else an operator returns."""
    if not isinstance(x, Tensor):
        return x
    assert type(x) is FakeTensor
    return geometry_of(x), x.dtype, x.device, x.untyped_storage().nbytes(), x.requires_grad, x.is_inference()


LOOKS_DECIDE: dict[Any, Callable[[], tuple[Any, ...]]] = {
    aten.mm.default: lambda: (torch.ones(2, 3), torch.ones(3, 4)),
    aten.add.Tensor: lambda: (torch.ones(2, 3).t(), 1.5),
    aten.cat.default: lambda: ([torch.ones(2, 3), torch.ones(1, 3)], 0),
    aten.native_layer_norm.default: lambda: (torch.ones(2, 3), [3], None, None, 1e-5),
    aten.select.int: lambda: (torch.ones(2, 3), 1, 1),
    aten.split.Tensor: lambda: (torch.ones(5, 3), 2),
    aten.view.dtype: lambda: (torch.ones(2, 4), torch.int16),
    aten._unsafe_view.default: lambda: (torch.ones(2, 4), [8]),
    aten.mul_.Tensor: lambda: (torch.ones(2, 4), 2),
}


@pytest.mark.parametrize("op", LOOKS_DECIDE, ids=str)
def test_the_second_result_is_made_like_the_first(op: Any) -> None:
    runs, args, first, second = run_twice(op, LOOKS_DECIDE[op])
    assert runs == 1
    assert map_tree(look, second) == map_tree(look, first)
    given = args[0]
    if isinstance(given, Tensor):
        results = second if isinstance(second, tuple | list) else (second,)
        assert second is given or all(x._version == 0 for x in results)
        shared = [storage_key(x) == storage_key(given) for x in results]
        assert all(shared) == any(shared) == (op.is_view or op in (aten._unsafe_view.default, aten.mul_.Tensor))
    assert (second is given) == (op is aten.mul_.Tensor)


@pytest.mark.parametrize("op", [aten.mul.Tensor, aten.select.int, aten._unsafe_view.default], ids=str)
def test_so_it_is_in_inference_mode(op: Any) -> None:
    more = {aten.mul.Tensor: (2,), aten.select.int: (1, 1), aten._unsafe_view.default: ([6],)}[op]
    with torch.inference_mode():
        runs, _, first, second = run_twice(op, lambda: (torch.ones(2, 3), *more))
    assert runs == 1
    assert look(second) == look(first)


LOOKS_DO_NOT_DECIDE: dict[Any, Callable[[], tuple[Any, ...]]] = {
    aten.zeros.default: lambda: ([2],),
    aten.t_.default: lambda: (torch.ones(2, 3),),
    aten.detach.default: lambda: (torch.ones(2, 3),),
    aten._conj.default: lambda: (torch.ones(2, 3, dtype=torch.complex64),),
}


@pytest.mark.parametrize("op", LOOKS_DO_NOT_DECIDE, ids=str)
def test_what_looks_do_not_decide_is_run_each_time(op: Any) -> None:
    assert run_twice(op, LOOKS_DO_NOT_DECIDE[op])[0] == 2


def test_arguments_that_share_memory_do_not_look_like_others() -> None:
    calls: list[Callable[[Tensor], tuple[Tensor, Tensor]]] = [
        lambda x: (x, x),
        lambda x: (x, x.view(4)),
        lambda x: (x, x.clone()),
    ]
    for pairs in (calls, calls[::-1]):
        remaining = iter(pairs)
        runs, *_ = run_twice(aten.add.Tensor, lambda rest=remaining: next(rest)(torch.ones(4)))
        assert runs == 2


def test_what_a_kernel_raises_it_raises_again() -> None:
    def program(x: Tensor) -> int:
        raised = 0
        for _ in range(3):
            try:
                x.view(5)
            except RuntimeError:
                raised += 1
        return raised

    assert purefx.functionalize(program)(torch.ones(4)) == 3


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_kernel_that_resizes_what_it_writes_is_found_out_each_time() -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broadcast"):
            purefx.functionalize(Tensor.copysign_)(torch.ones(2), torch.ones(3, 2))


def test_static_rows_of_tensors_with_symbolic_sizes_are_given_to_kernels_each_time() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y[0, :2] + 1, y[0, :2] + 1

    x = torch.ones(4, 3)
    for result in purefx.trace(program, x, dynamic=True)(x):
        assert torch.equal(result, x[0, :2] * 2 + 1)


def test_numbers_are_told_from_numbers_of_another_type() -> None:
    result = purefx.functionalize(lambda x: (x + 1, x + 1.0, x + True))(torch.ones(2, dtype=torch.int64))
    assert [x.dtype for x in result] == [torch.int64, torch.float32, torch.int64]


def test_the_default_dtype_is_a_part_of_the_look() -> None:
    before = torch.get_default_dtype()
    kernels, tensors = FakeKernels(), Tensors(Recording())
    try:
        with Counting():
            x = torch.ones(2, dtype=torch.int64)
            for dtype in (torch.float32, torch.float64):
                torch.set_default_dtype(dtype)
                made = kernels.run(aten.mul.Tensor, ((x, 1.5), {}), ((tensors.operand(x), 1.5), {}))
                assert made.dtype == dtype
    finally:
        torch.set_default_dtype(before)
