"""``check`` tells whether a compiled function is, on these very arguments, what eager is.

Both sides run on copies of the caller's arguments that keep everything a function can see of them: which
tensors share storage, bases, strides, offsets, duplicates, leaves. What cannot be copied, tensors and modules
that a function reaches by its closure or its globals, is put back after every run.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from types import FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor

from purefx._torch import pytree, set_version
from purefx.capture.arguments import Binding
from purefx.capture.owners import Owner, find_owners
from purefx.capture.owners import reached as variables_of
from purefx.report.compare import Difference, compare
from purefx.report.observe import Arguments, Function, Name, Observation, Raised, observe
from purefx.report.trees import is_wrapper, tensors_of

T = TypeVar("T")
Module = torch.nn.Module


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was compared, and every difference; true if there is none."""

    differences: tuple[Difference, ...]
    outputs: int
    arguments: int
    observations: int
    raised: Raised | None = None
    """What eager raised; where nothing differs, the compiled function raised the same."""

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        extent = f"{self.outputs} outputs, {self.arguments} arguments, {self.observations} observations"
        if self.same and self.raised is not None:
            return f"both raise {self.raised.type_name}: {self.raised.message}"
        if self.same:
            return f"same as eager: {extent}"
        lines = "\n".join(f"  {difference}" for difference in self.differences)
        return f"not the same as eager: {len(self.differences)} differences ({extent})\n{lines}"


def check(f: Function, *args: object, compile: Callable[[Function], Function], **kwargs: object) -> CheckReport:
    """Run ``f`` and ``compile(f)`` on equal copies of the arguments, and report every observable difference.

    The arguments, and what ``f`` holds by closure or as a module, are the same afterwards as before.
    """
    eager = _Side.of(f, args, kwargs)
    expected = eager.observe(eager.f)
    system = _Side.of(f, args, kwargs)
    compiled = compile(system.f)
    first, second = system.observe(compiled), system.observe(compiled, probes=False)
    differences = compare(expected, first) + differences_of_second_call(expected, second)
    extent = (len(expected.outputs), len(expected.arguments), len(expected.facts))
    return CheckReport(differences, *extent, raised=expected.raised)


def differences_of_second_call(expected: Observation, second: Observation) -> tuple[Difference, ...]:
    """What differs at a call that reuses what an earlier one compiled, observed without probes."""
    found = compare(replace(expected, probes={}), second)
    return tuple(
        replace(difference, what=Name(f"{difference.what.subject} at the second call", difference.what.aspect))
        for difference in found
    )


# ---- copies


def copy_arguments(arguments: T) -> T:
    """A copy of a pytree of arguments that no function can tell from the original.

    Storages are copied once and whole, so what shared storage still does, at the same offsets; one object
    stays one object; a view stays a view of its base; modules are copied. A tensor with history gets a leaf
    of its own to have grown from, as history cannot be copied.
    """
    return _Copies().of(arguments)


