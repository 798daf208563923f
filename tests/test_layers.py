"""Which module may import which: no circles, and private parts of torch are named in one place."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
FILES = sorted((SOURCE / "purefx").rglob("*.py"))


def module_name(path: Path) -> str:
    """The dotted name under which ``path`` is imported."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported in the file; ``from a import b`` gives ``a.b``."""
    package = list(path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                yield from ((node.lineno, name.name) for name in node.names)
            case ast.ImportFrom():
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                yield from ((node.lineno, f"{base}.{name.name}") for name in node.names)
            case _:
                pass


def attributes(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every attribute read off a plain name, such as ``torch._C.x``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if dotted.replace(".", "").replace("_", "a").isalnum():
                yield node.lineno, dotted


def is_private(name: str) -> bool:
    """A part of torch that it does not document: some component begins with one underscore.

    ``aten._conj`` is none: an operator's name is in every recording and graph, its schema says what it does, and
    the underscore only tells that the Python function for it has another name.
    """
    first, *rest = name.split(".")
    return first == "torch" and any(part.startswith("_") and not part.startswith("__") for part in rest)


def at(path: Path, line: int, name: str) -> str:
    """``name`` with the place that names it, as an editor can jump to it."""
    return f"{path.relative_to(SOURCE.parent)}:{line} {name}"


def imported_module(name: str) -> str | None:
    """The module of purefx that importing ``name`` runs: itself, or the one that defines it."""
    return name if name in MODULES else name.rpartition(".")[0] if name.rpartition(".")[0] in MODULES else None


@pytest.mark.parametrize("path", [path for path in FILES if "layout" in path.parts], ids=module_name)
def test_the_layout_algebra_knows_no_torch_and_nothing_else_of_purefx(path: Path) -> None:
    allowed = (*sorted(sys.stdlib_module_names), "purefx.layout")
    strangers = [
        at(path, line, name)
        for line, name in imports(path)
        if not any(f"{name}.".startswith(f"{module}.") for module in allowed)
    ]
    assert strangers == []


@pytest.mark.parametrize("path", [path for path in FILES if "_torch" not in path.parts], ids=module_name)
def test_private_parts_of_torch_are_named_in_one_package(path: Path) -> None:
    named = [at(path, line, name) for line, name in (*imports(path), *attributes(path)) if is_private(name)]
    assert named == []


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {
        module: {found for _, name in imports(path) if (found := imported_module(name)) not in (None, module)}
        for module, path in MODULES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these modules import each other: {' <- '.join(map(str, error.args[1]))}")
