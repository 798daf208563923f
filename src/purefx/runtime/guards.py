"""The specialisation of a compiled function: what must hold of a call so that a capture may be used for it.

Each condition is a line of generated source over the call's leaves; ``matches`` is their conjunction.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from purefx._torch import ShapeEnv, count_writes_together, is_functorch_wrapped, is_piece, looks_of
from purefx.capture.arguments import GradientOf, Held, Leaf, TableEntry
from purefx.capture.captured import Capture, Input
from purefx.capture.edges import has_lost_history, is_bare_view, is_view_without_grad
from purefx.capture.fakes import BOUNDLESS
from purefx.capture.recording import Effect, Storage
from purefx.layout import Geometry
from purefx.operators import READS_STORAGE, aten
from purefx.runtime.spelling import Speller
from purefx.runtime.support import default_device, same_value, sharing

READS_OFFSETS = READS_STORAGE | {
    aten.as_strided_.default,
    aten.resize_.default,
    aten.resize_as_.default,
    aten.set_.source_Storage,
    aten.set_.source_Storage_storage_offset,
}
"""Operators whose arguments count from the start of the storage, or that ask for its size."""


@dataclass(frozen=True, slots=True)
class Looks:
    """Conditions on how tensors look: those of ``each``, which hold if ``check``, one look at all, does."""

    check: str
    each: tuple[str, ...]


_ASKED = ("training", "submodules", "names of parameters", "names of buffers", "forward hooks", "forward pre-hooks")
"""What the entries of the state of a module are."""


@dataclass(frozen=True, slots=True, eq=False)
class ModuleGuard:
    """The state of modules, under the ``names`` of the user's, that a capture depends on (see `_ASKED`)."""

    names: tuple[str, ...]
    owners: tuple[torch.nn.Module, ...]
    state: tuple[Any, ...]

    @classmethod
    def of(cls, modules: Iterable[tuple[str, torch.nn.Module]]) -> ModuleGuard:
        """The guard of ``modules`` and all modules in them, as they are now."""
        names: dict[torch.nn.Module, str] = {}
        for name, module in modules:
            for path, owner in module.named_modules(prefix=name):
                names.setdefault(owner, path)
        return cls(tuple(names.values()), tuple(names), tuple(map(_module_state, names)))

    @property
    def roots(self) -> list[str]:
        """The names of those that are in no other."""
        inside = {
            f"{name}.{key}" for name, owner in zip(self.names, self.owners, strict=True) for key in owner._modules
        }
        return [name for name in self.names if name not in inside]

    def holds(self) -> bool:
        """Whether all modules are as they were."""
        return all(map(_is_in_state, self.owners, self.state))

    def changed(self) -> tuple[str, str]:
        """A module that is not as it was, and what of it is another; two empty texts if there is none."""
        for name, owner, state in zip(self.names, self.owners, self.state, strict=True):
            for asked, before, now in zip(_ASKED, state, _module_state(owner), strict=True):
                if before != now:
                    return name, asked
        return "", ""


def _module_state(module: torch.nn.Module) -> tuple[Any, ...]:
    return (
        module.training,
        tuple(module._modules.values()),
        _slots(module._parameters),
        _slots(module._buffers),
        tuple(module._forward_hooks),
        tuple(module._forward_pre_hooks),
    )


def _slots(table: Mapping[str, torch.Tensor | None]) -> tuple[tuple[str, bool], ...]:
    return tuple([(name, tensor is None) for name, tensor in table.items()])


def _is_in_state(module: torch.nn.Module, state: tuple[Any, ...]) -> bool:
    """Whether ``module`` is as it was; what is empty, as most tables are, is not looked at."""
    training, modules, parameters, buffers, hooks, pre_hooks = state
    return (
        module.training is training
        and (tuple(module._modules.values()) == modules if module._modules else not modules)
        and (_slots(module._parameters) == parameters if module._parameters else not parameters)
        and (_slots(module._buffers) == buffers if module._buffers else not buffers)
        and (tuple(module._forward_hooks) == hooks if module._forward_hooks else not hooks)
        and (tuple(module._forward_pre_hooks) == pre_hooks if module._forward_pre_hooks else not pre_hooks)
    )


