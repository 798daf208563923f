"""Views, regions and places in short text: ``cache[:, 3:4]``, ``x.view([-1]).t()``, ``train.py:12``."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from purefx._torch import OpOverload
from purefx.capture.recording import Call, Operand, Region, Variable
from purefx.errors import SourceLine
from purefx.functional.builder import Value
from purefx.functional.regions import chain_between, includes
from purefx.layout import Chain, Geometry, Select, Slice
from purefx.operators import aten
from purefx.runtime.spelling import Speller

_END = (1 << 63) - 1


def place(where: SourceLine | None) -> str:
    """The file and line of ``where``, without the folder."""
    return "" if where is None else f"{os.path.basename(where.file)}:{where.line}"


def shortened(line: str) -> str:
    """``file.py:12`` of ``/folder/file.py:12 in function``."""
    return line.rpartition(" in ")[0].replace("\\", "/").rpartition("/")[2]


def places(lines: Sequence[SourceLine | None]) -> str:
    """Each file and line once, in order."""
    return ", ".join(filter(None, dict.fromkeys(map(place, lines))))


def dtype_name(dtype: torch.dtype) -> str:
    """The name of ``dtype`` without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def describe(region: Region) -> str:
    """Dtype and sizes of ``region``, as in ``float32[2, 3]``."""
    return f"{dtype_name(region.dtype)}[{', '.join(map(str, region.geometry.sizes))}]"


def describe_value(value: Value) -> str:
    """Dtype and sizes of what a node computes."""
    return f"{dtype_name(value.dtype)}[{', '.join(map(str, value.geometry.sizes))}]"


def node_name(node: fx.Node) -> str:
    """What the user calls the operator of ``node``; a result of several has its position."""
    target = node.target
    if target is operator.getitem and isinstance(node.args[0], fx.Node):
        return f"{node_name(node.args[0])}_{node.args[1]}"
    return str(target.overloadpacket.__name__) if isinstance(target, OpOverload) else str(node.name)


def spell_part(name: str, whole: Region, part: Region) -> str:
    """What ``part`` is in terms of the tensor ``name``, which shows ``whole``."""
    if includes(part, whole):
        return name
    chain = chain_between(whole, part) if includes(whole, part) else None
    if chain is None:
        return f"a part of {name}"
    return spell_steps(name, chain, whole.geometry)


def spell_steps(name: str, chain: Chain, geometry: Geometry) -> str:
    """The views ``chain`` of ``name``, whose geometry is ``geometry``."""
    for step in chain:
        match step:
            case Select(dim, index):
                name += _subscript(dim % geometry.rank, str(index))
            case Slice(dim, start, stop, by):
                size = geometry.sizes[dim % geometry.rank]
                name += _subscript(dim % geometry.rank, _range(start, stop, by, size))
            case _:
                name += f".{step.op.partition('.')[0]}({', '.join(map(_plain, step.arguments))})"
        geometry = step.apply(geometry)
    return name


def spell_calls(names: Mapping[Variable, str], calls: Sequence[Call], wanted: Variable) -> str:
    """The expression that makes ``wanted`` by ``calls`` from the tensors that ``names`` has."""
    known = dict(names)
    speller = Speller({})

    def spell(x: Any) -> str:
        if isinstance(x, Operand):
            return known.get(x.variable, "another tensor")
        return f"[{', '.join(map(spell, x))}]" if isinstance(x, list | tuple) else speller.literal(x)

    for call in calls:
        expression = _picked(call, spell) or speller.call(call, spell)
        several = isinstance(call.results, list | tuple)
        made = call.outputs if call.outputs else call.written
        for i, operand in enumerate(made):
            known[operand.variable] = f"{expression}[{i}]" if several else expression
    return known.get(wanted, "a tensor")


def _picked(call: Call, spell: Any) -> str | None:
    """A slice or select as a subscript."""
    if call.kwargs or call.op not in (aten.slice.Tensor, aten.select.int):
        return None
    x, rest = call.args[0], list(call.args[1:])
    geometry = x.region.geometry
    if call.op is aten.select.int:
        return f"{spell(x)}{_subscript(rest[0] % geometry.rank, str(rest[1]))}"
    defaults: list[Any] = [0, None, None, 1]
    dim, start, stop, by = rest + defaults[len(rest) :]
    inside = _range(start or 0, _END if stop is None else stop, by, geometry.sizes[dim % geometry.rank])
    return f"{spell(x)}{_subscript(dim % geometry.rank, inside)}"


def _subscript(dim: int, inside: str) -> str:
    return f"[{':, ' * dim}{inside}]"


def _range(start: Any, stop: Any, step: Any, size: Any) -> str:
    first = "" if isinstance(start, int) and start == 0 else str(start)
    beyond = isinstance(stop, int) and (stop == _END or (isinstance(size, int) and stop >= size))
    last = "" if beyond else str(stop)
    return f"{first}:{last}" + ("" if isinstance(step, int) and step == 1 else f":{step}")


def _plain(x: object) -> str:
    return str(list(x)) if isinstance(x, tuple) else str(x)