class _Copies:
    """The copies made so far.

    Invariant: each tensor and each storage that was met has one copy, which is used wherever it is met again.
    A tensor that is kept is its own copy.
    """

    def __init__(self, tensors: dict[int, tuple[Tensor, Tensor]] | None = None) -> None:
        self._tensors = dict(tensors or {})
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        for original, made in self._tensors.values():
            self._note_storage(original, made)

    def fork(self) -> _Copies:
        """The same copies, to which more can be added apart from these."""
        return _Copies(self._tensors)

    def keep(self, tensor: Tensor) -> None:
        """Let ``tensor`` be its own copy."""
        self._tensors[id(tensor)] = (tensor, tensor)
        self._note_storage(tensor, tensor)

    def of(self, tree: T) -> T:
        """A copy of the tree, its objects and its tensors."""
        memo: dict[int, object] = {id(tensor): self.tensor(tensor) for tensor in _tensors_within(tree)}
        memo |= {id(x): x for x in pytree.tree_leaves(tree) if isinstance(x, torch.jit.ScriptFunction)}
        return copy.deepcopy(tree, memo)

    def tensor(self, original: Tensor) -> Tensor:
        """The copy of one tensor."""
        if id(original) not in self._tensors:
            made = self._make(original)
            self._tensors[id(original)] = (original, made)
            if original.is_leaf and original.grad is not None:
                made.grad = self.tensor(original.grad)
        return self._tensors[id(original)][1]

    def _note_storage(self, original: Tensor, made: Tensor) -> None:
        if original.layout is torch.strided and not is_wrapper(original):
            storage = original.untyped_storage()
            self._storages[id(storage)] = (storage, made.untyped_storage())

    def _storage(self, original: torch.UntypedStorage) -> torch.UntypedStorage:
        if id(original) not in self._storages:
            self._storages[id(original)] = (original, _storage_copy(original))
        return self._storages[id(original)][1]

    def _make(self, original: Tensor) -> Tensor:
        if is_wrapper(original):
            return self._wrapper(original)
        if original.layout is not torch.strided or not _is_plain(original):
            return original.detach().clone().requires_grad_(original.requires_grad)
        view = self._view(original)
        return _with_history(self._placed(original), original) if view is None else view

    def _wrapper(self, original: Tensor) -> Tensor:
        parts, context = original.__tensor_flatten__()  # type: ignore[attr-defined]  # what makes it a wrapper
        inner = {part: self.tensor(getattr(original, part)) for part in parts}
        made: Tensor = type(original).__tensor_unflatten__(  # type: ignore[attr-defined]  # as above
            inner, context, original.size(), original.stride()
        )
        return made.requires_grad_(original.requires_grad) if original.is_leaf else made

    def _placed(self, original: Tensor) -> Tensor:
        """A tensor without history at the place of ``original`` in the copy of its storage."""
        storage = self._storage(original.untyped_storage())
        with torch.inference_mode(original.is_inference()), torch.no_grad():
            made = torch.empty(0, dtype=original.dtype, device=original.device)
            made.set_(storage, original.storage_offset(), original.size(), original.stride())
            return _with_bits(made, original)

    def _view(self, original: Tensor) -> Tensor | None:
        """A view of the copy of the base; None if there is no base, or no view of it reaches the dtype."""
        base = original._base
        if base is None or base.untyped_storage() is not original.untyped_storage():
            return None
        with torch.set_grad_enabled(original.requires_grad and not original.is_leaf):
            retyped = _with_dtype(self.tensor(base), original.dtype)
            if retyped is None:
                return None
            view = _with_bits(retyped, original).as_strided(
                original.size(), original.stride(), original.storage_offset()
            )
        return _as_leaf(view, original) if original.is_leaf else view


def _storage_copy(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    made = torch.UntypedStorage(storage.nbytes(), device=storage.device)  # type: ignore[no-untyped-call]  # torch's own
    made.copy_(storage)
    return made


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter)


def _with_bits(made: Tensor, original: Tensor) -> Tensor:
    """``made``, lazily conjugated or negated as ``original`` is."""
    if made.is_conj() != original.is_conj():
        made = made.conj()
    return made._neg_view() if made.is_neg() != original.is_neg() else made


def _with_dtype(base: Tensor, dtype: torch.dtype) -> Tensor | None:
    if base.dtype == dtype:
        return base
    try:
        if base.is_complex() and not dtype.is_complex:
            base = torch.view_as_real(base.conj() if base.is_conj() else base)
        elif dtype.is_complex:
            base = torch.view_as_complex(base)
        return base if base.dtype == dtype else base.view(dtype)
    except RuntimeError:
        return None


def _as_leaf(made: Tensor, original: Tensor) -> Tensor:
    if isinstance(original, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=original.requires_grad)
    return made.requires_grad_(original.requires_grad)


def _with_history(made: Tensor, original: Tensor) -> Tensor:
    """``made`` as a leaf, or as the result of an op on a leaf, as ``original`` is."""
    if original.is_leaf:
        return _as_leaf(made, original)
    with torch.enable_grad():
        leaf = torch.zeros(made.size(), dtype=made.dtype, device=made.device, requires_grad=True)
        grown = leaf.clone()
    grown.data = made
    return grown


def _tensors_within(tree: object, seen: set[int] | None = None) -> Iterator[Tensor]:
    """The tensors of a pytree, of the modules in it, and of the modules whose methods are in it.

    A module may hold itself, as that of an exported program does: ``seen`` has those that were looked into.
    """
    seen = set() if seen is None else seen
    for leaf in pytree.tree_leaves(tree):
        holder = leaf.__self__ if isinstance(leaf, MethodType) else leaf
        if isinstance(holder, Tensor):
            yield holder
        elif isinstance(holder, Module) and id(holder) not in seen:
            seen.add(id(holder))
            yield from _tensors_within(dict(vars(holder)), seen)


# ---- what is held and cannot be copied