def spell_sources(capture: Capture, speller: Speller, names: dict[Input, str]) -> Iterator[str]:
    """Statements that fetch the tensors which are not among the leaves."""
    for known in capture.inputs:
        source = known.sources[0]
        match source:
            case Leaf():
                continue
            case GradientOf(tensor):
                owner = next(name for k, name in names.items() if k.tensor is tensor)
                yield f"{names[known]} = {owner}.grad"
            case TableEntry(table, key, name):
                yield f"{names[known]} = {speller.name('state_of_' + name.rpartition('.')[0], table)}.get({key!r})"
            case Held(tensor, None, _):
                yield f"{names[known]} = {speller.name('held', tensor)}"
            case Held(_, binding, _):
                assert binding is not None  # the case above
                yield f"{names[known]} = {speller.name('variable_' + binding.name, binding)}.read()"


def spell_conditions(
    capture: Capture, speller: Speller, names: dict[Input, str], leaves: list[str], examples: Container[Input] = ()
) -> Iterator[str | Looks]:
    """Everything that must hold of the inputs with ``names``, cheapest and most telling first.

    Nothing of the history of ``examples``.
    """
    yield f"{speller.name('is_grad_enabled', torch.is_grad_enabled)}() is {capture.grad_before}"
    yield f"torch.is_inference_mode_enabled() is {capture.inference}"
    for name, leaf in zip(leaves, capture.flat.leaves, strict=True):
        if not isinstance(leaf, torch.Tensor):
            yield _plain_condition(name, leaf, speller)
    offsets = any(call.op in READS_OFFSETS for call in capture.recording)
    writes = (call for call in capture.recording if call.effect is Effect.WRITE and call.modes.grad)
    written = {operand.region.storage for call in writes for operand in call.written}
    yield from _looks(capture, speller, names, examples)
    for known in names:
        if offsets and known.before.geometry.is_static:
            nbytes = known.before.storage.nbytes
            yield f"{names[known]}.storage_offset() == {known.before.geometry.offset}"
            yield from [] if nbytes == BOUNDLESS else [f"{names[known]}.untyped_storage().nbytes() == {nbytes}"]
        if known not in examples:
            yield from _gradient_conditions(names[known], known, speller, written)
        yield from _source_conditions(names[known], known, speller, leaves)
    yield from _sharing_conditions(capture, speller, names, examples, written)
    yield from _ambient_conditions(capture, speller)
    for rebinding in capture.rebindings:
        if rebinding.plain:
            state = speller.name("state_of_" + rebinding.name.rpartition(".")[0], rebinding.table)
            same, before = speller.name("same_value", same_value), speller.literal(rebinding.before)
            yield f"{same}({state}.get({rebinding.key!r}), {before})"
    if capture.modules:
        yield f"{speller.name('modules', ModuleGuard.of(capture.modules))}.holds()"


def _ambient_conditions(capture: Capture, speller: Speller) -> Iterator[str]:
    """The state of PyTorch that decides what operators return."""
    enabled = torch.is_autocast_enabled("cpu")
    yield f"torch.is_autocast_enabled('cpu') is {enabled}"
    if enabled:
        yield f"torch.get_autocast_dtype('cpu') is {speller.literal(torch.get_autocast_dtype('cpu'))}"
    yield f"torch.get_default_dtype() is {speller.literal(torch.get_default_dtype())}"
    if any(not call.operands for call in capture.recording):  # of no tensor that has a device
        yield f"{speller.name('default_device', default_device)}() == torch.device({str(default_device())!r})"


def _plain_condition(name: str, leaf: Any, speller: Speller) -> str:
    if leaf is None or isinstance(leaf, bool | torch.dtype | torch.device | torch.nn.Module | type) or callable(leaf):
        return (
            f"{name} is {speller.literal(leaf)}"
            if not isinstance(leaf, torch.device)
            else f"{name} == {speller.literal(leaf)}"
        )
    if type(leaf) in (int, str):
        return f"type({name}) is {type(leaf).__name__} and {name} == {leaf!r}"
    return f"{speller.name('same_value', same_value)}({name}, {speller.literal(leaf)})"


def _looks(
    capture: Capture, speller: Speller, names: dict[Input, str], examples: Container[Input]
) -> Iterator[str | Looks]:
    """That the tensors look as they did."""
    each: list[str] = []
    for known in names:
        each += _tensor_conditions(names[known], known, speller)
        if known not in examples:
            each += _part_conditions(names[known], known, speller)
    seen = [known.tensor.detach() if known in examples else known.tensor for known in names]
    looks = looks_of(seen) if seen and not capture.dynamic else None
    if looks is None:
        yield from each
    else:
        yield Looks(f"{speller.name('looks', looks)}.check({', '.join(names.values())})", tuple(each))


