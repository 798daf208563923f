"""Everything that a caller can see of one call, as plain data, and the differences between two such records.

``observe`` runs a function on fresh arguments and reads the outputs, the arguments and the state of PyTorch.
Then it *probes*: it runs the function anew, writes into one tensor that the caller holds, and reads all the
others, so that sharing which no attribute shows is seen by its effect. Nothing here knows of graphs or of
compilation: eager and any system are observed by the same code; `purefx.report.compare` sets two records side by side.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import Node

from purefx._torch import FakeTensor, pytree
from purefx.report.trees import is_wrapper, leaves_of, tensors_of

T = TypeVar("T")
_SEED = 20


@dataclass(frozen=True, slots=True)
class Arguments:
    """What one call is given; ``held`` are tensors that the function reaches otherwise, as by a closure."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object] = field(default_factory=dict)
    held: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Name:
    """What a fact is about: a subject as the caller would spell it, ``args[0]['w']``, and an aspect of it."""

    subject: str
    aspect: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.aspect}"


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """The elements of a tensor, copied out: strided, detached, sharing storage with nothing."""

    tensor: Tensor

    def __str__(self) -> str:
        return f"{self.tensor.tolist()} ({str(self.tensor.dtype).removeprefix('torch.')})"


@dataclass(frozen=True, slots=True)
class Raised:
    """Looking raised an error: that is a fact like any other."""

    type_name: str
    message: str

    def __str__(self) -> str:
        return f"raises {self.type_name}: {self.message}"


Fact: TypeAlias = Elements | Raised | str
Facts: TypeAlias = Iterator[tuple[Name, Fact]]
Function: TypeAlias = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Observation:
    """All facts of one call, and those of its probes, in the order in which they were read."""

    call: Mapping[Name, Fact]
    probes: Mapping[Name, Fact]
    outputs: tuple[str, ...]
    arguments: tuple[str, ...]
    raised: Raised | None = None

    @property
    def facts(self) -> Mapping[Name, Fact]:
        """The facts of the call and of the probes."""
        return {**self.call, **self.probes}


def observe(
    f: Function, make_arguments: Callable[[], Arguments | tuple[object, ...]], *, probes: bool = True
) -> Observation:
    """Every observable fact of a call of ``f``; ``make_arguments`` returns fresh, equal arguments each time.

    The caller's random state, grad mode and the arguments of other calls are left as they were.
    """
    with (
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
        torch.set_grad_enabled(torch.is_grad_enabled()),
    ):
        warnings.simplefilter("ignore")
        call = _run(f, make_arguments)
        targets = tuple(_probes(call)) if probes and not isinstance(call.result, Raised) else ()
        facts = dict(_facts_of_call(call))
        probed: dict[Name, Fact] = {}
        for target, write in targets:
            probed.update(_facts_of_probe(_run(f, make_arguments), target, write))
    raised = call.result if isinstance(call.result, Raised) else None
    return Observation(facts, probed, tuple(call.outputs), tuple(call.arguments), raised)


# ---- one call


@dataclass(frozen=True, slots=True)
class _Call:
    """One call that has been made; names are unique over outputs and arguments."""

    given: Arguments
    arguments: Mapping[str, Tensor]
    leaves: Mapping[str, Tensor]
    versions: Mapping[str, int]
    result: object | Raised
    modes: tuple[tuple[Name, Fact], ...]

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        return tensors_of(self.result, "result")

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors in the caller's hands: outputs, arguments, and what their containers now hold."""
        replaced = {
            f"{name} afterwards": tensor
            for name, tensor in _argument_tensors(self.given).items()
            if self.arguments.get(name) is not tensor
        }
        return {**self.outputs, **self.arguments, **replaced}


def _run(f: Function, make_arguments: Callable[[], Arguments | tuple[object, ...]]) -> _Call:
    torch.manual_seed(_SEED)
    made = make_arguments()
    given = made if isinstance(made, Arguments) else Arguments(tuple(made))
    arguments = _argument_tensors(given)
    leaves = leaves_of(arguments)
    versions = {name: tensor._version for name, tensor in arguments.items() if not tensor.is_inference()}
    torch.manual_seed(_SEED)
    grad_mode = torch.is_grad_enabled()
    result = attempt(lambda: f(*given.args, **given.kwargs))
    modes = tuple(_modes())
    torch.set_grad_enabled(grad_mode)
    return _Call(given, arguments, leaves, versions, result, modes)


