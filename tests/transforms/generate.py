"""Random programs under random nests of up to three transforms.

The nest is chosen first: it says which dimensions an argument has besides those of an example. The program is written
on the tensors of one example, as views of whole arguments, so that its views are tried on the strides that they will
meet; then the nest is made, from the inside, by the sizes that the oracle gives at each level. All follows from the
seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tests.programs.generate import Author
from tests.programs.program import Program, Statement
from tests.programs.statements import Row
from tests.transforms.adapters import leaves
from tests.transforms.layouts import channels_last, expanded, numbers, part, permuted, stepped
from tests.transforms.nest import Nest
from tests.transforms.oracle import Oracle
from tests.transforms.statements import (
    DRAWN_VALUES,
    DRAWN_WRITES,
    TOLD_VALUES,
    TOLD_WRITES,
    VALUES,
    VIEWS,
    WRITES,
)

KINDS = {
    "vmap": 10,
    "gradient": 3,
    "gradient_and_value": 1,
    "pulled": 2,
    "pushed": 4,
    "linearized": 1,
    "jacobian_reverse": 2,
    "jacobian_forward": 2,
    "second_derivative": 1,
}
"""Transforms by the names of their adapters, and how often each is chosen."""
ALL_ARGUMENTS = frozenset({"pulled", "pushed", "linearized"})
REVERSE = frozenset({"gradient", "gradient_and_value", "pulled", "jacobian_reverse", "second_derivative"})
"""Those under which autograd refuses writes to what is differentiated."""
EXAMPLE_SIZES = ((3,), (4,), (2, 3), (3, 2), (3, 3), (4, 4), (2, 2, 2), (2, 1, 3), (1, 4))
LARGEST_JACOBIAN = 600
"""How many elements a Jacobian may have; where it would have more, a gradient is taken."""
KEPT_ERRORS = 0.05
"""How many of the statements that eager refuses stay in the program."""
WRITTEN_UNDER_REVERSE = 0.2
"""How many of the arguments may be written where autograd may refuse it."""

InDims: TypeAlias = tuple[int | None, ...]


@dataclass(frozen=True)
class Theme:
    """Statements besides the common ones, the transforms that know them, and what ``vmap`` is told."""

    values: tuple[Row, ...]
    writes: tuple[Row, ...]
    without: frozenset[str]
    vmap: str = ""


SECOND_RUNS = frozenset({"linearized", "jacobian_forward", "second_derivative"})
"""Transforms that run the function more than once, or under a ``vmap`` that is told nothing."""
THEMES = {
    "told": Theme(TOLD_VALUES, TOLD_WRITES, SECOND_RUNS | {"pushed"}),
    "drawn": Theme(DRAWN_VALUES, DRAWN_WRITES, SECOND_RUNS, ', randomness="same"'),
}
"""What programs may be about: gradients that they tell themselves, random numbers."""
THEMATIC = 0.4
"""How many of the statements are about the theme."""


@dataclass(frozen=True)
class Level:
    """A transform that is chosen: ``in_dims`` and ``size`` are those of ``vmap``, and nothing of the others."""

    kind: str
    size: int = 0
    in_dims: InDims = ()


def random_nest(rng: Random, theme: Theme | None = None) -> Nest:
    """A program and a nest made of the choices of ``rng``."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        while True:
            nest = _NestAuthor(rng, theme).write_nest()
            if nest:
                return nest


def seeded_nests(seeds: range, theme: Theme | None = None) -> Iterator[tuple[int, Nest]]:
    """A nest for each seed."""
    for seed in seeds:
        yield seed, random_nest(Random(seed), theme)


