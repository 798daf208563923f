"""A function under running transforms: captured as one example of it, then run by programs that transforms go through.

    vmap(compiled)(xs)      the example: xs[0]      captured: compiled's function of it
                            the call: a `Node` of the captured program, which vmap asks for its batched form

What the program writes is written back to the wrapped tensors, and what shares memory is made of them again by the
program's own views, so that the transforms see that as they do in eager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from purefx._torch import is_plain, outside_transforms, pytree, without_modes
from purefx.analysis.replay import infer_replay
from purefx.capture.arguments import Leaf, Source
from purefx.capture.captured import Capture, Input, TensorResult, without_effects
from purefx.capture.fakes import has_symbols
from purefx.capture.loops import known_sizes
from purefx.capture.owners import find_owners
from purefx.capture.recording import Storage, Variable
from purefx.capture.session import capture
from purefx.capture.stand_ins import fake_owners, fake_variables
from purefx.capture.turns import ONE_AT_A_TIME
from purefx.errors import SourceLine, TransformRefused
from purefx.functional.known import find_number
from purefx.functional.regions import chain_between
from purefx.functional.rewrite import functionalize
from purefx.functional.signature import BaseOutput, Functional, ResultOutput, WrittenOutput
from purefx.runtime.body import emit_roots, spell_graph_call
from purefx.runtime.epilogue import emit_rebinding, emit_return, emit_statements
from purefx.runtime.hooks import spell_hooks
from purefx.runtime.leaves import leaves_of
from purefx.runtime.scope import Scope, indented
from purefx.runtime.wrapper import Wrapper, compile_wrapper
from purefx.runtime.write_back import chained
from purefx.transforms.base import Base
from purefx.transforms.beyond import is_refused_outside, write_below
from purefx.transforms.gradients import (
    Steering,
    Teller,
    detached_views,
    hooked_views,
    infer_teller,
    told_within,
    with_own_history,
    written_apart,
)
from purefx.transforms.graphs import Engine
from purefx.transforms.levels import Differentiated, Examples, batch_levels
from purefx.transforms.parts import last_write
from purefx.transforms.views import Views, check_own, infer_foreign, laid_out

CACHE_SIZE = 16
"""How many specialisations a compiled function keeps, and how many more for its calls under transforms."""


@dataclass(frozen=True, slots=True, eq=False)
class Specialisation:
    """A captured example: ``wrapper`` runs its program ``base`` for arguments of ``structure``.

    ``differentiated`` is what `Examples.of_all` says of the leaves.
    """

    structure: Any
    differentiated: Differentiated
    wrapper: Wrapper
    base: Base

    def fits(self, structure: Any, differentiated: Differentiated, leaves: Sequence[Any]) -> bool:
        """Whether it was captured of such an example as ``leaves``, where nothing else is wrapped."""
        return bool(
            structure == self.structure
            and differentiated == self.differentiated
            and all(map(is_plain, self.base.reached(leaves)))
            and self.wrapper.matches(leaves)
        )


class Composer:
    """The specialisations of one function for calls under transforms; without ``effects`` they write nothing."""

    def __init__(self, function: Callable[..., Any], engine: Engine, *, effects: bool = True) -> None:
        self.function = function
        self.engine = engine
        self.effects = effects
        self.specialisations: deque[Specialisation] = deque(maxlen=CACHE_SIZE)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function, by the specialisation that fits the examples of the arguments."""
        leaves, structure = leaves_of(args, kwargs)
        examples = Examples()
        with outside_transforms(), without_modes():
            seen, differentiated = examples.of_all(leaves)
            chosen = self._known(structure, differentiated, seen)
            if chosen is None:
                with ONE_AT_A_TIME, self._in_place(examples, leaves):
                    chosen = self._known(structure, differentiated, seen)
                    if chosen is None:
                        examples.begin()
                        chosen = self._specialised(structure, differentiated, seen, args, kwargs)
        chosen.base.check(leaves, examples.original)
        return chosen.wrapper.run(leaves)

    def _known(self, structure: Any, differentiated: Differentiated, leaves: Sequence[Any]) -> Specialisation | None:
        return next((s for s in self.specialisations if s.fits(structure, differentiated, leaves)), None)

    def _specialised(
        self, structure: Any, differentiated: Differentiated, leaves: list[Any], args: Any, kwargs: Any
    ) -> Specialisation:
        if any(map(has_symbols, leaves)):
            raise TransformRefused(
                "a transform of a compiled function whose arguments have symbols for their sizes",
                where=None,
                remedy="compile the transform of the function, or trace it with the sizes of the arguments",
            )
        args, kwargs = pytree.tree_unflatten(leaves, pytree.tree_structure((args, kwargs)))
        with Steering() as steering, told_within() as told, known_sizes():
            captured = capture(self.function, args, kwargs, known=find_number)
            within = told()
        teller = max(within, steering.teller, infer_teller(captured))
        captured = captured if self.effects else without_effects(captured)
        replay = with_own_history(captured, infer_replay(captured))
        apart = written_apart(captured, replay)
        returned = replace(replay, results=(*replay.results, *apart))
        functional = functionalize(captured, returned, keep=teller > Teller.OPERATORS)
        detached = _detached(captured, {id(x()) for x in steering.detached})
        base = Base(self.engine, captured, replay, functional, teller, detached)
        scope = Views(captured, replay, _without_views(base.functional))
        scope.examples = frozenset(known for known in captured.inputs if _is_example(known.sources[0], differentiated))
        wrapper = compile_wrapper(
            scope, _body(scope, [how.variable for how in apart], detached if self.effects else ()), {"graph": base.call}
        )
        made = Specialisation(structure, differentiated, wrapper, base)
        self.specialisations.appendleft(made)
        return made

    @contextmanager
    def _in_place(self, examples: Examples, leaves: Sequence[Any]) -> Iterator[None]:
        """Examples in the place of wrapped tensors that the function reaches by itself."""

        def example(tensor: torch.Tensor, source: Source) -> torch.Tensor:
            return examples.of(tensor)

        owners = find_owners(self.function, tuple(leaves))
        with fake_variables(self.function, example), fake_owners(owners, example):
            yield