def attempt(look: Callable[[], T]) -> T | Raised:
    """What ``look`` returns, or the error that it raises."""
    try:
        return look()
    except Exception as error:
        return Raised(type(error).__name__, (str(error).splitlines() or [""])[0])


def _argument_tensors(given: Arguments) -> dict[str, Tensor]:
    return {
        **tensors_of(given.args, "args"),
        **tensors_of(dict(given.kwargs), "kwargs"),
        **given.held,
    }


# ---- facts of a call


def _facts_of_call(call: _Call) -> Facts:
    yield from _facts_of_result(call.result)
    yield Name("args", "structure"), _structure((call.given.args, dict(call.given.kwargs)))
    tensors = call.tensors
    for name, tensor in tensors.items():
        yield Name(name, "value"), _elements(tensor)
        yield from _attributes(tensor, name)
    yield from _relations(tensors)
    yield from _versions(call, tensors)
    yield from _gradients(call, tensors, "")
    yield from call.modes


def _facts_of_result(result: object) -> Facts:
    if isinstance(result, Raised):
        yield Name("call", "error type"), result.type_name
        yield Name("call", "error message"), result.message
        return
    yield Name("result", "structure"), _structure(result)
    for path, leaf in pytree.tree_flatten_with_path(result)[0]:
        if isinstance(leaf, (float, complex)):
            yield Name(f"result{pytree.keystr(path)}", "value"), Elements(torch.tensor(leaf))


def _structure(tree: object) -> str:
    """The containers of a pytree and its leaves; of tensors, rounded numbers and objects only the type.

    The containers are not made anew with other leaves: some look at what they are given (`PackedSequence`).
    """
    leaves, containers = pytree.tree_flatten(tree)
    return f"{[_leaf_text(leaf) for leaf in leaves]} in {containers}"


def _leaf_text(leaf: object) -> object:
    if leaf is None or isinstance(leaf, (bool, int, str, bytes, torch.dtype, torch.device, torch.layout, range, slice)):
        return leaf
    return type(leaf)


def _elements(tensor: Tensor) -> Fact:
    if is_wrapper(tensor) or tensor.is_meta or isinstance(tensor, FakeTensor):
        return "none of its own"
    return attempt(lambda: Elements(_plain(tensor)))


