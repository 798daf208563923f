"""Programs and nests nobody thought of: what purefx gives is what loops and autograd give."""

from __future__ import annotations

import pytest

from tests.transforms.generate import THEMES, seeded_nests
from tests.transforms.support import assert_right

pytest.importorskip("purefx.func")
CHUNK = 10


@pytest.mark.parametrize("start", range(0, 60, CHUNK))
def test_transforms_of_purefx_are_right(start: int) -> None:
    assert_right(nest for _, nest in seeded_nests(range(start, start + CHUNK)))


@pytest.mark.parametrize("system", ["compile", "functionalize", "over"])
@pytest.mark.parametrize("start", range(60, 80, CHUNK))
def test_transforms_of_torch_are_right_around_what_purefx_makes(start: int, system: str) -> None:
    assert_right((nest for _, nest in seeded_nests(range(start, start + CHUNK))), system)


@pytest.mark.parametrize("system", ["purefx.func", "compile", "over"])
@pytest.mark.parametrize("theme", THEMES)
def test_transforms_are_right_about_what_is_told_and_drawn(theme: str, system: str) -> None:
    assert_right((nest for _, nest in seeded_nests(range(20), THEMES[theme])), system)


@pytest.mark.parametrize("start", range(0, 30, CHUNK))
def test_a6_derivatives_of_functions_that_reach_their_arguments_by_themselves(start: int) -> None:
    assert_right((nest.beside() for _, nest in seeded_nests(range(start, start + CHUNK))), refusals=1)
