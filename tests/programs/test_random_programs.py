"""Programs nobody thought of: what purefx makes of them cannot be told from eager."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

import purefx
from tests.programs.generate import programs, raises, seeded_programs
from tests.programs.program import Program
from tests.support.oracle import assert_same_as_eager, differences_from_eager

CHUNK = 50


@pytest.mark.parametrize("start", range(0, 500, CHUNK))
def test_random_programs_cannot_be_told_from_eager(start: int) -> None:
    for _, program in seeded_programs(range(start, start + CHUNK), grad=False):
        assert_same_as_eager(program.run, program.make_arguments, system=program.under(purefx.compile))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_drawn_programs_cannot_be_told_from_eager(program: Program) -> None:
    assert_same_as_eager(program.run, program.make_arguments, system=program.under(purefx.compile))


@pytest.mark.parametrize("start", range(0, 300, CHUNK))
def test_random_programs_with_gradients_are_right_or_refused(start: int) -> None:
    for _, program in seeded_programs(range(start, start + CHUNK), grad=True):
        found = differences_from_eager(program.run, program.make_arguments, system=program.under(purefx.compile))
        refused = any("GradientsRefused" in str(difference.system) for difference in found)
        assert refused or not found or raises(program), program.source()
