"""The lines that errors and graphs name are lines of the user's program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx.capture.frames import current_line, is_user_file, raising_line
from purefx.errors import DataDependentControlFlow
from tests.functional.kinds import ramp


def test_files_of_pytorch_and_purefx_are_not_the_users() -> None:
    assert is_user_file(__file__)
    assert not is_user_file(torch.nn.functional.__file__)
    assert not is_user_file(purefx.api.__file__)
    assert not is_user_file(contextlib.__file__)
    assert not is_user_file("<frozen importlib._bootstrap>")


def test_the_current_line_is_that_of_the_caller() -> None:
    line = current_line()
    assert line is not None
    assert (line.file, line.function) == (__file__, "test_the_current_line_is_that_of_the_caller")


def helper(x: Tensor) -> Tensor:
    return x * 2 if x[0] > 0 else x


def through_pytorch(x: Tensor) -> Any:
    return torch.func.vmap(lambda row: row + 1)(x), helper(x)


@contextlib.contextmanager
def around() -> Iterator[None]:
    yield


def through_a_context(x: Tensor) -> Any:
    with around():
        return helper(x)


@pytest.mark.parametrize("program", [through_pytorch, through_a_context])
def test_the_innermost_line_of_the_user_is_named(program: Any) -> None:
    with pytest.raises(DataDependentControlFlow) as caught:
        purefx.compile(program)(ramp(3))
    where = caught.value.where
    assert where is not None
    assert (where.file, where.function) == (__file__, "helper")
    assert where.line == helper.__code__.co_firstlineno + 1


def test_a_call_made_by_pytorch_is_at_the_line_that_asked_for_it() -> None:
    def program(x: Tensor) -> Tensor:
        y = torch.nn.functional.layer_norm(x, (3,))
        return torch.nn.functional.gelu(y)

    first = program.__code__.co_firstlineno
    calls = purefx.trace(program, ramp(3)).stages.capture.recording.calls
    assert {c.where.line - first for c in calls if c.where is not None} == {1, 2}


def test_an_error_of_the_program_keeps_its_traceback() -> None:
    def program(x: Tensor) -> Tensor:
        return x.view(7)

    with pytest.raises(RuntimeError) as caught:
        purefx.compile(program)(ramp(3))
    line = raising_line(caught.value.__traceback__)
    assert line is not None
    assert (line.function, line.line) == ("program", program.__code__.co_firstlineno + 1)
