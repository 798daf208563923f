"""Per-sample gradients, clipped one by one, as training with differential privacy needs them.

    python examples/per_sample_gradients.py

``vmap`` over ``grad`` gives the gradient of each sample's loss in one call. The network is written as it would be
for one sample: it activates in place, and fills a row of features part by part. ``torch.func.vmap`` refuses to
write the features of many samples into a row made for one; ``purefx.func`` removes the writes first. ``purefx.compile``
makes one pure graph of it all.

Run as a script, it trains a classifier by the mean of the clipped gradients, and compares the gradients of every
sample with those that a loop over the samples gives in eager.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import purefx
from purefx import func

SAMPLES, CLASSES, STEPS = 32, 4, 40
CLIP, RATE = 1.0, 0.5

Gradients = dict[str, Tensor]


class Network(nn.Module):
    """Convolutions with batch normalisation, and a classifier of their features' means and maxima."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, channels, kernel_size=3),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, kernel_size=3),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Linear(2 * channels, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """The scores of each class; ``images`` is (images, 1, height, width)."""
        maps = self.convolutions(images)
        features = torch.zeros(len(images), 2 * self.channels, dtype=images.dtype)
        features[:, : self.channels] = maps.mean((2, 3))
        features[:, self.channels :] = maps.amax((2, 3))
        return self.classifier(features)


def make_network(images: Tensor, *, channels: int = 8) -> Network:
    """A network in eval mode, whose batch normalisation has seen ``images``."""
    network = Network(channels).to(images.dtype)
    network(images)
    return network.eval()


def make_samples(samples: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Noisy images with stripes, of a width and a direction that make the class."""
    labels = torch.arange(samples) % CLASSES
    waves = torch.stack([torch.sin(torch.arange(8.0) * frequency) for frequency in (1.0, 2.5)])
    stripes = waves[labels // 2][:, None, None, :].expand(-1, -1, 8, -1)
    images = torch.where((labels % 2 == 0)[:, None, None, None], stripes, stripes.mT)
    return (images + 0.3 * torch.randn(samples, 1, 8, 8)).to(dtype), labels


def per_sample_gradients(network: nn.Module) -> Callable[[Tensor, Tensor], tuple[Gradients, Tensor]]:
    """A function of images and labels that gives each sample's gradients of each parameter, and each sample's loss."""
    buffers = dict(network.named_buffers())

    def loss(parameters: Gradients, image: Tensor, label: Tensor) -> Tensor:
        scores = func.functional_call(network, (parameters, buffers), (image[None],))
        return cross_entropy(scores, label[None])

    every = purefx.compile(func.vmap(func.grad_and_value(loss), in_dims=(None, 0, 0)))
    parameters = {name: parameter.detach() for name, parameter in network.named_parameters()}
    return lambda images, labels: every(parameters, images, labels)


def by_a_loop(network: nn.Module, images: Tensor, labels: Tensor) -> Gradients:
    """The same gradients, sample by sample in eager."""
    names, parameters = zip(*network.named_parameters(), strict=True)
    losses = [cross_entropy(network(image[None]), label[None]) for image, label in zip(images, labels, strict=True)]
    columns = zip(*(torch.autograd.grad(loss, parameters) for loss in losses), strict=True)
    return {name: torch.stack(column) for name, column in zip(names, columns, strict=True)}


def clipped_mean(gradients: Gradients) -> Gradients:
    """The mean over the samples, after every sample's gradient was made no longer than ``CLIP``."""
    lengths = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients.values()]).norm(dim=0)
    scale = (CLIP / lengths).clamp(max=1)
    return {name: torch.einsum("i,i...->...", scale / len(scale), gradient) for name, gradient in gradients.items()}


def main() -> None:
    """Train by clipped gradients, then compare with a loop."""
    torch.manual_seed(0)
    images, labels = make_samples(SAMPLES)
    network = make_network(images)
    gradients_of = per_sample_gradients(network)
    for step in range(STEPS + 1):
        gradients, losses = gradients_of(images, labels)
        if step % 10 == 0:
            print(f"step {step:2}: loss {losses.mean():.4f}")
        with torch.no_grad():
            for name, gradient in clipped_mean(gradients).items():
                network.get_parameter(name).sub_(RATE * gradient)
    gradients, _ = gradients_of(images, labels)
    torch.testing.assert_close(gradients, by_a_loop(network, images, labels))
    print(f"same as a loop in eager: {len(gradients)} gradients of {SAMPLES} samples")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are small
    main()
