"""Small models in train mode, with dropout or batch normalisation, and the batches they are trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification

from examples.train import CONFIG, LanguageModel

STEPS, BATCH, CLASSES = 5, 4, 10


@dataclass(frozen=True)
class Task:
    """A model from inputs to logits, the loss of these, and five batches of inputs and targets."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    batches: list[tuple[Tensor, Tensor]]


class Logits(nn.Module):
    """The logits of a model of ``transformers``, which returns more than these."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """The model's logits."""
        return self.model(tokens).logits


def llama() -> Task:
    """Each token is predicted from those before it."""

    def loss(logits: Tensor, tokens: Tensor) -> Tensor:
        return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    tokens = [torch.randint(CONFIG.vocab_size, (BATCH, 16)) for _ in range(STEPS)]
    return Task(Logits(LanguageModel(CONFIG).llama), loss, [(x, x) for x in tokens])


def bert() -> Task:
    """Sequences are classified; dropout is everywhere."""
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        id2label={n: str(n) for n in range(CLASSES)},
    )
    model = BertForSequenceClassification(config).train()
    model.set_attn_implementation("eager")
    return Task(Logits(model), cross_entropy, _classified(lambda: torch.randint(64, (BATCH, 12))))


def convolutional() -> Task:
    """Convolutions with batch normalisation, whose statistics are written, and activations in place."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, kernel_size=3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 16, kernel_size=3, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )
    return Task(model, cross_entropy, _classified(lambda: torch.randn(BATCH, 3, 12, 12)))


class Recurrent(nn.Module):
    """An LSTM as a loop, which writes the output of each step into a row of a buffer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(size, size)
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(size, CLASSES)

    def run_into(self, outputs: Tensor, inputs: Tensor) -> None:
        """Write the output of step ``t`` to ``outputs[t]``; ``inputs`` are (steps, batch, size)."""
        hidden = cell = inputs.new_zeros(inputs.shape[1:])
        for t in range(len(inputs)):
            hidden, cell = self.cell(inputs[t], (hidden, cell))
            outputs[t] = self.dropout(hidden)

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits of each sequence."""
        outputs = torch.zeros_like(inputs)
        self.run_into(outputs, inputs)
        return self.classifier(outputs.mean(0))


def recurrent() -> Task:
    """Sequences are classified by a loop over their steps."""
    return Task(Recurrent(16), cross_entropy, _classified(lambda: torch.randn(8, BATCH, 16)))


def _classified(make_inputs: Callable[[], Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(make_inputs(), torch.randint(CLASSES, (BATCH,))) for _ in range(STEPS)]


TASKS: dict[str, Callable[[], Task]] = {task.__name__: task for task in (llama, bert, convolutional, recurrent)}
