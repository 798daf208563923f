"""The wrapper around a graph is Python that a person can read, and that tracebacks show."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purefx
from tests.functional.kinds import ramp


def step(x: Tensor, cache: Tensor, *, at: int) -> Any:
    cache[at].copy_(x)
    return cache.t(), x * 2, cache


def add(a: Tensor, b: Tensor) -> Tensor:
    a.add_(1)
    return b[0]


def turn(x: Tensor) -> Any:
    x.t_()
    y = x + 1
    return {"rows": y[0], "all": [y]}


class Net(nn.Module):
    """A module that counts its calls."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(2))

    def forward(self, x: Tensor) -> Any:
        """Count, and multiply."""
        self.steps.add_(1)
        return x * self.steps


STEP = '''\
def run(leaves):
    """Runs step with the graph that was made for such arguments."""
    (arg0, arg1, at,) = leaves
    arg1_version = arg1._version
    (new_arg1, out,) = graph(arg0)
    with no_grad():
        arg1.select(0, 1).copy_(new_arg1)
    set_versions((arg1, arg1_version + 1), (out, 0))
    view = arg1.t()
    return (view, out, arg1,)
'''

ADD = '''\
def run(leaves):
    """Runs add with the graph that was made for such arguments."""
    (arg0, arg1,) = leaves
    arg0_version = arg0._version
    arg1_version = arg1._version
    (new_arg1,) = graph(arg1)
    with no_grad():
        arg1[1:5].copy_(new_arg1)
    set_versions((arg0, arg0_version + 1), (arg1, arg1_version + 1))
    view = arg1.select(0, 0)
    return view
'''

TURN = '''\
def run(leaves):
    """Runs turn with the graph that was made for such arguments."""
    (arg0,) = leaves
    (out,) = graph(arg0)
    set_versions((out, 0))
    arg0.t_()
    view = out.select(0, 0)
    return {'rows': view, 'all': [out]}
'''

NET = '''\
def run(leaves):
    """Runs Net with the graph that was made for such arguments."""
    (arg0,) = leaves
    for _ in undisturbed():
        self_steps = state_of_self.get('steps')
    self_steps_version = self_steps._version
    (new_self_steps, out,) = graph(arg0, self_steps)
    with no_grad():
        self_steps.copy_(new_self_steps)
    set_versions((self_steps, self_steps_version + 1), (out, 0))
    return out
'''

MATCHES = '''\
def matches(leaves):
    """Whether this specialisation may be used for these arguments."""
    (arg0, arg1, at,) = leaves
    return (
        is_grad_enabled() is False
        and torch.is_inference_mode_enabled() is False
        and type(at) is int and at == 1
        and (looks.check(arg0, arg1) or (
            type(arg0) is Tensor
            and arg0.dtype is torch.float32
'''


def source(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The source of the wrapper, made where gradients are off."""
    with torch.no_grad():
        return purefx.trace(function, *args, **kwargs).wrapper.source


def run_of(text: str) -> str:
    """The second function in ``text``."""
    return text[text.index("def run(") :]


def test_the_source_that_writes_back_one_row() -> None:
    assert run_of(source(step, ramp(3), torch.zeros(4, 3), at=1)) == STEP


def test_the_source_of_a_part_that_was_written_by_way_of_its_base() -> None:
    x = ramp(5)
    assert run_of(source(add, x[1:], x)) == ADD


def test_the_source_that_changes_geometry_and_replays_a_view() -> None:
    assert run_of(source(turn, ramp(2, 3))) == TURN


def test_the_source_of_a_module_with_a_buffer() -> None:
    assert run_of(source(Net(), ramp(2))) == NET


def test_the_conditions_are_one_expression_cheapest_first() -> None:
    text = source(step, ramp(3), torch.zeros(4, 3), at=1)
    assert text.startswith(MATCHES)
    conditions = text[: text.index("def run(")]
    for line in (
        "arg0.dtype is torch.float32",
        "arg0.shape == (3,)",
        "arg1.stride() == (3, 1)",
        "arg0.requires_grad is False",
        "distinct_storages(arg0, arg1)",
    ):
        assert f"        and {line}\n" in conditions


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_source_is_python_and_the_same_each_time(*, dynamic: bool) -> None:
    texts = {source(step, ramp(3), torch.zeros(4, 3), at=1, dynamic=dynamic) for _ in range(2)}
    (text,) = texts
    assert [f.name for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)] == ["matches", "run"]


def test_a_traceback_through_the_wrapper_shows_its_lines() -> None:
    def backend(module: object, examples: object) -> Callable[..., Any]:
        def broken(*args: Tensor) -> Any:
            raise MemoryError

        return broken

    try:
        purefx.compile(step, backend)(ramp(3), torch.zeros(4, 3), at=1)
    except MemoryError as error:
        frames = traceback.extract_tb(error.__traceback__)
    (frame,) = (f for f in frames if f.filename.startswith("<purefx step"))
    assert frame.name == "run"
    assert frame.line is not None
    assert frame.line.endswith("= graph(arg0)")


def test_the_write_back_is_a_view_chain_of_the_argument() -> None:
    def program(x: Tensor) -> None:
        x.transpose(0, 1)[1:3, 0].mul_(2)
        x.diagonal()[::2].zero_()

    text = run_of(source(program, ramp(5, 4)))
    assert "as_strided" not in text
    assert text.count(".copy_(") <= 2


def test_replayed_views_are_the_ops_of_the_program() -> None:
    def program(x: Tensor) -> Any:
        return x.unbind(0), x.view(-1), x.movedim(0, 1)[..., None]

    text = run_of(source(program, ramp(2, 3)))
    for line in ("x.unbind()", "view([-1])", "unsqueeze("):
        assert line.removeprefix("x.") in text
    assert "as_strided" not in text