def _is_example(source: Source, differentiated: Differentiated) -> bool:
    return isinstance(source, Leaf) and differentiated[source.index] is not None


def _without_views(functional: Functional) -> Functional:
    """``functional``, whose outputs are results of a node, views of nothing that anybody has."""
    outputs = [replace(o, is_view=False) if isinstance(o, ResultOutput | BaseOutput) else o for o in functional.outputs]
    return replace(functional, outputs=tuple(outputs))


def _detached(capture: Capture, seen: Collection[int]) -> list[Input]:
    """The inputs that the program detaches in place, which it has been ``seen`` to do to these fakes.

    Rule: views of what is detached, and its new value, belong to its history before that or after it, and no operator
    tells.  So nothing is returned together with its view, and no input written or viewed.
    """
    found = [known for known in capture.inputs if id(known.fake) in seen]
    results = [result for result in capture.results if isinstance(result, TensorResult)]
    variables = [known.variable for known in found] + [r.variable for r in results if id(r.fake) in seen]
    written = any(known.writes for known in found)
    for variable in variables:
        if written or any(_is_view_of(result, variable) for result in results):
            raise TransformRefused(
                "a function under a transform detaches in place what it writes to, or returns together with a view",
                where=None,
                remedy="use what detach() returns",
            )
    return found


def _is_view_of(result: TensorResult, variable: Variable) -> bool:
    return result.variable is not variable and result.region.storage is variable.last.storage


def _body(scope: Views, apart: Sequence[Variable], detached: Sequence[Input]) -> list[str]:
    """The statements that run a program on wrapped tensors; results that are ``apart`` have values of their own."""
    checks = _checks_of_memory(scope)
    roots = emit_roots(scope)
    graph = spell_graph_call(scope)
    scope.values = {variable: scope.variables.pop(variable) for variable in apart}  # statements make the results
    hooked = hooked_views(scope.capture, scope.replay)
    scope.seen = {v for v in apart if v in hooked or _is_written_with_grad(scope, v.last.storage)}
    return [
        *checks,
        *roots,
        *([] if graph is None else [graph]),
        *_layouts(scope),
        *_write_back(scope),
        *(f"{scope.inputs[known]}.detach_()" for known in detached),
        *_hooks(scope),
        *emit_statements(scope, ()),
        *scope.rest(),
        *emit_rebinding(scope),
        *emit_return(scope),
    ]


