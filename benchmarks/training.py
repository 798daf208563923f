"""What training costs: capture, forward and backward through the callable, views of results, memory.

    python -m benchmarks.training [--quick]

Each is compared within one process: the making of forward and backward graphs with AOTAutograd (``aot_function``,
its default partitioner, and a compiler that returns each graph as it is), all else with eager. The encoder is
a six-layer ``nn.TransformerEncoder`` in train mode; no compiler is below the callable.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import default_partition
from torch.fx import GraphModule

import purefx
from benchmarks.memory import peak_bytes, saved_bytes
from benchmarks.timing import Row, is_quick, medians, show

PIECES = 50
Call = Callable[..., Any]


def make_encoder(width: int) -> nn.TransformerEncoder:
    """Six layers in train mode, with dropout."""
    layer = nn.TransformerEncoderLayer(d_model=width, nhead=4, dim_feedforward=2 * width, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=6)


def make_convolutional() -> nn.Sequential:
    """Convolutions, batch normalisation, activations in place."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Dropout(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Recurrent(nn.Module):
    """A recurrent loop that writes each step's output into a row of a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs of all steps; ``inputs`` are (steps, batch, width)."""
        outputs = torch.zeros_like(inputs)
        state = (inputs.new_zeros(inputs.shape[1:]), inputs.new_zeros(inputs.shape[1:]))
        for t in range(len(inputs)):
            state = self.cell(inputs[t], state)
            outputs[t] = state[0]
        return outputs


# ---- capture


def aot_first_call(model: nn.Module, x: Tensor) -> object:
    """Make AOTAutograd's callable, with forward and backward graphs, and call it once."""

    def run(state: dict[str, Tensor], x: Tensor) -> object:
        return torch.func.functional_call(model, state, (x,))

    def unchanged(gm: GraphModule, example_inputs: object) -> GraphModule:
        return gm

    call = aot_function(run, unchanged, unchanged, partition_fn=default_partition)
    return call(dict(model.named_parameters()), x)


def run_backward(first_call: Call) -> None:
    """The first call, and the gradients of its result."""
    first_call().sum().backward()


def measure_capture(*, rounds: int) -> list[Row]:
    """From a model to the first result of its callable, and to its first gradients."""
    model, x = make_encoder(64), torch.randn(2, 16, 64)
    first_calls: dict[str, Call] = {
        "purefx": lambda: purefx.compile(model)(x),
        "AOTAutograd": partial(aot_first_call, model, x),
    }
    runs: dict[str, Callable[[], object]] = dict(first_calls)
    for name, first_call in first_calls.items():
        runs[f"{name}, backward"] = partial(run_backward, first_call)
    times = medians(runs, rounds=rounds)
    return [
        Row("first call", times["purefx"], times["AOTAutograd"], 1 / 4),
        Row("first call and backward", times["purefx, backward"], times["AOTAutograd, backward"], 1 / 4),
    ]


# ---- running


def training(call: Call, model: nn.Module, x: Tensor) -> Callable[[], None]:
    """A step after which the parameters have no gradients again."""

    def run() -> None:
        call(x).sum().backward()
        model.zero_grad()

    return run


def measure_steps(*, rounds: int) -> list[Row]:
    """Forward and backward of models of several sizes."""
    cases: dict[str, tuple[nn.Module, Tensor, float | None]] = {
        "encoder, 64 wide, 2 x 16 tokens": (make_encoder(64), torch.randn(2, 16, 64), 1.1),
        "encoder, 128 wide, 4 x 32 tokens": (make_encoder(128), torch.randn(4, 32, 128), 1.1),
        "convolutions": (make_convolutional(), torch.randn(4, 3, 16, 16), None),
        "LSTM loop, 32 rows": (Recurrent(32), torch.randn(32, 4, 32), None),
    }
    rows = []
    for name, (model, x, target) in cases.items():
        runs = {"callable": training(purefx.compile(model), model, x), "eager": training(model, model, x)}
        times = medians(runs, rounds=rounds, calls=3)
        rows.append(Row(name, times["callable"], times["eager"], target))
    return rows


def measure_unbind(*, rounds: int) -> list[Row]:
    """Forward, and backward alone, of a program whose results are the pieces of one tensor."""
    programs: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
        "pieces of the argument": lambda x: x.unbind(),
        "pieces of a new tensor": lambda x: (x * 2).unbind(),
    }
    leaf = torch.randn(PIECES, 64, requires_grad=True)
    x, cotangents = leaf.clone(), [torch.ones(64)] * PIECES
    rows = []
    for name, program in programs.items():
        calls = {"callable": partial(purefx.compile(program), x), "eager": partial(program, x)}
        backwards = {who: partial(backward, call(), x, cotangents) for who, call in calls.items()}
        forward_times = medians(calls, rounds=rounds, calls=50)
        backward_times = medians(backwards, rounds=rounds, calls=50)
        rows.append(Row(f"{name}, forward", forward_times["callable"], forward_times["eager"]))
        rows.append(Row(f"{name}, backward", backward_times["callable"], backward_times["eager"], 1.1))
    return rows


def backward(pieces: tuple[Tensor, ...], x: Tensor, cotangents: list[Tensor]) -> None:
    """The gradient of ``x``, by a graph that is kept."""
    torch.autograd.grad(pieces, x, cotangents, retain_graph=True)


# ---- memory


def measure_memory() -> list[Row]:
    """What a step saves, and the most that it allocates at once."""
    cases: dict[str, tuple[nn.Module, Tensor]] = {
        "encoder": (make_encoder(64), torch.randn(8, 32, 64)),
        "convolutions": (make_convolutional(), torch.randn(8, 3, 32, 32)),
        "LSTM loop": (Recurrent(32), torch.randn(32, 16, 32)),
    }
    rows: list[Row] = []
    for name, (model, x) in cases.items():
        calls: dict[str, Call] = {"callable": purefx.compile(model), "eager": model}
        for call in calls.values():
            training(call, model, x)()
        known = [x, *model.parameters()]
        saved = {who: saved_bytes(partial(call, x), known) for who, call in calls.items()}
        peak = {who: peak_bytes(training(call, model, x)) for who, call in calls.items()}
        for what, bytes_of in (("saved", saved), ("peak", peak)):
            rows.append(Row(f"{name}, {what}", bytes_of["callable"], bytes_of["eager"], 1.01))
    return rows


def kilobytes(quantity: float) -> str:
    """Bytes in thousands."""
    return f"{quantity / 1000:.0f} kB"


def main() -> None:
    """Print a table for each question."""
    warnings.simplefilter("ignore")
    quick = is_quick(__doc__)
    show("forward and backward graphs, encoder", ("purefx", "AOTAutograd"), measure_capture(rounds=3 if quick else 11))
    show("forward and backward", ("callable", "eager"), measure_steps(rounds=5 if quick else 25))
    show(f"{PIECES} pieces by unbind", ("callable", "eager"), measure_unbind(rounds=5 if quick else 25))
    show("memory of a step", ("callable", "eager"), measure_memory(), spell=kilobytes)


if __name__ == "__main__":
    main()
