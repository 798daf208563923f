"""The histories of views that autograd makes anew, where it makes those of fake tensors in another way.

    x.t_(); y = view_of_x * 2       in eager the history of the view is made anew from its geometry and that of x
    a.requires_grad_(); v = a[0]    a is a view of a base without a history
    base.add_(1)                    v has none any more

Rule: autograd makes the history of a view anew once its memory was written.  In eager it is that of ``as_strided`` of
the base; for a fake tensor, that of the operator which made the view, and an internal error where the base has none.
`purefx.capture.renewal` lets it be the former.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.overrides import enable_reentrant_dispatch

from purefx._torch import (
    FakeTensor,
    count_writes_together,
    counting_with,
    is_from_function,
    is_piece,
    without_modes,
    without_overrides,
)
from purefx.capture.edges import base_of, has_history_apart
from purefx.capture.effects import written_lists, written_tensors
from purefx.capture.given import Given, tensors_of
from purefx.capture.recording import Call, Effect, Variable
from purefx.capture.renewal import Older, Stray, is_given_memory, renew, settle, turn
from purefx.capture.tensors import variable_of
from purefx.errors import GradientsRefused
from purefx.layout import covers
from purefx.operators import aten

_FRESH = "_purefx_fresh"
"""The version at which autograd has last made, or looked at, the history of a view."""


class Histories:
    """The views of a run, to whose histories this happens."""

    def __init__(self) -> None:
        self._seen: list[weakref.ref[torch.Tensor]] = []
        self.plain: set[Variable] = set()
        """The views of what does not require grad."""
        self._given: list[weakref.ref[torch.Tensor]] = []
        self.known: set[Variable] = set()
        """The views whose histories autograd has made, or looked at, since they have any."""
        self.changed: set[Variable] = set()
        """The tensors of the caller whose hooks, if any, are on what they have become by the program's changes."""
        self._written: set[Variable] = set()
        """The tensors that operators have written, as autograd has seen."""

    def watch(self, tensor: torch.Tensor) -> None:
        """Note that ``tensor`` of the caller is there."""
        self._given.append(weakref.ref(tensor))
        if tensor._is_view() and not tensor.is_inference():
            self._note([tensor], tensor._version)

    def settle(self) -> None:
        """Renew the views that wait for their next use, and those whose base was written and detached since.

        Rule: ``detach_`` is no operator that a run sees, and a fake view of what it has detached has no history.
        """
        with without_modes():
            for seen in self._seen:
                tensor = seen()
                if tensor is not None and is_given_memory(tensor):
                    tensor.__class__ = FakeTensor
                elif tensor is not None:
                    settle(tensor)
            for view in self._views():
                if has_history_apart(view) and view._version != view.__dict__.get(_FRESH):
                    _renew(view, later=0)

    def follow(self, call: Call, given: Given, result: Any) -> None:
        """What ``call`` of the tensors ``given`` does to histories; to be called before autograd counts its writes."""
        call.seen = call.effect in (Effect.WRITE, Effect.GEOMETRY) and self._is_seen(call, given)
        if self._seen and torch.is_grad_enabled():
            self._refresh(call, given)
        if call.seen:
            self._written.update(o.variable for o in call.written)
            with without_overrides():  # nothing is renewed below autograd
                self._follow_hooks(call, given)
        if call.effect is Effect.VIEW:
            self._follow_view(call, given, result)
        elif self._seen and call.effect is not Effect.NONE and not call.is_idle:
            with enable_reentrant_dispatch():
                if call.effect is Effect.WRITE:
                    self._follow_write(call, given)
                else:
                    _check_turn(call, given.tensors[0])
                    self._turn(given.tensors[0])

    def _is_seen(self, call: Call, given: Given) -> bool:
        """Whether autograd sees what ``call`` does to the tensors ``given``.

        Rule: an operator that writes to what is lazily conjugated or negated writes to a copy, which is copied back,
        and autograd sees the operator.  Such a copy is a tensor whose writes nobody has counted.
        """
        if not torch.is_grad_enabled() or any(x.requires_grad for x in given.tensors):
            return torch.is_grad_enabled()
        if call.op is not aten.copy_.default:
            return False
        return call.operands[-1].variable in self._written and given.tensors[-1]._version == 0

    def _note(self, views: list[torch.Tensor], version: int) -> None:
        """``views`` are there, of what is at that ``version``; they count with it only after the call."""
        self._seen += map(weakref.ref, views)
        for view in views:
            view.__dict__[_FRESH] = version

    def _refresh(self, call: Call, given: Given) -> None:
        """Autograd has asked for the histories of the operands of ``call``, and gives new ones to what it writes."""
        seen = call.effect is Effect.WRITE and call.seen and not written_lists(call.overload, *given.passed)
        written = written_tensors(call.overload, *given.passed) if seen else []
        for tensor in given.tensors:
            if _FRESH in tensor.__dict__:
                makes = any(tensor is x for x in written)
                tensor.__dict__[_FRESH] = tensor._version + makes
                variable = variable_of(tensor)
                looks = tensor.requires_grad and not has_history_apart(tensor) and call.op is not aten.detach.default
                if variable is not None and (makes or looks):
                    self.known.add(variable)

    def _follow_view(self, call: Call, given: Given, result: Any) -> None:
        if not any(x.requires_grad for x in tensors_of(given.passed[0][:1])):
            self.plain.update(o.variable for o in call.outputs)
        of = next(iter(given.tensors), None)
        made = tensors_of(result)
        self._note(made, 0 if of is None or of.is_inference() else of._version)
        if any(type(x) is Stray for x in given.passed[0][:1]) or _strays(call):
            for view in made:
                view.__class__ = Stray

    def _follow_hooks(self, call: Call, given: Given) -> None:
        """Note where hooks belong that a tensor of the caller has in the end.

        Rule: a write takes the hooks off what is written, and off its base; they stay where they were.  A change of
        geometry does not, and what is registered then joins those that are there.
        """
        written = written_tensors(call.overload, *given.passed)
        families = {id(base_of(x)) for x in written}
        cleared = {*map(id, written), *families} if call.effect is Effect.WRITE else set()
        for known in (seen() for seen in self._given):
            variable = None if known is None else variable_of(known)
            if known is None or variable is None or id(base_of(known)) not in families:
                continue
            if id(known) in cleared or not known._backward_hooks:
                self.changed.add(variable)
            elif variable in self.changed:
                raise GradientsRefused(
                    f"{call.op} changes the history of a tensor that has got a hook after an earlier change",
                    where=call.where,
                    remedy="register the hook in the end, or on a new tensor",
                )

    def _follow_write(self, call: Call, given: Given) -> None:
        written = written_tensors(call.overload, *given.passed)
        seen, counted = call.seen, bool(written_lists(call.overload, *given.passed))
        views = self._views()
        counting = {id(view) for x in written for view in counting_with(x, views)}
        for view in views:
            if id(view) not in counting:
                continue
            stray = type(view) is Stray
            if type(view) is FakeTensor and _may_be_left(view):
                view.__class__ = Older
            if not (stray or (not seen and has_history_apart(view))):
                continue
            if not stray:
                _renew(view, later=int(not counted))
            elif not any(view is x for x in written):
                settle(view, counted=counted)
            elif seen:
                raise GradientsRefused(
                    f"{call.op} writes to a view that shows more than the view that it was taken of",
                    where=call.where,
                    remedy="take it of the base: x.as_strided(...)",
                )
            else:
                turn(view, seen=False)

    def _turn(self, tensor: torch.Tensor) -> None:
        if tensor.is_inference():
            return
        for view in self._views_of(tensor):
            _renew(view, later=1)
        for view in self._views():
            if view is not tensor and has_history_apart(view) and count_writes_together(view, tensor):
                _renew(view, later=1)
        if tensor._is_view():
            turn(tensor, seen=torch.is_grad_enabled())

    def _views(self) -> list[torch.Tensor]:
        """The views that somebody holds, but for those that are of no use any more."""
        held = [(seen, view) for seen in self._seen for view in [seen()] if view is not None]
        self._seen = [seen for seen, _ in held]
        return [view for _, view in held if not is_given_memory(view) and view._is_view()]

    def _views_of(self, base: torch.Tensor) -> list[torch.Tensor]:
        found = [view for view in self._views() if view._base is base]
        for view in found:
            settle(view)
        return found


