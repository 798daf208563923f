"""Each kind of error: what happened, where in the user's code, what to do; and nothing is touched."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import purefx
from purefx import errors
from purefx.functional.verify import check_functional
from tests.functional.kinds import ramp


class Opaque:
    """A type that nobody knows."""


@torch.library.custom_op("purefx_errors::secretly_writes", mutates_args=())
def secretly_writes(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


@secretly_writes.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


library = torch.library.Library("purefx_errors", "FRAGMENT")
library.define("without_fake(Tensor x) -> Tensor")
library.impl("without_fake", lambda x: x + 1, "CPU")
library.define("returns_its_argument(Tensor x) -> Tensor")
library.impl("returns_its_argument", lambda x: x, "CPU")
library.impl("returns_its_argument", torch.empty_like, "Meta")


@contextmanager
def untouched(*tensors: Tensor) -> Iterator[None]:
    """Check that the block leaves the tensors and PyTorch's state as they are."""

    def seen() -> list[Any]:
        facts = [(t._version, t.shape, t.stride(), t.storage_offset(), t.requires_grad) for t in tensors]
        modes = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_rng_state().tolist())
        return [*facts, *modes]

    before, values = seen(), [t.detach().clone() for t in tensors]
    yield
    assert seen() == before
    assert all(torch.equal(t, value) for t, value in zip(tensors, values, strict=True))


def error_of(front: Callable[..., Any], function: Callable[..., Any], *args: Any) -> Exception:
    """The error of ``front(function)(*args)``, which leaves ``args`` untouched."""
    with untouched(*(x for x in args if isinstance(x, Tensor))):
        try:
            front(function)(*args)
        except Exception as error:
            return error
    raise AssertionError("nothing was raised")


def refusal(function: Callable[..., Any], *args: Any) -> errors.Refusal:
    """The refusal of ``function``, which has a remedy in its message."""
    error = error_of(purefx.compile, function, *args)
    assert isinstance(error, errors.Refusal), repr(error)
    assert str(error).startswith(error.what)
    assert f"\n  instead: {error.remedy}" in str(error)
    return error


def assert_at(error: errors.Refusal, function: Callable[..., Any], line: int) -> None:
    """The error names line number ``line`` of the body of ``function``."""
    assert error.where is not None
    place = f"{__file__}:{inspect.unwrap(function).__code__.co_firstlineno + line}"
    assert str(error.where) == f"{place} in {function.__name__}"
    assert f"\n  at {place}" in str(error)


# ---- programs that are refused


def test_python_that_asks_for_a_value_is_refused_at_its_line() -> None:
    def program(x: Tensor) -> Tensor:
        x.add_(1)
        if x.sum() > 0:
            return x
        return -x

    error = refusal(program, ramp(3))
    assert isinstance(error, errors.DataDependentControlFlow)
    assert_at(error, program, 2)
    assert error.what.startswith("Python needs ")
    assert "torch.where" in error.remedy


