"""A decode step of a small Llama whose key/value cache is written in place.

    purefx check examples/llama_decode.py:step
    purefx explain examples/llama_decode.py:step
    python examples/llama_decode.py

The model is that of the ``transformers`` package, randomly initialised from a configuration written here.
The cache is its ``StaticCache``: every layer holds keys, values and a count of the positions filled, and
writes all three in place. Here these tensors belong to the caller and are arguments of the step, so that a
purefx program shows each write at the name the caller knows: ``cache[0].keys``.

Run as a script, it decodes eight tokens twice, eagerly and compiled, and compares logits, tokens and
caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import Cache, StaticLayer

import purefx

LAYERS, HEADS, KEY_VALUE_HEADS, HEAD_SIZE = 2, 4, 2, 16
CACHE_LENGTH = 32
PROMPT = (3, 14, 15, 92, 65)
DECODE_STEPS = 8

CONFIG = LlamaConfig(
    vocab_size=128,
    hidden_size=HEADS * HEAD_SIZE,
    intermediate_size=128,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KEY_VALUE_HEADS,
    max_position_embeddings=CACHE_LENGTH,
)


class LayerState(NamedTuple):
    """What one layer remembers: keys and values of all positions, and how many positions are filled."""

    keys: Tensor
    values: Tensor
    filled: Tensor


class CallersLayer(StaticLayer):
    """A layer of ``StaticCache`` that writes into tensors of the caller instead of allocating its own."""

    def __init__(self, state: LayerState) -> None:
        super().__init__(max_cache_len=state.keys.shape[2])
        self.keys, self.values, self.cumulative_length = state
        self.device = state.keys.device
        self.is_initialized = True


class Step(nn.Module):
    """The logits that follow ``tokens``; ``cache`` is extended in place by their keys and values."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.model = LlamaForCausalLM(config).eval()
        # With "sdpa", transformers looks into the cache's count to choose the mask of a prompt, but not while
        # it is captured: eager would run other operations than the graph. With "eager" they are the same.
        self.model.set_attn_implementation("eager")

    @torch.no_grad()
    def forward(self, tokens: Tensor, cache: list[LayerState]) -> Tensor:
        """``tokens`` is (batch, length): a whole prompt, or the one token decoded last."""
        layers = Cache(layers=[CallersLayer(state) for state in cache])
        return self.model(tokens, cache=layers, use_cache=True, logits_to_keep=1).logits


def empty_cache() -> list[LayerState]:
    """One state for each layer of the model, for one sequence of up to ``CACHE_LENGTH`` tokens."""
    shape = (1, KEY_VALUE_HEADS, CACHE_LENGTH, HEAD_SIZE)
    return [
        LayerState(torch.zeros(shape), torch.zeros(shape), torch.zeros((), dtype=torch.int64)) for _ in range(LAYERS)
    ]


torch.manual_seed(0)
step = Step(CONFIG)


def step_arguments() -> tuple[Tensor, list[LayerState]]:
    """The arguments of the first decode step: the cache holds a prompt of five tokens."""
    cache = empty_cache()
    logits = step(torch.tensor([PROMPT]), cache)
    return logits[:, -1].argmax(-1, keepdim=True), cache


class Decoded(NamedTuple):
    """What a caller can observe of a decoding: tokens, each step's logits, the cache afterwards."""

    tokens: list[int]
    logits: list[Tensor]
    cache: list[LayerState]


def decode(run: Callable[[Tensor, list[LayerState]], Tensor]) -> Decoded:
    """Feed the prompt and then ``DECODE_STEPS`` tokens through ``run``, each the likeliest after the last."""
    decoded = Decoded([], [], empty_cache())
    tokens = torch.tensor([PROMPT])
    for _ in range(1 + DECODE_STEPS):
        logits = run(tokens, decoded.cache)
        tokens = logits[:, -1].argmax(-1, keepdim=True)
        decoded.logits.append(logits)
        decoded.tokens.append(int(tokens))
    return decoded


def main() -> None:
    """Decode eagerly and compiled, and say whether anything differs."""
    eager = decode(step)
    compiled = decode(purefx.compile(step))
    torch.testing.assert_close(compiled.logits, eager.logits)
    torch.testing.assert_close(compiled.cache, eager.cache)
    assert compiled.tokens == eager.tokens
    print("prompt ", *PROMPT)
    print("decoded", *compiled.tokens)
    print(f"same as eager: 1 prefill, {DECODE_STEPS} decode steps, {len(compiled.cache)} caches")


if __name__ == "__main__":
    main()