@dataclass
class _NestAuthor:
    """One nest being written. ``fixed`` are the arguments that no transform lets the program write."""

    rng: Random
    theme: Theme | None = None
    levels: list[Level] = field(default_factory=list)
    setup: list[Statement] = field(default_factory=list)
    fixed: set[str] = field(default_factory=set)

    def write_nest(self) -> Nest | None:
        """The whole of it; nothing if no transform has an argument to work on."""
        kinds = self._kinds()
        names = "abc"[: self.rng.choice((1, 2, 2, 3))]
        sizes = [list(self.rng.choice(EXAMPLE_SIZES)) for _ in names]
        self.levels = [self._level(kind, sizes) for kind in kinds]
        if any(level.size and all(dim is None for dim in level.in_dims) for level in self.levels):
            return None
        self._say_inputs(names, sizes)
        arguments = self._arguments(names)
        program = self._program(names, arguments[0])
        return Nest(program, tuple(self._texts(program, arguments))) if program else None

    def _kinds(self) -> list[str]:
        count = self.rng.choice((1, 2, 2, 3))
        known = {kind: n for kind, n in KINDS.items() if not self.theme or kind not in self.theme.without}
        kinds = self.rng.choices(list(known), weights=list(known.values()), k=count)
        kinds = ["pushed" if kind == "linearized" else kind for kind in kinds[:-1]] + kinds[-1:]
        return kinds if "vmap" in kinds or self.rng.random() < 0.3 else [*kinds[:-1], "vmap"]

    # ---- arguments

    def _level(self, kind: str, sizes: list[list[int]]) -> Level:
        """A transform; where it is ``vmap``, the sizes of its arguments are grown by a dimension."""
        if kind != "vmap":
            return Level(kind)
        size = self.rng.choice((1, 2, 2, 2, 3, 3))
        in_dims: list[int | None] = []
        for each in sizes:
            dim = None if len(sizes) > 1 and self.rng.random() < 0.2 else self.rng.randint(0, len(each))
            in_dims.append(dim)
            if dim is not None:
                each.insert(dim, size)
        return Level(kind, size, tuple(in_dims))

    def _say_inputs(self, names: str, sizes: list[list[int]]) -> None:
        """Whole arguments; those that are expanded, or not batched by each ``vmap``, are fixed, and some at random.

        ``torch.func.linearize`` runs the function twice, and so gives another value of what is written.
        """
        linearized = any(level.kind == "linearized" for level in self.levels)
        reverse = any(level.kind in REVERSE for level in self.levels)
        for n, (name, each) in enumerate(zip(names, sizes, strict=True)):
            text, repeats = self._layout(each, n)
            self.setup.append(Statement(f"{name} = {text}"))
            shared = repeats or any(level.size and level.in_dims[n] is None for level in self.levels)
            if shared or linearized or (reverse and self.rng.random() > WRITTEN_UNDER_REVERSE):
                self.fixed.add(name)

    def _layout(self, sizes: list[int], n: int) -> tuple[str, bool]:
        """An argument of these sizes in some layout, and whether it repeats elements."""
        rng, dim = self.rng, self.rng.randrange(len(sizes))
        match rng.choice(("plain", "plain", "plain", "permuted", "permuted", "step", "part", "expanded", "last")):
            case "permuted":
                return permuted(sizes, n, rng.sample(range(len(sizes)), len(sizes))), False
            case "step":
                return stepped(sizes, n, dim), False
            case "part":
                return part(sizes, n, dim), False
            case "expanded":
                return expanded(sizes, n, dim), True
            case "last" if len(sizes) == 4:
                return channels_last(sizes, n), False
            case _:
                return numbers(sizes, n), False

    def _arguments(self, names: str) -> list[list[Tensor]]:
        """The arguments inside of each level, the innermost first, and the whole ones, of which they are views."""
        given: dict[str, Any] = {"torch": torch}
        exec("\n".join(statement.text for statement in self.setup), given)
        arguments: list[Tensor] = [given[name] for name in names]
        found = [arguments]
        for level in reversed(self.levels):
            if level.size:
                arguments = [
                    x if dim is None else x.select(dim, 0) for x, dim in zip(arguments, level.in_dims, strict=True)
                ]
            found.append(arguments)
        return found[::-1]

    # ---- the program

    def _program(self, names: str, example: list[Tensor]) -> Program | None:
        author = Author(self.rng, grad=False, tensors=dict(zip(names, example, strict=True)))
        storages = {author.tensors[name].untyped_storage().data_ptr() for name in self.fixed}
        body: list[Statement] = []
        for n in range(self.rng.randint(2, 7)):
            body += self._thematic(author, n, storages) or _statement(author, n, storages)
        result = self._result(author)
        return Program(tuple(self.setup), tuple(names), tuple(body), result) if result else None

    def _thematic(self, author: Author, n: int, fixed: set[int]) -> list[Statement]:
        """A statement about the theme, or mostly none."""
        if self.theme is None or self.rng.random() > THEMATIC:
            return []
        if self.rng.random() < 0.5:
            return _attempt(author, self.theme.values, f"v{n} = {{}}", list(author.tensors), may_raise=False)
        return _attempt(author, self.theme.writes, "{}", _writable(author, fixed), may_raise=False)

    def _result(self, author: Author) -> str:
        """One tensor, or a tuple of some, rather of the last; none of complex numbers."""
        floats = [name for name, tensor in author.tensors.items() if tensor.dtype == torch.float64 and tensor.numel()]
        weights = [1 + 2 * n for n in range(len(floats))]
        chosen = dict.fromkeys(self.rng.choices(floats, weights=weights, k=self.rng.choice((1, 1, 2, 3))))
        return next(iter(chosen)) if len(chosen) == 1 else f"({', '.join(chosen)},)"

    # ---- the nest

    def _texts(self, program: Program, arguments: list[list[Tensor]]) -> Iterator[str]:
        """The transforms, each by what the oracle gives inside of it."""
        texts: list[str] = []
        for level, inside, outside in zip(self.levels, arguments, arguments[1:], strict=False):
            nest = Nest(program, tuple(texts))
            if level.size:
                text = self._vmap(level, _results(nest, f"func.vmap(f, {level.in_dims})", outside))
            else:
                text = self._derivative(level.kind, inside, _results(nest, "f", inside))
            texts.append(text)
            yield text

    def _vmap(self, level: Level, results: list[Tensor]) -> str:
        """``vmap`` of a function that has these results, stacked in front."""
        in_dims = self._in_dims(level.in_dims)
        out_dims: object = 0
        if results and all(map(_differs, results)) and self.rng.random() < 0.6:
            lowest = min(x.dim() for x in results) - 1
            out_dims = self.rng.choice((-1, self.rng.randint(0, lowest)))
            if len(results) > 1 and self.rng.random() < 0.5:
                out_dims = tuple(self.rng.randint(-x.dim(), x.dim() - 1) for x in results)
        chunk = f", chunk_size={self.rng.randint(1, 2)}" if self.rng.random() < 0.1 else ""
        chunk = self.theme.vmap or chunk if self.theme else chunk
        return f"func.vmap(f, in_dims={in_dims}, out_dims={out_dims}{chunk})"

    def _in_dims(self, dims: InDims) -> object:
        """The dimensions, as one number where they are one and chance has it."""
        return dims[0] if len(set(dims)) == 1 and self.rng.random() < 0.7 else dims

    def _derivative(self, kind: str, inside: list[Tensor], results: list[Tensor]) -> str:
        if kind in ALL_ARGUMENTS:
            return f"{kind}(func, f)"
        count = len(inside)
        some = tuple(sorted(self.rng.sample(range(count), self.rng.randint(1, count))))
        argnums: int | tuple[int, ...] = some[0] if len(some) == 1 and self.rng.random() < 0.7 else some
        by, of = sum(inside[n].numel() for n in some), sum(x.numel() for x in results)
        power = 2 if kind == "second_derivative" else 1
        if "gradient" not in kind and of * by**power > LARGEST_JACOBIAN:
            kind = "gradient"
        return f"{kind}(func, f, {argnums})"


