"""What an operator that writes means as a functional one.

y.copy_(x)            the new value of y is x, in y's dtype and sizes
y.add_(x)             the new value of y is add(y, x)
topk(x, out=(v, i))   the new values of v and i are those of topk(x)
otherwise             the operator itself, on copies
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import fx

from purefx.capture.recording import Call, Operand, Region, map_tree, operands_of
from purefx.functional.builder import Builder, Value, run_on_meta
from purefx.functional.contents import Content
from purefx.functional.in_place import OnCopies, Slot
from purefx.functional.memory import Memory
from purefx.functional.regions import disjoint
from purefx.layout import Expand, Geometry, has_internal_overlap
from purefx.operators import OVERWRITES, argument, aten, facts, functional_twin, missing_defaults, positions


@dataclass(frozen=True, eq=False, slots=True)
class InPlace:
    """``after`` holds what ``op``, run in place on its first argument, would leave in ``content``."""

    content: Content
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    after: fx.Node


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
        if call.op in OVERWRITES and not self._is_tangled(call):
            self._overwrite(call)
        elif len(call.written) > 1 and self._is_list_write(call) and self._is_tangled(call):
            for single in _one_by_one(call):
                self.write(single)
        elif self._is_tangled(call):
            self._on_bases(call)
        elif self._twin_repeats_numbers(call):
            self._by_twin(call)
        else:
            self._on_copies(call)

    def _overwrite(self, call: Call) -> None:
        """A write that depends only on its source."""
        region = call.written[0].region
        source = None if call.op is aten.zero_.default else argument(call.op, call.args, call.kwargs, _SOURCE[call.op])
        if isinstance(source, Operand):
            value = self._memory.read(source.region)
            if source.region.storage.device != region.storage.device:
                value = self._builder.cast(value, region.dtype, region.storage.device)
            value = self._as_region(value, region)
        else:
            options = {"dtype": region.dtype, "device": region.storage.device, "pin_memory": False}
            sizes = list(region.geometry.sizes)
            node = self._builder.call(aten.full.default, (sizes, 0 if source is None else source), options)
            value = self._fresh(node, Geometry.contiguous(region.geometry.sizes), region.dtype)
        self._memory.write(region, value)

    def _as_region(self, value: Value, region: Region) -> Value:
        """``value`` as ``copy_`` would store it in ``region``."""
        if value.dtype != region.dtype:
            value = self._builder.cast(value, region.dtype)
        if value.geometry.sizes != region.geometry.sizes:
            value = self._builder.view(value, Expand(region.geometry.sizes))
        return self._builder.with_bits(value, conj=region.conj, neg=region.neg)

    def _is_list_write(self, call: Call) -> bool:
        """Whether ``call`` writes a list element by element, in order (``_foreach_add_``)."""
        known = facts(call.op)  # type: ignore[arg-type]
        return not known.custom and not call.outputs and isinstance(call.args[0], list) and known.written[0] == "self"

    def _is_tangled(self, call: Call) -> bool:
        """Whether what ``call`` writes overlaps itself, another write, or a different view that it reads."""
        written = [o.region for o in call.written]
        if any(has_internal_overlap(r.geometry) for r in written):
            return True
        if any(not disjoint(a, b) for a, b in combinations(written, 2)):
            return True
        others = [o.region for o in call.operands if o.region not in written]
        return any(not disjoint(a, b) for a in written for b in others)

    def _twin_repeats_numbers(self, call: Call) -> bool:
        """Whether the functional twin gives what the write would give.

        Random numbers are drawn in the order of memory: the twin draws the same only where that is row-major.
        """
        if functional_twin(call.op) is None:  # type: ignore[arg-type]
            return False
        random = facts(call.op).random  # type: ignore[arg-type]
        return not random or all(o.region.geometry.is_contiguous for o in call.written)

    def _by_twin(self, call: Call) -> None:
        twin = functional_twin(call.op)  # type: ignore[arg-type]
        assert twin is not None
        args, kwargs = self._values(call, without=facts(call.op).written if facts(call.op).out else ())  # type: ignore[arg-type]
        args = (*args, *missing_defaults(call.op, twin.op, args, kwargs))
        node = self._builder.call(twin.op, args, kwargs)
        shapes = iter(run_on_meta(twin.op, args, kwargs))
        lists = isinstance(argument(call.op, call.args, call.kwargs, facts(call.op).written[0]), list)  # type: ignore[arg-type]
        several = twin.kept + len(call.written) > 1 or lists
        made = []
        for i, (geometry, dtype) in enumerate(shapes):
            item = self._builder.item(node, i) if several else node
            made.append(self._fresh(item, geometry, dtype))
        self._memory.define(call, made[: twin.kept])
        for operand, value in zip(call.written, made[twin.kept :], strict=True):
            stored = self._as_region(value, operand.region)
            if not several and not facts(call.op).out:  # type: ignore[arg-type]
                self._in_place.append(
                    InPlace(self._memory.content(operand.region), call.op, node.args, node.kwargs, stored.node)
                )
            self._memory.write(operand.region, stored)

    def _values(self, call: Call, without: tuple[str, ...] = ()) -> tuple[Any, Any]:
        places = {positions(call.op)[name] for name in without}  # type: ignore[arg-type]
        args = tuple(x for i, x in enumerate(call.args) if i not in places)
        kwargs = {name: x for name, x in call.kwargs.items() if name not in without}
        read = self._memory.read_tree
        return read(args), read(kwargs)

    def _on_copies(self, call: Call) -> None:
        """Each written argument is copied by itself."""
        written = {o.variable for o in call.written}
        given: list[Value] = []
        places: dict[Operand, int] = {}

        def slot(x: Any) -> Any:
            if not isinstance(x, Operand):
                return x
            if x not in places:
                places[x] = len(given)
                exactly = x.variable in written
                given.append(self._memory.read_exactly(x.region) if exactly else self._memory.read(x.region))
            return Slot(places[x], None, x.region.dtype)

        args, kwargs = map_tree(slot, call.args), map_tree(slot, call.kwargs)
        targets = [o for o in _operands_written(call) if o in places]
        op = OnCopies(call.op, args, kwargs, tuple(places[o] for o in targets))
        values = self._run(call, op, given, [given[places[o]] for o in targets])
        for operand, value in zip(targets, values, strict=True):
            self._memory.write(operand.region, value)

    def _on_bases(self, call: Call) -> None:
        """The whole memory of each written argument is copied, and all arguments are cut out of it."""
        written = [o.region for o in _operands_written(call)]
        given: list[Value] = []
        bases: dict[int, int] = {}
        reads: dict[Region, int] = {}

        def base_of(region: Region) -> int:
            content = self._memory.content(region)
            if id(content) not in bases:
                bases[id(content)] = len(given)
                given.append(self._memory.read_exactly(content.region))
            return bases[id(content)]

        for region in written:
            base_of(region)

        def slot(x: Any) -> Any:
            if not isinstance(x, Operand):
                return x
            content = self._memory.content(x.region)
            if id(content) not in bases:
                if x.region not in reads:
                    reads[x.region] = len(given)
                    given.append(self._memory.read(x.region))
                return Slot(reads[x.region], None, x.region.dtype)
            ratio = content.region.dtype.itemsize / x.region.dtype.itemsize
            start = int(content.region.geometry.offset * ratio)
            bits = (x.region.conj != content.region.conj, x.region.neg != content.region.neg)
            return Slot(bases[id(content)], x.region.geometry.shifted(-start), x.region.dtype, *bits)

        args, kwargs = map_tree(slot, call.args), map_tree(slot, call.kwargs)
        numbers = tuple(bases.values())
        regions = [self._memory.content(r).region for r in dict.fromkeys(self._base_regions(written))]
        values = self._run(call, OnCopies(call.op, args, kwargs, numbers), given, [given[i] for i in numbers])
        for region, value in zip(regions, values, strict=True):
            self._memory.write(region, value)

    def _base_regions(self, written: list[Region]) -> list[Region]:
        return [self._memory.content(r).region for r in written]

    def _run(self, call: Call, op: OnCopies, given: list[Value], like: list[Value]) -> list[Value]:
        """Add the call of ``op``, make its new results known, and return the values that it wrote."""
        node = self._builder.call(op, tuple(given))
        fresh = [o for o in call.outputs if o.region.storage in call.fresh]
        results = [self._builder.fresh(self._builder.item(node, i), o.region) for i, o in enumerate(fresh)]
        self._memory.define(call, results)
        values = []
        for i, value in enumerate(like, start=len(fresh)):
            item = self._builder.item(node, i)
            geometry = Geometry(value.geometry.sizes, value.geometry.strides, 0)
            values.append(self._builder.value(item, geometry, value.dtype, (value.conj, value.neg), item))
        return values

    def _fresh(self, node: Any, geometry: Geometry, dtype: torch.dtype) -> Value:
        return self._builder.value(node, geometry, dtype, (False, False), node)


_SOURCE = {aten.copy_.default: "src", aten.fill_.Scalar: "value", aten.fill_.Tensor: "value"}


def _operands_written(call: Call) -> list[Operand]:
    """The operands that ``call`` writes, as they were passed."""
    names = facts(call.op).written  # type: ignore[arg-type]
    return list(operands_of([argument(call.op, call.args, call.kwargs, name) for name in names]))  # type: ignore[arg-type]


def _one_by_one(call: Call) -> list[Call]:
    """``call`` of a list operator as one call for each element of its lists."""
    length = len(call.args[0])

    def only(i: int, x: Any) -> Any:
        return [x[i]] if isinstance(x, list) and len(x) == length else x

    singles = []
    for i in range(length):
        args = tuple(only(i, x) for x in call.args)
        kwargs = {name: only(i, x) for name, x in call.kwargs.items()}
        singles.append(
            Call(
                call.op,
                args,
                kwargs,
                None,
                operands_of((args, kwargs)),
                (),
                (call.written[i],),
                call.effect,
                call.modes,
                call.where,
            )  # fmt: skip
        )
    return singles
