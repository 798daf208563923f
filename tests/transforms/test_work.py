"""The work that transforms are for, as the examples do it, at a small size: values and gradients are those of eager.

Each is compared with a loop, or with a variant that writes nothing, which is run by PyTorch alone in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import purefx
from examples import ensemble, force_field, maml, per_sample_gradients, physics_informed
from purefx import func

DTYPE = torch.float64

Parameters = dict[str, Tensor]
Compile = Callable[[Any], Any]

FRONT_DOORS: dict[str, Compile] = {"compiled": purefx.compile, "as it is": lambda function: function}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=FRONT_DOORS.values(), ids=FRONT_DOORS.keys())
def through(request: pytest.FixtureRequest) -> Compile:
    """The function that is tested: the transformed one, or what ``purefx.compile`` makes of it."""
    return request.param  # type: ignore[no-any-return]


def detached(network: nn.Module) -> Parameters:
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


def gradients_of(loss: Tensor, parameters: Parameters) -> Parameters:
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return dict(zip(parameters, gradients, strict=True))


def leaves(parameters: Parameters) -> Parameters:
    return {name: parameter.detach().clone().requires_grad_() for name, parameter in parameters.items()}


# ---- the scripts


@pytest.mark.parametrize(
    ("example", "printed"),
    [
        (force_field, "same as eager: 60 steps through the gradient of a gradient, 16 frames of 4 atoms"),
        (per_sample_gradients, "same as a loop in eager: 10 gradients of 32 samples"),
        (physics_informed, "same as eager: 192 derivatives at 64 points"),
        (ensemble, "same as eager: 8 networks, 300 steps"),
        (maml, "same as a loop in eager: 6 gradients through 2 steps of 16 tasks"),
    ],
    ids=lambda value: value.__name__.rpartition(".")[2] if isinstance(value, ModuleType) else "",
)
def test_an_example_does_its_work_and_is_the_same_as_eager(
    example: ModuleType, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main()
    assert printed in capsys.readouterr().out


# ---- forces


def make_force_field() -> tuple[force_field.ForceField, Tensor]:
    torch.manual_seed(1)
    return force_field.ForceField(5).to(DTYPE), torch.rand(2, 3, 3, dtype=DTYPE) * 2


def energy_without_writes(field: force_field.ForceField, positions: Tensor) -> Tensor:
    """The same energies by one broadcast over all pairs."""
    atoms = positions.shape[1]
    i, j = torch.tensor([(i, j) for i in range(atoms) for j in range(atoms) if i != j]).T
    distances = (positions[:, i] - positions[:, j]).norm(dim=-1).view(-1, atoms, atoms - 1, 1)
    rows = (-4 * (distances - field.centers).square()).exp().sum(2)
    return field.outer(field.inner(rows).tanh()).sum((1, 2))


def force_loss(energy: force_field.Energy, positions: Tensor) -> Tensor:
    return (force_field.forces(energy, positions) - positions.sin()).square().sum()


def test_the_loss_on_forces_has_the_gradients_of_eager() -> None:
    field, positions = make_force_field()
    parameters = dict(field.named_parameters())
    compiled = purefx.compile(field)
    losses = [force_loss(energy, positions) for energy in (compiled, field)]
    losses.append(force_loss(lambda positions: energy_without_writes(field, positions), positions))
    actual, expected, without_writes = [(loss, gradients_with_zeros(loss, parameters)) for loss in losses]
    torch.testing.assert_close(expected, without_writes)
    torch.testing.assert_close(actual, expected)


def gradients_with_zeros(loss: Tensor, parameters: Parameters) -> Parameters:
    """Forces do not depend on the last bias, which only shifts the energy."""
    gradients = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    return dict(zip(parameters, gradients, strict=True))


def test_training_on_forces_ends_with_the_parameters_of_eager() -> None:
    field, positions = make_force_field()
    twin = copy.deepcopy(field)
    expected = force_field.train(field, field, positions, steps=4)
    losses = force_field.train(purefx.compile(twin), twin, positions, steps=4)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(dict(twin.named_parameters()), dict(field.named_parameters()))


def test_forces_and_the_gradients_of_their_loss_by_transforms(through: Compile) -> None:
    field, positions = make_force_field()

    def loss(parameters: Parameters, frame: Tensor) -> Tensor:
        def energy(frame: Tensor) -> Tensor:
            return func.functional_call(field, parameters, (frame[None],)).sum()

        return (-func.grad(energy)(frame) - frame.sin()).square().sum()

    every = func.vmap(func.grad_and_value(loss), in_dims=(None, 0))
    gradients, losses = through(every)(detached(field), positions)
    expected = [force_loss(field, frame[None]) for frame in positions]
    torch.testing.assert_close(losses, torch.stack(expected).detach())
    by_frame = [gradients_with_zeros(loss, dict(field.named_parameters())) for loss in expected]
    torch.testing.assert_close(gradients, {name: torch.stack([g[name] for g in by_frame]) for name in gradients})


def test_the_hessian_of_an_energy_is_that_of_eager(through: Compile) -> None:
    field, positions = make_force_field()

    def energy(frame: Tensor) -> Tensor:
        return field(frame[None]).sum()

    def without_writes(frame: Tensor) -> Tensor:
        return energy_without_writes(field, frame[None]).sum()

    expected = torch.autograd.functional.hessian(without_writes, positions[0])
    torch.testing.assert_close(through(func.hessian(energy))(positions[0]).detach(), expected)
    torch.testing.assert_close(through(func.jacrev(func.grad(energy)))(positions[0]).detach(), expected)


# ---- per-sample gradients


def loss_of_a_sample(network: nn.Module) -> Callable[[Parameters, Tensor, Tensor], Tensor]:
    buffers = dict(network.named_buffers())

    def loss(parameters: Parameters, image: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(network, (parameters, buffers), (image[None],))
        return nn.functional.cross_entropy(scores, label[None])

    return loss


def test_per_sample_gradients_are_those_of_a_loop(through: Compile) -> None:
    torch.manual_seed(1)
    images, labels = per_sample_gradients.make_samples(5, DTYPE)
    network = per_sample_gradients.make_network(images, channels=3)
    expected = per_sample_gradients.by_a_loop(network, images, labels)
    loss = loss_of_a_sample(network)
    gradients = through(func.vmap(func.grad(loss), in_dims=(None, 0, 0)))(detached(network), images, labels)
    torch.testing.assert_close(gradients, expected)
    clipped = per_sample_gradients.clipped_mean(gradients)
    length = torch.cat([gradient.flatten() for gradient in clipped.values()]).norm()
    assert length <= per_sample_gradients.CLIP


def test_the_gradients_of_the_example_follow_a_change_of_the_parameters() -> None:
    torch.manual_seed(1)
    images, labels = per_sample_gradients.make_samples(4, DTYPE)
    network = per_sample_gradients.make_network(images, channels=2)
    gradients_now = per_sample_gradients.per_sample_gradients(network)
    for _ in range(2):
        gradients, losses = gradients_now(images, labels)
        torch.testing.assert_close(gradients, per_sample_gradients.by_a_loop(network, images, labels))
        with torch.no_grad():
            expected = nn.functional.cross_entropy(network(images), labels, reduction="none")
            torch.testing.assert_close(losses, expected)
            network.classifier.weight.mul_(2)


# ---- differential equations


def make_physics() -> tuple[physics_informed.Network, Tensor, Tensor]:
    torch.manual_seed(1)
    inside, edge = physics_informed.make_points(4, 2, DTYPE)
    return physics_informed.Network(3).to(DTYPE), inside, edge


def network_without_writes(parameters: Parameters, points: Tensor) -> Tensor:
    """The same function of many points at once."""
    features = torch.cat([points, points.sin(), points.prod(-1, keepdim=True)], dim=-1)
    hidden = (features @ parameters["inner.weight"].mT + parameters["inner.bias"]).tanh()
    hidden = hidden + (hidden @ parameters["middle.weight"].mT + parameters["middle.bias"]).tanh()
    return (hidden @ parameters["outer.weight"].mT + parameters["outer.bias"]).squeeze(-1)


def physics_loss(parameters: Parameters, inside: Tensor, edge: Tensor) -> Tensor:
    """The same loss by three backwards in eager."""
    inside = inside.clone().requires_grad_()
    u = network_without_writes(parameters, inside)
    (slopes,) = torch.autograd.grad(u.sum(), inside, create_graph=True)
    (changes,) = torch.autograd.grad(slopes[:, 1].sum(), inside, create_graph=True)
    residuals = slopes[:, 0] + u * slopes[:, 1] - physics_informed.VISCOSITY * changes[:, 1]
    errors = network_without_writes(parameters, edge) - physics_informed.wave(edge)
    return residuals.square().mean() + errors.square().mean()


def test_a_differential_equation_is_trained_as_by_three_backwards(through: Compile) -> None:
    network, inside, edge = make_physics()
    parameters = leaves(detached(network))
    expected = physics_loss(parameters, inside, edge)
    step = through(func.grad_and_value(physics_informed.make_loss(network)))
    gradients, loss = step(detached(network), inside, edge)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(gradients, gradients_of(expected, parameters))


def test_second_derivatives_in_four_ways_are_those_of_two_backwards(through: Compile) -> None:
    network, inside, _ = make_physics()
    network.requires_grad_(requires_grad=False)
    along_x = torch.tensor([0.0, 1.0], dtype=DTYPE)

    def slope(point: Tensor) -> Tensor:
        value: Tensor = func.jvp(network, (point,), (along_x,))[1]
        return value

    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "jvp over grad": lambda point: func.jvp(func.grad(network), (point,), (along_x,))[1][1],
        "jvp over jvp": lambda point: func.jvp(slope, (point,), (along_x,))[1],
        "grad over jvp": lambda point: func.grad(slope)(point)[1],
        "grad over grad": lambda point: func.grad(lambda point: func.grad(network)(point)[1])(point)[1],
    }
    expected = torch.stack([physics_informed.by_autograd(network, point)[2] for point in inside])
    for way, curvature in ways.items():
        actual = through(func.vmap(curvature))(inside)
        torch.testing.assert_close(actual, expected, msg=lambda text, way=way: f"{way}: {text}")


# ---- ensembles


def make_ensemble() -> tuple[list[ensemble.Network], Tensor, Tensor]:
    torch.manual_seed(1)
    x, y = ensemble.make_samples(6)
    return [ensemble.Network(4, depth=2).to(DTYPE) for _ in range(3)], x, y


def test_an_ensemble_has_the_gradients_of_its_members(through: Compile) -> None:
    networks, x, y = make_ensemble()

    def loss(parameters: Parameters) -> Tensor:
        return (func.functional_call(networks[0], parameters, (x,)) - y).square().mean()

    gradients, losses = through(func.vmap(func.grad_and_value(loss)))(ensemble.stack(networks))
    for i, network in enumerate(networks):
        expected = (network(x) - y).square().mean()
        torch.testing.assert_close(losses[i], expected.detach())
        own = {name: gradient[i] for name, gradient in gradients.items()}
        torch.testing.assert_close(own, gradients_of(expected, dict(network.named_parameters())))


def test_an_ensemble_is_trained_as_its_members_alone_are(through: Compile) -> None:
    networks, x, y = make_ensemble()
    parameters = ensemble.stack(networks)
    step = through(ensemble.make_step(networks[0]))
    losses = [step(parameters, x, y) for _ in range(3)]
    assert (losses[0] > losses[2]).all()
    for network in networks:
        ensemble.train_alone(network, x, y, steps=3)
    torch.testing.assert_close(parameters, ensemble.stack(networks))


def test_an_ensemble_predicts_what_its_members_predict() -> None:
    networks, x, _ = make_ensemble()
    with torch.no_grad():
        expected = torch.stack([network(x) for network in networks])
    torch.testing.assert_close(ensemble.predict(networks[0], ensemble.stack(networks), x), expected)


# ---- learning to learn


def make_learner() -> tuple[maml.Learner, Parameters, maml.Tasks]:
    torch.manual_seed(1)
    learner = maml.Learner(maml.make_network(4).to(DTYPE))
    return learner, detached(learner.network), maml.make_tasks(3, 5, DTYPE)


def test_the_outer_gradient_of_maml_is_that_of_a_loop(through: Compile) -> None:
    learner, parameters, tasks = make_learner()
    before = copy.deepcopy(parameters)
    gradients = through(func.grad(learner.outer_loss))(parameters, tasks)
    torch.testing.assert_close(gradients, maml.by_a_loop(learner, parameters, tasks))
    torch.testing.assert_close(parameters, before, rtol=0, atol=0)


def test_every_task_of_maml_is_adapted_as_if_it_were_alone(through: Compile) -> None:
    learner, parameters, (x, y, _, _) = make_learner()
    adapted = through(func.vmap(learner.adapt, in_dims=(None, 0, 0)))(parameters, x, y)
    for i in range(len(x)):
        expected = parameters
        for _ in range(maml.INNER_STEPS):
            now = leaves(expected)
            errors = functional_call(learner.network, now, (x[i],)) - y[i]
            gradients = gradients_of(errors.square().mean(), now)
            expected = {name: value.detach() - maml.INNER_RATE * gradients[name] for name, value in now.items()}
        torch.testing.assert_close({name: value[i] for name, value in adapted.items()}, expected)


def test_the_outer_loss_of_maml_is_differentiated_by_autograd_through_a_compiled_function() -> None:
    learner, parameters, tasks = make_learner()
    own = leaves(parameters)
    loss = purefx.compile(learner.outer_loss)(own, tasks)
    torch.testing.assert_close(gradients_of(loss, own), maml.by_a_loop(learner, parameters, tasks))


# ---- transforms of PyTorch around what purefx makes


@pytest.fixture(params=[purefx.compile, purefx.functionalize], ids=["compile", "functionalize"])
def inside(request: pytest.FixtureRequest) -> Compile:
    """What makes of a program a function that PyTorch's own transforms accept."""
    return request.param  # type: ignore[no-any-return]


