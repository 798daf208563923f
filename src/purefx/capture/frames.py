"""Which line of the user's program is running."""

from __future__ import annotations

import contextlib
import dis
import inspect
import os
from functools import cache
from types import TracebackType

import torch

from purefx.errors import SourceLine

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARIES = (_OURS, _TORCH, contextlib.__file__)
_ENDS = frozenset({os.path.join(_OURS, "autodiff", "backward.py"), os.path.join(_OURS, "cli.py")})
"""The files below whose frames are no lines of the program.

One runs the backward of a program, whose hooks and own functions alone run in it; one is the command line.
"""


@cache
def is_user_file(file: str) -> bool:
    """Whether ``file`` belongs neither to PyTorch nor to purefx."""
    return not file.startswith((*_LIBRARIES, "<frozen", "<purefx"))


def current_line() -> SourceLine | None:
    """The innermost running line of the program, which is outside PyTorch and purefx."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename not in _ENDS:
        code = frame.f_code
        if is_user_file(code.co_filename):
            return SourceLine(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


def raising_line(traceback: TracebackType | None) -> SourceLine | None:
    """The innermost line of ``traceback`` outside PyTorch and purefx."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_file(code.co_filename):
            found = SourceLine(code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return found


def failing_values(traceback: TracebackType | None) -> list[object]:
    """The local variables in the expression that raised, in the innermost frame outside PyTorch and purefx."""
    found: TracebackType | None = None
    while traceback is not None:
        found = traceback if is_user_file(traceback.tb_frame.f_code.co_filename) else found
        traceback = traceback.tb_next
    if found is None:
        return []
    code, values = found.tb_frame.f_code, found.tb_frame.f_locals
    places = list(code.co_positions())
    low, high = _extent(places[found.tb_lasti // 2])
    names = [
        step.argval
        for step, place in zip(dis.get_instructions(code, show_caches=True), places, strict=True)
        if step.opname.startswith("LOAD_") and low <= _extent(place)[0] and _extent(place)[1] <= high
    ]
    return [values[name] for name in names if name in values]


def _extent(place: tuple[int | None, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where a piece of source begins and ends."""
    line, last_line, column, last_column = (x or 0 for x in place)
    return (line, column), (last_line, last_column)
