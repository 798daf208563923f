"""A program prints as Python with the geometry of every value, and tells its signature."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx.report.contract import NewMemory, SameObject, Value, View
from tests.support.oracle import assert_same_as_eager


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


TRAINED = """\
def loss(
    x: float32[2, 3],  # strides (3, 1)   memory of x, saved for the backward
    w: float32[3],  # strides (1,)   memory of w, saved for the backward
):
    mul: float32[2, 3] = aten.mul.Tensor(x, w)  # strides (3, 1)
    select: float32[3] = aten.select.int(mul, 0, 0)  # strides (1,)
    mul_1: float32[3] = aten.mul.Tensor(select, 2)  # strides (1,)
    view: float32[1, 3] = aten.view.default(mul_1, [1, 3])  # strides (3, 1)
    slice: float32[1, 3] = aten.slice.Tensor(mul, 0, 1, 2, 1)  # strides (3, 1)
    cat: float32[2, 3] = aten.cat.default([view, slice], 0)  # strides (3, 1)
    exp: float32[2, 3] = aten.exp.default(cat)  # strides (3, 1)
    sum: float32[()] = aten.sum.default(exp)  # strides ()
    return (
        sum,  # result
        exp,  # saved for the backward
    )


def loss_backward(
    w: float32[3],  # strides (1,)   saved: memory of w
    x: float32[2, 3],  # strides (3, 1)   saved: memory of x
    exp: float32[2, 3],  # strides (3, 1)   saved: a value of the forward
    tangent_0: float32[()],  # strides ()   tangent of result
):
    expand: float32[2, 3] = aten.expand.default(tangent_0, [2, 3])  # strides (0, 0)
    mul: float32[2, 3] = aten.mul.Tensor(expand, exp)  # strides (3, 1)
    select: float32[3] = aten.select.int(mul, 0, 0)  # strides (1,)
    clone: float32[3] = aten.clone.default(select, memory_format=torch.contiguous_format)  # strides (1,)
    mul_1: float32[3] = aten.mul.Tensor(clone, 2)  # strides (1,)
    view: float32[1, 3] = aten.view.default(mul_1, [1, 3])  # strides (3, 1)
    slice: float32[1, 3] = aten.slice.Tensor(mul, 0, 1, 2, 1)  # strides (3, 1)
    cat: float32[2, 3] = aten.cat.default([view, slice], 0)  # strides (3, 1)
    mul_2: float32[2, 3] = aten.mul.Tensor(cat, x)  # strides (3, 1)
    mul_3: float32[2, 3] = aten.mul.Tensor(cat, w)  # strides (3, 1)
    sum: float32[1, 3] = aten.sum.dim_IntList(mul_2, [0], True)  # strides (3, 1)
    view_1: float32[3] = aten.view.default(sum, [3])  # strides (1,)
    return (
        mul_3,  # gradient of x
        view_1,  # gradient of w
    )

# x: float32[2, 3], read only, gets a gradient
# w: float32[3], read only, gets a gradient
# result: float32[], new memory, requires grad"""

WRITTEN = """\
def scale(
    x: float32[2, 2],  # strides (2, 1)   memory of x
    w: float32[2],  # strides (1,)   memory of w, saved for the backward
):
    select: float32[2] = aten.select.int(x, 1, 0)  # strides (2,)
    clone: float32[2] = aten.clone.default(select)  # strides (1,)
    mul: float32[2] = aten.mul.Tensor(select, w)  # strides (1,)
    return (
        mul,  # written back: x[:, 0]
        clone,  # saved for the backward
    )


def scale_backward(
    w: float32[2],  # strides (1,)   saved: memory of w
    clone: float32[2],  # strides (1,)   saved: a value of the forward
    tangent_0: float32[2],  # strides (1,)   tangent of what is written to x[:, 0]
):
    select_backward: float32[2, 2] = aten.select_backward.default(tangent_0, [2, 2], 1, 0)  # strides (2, 1)
    select: float32[2] = aten.select.int(select_backward, 1, 0)  # strides (2,)
    clone_1: float32[2] = aten.clone.default(select, memory_format=torch.contiguous_format)  # strides (1,)
    mul: float32[2] = aten.mul.Tensor(clone_1, clone)  # strides (1,)
    mul_1: float32[2] = aten.mul.Tensor(clone_1, w)  # strides (1,)
    view: float32[2, 1] = aten.view.default(mul_1, [2, 1])  # strides (1, 1)
    slice: float32[2, 1] = aten.slice.Tensor(select_backward, 1, 1, 2, 1)  # strides (2, 1)
    cat: float32[2, 2] = aten.cat.default([view, slice], 1)  # strides (2, 1)
    return (
        cat,  # gradient of x
        mul,  # gradient of w
    )

# x: float32[2, 2], x[:, 0]: 2 elements written (into the history of x), gets a gradient
# w: float32[2], read only, gets a gradient
# result: None"""