QUESTIONS = {
    "range": lambda x: [x for _ in range(x.sum().long().item())],
    "index": lambda x: x[int(x[1])],
    "bool": lambda x: bool(x[0] == 0),
    "equal": lambda x: torch.equal(x, x + 1),
    "numpy": lambda x: x.numpy().sum(),
    "apply_": lambda x: x.apply_(lambda v: v + 1),
    "map_": lambda x: torch.Tensor.map_(x, x.clone(), lambda a, b: a + b),
    "map2_": lambda x: x.map2_(x.clone(), x.clone(), lambda a, b, c: a + b * c),
    "a list of tensors": lambda x: torch.tensor([x[0], x[1]]),
    "a byte": lambda x: x.untyped_storage()[0],
    "bytes": lambda x: bytes(x.untyped_storage()),
    "bytes in another order": lambda x: x.untyped_storage().byteswap(torch.float32),
    "a copy of a storage": lambda x: x.new_empty(0).set_(x.untyped_storage().clone()),
    "an element of a typed storage": lambda x: x.storage()[0],
    "an element that is written in a typed storage": lambda x: x.storage().__setitem__(0, 1.0),
    "sizes": lambda x: torch.nn.utils.rnn.pad_packed_sequence(
        torch.nn.RNN(1, 2)(torch.nn.utils.rnn.pack_padded_sequence(x[:, None, None], [3]))[0]
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_way_to_ask_for_a_value_is_the_same_error(name: str) -> None:
    assert isinstance(refusal(QUESTIONS[name], ramp(3)), errors.DataDependentControlFlow)


def test_python_is_called_for_no_element_of_a_fake() -> None:
    def each(x: Tensor) -> Tensor:
        return x.clone().apply_(lambda v: v + 1).sum()

    error = refusal(each, ramp(3))
    assert "apply_ calls a function of Python for each element" in error.what
    assert error.where is not None
    assert error.where.function == "each"
    with pytest.raises(RuntimeError, match=r"Can't call apply_\(\)"):
        purefx.trace(each, ramp(3).requires_grad_())
    with pytest.raises(RuntimeError, match=r"data pointer|Can't call apply_"):
        purefx.trace(torch.func.vmap(each), ramp(3, 2))


def test_what_reads_bytes_in_python_is_refused_by_its_name() -> None:
    def swap(x: Tensor) -> Tensor:
        x.untyped_storage().byteswap(x.dtype)
        return x * 2

    error = refusal(swap, ramp(3))
    assert error.what == "UntypedStorage.byteswap reads or moves the bytes of memory in Python"
    assert error.where is not None
    assert error.where.function == "swap"
    swapped = ramp(3)
    swap(swapped)
    assert swapped.tolist() != ramp(3).tolist()


def test_a_slice_that_nobody_can_place_is_refused_before_it_is_written() -> None:
    error = refusal(lambda x, n: x[: n.item()].add_(1), ramp(3), torch.tensor(2))
    assert isinstance(error, errors.UnsupportedOperator)
    assert "that of a slice" in error.what
    assert "mask" in error.remedy


MAKERS = {
    "as_subclass": lambda x: x.as_subclass(Named),
    "a lazy module": lambda x: torch.nn.LazyLinear(2)(x),
    "another dtype of a module": lambda x: torch.nn.Linear(3, 2).to(torch.float64)(x.double()),
    "swapped": lambda x: torch.utils.swap_tensors(x, x + 1),
}


class Named(Tensor):
    """A subclass of tensors that does nothing."""


@pytest.mark.parametrize("name", MAKERS)
def test_what_fakes_cannot_become_is_refused(name: str) -> None:
    error = refusal(MAKERS[name], ramp(3))
    assert isinstance(error, errors.UnsupportedTensor | errors.UnsupportedOperator)
    assert error.where is not None


def test_d9_an_argument_of_an_unknown_type_is_named_by_position_and_type() -> None:
    error = refusal(lambda x, y: x + 1, ramp(3), {"k": [1, Opaque()]})
    assert isinstance(error, errors.UnknownArgumentType)
    assert "args[1]['k'][1] is of type" in error.what
    assert f"{Opaque.__module__}.Opaque" in error.what


def test_a_result_of_an_unknown_type_is_named_by_position_and_type() -> None:
    error = refusal(lambda x: (x.add_(1), {"k": Opaque()}), ramp(3))
    assert isinstance(error, errors.UnknownOutputType)
    assert "output 1 is of type" in error.what
    assert ".Opaque" in error.what


def test_d6_a_change_of_autocast_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        torch.set_autocast_enabled("cpu", True)  # noqa: FBT003
        return x

    enabled = torch.is_autocast_enabled("cpu")
    try:
        error = refusal(program, ramp(3))
    finally:
        torch.set_autocast_enabled("cpu", enabled)
    assert isinstance(error, errors.AutocastChanged)
    assert "autocast" in error.what


@pytest.mark.parametrize("transform", [torch.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())])
def test_a6_a_tensor_of_a_running_transform_has_no_graph(transform: Callable[..., Any]) -> None:
    error = error_of(lambda f: transform(lambda row: purefx.trace(f, {"row": row})), lambda d: d["row"] * 2, ramp(3))
    assert isinstance(error, errors.InvisibleAliasing)
    assert "args[0]['row'] belongs to a running transform" in error.what
    assert "apply the transform inside" in error.remedy


@pytest.mark.parametrize("name", ["secretly_writes", "returns_its_argument"])
def test_an_operator_that_does_more_than_its_schema_says_is_refused_when_it_first_runs(name: str) -> None:
    def program(x: Tensor) -> Tensor:
        y: Tensor = getattr(torch.ops.purefx_errors, name)(x)
        return y * 2

    with pytest.raises(errors.UndeclaredWrite) as caught:
        purefx.compile(program)(ramp(3))
    assert f"purefx_errors.{name}" in caught.value.what
    assert_at(caught.value, program, 1)


def sets_gradient(x: Tensor) -> None:
    x.grad = x.detach() * 2


def writes_twice(x: Tensor) -> None:
    y = x * 1
    torch._foreach_mul_([y[:2], y[:1]], 2)


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (sets_gradient, "sets the gradient of args[0]"),
        (writes_twice, "views that overlap"),
    ],
)
def test_what_would_get_another_history_is_refused(program: Callable[..., Any], what: str) -> None:
    error = refusal(program, torch.ones(3, requires_grad=True))
    assert isinstance(error, errors.GradientsRefused)
    assert what in error.what