def _checks_of_memory(scope: Scope) -> list[str]:
    """That no input in whose memory the program reaches further than it shows has a batch."""
    check, name = scope.speller.name("check_own", check_own), scope.speller.name
    return [f"{check}({scope.inputs[known]}, {name('refusal', e)})" for known, e in infer_foreign(scope.capture)]


def _layouts(scope: Scope) -> list[str]:
    """Memory made inside, laid out as for a single example."""
    lay, literal = scope.speller.name("laid_out", laid_out), scope.speller.literal
    bases = [(scope.outputs[o], o.region.geometry) for o in scope.functional.outputs if isinstance(o, BaseOutput)]
    return [f"{name} = {lay}({name}, {literal(tuple(g.strides))})" for name, g in bases]


def _hooks(scope: Scope) -> list[str]:
    """The hooks that the program registers on tensors of the caller."""
    check = scope.speller.name("check_hook", check_hook)
    hooked = [(known, x) for known, x in scope.inputs.items() if known.hooks]
    lines = [f"{check}({x}, {known.name!r})" for known, x in hooked]
    return lines + [line for known, x in hooked for line in spell_hooks(scope, x, known.hooks)]


def check_hook(tensor: torch.Tensor, name: str) -> None:
    """Raise TransformRefused if ``tensor`` has a batch: autograd calls its hooks with the gradient of the batch."""
    if batch_levels(tensor):
        raise TransformRefused(
            f"under vmap a hook is registered on {name}",
            where=None,
            remedy=f"register it on {name}.clone(), and compute with that",
        )


def _write_back(scope: Scope) -> list[str]:
    """Writes of new values, once all of them are known to be possible."""
    written = [o for o in scope.functional.outputs if isinstance(o, WrittenOutput)]
    check = scope.speller.name("check_batch", check_batch)
    checks: list[str] = []
    refusable: list[str] = []
    below: list[str] = []
    for output in written:
        chain = chain_between(output.root.region, output.region)
        if chain is None:
            raise TransformRefused(
                f"a write to {_names(output)} under a transform, to elements that no view shows",
                where=last_write(scope.capture.recording, output.region.storage),
                remedy="write to a clone, and return it",
            )
        root, value = scope.roots[output.root], scope.outputs[output]
        where = last_write(scope.capture.recording, output.region.storage)
        line = scope.speller.name("line", where)
        checks.append(f"{check}({root}, {value}, {_names(output)!r}, {line})")
        storage = output.root.region.storage
        refused = is_refused_outside(scope.capture.recording, storage)
        write = [f"{chained(scope, root, chain)}.copy_({value})"]
        if not refused:
            counted = any(member.writes for member in output.root.members)
            name = scope.speller.name("write_below", write_below)
            write = [f"{name}({root}, lambda x: {chained(scope, 'x', chain)}, {value}, counted={counted})"]
        lines = write if _is_seen(scope, storage) else [f"with {scope.no_grad()}:", *indented(write)]
        (refusable if refused else below).extend(lines)
    return [*checks, *refusable, *below]  # what raises comes first


def _names(output: WrittenOutput) -> str:
    return " and ".join(member.name for member in output.root.members)


def _is_seen(scope: Scope, storage: Storage) -> bool:
    """Whether autograd sees a write to the memory ``storage``.

    It does not see those that are done without gradients, or by way of ``x.detach()`` or ``x.data``.
    """
    detached = detached_views(scope.capture.recording)
    calls = [call for call in scope.capture.recording if call.modes.grad or not scope.capture.grad_before]
    return any(o.region.storage is storage and o.variable not in detached for call in calls for o in call.written)


def _is_written_with_grad(scope: Scope, storage: Storage) -> bool:
    calls = [call for call in scope.capture.recording if any(o.region.storage is storage for o in call.written)]
    return any(call.modes.grad for call in calls)


def check_batch(target: torch.Tensor, value: torch.Tensor, name: str, where: SourceLine | None) -> None:
    """Raise TransformRefused if ``value`` has a batch that ``target`` has not: there is no room for it."""
    if batch_levels(value) <= batch_levels(target):
        return
    raise TransformRefused(
        f"under vmap {name} has no batch dimension, and what the program writes to it has one",
        where=where,
        remedy="give it a batch by in_dims, or write to a clone of it and return that",
    )
