"""What is asked of a tensor at each operator: whether it shows what it showed, and who counts its writes."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread

import pytest
import torch
from torch import Tensor

import purefx
from purefx._torch import FakeTensorMode, GuardOnDataDependentSymNode, ShapeEnv, counting_with
from purefx.capture.recording import Recording, geometry_of, has_geometry
from purefx.capture.tensors import Tensors

CHANGES = {
    "nothing": lambda x: None,
    "sizes": lambda x: x.resize_(2, 2),
    "strides": lambda x: x.t_(),
    "offset": lambda x: x.as_strided_((2, 2), (3, 1), 1),
    "memory": lambda x: x.set_(torch.zeros(2, 3)),
    "data": lambda x: setattr(x, "data", torch.zeros(2, 3)),
    "dtype": lambda x: setattr(x, "data", x.view(torch.int32)),
    "back": lambda x: x.t_().t_(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_operand_has_the_last_region_itself_as_long_as_the_tensor_shows_it(what: str) -> None:
    tensors, x = Tensors(Recording()), torch.zeros(2, 3)
    variable = tensors.operand(x).variable
    CHANGES[what](x)
    operand = tensors.operand(x)
    assert operand.variable is variable
    assert operand.region == tensors.region(x)
    assert (operand.region is variable.last) is (what in ("nothing", "back"))


def test_a_symbolic_tensor_has_no_geometry_of_numbers_and_is_not_guarded_on() -> None:
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env) as mode:
        x = mode.from_tensor(torch.zeros(2, 3))
        rows = torch.nonzero(x)  # as many as nobody knows
    assert has_geometry(x, geometry_of(x))
    assert has_geometry(rows, geometry_of(rows))
    assert not has_geometry(rows, geometry_of(x))
    assert not has_geometry(x, geometry_of(rows))
    assert not env.guards


def views_and_others(x: Tensor) -> dict[str, Tensor]:
    """Tensors at the version of ``x``."""
    with torch.inference_mode():
        inference = torch.zeros(2)
    return {
        "itself": x,
        "view": x[0],
        "detached": x.detach(),
        "view of the detached": x.detach()[0],
        "data": x.data,
        "other": torch.zeros(2),
        "inference": inference,
    }


def test_views_and_what_is_detached_count_with_a_tensor_and_no_version_is_moved() -> None:
    x = torch.zeros(2, 2)
    others = views_and_others(x)
    found = {id(y) for y in counting_with(x, others.values())}
    assert [name for name, y in others.items() if id(y) in found] == [
        "itself", "view", "detached", "view of the detached",
    ]  # fmt: skip
    assert x._version == others["detached"]._version == others["data"]._version == 0
    assert counting_with(others["inference"], [x]) == []


def test_fakes_of_other_threads_keep_the_methods_of_pytorch() -> None:
    told: SimpleQueue[str] = SimpleQueue()

    def refuses() -> None:
        with FakeTensorMode(shape_env=ShapeEnv()):
            x, position = torch.ones(4, 3), torch.arange(3)[1]
            try:
                x[position]
            except GuardOnDataDependentSymNode:
                told.put("refused")
            else:
                told.put("a view")

    def beside(x: Tensor, position: Tensor) -> Tensor:
        thread = Thread(target=refuses)
        thread.start()
        thread.join()
        return x[position] * 2

    refuses()
    purefx.collect_metadata(beside)(torch.ones(4, 3), torch.tensor(1))
    assert (told.get(), told.get()) == ("refused", "refused")
