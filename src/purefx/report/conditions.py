"""What a specialisation depends on, read off the source of its wrapper and put in the user's words."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from purefx.capture.arguments import Leaf
from purefx.capture.captured import Capture
from purefx.report.names import argument_names, leaf_names, parameters_of, renamed
from purefx.runtime.guards import ModuleGuard
from purefx.runtime.wrapper import Wrapper

_LONG = 160
"""A condition of more characters is cut in the text of an explanation."""

_UNCHANGED = "training, submodules, names of tensors and forward hooks as captured, in the modules inside too"


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that must hold of a call, or purefx captures anew.

    ``subject`` is the argument that it is about, empty where it is about several or none; ``aspect`` is what it asks
    for, without the answer.
    """

    subject: str
    condition: str
    aspect: str

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


@dataclass(frozen=True, slots=True, eq=False)
class Conditions:
    """The conditions of a wrapper's ``matches``, in its order and in the user's names.

    ``parameters`` are those of the function, ``leaves`` the names of the leaves of its arguments, ``fetched`` those of
    the tensors that are found elsewhere, ``entries`` those of what the program changes: by the wrapper's name of a
    table, and the key in it.
    """

    wrapper: Wrapper
    parameters: tuple[str, ...]
    leaves: tuple[str, ...]
    fetched: tuple[str, ...]
    entries: Mapping[tuple[str, Any], str]

    @classmethod
    def of(cls, capture: Capture, wrapper: Wrapper) -> Conditions:
        """Those of the wrapper of ``capture``."""
        fetched = [name for known, name in argument_names(capture).items() if not isinstance(known.sources[0], Leaf)]
        changed = {(id(x.table), x.key): x.name for x in capture.rebindings}
        tables = {name: id(x) for name, x in wrapper.matches.__globals__.items() if isinstance(x, dict)}
        entries = {(name, key): said for name, t in tables.items() for (of, key), said in changed.items() if t == of}
        return cls(wrapper, parameters_of(capture.function), leaf_names(capture), tuple(fetched), entries)

    @property
    def guards(self) -> tuple[Guard, ...]:
        """All of them."""
        return tuple(self._read(_matching_function(self.wrapper)))

    def failing(self, leaves: Sequence[Any]) -> Iterator[Guard]:
        """Those that do not hold of ``leaves``; one that cannot be asked of them does not hold."""
        function = _matching_function(self.wrapper)
        names = {**self.wrapper.matches.__globals__, "leaves": leaves}
        guards = self._read(function)
        for statement in function.body[1:]:
            conditions = _conjuncts(statement)
            if not conditions:
                with suppress(Exception):  # a size of a dimension that there is not
                    exec(compile(ast.Module([statement], type_ignores=[]), "<purefx guards>", "exec"), names)
            for condition in conditions:
                guard = next(guards)
                if not _holds(condition, names):
                    modules = self._modules(condition)
                    yield guard if modules is None else self._changed(modules)

    def _read(self, function: ast.FunctionDef) -> Iterator[Guard]:
        words = self._words(function)
        for condition in (c for node in ast.walk(function) for c in _conjuncts(node)):
            modules = self._modules(condition)
            if modules is not None:
                roots = [renamed(name, self.parameters) for name in modules.roots]
                yield Guard(", ".join(roots), _UNCHANGED, "modules")
                continue
            subjects = {words[n.id] for n in ast.walk(condition) if isinstance(n, ast.Name) and n.id in words}
            subject = subjects.pop() if len(subjects) == 1 else ""
            said = _InWords(words, self.entries).visit(copy.deepcopy(condition))
            yield Guard(subject, ast.unparse(said), ast.unparse(_asked(said)))

    def _modules(self, condition: ast.expr) -> ModuleGuard | None:
        """The modules that ``condition`` is about, if it is about such."""
        match condition:
            case ast.Call(ast.Attribute(ast.Name(name), "holds")):
                guard = self.wrapper.matches.__globals__[name]
                return guard if isinstance(guard, ModuleGuard) else None
            case _:
                return None

    def _changed(self, modules: ModuleGuard) -> Guard:
        """What does not hold of ``modules``."""
        name, asked = modules.changed()
        name = renamed(name, self.parameters)
        return Guard(name, f"{asked} as captured", f"{asked} of {name}")

    def _words(self, function: ast.FunctionDef) -> dict[str, str]:
        """The user's name for each variable that the wrapper unpacks or fetches."""
        fetched = iter(self.fetched)
        words: dict[str, str] = {}
        for statement in function.body:
            match statement:
                case ast.Assign([ast.Tuple(targets)], ast.Name("leaves")):
                    found = [target.id for target in targets if isinstance(target, ast.Name)]
                    words.update(zip(found, self.leaves, strict=True))
                case ast.Assign([ast.Name(word)], _):
                    words.update((word, name) for name in islice(fetched, 1))
                case _:
                    continue
        return words


