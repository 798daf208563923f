"""An explanation says what is saved for the backward and why, what is computed again, and what raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import purefx
from purefx.report.contract import Autograd, NewMemory, View
from purefx.report.gradients import Gradients, Recomputed, Residual, infer_gradients


def leaf(*sizes: int) -> Tensor:
    return torch.ones(*sizes, requires_grad=True)


def gradients(function: Any, *args: Any, partition: Any = "default") -> Gradients:
    found = purefx.explain(function, *args, partition=partition).gradients
    assert found is not None
    return found


def loss(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).exp().sum()


def test_without_gradients_there_is_no_section() -> None:
    explanation = purefx.explain(loss, torch.ones(2, 3), torch.ones(3))
    assert explanation.gradients is None
    assert "\ngradients\n" not in str(explanation)


def test_what_is_saved_is_told_with_its_size_and_its_readers() -> None:
    found = gradients(loss, leaf(2, 3), leaf(3))
    line = f"test_gradients.py:{loss.__code__.co_firstlineno + 1}"
    assert found.residuals == (
        Residual("memory of w", "float32[3]", 12, alone=False, readers=("mul",)),
        Residual("memory of x", "float32[2, 3]", 24, alone=False, readers=("mul",)),
        Residual("exp", "float32[2, 3]", 24, alone=True, readers=("mul",), line=line),
    )
    assert (found.bytes_alone, found.bytes_anyway) == (24, 36)


def test_the_text_of_the_section() -> None:
    text = str(purefx.explain(loss, leaf(2, 3), leaf(3)))
    line = loss.__code__.co_firstlineno + 1
    assert (
        f"""
gradients
  given those of result: of x, w
  saved: 24 bytes for the backward alone, 36 bytes that are there anyway
    memory of w: float32[3], 12 bytes that are there anyway, read by mul
    memory of x: float32[2, 3], 24 bytes that are there anyway, read by mul
    exp: float32[2, 3], 24 bytes, read by mul   test_gradients.py:{line}
"""
        in text
    )


def test_a_view_of_a_saved_value_is_no_reader() -> None:
    found = gradients(torch.mm, leaf(2, 3), leaf(3, 2))
    assert {residual.readers for residual in found.residuals} == {("mm",)}


def test_a_result_that_is_saved_is_there_anyway() -> None:
    (residual,) = gradients(torch.sigmoid, leaf(3)).residuals
    assert (residual.name, residual.alone) == ("result", False)


def test_min_cut_computes_again_what_the_default_saves() -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin().exp().sum()

    assert [r.name for r in gradients(f, leaf(3)).residuals] == ["memory of x", "exp"]
    found = gradients(f, leaf(3), partition="min_cut")
    assert found.bytes_alone == 0
    assert {Recomputed("sin", "float32[3]"), Recomputed("exp", "float32[3]")} <= set(found.recomputed)


def test_a_checkpoint_computes_again() -> None:
    def f(x: Tensor) -> Any:
        return checkpoint(lambda y: y.sin().exp(), x, use_reentrant=False)

    found = gradients(f, leaf(3))
    assert [r.op for r in found.recomputed] == ["sin", "exp", "cos"]
    assert "computed in the backward of saved values alone" in str(purefx.explain(f, leaf(3)))


def test_sizes_that_are_symbols_are_counted_in_symbols() -> None:
    program = purefx.trace(loss, leaf(2, 3), leaf(3), dynamic=True)
    found = infer_gradients(program.stages)
    assert found is not None
    x = program.stages.capture.inputs[0].before.geometry
    assert str(found.bytes_alone) == str(4 * x.sizes[0] * x.sizes[1])
    assert "int,  # saved: a size" in str(program)


def test_a_leaf_that_nothing_flows_to_is_told() -> None:
    found = gradients(lambda x, y: (x * 2, y.detach()), leaf(3), leaf(3))
    assert (found.targets, found.unreached) == (("x",), ("y",))


def test_patterns_that_raise_are_told_with_the_error_of_eager() -> None:
    def f(x: Tensor) -> Any:
        h = x * 2
        a, b = h * h, h.exp()
        first = b.sum()
        b.add_(1)
        return a, first

    found = gradients(f, leaf(3))
    assert {raised.tangents for raised in found.raised} == {("result[0]", "result[1]"), ("result[1]",)}
    assert all("modified by an inplace operation" in str(raised) for raised in found.raised)
    assert purefx.trace(f, leaf(3)).backward_graphs == (None,)
    text = str(purefx.trace(f, leaf(3)))
    assert "# f_backward of all tangents together raises: one of the variables needed" in text
    assert "def f_backward_of_tangent_0(" in text


def test_a_result_that_is_a_function_of_another_has_a_backward_of_its_own() -> None:
    def f(x: Tensor) -> Any:
        y = x * 2
        return y, y.sin()

    (dependence,) = gradients(f, leaf(3)).dependences
    assert str(dependence) == "those of result[1] come by way of result[0]"
    text = str(purefx.trace(f, leaf(3)))
    first, second = text.partition("def f_backward_0(")[2].split("def f_backward_1(")
    assert "# gradient of x" in first
    assert "# gradient of result[0]" in second
    assert "# gradient of x" not in second


def test_the_signature_says_who_gets_a_gradient() -> None:
    base = leaf(3, 2) * 1

    def f(x: Tensor, y: Tensor, z: Tensor) -> None:
        x.mul_(y)
        z.requires_grad_()

    x, y, z = purefx.trace(f, base[:2], leaf(2), torch.ones(2)).signature.arguments
    assert (x.autograd, y.autograd, z.autograd) == (
        (Autograd.GRADIENT_OF_BASE,),
        (Autograd.GRADIENT,),
        (Autograd.BEGINS,),
    )
    assert [write.history for write in x.writes] == ["x"]
    assert str(x) == "x: float32[2, 2], x: 4 elements written (into the history of x), its base gets the gradient"
    assert str(y) == "y: float32[2], read only, gets a gradient"


def test_a_write_without_gradients_is_in_no_history() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            x.mul_(y)
        return x * y

    x, _ = purefx.trace(f, torch.ones(2), leaf(2)).signature.arguments
    assert [write.history for write in x.writes] == [None]


@pytest.mark.parametrize(
    ("function", "kind", "state"),
    [
        (lambda x: x * 2, NewMemory, Autograd.HISTORY),
        (lambda x: (x * 2).t(), View, Autograd.HISTORY),
        (lambda x: (x * 2).detach(), NewMemory, None),
        (lambda x: (x * 2).detach().requires_grad_(), NewMemory, Autograd.LEAF),
    ],
    ids=["made", "view", "detached", "leaf"],
)
def test_the_signature_says_which_results_are_leaves(function: Any, kind: type, state: Autograd | None) -> None:
    (result,) = purefx.trace(function, leaf(2, 3)).signature.results
    assert isinstance(result, NewMemory | View)
    assert (type(result), result.autograd) == (kind, state)
