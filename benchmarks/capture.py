"""What it costs to make a pure graph and its callable of a six-layer ``nn.TransformerEncoder`` in inference.

    python -m benchmarks.capture [--quick]

The unit is the bare fake run: the encoder run once on fake tensors made of its parameters and input.
``trace`` is ``purefx.trace``; ``first call`` makes a callable with ``purefx.compile`` and calls it once;
``AOTAutograd`` does the same with ``aot_function`` and a compiler that returns the graph as it is.

PyTorch's fast path runs each layer as one fused op (six ops in all, which AOTAutograd does not see). The
first table is without it, and has the targets; the second is with it, as PyTorch comes.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule

import purefx
from benchmarks.timing import Row, is_quick, medians, show


def make_encoder() -> nn.TransformerEncoder:
    """Six layers, 64 wide, in eval mode."""
    layer = nn.TransformerEncoderLayer(d_model=64, nhead=4, dim_feedforward=128, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=6).eval()


def fake_run(encoder: nn.Module, x: Tensor) -> object:
    """Run the encoder on fake tensors, and record nothing."""
    fakes = FakeTensorMode()
    state: dict[str, Tensor] = {name: fakes.from_tensor(value) for name, value in encoder.named_parameters()}
    arguments = (fakes.from_tensor(x),)
    with fakes:
        return torch.func.functional_call(encoder, state, arguments)


def aot_first_call(encoder: nn.Module, x: Tensor) -> object:
    """Make AOTAutograd's callable and call it once."""

    def run(state: dict[str, Tensor], x: Tensor) -> object:
        return torch.func.functional_call(encoder, state, (x,))

    def unchanged(gm: GraphModule, example_inputs: object) -> GraphModule:
        return gm

    return aot_function(run, unchanged, unchanged)(dict(encoder.named_parameters()), x)


def measure(*, rounds: int) -> dict[str, float]:
    """Seconds of each contender."""
    encoder, x = make_encoder(), torch.randn(2, 16, 64)
    return medians(
        {
            "fake run": lambda: fake_run(encoder, x),
            "trace": lambda: purefx.trace(encoder, x),
            "first call": lambda: purefx.compile(encoder)(x),
            "AOTAutograd": lambda: aot_first_call(encoder, x),
        },
        rounds=rounds,
    )


@torch.no_grad()
def main() -> None:
    """Print both tables."""
    warnings.simplefilter("ignore")
    rounds = 5 if is_quick(__doc__) else 25
    for fast_path in (False, True):
        torch.backends.mha.set_fastpath_enabled(fast_path)
        times = measure(rounds=rounds)
        fake, aot = times["fake run"], times["AOTAutograd"]
        most_fakes, most_aots = (None, None) if fast_path else (3.0, 1 / 3)
        show(
            f"TransformerEncoder, 6 layers, fast path {'on' if fast_path else 'off'}",
            ("time", "compared with"),
            [
                Row("trace / fake run", times["trace"], fake, most_fakes),
                Row("first call / fake run", times["first call"], fake, most_fakes),
                Row("AOTAutograd / fake run", aot, fake),
                Row("first call / AOTAutograd", times["first call"], aot, most_aots),
            ],
        )


if __name__ == "__main__":
    main()
