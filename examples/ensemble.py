"""An ensemble of networks, trained at once by ``vmap`` over their parameters.

    python examples/ensemble.py

``torch.func.stack_module_state`` stacks the parameters of equal networks, and ``vmap`` runs one network with each
member's. The network adds the output of each layer to a stream in place, as a loop over layers is often written.
``torch.func.vmap`` refuses that, because the stream begins as zeros that all members share; ``purefx.func`` removes
the writes first. ``purefx.compile`` makes one pure graph of forward, backward and update.

Run as a script, it trains the ensemble on a noisy curve, compares it with networks that are trained one by one in
eager, and shows that the members agree where there are samples and disagree beyond.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import purefx
from purefx import func

MEMBERS, WIDTH, DEPTH = 8, 32, 3
STEPS, RATE = 300, 0.05

Parameters = dict[str, Tensor]


class Network(nn.Module):
    """A function of one number, by layers that each add to a stream."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.inner = nn.Linear(1, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.outer = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The value at each of ``x``, which is (points, 1)."""
        stream = torch.zeros(len(x), self.inner.out_features, dtype=x.dtype)
        stream += self.inner(x)
        for layer in self.layers:
            stream += layer(stream.tanh()).tanh_() / len(self.layers)
        return self.outer(stream.tanh())


def make_samples(samples: int) -> tuple[Tensor, Tensor]:
    """Noisy samples of a curve, at places from -1 to 1."""
    x = torch.linspace(-1, 1, samples, dtype=torch.float64)[:, None]
    return x, (3 * x).sin() + 0.05 * torch.randn_like(x)


def make_step(network: nn.Module, *, rate: float = RATE) -> Callable[[Parameters, Tensor, Tensor], Tensor]:
    """One step of gradient descent for every member: writes the stacked parameters, returns the losses."""
    skeleton = copy.deepcopy(network).to("meta")  # whose own parameters nobody reads

    def loss(parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        return (func.functional_call(skeleton, parameters, (x,)) - y).square().mean()

    def step(parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        gradients, losses = func.vmap(func.grad_and_value(loss), in_dims=(0, None, None))(parameters, x, y)
        for name, parameter in parameters.items():
            parameter.sub_(rate * gradients[name])
        return losses

    return step


def stack(networks: Sequence[nn.Module]) -> Parameters:
    """The parameters of all members, one member after another along the first dimension."""
    parameters, _ = torch.func.stack_module_state(list(networks))
    return {name: parameter.detach() for name, parameter in parameters.items()}


def train_alone(network: nn.Module, x: Tensor, y: Tensor, *, steps: int = STEPS, rate: float = RATE) -> None:
    """What each member has to become: the same steps in eager."""
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        (network(x) - y).square().mean().backward()
        optimizer.step()


def predict(network: nn.Module, parameters: Parameters, x: Tensor) -> Tensor:
    """The values of every member: (members, points, 1)."""
    return func.vmap(lambda member: func.functional_call(network, member, (x,)))(parameters)


def main() -> None:
    """Train the ensemble and its members alone, and say whether anything differs."""
    torch.manual_seed(0)
    x, y = make_samples(32)
    networks = [Network(WIDTH, DEPTH).double() for _ in range(MEMBERS)]
    parameters = stack(networks)
    step = purefx.compile(make_step(networks[0]))
    for i in range(STEPS):
        losses = step(parameters, x, y)
        if i % 60 == 0 or i == STEPS - 1:
            print(f"step {i:3}: losses {losses.min():.4f} to {losses.max():.4f}")
    for network in networks:
        train_alone(network, x, y)
    torch.testing.assert_close(parameters, stack(networks))
    for name, points in {"at the samples": x, "beyond them": 2 * x[-1:]}.items():
        spread = predict(networks[0], parameters, points).std(0).mean()
        print(f"the members differ by {spread:.3f} {name}")
    print(f"same as eager: {MEMBERS} networks, {STEPS} steps")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are small
    main()
