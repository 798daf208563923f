"""Random programs are sound themselves: repeatable, printable, rarely in error, full of sharing."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings

from tests.programs.generate import programs, raises, random_program, seeded_programs
from tests.programs.program import Program, Statement
from tests.support.oracle import assert_same_as_eager, differences_from_eager
from tests.support.systems import eager, on_arguments


def test_a_seed_says_what_the_program_is() -> None:
    assert random_program(Random(7), grad=True) == random_program(Random(7), grad=True)


def test_eager_cannot_be_told_from_eager_on_random_programs() -> None:
    for _, program in seeded_programs(range(100)):
        assert_same_as_eager(program.function, program.make_arguments, system=eager)


@settings(max_examples=30, deadline=None)
@given(programs(grad=True))
def test_drawn_programs_run_twice_alike(program: Program) -> None:
    assert_same_as_eager(program.function, program.make_arguments, system=eager)


def test_the_source_is_the_program() -> None:
    program = random_program(Random(3))
    namespace: dict[str, object] = {}
    exec(program.source(), namespace)
    assert set(namespace) >= {"make_inputs", "program"}


def test_few_programs_raise_and_many_show_lost_sharing() -> None:
    made = [program for _, program in seeded_programs(range(200))]
    assert 2 <= sum(map(raises, made)) <= 30
    cloning = on_arguments(lambda tensor: tensor.clone())
    caught = [
        program for program in made if differences_from_eager(program.function, program.make_arguments, system=cloning)
    ]
    assert len(caught) > 100


def test_what_a_program_holds_is_put_back() -> None:
    write = Statement("w.add_(a)")
    program = Program((Statement("a = torch.ones(4)"),), ("a",), (write,), "w", held="torch.zeros(4)")
    assert program.run(*program.make_inputs()) is program.run(*program.make_inputs())
    assert_same_as_eager(program.function, program.make_arguments, system=eager)
