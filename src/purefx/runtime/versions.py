"""Version counters end where eager leaves them: it counts each write of the program, the wrapper writes once.

arg0_version = arg0._version
...
set_versions((arg0, arg0_version + 2), (out, 0))
"""

from __future__ import annotations

from purefx.analysis.replay import Fresh, Replayed
from purefx.capture.captured import Input, TensorResult
from purefx.functional.roots import written_regions
from purefx.runtime.scope import Scope
from purefx.runtime.support import set_versions


def emit_remembering(scope: Scope) -> list[str]:
    """Statements that note the counters which may move."""
    return [f"{name}_version = {name}._version" for _, name in _counted(scope)]


def emit_setting(scope: Scope) -> list[str]:
    """The statement that sets the counters, where there are any."""
    pairs = [f"({name}, {name}_version + {known.writes})" for known, name in _counted(scope)]
    pairs += [f"({name}, {version})" for name, version in _result_versions(scope).items()]
    return [f"{scope.speller.name('set_versions', set_versions)}({', '.join(pairs)})"] if pairs else []


def _counted(scope: Scope) -> list[tuple[Input, str]]:
    """The tensors of the caller whose version counter may move: those whose memory is written."""
    touched = written_regions(scope.capture.recording)
    moved = [(known, name) for known, name in scope.inputs.items() if known.writes or known.before.storage in touched]
    return [(known, name) for known, name in moved if not known.tensor.is_inference()]


def _result_versions(scope: Scope) -> dict[str, int]:
    hows = [*scope.replay.results, *scope.replay.rebound]
    results = [*scope.capture.results, *(r.result for r in scope.capture.rebindings)]
    return {
        scope.result(how): result.version
        for how, result in zip(hows, results, strict=True)
        if isinstance(how, Fresh | Replayed) and isinstance(result, TensorResult) and result.version is not None
    }
