"""The command line: ``purefx explain``, ``purefx trace`` and ``purefx check``, each of ``FILE.py:function``.

A target is a function, or an ``nn.Module`` instance, at the top level of a Python file; another function of
the same file makes the arguments. The commands end with exit code 0 when all is well; ``check`` ends with
1 when purefx differs from eager; 2 means that there is no verdict: purefx refused the program, the program
raised, or the target is wrong. Results go to standard output, plain when it is not a terminal; messages and
the progress bar go to standard error.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.text import Text
from torch import nn

import purefx

DIFFERS = 1
NO_VERDICT = 2

app = typer.Typer(
    name="purefx",
    help="Pure graphs from PyTorch programs that mutate and view tensors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Kept(StrEnum):
    """The partitions that have a name."""

    DEFAULT = "default"
    MIN_CUT = "min_cut"


Target = Annotated[
    str,
    typer.Argument(metavar="FILE.py:function", help="A function or an nn.Module instance of a Python file."),
]
ArgumentsOption = Annotated[
    str | None,
    typer.Option(
        "--arguments",
        metavar="NAME",
        help="The function of the file that makes the arguments: it takes none, and returns a tuple of them "
        "or the only one. Default: function_arguments, or else make_arguments.",
    ),
]
GraphOption = Annotated[bool, typer.Option("--graph/--no-graph", help="Print the pure graph as well.")]


PartitionOption = Annotated[
    Kept,
    typer.Option("--partition", help="What is kept for the backward: what autograd keeps, or what costs least."),
]


class UsageError(Exception):
    """What the user named cannot be found or loaded; the message says what to do instead."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The program that a command is about, and the arguments to run it with."""

    name: str
    program: Callable[..., Any]
    arguments: tuple[Any, ...]


@app.command()
def explain(
    target: Target,
    *,
    arguments: ArgumentsOption = None,
    graph: GraphOption = True,
    partition: PartitionOption = Kept.DEFAULT,
) -> None:
    """Say what the function writes, which tensors share storage, and how each output is made."""
    with deciding(), Stages(total=3) as stages:
        subject = find_subject(target, arguments, stages)
        stages.enter(f"explaining {subject.name}")
        explanation = purefx.explain(subject.program, *subject.arguments, partition=partition.value)
        contract, program = str(explanation), str(explanation.program)
    show(contract)
    if graph:
        show("")
        show_python(program)


@app.command()
def trace(target: Target, *, arguments: ArgumentsOption = None, partition: PartitionOption = Kept.DEFAULT) -> None:
    """Print the pure graph of the function, that of its backward, and its signature."""
    with deciding(), Stages(total=3) as stages:
        subject = find_subject(target, arguments, stages)
        stages.enter(f"tracing {subject.name}")
        program = str(purefx.trace(subject.program, *subject.arguments, partition=partition.value))
    show_python(program)


@app.command()
def check(target: Target, *, arguments: ArgumentsOption = None, partition: PartitionOption = Kept.DEFAULT) -> None:
    """Run the function eagerly and compiled on equal arguments, and list every difference."""
    with deciding(), Stages(total=3) as stages:
        subject = find_subject(target, arguments, stages)
        stages.enter(f"checking {subject.name}")
        report = purefx.check(subject.program, *subject.arguments, partition=partition.value)
        differences = str(report)
    if report.same and report.raised is not None:
        complain(f"{subject.name}: {report}")
        raise typer.Exit(NO_VERDICT)
    if report.same:
        show(f"{subject.name}: same as eager", style="green")
        return
    show(f"{subject.name}: differs from eager", style="bold red")
    show(differences)
    raise typer.Exit(DIFFERS)


def main() -> None:
    """Run the command line: the entry point of the ``purefx`` script."""
    app()


@contextmanager
def deciding() -> Iterator[None]:
    """Turn an error into a message and the exit code for "no verdict".

    An error of the user's own program keeps its traceback: it is the user who has to read it.
    """
    try:
        yield
    except (UsageError, purefx.PurefxError) as error:
        complain("\n".join([str(error), *getattr(error, "__notes__", ())]))
        raise typer.Exit(NO_VERDICT) from error
    except Exception as error:
        complain(traceback.format_exc())
        raise typer.Exit(NO_VERDICT) from error