def _plain(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
        return dense.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


_ATTRIBUTES: Mapping[str, Callable[[Tensor], Fact]] = {
    "class": lambda tensor: type(tensor).__name__,
    "sizes": lambda tensor: str(tuple(tensor.shape)),
    "dtype": lambda tensor: str(tensor.dtype),
    "device": lambda tensor: str(tensor.device),
    "layout": lambda tensor: str(tensor.layout),
    "strides": lambda tensor: str(_telling_strides(tensor)),
    "storage offset": lambda tensor: str(tensor.storage_offset()),
    "storage bytes": lambda tensor: str(tensor.untyped_storage().nbytes()),
    "requires_grad": lambda tensor: str(tensor.requires_grad),
    "is_conj": lambda tensor: str(tensor.is_conj()),
    "is_neg": lambda tensor: str(tensor.is_neg()),
    "is_inference": lambda tensor: str(tensor.is_inference()),
    "is_leaf": lambda tensor: str(tensor.is_leaf),
    "retains_grad": lambda tensor: str(tensor.retains_grad),
    "grad_fn": lambda tensor: _node_name(tensor),
    "grad": lambda tensor: "None" if not tensor.is_leaf or tensor.grad is None else _elements(tensor.grad),
}


def _telling_strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides that say where elements are: that of a dimension of size 1 is never used, and operators differ."""
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def _node_name(tensor: Tensor) -> str:
    node = tensor.grad_fn
    return node.name() if isinstance(node, Node) else "None"


def _attributes(tensor: Tensor, name: str) -> Facts:
    for aspect, read in _ATTRIBUTES.items():
        yield Name(name, aspect), attempt(partial(read, tensor))


def _relations(tensors: Mapping[str, Tensor]) -> Facts:
    """Which object, base and storage each tensor has, told by the first name that has the same."""
    objects: dict[int, str] = {}
    for name, tensor in tensors.items():
        yield Name(name, "same object as"), objects.setdefault(id(tensor), name)
    for name, tensor in tensors.items():
        objects.setdefault(id(tensor._base), f"what {name} is a view of")
    objects[id(None)] = "nothing"
    storages: list[tuple[torch.UntypedStorage, str, int]] = []
    for name, tensor in tensors.items():
        yield Name(name, "is a view of"), objects[id(tensor._base)]
        if tensor.layout is torch.strided:
            yield Name(name, "shares storage with"), _first_sharer(storages, name, tensor)


def _first_sharer(storages: list[tuple[torch.UntypedStorage, str, int]], name: str, tensor: Tensor) -> str:
    """The first tensor over the same storage, which is added to ``storages`` if there is none."""
    place = int(tensor.storage_offset()) * tensor.element_size()
    storage = tensor.untyped_storage()
    for known, first, start in storages:
        if known is storage:
            return f"{first} at {place - start:+} bytes"
    storages.append((storage, name, place))
    return f"{name} at +0 bytes"


def _versions(call: _Call, tensors: Mapping[str, Tensor]) -> Facts:
    """Writes counted since the call began; an output over an argument's storage counts from there too."""
    for name, tensor in tensors.items():
        if not tensor.is_inference():
            start = call.versions.get(name, _version_before(call, tensor))
            yield Name(name, "version"), str(tensor._version - start)


def _version_before(call: _Call, tensor: Tensor) -> int:
    for name, argument in call.arguments.items():
        if name in call.versions and (tensor is argument or tensor._base is argument or tensor is argument._base):
            return call.versions[name]
        if name in call.versions and tensor._base is not None and tensor._base is argument._base:
            return call.versions[name]
    return 0


def _gradients(call: _Call, tensors: Mapping[str, Tensor], when: str) -> Facts:
    """The gradient of each leaf, for fixed cotangents of every differentiable output and written argument."""
    leaves = {name: leaf for name, leaf in call.leaves.items() if leaf.requires_grad}
    targets = [tensor for tensor in _distinct(tensors).values() if _has_history(tensor)]
    if not leaves or not targets:
        return
    generator = torch.Generator().manual_seed(_SEED)
    cotangents = [_cotangent(target, generator) for target in targets]
    found: tuple[Tensor | None, ...] | Raised = attempt(
        lambda: torch.autograd.grad(targets, list(leaves.values()), cotangents, allow_unused=True)
    )
    if isinstance(found, Raised):
        yield Name(f"gradients{when}", "error"), found
        return
    for name, gradient in zip(leaves, found, strict=True):
        yield Name(name + when, "gradient"), "None" if gradient is None else _elements(gradient)


def _has_history(tensor: Tensor) -> bool:
    return isinstance(attempt(lambda: _node_name(tensor)), str) and tensor.grad_fn is not None


def _cotangent(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Small whole numbers, so that sums of gradients are exact."""
    return torch.randint(1, 5, tuple(tensor.shape), generator=generator).to(tensor.device, tensor.dtype)


def _distinct(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    first: dict[int, str] = {}
    return {name: tensor for name, tensor in tensors.items() if first.setdefault(id(tensor), name) == name}


def _modes() -> Facts:
    """What the call leaves behind in PyTorch itself."""
    yield Name("call", "grad mode afterwards"), str(torch.is_grad_enabled())
    yield Name("call", "inference mode afterwards"), str(torch.is_inference_mode_enabled())
    yield Name("call", "default dtype afterwards"), str(torch.get_default_dtype())
    state = bytes(torch.get_rng_state().numpy())
    yield Name("call", "random state afterwards"), hashlib.sha256(state).hexdigest()[:12]


# ---- probes

_Write: TypeAlias = Callable[[Tensor], object]


def _probes(call: _Call) -> Iterator[tuple[str, _Write]]:
    """Each tensor in the caller's hands with each write that is tried on it."""
    for name, tensor in _distinct(call.tensors).items():
        yield name, _write_unseen
        if name in call.outputs and tensor.requires_grad:
            yield name, _write_seen


def _write_unseen(tensor: Tensor) -> None:
    with torch.no_grad():
        if tensor.dtype == torch.bool:
            tensor.logical_not_()
        else:
            tensor.add_(1)


def _write_seen(tensor: Tensor) -> None:
    with torch.enable_grad():
        tensor.mul_(3)


def _facts_of_probe(call: _Call, target: str, write: _Write) -> Facts:
    """What the caller sees after a write into ``target``; gradients too, if autograd saw the write."""
    seen = write is _write_seen
    when = f" after a {'write with grad' if seen else 'write'} into {target}"
    tensors = call.tensors
    if target not in tensors:
        yield Name(f"call{when}", "error"), Raised("LookupError", "this run returned no such tensor")
        return
    failure = attempt(partial(write, tensors[target]))
    if isinstance(failure, Raised):
        yield Name(f"call{when}", "error"), failure
    for name, tensor in tensors.items():
        yield Name(name + when, "value"), _elements(tensor)
    if seen:
        yield from _gradients(call, tensors, when)
