"""What autograd can see of a program: whose history it has changed, who requires grad after it.

def f(x, w):
x.mul_(w)                 changed         x: its history is another after the call
return x.sum()
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge

from purefx.analysis.replay import Fresh, How, Replay
from purefx.capture.captured import Capture, Input, TensorResult
from purefx.capture.edges import (
    arrivals,
    edge_of,
    has_lost_history,
    is_bare_view,
    is_beginning,
    is_begun,
    is_forgotten,
    is_leaf,
    leads_nowhere,
    leads_to,
    leaf_behind,
)
from purefx.capture.recording import Effect, Storage, Variable
from purefx.capture.tensors import variable_of
from purefx.errors import GradientsRefused


def begins(known: Input) -> bool:
    """Whether the program has made a leaf that requires grad of ``known``."""
    return is_begun(known.fake) and (known.edge is None or not known.was_leaf)


def ends(known: Input) -> bool:
    """Whether ``known`` was a leaf that requires grad, and the program has made it one that does not."""
    return known.edge is not None and known.was_leaf and not known.fake.requires_grad


def is_outgrown(known: Input) -> bool:
    """Whether ``known`` was a leaf that requires grad, and is none since the program ended that and wrote to it."""
    lives = known.left is not None or (known.fake.requires_grad and not is_leaf(known.fake))
    return known.edge is not None and known.was_leaf and lives


def new_leaves(capture: Capture, replay: Replay) -> dict[Variable, torch.Tensor]:
    """The leaves that require grad among what the graph returns: results, and bases of results."""
    bases = {base.variable for base in replay.bases}
    found: dict[Variable, torch.Tensor] = {}
    for result, how in results_of(capture, replay):
        if is_begun(result.fake) and (isinstance(how, Fresh) or result.variable in bases):
            found[result.variable] = result.fake
        base = None if result.fake.is_inference() else result.fake._base
        variable = None if base is None else variable_of(base)
        if base is not None and variable in bases and is_begun(base):
            found[variable] = base
    return found


def results_of(capture: Capture, replay: Replay) -> Iterable[tuple[TensorResult, How]]:
    """The tensors that the program hands out or binds, each with how it is made."""
    results = [*capture.results, *(r.result for r in capture.rebindings)]
    for result, how in zip(results, (*replay.results, *replay.rebound), strict=True):
        if isinstance(result, TensorResult) and how is not None:
            yield result, how


def has_own_history(fake: torch.Tensor) -> bool:
    """Whether a tensor that shares memory has a history that is not that of a view.

    So has what a custom function returned, and a detached alias that was written to.
    """
    if fake.is_inference() or not fake.requires_grad or is_bare_view(fake) or is_leaf(fake):
        return False
    if has_lost_history(fake):
        return False
    if fake._base is None:
        return True
    end, node = edge_of(fake._base), fake.grad_fn
    while node is not None and (end is None or node is not end.node):
        if is_forgotten(node):
            return False
        if isinstance(node, BackwardCFunction):
            return not (is_beginning(node) and fake._version == 0)  # else the base was detached, and nothing written
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def is_changed(known: Input) -> bool:
    """Whether a write of the program is part of the history of ``known``, or of its base, after the call."""
    fake = known.fake
    if known.left is not None:
        return known.edge is None or known.left.node is not known.edge.node
    if fake.is_inference() or not fake.requires_grad or is_bare_view(fake) or is_leaf(fake):
        return False
    base, before = fake._base, known.base_edge
    if base is not None and is_leaf(base):
        return keeps_write(known) and leaf_behind(fake) is not base
    after = edge_of(fake if base is None else base)
    before = known.edge if base is None else before
    return after is not None and (before is None or after.node is not before.node)


def is_detached(known: Input) -> bool:
    """Whether the program has cut the history of ``known`` off (``x.detach_()``)."""
    if known.edge is None or known.was_leaf or known.fake._base is not None:
        return False
    return is_leaf(known.fake)


def check_gradients(capture: Capture) -> None:
    """Raise GradientsRefused for what the program does to autograd's state of the caller's tensors and is not kept."""
    for known in capture.inputs:
        if known.was_leaf and is_begun(known.fake) and known.fake.grad is not known.grad:
            raise _refusal(
                f"the program sets the gradient of {known.name}, as loss.backward() does",
                "call backward() outside, or return what torch.autograd.grad gives",
            )
        if is_moved(capture, known) and (_writes_old_memory(capture, known) or len(former_edges(capture, known)) > 1):
            raise _refusal(
                f"the program gives {known.name}, a leaf, other memory or sizes twice, or writes to it before",
                "copy into it, under torch.no_grad()",
            )
        if _begins_again(known) or (keeps_write(known) and _shows_what_is_detached(capture, known)):
            raise _refusal(
                f"the program writes to {known.name}, and then detaches what it is a view of",
                "detach first, or write to a copy",
            )
        if known.edge is not None and known.was_leaf and is_begun(known.fake) and _has_lost_view(capture, known):
            raise _refusal(
                f"the program writes to {known.name}, a leaf that requires no grad then, and a view of it is used then",
                "write under torch.no_grad(), or to a copy",
            )
        if _lends_memory(capture, known):
            raise _refusal(
                f"the program gives another tensor the memory of {known.name} (set_), and detaches that",
                "detach first, or copy from it",
            )
        if _loses_views(capture, known):
            raise _refusal(
                f"the program writes to {known.name}, detaches it and returns a view of it",
                "detach first, or return a copy",
            )


def is_moved(capture: Capture, known: Input) -> bool:
    """Whether gradients of a leaf arrive at what it has become by another geometry: it was not used before that.

    ``x.set_(y)``, be it the same memory, and another dtype always make another place for them; other sizes do where
    nobody holds the former.
    """
    if known.edge is None or not known.was_leaf or not is_begun(known.fake):
        return False
    if known.before.dtype != known.after.dtype or known.variable in capture.recording.moved:
        return True
    if known.before == known.after:
        return False
    sizes = tuple(known.edge.node._input_metadata[0].shape)
    return sizes == known.after.geometry.sizes != known.before.geometry.sizes


def _writes_old_memory(capture: Capture, known: Input) -> bool:
    """Whether the program writes to memory that ``known`` showed before the call, and shows no longer."""
    return known.before.storage is not known.after.storage and _is_written(capture, known.before.storage)


def _is_written(capture: Capture, storage: Storage) -> bool:
    """Whether the program writes to ``storage``."""
    writes = (call for call in capture.recording if call.effect is Effect.WRITE)
    return any(operand.region.storage is storage for call in writes for operand in call.written)


def former_edges(capture: Capture, known: Input) -> list[GradientEdge]:
    """Where gradients arrive at what ``known``, a leaf, was before it had other memory."""
    if not is_moved(capture, known):
        return []
    made = [result.fake for result in capture.results if isinstance(result, TensorResult)]
    found = arrivals([*made, *(other.fake for other in capture.inputs)], known.fake)
    return [GradientEdge(node, 0) for node in found if known.edge is not None and node is not known.edge.node]


def _has_lost_view(capture: Capture, known: Input) -> bool:
    """Whether a view of ``known`` has lost its history, which autograd would make anew of the leaf that this is."""
    views = (other.fake for other in capture.inputs if other.base_edge is not None)
    return any(view._base is known.fake and _is_lost(view) for view in views)


def _lends_memory(capture: Capture, known: Input) -> bool:
    """Whether a tensor with a history shows the memory of ``known`` now, which the program has detached."""
    if not (is_detached(known) or ends(known)):
        return False
    changes = [call for call in capture.recording if call.effect is Effect.GEOMETRY and call.modes.grad]
    given = {o.variable for c in changes if any(o.variable is known.variable for o in c.operands) for o in c.written}
    fakes = {other.variable: other.fake for other in capture.inputs}
    fakes.update((result.variable, result.fake) for result in capture.results if isinstance(result, TensorResult))
    return any(fake.requires_grad for variable, fake in fakes.items() if variable in given - {known.variable})


def _loses_views(capture: Capture, known: Input) -> bool:
    """Whether a result is a view, with a history that leads on, of ``known``, which was written and detached.

    A view that has lost its history is taken before the write, and loses it again.  So is what was taken of it then.
    """
    if not (is_detached(known) or ends(known)) or not known.writes or not _is_written(capture, known.before.storage):
        return False
    given = {other.variable for other in capture.inputs}
    results = [r for r in capture.results if isinstance(r, TensorResult) and r.variable not in given]
    views = [r for r in results if not r.fake.is_inference() and r.fake._base is known.fake]
    alive = [r for r in views if r.fake.requires_grad and not is_begun(r.fake)]
    late = [r for r in alive if not _is_lost(r.fake) or _source_of(r.variable, capture) is None]
    edges = (known.left, known.edge if ends(known) else None)
    late = [r for r in late if not leads_to(r.fake, [edge.node for edge in edges if edge is not None])]
    kept = {other.variable for other in capture.inputs if keeps_write(other)}
    sources = {r: _source_of(r.variable, capture) for r in late}
    return any(
        not (has_lost_history(r.fake) or (source is not None and (source in kept or leads_nowhere(r.fake))))
        for r, source in sources.items()
    )


def _is_lost(view: torch.Tensor) -> bool:
    """Whether ``view`` itself has lost its history."""
    return not has_lost_history(view) and view.grad_fn is not None and is_forgotten(view.grad_fn)


def _source_of(view: Variable, capture: Capture) -> Variable | None:
    """The tensor of the caller that ``view`` was taken of, by views that autograd saw; None where some are not."""
    given = {known.variable for known in capture.inputs}
    for call in reversed(capture.recording.calls):
        if view not in given and call.effect is Effect.VIEW and view in {o.variable for o in call.outputs}:
            if not call.modes.grad:
                return None
            view = call.operands[0].variable
    return view


def _shows_what_is_detached(capture: Capture, known: Input) -> bool:
    """Whether a result is a view of the base of ``known`` that cannot be taken while the base has a history still.

    A view that has lost its history is taken before the write; one of what keeps the write has what that has; one that
    has none is taken once the base is detached.
    """
    base = next((other for other in capture.inputs if other.fake is known.fake._base), None)
    if base is None or not (is_detached(base) or ends(base)):
        return True
    kept = {other.variable for other in capture.inputs if keeps_write(other)}
    given = {other.variable for other in capture.inputs}
    results = [r for r in capture.results if isinstance(r, TensorResult) and r.variable not in given]
    views = [r for r in results if r.fake.requires_grad and r.fake._base is base.fake]
    sources = {r: _source_of(r.variable, capture) for r in views}
    return not all(source is not None and (_is_lost(r.fake) or source in kept) for r, source in sources.items())


def _begins_again(known: Input) -> bool:
    """Whether ``known`` keeps a write of a base that the program has detached, and made a leaf that requires grad."""
    base = known.fake._base
    if known.edge is None or known.base_edge is None or base is None or not is_begun(base):
        return False
    edge = edge_of(known.fake)
    return edge is not None and edge.node is not known.edge.node and leaf_behind(known.fake) is not base


def keeps_write(known: Input) -> bool:
    """Whether a write is part of the history of a view, whose base the program has detached since."""
    base = known.fake._base
    if known.edge is None or known.base_edge is None or base is None or base.requires_grad:
        return False
    edge = edge_of(known.fake)
    return edge is not None and edge.node is not known.edge.node and not is_forgotten(edge.node)


def _refusal(what: str, remedy: str) -> GradientsRefused:
    return GradientsRefused(what, where=None, remedy=remedy)
