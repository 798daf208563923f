"""How much memory a training step takes: what is saved for the backward, and the most that is allocated at once."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile


def saved_bytes(run: Callable[[], object], known: Iterable[Tensor]) -> int:
    """The bytes of all storages that autograd saves while ``run`` runs, but for those of the tensors ``known``."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in saved}
    del result
    for tensor in known:
        sizes.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(sizes.values())


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes that were allocated on the CPU at once while ``run`` ran, beyond those from before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    allocated = peak = 0
    for event in sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: e["args"]["Ev Idx"]):
        allocated += event["args"]["Bytes"]
        peak = max(peak, allocated)
    return peak
