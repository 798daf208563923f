"""The node that a compiled call is in the graph of autograd, and the backward graphs that it runs.

    (new_x, out) = record(derivatives[0], (new_x, out), Saved((w, out), leaves=leaves), x, w)

Forward: what the graph has computed leaves the node as it is, with a history.  Backward: the pattern of the tangents
picks the backward graph; a pattern that is new is differentiated then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from purefx._torch import (
    accumulates,
    batched_by_function,
    is_batched_by_autograd,
    is_plain,
    is_transforming,
    keeps_graph,
    saved_apart,
    untraced,
)
from purefx.autodiff.derived import Gradient
from purefx.capture.chance import restore_random_state
from purefx.errors import GradientsRefused
from purefx.layout import Geometry

Pattern = tuple[bool, ...]
Watched = tuple[torch.Tensor, int]


@dataclass(frozen=True, slots=True)
class Saved:
    """What a call keeps for its backward.

    ``watched`` are aliases of tensors that the program wrote, with the version that they have to be at still;
    ``written`` are aliases of those that the backward writes.  ``leaves`` are the leaves of the call and ``seed`` the
    random state at its beginning, for gradients of gradients; ``read`` are tensors that those read again, with their
    versions, and ``looked_up`` those that they find elsewhere than among the leaves.
    """

    tensors: tuple[torch.Tensor, ...]
    numbers: tuple[Any, ...] = ()
    watched: tuple[Watched, ...] = ()
    written: tuple[torch.Tensor, ...] = ()
    leaves: tuple[Any, ...] = ()
    seed: bytes | None = None
    read: tuple[Watched, ...] = ()
    looked_up: tuple[torch.Tensor, ...] = ()

    def besides(self) -> Saved:
        """What is kept besides the tensors and the leaves, which autograd, or the node, lets go."""
        return Saved((), self.numbers, self.watched, self.written, (), self.seed, self.read, self.looked_up)


@dataclass(frozen=True, slots=True, eq=False)
class Tangent:
    """How a backward graph takes the tangent of ``slot``: with this geometry and dtype."""

    slot: int
    geometry: Geometry
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, eq=False)
class BackwardGraph:
    """A compiled backward: ``run`` takes a list of inputs, which it may clear; ``composed`` those under a transform.

    Each of ``takes`` is a position in the saved tensors or (``~i``) in the saved numbers, a tangent, or a tensor that
    is held.  ``gives`` has for each input of the node the position of its gradient among the outputs, or None, and
    ``writes`` functions that write outputs to tensors of the caller, with their positions.  ``refusal`` is what eager
    raises unless all gradients are accumulated.
    """

    run: Callable[[list[Any]], Sequence[Any]]
    composed: Callable[[list[Any]], Sequence[Any]]
    takes: tuple[int | Tangent | torch.Tensor, ...]
    gives: tuple[int | None, ...]
    writes: tuple[tuple[int, Callable[[Sequence[torch.Tensor], torch.Tensor], None]], ...] = ()
    refusal: RuntimeError | None = None

    def __call__(self, ctx: Any, tangents: list[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the inputs of the node ``ctx``."""
        if self.refusal is not None and not accumulates():
            raise self.refusal.with_traceback(None)
        tensors = self._saved(ctx)
        if not keeps_graph():
            ctx.maybe_clear_saved_tensors()
            ctx.leaves = None
        plain = not is_transforming() or all(tangent is None or is_plain(tangent) for tangent in tangents)
        numbers = ctx.saved.numbers
        inputs = [
            tensors[take] if type(take) is int and take >= 0 else self._input(take, numbers, tangents, plain)
            for take in self.takes
        ]
        del tensors
        tangents.clear()
        outputs = self.run(inputs) if plain else self.composed(inputs)
        for position, write in self.writes:
            write(ctx.saved.written, outputs[position])
        return tuple(None if i is None else outputs[i] for i in self.gives)

    def _saved(self, ctx: Any) -> Sequence[torch.Tensor]:
        """What ``ctx`` has saved; raises if something was written since that this backward reads.

        h = x.exp(); o, p = h.exp(), h.sin()        o.zero_() breaks the backward of o, and not that of p
        """
        try:
            tensors: Sequence[torch.Tensor] = ctx.saved_tensors
        except RuntimeError:
            versions, apart = ctx.versions, saved_apart(ctx)
            read = [take for take in self.takes if type(take) is int and take >= 0]
            if apart is None or versions is None or any(apart[i]._version != versions[i] for i in read):
                raise
            return apart
        return tensors

    def _input(
        self,
        take: int | Tangent | torch.Tensor,
        numbers: Sequence[Any],
        tangents: list[torch.Tensor | None],
        plain: bool,  # noqa: FBT001 - whether no transform has wrapped a tangent
    ) -> Any:
        if isinstance(take, int):
            return numbers[~take]
        if isinstance(take, Tangent):
            tangent = tangents[take.slot]
            assert tangent is not None  # the pattern says so
            return coerced(tangent, take) if plain else tangent
        return take


