"""What an operator that writes means as a functional one.

y.copy_(x)            the new value of y is x, in y's dtype and sizes
y.add_(x)             the new value of y is add(y, x)
topk(x, out=(v, i))   the new values of v and i are those of topk(x)
otherwise             the operator itself, on copies
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import fx

from purefx.capture.recording import Call, Operand, Region, map_tree, operands_of
from purefx.functional.builder import Builder, Value, run_on_meta
from purefx.functional.contents import Content
from purefx.functional.memory import Memory
from purefx.functional.on_copies import OnCopies
from purefx.functional.regions import disjoint
from purefx.functional.slots import CutFromBases, EachCopied
from purefx.layout import Expand, Geometry, has_internal_overlap
from purefx.operators import (
    OVERWRITES,
    Twin,
    argument,
    aten,
    facts,
    functional_twin,
    missing_defaults,
    positions,
    reads_each_element_first,
)


@dataclass(frozen=True, eq=False, slots=True)
class InPlace:
    """``after`` holds what ``op``, run in place on its first argument, would leave in ``region`` of ``content``."""

    content: Content
    region: Region
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    after: fx.Node

    @property
    def before(self) -> Any:
        """What the content held."""
        return self.args[0]


class Writer:
    """Turns writing calls into functional ones on ``memory``."""

    def __init__(self, builder: Builder, memory: Memory) -> None:
        self._builder = builder
        self._memory = memory
        self._in_place: list[InPlace] = []

    @property
    def in_place(self) -> tuple[InPlace, ...]:
        """The writes whose first argument is the tensor that they write."""
        return tuple(self._in_place)

    def write(self, call: Call) -> None:
        """Do the writes of ``call``, and make its new results known."""
        tangled = _is_tangled(call)
        if call.op in OVERWRITES and not tangled:
            self._overwrite(call)
        elif tangled and len(call.written) > 1 and _is_list_write(call):
            for single in _one_by_one(call):
                self.write(single)
        elif tangled:
            self._on_bases(call)
        else:
            twin = _faithful_twin(call)
            if twin is None:
                self._on_copies(call)
            else:
                self._by_twin(call, twin)

    def _overwrite(self, call: Call) -> None:
        """A write that depends only on its source."""
        region, name = call.written[0].region, OVERWRITES[call.overload]
        source = 0 if name is None else argument(call.overload, call.args, call.kwargs, name)
        if isinstance(source, Operand):
            value = self._memory.read(source.region)
            if source.region.storage.device != region.storage.device:
                value = self._builder.cast(value, region.dtype, region.storage.device)
            value = self._as_region(value, region)
        else:
            options = {"dtype": region.dtype, "device": region.storage.device, "pin_memory": False}
            node = self._builder.call(aten.full.default, (list(region.geometry.sizes), source), options)
            value = self._fresh(node, Geometry.contiguous(region.geometry.sizes), region.dtype)
        self._memory.write(region, value)

    def _as_region(self, value: Value, region: Region) -> Value:
        """``value`` as ``copy_`` would store it in ``region``."""
        if value.dtype != region.dtype:
            value = self._builder.cast(value, region.dtype)
        if value.geometry.sizes != region.geometry.sizes:
            value = self._builder.view(value, Expand(region.geometry.sizes))
        return self._builder.with_bits(value, conj=region.conj, neg=region.neg)

    def _by_twin(self, call: Call, twin: Twin) -> None:
        known = facts(call.overload)
        args, kwargs = self._values(call, without=known.written if known.out else ())
        args = (*args, *missing_defaults(call.overload, twin.op, args, kwargs))
        node = self._builder.call(twin.op, args, kwargs)
        several = twin.kept + len(call.written) > 1 or _writes_list(call)
        made = [
            self._fresh(self._builder.item(node, i) if several else node, geometry, dtype)
            for i, (geometry, dtype) in enumerate(run_on_meta(twin.op, args, kwargs, self._builder.env))
        ]
        self._memory.define(call, made[: twin.kept])
        for operand, value in zip(call.written, made[twin.kept :], strict=True):
            stored = self._as_region(value, operand.region)
            if not several and not known.out:
                content = self._memory.content(operand.region)
                self._in_place.append(InPlace(content, operand.region, call.op, node.args, node.kwargs, stored.node))
            self._memory.write(operand.region, stored)

    def _values(self, call: Call, without: tuple[str, ...] = ()) -> tuple[Any, Any]:
        """The present values of the arguments, less those named in ``without``."""
        places = {positions(call.overload)[name] for name in without}
        args = tuple(x for i, x in enumerate(call.args) if i not in places)
        kwargs = {name: x for name, x in call.kwargs.items() if name not in without}
        return self._memory.read_tree(args), self._memory.read_tree(kwargs)

    def _on_copies(self, call: Call) -> None:
        """Each written argument is copied by itself."""
        written = _operands_written(call)
        slots = EachCopied(self._memory, call.written)
        args, kwargs = map_tree(slots.slot, (call.args, call.kwargs))
        places = tuple(map(slots.place, written))
        op = OnCopies(call.overload, args, kwargs, places)
        values = self._run(call, op, slots.given)
        for operand, value in zip(written, values, strict=True):
            self._memory.write(operand.region, value)

    def _on_bases(self, call: Call) -> None:
        """The whole memory of each written argument is copied, and all arguments are cut out of it."""
        slots = CutFromBases(self._memory, [o.region for o in _operands_written(call)])
        args, kwargs = map_tree(slots.slot, (call.args, call.kwargs))
        op = OnCopies(call.overload, args, kwargs, tuple(map(slots.place, slots.contents)))
        values = self._run(call, op, slots.given)
        for content, value in zip(slots.contents, values, strict=True):
            self._memory.write(content.region, value)

    def _run(self, call: Call, op: OnCopies, given: list[Value]) -> list[Value]:
        """Add the call of ``op``, make its new results known, and return the values that it wrote."""
        node = self._builder.call(op, tuple(given))
        fresh = [o for o in call.outputs if o.region.storage in call.fresh]
        results = [self._builder.fresh(self._builder.item(node, i), o.region) for i, o in enumerate(fresh)]
        self._memory.define(call, results)
        values = []
        for i, place in enumerate(op.written, start=len(fresh)):
            own = given[place].geometry
            item, geometry = self._builder.item(node, i), Geometry(own.sizes, own.strides, 0)
            values.append(self._builder.made_like(given[place], item, geometry))
        return values

    def _fresh(self, node: fx.Node, geometry: Geometry, dtype: torch.dtype) -> Value:
        return self._builder.value(node, geometry, dtype, (False, False), node)


def _is_tangled(call: Call) -> bool:
    """Whether what ``call`` writes overlaps itself, another write, or a region that it reads.

    ``x.add_(x)`` is no such case: each element is read before it is written.  ``mm(x, x, out=x)`` is one, since
    ``mm`` reads elements after it has written others; so may an operator on lists and one that is not PyTorch's.
    """
    written = [o.region for o in call.written]
    if any(has_internal_overlap(r.geometry) for r in written):
        return True
    if any(not disjoint(a, b) for a, b in combinations(written, 2)):
        return True
    reads = list(call.operands)
    for operand in _operands_written(call):
        reads.remove(operand)
    in_turn = len(written) > 1 or not reads_each_element_first(call.overload)
    others = [o.region for o in reads if in_turn or o.region not in written]
    return any(not disjoint(a, b) for a in written for b in others)


def _is_list_write(call: Call) -> bool:
    """Whether ``call`` writes a list element by element, in order (``_foreach_add_``)."""
    known = facts(call.overload)
    return not known.custom and not call.outputs and isinstance(call.args[0], list) and known.written[0] == "self"


def _writes_list(call: Call) -> bool:
    written = argument(call.overload, call.args, call.kwargs, facts(call.overload).written[0])
    return isinstance(written, list)


def _faithful_twin(call: Call) -> Twin | None:
    """The functional twin, if it gives what the write would give, and in one list where it gives more.

    Random numbers are drawn in the order of memory: the twin draws the same only where that is row-major.
    """
    known = facts(call.overload)
    if known.random and not all(o.region.geometry.is_contiguous for o in call.written):
        return None
    if len(known.written) > 1 and _writes_list(call):
        return None
    return functional_twin(call.overload)


def _operands_written(call: Call) -> list[Operand]:
    """The operands that ``call`` writes, as they were passed."""
    names = facts(call.overload).written
    return list(operands_of([argument(call.overload, call.args, call.kwargs, name) for name in names]))


def _one_by_one(call: Call) -> list[Call]:
    """``call`` of a list operator as one call for each element of its lists."""
    return [_only(call, i) for i in range(len(call.args[0]))]


def _only(call: Call, i: int) -> Call:
    """``call`` with element ``i`` alone of each of its lists."""
    length = len(call.args[0])

    def only(x: Any) -> Any:
        return [x[i]] if isinstance(x, list) and len(x) == length else x

    args = tuple(map(only, call.args))
    kwargs = {name: only(x) for name, x in call.kwargs.items()}
    operands = operands_of((args, kwargs))
    return replace(call, args=args, kwargs=kwargs, results=None, operands=operands, written=(call.written[i],))