def loss(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y[0].mul_(2)
    return y.exp().sum()


def scale(x: Tensor, w: Tensor) -> None:
    x[:, 0].mul_(w)


def traced_step() -> purefx.Program:
    return purefx.trace(step, torch.ones(2, 3), torch.zeros(4, 3))


def test_the_text_of_a_program_that_writes_a_region() -> None:
    assert lines_removed(str(traced_step())) == STEP


def test_the_text_of_a_program_with_an_elected_base() -> None:
    x = torch.zeros(5)
    assert lines_removed(str(purefx.trace(add_one, x, x[1:]))) == ELECTED


def test_the_text_of_a_program_with_gradients() -> None:
    program = purefx.trace(loss, torch.ones(2, 3, requires_grad=True), torch.ones(3, requires_grad=True))
    assert lines_removed(str(program)) == TRAINED
    ast.parse(str(program))


def test_the_text_of_a_write_through_a_view_whose_base_has_a_history() -> None:
    x, w = torch.ones(2, 2, requires_grad=True) * 1, torch.ones(2, requires_grad=True)
    text = lines_removed(str(purefx.trace(scale, x, w)))
    assert text == WRITTEN


def test_a_program_has_the_graph_of_its_backward() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    (graph,) = purefx.trace(loss, x, torch.ones(3)).backward_graphs
    assert graph is not None
    assert [node.name for node in graph.find_nodes(op="placeholder")] == ["args_1", "exp_default", "tangent_0"]
    assert purefx.trace(loss, x.detach(), torch.ones(3)).backward_graphs == ()


VIEWS: dict[str, Any] = {
    "select": lambda x: x[0].mul_(2),
    "slice": lambda x: x[1:].exp_(),
    "transpose": lambda x: x.t()[1].mul_(3),
    "diagonal": lambda x: x.diagonal().mul_(2),
    "view": lambda x: x.view(-1)[::2].mul_(2),
    "unfold": lambda x: x.view(-1).unfold(0, 2, 2).mul_(2),
}


@pytest.mark.parametrize("write", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("inside", [True, False], ids=["made inside", "an argument"])
def test_writes_through_views_have_a_backward_of_view_operators(write: Any, *, inside: bool) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2 if inside else x
        write(y)
        return y.sin().sum()

    graphs = purefx.trace(f, torch.ones(3, 3, requires_grad=True) * 1).backward_graphs
    nodes = [node for graph in graphs if graph is not None for node in graph.nodes]
    assert nodes
    assert [node.name for node in nodes if "as_strided" in str(node.target)] == []


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


def a_view_of_a_turned_result_is_written(x: Tensor) -> Any:
    y = x * 2
    v = y.t()
    y.t_()
    v.add_(1)
    return y, v


def a_saved_value_is_written(x: Tensor) -> Tensor:
    y = x.exp()
    y.view(-1)[0].mul_(2)
    return y


@pytest.mark.parametrize("function", [a_view_of_a_turned_result_is_written, a_saved_value_is_written])
def test_a_dynamic_program_has_the_gradients_of_eager_and_its_errors(function: Any) -> None:
    def traced(f: Any) -> Any:
        return lambda *args: purefx.trace(f, *args, dynamic=True)(*args)

    assert_same_as_eager(function, lambda: (torch.ones(2, 3, requires_grad=True),), system=traced)


def write_an_element(x: Tensor, element: Tensor) -> Any:
    element.mul_(2)
    return x, x[0]


def write_complex_numbers(x: Tensor, element: Tensor) -> Any:
    return x.mul_(1j)


def resize_an_element(x: Tensor, element: Tensor) -> Any:
    return element.resize_(1)


@pytest.mark.parametrize("function", [write_an_element, write_complex_numbers, resize_an_element])
@pytest.mark.parametrize("alive", [False, True])
def test_a_dynamic_program_takes_an_element_and_what_that_is_of(function: Any, *, alive: bool) -> None:
    """Nobody knows how large the memory is; eager's errors about dtypes depend on no size."""

    def arguments() -> tuple[Tensor, Tensor]:
        x = torch.arange(4.0, requires_grad=alive) * 1
        return x, x[1]

    def traced(f: Any) -> Any:
        return lambda *args: purefx.trace(f, *args, dynamic=True)(*args)

    assert_same_as_eager(function, arguments, system=traced)


def test_an_operator_is_refused_that_takes_no_symbols() -> None:
    with pytest.raises(purefx.Refusal, match="diag"):
        purefx.trace(torch.diag, torch.ones(2, 3), dynamic=True)


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
