"""The recorder: a dispatch mode that lets every operator run on fake tensors and writes it down.

It stands above the fake tensor mode and below autograd, so what it sees is what eager PyTorch would run, and
what it reads off the results (storage, geometry, dtype) is true, not modelled.  It keeps storages alive, so that
their identity is stable, but no tensor: autograd treats a tensor that only it holds as its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from purefx._torch import (
    FakeTensor,
    HigherOrderOperator,
    OpOverload,
    TorchDispatchMode,
    count_writes_together,
    pytree,
    storage_key,
    without_modes,
)
from purefx.capture.frames import current_line
from purefx.capture.recording import (
    Call,
    Constant,
    Effect,
    Modes,
    Operand,
    Recording,
    Region,
    Storage,
    Tree,
    Variable,
    data_of,
    map_tree,
    operands_of,
    restrided,
    swap_data,
)
from purefx.capture.rehearsal import needs_rehearsal, rehearse, rehearse_error
from purefx.errors import UnsupportedOperator, UnsupportedTensor
from purefx.layout import Geometry
from purefx.operators import ALWAYS_KEPT, HIDDEN_WRITES, argument, facts, resizes_storage

aten = torch.ops.aten
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor})


KnownNumber = Callable[[Recording, Operand], int | float | bool | complex | None]
Operands = tuple[Operand, ...]
Resize = tuple[Storage, Any, Any]


class Recorder(TorchDispatchMode):
    """Records every operator that runs under it.

    ``lift`` is called with each real tensor that the program uses and that is no argument (a tensor of a
    closure); it returns the fake tensor that stands for it.  ``known`` is asked for the number in a tensor: it
    returns one if the recording so far determines it whatever the arguments hold, else None.
    """

    supports_higher_order_operators = True

    def __init__(self, lift: Callable[[torch.Tensor], torch.Tensor], known: KnownNumber) -> None:
        super().__init__()
        self._known = known
        self.recording = Recording()
        self._lift = lift
        self._storages: dict[int, tuple[Storage, torch.UntypedStorage]] = {}
        self._nbytes: dict[Storage, Any] = {}
        self._detached: tuple[weakref.ref[torch.Tensor], tuple[torch.Tensor, ...], Call] | None = None
        self._viewed: tuple[torch.Tensor, ...] = ()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` on fakes and append a call; subclasses take themselves apart first."""
        kwargs = kwargs or {}
        self.settle_detach()
        if not _PLAIN_TYPES.issuperset(types):
            return NotImplemented
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if func is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            result = func(*args)
            with without_modes():
                value = args[0].detach().clone()
            self._append(func, (Constant(value),), {}, result)
            return result
        if func is aten._efficientzerotensor.default:  # its lazy zeros break on fake tensors; plain ones read the same
            func = aten.zeros.default
        args, kwargs = map_tree(self._as_fake, args), map_tree(self._as_fake, kwargs)
        recorded_args, recorded_kwargs = map_tree(self._operand, args), map_tree(self._operand, kwargs)
        operands = operands_of((recorded_args, recorded_kwargs))
        if isinstance(func, OpOverload):
            written = written_arguments(func, recorded_args, recorded_kwargs)
            if needs_rehearsal(func, operands, operands_of(written)):
                rehearse(func, recorded_args, recorded_kwargs)
        if func is aten._local_scalar_dense.default:
            known = self._known(self.recording, operands[0])
            if known is not None:
                return known
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError):
            if isinstance(func, OpOverload):
                rehearse_error(func, recorded_args, recorded_kwargs)
            raise
        if isinstance(func, OpOverload):
            _count_list_writes(func, args, kwargs)
        self._append(func, recorded_args, recorded_kwargs, result, (args, kwargs))
        if func is aten.detach.default:
            self._detached = (weakref.ref(result), (args[0], *self._viewed), self.recording.calls[-1])
        self._viewed = (args[0],) if func is aten.view.dtype else ()  # autograd detaches what this returns
        return result

    def settle_detach(self) -> None:
        """Tell ``x.data`` from ``x.detach()``, once the tensor that came of it counts its writes."""
        if self._detached is not None:
            made, sources, call = self._detached
            self._detached = None
            tensor = made()
            if tensor is None or tensor.is_inference():
                return
            if not any(count_writes_together(tensor, source) for source in sources):
                call.op = data_of

    def variable(self, tensor: torch.Tensor) -> Variable:
        """The variable that ``tensor`` is."""
        known: Variable | None = tensor.__dict__.get("_purefx_variable")
        return self._new_variable(tensor, self.region(tensor)) if known is None else known

    def region(self, tensor: torch.Tensor) -> Region:
        """What ``tensor`` shows at this moment."""
        if tensor.layout is not torch.strided:
            raise UnsupportedTensor(
                f"a tensor of layout {tensor.layout} has no strided memory",
                where=current_line(),
                remedy="call to_dense() on it, or keep it outside the function",
            )
        geometry = Geometry(tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())
        return Region(self._storage(tensor), geometry, tensor.dtype, tensor.is_conj(), tensor.is_neg())

    def nbytes(self, storage: Storage) -> Any:
        """The present size of ``storage`` in bytes."""
        return self._nbytes[storage]

    def _storage(self, tensor: torch.Tensor) -> Storage:
        key = storage_key(tensor)
        known = self._storages.get(key)
        if known is None:
            memory = tensor.untyped_storage()
            storage = Storage(len(self._storages), memory.nbytes(), tensor.device)
            self._storages[key] = (storage, memory)
            self._nbytes[storage] = storage.nbytes
            self.recording.storages.append(storage)
            self.recording.regions[storage] = {}
            return storage
        return known[0]

    def _new_variable(self, tensor: torch.Tensor, region: Region) -> Variable:
        variable = Variable(len(self.recording.variables), region, region, tensor.is_inference())
        tensor.__dict__["_purefx_variable"] = variable
        self.recording.variables.append(variable)
        self.recording.regions[region.storage].setdefault(region)
        return variable

    def notice(self, tensor: torch.Tensor) -> None:
        """See whether the program has swapped the data of ``tensor`` (``x.data = y`` goes past the dispatcher)."""
        self._operand(tensor)

    def _swapped(self, variable: Variable, region: Region) -> None:
        """Record that ``variable`` shows ``region`` now, by way of a tensor that showed it before."""
        before = Operand(variable, variable.last)
        call, position = self.recording.producers.get(region, (None, 0))
        source = next((v for v in self.recording.variables if v.last == region), None)
        if call is not None and source is None:
            source = call.outputs[position].variable
        self.recording.regions[region.storage].setdefault(region)
        variable.last = region
        if source is None:
            raise UnsupportedOperator(
                "the data of a tensor was swapped for that of a tensor that purefx has not seen",
                where=current_line(),
                remedy="use x.set_(y) under torch.no_grad()",
            )
        after = Operand(variable, region)
        self._call(swap_data, (before, Operand(source, region)), {}, None, (), (after,), Effect.GEOMETRY)

    def _as_fake(self, x: Any) -> Any:
        return self._lift(x) if isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor) else x

    def _operand(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            region = self.region(x)
            known: Variable | None = x.__dict__.get("_purefx_variable")
            if known is None:
                known = self._new_variable(x, region)
            elif known.last != region:
                self._swapped(known, region)
            return Operand(known, region)
        if isinstance(x, torch.UntypedStorage):
            return self._storages[x._cdata][0] if x._cdata in self._storages else x
        return x

    def _append(
        self, func: Any, args: tuple[Tree, ...], kwargs: dict[str, Tree], result: Any, actual: Any = ()
    ) -> None:
        count = len(self._storages)
        effect, written, resized = Effect.NONE, (), ()
        if isinstance(func, OpOverload):
            effect, written, resized = self._effect_on(func, args, kwargs, actual)
        results = map_tree(self._operand, result)
        outputs = operands_of(results)
        fresh = tuple(self.recording.storages[count:])
        operands = operands_of((args, kwargs))
        if effect is Effect.NONE and outputs:
            shared = {o.region.storage for o in operands}
            effect = Effect.VIEW if any(o.region.storage in shared for o in outputs) else Effect.NONE
        if not outputs and effect is Effect.NONE and not _is_kept(func, result):
            return
        call = self._call(func, args, kwargs, results, outputs, written, effect, fresh, resized)
        if func is aten.as_strided_copy.default:
            self.recording.regions[operands[0].region.storage].setdefault(restrided(call))
        for position, output in enumerate(outputs):
            self.recording.producers.setdefault(output.region, (call, position))

    def _call(
        self, func: Any, args: Any, kwargs: Any, results: Any, outputs: Operands, written: Operands, effect: Effect,
        fresh: tuple[Storage, ...] = (), resized: tuple[Resize, ...] = (),
    ) -> Call:  # fmt: skip
        modes = Modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        operands = operands_of((args, kwargs))
        call = Call(
            func,
            args,
            kwargs,
            results,
            operands,
            outputs,
            written,
            effect,
            modes,
            current_line(),
            fresh,
            resized,
        )
        self.recording.calls.append(call)
        return call

    def _effect_on(
        self, func: OpOverload, args: tuple[Tree, ...], kwargs: dict[str, Tree], actual: Any
    ) -> tuple[Effect, Operands, tuple[Resize, ...]]:
        """How ``func`` changed its operands; written operands are given with the view they have afterwards."""
        known = facts(func)
        if resizes_storage(func):
            return Effect.STORAGE, (args[0],), self._resized(operands_of(args[:1]))
        if not known.written or not actual:
            return Effect.NONE, (), ()
        before = operands_of(written_arguments(func, args, kwargs))
        tensors = [x for x in pytree.tree_leaves(written_arguments(func, *actual)) if isinstance(x, torch.Tensor)]
        written = tuple(self._changed(o, x) for o, x in zip(before, tensors, strict=True))
        if not written:
            return Effect.NONE, (), ()
        resized = self._resized(written) if known.out or known.writes_geometry else ()
        if known.writes_geometry:
            return Effect.GEOMETRY, written, resized
        if resized or any(b.region != w.region for b, w in zip(before, written, strict=True)):
            self._record_resizing(before, written, resized)
        return Effect.WRITE, written, ()

    def _changed(self, operand: Operand, tensor: torch.Tensor) -> Operand:
        """``operand`` with what ``tensor`` shows now."""
        region = self.region(tensor)
        operand.variable.last = region
        self.recording.regions[region.storage].setdefault(region)
        return Operand(operand.variable, region)

    def _record_resizing(self, before: Operands, after: Operands, resized: tuple[Resize, ...]) -> None:
        """An ``out=`` argument was resized: record that as the calls that it amounts to, before the write."""
        for old, new in zip(before, after, strict=True):
            if old.region == new.region:
                continue
            geometry = new.region.geometry
            args = (old, list(geometry.sizes))
            mine = tuple(r for r in resized if r[0] is new.region.storage)
            self._call(aten.resize_.default, args, {}, new, (), (new,), Effect.GEOMETRY, (), mine)
            if not geometry.is_contiguous:
                args = (new, list(geometry.sizes), list(geometry.strides), geometry.offset)
                self._call(aten.as_strided_.default, args, {}, new, (), (new,), Effect.GEOMETRY)

    def _resized(self, operands: Operands) -> tuple[Resize, ...]:
        """The storages of ``operands`` whose size has changed, with the size before and after."""
        memories = {storage: memory for storage, memory in self._storages.values()}
        changed = []
        for storage in dict.fromkeys(o.region.storage for o in operands):
            before, after = self._nbytes[storage], memories[storage].nbytes()
            if type(before) is not int or type(after) is not int or before != after:
                if before is not after:
                    changed.append((storage, before, after))
                self._nbytes[storage] = after
        return tuple(changed)


def _is_kept(func: Any, result: Any) -> bool:
    """Whether a call without tensors among its results and operands' writes has to be recorded."""
    if isinstance(func, HigherOrderOperator):
        return True
    if isinstance(result, _SYMBOLS):
        return func is aten._local_scalar_dense.default
    return func in ALWAYS_KEPT or (facts(func).custom and facts(func).results == 0)


def written_arguments(func: OpOverload, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> list[Tree]:
    """The arguments that this call of ``func`` writes, as they were passed (tensors, lists of them, or None)."""
    known = facts(func)
    hidden = HIDDEN_WRITES.get(func)
    if hidden is not None and not argument(func, args, kwargs, hidden.condition):
        return []
    return [argument(func, args, kwargs, name) for name in known.written]


def _count_list_writes(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count the writes of operators on lists (``_foreach_add_``), which PyTorch forgets to count under a mode."""
    known = facts(func)
    if known.written and func.namespace == "aten":
        lists = [x for x in written_arguments(func, args, kwargs) if isinstance(x, (list, tuple))]
        for tensor in (t for x in lists for t in x if not t.is_inference()):
            torch.autograd.graph.increment_version(tensor)