def coerced(tangent: torch.Tensor, wanted: Tangent) -> torch.Tensor:
    """``tangent`` with the strides and the dtype that the backward graph was made for."""
    geometry = wanted.geometry
    if tangent.dtype != wanted.dtype:
        tangent = tangent.to(wanted.dtype)
    if tangent.is_conj() or tangent.is_neg():
        tangent = tangent.resolve_conj().resolve_neg()
    if not geometry.is_static:
        return tangent.contiguous()
    if tangent.stride() == geometry.strides:
        return tangent
    return torch.empty_strided(
        geometry.sizes, geometry.strides, dtype=tangent.dtype, device=tangent.device
    ).copy_(tangent)  # fmt: skip


class Derivatives:
    """The backward graphs of one specialisation, one for each pattern of tangents.

    ``derive`` makes that of a pattern; what it raises is what eager's backward raises, and is raised at each call.
    ``differentiate`` makes the gradient as a function that has gradients itself; ``present`` gives the tensors that it
    would take from the caller now.
    """

    def __init__(
        self,
        derive: Callable[[Pattern], BackwardGraph],
        differentiate: Callable[[Pattern], Gradient],
        present: Callable[[Sequence[Any]], list[Any]],
    ) -> None:
        self.present = present
        self._derive = derive
        self._differentiate = differentiate
        self._known: dict[Pattern, BackwardGraph] = {}
        self._gradients: dict[Pattern, Gradient] = {}

    def gradient(self, pattern: Pattern) -> Gradient:
        """The gradient for ``pattern`` as a function of the call's leaves and the tangents."""
        if pattern not in self._gradients:
            self._gradients[pattern] = self._differentiate(pattern)
        return self._gradients[pattern]

    def of(self, pattern: Pattern) -> BackwardGraph:
        """The backward graph of ``pattern``."""
        known = self._known.get(pattern)
        if known is None:
            known = self._known[pattern] = self._derive(pattern)
        return known