def test_memory_that_is_given_away_with_its_history_is_not_detached() -> None:
    def program(x: Tensor, y: Tensor) -> None:
        y.set_(x)
        x.detach_()

    memory = torch.ones(4, requires_grad=True) * 1
    error = refusal(program, memory, memory.detach().view(2, 2))
    assert isinstance(error, errors.GradientsRefused)
    assert "gives another tensor the memory of args[0]" in error.what


@pytest.mark.parametrize("turned", [False, True])
def test_a_write_to_elements_that_a_tensor_does_not_show_is_refused(*, turned: bool) -> None:
    def program(x: Tensor) -> Tensor:
        outside = x.as_strided((2,), (1,), 8)
        if turned:
            x.t_()
        outside.mul_(2)
        return x * 1

    x = torch.zeros(16).as_strided((2, 3), (4, 1), 0).detach()
    x.mul_(torch.ones((), requires_grad=True))
    error = refusal(program, x)
    assert isinstance(error, errors.GradientsRefused)
    assert error.what == "the program writes to elements that args[0] does not show, by a view of it"


def test_a_write_to_other_memory_than_the_history_is_of_is_refused() -> None:
    def program(x: Tensor, y: Tensor) -> None:
        x.data = y
        x.mul_(2)

    error = refusal(program, torch.ones(3, requires_grad=True).clone(), torch.zeros(3))
    assert isinstance(error, errors.GradientsRefused)
    assert "args[0] after it has let it show other memory" in error.what


def test_a_sparse_argument_is_refused() -> None:
    error = error_of(purefx.compile, lambda x: x + 1, [torch.eye(2).to_sparse()])
    assert isinstance(error, errors.UnsupportedTensor)
    assert "args[0][0]" in str(error)
    assert "sparse_coo" in str(error)


def test_a_tensor_that_becomes_sparse_is_refused_at_its_line() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        return y.to_sparse().to_dense()

    error = refusal(program, ramp(2, 2))
    assert isinstance(error, errors.UnsupportedTensor)
    assert_at(error, program, 2)


def test_an_operator_that_cannot_run_on_fakes_is_refused_at_its_line() -> None:
    def program(x: Tensor) -> Tensor:
        x.mul_(2)
        y: Tensor = torch.ops.purefx_errors.without_fake(x)
        return y

    error = refusal(program, ramp(2))
    assert isinstance(error, errors.UnsupportedOperator)
    assert_at(error, program, 2)
    assert "purefx_errors.without_fake" in error.what
    assert "register_fake" in error.remedy


# ---- state that escapes

kept: list[Tensor] = []
counter = torch.zeros(3)


def test_a_variable_bound_to_another_tensor_is_refused_and_put_back() -> None:
    def program(x: Tensor) -> Tensor:
        global counter
        counter = counter + x
        return x

    before = counter
    error = refusal(program, ramp(3))
    assert isinstance(error, errors.EscapedState)
    assert "counter" in error.what
    assert counter is before


def test_a_tensor_held_in_a_list_is_captured_honestly() -> None:
    held = [ramp(2, 3)]

    def program(x: Tensor) -> None:
        held[0].data = x

    purefx.trace(program, torch.ones(3, 2))
    assert held[0].tolist() == ramp(2, 3).tolist()
    purefx.compile(program)(torch.ones(3, 2))
    assert held[0].tolist() == torch.ones(3, 2).tolist()


def test_a_tensor_kept_in_a_list_is_refused() -> None:
    try:
        error = refusal(lambda x: kept.append(x + 1), ramp(3))
    finally:
        kept.clear()
    assert isinstance(error, errors.EscapedState)


