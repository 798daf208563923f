"""Random programs are sound themselves: repeatable, printable, rarely in error, full of sharing."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings

from tests.programs.generate import programs, raises, random_program, seeded_programs
from tests.programs.program import Program, Statement
from tests.programs.vocabulary import VOCABULARY, tensors
from tests.support.oracle import assert_same_as_eager, differences_from_eager
from tests.support.systems import eager, on_arguments, on_outputs


def test_a_seed_says_what_the_program_is() -> None:
    assert random_program(Random(7), grad=True) == random_program(Random(7), grad=True)


def test_eager_cannot_be_told_from_eager_on_random_programs() -> None:
    for _, program in seeded_programs(range(100)):
        assert_same_as_eager(program.run, program.make_arguments, system=program.under(eager))


@settings(max_examples=30, deadline=None)
@given(programs(grad=True))
def test_drawn_programs_run_twice_alike(program: Program) -> None:
    assert_same_as_eager(program.run, program.make_arguments, system=program.under(eager))


def test_the_source_is_the_program() -> None:
    program = random_program(Random(3))
    namespace: dict[str, object] = {}
    exec(program.source(), namespace)
    assert set(namespace) >= {"make_inputs", "program"}


def test_few_programs_raise_and_many_show_lost_sharing() -> None:
    made = [program for _, program in seeded_programs(range(200))]
    assert 2 <= sum(map(raises, made)) <= 30
    cloning = on_arguments(lambda tensor: tensor.clone())
    caught = [p for p in made if differences_from_eager(p.run, p.make_arguments, system=p.under(cloning))]
    assert len(caught) > 100


def test_programs_with_gradients_say_all_that_autograd_lets_them() -> None:
    sources = [program.source() for _, program in seeded_programs(range(300), grad=True)]
    for text in (*VOCABULARY, "requires_grad_()", "requires_grad_(False)", "detach_()", "register_hook", "no_grad"):
        assert sum(text in source for source in sources) >= 3, text


def test_a_caller_writes_results_and_calls_again() -> None:
    later = [program.later for _, program in seeded_programs(range(200))]
    texts = [statement.text for statements in later for statement in statements]
    assert sum(text.startswith("r0") for text in texts) > 10
    assert sum(text.startswith("program(") for text in texts) > 10


def test_what_a_caller_does_later_is_observed() -> None:
    made, write = (Statement("x = torch.ones(2, requires_grad=True)"),), Statement("r0.mul_(3)")
    program = Program(made, ("x",), (), "x * 2", later=(write,))
    assert torch.equal(tensors(program.outcome())[0], torch.full((2,), 6.0))
    detaching = on_outputs(lambda tensor: tensor.detach())
    with pytest.raises(AssertionError, match=r"r0\.mul_\(3\)"):
        assert_same_as_eager(program.run, program.make_arguments, system=program.under(detaching))


def test_what_a_program_holds_is_put_back() -> None:
    write = Statement("w.add_(a)")
    program = Program((Statement("a = torch.ones(4)"),), ("a",), (write,), "w", held="torch.zeros(4)")
    assert program.run(*program.make_inputs()) is program.run(*program.make_inputs())
    assert_same_as_eager(program.run, program.make_arguments, system=program.under(eager))
