"""A program prints as Python with the geometry of every value, and tells its signature."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx.report.contract import NewMemory, SameObject, Value, View


def step(x: Tensor, cache: Tensor) -> Any:
    cache[1:3].copy_(x)
    return cache.view(-1), x + 1, cache, 3


def add_one(a: Tensor, b: Tensor) -> Any:
    a.add_(1)
    return b * 2


def lines_removed(text: str) -> str:
    """``text`` without the places in this file, which move with every edit of it."""
    return "\n".join(line.partition("   test_program.py:")[0].rstrip() for line in text.splitlines())


STEP = """\
def step(
    x: float32[2, 3],  # strides (3, 1)   memory of x
):
    add: float32[2, 3] = aten.add.Tensor(x, 1)  # strides (3, 1)
    clone: float32[2, 3] = aten.clone.default(x)  # strides (3, 1)
    return (
        clone,  # written back: cache[1:3]
        add,  # result[1]
    )

# x: float32[2, 3], read only
# cache: float32[4, 3], cache[1:3]: 6 elements written
# result[0]: float32[12], made again as cache.view([-1])
# result[1]: float32[2, 3], new memory
# result[2]: float32[4, 3], the object cache
# result[3]: 3"""

ELECTED = """\
def add_one(
    a: float32[5],  # strides (1,)   memory of a, and of b in it
):
    add: float32[5] = aten.add.Tensor(a, 1)  # strides (1,)
    slice: float32[4] = aten.slice.Tensor(add, 0, 1, 5, 1)  # strides (1,)
    mul: float32[4] = aten.mul.Tensor(slice, 2)  # strides (1,)
    return (
        add,  # written back: a
        mul,  # result
    )

# a: float32[5], a: 5 elements written
# b: float32[4], b: 4 elements written
# result: float32[4], new memory"""


def traced_step() -> purefx.Program:
    return purefx.trace(step, torch.ones(2, 3), torch.zeros(4, 3))


def test_the_text_of_a_program_that_writes_a_region() -> None:
    assert lines_removed(str(traced_step())) == STEP


def test_the_text_of_a_program_with_an_elected_base() -> None:
    x = torch.zeros(5)
    assert lines_removed(str(purefx.trace(add_one, x, x[1:]))) == ELECTED


def test_a_synthetic_base_is_said_to_be_one() -> None:
    x = torch.zeros(5)
    text = str(purefx.trace(add_one, x[:3], x[1:]))
    assert "base: float32[5],  # strides (1,)   synthetic base of a and b" in text
    assert "# written back: base[:3]" in text


def test_each_line_names_the_line_of_the_user() -> None:
    add = next(line for line in str(traced_step()).splitlines() if "aten.add.Tensor" in line)
    assert add.endswith(f"test_program.py:{step.__code__.co_firstlineno + 2}")


def test_a_shared_base_names_the_results_that_show_it() -> None:
    def f(x: Tensor) -> Any:
        y = x * 2
        return y[0], {"rest": y[1:]}

    text = str(purefx.trace(f, torch.ones(3, 2)))
    assert "mul,  # base, base of result[0] and result[1]['rest']" in text


def test_sizes_are_inputs_of_a_dynamic_program() -> None:
    def f(x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[0] * 2)

    text = str(purefx.trace(f, torch.ones(3, 4), dynamic=True))
    assert "int,  # a size" in text
    assert "mul = 2 * s" in text
    ast.parse(text)


@pytest.mark.parametrize("function", [step, add_one], ids=lambda f: f.__name__)
def test_the_text_is_python_and_the_same_each_time(function: Any) -> None:
    def text() -> str:
        return str(purefx.trace(function, torch.ones(2, 3), torch.zeros(4, 3)))

    ast.parse(text())
    assert text() == text()
    assert text().startswith(f"def {function.__name__}(")


def test_a_tuple_result_and_a_constant_are_python_too() -> None:
    def f(x: Tensor) -> Any:
        values, indices = x.topk(2)
        return values + torch.tensor([1.0, 2.0]), indices

    text = str(purefx.trace(f, torch.ones(3, 4)))
    assert "topk_1: int64[3, 2] = topk[1]" in text
    assert "tensor([1.0, 2.0])" in text
    ast.parse(text)


def test_print_prints_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    program = traced_step()
    program.print()
    assert capsys.readouterr().out == f"{program}\n"


def test_the_signature_is_typed() -> None:
    signature = traced_step().signature
    assert [a.name for a in signature.arguments] == ["x", "cache"]
    assert [w.target for w in signature.arguments[1].writes] == ["cache[1:3]"]
    assert [type(r) for r in signature.results] == [View, NewMemory, SameObject, Value]


def test_a_geometry_write_is_part_of_the_signature() -> None:
    def f(x: Tensor) -> None:
        x.t_()

    (argument,) = purefx.trace(f, torch.ones(2, 3)).signature.arguments
    assert argument.writes == ()
    assert str(argument) == "x: float32[2, 3], becomes float32[3, 2], strides (1, 3)"


def test_keywords_and_containers_are_named_as_they_are_typed() -> None:
    def f(state: dict[str, Tensor], *rest: Tensor, scale: Tensor) -> None:
        state["w"].mul_(scale)
        rest[0].zero_()

    program = purefx.trace(f, {"w": torch.ones(2)}, torch.ones(2), scale=torch.ones(2))
    assert [a.name for a in program.signature.arguments] == ["state['w']", "args[1]", "scale"]


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="traced for other arguments"):
        traced_step()(torch.ones(3, 3), torch.zeros(4, 3))


def test_a_program_says_which_condition_does_not_hold() -> None:
    program = purefx.trace(lambda x: x * 2, torch.ones(2))
    with pytest.raises(ValueError, match=r"it must hold that x: shape == \(2,\)"):
        program(torch.ones(3))
    with pytest.raises(ValueError, match="structure"):
        program(torch.ones(2), 1)
    dynamic = purefx.trace(lambda x: x * 2, torch.ones(2, 3), dynamic=True)
    with pytest.raises(ValueError, match=r"it must hold that x: dim\(\) == 2"):
        dynamic(torch.ones(3))


def test_a_recapture_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    compiled = purefx.compile(lambda x: x * 2)
    with caplog.at_level("INFO", logger="purefx"):
        compiled(torch.ones(2))
        compiled(torch.ones(2, dtype=torch.float64))
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.endswith("capture 2, as it does not hold that x: dtype is torch.float32")


def test_what_cannot_be_called_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"function given to purefx\.compile cannot be called"):
        purefx.compile(3)  # type: ignore[arg-type]  # the case
    with pytest.raises(TypeError, match=r"backend given to purefx\.compile cannot be called"):
        purefx.compile(torch.sin, backend="inductor")  # type: ignore[arg-type]  # the case