class Stages:
    """A progress bar over a known number of stages; invisible unless standard error is a terminal."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=20),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total, completed=-1)

    def __enter__(self) -> Stages:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def enter(self, description: str) -> None:
        """Begin the next stage."""
        self._progress.update(self._task, advance=1, description=description)


def find_subject(target: str, arguments: str | None, stages: Stages) -> Subject:
    """Load the file of ``target``, find its function, and make the arguments."""
    path, name = parse_target(target)
    stages.enter(f"loading {path.name}")
    module = load_file(path)
    program = find_callable(module, path, name)
    make_arguments = find_arguments_function(module, path, name, arguments)
    stages.enter("making arguments")
    made = make_arguments()
    given = made if isinstance(made, tuple) else (made,)
    check_arguments(program, given, name, make_arguments.__name__)
    return Subject(name, program, given)


def check_arguments(program: Callable[..., Any], given: tuple[Any, ...], name: str, maker: str) -> None:
    """Raise UsageError if ``program`` does not take as many arguments as it is ``given``."""
    try:
        signature = inspect.signature(program.forward if isinstance(program, nn.Module) else program)
    except ValueError:  # a builtin function has none
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        raise UsageError(
            f"{maker} gives {len(given)} arguments to {name}{signature}: {error}"
            "\n  instead: return a tuple with one value for each argument"
        ) from error


def parse_target(target: str) -> tuple[Path, str]:
    """Split ``FILE.py:function``."""
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise UsageError(f"{target!r} names no function\n  instead: FILE.py:function")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"there is no file {file}")
    if path.suffix != ".py":
        raise UsageError(f"{file} is not a Python file")
    return path, name


def load_file(path: Path) -> ModuleType:
    """Run the file as a module of its own; what lies beside it can be imported while it is loaded."""
    spec = importlib.util.spec_from_file_location(f"purefx_target_{path.stem}", path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look a class up in the module that defines it
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path} cannot be loaded: {describe(error, path)}") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def describe(error: Exception, path: Path) -> str:
    """What was raised, and the last line of the file that took part."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path.resolve())]
    return f"{text}\n  at {path}:{lines[-1]}" if lines else text


def find_callable(module: ModuleType, path: Path, name: str) -> Callable[..., Any]:
    """The function or module instance called ``name`` in a loaded file."""
    value = getattr(module, name, None)
    if value is None:
        known = sorted(key for key, other in vars(module).items() if is_defined_in(module, other))
        raise UsageError(f"{path} has no function {name}\n  it defines: {', '.join(known) or 'none'}")
    if isinstance(value, type) or not callable(value):
        raise UsageError(
            f"{name} in {path} is not a function but {article(value)}\n"
            "  instead: name a function or an nn.Module instance"
        )
    return value  # type: ignore[no-any-return]  # the value of a file that the user wrote


def is_defined_in(module: ModuleType, value: object) -> bool:
    """``value`` is a function that the file itself defines."""
    return getattr(value, "__module__", None) == module.__name__ and callable(value) and not isinstance(value, type)


def article(value: object) -> str:
    """What kind of thing ``value`` is, for a message."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"a value of {type(value).__name__}"


def find_arguments_function(module: ModuleType, path: Path, name: str, chosen: str | None) -> Callable[..., Any]:
    """The function that makes the arguments: the one the user chose, or the first default there is."""
    if chosen is not None:
        return find_callable(module, path, chosen)
    defaults = (f"{name}_arguments", "make_arguments")
    for default in defaults:
        if hasattr(module, default):
            return find_callable(module, path, default)
    raise UsageError(
        f"{path} does not say what arguments to run {name} with\n"
        f"  instead: define {defaults[0]}() or {defaults[1]}(), or name a function with --arguments"
    )


def show(text: str, style: str = "") -> None:
    """Print a result as it is."""
    Console().print(Text(text, style=style), soft_wrap=True)


def show_python(source: str) -> None:
    """Print Python source: coloured and wrapped on a terminal, as it is elsewhere."""
    console = Console()
    if console.is_terminal:
        console.rule("pure graph")
        console.print(Syntax(source, "python", theme="ansi_dark", word_wrap=True))
    else:
        console.print(Text(source), soft_wrap=True)


def complain(message: str) -> None:
    """Print why there is no verdict."""
    console = Console(stderr=True)
    console.print(Text("error: ", style="bold red").append(message, style="default"), soft_wrap=True)


if __name__ == "__main__":
    main()
