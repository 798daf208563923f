"""The recorder: a dispatch mode that lets every operator run on fake tensors and writes it down.

It stands above the fake tensor mode and below autograd, so what it sees is what eager PyTorch would run, and
what it reads off the results (storage, geometry, dtype) is true, not modelled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from purefx._torch import (
    DispatchMode,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    count_writes_together,
    in_forward_mode,
    is_seen_by_modes,
    is_traced_by_proxies,
    unseen_by_modes,
    without_modes,
    without_overrides,
)
from purefx.capture.calls import Calls
from purefx.capture.chance import Chance, is_same_draw
from purefx.capture.effects import (
    UNCHANGED,
    Change,
    Outcome,
    check_declared_alias,
    check_supported,
    matters_without_tensors,
    with_dtype,
)
from purefx.capture.frames import current_line
from purefx.capture.given import Given, Passed
from purefx.capture.histories import Histories
from purefx.capture.kernels import FakeKernels
from purefx.capture.recording import (
    Call,
    Constant,
    DataAccess,
    Effect,
    Operand,
    Recording,
    Region,
    Storage,
    Tree,
    Variable,
    map_tree,
    operands_of,
    restrided,
)
from purefx.capture.renewal import Older, Stray, Turned
from purefx.capture.running import run_on_fakes
from purefx.capture.tensors import Tensors
from purefx.capture.zeros import LazyZeros
from purefx.errors import UnsupportedOperator
from purefx.layout.symbols import is_certain
from purefx.operators import Facts, aten, facts

_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor, Older, Stray, Turned})

_SIMPLE = frozenset({Operand, int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout})
_DEVICE = torch.ops.prim.device.default
KnownNumber = Callable[[Recording, Operand], int | float | bool | complex | None]


class Recorder(DispatchMode):
    """Records every operator that runs under it.

    ``lift`` is called with each real tensor that the program uses and that is no argument (a tensor of a
    closure); it returns the fake tensor that stands for it.  ``known`` is asked for the number in a tensor: it
    returns one if the recording so far determines it whatever the arguments hold, else None.
    """

    supports_higher_order_operators = True

    def __init__(self, lift: Callable[[torch.Tensor], torch.Tensor], known: KnownNumber, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves its __init__ untyped
        self._known = known
        self._mode = mode
        self.recording = Recording()
        self._tensors = Tensors(self.recording)
        self._calls = Calls(self.recording, self._tensors)
        self._lift = lift
        self._kernels = FakeKernels()
        self.chance = Chance()
        self._detached: tuple[weakref.ref[torch.Tensor], tuple[torch.Tensor, ...], Call] | None = None
        self._viewed: tuple[torch.Tensor, ...] = ()
        self.histories = Histories()
        self._zeros = LazyZeros()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` on fakes and append a call; subclasses take themselves apart first."""
        if func is _DEVICE and type(args[0]) is FakeTensor:  # the engine of autograd asks for each gradient, often
            return args[0].fake_device
        if Turned in types or Stray in types:  # set_ passes their overrides by, and none is renewed below autograd
            with without_overrides():
                return self._dispatch(func, types, args, kwargs or {})
        if is_seen_by_modes() and isinstance(func, OpOverload):  # an operator of a backward, which modes see as a whole
            with unseen_by_modes():
                return self._dispatch(func, types, args, kwargs or {})
        return self._dispatch(func, types, args, kwargs or {})

    def _dispatch(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_traced_by_proxies():
            raise UnsupportedOperator(
                "the program traces a part of itself (make_fx, torch.func.linearize), which sees fake tensors",
                where=current_line(),
                remedy="trace outside of the program; purefx.func.linearize in the place of torch.func.linearize",
            )
        self.settle_detach()
        if not _PLAIN_TYPES.issuperset(types):
            return NotImplemented
        if func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        if func is aten.lift_fresh.default:
            return args[0] if isinstance(args[0], FakeTensor) else self._lift_fresh(func, args)
        if func is aten._efficientzerotensor.default:  # PyTorch's lazy zeros break on fake tensors
            of_number = not args[0] and in_forward_mode()
            return self._zeros.number(**kwargs) if of_number else self._make_zeros(*args, **kwargs)
        args = self._zeros.replaced(args, self._make_zeros)
        kwargs = kwargs if types else with_dtype(func, args, kwargs)
        check_supported(func, kwargs)
        return self._run_supported(func, args, kwargs)

    def _run_supported(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``func`` on fakes and append a call, unless what it returns is known."""
        if func is aten.equal.default and args[0].shape == args[1].shape and args[0].dtype == args[1].dtype:
            with self:
                return aten._local_scalar_dense.default(aten.all.default(aten.eq.Tensor(*args)))  # it may be known
        if func is aten.set_.default:  # new memory without elements: what shows it is a tensor like any other
            with self:
                return aten.set_.source_Tensor(args[0], aten.new_empty.default(args[0], [0]))
        if func is aten.select.int and isinstance(args[2], torch.SymInt) and not is_certain(args[2] >= 0):
            return self._select(*args)
        if func is aten.item.default and args[0].numel() == 1:  # it comes as it is in inference mode
            func = aten._local_scalar_dense.default
        given = self._enter(args, kwargs)
        if func is aten._local_scalar_dense.default:
            known = self._known(self.recording, given.operands[0])
            if known is not None:
                return known
        if self._zeros.remain(func, given.recorded[0]):
            like = self._kernels.run(func, given.passed, given.recorded)
            return self._make_zeros(list(like.shape), dtype=like.dtype, device=like.device)
        return self._record_run(func, given)

    def _select(self, tensor: torch.Tensor, dimension: int, row: torch.SymInt) -> torch.Tensor:
        """The row of ``tensor`` whose number is not known; it may count from the end."""
        size = tensor.shape[dimension]
        with self:
            for condition in (row >= -size, row < size):
                aten._assert_scalar.default(condition, f"select(): index out of range for tensor of size {size}")
            selected: torch.Tensor = aten.select.int(tensor, dimension, row % size)
        return selected

    def _make_zeros(self, sizes: Sequence[Any] = (), **kwargs: Any) -> torch.Tensor:
        """Lazy zeros, recorded as plain ones."""
        zeros: torch.Tensor = self.__torch_dispatch__(aten.zeros.default, (), (sizes,), kwargs)
        self._zeros.note(self.region(zeros).storage)
        return zeros

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
        """The arguments with fakes for real tensors, and with operands in the place of fakes.

        Most calls have neither lists nor real tensors, and are gone through once.
        """
        tensors = [x for x in args if isinstance(x, FakeTensor)]
        own = all(x.fake_mode is self._mode for x in tensors)
        entered = [self._operand(x) if isinstance(x, FakeTensor) else x for x in args] if own else []
        if own and not kwargs and _SIMPLE.issuperset(map(type, entered)):
            operands = tuple(x for x in entered if type(x) is Operand)
            return Given((args, kwargs), (tuple(entered), kwargs), tensors, operands)
        passed: Passed = (map_tree(self._as_fake, args), map_tree(self._as_fake, kwargs))
        return Given.of(passed, (map_tree(self._operand, passed[0]), map_tree(self._operand, passed[1])))

    def _record_run(self, func: Any, given: Given) -> Any:
        """Run ``func`` on fakes and append the call."""
        self._viewed, viewed = (), self._viewed
        if not isinstance(func, OpOverload):
            result = func(*given.passed[0], **given.passed[1])
            self._append(func, None, given, result)
            return result
        known = facts(func)
        earlier = self.chance.earlier() if known.random else None
        result = run_on_fakes(self._kernels, func, known, given)
        self._append(func, known, given, result)
        if known.random:
            self.chance.note(self._drawn(earlier))
        if func is aten.detach.default:
            self._detached = (weakref.ref(result), (given.tensors[0], *viewed), self.recording.calls[-1])
        elif func is aten.view.dtype:  # autograd detaches what this returns
            self._viewed = (given.tensors[0],)
        return result

    def _drawn(self, earlier: Call | None) -> Call:
        """The random call that has just run; ``earlier`` drew the same numbers."""
        call = self.recording.calls[-1]
        if earlier is not None:
            if earlier.op is not call.op or not is_same_draw(earlier, call.operands, call.outputs):
                raise UnsupportedOperator(
                    f"{call.op} draws again, after the random state was set back, what {earlier.op} drew",
                    where=current_line(),
                    remedy="draw the numbers once, and use them twice",
                )
            call.repeats = earlier
        return call

    def settle_detach(self) -> None:
        """Tell ``x.data`` from ``x.detach()``, once the tensor that came of it counts its writes."""
        if self._detached is not None:
            made, sources, call = self._detached
            self._detached = None
            tensor = made()
            if tensor is None or tensor.is_inference():
                return
            if not any(count_writes_together(tensor, source) for source in sources):
                call.op = DataAccess.READ

    def variable(self, tensor: torch.Tensor) -> Variable:
        """The variable that ``tensor`` is."""
        return self._tensors.variable(tensor)

    @contextmanager
    def meeting(self, meets: Callable[[torch.Tensor, Operand], None]) -> Iterator[None]:
        """Tell ``meets`` of each tensor that is met."""
        self._tensors.meets = meets
        try:
            yield
        finally:
            self._tensors.meets = None

    def alive(self) -> Iterator[torch.Tensor]:
        """The tensors of the run that somebody still holds."""
        self._viewed = ()
        return self._tensors.alive()

    def region(self, tensor: torch.Tensor) -> Region:
        """What ``tensor`` shows at this moment."""
        return self._tensors.region(tensor)

    def notice(self, tensor: torch.Tensor) -> None:
        """See whether the program has swapped the data of ``tensor`` (``x.data = y`` goes past the dispatcher).

        One of a run inside of this is none of its own.
        """
        if self._is_own(tensor):
            self._operand(tensor)

    def _lift_fresh(self, func: OpOverload, args: tuple[Any, ...]) -> Any:
        """A tensor that the program made of Python numbers."""
        result = func(*args)
        with without_modes():
            value = args[0].detach().clone()
        self._append(func, facts(func), Given((args, {}), ((Constant(value),), {}), (), ()), result)
        return result

    def _as_fake(self, x: Any) -> Any:
        return self._lift(x) if isinstance(x, torch.Tensor) and not self._is_own(x) else x

    def _is_own(self, x: torch.Tensor) -> bool:
        """Whether ``x`` is a fake of this run: a run inside of another may reach fakes of that."""
        return isinstance(x, FakeTensor) and x.fake_mode is self._mode

    def _operand(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            operand = self._tensors.operand(x)
            if operand.region is not operand.variable.last:
                self._swapped(operand.variable, operand.region)
            if self._tensors.has_other_size(operand.region.storage):
                self._resized(operand.region.storage)
            return operand
        if isinstance(x, torch.UntypedStorage):
            return self._tensors.storage_of(x) or x
        return x

    def _swapped(self, variable: Variable, region: Region) -> None:
        """Record that ``variable`` shows ``region`` now, by way of a tensor that showed it before."""
        before = Operand(variable, variable.last)
        call, position = self.recording.producers.get(region, (None, 0))
        source = next((v for v in self.recording.variables if v.last == region), None)
        if call is not None and source is None:
            source = call.outputs[position].variable
        after = self._tensors.show(variable, region)
        if source is None:
            raise UnsupportedOperator(
                "the data of a tensor was swapped for that of a tensor that purefx has not seen",
                where=current_line(),
                remedy="use x.set_(y) under torch.no_grad()",
            )
        change = Change(Effect.GEOMETRY, (after,))
        operands = (before, Operand(source, region))
        self._calls.record(DataAccess.SWAP, (operands, {}), operands, Outcome(None, (), change))

    def _resized(self, storage: Storage) -> None:
        """Record that ``storage`` has another size (``x.untyped_storage().resize_(n)`` goes past the dispatcher)."""
        variable = next(v for v in self.recording.variables if v.last.storage is storage)
        operand = Operand(variable, variable.last)
        resized = self._tensors.resized((operand,))
        change = Change(Effect.STORAGE, (operand,), resized)
        size = resized[0][2]
        resize = torch.ops.inductor.resize_storage_bytes_.default
        self._calls.record(resize, ((operand, size), {}), (operand,), Outcome(None, (), change))

    def _append(self, func: Any, known: Facts | None, given: Given, result: Any) -> None:
        count = len(self.recording.storages)
        change = UNCHANGED if known is None else self._calls.change(func, known, given)
        if change.replaced:
            recorded = map_tree(lambda x: change.replaced.get(x, x) if isinstance(x, Operand) else x, given.recorded)
            given = replace(given, recorded=recorded, operands=operands_of(recorded))
        if change.written and known is not None and known.out:
            results: Tree = list(change.written)  # the caller gets the out= tensors, whatever a fake kernel returns
        else:
            results = map_tree(self._operand, result)
        outputs = operands_of(results)
        if change.effect is Effect.NONE:
            shared = {o.region.storage for o in given.operands}
            if any(o.region.storage in shared for o in outputs):
                check_declared_alias(func)
                change = Change(Effect.VIEW)
            elif not outputs and not matters_without_tensors(func, result):
                return
        fresh = tuple(self.recording.storages[count:])
        call = self._calls.record(func, given.recorded, given.operands, Outcome(results, outputs, change, fresh))
        self.histories.follow(call, given, result)
        if func is aten.as_strided_copy.default:
            self.recording.regions[call.operands[0].region.storage].setdefault(restrided(call))
        for position, output in enumerate(outputs):
            self.recording.producers.setdefault(output.region, (call, position))