def _statement(author: Author, n: int, fixed: set[int]) -> list[Statement]:
    """A view, a value, a write to what is not fixed, or zeros that are written; now and then one that eager refuses."""
    match author.rng.choices(("view", "value", "write", "fill"), weights=(32, 20, 38, 10))[0]:
        case "view":
            return _attempt(author, VIEWS, f"v{n} = {{}}", list(author.tensors), may_raise=True)
        case "value":
            return _attempt(author, VALUES, f"v{n} = {{}}", list(author.tensors), may_raise=False)
        case "write":
            return _attempt(author, WRITES, "{}", _writable(author, fixed), may_raise=True)
        case _:
            tensor = author.tensors[author.recent(list(author.tensors))]
            zeros = author.say(f"v{n} = torch.zeros({tuple(tensor.shape)}, dtype={tensor.dtype})")
            return zeros + _attempt(author, WRITES, "{}", [f"v{n}"], may_raise=False)


def _writable(author: Author, fixed: set[int]) -> list[str]:
    """The names that may be written; mostly only those that share memory with another.

    A view that repeats an element is not: autograd's own gradient of a write to it is not that of its values.
    """
    storage = {name: tensor.untyped_storage().data_ptr() for name, tensor in author.tensors.items()}
    names = [name for name, tensor in author.tensors.items() if storage[name] not in fixed and not _repeats(tensor)]
    shared = [name for name in names if list(storage.values()).count(storage[name]) > 1]
    return shared if shared and author.rng.random() < 0.7 else names


def _repeats(tensor: Tensor) -> bool:
    """Whether two indices of the tensor show one element."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    last = sum((size - 1) * stride for size, stride in zip(real.shape, real.stride(), strict=True))
    places = torch.arange(last + 1).as_strided(real.shape, real.stride(), 0) if real.numel() else torch.empty(0)
    return len(places.unique()) < places.numel()


def _attempt(author: Author, rows: tuple[Row, ...], form: str, names: list[str], *, may_raise: bool) -> list[Statement]:
    """A statement on one of the names; none if each of some attempts raises."""
    for _ in range(6 if names else 0):
        text = author.text(rows, author.recent(names))
        try:
            if text:
                return author.say(form.format(text))
        except Exception:
            if may_raise and author.rng.random() < KEPT_ERRORS:
                return [Statement(form.format(text))]
    return []


def _results(nest: Nest, around: str, arguments: list[Tensor]) -> list[Tensor]:
    """What the oracle gives for a nest so far, with one transform around; nothing where it raises."""
    whole = replace(nest, transforms=(*nest.transforms, around))
    try:
        return list(leaves(whole.under(Oracle(), whole.function)(*arguments)))
    except Exception:
        return []


def _differs(stacked: Tensor) -> bool:
    """Whether examples differ, so that the result is batched.

    Where it is not, and is to be put elsewhere than in front, ``torch.func.vmap`` gives other sizes, or crashes.
    """
    return len(stacked) > 1 and not torch.equal(stacked[0], stacked[1])