def test_vmap_over_grad_of_a_compiled_loss(inside: Compile) -> None:
    torch.manual_seed(1)
    images, labels = per_sample_gradients.make_samples(4, DTYPE)
    network = per_sample_gradients.make_network(images, channels=2)
    gradient = torch.func.grad(inside(loss_of_a_sample(network)))
    gradients = torch.func.vmap(gradient, in_dims=(None, 0, 0))(detached(network), images, labels)
    torch.testing.assert_close(gradients, per_sample_gradients.by_a_loop(network, images, labels))


def test_vmap_over_jvp_over_grad_of_a_compiled_network(inside: Compile) -> None:
    network, points, _ = make_physics()
    network.requires_grad_(requires_grad=False)
    compiled = inside(network)
    along_x = torch.tensor([0.0, 1.0], dtype=DTYPE)

    def derivatives(point: Tensor) -> Tensor:
        slopes, changes = torch.func.jvp(torch.func.grad(compiled), (point,), (along_x,))
        return torch.stack([*slopes, changes[1]])

    expected = torch.stack([physics_informed.by_autograd(network, point) for point in points])
    torch.testing.assert_close(torch.func.vmap(derivatives)(points), expected)


def test_grad_over_vmap_over_a_compiled_inner_loop(inside: Compile) -> None:
    learner, parameters, tasks = make_learner()
    every = torch.func.vmap(inside(learner.test), in_dims=(None, 0, 0, 0, 0))
    gradients = torch.func.grad(lambda parameters: every(parameters, *tasks).mean())(parameters)
    torch.testing.assert_close(gradients, maml.by_a_loop(learner, parameters, tasks))