def _tensor_conditions(name: str, known: Input, speller: Speller) -> Iterator[str]:
    """What a tensor looks like, but for its history."""
    tensor, geometry = known.tensor, known.before.geometry
    yield f"type({name}) is {speller.name(type(tensor).__name__, type(tensor))}"
    yield f"{name}.dtype is {speller.literal(tensor.dtype)}"
    if tensor.device.type != "cpu":
        yield f"{name}.device == {speller.literal(tensor.device)}"
    else:
        yield f"{name}.is_cpu"
    if geometry.is_static:
        yield f"{name}.shape == {speller.literal(tuple(geometry.sizes))}"
        yield f"{name}.stride() == {speller.literal(tuple(geometry.strides))}"
    if isinstance(known.sources[0], Leaf):
        yield f"{name}.is_inference() is {tensor.is_inference()}"
        yield f"{name}.is_neg() is {tensor.is_neg()}"
    if tensor.dtype.is_complex:
        yield f"{name}.is_conj() is {tensor.is_conj()}"


def _part_conditions(name: str, known: Input, speller: Speller) -> Iterator[str]:
    """Whether a tensor has a part in gradients, and no transform that has ended."""
    yield f"{name}.requires_grad is {known.tensor.requires_grad}"
    if known.tensor.requires_grad and isinstance(known.sources[0], Leaf):
        yield f"not {speller.name('is_functorch_wrapped', is_functorch_wrapped)}({name})"


def _gradient_conditions(name: str, known: Input, speller: Speller, written: Container[Storage]) -> Iterator[str]:
    """What the history of a tensor is; of what is ``written`` with gradients, a write may make one for its base."""
    tensor, is_argument = known.tensor, isinstance(known.sources[0], Leaf)
    if _has_base(known) and (known.before.storage in written or (tensor.requires_grad and is_argument)):
        yield f"{name}._base is {'None' if tensor._base is None else 'not None'}"
    if tensor.requires_grad and is_argument:
        yield from _history_conditions(name, tensor, speller)
    if tensor.requires_grad and known.was_leaf:  # of what is no leaf, PyTorch warns
        yield f"{name}.grad is {'None' if tensor.grad is None else 'not None'}"


def _has_base(known: Input) -> bool:
    """Whether autograd knows what ``known`` is a view of, if it is one."""
    return not known.tensor.is_inference()


def _history_conditions(name: str, tensor: torch.Tensor, speller: Speller) -> Iterator[str]:
    """Whether a tensor that requires grad is a leaf, or a view that has no history."""
    if tensor._base is not None and (is_piece(tensor) or is_view_without_grad(tensor)):
        lost = speller.name("has_lost_history", has_lost_history)
        yield f"{lost}({name}) is {has_lost_history(tensor)}"
        yield f"{speller.name('is_bare_view', is_bare_view)}({name}) is {is_bare_view(tensor)}"
    if not has_lost_history(tensor):
        yield f"{name}.is_leaf is {tensor.is_leaf}"


def _source_conditions(name: str, known: Input, speller: Speller, leaves: list[str]) -> Iterator[str]:
    first = known.sources[0]
    for source in known.sources:
        match source:
            case Leaf(index) if leaves[index] != name:
                yield f"{leaves[index]} is {name}"
            case TableEntry(table, key, path) if not (isinstance(first, TableEntry) and first.is_same(source)):
                yield f"{speller.name('state_of_' + path.rpartition('.')[0], table)}.get({key!r}) is {name}"
            case Held(tensor, binding, _) if binding is not None:
                yield f"{speller.name('variable_' + binding.name, binding)}.read() is {speller.name('held', tensor)}"
            case _:
                continue


