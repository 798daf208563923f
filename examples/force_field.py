"""A force field learns forces: the gradient of an energy is itself trained, by a second backward.

    purefx check examples/force_field.py:model
    purefx explain examples/force_field.py:model
    python examples/force_field.py

The network sees each atom by a row of a buffer, to which every pair of atoms adds in place. The force on an
atom is minus the gradient of the energy, taken with a graph of its own (``create_graph=True``), because the
loss compares forces: its gradient, for the parameters, goes through the backward of the compiled energy.

Run as a script, it trains two equal networks on the forces of a Morse potential, one eager and one compiled, and
compares losses and parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor, nn

import purefx

ATOMS, FRAMES, STEPS, WIDTH = 4, 16, 60, 16

Energy = Callable[[Tensor], Tensor]


def distance(positions: Tensor, i: int, j: int) -> Tensor:
    """How far two atoms are from each other, in each frame; ``positions`` is (frames, atoms, 3)."""
    return (positions[:, i] - positions[:, j]).norm(dim=-1, keepdim=True)


def morse(positions: Tensor) -> Tensor:
    """The energy of each frame that the network has to learn: every pair likes to be 1 apart."""
    pairs = combinations(range(positions.shape[1]), 2)
    distances = torch.cat([distance(positions, i, j) for i, j in pairs], dim=-1)
    return (1 - (1 - distances).exp()).square().sum(-1)


class ForceField(nn.Module):
    """The energy of each frame: a sum over its atoms, each seen by its distances from the others."""

    centers: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("centers", torch.linspace(0.5, 2.5, 8))
        self.inner = nn.Linear(8, width)
        self.outer = nn.Linear(width, 1)

    def descriptors(self, positions: Tensor) -> Tensor:
        """How many atoms are in each of eight soft shells around each atom: (frames, atoms, 8)."""
        rows = positions.new_zeros(*positions.shape[:2], len(self.centers))
        for i, j in combinations(range(positions.shape[1]), 2):
            shells = (-4 * (distance(positions, i, j) - self.centers).square()).exp()
            rows[:, i] += shells
            rows[:, j] += shells
        return rows

    def forward(self, positions: Tensor) -> Tensor:
        """The energies; ``positions`` is (frames, atoms, 3)."""
        hidden = self.inner(self.descriptors(positions)).tanh_()
        return self.outer(hidden).sum((1, 2))


torch.manual_seed(0)
model = ForceField(WIDTH).double()


def model_arguments() -> tuple[Tensor]:
    """Frames in which the atoms tremble around the corners of a tetrahedron."""
    corners = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=torch.float64) / 2.5
    return (corners + 0.15 * torch.randn(FRAMES, ATOMS, 3, dtype=torch.float64),)


def forces(energy: Energy, positions: Tensor) -> Tensor:
    """The force on each atom, which can be differentiated as the energy can."""
    positions = positions.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(energy(positions).sum(), positions, create_graph=True)
    return -gradient


def train(energy: Energy, field: nn.Module, positions: Tensor, *, steps: int = STEPS) -> list[float]:
    """The loss of each step; ``energy`` reads the parameters of ``field``, which are updated."""
    optimizer = torch.optim.Adam(field.parameters(), lr=0.02)
    expected = forces(morse, positions).detach()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (forces(energy, positions) - expected).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train eagerly and compiled, and say whether anything differs."""
    (positions,) = model_arguments()
    eager, twin = copy.deepcopy(model), copy.deepcopy(model)
    expected = train(eager, eager, positions)
    losses = train(purefx.compile(twin), twin, positions)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(list(twin.parameters()), list(eager.parameters()))
    print("loss on forces:", *(f"{loss:.4f}" for loss in losses[:: STEPS // 5]), f"{losses[-1]:.4f}")
    print(f"same as eager: {STEPS} steps through the gradient of a gradient, {FRAMES} frames of {ATOMS} atoms")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are small
    main()