def test_vmap_over_grad_of_a_compiled_member(inside: Compile) -> None:
    networks, x, y = make_ensemble()

    def loss(parameters: Parameters) -> Tensor:
        return (functional_call(networks[0], parameters, (x,)) - y).square().mean()

    gradients = torch.func.vmap(torch.func.grad(inside(loss)))(ensemble.stack(networks))
    for i, network in enumerate(networks):
        expected = gradients_of((network(x) - y).square().mean(), dict(network.named_parameters()))
        torch.testing.assert_close({name: gradient[i] for name, gradient in gradients.items()}, expected)


# ---- what PyTorch refuses


def refused_programs() -> dict[str, Callable[[], object]]:
    """The programs of the examples, through PyTorch's own ``vmap``."""
    images, labels = per_sample_gradients.make_samples(4, DTYPE)
    network = per_sample_gradients.make_network(images, channels=2)
    physics, points, _ = make_physics()
    networks, x, _ = make_ensemble()
    learner, parameters, (task_x, task_y, _, _) = make_learner()
    loss, vmap = loss_of_a_sample(network), torch.func.vmap
    return {
        "per-sample gradients": lambda: vmap(loss, in_dims=(None, 0, 0))(detached(network), images, labels),
        "physics": lambda: vmap(physics)(points),
        "ensemble": lambda: vmap(lambda p: functional_call(networks[0], p, (x,)))(ensemble.stack(networks)),
        "maml": lambda: vmap(learner.adapt, in_dims=(None, 0, 0))(parameters, task_x, task_y),
    }


@pytest.mark.parametrize("name", ["per-sample gradients", "physics", "ensemble", "maml"])
def test_the_vmap_of_pytorch_refuses_the_writes_of_the_examples(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"vmap: inplace|doesn't match the broadcast shape"):
        refused_programs()[name]()