def other_structure(conditions: Conditions, paths: Sequence[str]) -> str:
    """In what the arguments whose leaves are at ``paths`` have another structure than those that were captured."""
    given = [renamed(path, conditions.parameters) for path in paths]
    for name in given:
        if name not in conditions.leaves:
            return f"it is given {name}"
    for name in conditions.leaves:
        if name not in given:
            return f"it is not given {name}"
    return "a container in the arguments is of another type"


def varying(misfits: Sequence[Sequence[Guard]]) -> str:
    """What calls differ in: what the guards ask for that fail most often."""
    counts = Counter(aspect for failing in misfits for aspect in dict.fromkeys(guard.aspect for guard in failing))
    most = max(counts.values(), default=0)
    return ", ".join([aspect for aspect, count in counts.items() if count == most][:3]) or "their structure"


def _matching_function(wrapper: Wrapper) -> ast.FunctionDef:
    functions = [node for node in ast.parse(wrapper.source).body if isinstance(node, ast.FunctionDef)]
    return next(function for function in functions if function.name == "matches")


def _holds(condition: ast.expr, names: dict[str, Any]) -> bool:
    try:
        return bool(eval(compile(ast.Expression(condition), "<purefx guards>", "eval"), names))
    except Exception:  # asked of an argument of another type
        return False


def _asked(condition: ast.expr) -> ast.expr:
    """What ``condition`` compares with what it must be."""
    match condition:
        case ast.Compare(left):
            return left
        case _:
            return condition


def _conjuncts(node: ast.AST) -> list[ast.expr]:
    """The conditions of a ``return a and b`` or of an ``if not (a and b)``; those of ``looks.check(x) or c`` are c."""
    match node:
        case ast.Return(ast.BoolOp(ast.And(), values)) | ast.If(ast.UnaryOp(ast.Not(), ast.BoolOp(ast.And(), values))):
            return [c for value in values for c in _behind_looks(value)]
        case ast.Return(ast.Compare() | ast.Call() as only):
            return [only]
        case _:
            return []


def _behind_looks(condition: ast.expr) -> list[ast.expr]:
    match condition:
        case ast.BoolOp(ast.Or(), [ast.Call(ast.Attribute(_, "check")), ast.BoolOp(ast.And(), each)]):
            return each
        case _:
            return [condition]


def _shared(tensors: list[ast.expr], first: list[Any]) -> ast.expr:
    """That each of ``tensors`` shares storage with the one whose number ``first`` has, and these do not."""
    pairs = [(x, tensors[i]) for x, i in zip(tensors, first, strict=True) if x is not tensors[i]]
    said: list[ast.expr] = [ast.Call(ast.Name("share_storage"), [*pair], []) for pair in pairs]
    if len({*first}) > 1:
        said.insert(0, ast.Call(ast.Name("distinct_storages"), [tensors[i] for i in dict.fromkeys(first)], []))
    return ast.BoolOp(ast.And(), said) if len(said) > 1 else said[0]


class _InWords(ast.NodeTransformer):
    """Puts the user's names in the place of the wrapper's; ``entries`` are the names of ``table.get(key)``."""

    def __init__(self, words: Mapping[str, str], entries: Mapping[tuple[str, Any], str]) -> None:
        self._words = words
        self._entries = entries

    def visit_Name(self, node: ast.Name) -> ast.Name:  # the name that ast looks for
        return ast.Name(self._words.get(node.id, node.id), node.ctx)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:  # as above
        match node:
            case ast.Compare(ast.Call(ast.Name("storages"), given), [ast.Eq()], [ast.List(first)]):
                return _shared([self.visit(x) for x in given], [x.value for x in first if isinstance(x, ast.Constant)])
            case _:
                self.generic_visit(node)
                return node

    def visit_Call(self, node: ast.Call) -> ast.expr:  # as above
        match node:
            case ast.Call(ast.Name("same_value"), [given, expected]):
                return ast.Compare(self.visit(given), [ast.Eq()], [expected])
            case ast.Call(ast.Attribute(ast.Name(table), "get"), [ast.Constant(key)]) if (table, key) in self._entries:
                return ast.Name(self._entries[table, key])
            case _:
                return ast.Call(self.visit(node.func), [self.visit(x) for x in node.args], node.keywords)


__all__ = ["Conditions", "Guard", "other_structure", "varying"]
