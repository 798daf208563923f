"""``while_loop`` of tensors, as one node.

Its parts are those of a loop in Python, where ``x`` is carried, and ``a`` is there at each step:

    while t(x, a): x = f(x, a)
    its states                    x before the first step and after each; the last is the result
    its gradient                  a loop from the last step to the first: carries the cotangent of x, adds up those of a
    its tangent                   a loop that carries x and its tangent
    its batch                     a loop that goes on while one example does; the others stay what they are

The states are kept for autograd, as many as there are.  Transforms of torch.func take tensors of known sizes alone:
there the gradient computes the state before each step again, so that its time grows with the square of the steps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from purefx._torch import current_level, is_functorch_wrapped, outside_transforms, plain_have_tangents, tangent_of
from purefx.capture.bodies import CapturedBody, CapturedTest, Capturing, dense
from purefx.capture.branch_derivatives import Batch, Branch, Derived, Gradient, Tangent, Tensors
from purefx.capture.meeting import LOOP, STACKING
from purefx.operators import is_inexact


@dataclass(frozen=True, slots=True)
class Loop:
    """Does ``step`` as long as ``test`` holds, of as many tensors as ``carries`` says, and others after them."""

    capture: Capturing
    test: Branch
    step: Branch
    carries: int

    def run(self, operator: Any, operands: Tensors) -> Tensors:
        """What ``operator`` gives, one of those of PyTorch that loop."""
        pairs: list[tuple[type[CapturedBody], Branch]] = [(CapturedTest, self.test), (CapturedBody, self.step)]
        with outside_transforms():
            bodies = [kind(branch, operands, self.capture) for kind, branch in pairs]
            try:
                return tuple(operator(*bodies, operands[: self.carries], operands[self.carries :]))
            finally:
                for body in bodies:
                    body.let_go()


def is_transformed(x: Any) -> bool:
    """Whether a derivative of ``x`` may be asked for, or a transform has wrapped it."""
    if not isinstance(x, torch.Tensor):
        return False
    recorded = x.requires_grad and torch.is_grad_enabled()
    return recorded or is_functorch_wrapped(x) or (plain_have_tangents() and tangent_of(x) is not None)


class _Within(threading.local):
    """What a thread is in."""

    known_sizes = False


_within = _Within()


@contextmanager
def known_sizes() -> Iterator[None]:
    """Let loops make no tensors of sizes that nobody knows, which vmap does not take."""
    before, _within.known_sizes = _within.known_sizes, True
    try:
        yield
    finally:
        _within.known_sizes = before


def results(loop: Loop, operands: Tensors) -> Tensors:
    """What ``loop`` carries in the end."""
    if not any(map(is_transformed, operands)):
        return loop.run(LOOP, operands)
    start = torch.zeros((), dtype=torch.int64, device=operands[0].device)
    counted = Loop(loop.capture, _Uncounted(loop.test), _Counted(loop.step), loop.carries + 1)
    given = (start, *map(dense, operands[: loop.carries]), *operands[loop.carries :])
    if current_level() or _within.known_sizes:
        return _apply(_Again, counted, given)[1:]
    count, *states = _with_first(given, _stacks(counted, given))
    last = count.amax(0)
    return tuple(_row(x, last).clone() for x in states)


def _stacks(loop: Loop, operands: Tensors) -> Tensors:
    """What ``loop`` carries after each step, first the number of steps; what it is given, if it does none."""
    if any(map(is_transformed, operands)):
        return _apply(_Stacks, loop, operands)
    return loop.run(STACKING, operands)


RUNS = {LOOP: results, STACKING: _stacks}
"""What PyTorch's operators that loop give."""


def _with_first(given: Tensors, stacks: Tensors) -> Tensors:
    """The states: what is carried before the first step, and after each."""
    return tuple(torch.cat([x.unsqueeze(0), stack]) for x, stack in zip(given, stacks, strict=False))