def test_a_number_of_a_variable_and_the_length_of_a_list_are_refused_and_put_back() -> None:
    calls, shapes = 0, [1]

    def counts(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x + calls

    def lengthens(x: Tensor) -> Tensor:
        shapes.append(2)
        return x + len(shapes)

    assert "variable calls" in refusal(counts, ramp(3)).what
    assert "shapes, a list" in refusal(lengthens, ramp(3)).what
    assert (calls, shapes) == (0, [1])


def test_a_changed_container_among_the_arguments_is_named_with_the_line_of_what_is_put_there() -> None:
    def program(caches: Any, x: Tensor) -> Tensor:
        y = x + 1
        caches["k"].append(y * 2)
        return y

    error = refusal(program, {"k": [ramp(3)], "v": []}, ramp(3))
    assert isinstance(error, errors.EscapedState)
    assert "args[0]['k']" in error.what
    assert_at(error, program, 2)


def test_a_container_that_loses_an_argument_is_named_with_the_program() -> None:
    def program(x: Tensor, kept: list[Tensor]) -> Tensor:
        kept.clear()
        return x + 1

    error = refusal(program, ramp(3), [ramp(3)])
    assert "args[1]" in error.what
    assert_at(error, program, 0)


@pytest.mark.parametrize("make", [torch.jit.script, lambda module: torch.jit.trace(module, ramp(2, 3))])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_module_that_torch_jit_has_compiled_is_refused_by_its_name(make: Callable[..., Any]) -> None:
    inner = make(torch.nn.Linear(3, 3))
    for function, name in ((inner, "self"), (torch.nn.Sequential(inner), "self.0"), (lambda x: inner(x), "inner")):
        error = refusal(function, ramp(2, 3))
        assert isinstance(error, errors.UnsupportedOperator)
        assert error.what.startswith(f"{name} is a module that torch.jit has compiled (Linear)")
        with pytest.raises(errors.UnsupportedOperator, match="has compiled"):
            purefx.check(function, ramp(2, 3))


# ---- backends, and eager's own errors


def test_a_backend_that_raises_is_named_and_its_error_is_the_cause() -> None:
    def broken(module: object, examples: object) -> Callable[..., Any]:
        raise KeyError("gone")

    error = error_of(lambda f: purefx.compile(f, broken), lambda x: x.add_(1), ramp(3))
    assert isinstance(error, errors.BackendFailed)
    assert "the backend broken raised KeyError: 'gone'" in str(error)
    assert isinstance(error.__cause__, KeyError)


def test_a_backend_that_returns_no_callable_is_refused() -> None:
    not_callable: Any = 3
    error = error_of(lambda f: purefx.compile(f, lambda *_: not_callable), lambda x: x.add_(1), ramp(3))
    assert isinstance(error, errors.BackendFailed)
    assert "returned int, which cannot be called" in str(error)


def test_what_the_compiled_graph_raises_leaves_the_arguments_alone() -> None:
    def backend(module: object, examples: object) -> Callable[..., Any]:
        def run(*args: Tensor) -> Any:
            raise MemoryError("too much")

        return run

    error = error_of(lambda f: purefx.compile(f, backend), lambda x: x.add_(1), ramp(3))
    assert isinstance(error, MemoryError)


@pytest.mark.parametrize(
    ("program", "args"),
    [
        (lambda w: w.add_(1), (torch.ones(2, requires_grad=True),)),
        (lambda w: w.unbind()[0].mul_(2), (torch.ones(2, requires_grad=True),)),
        (lambda x, y: (x, x + y), (ramp(2), ramp(3))),
        (lambda x: x.view(4), (ramp(6),)),
        (lambda x: x.add_(1), (ramp(1).expand(3),)),
        (lambda x: x[1:].copy_(x[:-1]), (ramp(4),)),
        (lambda x: x[7], (ramp(4),)),
        (lambda x: x @ torch.ones(3, dtype=torch.int64), (ramp(3),)),
        (lambda x: [][0], (ramp(3),)),
    ],
    ids=["leaf", "view of a leaf", "sizes", "view", "expanded", "overlap", "index", "dtype", "Python"],
)
def test_an_error_of_eager_is_raised_as_it_is(program: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    error = error_of(purefx.compile, program, *args)
    expected = error_of(lambda f: f, program, *args)
    assert type(error) is type(expected)
    assert str(error) == str(expected)


def test_a_program_that_sets_the_seed_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return x + torch.rand(3)

    error = refusal(program, ramp(3))
    assert isinstance(error, errors.GlobalStateChanged)
    assert error.where is not None
    assert error.where.file == __file__


def test_random_numbers_of_another_generator_are_refused() -> None:
    error = refusal(lambda x: x + torch.rand(3, generator=torch.Generator().manual_seed(1)), ramp(3))
    assert isinstance(error, errors.UnsupportedOperator)
    assert "generator" in str(error)


def test_a_tensor_subclass_is_refused_as_an_argument_and_as_a_result() -> None:
    class Marked(Tensor):
        """A subclass without behaviour of its own."""

    error = refusal(lambda x: x + 1, ramp(3).as_subclass(Marked))
    assert isinstance(error, errors.UnsupportedTensor)
    assert "Marked" in str(error)


def test_a_quantised_tensor_inside_is_refused() -> None:
    error = refusal(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize(), ramp(3))
    assert isinstance(error, errors.UnsupportedTensor)


def test_an_optimizer_is_refused() -> None:
    weight = torch.nn.Parameter(ramp(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    error = refusal(lambda x: optimizer.step(), ramp(3))
    assert isinstance(error, errors.EscapedState)
    assert "optimizer" in str(error)


def test_a_graph_that_breaks_the_rules_is_a_defect_with_the_graph_as_a_note() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((x,))
    with pytest.raises(errors.ImpureGraph) as caught:
        check_functional(graph)
    assert caught.value.__notes__


def test_a_backend_whose_callable_returns_another_number_of_outputs_is_told() -> None:
    x = ramp(3)
    with pytest.raises(errors.BackendFailed, match="returned 0, not the 1 outputs of the graph"):
        purefx.compile(lambda x: x.add_(1), backend=lambda module, examples: lambda *inputs: ())(x)
    assert x.equal(ramp(3))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x: x[:2], r"output 1 of what wrong compiled is torch\.float32\[2\], not torch\.float32\[3\]"),
        (Tensor.double, r"output 1 of what wrong compiled is torch\.float64\[3\], not torch\.float32\[3\]"),
        (lambda x: None, r"output 1 of what wrong compiled is a NoneType, not torch\.float32\[3\]"),
        (lambda x: torch.ones(6)[::2], r"output 1 of what wrong compiled is of strides \(2,\), not of strides \(1,\)"),
    ],
)
def test_the_output_of_a_backend_that_looks_otherwise_is_told(wrong: Callable[[Tensor], Any], said: str) -> None:
    def wrong_second(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        return lambda *inputs: [x if i != 1 else wrong(x) for i, x in enumerate(module(*inputs))]

    wrong_second.__name__ = "wrong"
    x = ramp(3)
    with pytest.raises(errors.BackendFailed, match=said):
        purefx.compile(lambda x: x.add_(1) * 2, backend=wrong_second)(x)
    assert x.equal(ramp(3))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda inputs, outputs: inputs, "output 0 of what wrong compiled has the memory of input 0"),
        (lambda inputs, outputs: (outputs[0], outputs[0].view(3)), "output 1 of .* has the memory of output 0"),
    ],
)
def test_the_output_of_a_backend_that_has_the_memory_of_others_is_told(wrong: Callable[..., Any], said: str) -> None:
    def returns_others(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        return lambda *inputs: wrong(inputs, module(*inputs))

    returns_others.__name__ = "wrong"
    with pytest.raises(errors.BackendFailed, match=said):
        purefx.compile(lambda x, y: (x * 2, y.sin()), backend=returns_others)(ramp(3), ramp(3))


def test_a_size_that_depends_on_a_number_in_a_tensor_is_refused_with_operator_and_line() -> None:
    def writes_a_slice(x: Tensor, n: Tensor) -> Tensor:
        x[: n.item()] = 1
        return x * 2

    with pytest.raises(errors.UnsupportedOperator, match=r"of what aten\.slice\.Tensor returns depends") as caught:
        purefx.trace(writes_a_slice, ramp(3), torch.tensor(2))
    assert caught.value.where is not None
    assert caught.value.where.function == "writes_a_slice"


def test_a_branch_that_reads_a_size_that_depends_on_a_number_is_refused_with_operator_and_line() -> None:
    def branches(x: Tensor, n: Tensor) -> Any:
        y = x[: n.item()]
        return torch.cond(x.sum() > 0, lambda y: y.new_ones(y.shape[0]).sum(), lambda y: y.sum(), (y,))

    with pytest.raises(errors.UnsupportedOperator, match=r"of what aten\.slice\.Tensor returns depends") as caught:
        purefx.trace(branches, ramp(4), torch.tensor(2))
    assert caught.value.where is not None
    assert caught.value.where.function == "branches"


def test_a_hook_that_runs_after_a_gradient_was_accumulated_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        x.register_post_accumulate_grad_hook(lambda leaf: None)
        return x * 2

    with pytest.raises(errors.UnsupportedOperator, match="register it outside of the function"):
        purefx.compile(program)(torch.ones(2, requires_grad=True))
