"""Writing the graph's new values into the caller's memory, by views of the caller's own tensors.

with no_grad():
    cache[:, 3:4].copy_(new_cache)
"""

from __future__ import annotations

from purefx.capture.recording import Region
from purefx.functional.regions import chain_between, includes
from purefx.functional.roots import Root
from purefx.functional.signature import WrittenOutput
from purefx.layout import Chain, Slice
from purefx.runtime.scope import Scope, indented
from purefx.runtime.spelling import METHOD_OF_STEP, spell_bits, spell_physical, spell_range


def emit_write_back(scope: Scope) -> list[str]:
    """Writes to the storages that keep their size."""
    resized = _resized(scope)
    outputs = [o for o in _written(scope) if o.region.storage not in resized]
    unseen = [f"{_target(scope, o.root, o.region)}.copy_({scope.outputs[o]})" for o in outputs if o.shown is None]
    return _block(scope, unseen)


def emit_seen(scope: Scope, output: WrittenOutput) -> str:
    """A write that autograd sees, by way of the tensor whose history it becomes a part of."""
    shown = output.shown
    assert shown is not None  # asked of such outputs
    chain = chain_between(shown.before.physical, output.region)
    assert chain is not None  # so the way was chosen
    name = f"{scope.inputs[shown.source]}{'._base' * shown.of_base}{spell_bits(shown.before, output.region)}"
    return f"{chained(scope, name, chain)}.copy_({scope.outputs[output]})"


def emit_write_back_resized(scope: Scope) -> list[str]:
    """Storages that have another size now are written once their tensors have their new geometry."""
    resized = _resized(scope)
    lines = []
    for output in _written(scope):
        shown = [known for known in scope.capture.inputs if known.after.storage is output.region.storage]
        for known in shown if output.region.storage in resized else ():
            chain = chain_between(output.region, known.after)
            if chain is not None:
                value = chained(scope, scope.outputs[output], chain)
                lines.append(f"{scope.inputs[known]}{spell_physical(known.after)}.copy_({value})")
    return _block(scope, lines)


def _written(scope: Scope) -> list[WrittenOutput]:
    return [o for o in scope.functional.outputs if isinstance(o, WrittenOutput)]


def _resized(scope: Scope) -> frozenset[object]:
    return frozenset(storage for call in scope.capture.recording for storage, _, _ in call.resized)


def _block(scope: Scope, lines: list[str]) -> list[str]:
    return [f"with {scope.no_grad()}:", *indented(lines)] if lines else []


def _target(scope: Scope, root: Root, region: Region) -> str:
    """``region`` of the caller's memory: by views of a member, one that eager wrote if any, or of the base.

    Rule: an inference tensor is written by way of ``x.data``.  ``with torch.inference_mode(): x.add_(1)`` may write
    to it; the wrapper, which runs outside of that mode, could not.  So is what the program wrote uncounted.
    """
    uncounted = not any(member.writes for member in root.members)
    for member in sorted(root.members, key=lambda m: (m.writes == 0, m is not root.base)):
        chain = chain_between(member.before, region) if includes(member.before, region) else None
        if chain is not None:
            data = ".data" * (uncounted or member.tensor.is_inference())
            name = scope.former.get(member, scope.inputs[member])
            return chained(scope, f"{name}{data}{spell_physical(member.before)}", chain)
    data = ".data" * (uncounted or root.members[0].tensor.is_inference())
    name = f"{scope.roots[root]}{data}{spell_physical(root.region)}"
    chain = chain_between(root.region, region)
    if chain is not None:
        return chained(scope, name, chain)
    literal, geometry = scope.speller.literal, region.geometry
    place = f"{scope.roots[root]}.storage_offset() + {literal(geometry.offset - root.region.geometry.offset)}"
    shape = f"{literal(tuple(geometry.sizes))}, {literal(tuple(geometry.strides))}"
    return f"{name}.as_strided({shape}, {place})"


def chained(scope: Scope, name: str, chain: Chain) -> str:
    """The views ``chain`` of ``name``."""
    literal = scope.speller.literal
    for step in chain:
        if isinstance(step, Slice):
            bounds = spell_range(*map(literal, (step.start, step.stop, step.step)))
            name = f"{name}[{', '.join([':'] * step.dim + [bounds.removesuffix(':1')])}]"
        else:
            name = f"{name}.{METHOD_OF_STEP[step.op]}({', '.join(map(literal, step.arguments))})"
    return name
