"""Five steps of training: a compiled model learns what the same model learns in eager.

    purefx check examples/train.py:model
    purefx explain examples/train.py:model
    python examples/train.py

The model is a small Llama of the ``transformers`` package with dropout in its attention, randomly initialised
from a configuration written here. Forward and backward are graphs; the optimizer runs in eager, on the
parameters and gradients of the model itself, as in any other program.

Run as a script, it trains two equal models with each of two optimizers, one eager and one compiled, and compares
losses and parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import purefx

BATCH, LENGTH, STEPS = 4, 16, 5

CONFIG = LlamaConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=LENGTH,
    attention_dropout=0.1,
)

OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


class LanguageModel(nn.Module):
    """The loss of a Llama that predicts each token from those before it."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.llama = LlamaForCausalLM(config).train()
        self.llama.set_attn_implementation("eager")  # the one that applies dropout by an operator of its own

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of all predictions; ``tokens`` is (batch, length)."""
        return self.llama(tokens, labels=tokens, use_cache=False).loss


torch.manual_seed(0)
model = LanguageModel(CONFIG)


def model_arguments() -> tuple[Tensor]:
    """One batch of random tokens."""
    return (torch.randint(CONFIG.vocab_size, (BATCH, LENGTH)),)


def train(loss_of: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, tokens: Tensor) -> list[float]:
    """The loss of each step; ``optimizer`` updates the parameters that ``loss_of`` reads."""
    torch.manual_seed(1)  # the same dropout each time
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train eagerly and compiled, and say whether anything differs."""
    (tokens,) = model_arguments()
    for name, make_optimizer in OPTIMIZERS.items():
        eager, twin = copy.deepcopy(model), copy.deepcopy(model)
        expected = train(eager, make_optimizer(eager.parameters()), tokens)
        losses = train(purefx.compile(twin), make_optimizer(twin.parameters()), tokens)
        torch.testing.assert_close(losses, expected)
        torch.testing.assert_close(list(twin.parameters()), list(eager.parameters()))
        print(f"{name:6}", *(f"{loss:.4f}" for loss in losses))
    print(f"same as eager: {len(OPTIMIZERS)} optimizers, {STEPS} steps, {len(list(model.parameters()))} parameters")


if __name__ == "__main__":
    main()
