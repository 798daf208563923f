"""``torch.cond`` and ``while_loop`` in a program that is captured: functions of tensors alone, and derivatives.

    cond(p, f, g, (x,))        takes and returns tuples of tensors, however f and g spell them
    cond(p, self.f, self.g)    the tensors that f and g reach by themselves are operands too
    its gradient               cond(p, the gradient of f, the gradient of g, (x, cotangent))
    its tangent                cond(p, the tangent of f, the tangent of g, (x, tangent))
    its batch                  cond(p, f of each example, g of each, (xs,)); where p has a batch, both and a choice
    f writes a tensor          cond(p, f on a copy of it, g, (x, it)) returns it last, and it is written after
    while_loop(p, f, (x,))     likewise: what f writes is carried after x; its derivatives are in `loops`

PyTorch's own gradient of ``cond`` traces the branches, and takes those that Dynamo has seen alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch

from purefx._torch import is_plain, left_function_mode, pytree, storage_key, untraced
from purefx.capture.bodies import CapturedBody, Capturing
from purefx.capture.branch_derivatives import Batch, Branch, Gradient, Tangent, Tensors
from purefx.capture.captured import name_of
from purefx.capture.frames import current_line
from purefx.capture.loops import RUNS, Loop
from purefx.capture.meeting import COND, Body, Meeting, met
from purefx.errors import UnsupportedOperator
from purefx.operators import is_inexact


@untraced
def choose(
    capture: Capturing, pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    """``cond`` of what the program gives to it: the branches may reach tensors by themselves."""
    if not all(isinstance(x, torch.Tensor) for x in operands):
        leaves, structure = pytree.tree_flatten(tuple(operands))
        first, second = (_of_tensors(branch, leaves, structure) for branch in (true_fn, false_fn))
        return choose(capture, pred, first, second, _tensors(leaves))
    (first, second), given, written = _flattened(capture, (true_fn, false_fn), operands)
    found = _chosen(capture, pred, first, second, given)
    if first.returned != second.returned:
        raise RuntimeError(f"the branches of torch.cond return {first.returned} and {second.returned}")
    return pytree.tree_unflatten(_without_written(found, given, written), first.returned)


@untraced
def loop(
    capture: Capturing,
    op: Any,
    test: Callable[..., Any],
    step: Callable[..., Any],
    carried: Tensors,
    additional: Tensors,
) -> Tensors:
    """What ``op``, a ``while_loop``, makes of what the program gives to it: what its body writes is carried too."""
    leaves, structure = pytree.tree_flatten((*carried, *additional))
    if not all(isinstance(x, torch.Tensor) for x in carried):
        raise UnsupportedOperator(
            "while_loop carries a number", where=current_line(), remedy="carry it in a tensor: torch.tensor(0)"
        )
    functions = [_of_tensors(body, leaves, structure) for body in (test, step)]
    (check, body), given, written = _flattened(capture, functions, _tensors(leaves))
    if any(i < len(carried) for i in written):
        raise _writing("what a loop carries")
    order = [*range(len(carried)), *written, *(i for i in range(len(carried), len(given)) if i not in written)]
    count = len(carried) + len(written)
    operands = tuple(given[i].contiguous() if i in written else given[i] for i in order)
    with left_function_mode():  # the bodies see to what they meet by themselves
        found = RUNS[op](Loop(capture, _Ordered(check, order), _Ordered(body, order), count), operands)
    return _without_written(found, given, written)


def _flattened(
    capture: Capturing, bodies: Sequence[Callable[..., Any]], operands: Sequence[torch.Tensor]
) -> tuple[list[_Flat], Tensors, list[int]]:
    """``bodies`` as functions of tensors alone; those tensors, ``operands`` first; the positions of what is written."""
    found = [met(body, operands) for body in bodies]
    distinct = {id(x): x for held, _ in found for x in held}
    given = (*operands, *(x.view_as(x) for x in distinct.values()))  # in another branch these are what it was given
    memory = set[object]().union(*(written for _, written in found))
    keys = {i: storage_key(x) for i, x in enumerate(given) if is_plain(x)} if memory else {}
    written = [i for i, key in keys.items() if key in memory]
    if written and torch.is_grad_enabled():
        raise _writing("a tensor, with gradients on")
    if len({keys[i] for i in written}) < len(written):
        raise _writing("a tensor, and uses another one of its memory")
    places = [[len(operands) + list(distinct).index(id(x)) for x in held] for held, _ in found]
    strides = {i: None if given[i].is_contiguous() else given[i].stride() for i in written}
    pairs = zip(bodies, places, strict=True)
    return [_Flat(body, len(operands), where, strides, capture) for body, where in pairs], given, written


def _without_written(found: Tensors, given: Tensors, written: Sequence[int]) -> Tensors:
    """What bodies have returned, without the new values of what is ``written``, which become those of ``given``."""
    count = len(found) - len(written)
    for i, value in zip(written, found[count:], strict=True):
        given[i].copy_(value)
    return found[:count]


def _writing(to: str) -> UnsupportedOperator:
    return UnsupportedOperator(
        f"the body of a control-flow operator writes to {to}",
        where=current_line(),
        remedy="return new values, and write them afterwards",
    )


def _tensors(leaves: Sequence[Any]) -> Tensors:
    return tuple(x for x in leaves if isinstance(x, torch.Tensor))


def _of_tensors(body: Callable[..., Any], leaves: Sequence[Any], structure: pytree.TreeSpec) -> Callable[..., Any]:
    """``body``, whose operands are in containers, as a function of the tensors in them; numbers are what they are."""
    numbers = {i: x for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)}
    count = len(leaves)

    def of_tensors(*tensors: torch.Tensor) -> Any:
        left = iter(tensors)
        operands = [numbers[i] if i in numbers else next(left) for i in range(count)]
        return body(*pytree.tree_unflatten(operands, structure))

    return functools.wraps(body, updated=())(of_tensors)


def _chosen(capture: Capturing, pred: Any, first: Branch, second: Branch, operands: Sequence[torch.Tensor]) -> Tensors:
    found: Tensors = _Choice.apply(capture, pred, first, second, *operands)  # type: ignore[no-untyped-call]  # PyTorch gives it no types
    return found


class _Replacing(Meeting):
    """Puts ``others``, one after the other, in the place of what it meets.

    Rule: by their order, since a branch runs again for its derivatives when modules and variables may hold other
    objects than when it was called.
    """

    def __init__(self, operands: Sequence[torch.Tensor], others: Sequence[torch.Tensor], capture: Capturing) -> None:
        super().__init__([*operands, *others])
        self._others = list(others)
        self._capture = capture

    def meet(self, tensor: torch.Tensor) -> torch.Tensor:
        """The next of the others."""
        return self._others.pop(0) if self._others else tensor

    def run_cond(self, pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
        """What the ``cond`` gives; its branches run in this mode too."""
        return choose(self._capture, pred, true_fn, false_fn, operands)

    def run_loop(self, op: Any, test: Any, step: Any, carried: Any, additional: Any) -> Any:
        """What the loop gives."""
        return loop(self._capture, op, test, step, carried, additional)


class _Flat:
    """A branch as a function of tensors that returns a tuple of tensors; ``returned`` tells what that was.

    After its ``count`` operands it takes what is to be in the place of the tensors that the branches reach by
    themselves; those that this branch reaches are at the positions ``held``.  Those at the positions ``written`` it
    writes copies of, with strides that are there unless they are contiguous, and returns them last.
    """

    def __init__(
        self,
        branch: Callable[..., Any],
        count: int,
        held: Sequence[int],
        written: Mapping[int, Sequence[int] | None],
        capture: Capturing,
    ) -> None:
        self._branch = branch
        self._count = count
        self._held = held
        self._written = written
        self._capture = capture
        self.__name__ = name_of(branch)
        self.returned: Any = None

    def __call__(self, *given: torch.Tensor) -> Tensors:
        copies = {i: _copy(given[i], strides) for i, strides in self._written.items()}
        given = tuple(copies.get(i, x) for i, x in enumerate(given))
        operands = given[: self._count]
        replacing = _Replacing(operands, [given[i] for i in self._held], self._capture)
        with replacing:
            result = self._branch(*operands)
        leaves, self.returned = pytree.tree_flatten(result)
        if not all(isinstance(x, torch.Tensor) for x in leaves):
            raise UnsupportedOperator(
                f"{self.__name__}, a branch of torch.cond, returns something other than tensors",
                where=None,
                remedy="return tensors from both branches",
            )
        found = tuple(map(replacing.stand_in, leaves))
        replacing.forget()
        if not copies:
            return found
        shown = set(map(storage_key, copies.values()))
        found = tuple(x.clone() if storage_key(x) in shown else x for x in found)
        return (*found, *(x.contiguous() for x in copies.values()))


def _copy(x: torch.Tensor, strides: Sequence[int] | None) -> torch.Tensor:
    if strides is None:
        return x.clone(memory_format=torch.contiguous_format)
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


class _Ordered(Body):
    """A body of a loop, which takes its operands in the ``order`` in which the loop has them."""

    def __init__(self, body: _Flat, order: Sequence[int]) -> None:
        self._body, self._order = body, order
        self.__name__ = body.__name__

    def __call__(self, *operands: torch.Tensor) -> Tensors:
        return self._body(*(x for _, x in sorted(zip(self._order, operands, strict=True), key=itemgetter(0))))


class _Choice(torch.autograd.Function):
    """``cond`` of tensors, as one node."""

    @staticmethod
    def forward(capture: Capturing, pred: Any, first: Branch, second: Branch, *operands: torch.Tensor) -> Tensors:
        """What the branch that is chosen returns."""
        bodies = [CapturedBody(branch, operands, capture) for branch in (first, second)]
        try:
            return tuple(COND(pred, *bodies, operands))
        finally:
            for body in bodies:
                body.let_go()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        """Keep the operands, and of which of them and of the results there are derivatives."""
        ctx.capture, ctx.pred, ctx.first, ctx.second, *operands = inputs
        ctx.save_for_backward(*operands)
        ctx.save_for_forward(*operands)
        ctx.count = len(output)
        ctx.inexact = tuple(i for i, x in enumerate(output) if is_inexact(x.dtype))
        ctx.mark_non_differentiable(*(x for x in output if not is_inexact(x.dtype)))

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        """The gradients of the operands that need one."""
        operands = ctx.saved_tensors
        wrt = tuple(i for i, needed in enumerate(ctx.needs_input_grad[4:]) if needed)
        first, second = (Gradient(branch, wrt, ctx.inexact) for branch in (ctx.first, ctx.second))
        found = _chosen(ctx.capture, ctx.pred, first, second, (*operands, *(cotangents[i] for i in ctx.inexact)))
        gradients: list[torch.Tensor | None] = [None] * len(operands)
        for i, gradient in zip(wrt, found, strict=True):
            gradients[i] = gradient
        return None, None, None, None, *gradients

    @staticmethod
    def jvp(ctx: Any, *given: torch.Tensor | None) -> Any:
        """The tangents of the results."""
        operands = ctx.saved_tensors
        wrt = tuple(i for i, tangent in enumerate(given[4:]) if tangent is not None)
        first, second = (Tangent(branch, wrt, ctx.inexact) for branch in (ctx.first, ctx.second))
        tangents = [x for x in given[4:] if x is not None]
        found = iter(_chosen(ctx.capture, ctx.pred, first, second, (*operands, *tangents)))
        return tuple(next(found) if i in ctx.inexact else None for i in range(ctx.count))

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, capture: Capturing, pred: Any, first: Branch, second: Branch, *operands: torch.Tensor
    ) -> Any:
        """What the branch of each example returns."""
        dims = in_dims[4:]
        batches = tuple(Batch(branch, dims, info.batch_size, info.randomness) for branch in (first, second))
        if in_dims[1] is None:
            first, second = batches
            found = _chosen(capture, pred, first, second, operands)
        else:
            which = pred.movedim(in_dims[1], 0).reshape(info.batch_size)
            pairs = zip(*(batch(*operands) for batch in batches), strict=True)
            found = tuple(torch.where(which.reshape(-1, *[1] * (x.dim() - 1)), x, y) for x, y in pairs)
        return found, (0,) * len(found)
