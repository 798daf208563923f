"""The histories of views that autograd makes anew, where it makes those of fake tensors in another way.

    x.t_(); y = view_of_x * 2       refused: eager makes the history of the view from its geometry and that of x
    a.requires_grad_(); v = a[0]    a is a view of a base without a history
    base.add_(1)                    v has none any more

Rule: autograd makes the history of a view anew once its memory was written.  In eager it is that of ``as_strided`` of
the base; for a fake tensor, that of the operator which made the view, and an internal error where the base has none.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import enable_reentrant_dispatch

from purefx._torch import count_writes_together, pytree, set_version
from purefx.capture.edges import has_history_apart, has_lost_history
from purefx.capture.effects import written_tensors
from purefx.capture.recording import Call, Effect, Variable
from purefx.capture.tensors import variable_of
from purefx.errors import GradientsRefused, SourceLine

Passed = tuple[tuple[Any, ...], dict[str, Any]]


class Histories:
    """The views of a run to whose histories this happens: ``_apart`` from their bases', or ``_turned``.

    ``alive`` gives the tensors of the run that somebody holds.
    """

    def __init__(self, alive: Callable[[], Iterator[torch.Tensor]]) -> None:
        self._alive = alive
        self._apart: list[weakref.ref[torch.Tensor]] = []
        self._turned: set[Variable | None] = set()
        self.plain: set[Variable] = set()
        """The views of what does not require grad."""

    def watch(self, view: torch.Tensor) -> None:
        """Let ``view``, which has a history apart from its base's, lose it when its memory is written."""
        self._apart.append(weakref.ref(view))

    def follow(self, call: Call, given: Passed, result: Any) -> None:
        """What ``call`` of the tensors ``given`` does to histories; to be called before autograd counts its writes."""
        if self._turned:
            self._follow_turned(call, given)
        if call.effect in (Effect.GEOMETRY, Effect.STORAGE):
            self._turn(given[0][0])
        elif call.effect is Effect.VIEW:
            if not any(x.requires_grad for x in _tensors(given[0][:1])):
                self.plain.update(o.variable for o in call.outputs)
            elif torch.is_grad_enabled() and isinstance(given[0][0], torch.Tensor) and has_history_apart(given[0][0]):
                for made in _tensors(result):
                    self.watch(made)
        elif call.effect is Effect.WRITE and self._apart and not _is_seen(given):
            written = written_tensors(call.overload, *given)
            for seen in self._apart:
                view = seen()
                if view is not None and any(count_writes_together(view, tensor) for tensor in written):
                    _forget_history(view)

    def _turn(self, tensor: torch.Tensor) -> None:
        if tensor.is_inference():
            return
        alone = not torch.is_grad_enabled()
        views = [x for x in self._alive() if x._is_view() and (x._base is tensor or (x is tensor and alone))]
        self._turned.update(map(variable_of, views))

    def _follow_turned(self, call: Call, given: Passed) -> None:
        if not any(variable_of(x) in self._turned for x in _tensors(given) if x.requires_grad):
            return
        if call.effect is Effect.VIEW:
            self._turned.update(o.variable for o in call.outputs)
        elif call.effect in (Effect.NONE, Effect.WRITE):
            raise _refusal(call.where)

    def check_turned(self) -> None:
        """Refuse where autograd has raised because it cannot make the history of a view with changed geometry."""
        if any(variable_of(x) in self._turned and has_lost_history(x) for x in self._alive()):
            raise _refusal(None)


def _refusal(where: SourceLine | None) -> GradientsRefused:
    return GradientsRefused(
        "a view is used whose geometry was changed, or that of the tensor that it is a view of (t_, resize_)",
        where=where,
        remedy="take a new view of it, or change the geometry of a new view: x = x.t() for x.t_()",
    )


def _is_seen(given: Passed) -> bool:
    """Whether autograd sees what an operator does to the tensors ``given``."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in _tensors(given))


def _forget_history(view: torch.Tensor) -> None:
    """Let ``view`` have the history of a view of its base, which has none, once the write is counted.

    So the counter is moved on for a moment, and autograd asked while the base requires grad.
    """
    base, version = view._base, view._version
    if base is None or base.requires_grad or not (base.is_floating_point() or base.is_complex()):
        return
    set_version(view, version + 1)
    with enable_reentrant_dispatch():  # autograd is above the recorder
        base.requires_grad = True
        _ = view.grad_fn
        base.requires_grad = False
    set_version(view, version)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]
