"""What a caller may do with gradients of a call; each scenario returns what it saw, as plain data."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.programs.vocabulary import Shown

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
Scenario = Callable[[Compile], Any]
SCENARIOS: list[Scenario] = []


def scenario(function: Scenario) -> Scenario:
    """Add ``function`` to the scenarios."""
    SCENARIOS.append(function)
    return function


def leaf(*sizes: int) -> Tensor:
    """A leaf that requires grad, with small numbers."""
    count = torch.Size(sizes).numel()
    return (torch.arange(count, dtype=torch.float32) % 5 - 1.5).reshape(sizes).requires_grad_()


def error_of(function: Callable[[], object]) -> str:
    """The kind of error that ``function`` raises, and the beginning of its text."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:60]}"
    return "none"


@scenario
def an_output_is_differentiated_by_an_output(compiled: Compile) -> Any:
    x, w = leaf(2, 3), leaf(3, 2)

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x @ w
        return h, h.sin().sum()

    h, loss = compiled(f)(x, w)
    arrived: list[Tensor] = []
    h.retain_grad()
    h.register_hook(lambda g: arrived.append(g.clone()))
    by_h = torch.autograd.grad(loss, h, retain_graph=True)
    (loss + h.sum()).backward()
    return by_h, h.grad, arrived, x.grad, w.grad


@scenario
def an_output_is_differentiated_by_a_written_argument(compiled: Compile) -> Any:
    x = leaf(3)
    y = x * 1

    def f(y: Tensor) -> Tensor:
        y.mul_(2)
        return y.exp()

    result = compiled(f)(y)
    return torch.autograd.grad(result.sum(), [y], retain_graph=True), torch.autograd.grad(result.sum() + y.sum(), x)


@scenario
def an_argument_is_to_keep_its_gradient(compiled: Compile) -> Any:
    def plain(y: Tensor) -> Tensor:
        y.retain_grad()
        return y * 2

    def written(y: Tensor) -> Tensor:
        y.mul_(2)
        y.retain_grad()
        y.add_(1)
        return y.exp()

    found = []
    for f, y in ((plain, leaf(3) * 1), (plain, (leaf(3) * 1)[1:]), (written, leaf(3) * 1)):
        compiled(f)(y).sum().backward()
        found += [y.retains_grad, y.grad]
    return found


@scenario
def hidden_states_are_returned(compiled: Compile) -> Any:
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    with torch.no_grad():
        for p in layers.parameters():
            p.copy_(leaf(*p.shape).detach() / 4)

    def f(x: Tensor) -> list[Tensor]:
        states = [x]
        for layer in layers:
            states.append(torch.relu(layer(states[-1])))
        return states

    states = compiled(f)(leaf(2, 4))
    between = [torch.autograd.grad(b.sum(), a, retain_graph=True)[0] for a, b in itertools.pairwise(states)]
    states[-1].sum().backward()
    return between, [p.grad for p in layers.parameters()]


@scenario
def nobody_differentiates_one_output(compiled: Compile) -> Any:
    x, y = leaf(3), leaf(3)
    first, _ = compiled(lambda x, y: (x * 2, y.log()))(x, y)
    first.sum().backward()
    return x.grad, y.grad


@scenario
def integers_and_unused_arguments_get_none(compiled: Compile) -> Any:
    x, unused, places = leaf(4), leaf(2), torch.tensor([0, 2])
    result = compiled(lambda x, unused, places: (x[places] * 2, places + 1))(x, unused, places)
    return torch.autograd.grad(result[0].sum(), [x, unused], allow_unused=True), result[1].requires_grad


@scenario
def the_backward_runs_twice(compiled: Compile) -> Any:
    x = leaf(3)
    loss = compiled(lambda x: (x.exp() * x).sum())(x)
    loss.backward(retain_graph=True)
    loss.backward()
    return x.grad, error_of(loss.backward)


@scenario
def several_outputs_are_differentiated_together(compiled: Compile) -> Any:
    x = leaf(3)
    a, b, c = compiled(lambda x: (x * 2, x.exp(), (x * x).sum()))(x)
    torch.autograd.backward([a, b, c], [torch.ones(3), torch.arange(3.0), None])
    return x.grad