def _apply(node: Any, loop: Loop, operands: Tensors) -> Tensors:
    found: Tensors = node.apply(loop, *operands)
    return found


def _row(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    row: torch.Tensor = x.index_select(0, number.reshape(1)).squeeze(0)
    return row


class _Again(torch.autograd.Function):
    """What a loop carries in the end, as one node; first the number of steps.  Each state is computed again."""

    @staticmethod
    def forward(loop: Loop, *operands: torch.Tensor) -> Tensors:
        """What is carried in the end."""
        return loop.run(LOOP, operands)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        """Keep the operands and the number of steps."""
        ctx.loop, *operands = inputs
        ctx.save_for_backward(*operands, output[0])
        ctx.save_for_forward(*operands)
        ctx.mark_non_differentiable(*(x for x in output if not is_inexact(x.dtype)))

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        """The gradients of the operands that need one."""
        *operands, count = ctx.saved_tensors
        back = _Back(ctx.loop, operands, ctx.needs_input_grad[1:], _Recomputed(ctx.loop, len(operands)))
        return None, *back.run(count, [cotangents[i] for i in back.carried], operands)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: torch.Tensor | None) -> Any:
        """The tangents of what is carried in the end."""
        moving = _Moving(ctx.loop, ctx.saved_tensors[: len(tangents)], tangents)
        return moving.tangents(results(moving.loop, moving.operands))

    @staticmethod
    def vmap(info: Any, in_dims: Any, loop: Loop, *operands: torch.Tensor) -> Any:
        """What the loop of each example carries in the end."""
        found = results(*_batch(info, in_dims[1:], loop, operands))
        return found, (0,) * len(found)


class _Stacks(torch.autograd.Function):
    """What a loop carries after each step, as one node; first the number of steps so far."""

    @staticmethod
    def forward(ctx: Any, loop: Loop, *operands: torch.Tensor) -> Tensors:
        """The stacks; the operands and they are kept."""
        found = loop.run(STACKING, operands)
        ctx.loop = loop
        ctx.save_for_backward(*operands, *found)
        ctx.save_for_forward(*operands, found[0])
        ctx.mark_non_differentiable(*(x for x in found if not is_inexact(x.dtype)))
        return found

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        """The gradients of the operands that need one."""
        loop, count = ctx.loop, ctx.loop.carries
        operands, stacks = ctx.saved_tensors[:-count], ctx.saved_tensors[-count:]
        states = _with_first(operands, stacks)
        back = _Back(loop, operands, ctx.needs_input_grad[1:], _Stacked(loop, len(operands)))
        later = [cotangents[i] for i in back.carried]
        zeros = [torch.zeros(operands[i].shape, dtype=operands[i].dtype) for i in back.carried]
        return None, *back.run(states[0].amax(0), zeros, (*operands[count:], *states, *later))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: torch.Tensor | None) -> Any:
        """The tangents of the states."""
        moving = _Moving(ctx.loop, ctx.saved_tensors[: len(tangents)], tangents)
        numbers = torch.arange(ctx.saved_tensors[-1].shape[0])  # both loops do as many steps, which no size tells
        return moving.tangents([x.index_select(0, numbers) for x in _stacks(moving.loop, moving.operands)])


def _inexact(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [i for i, x in enumerate(tensors) if is_inexact(x.dtype)]


def _batch(info: Any, dims: Sequence[int | None], loop: Loop, operands: Tensors) -> tuple[Loop, Tensors]:
    """The loop of all examples, and its operands: what is carried has a batch, which is first."""
    size, count = info.batch_size, loop.carries
    moved = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(operands, dims, strict=True)]
    carried = [
        x.expand(size, *x.shape).clone(memory_format=torch.contiguous_format) if dim is None else x
        for x, dim in zip(moved, dims[:count], strict=False)
    ]
    inner = [*[0] * count, *(None if dim is None else 0 for dim in dims[count:])]
    test, step = (Batch(branch, inner, size, info.randomness) for branch in (loop.test, loop.step))
    batched = Loop(loop.capture, _Any(test), _Going(test, step, count), count)
    return batched, (*map(dense, carried), *moved[count:])


