"""A program under a nest of transforms, as data: what runs is what ``source`` prints."""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any, cast

from torch import Tensor

from tests.programs.program import Program
from tests.transforms.adapters import ADAPTERS

_numbers = count()
Function = Callable[..., Any]
MAIN = """
if __name__ == "__main__":
    inputs = make_inputs()
    print(transformed(torch.func, program)(*inputs), inputs)
"""


@dataclass(frozen=True)
class Nest:
    """A program, and what is around it: texts that make a function of ``func`` and ``f``, the innermost first."""

    program: Program
    transforms: tuple[str, ...]

    def source(self) -> str:
        """The program, the adapters that it needs, and ``transformed``, which nests the transforms of a library."""
        words = set(re.findall(r"\w+", " ".join(self.transforms))) | {"leaves", "flat", "total", "beside"}
        adapters = [inspect.getsource(adapter) for adapter in ADAPTERS if adapter.__name__ in words]
        lines = ["def transformed(func, f):", *(f"    f = {text}" for text in self.transforms), "    return f", ""]
        parts = ["from __future__ import annotations\n", self.program.source(), *adapters, "\n".join(lines), MAIN]
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.source()

    @cached_property
    def _namespace(self) -> dict[str, object]:
        text, file = self.source(), f"<random nest {next(_numbers)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        namespace: dict[str, object] = {"__name__": "random_nest"}
        exec(compile(text, file, "exec"), namespace)
        return namespace

    @property
    def function(self) -> Function:
        """The program, under no transform."""
        return cast(Function, self._namespace["program"])

    def under(self, library: object, f: Function) -> Function:
        """``f`` in the place of the program, under the transforms of ``library``."""
        return cast(Function, self._namespace["transformed"])(library, f)

    def make_inputs(self) -> tuple[Tensor, ...]:
        """Fresh inputs, equal each time."""
        return cast(tuple[Tensor, ...], cast(Function, self._namespace["make_inputs"])())

    def beside(self) -> Nest:
        """The nest whose derivatives are those of functions that reach the arguments by themselves, too."""
        return replace(
            self,
            transforms=tuple(re.sub(r"^(gradient|pulled|pushed)\(", r"\1_beside(", text) for text in self.transforms),
        )

    def smaller(self) -> Iterator[Nest]:
        """Nests that say less: one transform less, or a smaller program; many of them do not run."""
        for n, text in enumerate(self.transforms):
            if not text.startswith("func.vmap"):
                yield replace(self, transforms=self.transforms[:n] + self.transforms[n + 1 :])
        for program in self.program.smaller():
            if program.result != "None":
                yield replace(self, program=program)
