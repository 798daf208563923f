"""Where gradients leave a program: the edges of the caller's tensors in the graph that autograd records.

x, a leaf                 a fake leaf: writing to it in place raises as it does in eager
x * 2, no leaf            a fake whose history is one node, `Beginning`
x[0], a view              a view of the fake of x
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from purefx._torch import is_piece, set_version, without_dispatch, without_modes
from purefx.operators import aten

_LEFT = "_purefx_left"
"""The histories that a tensor had when it was detached."""


class Beginning(torch.autograd.Function):
    """All that the caller did to a tensor before the call, as one node."""

    @staticmethod
    def forward(ctx: Any, handle: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
        """Return ``fake`` itself, as a function of ``handle``."""
        ctx.mark_dirty(fake)
        return fake

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Pass the gradient on."""
        return gradient, None


class Forgotten(torch.autograd.Function):
    """The history of a view that has lost the one that it had, of a base without any: a node that leads nowhere.

    ``leaf`` is the one that operators of one tensor each had made the view of.
    """

    @staticmethod
    def forward(
        ctx: Any, handle: torch.Tensor, make: Callable[[], torch.Tensor], leaf: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the view that ``make`` makes, as a function of ``handle``, which nobody else has."""
        ctx.leaf = leaf
        return make()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None]:
        """Pass nothing on."""
        return None, None, None


def without_history(make: Callable[[], torch.Tensor], leaf: torch.Tensor | None) -> torch.Tensor:
    """The view that ``make`` makes, which requires grad, and whose gradients flow nowhere; it was one of ``leaf``."""
    handle = torch.empty(0, requires_grad=True)
    with torch.enable_grad():
        made: torch.Tensor = Forgotten.apply(handle, make, leaf)  # type: ignore[no-untyped-call]
    return made


def is_forgotten(node: Node) -> bool:
    """Whether ``node`` is the history of a view that has lost the one that it had."""
    return getattr(node, "_forward_cls", None) is Forgotten


def leads_nowhere(tensor: torch.Tensor) -> bool:
    """Whether operators of one tensor each have made ``tensor`` of a view that has lost its history."""
    node = None if has_lost_history(tensor) else tensor.grad_fn
    while node is not None and not is_forgotten(node):
        node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
    return node is not None


def leads_to(view: torch.Tensor, nodes: Collection[Node]) -> bool:
    """Whether operators of one tensor each have made ``view`` of what one of ``nodes`` has made."""
    node = None if has_lost_history(view) else view.grad_fn
    while node is not None and node not in nodes and not isinstance(node, BackwardCFunction):
        node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
    return node in nodes


def note_history(tensor: torch.Tensor) -> None:
    """Note the history of ``tensor``, which it is about to lose."""
    if not is_bare_view(tensor) and not is_leaf(tensor):
        tensor.__dict__.setdefault(_LEFT, []).append(edge_of(tensor))


def edges_left(tensor: torch.Tensor) -> list[GradientEdge]:
    """The histories that ``tensor`` has lost, in order."""
    found: list[GradientEdge] = tensor.__dict__.get(_LEFT, [])
    return found


def edge_left(tensor: torch.Tensor, views: Iterable[torch.Tensor]) -> GradientEdge | None:
    """The edge that ``tensor`` had before it was detached, if one of ``views`` has kept that."""
    edge = next(reversed(edges_left(tensor)), None)
    if edge is None:
        return None
    own = (view for view in views if view.requires_grad and view._base is tensor)
    return edge if any(leads_to(view, {edge.node}) for view in own) else None


def arrivals(tensors: Iterable[torch.Tensor], leaf: torch.Tensor) -> list[Node]:
    """Where gradients of ``tensors`` arrive at ``leaf``: at another node once it has other memory (``set_``)."""
    alive = [t for t in tensors if t.requires_grad and not t.is_inference() and not has_lost_history(t)]
    return [node for node in history(t.grad_fn for t in alive) if getattr(node, "variable", None) is leaf]


def history(nodes: Iterable[Node | None]) -> list[Node]:
    """``nodes``, and all that come after them."""
    waiting, seen = list(nodes), dict[Node, None]()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen[node] = None
            waiting += [following for following, _ in node.next_functions]
    return list(seen)


def edge_of_leaf(fake: torch.Tensor, tensors: Iterable[torch.Tensor]) -> GradientEdge | None:
    """The edge by which gradients of ``fake``, a leaf when the run began, leave the run, which has made ``tensors``.

    Rule: nobody holds that edge while the program runs, since autograd makes it for the sizes that the leaf has when it
    is first used, and goes on with it as long as somebody holds it.
    """
    edge = edge_of(fake) if is_begun(fake) else None
    if edge is not None or torch.is_inference_mode_enabled():
        return edge
    found = arrivals(tensors, fake)
    if found:
        return GradientEdge(found[0], 0)
    return _edge_of_leaf(fake.detach().requires_grad_())


def give_history(fake: torch.Tensor, of: torch.Tensor | None = None) -> None:
    """Make ``fake`` require grad without being a leaf; it stands for the history ``of`` a tensor, if one is given."""
    version = fake._version
    with without_modes(), torch.enable_grad():
        handle = fake.detach().requires_grad_()
        made = Beginning.apply(handle, fake)  # type: ignore[no-untyped-call]  # PyTorch gives it no types
    if of is not None:
        made.grad_fn.of = weakref.ref(of)  # nobody is kept by an example
    set_version(fake, version)


def is_beginning(node: Node) -> bool:
    """Whether ``node`` stands for what the caller did before the call."""
    return getattr(node, "_forward_cls", None) is Beginning


def is_function(node: Node) -> bool:
    """Whether ``node`` is that of a custom function of the program."""
    return isinstance(node, BackwardCFunction) and not is_beginning(node)


def edge_of(tensor: torch.Tensor) -> GradientEdge | None:
    """The edge by which gradients of ``tensor`` flow; None where it has none."""
    if torch.is_inference_mode_enabled() or not tensor.requires_grad or is_bare_view(tensor):
        return None
    try:
        return _edge_of_leaf(tensor) if tensor.grad_fn is None else get_gradient_edge(tensor)
    except RuntimeError:  # PyTorch cannot tell it of a view whose base was detached
        return None


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor whose history ``tensor`` has a part in."""
    base = None if tensor.is_inference() else tensor._base
    return tensor if base is None else base


def edge_behind(tensor: torch.Tensor, nodes: int) -> GradientEdge:
    """The edge that lies so many ``nodes``, those of views, behind that of ``tensor``."""
    edge = edge_of(tensor)
    assert edge is not None  # asked of what has a history
    for _ in range(nodes):
        node, output = edge.node.next_functions[0]
        assert node is not None  # the views are of what has a history too
        edge = GradientEdge(node, output)
    return edge


def _edge_of_leaf(leaf: torch.Tensor) -> GradientEdge:
    """What `get_gradient_edge` returns, which takes a view of ``leaf`` to find it: for a fake that costs much."""
    with without_dispatch(), torch.enable_grad():
        alias = aten.alias.default(leaf)
    assert alias.grad_fn is not None, "a leaf requires grad, and so do its views"
    return GradientEdge(alias.grad_fn.next_functions[0][0], 0)


def is_view_without_grad(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a view, taken without gradients, of what requires grad.

    Rule: where its base has been written since, PyTorch raises when it is asked for the history.  Where that has been
    turned as well, the fake kernel of the view may, which autograd runs for a history alone.
    """
    base = None if tensor.is_inference() else tensor._base
    if base is None or not base.requires_grad:
        return False
    try:
        return tensor.is_leaf
    except ValueError:
        return False
    except RuntimeError:
        return not is_piece(tensor)


def is_bare_view(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a view that was taken without gradients: it has no history, and requires grad all the same.

    No gradient arrives at it, unless it was asked to require grad itself.
    """
    if not is_view_without_grad(tensor):
        return False
    try:
        with torch.inference_mode(mode=False):  # in which PyTorch could not tell
            get_gradient_edge(tensor)
    except (AssertionError, RuntimeError):
        return True
    return False


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` has no history; False where autograd raises when it is asked, since the base was written."""
    return not has_lost_history(tensor) and tensor.is_leaf


def leaf_behind(view: torch.Tensor) -> torch.Tensor | None:
    """The leaf that operators of one tensor each have made ``view`` of."""
    node = None if has_lost_history(view) else view.grad_fn
    while node is not None and not is_forgotten(node) and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    known = "leaf" if node is not None and is_forgotten(node) else "variable"  # of what adds up a leaf's gradient
    leaf: torch.Tensor | None = getattr(node, known, None)
    return leaf


def has_lost_history(tensor: torch.Tensor) -> bool:
    """Whether autograd raises when it is asked for the history of ``tensor``: its base was written, seen or not."""
    try:
        _ = tensor.grad_fn
    except (RuntimeError, ValueError):  # the latter of a fake kernel
        return True
    return False


def take_off_hooks(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The hooks on ``tensor``, which has none afterwards."""
    hooks = tuple((tensor._backward_hooks or {}).values())
    if hooks and tensor._backward_hooks is not None:
        tensor._backward_hooks.clear()
    return hooks


def is_begun(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a leaf that requires grad by itself."""
    return tensor.requires_grad and not is_bare_view(tensor) and is_leaf(tensor)


def has_history_apart(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` has a history, or begins one, and is a view of a base that has none."""
    if not tensor.requires_grad or tensor.is_inference():
        return False
    base = tensor._base
    return base is not None and not base.requires_grad
