"""How calls are spelled in generated source: ``x.select(0, 1)``, not ``torch.ops.aten.select.int(x, 0, 1)``.

Rule: a spelling runs the very operator that was recorded, so that autograd records the very node.  What has no
such spelling is called by its overload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from purefx._torch import PythonPrinter
from purefx.capture.recording import SYMBOLS, Call, DataAccess, Region
from purefx.operators import aten

METHODS: dict[Any, str] = {
    aten.as_strided.default: "as_strided",
    aten.as_strided_.default: "as_strided_",
    aten.detach.default: "detach",
    aten.diagonal.default: "diagonal",
    aten.expand.default: "expand",
    aten.permute.default: "permute",
    aten.resize_.default: "resize_",
    aten.select.int: "select",
    aten.set_.source_Tensor: "set_",
    aten.split.Tensor: "split",
    aten.split_with_sizes.default: "split_with_sizes",
    aten.squeeze.default: "squeeze",
    aten.squeeze.dim: "squeeze",
    aten.squeeze.dims: "squeeze",
    aten.squeeze_.default: "squeeze_",
    aten.squeeze_.dim: "squeeze_",
    aten.t.default: "t",
    aten.t_.default: "t_",
    aten.transpose.int: "transpose",
    aten.transpose_.default: "transpose_",
    aten.unbind.int: "unbind",
    aten.unfold.default: "unfold",
    aten.unsqueeze.default: "unsqueeze",
    aten.unsqueeze_.default: "unsqueeze_",
    aten.view.default: "view",
    aten.view.dtype: "view",
}
METHOD_OF_STEP = {str(op).removeprefix("aten."): name for op, name in METHODS.items()}
"""The methods by the names that steps of a chain have."""


class Speller:
    """Spells calls; objects that source cannot write down get a name in ``namespace``."""

    def __init__(self, symbols: dict[Any, str]) -> None:
        self.namespace: dict[str, Any] = {"torch": torch}
        self._names: dict[tuple[str, int], str] = {}
        self.symbols = symbols

    def call(self, call: Call, spell: Callable[[Any], str]) -> str:
        """The expression that runs ``call``, its operands spelled by ``spell``."""
        args = [spell(x) for x in call.args]
        kwargs = [f"{name}={spell(x)}" for name, x in call.kwargs.items()]
        if call.op is DataAccess.READ:
            return f"{args[0]}.data"
        if call.op is DataAccess.SWAP:
            return f"{args[0]}.data = {args[1]}"
        if call.op is aten.slice.Tensor and not call.kwargs:
            sliced = spell_slice(args[0], call.args[1:], _size(call))
            if sliced is not None:
                return sliced
        if call.op in METHODS:
            return f"{args[0]}.{METHODS[call.op]}({', '.join([*args[1:], *kwargs])})"
        name = self.name(str(call.op), call.op)
        return f"{name}({', '.join([*args, *kwargs])})"

    def name(self, wanted: str, value: Any) -> str:
        """A name for ``value`` in the namespace of the source."""
        known = self._names.get((wanted, id(value)))
        if known is None:
            known = self._names[wanted, id(value)] = self._new_name(wanted, value)
        return known

    def _new_name(self, wanted: str, value: Any) -> str:
        base = "".join(c if c.isalnum() else "_" for c in wanted).strip("_") or "value"
        name, number = base, 1
        while name in self.namespace and self.namespace[name] is not value:
            number += 1
            name = f"{base}_{number}"
        self.namespace[name] = value
        return name

    def literal(self, x: Any) -> str:
        """``x`` as source."""
        if type(x) in (list, tuple):
            items = [self.literal(i) for i in x]
            inside = ", ".join(items)
            if isinstance(x, list):
                return f"[{inside}]"
            return f"({inside},)" if len(items) == 1 else f"({inside})"
        if isinstance(x, SYMBOLS):
            return self.expression(x.node.expr)
        if x is None or type(x) in (bool, int, str):
            return repr(x)
        if isinstance(x, float) and x == x and abs(x) != float("inf"):
            return repr(x)
        if isinstance(x, (torch.dtype, torch.memory_format, torch.layout)):
            return repr(x)
        return self.name(type(x).__name__.lower(), x)

    def expression(self, expression: Any) -> str:
        """A size expression as source."""
        if expression in self.symbols:
            return self.symbols[expression]
        return str(PythonPrinter().doprint(expression))


def spell_physical(region: Region) -> str:
    """Views that make of a tensor that shows ``region`` the elements as they lie in memory."""
    return spell_bits(region, region.physical)


def spell_bits(shown: Region, wanted: Region) -> str:
    """Views that make of a tensor that is lazily conjugated and negated as ``shown`` one that is as ``wanted``."""
    return f"{'.conj()' * (shown.conj != wanted.conj)}{'._neg_view()' * (shown.neg != wanted.neg)}"


def _size(call: Call) -> Any:
    """The size of the dimension that a call of ``slice`` cuts."""
    dim = call.args[1] if len(call.args) > 1 else 0
    return call.operands[0].region.geometry.sizes[dim]


def spell_slice(tensor: str, bounds: Sequence[Any], size: Any) -> str | None:
    """``aten.slice`` with constant bounds as ``x[:, 1:3]``; None where indexing would not run that operator.

    ``bounds`` are the arguments after the tensor.  Indexing skips a slice that takes everything.
    """
    defaults: list[Any] = [0, None, None, 1]
    dim, start, stop, step = [*bounds, *defaults[len(bounds) :]]
    start, stop = 0 if start is None else start, size if stop is None else stop
    if any(type(x) is not int for x in (start, stop, step, size)) or dim < 0 or start < 0 or stop < 0:
        return None
    if min(stop, size) - start >= size:
        return None
    return f"{tensor}[{', '.join([':'] * dim + [spell_range(start, min(stop, size), step)])}]"


def spell_range(start: Any, stop: Any, step: Any = 1) -> str:
    """``start:stop`` or ``start:stop:step``."""
    return f"{start}:{stop}" if step == 1 else f"{start}:{stop}:{step}"
