"""Which line of the user's program is running."""

from __future__ import annotations

import contextlib
import os
import sys
from types import FrameType, TracebackType

import torch

from purefx.errors import SourceLine

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARIES = (_OURS, _TORCH, contextlib.__file__)
_BACKWARD = os.path.join(_OURS, "autodiff", "backward.py")
"""Runs the backward of a program: of the program's lines only those of its hooks and own functions run in it."""


def is_user_file(file: str) -> bool:
    """Whether ``file`` belongs neither to PyTorch nor to purefx."""
    return not file.startswith(_LIBRARIES) and not file.startswith("<frozen")


def current_line() -> SourceLine | None:
    """The innermost running line of the program, which is outside PyTorch and purefx."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _BACKWARD:
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
