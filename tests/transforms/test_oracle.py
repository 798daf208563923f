"""The oracle and the programs that it judges are sound themselves."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor

from tests.programs.program import Program, Statement
from tests.transforms.adapters import total
from tests.transforms.generate import random_nest, seeded_nests
from tests.transforms.judge import SYSTEMS, Declined, Gives, Right, Wrong, judge, outcome, verdict, with_oracle
from tests.transforms.nest import Nest
from tests.transforms.oracle import Oracle, copy_in_strides

ORACLE = Oracle()
STEP = 1e-6


def nest_of(program: str, *transforms: str, argument: str = "torch.ones(2, dtype=torch.float64)") -> Nest:
    """A nest around a function of ``a`` that says one line and returns ``a``."""
    return Nest(Program((Statement(f"a = {argument}"),), ("a",), (Statement(program),), "a"), transforms)


def test_a_seed_says_what_the_nest_is() -> None:
    assert random_nest(Random(7)) == random_nest(Random(7))


def test_the_source_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    nest = next(nest for _, nest in seeded_nests(range(100)) if isinstance(judge(nest, "torch.func"), Right))
    exec(compile(nest.source(), "<source>", "exec"), {"__name__": "__main__"})
    assert "tensor(" in capsys.readouterr().out


def test_the_oracle_cannot_be_told_from_torch_where_torch_does_not_raise() -> None:
    verdicts = [judge(nest, "torch.func") for _, nest in seeded_nests(range(100))]
    assert not [verdict for verdict in verdicts if isinstance(verdict, Wrong)]
    assert sum(isinstance(verdict, Right) for verdict in verdicts) > 60


def test_programs_say_each_transform_and_some_raise() -> None:
    nests = [nest for _, nest in seeded_nests(range(200))]
    texts = " ".join(text for nest in nests for text in nest.transforms)
    for kind in ("vmap", "gradient(", "gradient_and_value", "pulled", "pushed", "linearized", "jacobian_reverse"):
        assert texts.count(kind) >= 3, kind
    raising = [nest for nest in nests if isinstance(outcome(nest, with_oracle(ORACLE)), Exception)]
    assert 2 <= len(raising) <= 20


def test_gradients_are_those_of_differences() -> None:
    tried = 0
    for _, nest in seeded_nests(range(40)):
        inputs = [x.detach().clone() for x in nest.make_inputs()]
        program = Nest(nest.program, ())
        tried += assert_gradients_by_differences(program, inputs)
    assert tried > 10


def assert_gradients_by_differences(nest: Nest, inputs: list[Tensor]) -> bool:
    """Compare each element of the gradient by the first input; whether the program runs on these inputs."""
    function = total(nest.function)

    def value(x: Tensor) -> float:
        return float(function(x, *(other.clone() for other in inputs[1:])))

    try:
        (found,) = ORACLE.grad(function, (0,))(*(x.clone() for x in inputs))
    except (RuntimeError, IndexError):
        return False
    found = found.detach()
    for n in range(inputs[0].numel()):
        step = torch.zeros(inputs[0].numel(), dtype=torch.float64)
        step[n] = STEP
        moved = [value(inputs[0] + sign * step.reshape(inputs[0].shape)) for sign in (1, -1)]
        expected = (moved[0] - moved[1]) / (2 * STEP)
        assert abs(expected - float(found.flatten()[n])) < 1e-5 * max(1, abs(expected)), nest.source()
    return True


def test_a_written_example_is_the_argument() -> None:
    found = outcome(nest_of("a.mul_(3)", "func.vmap(f, in_dims=0)"), with_oracle(ORACLE))
    assert isinstance(found, Gives)
    assert found.arguments[0].tolist() == [3.0, 3.0]


def test_a_derivative_writes_once() -> None:
    for transform in ("pushed(func, f)", "jacobian_forward(func, f, 0)", "second_derivative(func, f, 0)"):
        found = outcome(nest_of("a.mul_(3)", transform), with_oracle(ORACLE))
        assert isinstance(found, Gives)
        assert found.arguments[0].tolist() == [3.0, 3.0], transform


def test_autograd_declines_what_the_lenient_oracle_differentiates() -> None:
    for write in ("a.mul_(3)", "b = a.exp(); b.add_(1); a = b", "b = a * 1; b.unbind(0)[0].mul_(2); a = b"):
        nest = nest_of(write, "gradient(func, f, 0)")
        assert isinstance(outcome(nest, with_oracle(ORACLE)), Gives), write
        assert isinstance(outcome(nest, with_oracle(Oracle(lenient=False))), RuntimeError), write
        assert isinstance(judge(nest, "torch.func"), Declined), write


def test_the_gradient_of_what_is_written_later_is_that_of_its_value() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.exp()
        y.mul_(y)
        return y.sum()

    x = torch.tensor([0.5, -1.0], dtype=torch.float64)
    torch.testing.assert_close(ORACLE.grad(f)(x), 2 * (2 * x).exp())
    torch.testing.assert_close(ORACLE.hessian(f)(x), torch.diag(4 * (2 * x).exp()))
    torch.testing.assert_close(ORACLE.jvp(f, (x,), (x,))[1], (2 * x * (2 * x).exp()).sum())


def test_what_the_loop_refuses_a_system_must_refuse() -> None:
    turned = "torch.arange(6, dtype=torch.float64).reshape(3, 2, 1).permute(2, 1, 0)"
    nest = nest_of("a = a.view(-1)", "func.vmap(f, in_dims=0)", argument=turned)
    assert isinstance(judge(nest, "torch.func"), Right)
    reshaping = Nest(nest_of("a = a.reshape(-1)", argument=turned).program, nest.transforms)
    assert isinstance(verdict(nest, lambda _: SYSTEMS["torch.func"](reshaping)), Wrong)


def test_a_copy_has_the_strides_and_the_gradient_of_each_index() -> None:
    x = torch.arange(12.0, dtype=torch.float64)[2:].as_strided((2, 3), (1, 2)).unsqueeze(0).expand(2, 2, 3)
    tracked = x.clone().requires_grad_()
    copy = copy_in_strides(x)
    assert (copy.stride(), copy.storage_offset()) == (x.stride(), x.storage_offset())
    assert torch.equal(copy, x)
    (gradient,) = torch.autograd.grad(copy_in_strides(tracked).sum(), tracked)
    assert torch.equal(gradient, torch.ones_like(x))