@scenario
def the_backward_runs_in_another_thread(compiled: Compile) -> Any:
    x = leaf(3)
    loss = compiled(lambda x: (x.exp() * x).sum())(x)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    return x.grad


@scenario
def what_was_saved_is_written_afterwards(compiled: Compile) -> Any:
    def run(write: Callable[[Tensor, Tensor, Tensor], object]) -> str:
        x, w = leaf(3), leaf(3)
        y = compiled(lambda x, w: (x * w).exp())(x, w)
        with torch.no_grad():
            write(x, w, y)
        return error_of(y.sum().backward)

    return (
        run(lambda x, w, y: x.add_(1)),
        run(lambda x, w, y: w.zero_()),
        run(lambda x, w, y: y.mul_(2)),
        run(lambda x, w, y: x.data.add_(1)),
    )


@scenario
def what_is_not_saved_is_written_afterwards(compiled: Compile) -> Any:
    x, w = leaf(3), leaf(3)
    y = compiled(lambda x, w: (x + w).sum())(x, w)
    with torch.no_grad():
        x.add_(1)
    y.backward()
    return x.grad


@scenario
def hooks_see_what_is_saved(compiled: Compile) -> Any:
    x, w = leaf(3), leaf(3)
    packed: list[tuple[int, ...]] = []

    def pack(t: Tensor) -> Tensor:
        packed.append(tuple(t.shape))
        return t.double()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.float()):
        loss = compiled(lambda x, w: (x * w).sum())(x, w)
    loss.backward()
    return len(packed), x.grad, w.grad


@scenario
def hooks_inside(compiled: Compile) -> Any:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        y.register_hook(lambda g: g * 10)
        z = y * 3
        z.register_hook(lambda g: g + 1)
        return y, z

    x = leaf(2)
    y, z = compiled(f)(x)
    return torch.autograd.grad(z.sum(), x, retain_graph=True), torch.autograd.grad(y.sum() + z.sum(), x)


@scenario
def anomalies_are_detected(compiled: Compile) -> Any:
    x = leaf(3)
    with torch.autograd.detect_anomaly(check_nan=False):
        loss = compiled(lambda x: x.exp().sum())(x)
        loss.backward()
    return x.grad


@scenario
def a_backward_that_raises_in_eager(compiled: Compile) -> Any:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        y.mul_(y)
        y.add_(1)
        return y, x * 2

    x = leaf(3)
    y, z = compiled(f)(x)
    z.sum().backward()
    return x.grad, error_of(y.sum().backward)


@scenario
def checkpoints_draw_the_same_numbers(compiled: Compile) -> Any:
    def block(x: Tensor, w: Tensor) -> Tensor:
        return nn.functional.dropout(torch.relu(x @ w), 0.5)

    def seen(*, reentrant: bool) -> Any:
        def f(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
            y = checkpoint(block, x, w, use_reentrant=reentrant)
            return (checkpoint(block, y, v, use_reentrant=reentrant) ** 2).sum()

        x, w, v = leaf(4, 4), leaf(4, 4), leaf(4, 4)
        torch.manual_seed(0)
        loss = compiled(f)(x, w, v)
        loss.backward()
        return loss, x.grad, w.grad, v.grad, torch.rand(1)

    return seen(reentrant=False), seen(reentrant=True)


@scenario
def checkpoints_compute_operators_with_several_results(compiled: Compile) -> Any:
    torch.manual_seed(0)
    inner = [nn.LayerNorm(4), nn.BatchNorm1d(4), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4))]

    def seen(module: nn.Module) -> Any:
        f = compiled(lambda x: checkpoint(lambda x: module(x).sin(), x * 2, use_reentrant=False).sum())
        x = leaf(3, 4)
        f(x).backward()
        return x.grad, [p.grad for p in module.parameters()]

    return list(map(seen, inner))


@scenario
def a_reentrant_checkpoint_reaches_weights_by_itself(compiled: Compile) -> Any:
    torch.manual_seed(0)
    w, x, linear = leaf(3, 3), leaf(2, 3), nn.Linear(3, 3)
    f = compiled(lambda x: (checkpoint(lambda x: linear(x @ w).sin(), x, use_reentrant=True), w * 2))
    for _ in range(2):
        y, z = f(x)
        y.sum().backward()
        z.sum().backward()
    return x.grad, w.grad, linear.weight.grad, linear.bias.grad


