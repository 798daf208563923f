"""What transforms cost through compiled functions: products with the Hessian, per-sample gradients, training.

    python -m benchmarks.transforms [--quick]

Each is compared with eager ``torch.func``, or with autograd, on the same program; a program that writes in place,
which the ``vmap`` of PyTorch refuses, is compared with a variant that does not. "Whole" is the transformed function
as one compiled graph, "inside" a compiled function that PyTorch's own transforms are applied to. No compiler is
below the callable.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import purefx
from benchmarks.timing import Row, Run, is_quick, medians, show
from purefx import func

GOAL = 1.0
CALLS = 10
"""How many calls follow each other: the first few after a collection find cold caches, and measure these."""
Parameters = dict[str, Tensor]
Loss = Callable[[Parameters, Tensor, Tensor], Tensor]


class Block(nn.Module):
    """Attention and a perceptron around a stream; written to in place, or not."""

    def __init__(self, width: int, *, in_place: bool) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(width, width) for _ in range(3))
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        """The stream after this block; ``x`` is (batch, tokens, width)."""
        x = x + self.attend(self.first(x))
        hidden = self.inner(self.second(x))
        return x + self.outer(hidden.tanh_() if self.in_place else hidden.tanh())

    def attend(self, x: Tensor) -> Tensor:
        """Attention with one head; each token sees those before it."""
        scores = self.queries(x) @ self.keys(x).mT / x.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill_(later, -1e9) if self.in_place else scores.masked_fill(later, -1e9)
        return scores.softmax(-1) @ self.values(x)


class Padded(nn.Module):
    """A convolutional classifier that pads its images and pools its features into buffers; or concatenates."""

    def __init__(self, channels: int, *, in_place: bool) -> None:
        super().__init__()
        self.channels, self.in_place = channels, in_place
        self.convolution = nn.Conv2d(1, channels, kernel_size=3)
        self.normalization = nn.BatchNorm2d(channels).eval()
        self.classifier = nn.Linear(2 * channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        """The scores of ten classes; ``images`` is (images, 1, height, width)."""
        maps = nn.functional.relu(self.normalization(self.convolution(images)), inplace=self.in_place)
        if not self.in_place:
            return self.classifier(torch.cat([maps.mean((2, 3)), maps.amax((2, 3))], dim=1))
        features = torch.zeros(len(images), 2 * self.channels)
        features[:, : self.channels] = maps.mean((2, 3))
        features[:, self.channels :] = maps.amax((2, 3))
        return self.classifier(features)


def make_perceptron(width: int, *, in_place: bool) -> nn.Sequential:
    """Four layers."""
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.SELU(inplace=in_place)]
    return nn.Sequential(*layers)


def make_blocks(width: int, *, in_place: bool) -> nn.Sequential:
    """Two blocks."""
    return nn.Sequential(*(Block(width, in_place=in_place) for _ in range(2)))


@dataclass(frozen=True)
class Case:
    """A loss that writes in place, the same loss without writes, and what both are given."""

    writing: Loss
    pure: Loss
    parameters: Parameters
    x: Tensor
    y: Tensor


def make_case(make_network: Callable[..., nn.Module], width: int, x: Tensor, y: Tensor, loss: Any) -> Case:
    """Both variants of a network, with the same parameters."""
    networks = [make_network(width, in_place=in_place) for in_place in (True, False)]
    parameters = {name: parameter.detach() for name, parameter in networks[0].named_parameters()}

    def loss_of(network: nn.Module, parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(network, parameters, (x,)), y)

    writing, pure = (partial(loss_of, network) for network in networks)
    return Case(writing, pure, parameters, x, y)


def cases_of_regression(*, quick: bool) -> dict[str, Case]:
    """A perceptron and two blocks of a transformer."""
    width = 32 if quick else 64
    tokens = (4, 16, width)
    return {
        f"perceptron, {width} wide": make_case(make_perceptron, width, *torch.randn(2, 64, width), mean_square),
        f"transformer, {width} wide": make_case(make_blocks, width, *torch.randn(2, *tokens), mean_square),
    }


def mean_square(found: Tensor, y: Tensor) -> Tensor:
    """The loss of a regression; ``mse_loss`` is not used, since ``jvp`` over its gradient fails in eager."""
    return (found - y).square().mean()


# ---- products with the Hessian


def forward_over_reverse(grad: Any, jvp: Any, loss: Loss, case: Case) -> Callable[[Parameters, Parameters], Any]:
    """The Hessian of ``loss`` times a direction, by ``jvp`` over ``grad``."""
    gradient = grad(lambda parameters: loss(parameters, case.x, case.y))
    return lambda parameters, direction: jvp(gradient, (parameters,), (direction,))[1]


def reverse_over_reverse(loss: Loss, case: Case, parameters: Parameters, direction: Parameters) -> list[Tensor]:
    """The same by autograd: the gradient of the product of gradient and direction."""
    leaves = {name: parameter.detach().requires_grad_() for name, parameter in parameters.items()}
    gradients = torch.autograd.grad(loss(leaves, case.x, case.y), list(leaves.values()), create_graph=True)
    return list(torch.autograd.grad(gradients, list(leaves.values()), list(direction.values())))


def contenders_of_products(case: Case) -> dict[str, Run]:
    """Every way to a product, each run on the same direction."""
    direction = {name: torch.randn_like(parameter) for name, parameter in case.parameters.items()}
    compiled = purefx.compile(case.writing)
    ways: dict[str, Callable[[Parameters, Parameters], Any]] = {
        "eager": forward_over_reverse(torch.func.grad, torch.func.jvp, case.pure, case),
        "whole": purefx.compile(forward_over_reverse(func.grad, func.jvp, case.writing, case)),
        "inside": forward_over_reverse(torch.func.grad, torch.func.jvp, compiled, case),
        "eager, reverse": partial(reverse_over_reverse, case.writing, case),
        "whole, reverse": purefx.compile(partial(reverse_over_reverse, case.writing, case)),
        "inside, reverse": partial(reverse_over_reverse, compiled, case),
    }
    return {name: partial(way, case.parameters, direction) for name, way in ways.items()}


def measure_products(*, rounds: int, quick: bool) -> list[Row]:
    """``jvp`` over ``grad``, and reverse over reverse."""
    rows = []
    for name, case in cases_of_regression(quick=quick).items():
        times = medians(contenders_of_products(case), rounds=rounds, calls=CALLS)
        for suffix, title in (("", "jvp over grad"), (", reverse", "reverse over reverse")):
            for who in ("whole", "inside"):
                rows.append(Row(f"{name}, {title}, {who}", times[who + suffix], times["eager" + suffix], GOAL))
    return rows


# ---- per-sample gradients


def per_sample(vmap: Any, grad: Any, loss: Loss) -> Callable[[Parameters, Tensor, Tensor], Any]:
    """The gradients of each sample's loss."""

    def loss_of_one(parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        return loss(parameters, x[None], y[None])

    return vmap(grad(loss_of_one), in_dims=(None, 0, 0))


def measure_per_sample(*, rounds: int, quick: bool) -> list[Row]:
    """``vmap`` over ``grad``."""
    samples = 16 if quick else 64
    images, labels = torch.randn(samples, 1, 12, 12), torch.randint(10, (samples,))
    cases = cases_of_regression(quick=quick)
    cases["convolutions"] = make_case(Padded, 8, images, labels, nn.functional.cross_entropy)
    rows = []
    for name, case in cases.items():
        ways = {
            "eager": per_sample(torch.func.vmap, torch.func.grad, case.pure),
            "whole": purefx.compile(per_sample(func.vmap, func.grad, case.writing)),
            "inside": per_sample(torch.func.vmap, torch.func.grad, purefx.compile(case.writing)),
        }
        runs = {who: partial(way, case.parameters, case.x, case.y) for who, way in ways.items()}
        times = medians(runs, rounds=rounds, calls=CALLS)
        rows += [
            Row(f"{name}, {len(case.x)} samples, {who}", times[who], times["eager"], GOAL)
            for who in runs
            if who != "eager"
        ]
    return rows


# ---- gradients of first order


def by_autograd(loss: Loss, case: Case, leaves: Parameters) -> tuple[Tensor, ...]:
    """The gradients by a backward."""
    return torch.autograd.grad(loss(leaves, case.x, case.y), list(leaves.values()))


def measure_first_order(*, rounds: int, quick: bool) -> list[Row]:
    """That functions can be differentiated again must cost nothing to those who differentiate once."""
    rows = []
    for name, case in cases_of_regression(quick=quick).items():
        leaves = {name: parameter.clone().requires_grad_() for name, parameter in case.parameters.items()}
        compiled = purefx.compile(case.writing)
        runs: dict[str, Run] = {
            "autograd": partial(by_autograd, case.writing, case, leaves),
            "compiled": partial(by_autograd, compiled, case, leaves),
            "grad": partial(torch.func.grad(case.writing), case.parameters, case.x, case.y),
            "whole": partial(purefx.compile(func.grad(case.writing)), case.parameters, case.x, case.y),
            "inside": partial(torch.func.grad(compiled), case.parameters, case.x, case.y),
        }
        times = medians(runs, rounds=rounds, calls=CALLS)
        rows.append(Row(f"{name}, backward", times["compiled"], times["autograd"], 1.1))
        rows.append(Row(f"{name}, grad, whole", times["whole"], times["grad"], GOAL))
        rows.append(Row(f"{name}, grad, inside", times["inside"], times["grad"], GOAL))
    return rows


def main() -> None:
    """Print a table for each question."""
    warnings.simplefilter("ignore")
    quick = is_quick(__doc__)
    rounds = 5 if quick else 25
    show("products with the Hessian", ("callable", "eager"), measure_products(rounds=rounds, quick=quick))
    show("per-sample gradients", ("callable", "eager"), measure_per_sample(rounds=rounds, quick=quick))
    show("gradients of first order", ("callable", "eager"), measure_first_order(rounds=rounds, quick=quick))


if __name__ == "__main__":
    main()
