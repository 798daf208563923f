"""What things are called in reports: as the user would type them in the function's own words.

def step(x, cache): ...
step({"a": x}, cache)      args[0]['a']  is called  x['a'],  args[1]  is called  cache
returns (y, {"n": z})      the results are called  result[0]  and  result[1]['n']
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from purefx._torch import pytree
from purefx.capture.arguments import Leaf, Source
from purefx.capture.captured import Capture, Input, Result, name_of

_ARGUMENT = re.compile(r"args\[(\d+)\](.*)", re.DOTALL)
_KEYWORD = re.compile(r"kwargs\['(\w+)'\](.*)", re.DOTALL)


def function_name(function: Callable[..., Any]) -> str:
    """The name of ``function`` as Python can spell it."""
    name = name_of(function)
    return name if name.isidentifier() else "program"


def argument_names(capture: Capture) -> dict[Input, str]:
    """The name of each input: a path from a parameter of the function, or where the program found it."""
    parameters = parameters_of(capture.function)
    return {known: _source_name(known.sources[0], parameters) for known in capture.inputs}


def leaf_names(capture: Capture) -> tuple[str, ...]:
    """The name of each leaf of the arguments, tensor or not."""
    parameters = parameters_of(capture.function)
    return tuple(renamed(name, parameters) for name in capture.flat.names)


def named_results(capture: Capture) -> list[tuple[str, Result]]:
    """The results, each with its name: ``result`` and the way to it."""
    whole = pytree.tree_unflatten(list(range(len(capture.results))), capture.structure)
    paths, _ = pytree.tree_flatten_with_path(whole)
    return [(f"result{pytree.keystr(path)}", x) for (path, _), x in zip(paths, capture.results, strict=True)]


def identifier(name: str) -> str:
    """``name`` as a Python identifier: what a graph's input is called."""
    word = re.sub(r"\W+", "_", name).strip("_") or "x"
    return f"x_{word}" if word[0].isdigit() else word


def _source_name(source: Source, parameters: Sequence[str]) -> str:
    return renamed(source.name, parameters) if isinstance(source, Leaf) else source.name


def renamed(name: str, parameters: Sequence[str]) -> str:
    """The path ``name`` with one of ``parameters`` in the place of ``args[i]``, or of ``kwargs[...]``."""
    keyword = _KEYWORD.fullmatch(name)
    if keyword is not None:
        return keyword[1] + keyword[2]
    positional = _ARGUMENT.fullmatch(name)
    if positional is not None and int(positional[1]) < len(parameters):
        return parameters[int(positional[1])] + positional[2]
    return name


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the parameters that positional arguments go to, as far as they have one each."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # a callable that does not tell
        return ()
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in named)
