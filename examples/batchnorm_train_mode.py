"""A convolutional network in train mode: a call writes the running statistics of its batch normalisation.

    purefx check examples/batchnorm_train_mode.py:network
    purefx explain examples/batchnorm_train_mode.py:network
    python examples/batchnorm_train_mode.py

No caller passes the statistics in: they are buffers of the module. purefx lifts them to inputs of the pure
graph, which returns their new values; the callable writes those back. Each layer's count of batches is a
buffer too.

Run as a script, it feeds three batches to two equal networks, one eager and one compiled, and compares the
outputs and every buffer.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import purefx

BATCHES = 3


class Network(nn.Module):
    """Two convolutions, each followed by batch normalisation, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, kernel_size=3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 16, kernel_size=3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Linear(16, 10)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """The scores of ten classes for each image."""
        return self.classifier(self.features(images).mean((2, 3)))


torch.manual_seed(0)
network = Network().train()


def network_arguments() -> tuple[Tensor]:
    """One batch of four small images."""
    return (torch.randn(4, 3, 12, 12),)


def main() -> None:
    """Run both networks on the same batches and say whether anything differs."""
    twin = copy.deepcopy(network)
    compiled = purefx.compile(twin)
    for _ in range(BATCHES):
        (images,) = network_arguments()
        torch.testing.assert_close(compiled(images), network(images))
    for (name, expected), actual in zip(network.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(actual, expected)
        print(f"{name:32} mean {expected.float().mean():8.4f}")
    print(f"same as eager: {BATCHES} batches, {len(list(network.buffers()))} buffers")


if __name__ == "__main__":
    main()