def _renew(view: torch.Tensor, *, later: int) -> None:
    renew(view, later=later)
    view.__dict__[_FRESH] = view._version + later


def _strays(call: Call) -> bool:
    """Whether the view that ``call`` takes may show more than what it is taken of."""
    return call.op is aten.as_strided.default and not covers(
        call.operands[0].region.geometry, call.outputs[0].region.geometry
    )


def _check_turn(call: Call, tensor: torch.Tensor) -> None:
    """Raise GradientsRefused where ``tensor`` is a view that shows more than before, by its own history.

    Rule: in eager the gradient of what it has not shown before is lost, until its memory is written.
    """
    if call.op is not aten.as_strided_.default or tensor.is_inference() or not tensor._is_view():
        return
    before, after = call.operands[0].region.geometry, call.written[0].region.geometry
    if tensor.requires_grad and torch.is_grad_enabled() and not covers(before, after):
        raise GradientsRefused(
            "as_strided_ lets a view show more than the view that it is",
            where=call.where,
            remedy="take it of the base: x.as_strided(...)",
        )


def _may_be_left(view: torch.Tensor) -> bool:
    """Whether the history of ``view`` is made anew after a write, and its base may be detached before that."""
    made_anew = not (is_piece(view) or is_from_function(view))  # of these autograd raises, base or no base
    return view.requires_grad and not has_history_apart(view) and made_anew
