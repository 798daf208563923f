"""Back ends of torch.compile: from the graph that Dynamo made to a compiled function that captures at its first call.

    torch.compile(model, backend="purefx")
    torch.compile(model, backend=purefx.backend("inductor"))

Nothing is captured while Dynamo compiles: its example inputs do not show who shares memory with whom at a later call.
Each call comes with real tensors, and is captured if its sharing, or anything else that matters, is new.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

from purefx._torch import storage_key
from purefx.api import Compiled
from purefx.autodiff.partition import Partition
from purefx.capture.meeting import met
from purefx.compilers import Backend, Compilers, adapt
from purefx.errors import Refusal
from purefx.functional.decompose import Decompositions
from purefx.pipeline import Stages, run_stages

log = logging.getLogger("purefx")


def backend(
    fw_compiler: Backend | str,
    bw_compiler: Backend | None = None,
    *,
    inference_compiler: Backend | None = None,
    partition: Partition = "default",
    decompositions: Decompositions | None = None,
) -> DynamoBackend:
    """A back end of torch.compile, made of any compiler or of ``"inductor"``.

    Each compiler takes a functional graph, decomposed by ``decompositions``, and fake example inputs.  It returns a
    callable that takes the inputs, or one list of them if it has a true ``_boxed_call``, and returns a tuple.
    ``bw_compiler`` gets the graphs of gradients, ``inference_compiler`` the graphs of calls without gradients; where
    they are not given, ``fw_compiler`` does.  ``partition`` says how the two graphs of a training step are told apart.
    """
    return DynamoBackend(adapt(fw_compiler, bw_compiler, inference_compiler, partition, decompositions))


class DynamoBackend:
    """A back end of torch.compile.  Without ``compilers`` the functional graphs run as they are."""

    def __init__(self, compilers: Compilers | None) -> None:
        self.compilers = compilers
        self.__name__ = "purefx"

    def __call__(self, module: fx.GraphModule, example_inputs: list[Any], **options: Any) -> Callable[..., Any]:
        """What runs ``module``, a graph of Dynamo's, in the place of Dynamo's frame."""
        if options:
            log.warning("the back end purefx of torch.compile has no %s", " and no ".join(options))
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        traced = {n: n.meta.get("example_value", x) for n, x in zip(placeholders, example_inputs, strict=True)}
        read = {node: _reading(x, traced) for node, x in traced.items() if isinstance(x, torch.SymInt)}
        sizes = {node: reading for node, reading in read.items() if reading is not None}
        kept = [place for place, node in enumerate(placeholders) if node not in sizes]
        asking = _asking(module, sizes)
        compiled = self._compiled(asking, sized=bool(read))
        numbers = _numbers(asking)
        if numbers:
            compiled = _Numbered(compiled, self._compiled(_taking(asking, numbers), sized=bool(read)), tuple(numbers))
        return (lambda *inputs: compiled(*[inputs[place] for place in kept])) if sizes else compiled

    def _compiled(self, module: fx.GraphModule, *, sized: bool) -> Callable[..., Any]:
        partition: Partition = "default" if self.compilers is None else self.compilers.partition
        return (_Sized if sized else Compiled)(module, self.compilers, partition)


purefx = DynamoBackend(None)
"""The back end that torch.compile knows by its name."""


class _Sized(Compiled):
    """A graph of Dynamo's that is to run at many sizes.

    What raises with symbols for the sizes is captured with the sizes of the call.  Then it is specialised on them, or
    raises what it raises in eager, in eager's words.
    """

    def stages(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stages:
        """The call with symbols for its sizes, if it can be captured so."""
        try:
            return run_stages(self.function, args, kwargs, dynamic=True, partition=self.partition)
        except Exception as error:
            log.info("a graph of Dynamo's is specialised on its sizes, because symbols for them raise: %s", error)
            return super().stages(args, kwargs)


class _Numbered:
    """A graph of Dynamo's that takes numbers in tensors without dimensions, and asks these for them.

    What is refused while the numbers are not known is captured with them, and specialised on them.
    """

    def __init__(self, asking: Callable[..., Any], taking: Callable[..., Any], places: tuple[int, ...]) -> None:
        self._asking, self._taking, self._places = asking, taking, places
        self._is_refused = False

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph; a refusal has run nothing of it."""
        if not self._is_refused:
            try:
                return self._asking(*inputs)
            except Refusal as error:
                log.info("a graph of Dynamo's is specialised on its numbers, because without them: %s", error)
                self._is_refused = True
        return self._taking(*[x.item() if i in self._places else x for i, x in enumerate(inputs)])