def _sharing_conditions(
    capture: Capture,
    speller: Speller,
    names: dict[Input, str],
    examples: Container[Input],
    written: Container[Storage],
) -> Iterator[str]:
    if len(names) < 2:
        return
    inputs = list(names)
    pattern = sharing([known.tensor for known in inputs])
    groups, given = [group for group, _ in pattern], ", ".join(names.values())
    if len({*groups}) == len(groups):
        yield f"{speller.name('distinct_storages', distinct_storages)}({given})"
    else:
        yield f"{speller.name('storages', storages)}({given}) == {groups}"
    for i, (group, distance) in enumerate(pattern):
        a, b = inputs[i], inputs[group]
        if a is not b and not capture.dynamic:
            yield _distance_condition(names[a], names[b], (a.tensor.itemsize, b.tensor.itemsize), distance)
    for a, b in combinations(inputs, 2):
        if (a.writes or b.writes) and a.before.storage is b.before.storage:
            together = speller.name("count_writes_together", count_writes_together)
            yield f"{together}({names[a]}, {names[b]}) is {count_writes_together(a.tensor, b.tensor)}"
        told = a not in examples and b not in examples and _has_base(a) and _has_base(b)
        histories = (a.tensor.requires_grad and b.tensor.requires_grad) or a.before.storage in written
        if told and histories and a.before.storage is b.before.storage:
            yield f"{names[a]}._base is {'' if a.tensor._base is b.tensor._base else 'not '}{names[b]}._base"
        if a.before == b.before:  # one tensor passed twice would be one input
            yield f"{names[a]} is not {names[b]}"


def _distance_condition(a: str, b: str, itemsizes: tuple[int, int], distance: int) -> str:
    """That ``a`` begins so many bytes behind ``b``; said in elements, if these are of one size."""
    size, other = itemsizes
    if size == other:
        return f"{a}.storage_offset() - {b}.storage_offset() == {distance // size}"
    return f"{a}.storage_offset() * {size} - {b}.storage_offset() * {other} == {distance}"


def storages(*tensors: torch.Tensor) -> list[int]:
    """Of each of ``tensors`` the number of the first that has its storage."""
    first: dict[int, int] = {}
    return [first.setdefault(t.untyped_storage()._cdata, i) for i, t in enumerate(tensors)]


def distinct_storages(*tensors: torch.Tensor) -> bool:
    """Whether no two of ``tensors`` share storage."""
    return len({t.untyped_storage()._cdata for t in tensors}) == len(tensors)


def spell_symbols(capture: Capture, names: dict[Input, str]) -> dict[Any, str]:
    """For each size symbol of a dynamic capture, the expression that reads it off an argument."""
    found: dict[Any, str] = {}
    for known in capture.inputs:
        geometry = known.before.geometry
        for dim, size in enumerate(geometry.sizes):
            _note(found, size, f"{names[known]}.shape[{dim}]")
    for known in capture.inputs:
        geometry = known.before.geometry
        for dim, stride in enumerate(geometry.strides):
            _note(found, stride, f"{names[known]}.stride({dim})")
        _note(found, geometry.offset, f"{names[known]}.storage_offset()")
    return found


def _note(found: dict[Any, str], x: Any, expression: str) -> None:
    if isinstance(x, torch.SymInt) and x.node.expr.is_symbol:
        found.setdefault(x.node.expr, expression)


def spell_geometries(capture: Capture, speller: Speller, names: dict[Input, str]) -> Iterator[str]:
    """Conditions on the geometry of arguments in terms of the symbols, and those that the capture relied on."""
    for known in capture.inputs:
        geometry: Geometry = known.before.geometry
        if geometry.is_static:
            continue
        yield f"{names[known]}.shape == {speller.literal(tuple(geometry.sizes))}"
        yield f"{names[known]}.stride() == {speller.literal(tuple(geometry.strides))}"
    pattern = sharing([known.tensor for known in capture.inputs])
    shared = {group for i, (group, _) in enumerate(pattern) if group != i}
    for known, (group, _) in zip(capture.inputs, pattern, strict=True):
        if group in shared:
            yield f"{names[known]}.storage_offset() == {speller.literal(known.before.geometry.offset)}"
    yield from spell_relations(capture.env, speller)


def spell_relations(env: ShapeEnv, speller: Speller) -> Iterator[str]:
    """The relations among sizes that decided what the capture saw."""
    for guard in dict.fromkeys(env.replace(g.expr) for g in env.guards):
        if guard.free_symbols and guard.free_symbols <= speller.symbols.keys():
            yield speller.expression(guard)
    for symbol, bounds in env.var_to_range.items():
        if symbol in speller.symbols and bounds.lower.is_number and bounds.lower > 0:
            yield f"{speller.expression(symbol)} >= {int(bounds.lower)}"