class Held:
    """Tensors, and what holds tensors and numbers, as they are now; ``restore`` makes them so again, in place.

    Invariant: what was saved is a copy, so that no run can change it.
    """

    def __init__(
        self,
        tensors: list[Tensor],
        owners: Collection[Owner] = (),
        bindings: Collection[Binding] = (),
    ) -> None:
        strided = [tensor for tensor in tensors if tensor.layout is torch.strided]
        self._storages = [(t.untyped_storage(), _storage_copy(t.untyped_storage())) for t in strided]
        self._places = [(t, t.untyped_storage(), t.storage_offset(), t.size(), t.stride()) for t in strided]
        self._autograd = [(t, t.requires_grad, t.grad if t.is_leaf else None) for t in tensors]
        self._versions = [(t, t._version) for t in tensors if not t.is_inference()]
        tables = [table for owner in owners if not isinstance(owner.value, list | tuple) for table in owner.tables]
        self._attributes = [(table, _contents(table)) for table in tables]
        self._lists = [(owner.value, list(owner.value)) for owner in owners if isinstance(owner.value, list)]
        self._variables = [(binding, binding.read()) for binding in bindings]

    def restore(self) -> None:
        """Put back variables, attributes, elements, geometry, and the state of autograd of leaves."""
        self._restore_python()
        self._restore_memory()
        self._restore_autograd()

    def _restore_python(self) -> None:
        for binding, value in self._variables:
            if binding.read() is not value:
                binding.bind(value)
        for elements, before in self._lists:
            elements[:] = before
        for attributes, saved in self._attributes:
            _put_back(attributes, saved)

    def _restore_memory(self) -> None:
        for storage, saved_storage in self._storages:
            storage.resize_(saved_storage.nbytes())
            storage.copy_(saved_storage)
        with torch.no_grad():
            for tensor, storage, offset, sizes, strides in self._places:
                place = (tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
                if place[0] is not storage or place[1:] != (offset, sizes, strides):
                    tensor.set_(storage, offset, sizes, strides)

    def _restore_autograd(self) -> None:
        for tensor, requires_grad, grad in self._autograd:
            if tensor.is_leaf or not requires_grad:
                tensor.detach_().requires_grad_(requires_grad)
                tensor.grad = grad
        for tensor, version in self._versions:
            set_version(tensor, version)


def _contents(attributes: dict[Any, object]) -> dict[Any, object]:
    return {name: dict(value) if isinstance(value, dict) else value for name, value in attributes.items()}


def _put_back(attributes: dict[Any, object], saved: dict[Any, object]) -> None:
    for name in attributes.keys() - saved.keys():
        del attributes[name]
    for name, value in saved.items():
        current = attributes.get(name)
        if isinstance(current, dict) and isinstance(value, dict):
            current.clear()
            current.update(value)
        else:
            attributes[name] = value


def _reached(f: Function) -> dict[str, object]:
    """The tensors and modules that a function reads by its closure or its globals, by name."""
    if not isinstance(f, FunctionType):
        return {}
    variables = inspect.getclosurevars(f)
    reached = {**variables.globals, **variables.nonlocals}
    return {name: value for name, value in reached.items() if any(True for _ in _tensors_within(value))}


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two that are compared: its own function (a copy, if that is a module) and its arguments."""

    f: Function
    args: tuple[object, ...]
    kwargs: dict[str, object]
    copies: _Copies
    reached: dict[str, object]
    held: Held

    @staticmethod
    def of(f: Function, args: tuple[object, ...], kwargs: dict[str, object]) -> _Side:
        """A side that starts from the caller's ``f`` and arguments and leaves them alone."""
        reached, copies = _reached(f), _Copies()
        for tensor in _tensors_within(reached):
            copies.keep(tensor)
        own = copies.of(f)
        reached |= {"f": own} if own is not f else {}
        held = Held(list(_tensors_within(reached)), find_owners(own, ()), list(variables_of(own)))
        return _Side(own, args, kwargs, copies, reached, held)

    def observe(self, f: Function, *, probes: bool = True) -> Observation:
        """What a caller sees of ``f``, which is this side's function or made from it."""
        try:
            return observe(f, self._arguments, probes=probes)
        finally:
            self.held.restore()

    def _arguments(self) -> Arguments:
        self.held.restore()
        args, kwargs = self.copies.fork().of((self.args, self.kwargs))
        held = {name: t for label, value in self.reached.items() for name, t in tensors_of(value, label).items()}
        return Arguments(args, kwargs, held)
