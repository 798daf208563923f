"""Views of a run in the form in which autograd makes their histories anew as it does in eager.

    row = h[0]; h.t_(); row.add_(1)          the history of row is that of as_strided of h, as h and row are then
    v = h[:2]; v.t_(); v.mul_(w)             so is that of v
    v = h[0].as_strided(...); v.add_(1)      v may show elements of h that h[0] does not

Rule: once the memory of a view was written, autograd makes its history anew.  In eager it takes ``as_strided`` of the
base; of a fake tensor it takes the operators that made the view, which are wrong after a change of geometry, and lose
what lies outside of a view in between.  So the tensor behind such a view is replaced by ``as_strided`` of its base.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from purefx._torch import (
    FakeTensor,
    before_functions,
    copy_view_rules,
    is_from_function,
    pytree,
    set_version,
    storage_key,
    swap_contents,
    takes_hooks_off,
    without_modes,
    without_overrides,
)
from purefx.capture.edges import (
    has_history_apart,
    has_lost_history,
    is_leaf,
    is_view_without_grad,
    leaf_behind,
    without_history,
)
from purefx.capture.fakes import has_room, view_like
from purefx.capture.frames import current_line
from purefx.capture.recording import geometry_of
from purefx.capture.turns import ONE_AT_A_TIME
from purefx.errors import GradientsRefused

_ALIVE = "_purefx_alive"
"""Whether the base of a view had a history when the geometry of the view was changed."""


class _Awaited(FakeTensor):
    """A fake tensor that is renewed when the program uses it next: autograd works on what it was until then."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Renew the tensors among the arguments, and call ``func`` of them."""
        kwargs = kwargs or {}
        with without_modes():
            for x in pytree.tree_leaves((args, kwargs)):
                if isinstance(x, _Awaited) and not takes_hooks_off(func):
                    x.prepare(func, args, kwargs)
        with without_overrides():
            return func(*args, **kwargs)

    def prepare(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Do what has to be done before ``func`` sees the tensor."""
        raise NotImplementedError


class Turned(_Awaited):
    """A view that has got another geometry."""

    def prepare(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Renew it before any use."""
        settle(self)


class Stray(_Awaited):
    """A view that shows more of its base than the views that it was taken of."""

    def prepare(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Renew it before it is written: until then it has the history that it was made with."""
        name = getattr(func, "__name__", "")
        named = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
        writes = named or name.startswith(("__i", "__setitem__"))
        written = (args[:1] or kwargs if writes else (), kwargs.get("out"))
        if any(x is self for x in pytree.tree_leaves(written)):
            settle(self)


class Older(_Awaited):
    """A view that is older than a write: its history is made anew, and is one of nothing if its base was detached."""

    def prepare(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Renew it before the first use after that; nobody tells when the base is detached."""
        settle(self)
        if not has_history_apart(self):
            self.__class__ = Older


def renewed_for_functions() -> AbstractContextManager[None]:
    """Renew what a function of the user's is applied to, for the time of a block: that calls no override."""

    def prepare(tensor: torch.Tensor) -> None:
        if isinstance(tensor, _Awaited) and ONE_AT_A_TIME.is_mine():
            with without_modes():
                tensor.prepare(torch.autograd.Function.apply, (), {})

    return before_functions(prepare)


def is_given_memory(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a view that ``set_`` has given other memory than its base has, and that nobody used since.

    Rule: ``set_`` has no gradient, and neither has anything that is made of the view then, or of its base.  As long as
    nothing is, there is no history to be made anew.
    """
    if type(tensor) is not Turned:
        return False
    with without_overrides():
        return _shows_other_memory(tensor)


def settle(tensor: torch.Tensor, *, counted: bool = False) -> None:
    """Renew ``tensor`` if that waits to be done; ``counted`` tells that the write is counted which it is done for."""
    kind = type(tensor)
    if issubclass(kind, _Awaited):
        tensor.__class__ = FakeTensor
        if tensor.__dict__.pop(_ALIVE, False) and has_history_apart(tensor):
            raise GradientsRefused(
                "a view is used whose geometry was changed, and whose base was detached then (detach_)",
                where=current_line(),
                remedy="detach first, or change the geometry of a copy",
            )
        if kind is Turned and _shows_other_memory(tensor) and not has_history_apart(tensor) and tensor.requires_grad:
            raise _history_of_other_memory()
        if kind is not Older:
            renew(tensor, later=-1 if kind is Turned or counted else 0)
            return
        base = tensor._base if has_history_apart(tensor) else None
        if base is not None and _has_place(tensor, base) and has_lost_history(tensor):
            _forget(tensor, base, later=0)


def turn(view: torch.Tensor, *, seen: bool) -> None:
    """Renew ``view``, whose geometry changes, when it is used next; ``seen`` tells that autograd makes its history now.

    That history is lost if the base is detached before the next use.
    """
    view.__dict__[_ALIVE] = seen and view.requires_grad and not has_history_apart(view)
    view.__class__ = Turned


def renew(view: torch.Tensor, *, later: int) -> None:
    """Replace ``view`` of its base by one whose history autograd makes anew as in eager.

    It does so where the version is another than that at which ``view`` is made: so many ``later`` than now.  A history
    apart from the base's is one of nothing then.
    """
    base = None if view.is_inference() else view._base
    apart = has_history_apart(view)
    if base is None or (apart and (is_leaf(view) or is_from_function(view))) or not _has_place(view, base):
        return
    if apart:
        _forget(view, base, later=max(later, 0))
    else:
        with torch.set_grad_enabled(not is_view_without_grad(view)):
            _replace(view, lambda: _view_of(base, view), later=min(later, 0))


def _forget(view: torch.Tensor, base: torch.Tensor, *, later: int) -> None:
    """Replace ``view`` of ``base``, which has no history, by one whose history is one of nothing."""
    leaf = leaf_behind(view)
    _replace(view, lambda: without_history(lambda: _view_of(base, view), leaf), later=later)


def _replace(view: torch.Tensor, make: Callable[[], torch.Tensor], *, later: int) -> None:
    """Replace ``view`` by what ``make`` makes at a version so many ``later`` than now."""
    if view._backward_hooks or view.retains_grad:
        raise GradientsRefused(
            "a view with hooks is used whose geometry was changed, or that of the tensor that it is a view of",
            where=current_line(),
            remedy="register the hook on the tensor that it is a view of",
        )
    version = view._version
    set_version(view, version + later)
    new = make()
    copy_view_rules(new, view)
    swap_contents(view, new)
    set_version(view, version)


def _shows_other_memory(view: torch.Tensor) -> bool:
    """Whether ``view`` has other memory than its base: ``x.data = y`` and ``x.set_(y)`` leave it a view of that."""
    base = view._base
    return base is not None and storage_key(view) != storage_key(base)


def _has_place(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether the memory of ``base`` has the place of ``view``; refuses where it has not, and the view a history."""
    if not _shows_other_memory(view):
        return True
    if view.requires_grad and not has_room(base, geometry_of(view), view.itemsize):
        raise _history_of_other_memory()
    return view.requires_grad


def _history_of_other_memory() -> GradientsRefused:
    return GradientsRefused(
        "a view is used that shows other memory now than the tensor whose history it has",
        where=current_line(),
        remedy="copy into it, or compute with the other tensor",
    )


def _view_of(base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """A view of ``base`` at the place of ``view``, which shows what that does.

    Rule: autograd makes its history anew by its place, whatever its memory is.
    """
    made = view_like(base, view)
    if _shows_other_memory(view):
        made.data = view.detach()
    return made