class _Counted(Derived):
    """A step of a loop that counts its steps first."""

    def __init__(self, step: Branch) -> None:
        super().__init__(step, "a step of")
        self._step = step

    def __call__(self, count: torch.Tensor, *operands: torch.Tensor) -> Tensors:
        """The count, and what the step gives."""
        return count + 1, *self._step(*operands)


class _Uncounted(Derived):
    """A test of such a loop."""

    def __init__(self, test: Branch) -> None:
        super().__init__(test, "the test of")
        self._test = test

    def __call__(self, _: torch.Tensor, *operands: torch.Tensor) -> Tensors:
        """What the test says."""
        return self._test(*operands)


class _Remains(Derived):
    """Whether a loop that goes back has a step left."""

    def __init__(self) -> None:
        self.__name__ = "the test of a gradient"

    def __call__(self, number: torch.Tensor, *_: torch.Tensor) -> Tensors:
        """Whether there is a step of that number."""
        return (number >= 0,)


class _Recomputed:
    """The state before a step of ``loop``, as the loop computes it again of its ``count`` operands."""

    def __init__(self, loop: Loop, count: int) -> None:
        self._loop, self._sizes = Loop(loop.capture, _Below(), _Ignoring(loop.step), loop.carries), (count,)

    def before(self, number: torch.Tensor, given: Tensors) -> tuple[Tensors, Tensors, Tensors | None]:
        """The state, what all steps share, and no cotangents: those are of the end alone."""
        return results(self._loop, (*given, number)), given[self._loop.carries :], None


class _Stacked:
    """The state before a step of ``loop``, and the cotangents of that after it, among all of them."""

    def __init__(self, loop: Loop, count: int) -> None:
        self._shared, self._carries = count - loop.carries, loop.carries

    def before(self, number: torch.Tensor, given: Tensors) -> tuple[Tensors, Tensors, Tensors | None]:
        """The state, what all steps share, and the cotangents."""
        states, cotangents = given[self._shared :][: self._carries], given[self._shared + self._carries :]
        now = tuple(_row(x, number) for x in cotangents)
        return tuple(_row(x, number) for x in states), given[: self._shared], now


class _Below(Derived):
    """Whether a loop that counts its steps has not come to the number that it is given last."""

    def __init__(self) -> None:
        self.__name__ = "the test of a state"

    def __call__(self, count: torch.Tensor, *operands: torch.Tensor) -> Tensors:
        """Whether it has not."""
        return (count < operands[-1],)


class _Ignoring(Derived):
    """A step that is given one operand more."""

    def __init__(self, step: Branch) -> None:
        super().__init__(step, "again")
        self._step = step

    def __call__(self, *operands: torch.Tensor) -> Tensors:
        """What the step gives."""
        return self._step(*operands[:-1])


