"""What a specialisation depends on, read off the source of its wrapper and put in the user's words."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from purefx.capture.arguments import Leaf
from purefx.pipeline import Stages
from purefx.report.names import argument_names, leaf_names
from purefx.runtime.wrapper import Wrapper

_LONG = 160
"""A condition of more characters is cut in the text of an explanation."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that must hold of a call, or purefx captures anew.

    ``subject`` is the argument that it is about, empty where it is about several or none.
    """

    subject: str
    condition: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.shortened}" if self.subject else self.shortened

    @property
    def shortened(self) -> str:
        """The condition without its subject, where that comes first; cut where it goes on for lines."""
        if len(self.condition) > _LONG:
            return f"{self.condition[:_LONG].rpartition(', ')[0]}, ...)"
        if not self.subject:
            return self.condition
        if self.condition.startswith(f"type({self.subject})"):
            return self.condition.replace(f"type({self.subject})", "type", 1)
        return self.condition.removeprefix(f"{self.subject}.").removeprefix(f"{self.subject} ")


def read_guards(stages: Stages, wrapper: Wrapper) -> tuple[Guard, ...]:
    """The conditions of the wrapper's ``matches``, in its order and in the user's names."""
    return tuple(_read(stages, wrapper))


def find_failing(stages: Stages, wrapper: Wrapper, leaves: Sequence[Any]) -> Guard | None:
    """The first condition of ``wrapper`` that does not hold of ``leaves``; None if all hold."""
    function = _matching_function(wrapper)
    names = {**wrapper.matches.__globals__, "leaves": leaves}
    guards = iter(read_guards(stages, wrapper))
    for statement in function.body[1:]:
        conditions = _conjuncts(statement)
        if not conditions:
            module = ast.Module([statement], type_ignores=[])
            exec(compile(module, "<purefx guards>", "exec"), names)
        for condition in conditions:
            guard = next(guards)
            if not eval(compile(ast.Expression(condition), "<purefx guards>", "eval"), names):
                return guard
    return None


def _matching_function(wrapper: Wrapper) -> ast.FunctionDef:
    functions = [node for node in ast.parse(wrapper.source).body if isinstance(node, ast.FunctionDef)]
    return next(function for function in functions if function.name == "matches")


def _read(stages: Stages, wrapper: Wrapper) -> Iterator[Guard]:
    function = _matching_function(wrapper)
    words = _words(function, stages)
    for condition in (c for node in ast.walk(function) for c in _conjuncts(node)):
        subjects = {words[n.id] for n in ast.walk(condition) if isinstance(n, ast.Name) and n.id in words}
        subject = subjects.pop() if len(subjects) == 1 else ""
        yield Guard(subject, ast.unparse(_InWords(words).visit(condition)))


def _conjuncts(node: ast.AST) -> list[ast.expr]:
    """The conditions of a ``return a and b`` or of an ``if not (a and b)``."""
    match node:
        case ast.Return(ast.BoolOp(ast.And(), values)) | ast.If(ast.UnaryOp(ast.Not(), ast.BoolOp(ast.And(), values))):
            return values
        case ast.Return(ast.Compare() | ast.Call() as only):
            return [only]
        case _:
            return []


def _words(function: ast.FunctionDef, stages: Stages) -> dict[str, str]:
    """The user's name for each variable that the wrapper unpacks or fetches."""
    names = argument_names(stages.capture)
    fetched = iter([name for known, name in names.items() if not isinstance(known.sources[0], Leaf)])
    words: dict[str, str] = {}
    for statement in function.body:
        match statement:
            case ast.Assign([ast.Tuple(targets)], ast.Name("leaves")):
                found = [target.id for target in targets if isinstance(target, ast.Name)]
                words.update(zip(found, leaf_names(stages.capture), strict=True))
            case ast.Assign([ast.Name(word)], _):
                words.update((word, name) for name in islice(fetched, 1))
            case _:
                continue
    return words


class _InWords(ast.NodeTransformer):
    """Puts the user's names in the place of the wrapper's."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = words

    def visit_Name(self, node: ast.Name) -> ast.Name:  # the name that ast looks for
        return ast.Name(self._words.get(node.id, node.id), node.ctx)


__all__ = ["Guard", "find_failing", "read_guards"]