def _numbers(module: fx.GraphModule) -> dict[int, fx.Node]:
    """The inputs of ``module``, by their places, that are numbers: it does nothing but ask them for those."""
    placeholders = enumerate(node for node in module.graph.nodes if node.op == "placeholder")
    return {i: node for i, node in placeholders if node.users and all(map(_is_asked, node.users))}


def _is_asked(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def _taking(module: fx.GraphModule, numbers: dict[int, fx.Node]) -> fx.GraphModule:
    """A copy of ``module`` that takes ``numbers`` as numbers of Python."""
    graph, image = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        is_number = _is_asked(node) and node.args[0] in numbers.values()
        image[node] = image[node.args[0]] if is_number else graph.node_copy(node, image.__getitem__)
    return fx.GraphModule(module, graph)


_Reading = tuple[str, fx.Node, int]
"""A method that gives a size or a stride, the tensor that is asked, and the dimension."""


def _reading(symbol: torch.SymInt, examples: dict[fx.Node, Any]) -> _Reading | None:
    """Where ``symbol`` can be read off a tensor; None for a number that is no size of any."""
    for node, x in examples.items():
        if isinstance(x, torch.Tensor):
            for method, numbers in (("size", x.size()), ("stride", x.stride())):
                for dim, number in enumerate(numbers):
                    if isinstance(number, torch.SymInt) and number.node.expr == symbol.node.expr:
                        return method, node, dim
    return None


def _asking(module: fx.GraphModule, sizes: dict[fx.Node, _Reading]) -> fx.GraphModule:
    """A copy of ``module`` that asks its tensors for ``sizes``, where it took them as inputs.

    As an input a size would be a Python number, on which a capture is specialised.
    """
    graph, image = fx.Graph(), {}
    kept = [node for node in module.graph.nodes if node not in sizes]
    taken = [node for node in kept if node.op == "placeholder"]
    for node in taken:
        image[node] = graph.node_copy(node)
    for node, (method, tensor, dim) in sizes.items():
        image[node] = graph.call_method(method, (image[tensor], dim))
    for node in kept[len(taken) :]:
        image[node] = graph.node_copy(node, image.__getitem__)
    return _checkpointing(fx.GraphModule(module, graph))


def _checkpointing(module: fx.GraphModule) -> fx.GraphModule:
    """``module``, a copy, in which checkpoints are those of the user: they keep the random state.

    What Dynamo puts in their place leaves it to a partitioner that random numbers are drawn once.
    """
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(body := getattr(module, node.target, None), fx.GraphModule):
            setattr(module, node.target, _checkpointing(_copy(body)))
        elif node.target is torch.ops.higher_order.tag_activation_checkpoint:
            node.target = checkpointed
    module.recompile()
    return module


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    made = fx.GraphModule(module, deepcopy(module.graph))
    made.meta.update(module.meta)
    return made


def checkpointed(body: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """What ``torch.utils.checkpoint`` makes of ``body``, a part of a graph of Dynamo's.

    Dynamo passes to it what the user's function reached by itself, too.  Rule: such is what it writes, as the buffers
    of a module; a checkpoint that writes what it was passed would raise in each backward.
    """
    if "_checkpoint_context_fn" in body.meta:  # which is no value that a graph could hold
        kwargs["context_fn"] = body.meta["_checkpoint_context_fn"]
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    written = met(lambda *given: body(*_with_tensors(args, given)), tensors)[1]
    reached = {i: x for i, x in enumerate(args) if isinstance(x, torch.Tensor) and storage_key(x) in written}
    passed = [x for i, x in enumerate(args) if i not in reached]

    def run(*given: Any) -> Any:
        left = iter(given)
        return body(*(reached[i] if i in reached else next(left) for i in range(len(args))))

    return checkpoint(run, *passed, **kwargs)


def _with_tensors(args: Sequence[Any], tensors: Iterable[torch.Tensor]) -> list[Any]:
    """``args`` with ``tensors`` in the place of those among them."""
    left = iter(tensors)
    return [next(left) if isinstance(x, torch.Tensor) else x for x in args]