class _Back(Derived):
    """A step back in the gradient of ``loop``, whose ``operands`` need a gradient or not.

    It carries the number of the step, the cotangents of what is ``carried``, and the gradients of what all steps share
    so far.  What it is given after them, ``kept`` knows.
    """

    def __init__(
        self, loop: Loop, operands: Sequence[torch.Tensor], needed: Sequence[bool], kept: _Recomputed | _Stacked
    ) -> None:
        super().__init__(loop.step, "a step of the gradient of")
        self.carried = _inexact(operands[: loop.carries])
        self._shared = [i for i, needs in enumerate(needed) if needs and i >= loop.carries]
        self._gradient = Gradient(loop.step, (*self.carried, *self._shared), self.carried)
        self._capture, self._kept = loop.capture, kept
        self._operands = operands

    def run(
        self, count: torch.Tensor, cotangents: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """The gradients of the operands after ``count`` steps, for ``cotangents`` of the last state."""
        operands, self._operands = self._operands, ()
        sums = [torch.zeros(operands[i].shape, dtype=operands[i].dtype) for i in self._shared]
        loop = Loop(self._capture, _Remains(), self, 1 + len(self.carried) + len(sums))
        found = results(loop, (count - 1, *map(dense, cotangents), *sums, *given))[1:]
        places = dict(zip((*self.carried, *self._shared), found, strict=True))
        return [places.get(i) for i in range(len(operands))]

    def __call__(self, number: torch.Tensor, *given: torch.Tensor) -> Tensors:
        """The next number, cotangents and gradients."""
        count = len(self.carried)
        later, sums = given[:count], given[count:][: len(self._shared)]
        state, shared, now = self._kept.before(number, given[count + len(sums) :])
        later = later if now is None else tuple(x + y for x, y in zip(later, now, strict=True))
        found = self._gradient(*state, *shared, *later)
        return number - 1, *found[:count], *(x + y for x, y in zip(sums, found[count:], strict=True))


class _Moving(Derived):
    """A step of ``of`` that carries tangents after what that carries; ``loop`` does it with ``operands``."""

    def __init__(self, of: Loop, operands: Tensors, tangents: Sequence[torch.Tensor | None]) -> None:
        super().__init__(of.step, "a step of the tangent of")
        self._of = of
        self._carried = _inexact(operands[: of.carries])
        shared = [i for i, x in enumerate(tangents) if x is not None and i >= of.carries]
        self._more = len(shared)
        self._tangent = Tangent(of.step, (*self._carried, *shared), self._carried)
        test = _Still(of, len(self._carried), self._more)
        self.loop = Loop(of.capture, test, self, of.carries + len(self._carried))
        first = [torch.zeros_like(operands[i]) if (x := tangents[i]) is None else x for i in self._carried]
        given = [x for i in shared if (x := tangents[i]) is not None]
        self.operands = (*operands[: of.carries], *map(dense, first), *operands[of.carries :], *given)

    def tangents(self, found: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        """Those of what the loop carries, which it has ``found`` with the values."""
        self.operands = ()
        places = dict(zip(self._carried, found[self._of.carries :], strict=True))
        return tuple(places.get(i) for i in range(self._of.carries))

    def __call__(self, *given: torch.Tensor) -> Tensors:
        """What the step gives, and its tangents."""
        count = self._of.carries + len(self._carried)
        carried, tangents = given[: self._of.carries], given[self._of.carries : count]
        shared, more = given[count : len(given) - self._more], given[len(given) - self._more :]
        return *self._of.step(*carried, *shared), *self._tangent(*carried, *shared, *tangents, *more)


class _Still(Derived):
    """The test of such a loop: ``tangents`` follow what is carried, ``more`` come last."""

    def __init__(self, of: Loop, tangents: int, more: int) -> None:
        super().__init__(of.test, "the test of the tangent of")
        self._of, self._tangents, self._more = of, tangents, more

    def __call__(self, *given: torch.Tensor) -> Tensors:
        """What the test says."""
        count = self._of.carries
        return self._of.test(*given[:count], *given[count + self._tangents : len(given) - self._more])


class _Any(Derived):
    """Whether the ``test`` of one example holds."""

    def __init__(self, test: Batch) -> None:
        super().__init__(test, "whether one goes on of")
        self._test = test

    def __call__(self, *operands: torch.Tensor) -> Tensors:
        """Whether one does."""
        return (self._test(*operands)[0].any(),)


class _Going(Derived):
    """A step of the examples whose ``test`` holds; the others keep the ``count`` tensors that they carry."""

    def __init__(self, test: Batch, step: Batch, count: int) -> None:
        super().__init__(step, "a step of")
        self._test, self._step, self._count = test, step, count

    def __call__(self, *operands: torch.Tensor) -> Tensors:
        """What is carried after it."""
        (going,) = self._test(*operands)
        pairs = zip(self._step(*operands), operands[: self._count], strict=True)
        return tuple(torch.where(going.reshape(-1, *[1] * (x.dim() - 1)), x, y) for x, y in pairs)
