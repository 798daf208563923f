"""Programs whose results carry gradients: refused, with the name of the result."""

from __future__ import annotations

from purefx.analysis.replay import Fresh, Replay
from purefx.capture.session import Capture, Input, Result, TensorResult
from purefx.errors import GradientsRefused

_REMEDY = "call it under torch.no_grad(), or detach what needs no gradient"


def check_no_gradients(capture: Capture, replay: Replay) -> None:
    """Raise GradientsRefused if the graph would have to be differentiated."""
    bases = {base.variable for base in replay.bases}
    made: list[tuple[str, Result]] = [(f"output {i}", r) for i, r in enumerate(capture.results)]
    made += [(f"attribute {r.key}", r.result) for r in capture.rebindings if r.result is not None]
    hows = (*replay.results, *(h for h in replay.rebound if h is not None))
    for (name, result), how in zip(made, hows, strict=True):
        if isinstance(result, TensorResult) and result.fake.requires_grad:
            if isinstance(how, Fresh) or result.variable in bases or _has_new_history(result):
                raise _refusal(name)
    for known in capture.inputs:
        if _joined_a_graph(known):
            raise _refusal(f"{known.name}, which the program writes to,")


def _has_new_history(result: TensorResult) -> bool:
    base = result.fake._base
    return base is not None and not base.is_leaf


def _joined_a_graph(known: Input) -> bool:
    return known.fake.requires_grad and (not known.fake.is_leaf or not known.tensor.requires_grad)


def _refusal(name: str) -> GradientsRefused:
    return GradientsRefused(f"{name} requires grad, and gradients are not supported yet", where=None, remedy=_REMEDY)