class CompiledFunction(torch.autograd.Function):
    """A compiled call in the graph of autograd."""

    boxed_grads_call = True

    @staticmethod
    def forward(
        ctx: Any, derivatives: Derivatives, outputs: tuple[torch.Tensor, ...], saved: Saved, *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return ``outputs``, which are computed already, as functions of ``inputs``."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*saved.tensors)
        ctx.derivatives = derivatives
        ctx.saved = saved.besides()
        ctx.leaves = saved.leaves
        ctx.versions = None if len(outputs) == 1 else [None if x.is_inference() else x._version for x in saved.tensors]
        return outputs

    @staticmethod
    def backward(ctx: Any, tangents: list[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
        """The gradients of ``inputs``, given those of ``outputs``."""
        if any(tangent is not None and is_batched_by_autograd(tangent) for tangent in tangents):
            return _of_batch(ctx, tangents)
        pattern = tuple(tangent is not None for tangent in tangents)
        if not any(pattern):
            return (None,) * len(ctx.needs_input_grad)
        check_versions(ctx.saved.watched)
        if torch.is_grad_enabled():
            return (None, None, None, *_differentiable(ctx, pattern, tangents))
        return (None, None, None, *ctx.derivatives.of(pattern)(ctx, tangents))


@untraced
def _of_batch(ctx: Any, tangents: list[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    """The gradients for ``tangents`` that autograd itself has batched: those that ``torch.func.vmap`` gives."""
    places: list[int] = []

    def one(*given: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        gradients = CompiledFunction.backward(ctx, list(given))
        places[:] = [i for i, gradient in enumerate(gradients) if gradient is not None]
        return tuple(gradient for gradient in gradients if gradient is not None)

    found = batched_by_function(one, tangents)
    gradients = dict(zip(places, found, strict=True))
    return tuple(gradients.get(i) for i in range(len(ctx.needs_input_grad)))


def _differentiable(ctx: Any, pattern: Pattern, tangents: list[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
    """The gradients as functions of the tangents and of what the call was given (``create_graph=True``)."""
    gradient: Gradient = ctx.derivatives.gradient(pattern)
    saved: Saved = ctx.saved
    kept = ctx.saved_tensors  # raises if one was written since
    if ctx.leaves is None:
        raise RuntimeError("Trying to backward through the graph a second time, after its saved values were freed.")
    for tensor, version in saved.read:
        if tensor._version != version:
            raise GradientsRefused(
                "the gradient of a gradient computes the forward again, and what it reads was written since the call",
                where=None,
                remedy="take the gradient before the parameters or arguments are written",
            )
    if _is_replaced(ctx, saved):
        raise GradientsRefused(
            "the gradient of a gradient computes the forward again, and a tensor was replaced since the call",
            where=None,
            remedy="take the gradient before, or write the new values into the tensor",
        )
    given = tuple([tangent for tangent in tangents if tangent is not None])
    if saved.seed is None:
        return gradient(ctx.leaves, given, kept)
    with torch.random.fork_rng(devices=[]):
        restore_random_state(saved.seed)
        return gradient(ctx.leaves, given, kept)


def _is_replaced(ctx: Any, saved: Saved) -> bool:
    """Whether a tensor that the gradient would take from the caller is not the one of the call."""
    present = ctx.derivatives.present(ctx.leaves)
    count = len(saved.looked_up)
    if any(then is not now for then, now in zip(saved.looked_up, present[:count], strict=True)):
        return True
    for (node, _), now in zip(ctx.next_functions, present[count:], strict=False):  # there is one where no targets are
        then = getattr(node, "variable", None)
        if then is not now and then is not None and now is not None:
            return True
    return False


def check_versions(watched: Sequence[Watched]) -> None:
    """Raise eager's error if a tensor was written after the call."""
    for tensor, version in watched:
        if tensor._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation:"
                f" [{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {version}"
                " instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient,"
                " with torch.autograd.set_detect_anomaly(True)."
            )


class SameEdge(torch.autograd.Function):
    """A tensor without memory, whose gradient goes where that of another goes now.

    Rule: where no gradient comes, none goes on.  A leaf may have other sizes now, and zeros of the former ones would be
    added to its gradient.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Return what looks like ``tensor``, and holds one element."""
        ctx.set_materialize_grads(False)
        return torch.empty_strided(tensor.shape, (0,) * tensor.dim(), dtype=tensor.dtype, device=tensor.device)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Pass the gradient on, if there is one."""
        return gradient


same_edge = SameEdge.apply
"""Keep where gradients of a view go, before its version changes and autograd makes its history anew."""
record = CompiledFunction.apply
"""Give the outputs of a compiled call their history."""


@cache
def record_as(function: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """`record` by a node that PyTorch's errors call as they call that of ``function``, one of the user's."""
    named: type[CompiledFunction] = type(function, (CompiledFunction,), {})
    return named.apply
