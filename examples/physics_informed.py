"""A network solves Burgers' equation: its second derivatives, taken forward, are trained backward.

    python examples/physics_informed.py

The equation is ``u_t + u u_x = viscosity u_xx``. The network gives ``u`` at one point, and writes its features into a
row in place. Its slope is a ``grad``, its curvature a ``jvp`` of the slope; ``vmap`` takes them at many points, and
``grad`` again how the loss depends on the parameters. ``torch.func`` refuses the writes under ``vmap``; ``purefx.func``
removes them first. ``purefx.compile`` makes one pure graph of loss and gradients.

Run as a script, it trains against a travelling wave, which solves the equation, on its edges only, and compares the
derivatives of the network with those that eager computes point by point.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import purefx
from purefx import func

VISCOSITY = 0.2
WIDTH, INSIDE, EDGE, STEPS = 16, 64, 16, 500

Parameters = dict[str, Tensor]
Solution = Callable[[Tensor], Tensor]


def wave(point: Tensor) -> Tensor:
    """A solution of the equation: a step that travels to the right and keeps its form."""
    t, x = point.unbind(-1)
    return torch.sigmoid((0.5 * t - x) / (2 * VISCOSITY))


class Network(nn.Module):
    """A function of one point ``(t, x)``, which it sees by five features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(5, width)
        self.middle = nn.Linear(width, width)
        self.outer = nn.Linear(width, 1)

    def forward(self, point: Tensor) -> Tensor:
        """The value at ``point``, which is (2,)."""
        features = torch.empty(5, dtype=point.dtype)
        features[:2] = point
        features[2:4] = point.sin()
        features[4] = point.prod()
        hidden = self.inner(features).tanh_()
        hidden = hidden + self.middle(hidden).tanh_()
        return self.outer(hidden).squeeze(0)


def derivatives(u: Solution, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The slopes of ``u`` at ``point`` in time and in space, and its curvature in space."""
    along_x = torch.zeros_like(point)
    along_x[1] = 1
    slopes, changes = func.jvp(func.grad(u), (point,), (along_x,))
    return slopes[0], slopes[1], changes[1]


def residual(u: Solution, point: Tensor) -> Tensor:
    """By how much ``u`` fails to solve the equation at ``point``."""
    u_t, u_x, u_xx = derivatives(u, point)
    return u_t + u(point) * u_x - VISCOSITY * u_xx


def make_loss(network: nn.Module) -> Callable[[Parameters, Tensor, Tensor], Tensor]:
    """The loss of parameters: the mean square of the residuals inside, and of the errors on the edge."""

    def loss(parameters: Parameters, inside: Tensor, edge: Tensor) -> Tensor:
        def u(point: Tensor) -> Tensor:
            return func.functional_call(network, parameters, (point,))

        residuals = func.vmap(lambda point: residual(u, point))(inside)
        errors = func.vmap(u)(edge) - wave(edge)
        return residuals.square().mean() + errors.square().mean()

    return loss


def make_points(inside: int, edge: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Points for times 0 to 1 and places -1 to 1; those on the edge are at time 0 or at either end."""
    scale, origin = torch.tensor([1.0, 2.0]), torch.tensor([0.0, -1.0])
    points = torch.rand(inside + 3 * edge, 2) * scale + origin
    start, left, right = points[inside:].chunk(3)  # views: the points below are moved in place
    start[:, 0], left[:, 1], right[:, 1] = 0, -1, 1
    return points[:inside].to(dtype), points[inside:].to(dtype)


def train(network: nn.Module, points: tuple[Tensor, Tensor], *, steps: int = STEPS) -> list[float]:
    """The loss of each step; the parameters of ``network`` are updated."""
    step = purefx.compile(func.grad_and_value(make_loss(network)))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    parameters = {name: parameter.detach() for name, parameter in network.named_parameters()}
    losses = []
    for _ in range(steps):
        gradients, loss = step(parameters, *points)
        for name, parameter in network.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_autograd(u: Solution, point: Tensor) -> Tensor:
    """What ``derivatives`` gives, by two backwards in eager."""
    point = point.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(u(point), point, create_graph=True)
    (changes,) = torch.autograd.grad(slopes[1], point)
    return torch.stack([*slopes, changes[1]]).detach()


def main() -> None:
    """Train, then compare the solution with the wave and its derivatives with those of eager."""
    torch.manual_seed(0)
    network, points = Network(WIDTH), make_points(INSIDE, EDGE)
    losses = train(network, points)
    print("loss:", *(f"{loss:.5f}" for loss in losses[:: STEPS // 5]), f"{losses[-1]:.5f}")
    inside, _ = points
    error = (torch.stack([network(point) for point in inside]) - wave(inside)).abs().max()
    print(f"away from the wave: {error:.3f} at most, though it was told only the edges")
    compiled = purefx.compile(func.vmap(lambda point: torch.stack(derivatives(network, point))))
    expected = torch.stack([by_autograd(network, point) for point in inside])
    torch.testing.assert_close(compiled(inside), expected, rtol=1e-4, atol=1e-4)
    print(f"same as eager: {expected.numel()} derivatives at {INSIDE} points")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are small
    main()
