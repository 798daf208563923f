"""Model-agnostic meta-learning: parameters from which a few steps learn any sine wave.

    python examples/maml.py

The inner loop adapts clones of the parameters to one task, and updates the clones in place. The outer gradient goes
through those updates, gradients of gradients included; ``vmap`` does it for many tasks. ``torch.func.vmap`` refuses
the updates, because the clones are shared by all tasks and the gradients are not; ``purefx.func`` removes the writes
first. ``purefx.compile`` makes one pure graph of it all.

Run as a script, it trains the parameters that all tasks begin with, and compares the outer gradient with that of a
loop over the tasks in eager.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

import purefx
from purefx import func

WIDTH, TASKS, SHOTS = 32, 16, 10
INNER_STEPS, INNER_RATE, STEPS = 2, 0.05, 300

Parameters = dict[str, Tensor]
Tasks = tuple[Tensor, Tensor, Tensor, Tensor]  # x and y to learn from, x and y to be tested with


def make_network(width: int) -> nn.Sequential:
    """A function of one number, which activates in place."""
    inner, middle, outer = nn.Linear(1, width), nn.Linear(width, width), nn.Linear(width, 1)
    return nn.Sequential(inner, nn.ReLU(inplace=True), middle, nn.ReLU(inplace=True), outer)


def make_tasks(tasks: int, shots: int, dtype: torch.dtype = torch.float32) -> Tasks:
    """Sine waves of any height and phase, each given by a few points; every tensor is (tasks, shots, 1)."""
    height, phase = 0.5 + torch.rand(tasks, 1, 1), torch.pi * torch.rand(tasks, 1, 1)
    places = 4 * torch.rand(2, tasks, shots, 1) - 2
    (x, test_x), (y, test_y) = places.to(dtype), (height * (places + phase).sin()).to(dtype)
    return x, y, test_x, test_y


class Learner:
    """The losses of a network whose parameters were adapted to a task."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def parameters(self) -> Parameters:
        """What every task begins with: the memory of the network's own parameters."""
        return {name: parameter.detach() for name, parameter in self.network.named_parameters()}

    def loss(self, parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        """The mean square of the errors."""
        return (functional_call(self.network, parameters, (x,)) - y).square().mean()

    def adapt(self, parameters: Parameters, x: Tensor, y: Tensor) -> Parameters:
        """Parameters that have learnt one task, by a few steps from ``parameters``, which stay as they are."""
        for _ in range(INNER_STEPS):
            gradients = func.grad(self.loss)(parameters, x, y)
            parameters = {name: parameter.clone() for name, parameter in parameters.items()}
            for name, gradient in gradients.items():
                parameters[name].sub_(INNER_RATE * gradient)
        return parameters

    def test(self, parameters: Parameters, x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> Tensor:
        """The loss on points that the adapted parameters have not seen."""
        return self.loss(self.adapt(parameters, x, y), test_x, test_y)

    def outer_loss(self, parameters: Parameters, tasks: Tasks) -> Tensor:
        """The mean of ``test`` over all tasks."""
        return func.vmap(self.test, in_dims=(None, 0, 0, 0, 0))(parameters, *tasks).mean()


def by_a_loop(learner: Learner, parameters: Parameters, tasks: Tasks) -> Parameters:
    """The gradients of ``outer_loss``, task by task in eager."""
    leaves = {name: parameter.clone().requires_grad_() for name, parameter in parameters.items()}
    for x, y, test_x, test_y in zip(*tasks, strict=True):
        adapted = leaves
        for _ in range(INNER_STEPS):
            gradients = torch.autograd.grad(learner.loss(adapted, x, y), list(adapted.values()), create_graph=True)
            steps = zip(adapted.items(), gradients, strict=True)
            adapted = {name: parameter - INNER_RATE * gradient for (name, parameter), gradient in steps}
        (learner.loss(adapted, test_x, test_y) / len(tasks[0])).backward()
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def train(learner: Learner, *, steps: int = STEPS) -> list[float]:
    """The outer loss of each step, always on new tasks; the parameters of the network are updated."""
    step = purefx.compile(func.grad_and_value(learner.outer_loss))
    optimizer = torch.optim.Adam(learner.network.parameters(), lr=0.005)
    losses = []
    for _ in range(steps):
        gradients, loss = step(learner.parameters(), make_tasks(TASKS, SHOTS))
        for name, parameter in learner.network.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train, then compare the outer gradient with a loop."""
    torch.manual_seed(0)
    learner = Learner(make_network(WIDTH))
    means = torch.tensor(train(learner)).view(5, -1).mean(1)
    print("loss after adapting:", *(f"{mean:.3f}" for mean in means))
    parameters, tasks = learner.parameters(), make_tasks(TASKS, SHOTS)
    gradients = purefx.compile(func.grad(learner.outer_loss))(parameters, tasks)
    torch.testing.assert_close(gradients, by_a_loop(learner, parameters, tasks), rtol=1e-3, atol=1e-5)
    print(f"same as a loop in eager: {len(gradients)} gradients through {INNER_STEPS} steps of {TASKS} tasks")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are small
    main()