@scenario
def hooks_of_what_a_checkpoint_does_not_use_are_not_called(compiled: Compile) -> Any:
    x, w, seen = leaf(3), leaf(3), list[str]()
    w.register_hook(lambda _: seen.append("a gradient"))
    y, _ = compiled(lambda x, w: (checkpoint(torch.sin, x, use_reentrant=True), w * 2))(x, w)
    y.sum().backward()
    return x.grad, w.grad is None, len(seen)


@scenario
def a_reentrant_checkpoint_has_accumulated_gradients_alone(compiled: Compile) -> Any:
    x = leaf(3)
    f = compiled(lambda x: checkpoint(torch.sin, x, use_reentrant=True))
    errors = [error_of(lambda: torch.autograd.grad(f(x).sum(), x)), error_of(lambda: f(x).sum().backward(inputs=[x]))]
    f(x).sum().backward()
    return errors, x.grad


@scenario
def a_gradient_is_taken_inside(compiled: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        y = x.detach().requires_grad_()
        (force,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
        return force.sum() * x.sum()

    x = leaf(3)
    loss = compiled(f)(x)
    loss.backward()
    return loss, x.grad


@scenario
def grad_modes_inside(compiled: Compile) -> Any:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            a = x * w
        with torch.set_grad_enabled(False):
            b = a.exp()
            with torch.enable_grad():
                c = w * b
        return a, b, c

    x, w = leaf(3), leaf(3)
    with torch.no_grad():
        quiet = compiled(f)(x, w)
    loud = compiled(f)(x, w)
    loud[2].sum().backward()
    return [t.requires_grad for t in (*quiet, *loud)], x.grad, w.grad


@scenario
def requires_grad_changes_inside(compiled: Compile) -> Any:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.requires_grad_()
        z = x + y
        y.detach_()
        return z.sum() + (y * 2).sum()

    x, y = leaf(3).detach(), leaf(3) * 1
    loss = compiled(f)(x, y)
    loss.backward()
    return x.grad, x.is_leaf, y.requires_grad, y.is_leaf


@scenario
def what_was_saved_is_detached_inside(compiled: Compile) -> Any:
    def f(x: Tensor, y: Tensor) -> Tensor:
        z = x * y
        y.detach_()
        return z.sum()

    return error_of(compiled(f)(leaf(3), leaf(3) * 1).backward)


@scenario
def the_result_is_one_object(compiled: Compile) -> Any:
    a, b, c = compiled(lambda x: ((y := x * 2), y, y.detach()))(leaf(3))
    return a is b, c.requires_grad, c.data_ptr() == a.data_ptr()


@scenario
def two_pieces_and_a_later_write(compiled: Compile) -> Any:
    pieces = compiled(lambda x: (x * 2).split(2))(leaf(4))
    node = pieces[0].grad_fn
    assert node is not None  # it requires grad
    return type(node).__name__, node is pieces[1].grad_fn, error_of(lambda: pieces[0].mul_(2))


def _squares(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.stack([(x**2).sum() for x in tensors]).sum()


@scenario
def gradients_of_gradients(compiled: Compile) -> Any:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x @ w)
        return h, (h**3).sum()

    x, w = leaf(2, 3), leaf(3, 2)
    _, loss = compiled(f)(x, w)
    first = torch.autograd.grad(loss, (x, w), create_graph=True)
    second = torch.autograd.grad(_squares(first), (x, w), create_graph=True)
    third = torch.autograd.grad(_squares(second), (x, w))
    return first, second, third


@scenario
def forces_are_trained(compiled: Compile) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(inplace=True), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Softplus(), nn.Linear(4, 1)
    )
    x = leaf(5, 3)
    torch.manual_seed(1)
    (force,) = torch.autograd.grad(compiled(net)(x).sum(), x, create_graph=True)
    (force**2).sum().backward()
    return force, [p.grad for p in net.parameters()], list(net.buffers()), torch.rand(1)


@scenario
def a_hessian_by_reverse_over_reverse(compiled: Compile) -> Any:
    return torch.autograd.functional.hessian(compiled(lambda x: (x**3).sum() * x[0]), torch.arange(3.0))


@scenario
def a_gradient_penalty(compiled: Compile) -> Any:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    score = compiled(critic)
    x = leaf(2, 3)
    value = score(x)
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    loss = value.mean() + ((slope.norm(dim=1) - 1) ** 2).mean()
    loss.backward()
    return loss, [p.grad for p in critic.parameters()]


@scenario
def two_losses_are_differentiated_one_after_the_other(compiled: Compile) -> Any:
    x, k = leaf(3), leaf(3)
    a, b = compiled(lambda x, k: (x.exp().sum(), (x * k).sin().sum()))(x, k)
    a.backward()
    b.backward()
    return x.grad, k.grad


@scenario
def what_one_result_alone_saved_is_written(compiled: Compile) -> Any:
    x, k = leaf(3), torch.ones(3)
    _, b = compiled(lambda x, k: (x * k, x + 1))(x, k)
    k.zero_()
    b.sum().backward()
    return x.grad


@scenario
def state_is_detached_inside(compiled: Compile) -> Any:
    step = compiled(lambda x, h: (x * h.detach()).tanh())
    x = leaf(3)
    h = x * 1
    for _ in range(3):
        h = step(x, h) * x
        h.sum().backward()
    return x.grad


@scenario
def hooks_of_arguments_run_once(compiled: Compile) -> Any:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        x.register_hook(lambda g: g * 2)
        h = x * x
        h.register_hook(lambda g: g * 3)
        return h, h.sin()

    x = leaf(3)
    _, k = compiled(f)(x)
    first = torch.autograd.grad(k.sum(), x, create_graph=True)
    return first, torch.autograd.grad(first[0].sum(), x)


@scenario
def autocast_ends_before_the_gradient(compiled: Compile) -> Any:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    run = compiled(lambda x: layer(x).tanh().sum())
    x = leaf(2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = run(x)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    return slope, torch.autograd.grad(slope.sum(), x)


@scenario
def a_backward_raises_its_own_error(compiled: Compile) -> Any:
    class Raising(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            raise ValueError("boom")

    return error_of(compiled(lambda x: Raising.apply(x).sum())(leaf(3)).backward)


@scenario
def a_backward_writes_a_buffer(compiled: Compile) -> Any:
    buffer = torch.zeros(3)

    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            buffer.add_(gradient)
            return gradient * 2

    x = leaf(3)
    loss = compiled(lambda x: Counting.apply(x).sum())(x)
    before = buffer.clone()
    loss.backward()
    return before, buffer, x.grad


@scenario
def recurrent_modules_are_trained(compiled: Compile) -> Any:
    def trained(module: nn.Module) -> Any:
        run = compiled(module)
        for _ in range(2):
            run(leaf(4, 2, 3))[0].sum().backward()
        return [p.grad for p in module.parameters()]

    torch.manual_seed(0)
    return [trained(kind(3, 4)) for kind in (nn.LSTM, nn.GRU, nn.RNN)]


@scenario
def inference_mode_has_no_gradients(compiled: Compile) -> Any:
    torch.manual_seed(0)
    run = compiled(nn.Linear(3, 2))
    with torch.inference_mode():
        quiet = run(torch.ones(1, 3))
    return quiet.is_inference(), quiet.tolist(), run(torch.ones(1, 3)).requires_grad


@scenario
def anomalies_are_looked_for(compiled: Compile) -> Any:
    x = leaf(3)
    with torch.autograd.detect_anomaly():
        compiled(lambda x: (x * 2).sum())(x).backward()
    return x.grad


@scenario
def a_view_of_what_is_detached(compiled: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        h = x * 2
        v = h.view(-1)
        h.detach_()
        return v

    x = leaf(2, 2)
    v = compiled(f)(x)
    return v.requires_grad, torch.autograd.grad(v.sum(), x)


@scenario
def an_alias_becomes_a_leaf(compiled: Compile) -> Any:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        z = x.detach().requires_grad_()
        return z * 2, z

    y, z = compiled(f)(torch.ones(2))
    y.sum().backward()
    return z.grad, z.is_leaf


@scenario
def a_written_argument_depends_on_a_result(compiled: Compile) -> Any:
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        h = a.sin()
        b.add_(h)
        return h, b.cos()

    a, b = leaf(3), leaf(3) * 1
    h, k = compiled(f)(a, b)
    return torch.autograd.grad(k.sum(), (b, h, a), retain_graph=True), torch.autograd.grad(b.sum(), h)


@scenario
def what_is_saved_of_a_part_is_written_after_the_call(compiled: Compile) -> Any:
    def f(x: Tensor, bits: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            bits.copy_(bits)
            x.mul_(2)
        return x * w

    x, w = torch.ones(3, 4, dtype=torch.float64), torch.ones(4, dtype=torch.float64, requires_grad=True)
    result = compiled(f)(x[0], x.view(torch.int64), w)
    x[2] = 3
    return error_of(lambda: result.sum().backward())


@scenario
def a_view_is_differentiated_twice_whose_base_is_given_too(compiled: Compile) -> Any:
    w = leaf(4)
    a = w * w
    result = compiled(lambda a, b: b.sin() + a[2:])(a, a[:2])
    (gradient,) = torch.autograd.grad((result**3).sum(), w, create_graph=True)
    return gradient, torch.autograd.grad((gradient**2).sum(), w)


@scenario
def a_view_is_differentiated_twice_whose_base_is_written(compiled: Compile) -> Any:
    def f(a: Tensor, b: Tensor) -> Tensor:
        result = b * 3
        with torch.no_grad():
            a.mul_(2)
        return result

    w = leaf(4)
    a = w * w
    result = compiled(f)(a, a[:2])
    (gradient,) = torch.autograd.grad((result**3).sum(), w, create_graph=True)
    return gradient, torch.autograd.grad((gradient**2).sum(), w)


@scenario
def a_gradient_of_a_gradient_of_views_of_what_a_function_showed(compiled: Compile) -> Any:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        shown = Shown.apply(x.exp())
        shown.register_hook(lambda gradient: gradient * 5)
        return shown[0], shown[1:, 1:], shown.sin().sum()

    x = leaf(2, 3)
    row, rest, total = compiled(f)(x)
    (slope,) = torch.autograd.grad((row**3).sum() + rest.sum() + total, x, create_graph=True)
    return slope, torch.autograd.grad((slope**2).sum(), x), row.grad_fn.name()


@scenario
def what_is_saved_and_not_read_is_written_after_the_call(compiled: Compile) -> Any:
    """Autograd looks at the version of all that a node has saved, also of what only its sizes are read of."""
    programs: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda x, i: x.gather(0, i),
        lambda x, i: x.view(2, 2).gather(0, i.view(1, 2)),
        lambda x, i: (x * 2).gather(0, i),
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.cummax(0).values,
        lambda x, i: x.sgn(),
        lambda x, i: x.index_add(0, i, x[:2]),
        lambda x, i: x.cumsum(0),
    ]
    seen = []
    for program, written in itertools.product(programs, (0, 1)):
        given = leaf(4), torch.tensor([1, 0])
        result = compiled(program)(*given)
        with torch.no_grad():
            given[written].mul_(1)
        seen.append(error_of(result.sum().backward))
    return seen


@scenario
def one_of_several_results_is_written_after_the_call(compiled: Compile) -> Any:
    """A backward looks at what it reads, and at nothing that only the backward of another result does."""

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = x.exp() * w
        return h.exp(), h.sin() * w, w.sqrt()

    def error_after(written: int, asked: int) -> str:
        x, w = leaf(3), leaf(3)
        results = compiled(f)(x, w)
        with torch.no_grad():
            (*results, w)[written].mul_(1)
        return error_of(lambda: torch.autograd.grad(results[asked].sum(), w))

    return [error_after(*which) for which in itertools.product(range(4), range(3))]


class Keeping(torch.autograd.Function):
    """An exponential that keeps its result, and a square that keeps its argument, as attributes of ``ctx``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """The exponential and the square of ``x``."""
        ctx.x, ctx.y = x, x.exp()
        return ctx.y, x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
        """The gradient of ``x``."""
        return g * ctx.y + 2 * h * ctx.x


@scenario
def what_a_function_keeps_and_another_saves_is_written_after_the_call(compiled: Compile) -> Any:
    def f(x: Tensor) -> Any:
        y, z = Keeping.apply(x)
        return y, (y * z).sum()

    x = leaf(3)
    y, z = compiled(f)(x)
    with torch.no_grad():
        y.mul_(3)
    return error_of(z.backward)
