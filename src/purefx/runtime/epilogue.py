"""What runs after the write-back: the program's own view operators and geometry writes, then its results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

import torch

from purefx._torch import pytree
from purefx.analysis.replay import storages_of
from purefx.capture.recording import Call, Effect, Modes, Storage
from purefx.layout import Geometry, Int
from purefx.runtime.scope import Scope, indented
from purefx.runtime.support import from_function


def emit_statements(scope: Scope, begun: Sequence[tuple[int, list[str]]]) -> list[str]:
    """The recorded calls that run again, each in the grad mode that it ran in.

    Among them tensors are made leaves, by the statements in ``begun``, each with its place in the `remaining` calls.
    """
    lines = [*_begin_resized(scope), *fetch_storages(scope)]
    calls = remaining(scope)
    start = 0
    for place, statements in sorted(begun, key=itemgetter(0)):
        lines += [*emit_calls(scope, calls[start:place]), *statements]
        start = place
    lines += emit_calls(scope, calls[start:])
    sizes = _last_sizes(scope).items()
    return [*lines, *(f"{scope.storages[s]}.resize_({scope.speller.literal(size)})" for s, size in sizes)]


def remaining(scope: Scope) -> list[Call]:
    """The recorded calls that run again and have not yet."""
    return [call for call in scope.replay.statements if call not in scope.early]


def emit_calls(scope: Scope, calls: Iterable[Call], unseen: Collection[Call] = ()) -> list[str]:
    """Statements that run ``calls``, those of them that are ``unseen`` by autograd without gradients."""
    lines = []
    for modes, together in groupby(calls, key=lambda c: replace(c.modes, grad=False) if c in unseen else c.modes):
        block = [_statement(scope, call) for call in together]
        head = _mode(scope, modes)
        lines += [f"with {head}:", *indented(block)] if head else block
    return lines


def emit_rebinding(scope: Scope) -> list[str]:
    """Statements that bind attributes of modules to what the program bound them to."""
    lines = []
    for rebinding, how in zip(scope.capture.rebindings, scope.replay.rebound, strict=True):
        table = scope.speller.name("state", rebinding.table)
        if how is None:
            lines.append(f"{table}.pop({rebinding.key!r}, None)")
        else:
            lines.append(f"{table}[{rebinding.key!r}] = {scope.result(how)}")
    return lines


def emit_return(scope: Scope) -> list[str]:
    """The grad mode that the program leaves behind, and its results."""
    capture = scope.capture
    mode = [f"torch.set_grad_enabled({capture.grad_after})"] if capture.grad_after != capture.grad_before else []
    results = list(map(scope.result, scope.replay.results))
    return [*mode, f"return {_whole(scope, capture.structure, results)}"]


def _mode(scope: Scope, modes: Modes) -> str:
    if modes.inference and not scope.capture.inference:
        return "torch.inference_mode()"
    return f"torch.set_grad_enabled({modes.grad})" if modes.grad != scope.grad else ""


def _begin_resized(scope: Scope) -> list[str]:
    """Tensors as the program made them, over memory that has already the size that the program gives it later.

    ``set_`` on a new tensor, since PyTorch refuses to change the geometry of what ``detach`` returned.
    """
    lines = []
    for base in scope.replay.bases:
        first, name = base.variable.first, scope.variables[base.variable]
        if base.region != first:
            place = ", ".join(map(scope.speller.literal, _place(first.geometry)))
            line = f"{name} = {name}.new_empty(0).set_({name}.untyped_storage(), {place})"
            inside = base.variable.inference and not scope.capture.inference
            lines += ["with torch.inference_mode():", *indented([line])] if inside else [line]
    return lines


def _place(geometry: Geometry) -> tuple[object, ...]:
    return (geometry.offset, tuple(geometry.sizes), tuple(geometry.strides))


def _last_sizes(scope: Scope) -> dict[Storage, Int]:
    """The sizes of the memory made inside that the program may have made smaller.

    The geometries from before make such a storage large again.
    """
    calls = scope.capture.recording.calls
    sized = {storage for call in calls if call.effect is Effect.STORAGE for storage, _, _ in call.resized}
    sized &= {base.region.storage for base in scope.replay.bases}
    return {storage: after for call in calls for storage, _, after in call.resized if storage in sized}


def fetch_storages(scope: Scope) -> list[str]:
    """Names for the storages that statements need, before any statement changes who shows them."""
    spelled = (s for call in scope.replay.statements for s in storages_of(call))
    needed = dict.fromkeys(s for s in [*spelled, *_last_sizes(scope)] if s not in scope.storages)
    holders = {s: next(v for v in scope.variables if v.first.storage is s) for s in needed}
    scope.storages.update((s, scope.unique("storage", "storage")) for s in needed)
    return [f"{scope.storages[s]} = {scope.variables[v]}.untyped_storage()" for s, v in holders.items()]


def _statement(scope: Scope, call: Call) -> str:
    expression = scope.call(call)
    new = [o.variable for o in call.outputs if o.variable not in scope.variables]
    if not new:
        return expression
    if isinstance(call.results, (list, tuple)):
        targets = [scope.made(o.variable) for o in call.outputs]
        return f"({', '.join(targets)},) = {expression}"
    if new[0] in scope.from_functions:
        base = scope.variables[scope.counters.root(new[0])]
        expression = f"{scope.speller.name('from_function', from_function)}({expression}, {base})"
    return f"{scope.made(new[0])} = {expression}"


def _whole(scope: Scope, structure: pytree.TreeSpec, results: list[str]) -> str:
    """The expression that puts ``results`` into the containers that the program returned."""
    text = _nested(structure, iter(results))
    if text is not None:
        return text
    unflatten = scope.speller.name("tree_unflatten", pytree.tree_unflatten)
    return f"{unflatten}([{', '.join(results)}], {scope.speller.name('structure', structure)})"


def _nested(structure: pytree.TreeSpec, results: Iterator[str]) -> str | None:
    """Nested tuples, lists and dicts as source; None where there is another container."""
    if structure.is_leaf():
        return next(results)
    parts = [_nested(child, results) for child in structure.children()]
    if None in parts:
        return None
    inside = ", ".join(map(str, parts))
    if structure.type is tuple:
        return f"({inside},)" if parts else "()"
    if structure.type is torch.Size:
        return f"torch.Size(({inside},))" if parts else "torch.Size(())"
    if structure.type is list:
        return f"[{inside}]"
    if structure.type is dict and all(type(key) in (str, int) for key in structure.context):
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(structure.context, parts, strict=True)) + "}"
    return "None" if structure.type is type(None) else None
