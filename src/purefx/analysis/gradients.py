"""Programs whose effects carry gradients: refused, with the name of what carries them."""

from __future__ import annotations

from purefx.analysis.replay import Itself, Replay
from purefx.capture.captured import Capture, Input, TensorResult
from purefx.errors import GradientsRefused

_REMEDY = "call it under torch.no_grad(), or detach what needs no gradient"


def check_no_gradients(capture: Capture, replay: Replay) -> None:
    """Raise GradientsRefused if a caller could see a gradient that the program has to do with."""
    results = [(f"output {i}", r) for i, r in enumerate(capture.results)]
    results += [(f"the attribute {r.key}", r.result) for r in capture.rebindings if r.result is not None]
    hows = (*replay.results, *(how for how in replay.rebound if how is not None))
    for (name, result), how in zip(results, hows, strict=True):
        if isinstance(result, TensorResult) and result.fake.requires_grad and not isinstance(how, Itself):
            raise _refusal(f"{name} requires grad")
    for known in capture.inputs:
        if _joined_a_graph(known):
            raise _refusal(f"the program changes what autograd knows of {known.name}")
        if known.fake.grad is not known.grad:
            raise _refusal(f"the program sets the gradient of {known.name}")


def _joined_a_graph(known: Input) -> bool:
    return known.fake.requires_grad != known.tensor.requires_grad or known.fake.is_leaf != known.was_leaf


def _refusal(what: str) -> GradientsRefused:
    return GradientsRefused(f"{what}, and gradients are not supported yet", where=None, remedy=_REMEDY)
