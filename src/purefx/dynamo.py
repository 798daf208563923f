"""Back ends of torch.compile: from the graph that Dynamo made to a compiled function that captures at its first call.

    torch.compile(model, backend="purefx")
    torch.compile(model, backend=purefx.backend("inductor"))

Nothing is captured while Dynamo compiles: its example inputs do not show who shares memory with whom at a later call.
Each call comes with real tensors, and is captured if its sharing, or anything else that matters, is new.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from purefx.api import Compiled
from purefx.autodiff.partition import Partition
from purefx.compilers import Backend, Compilers, adapt
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
        partition: Partition = "default" if self.compilers is None else self.compilers.partition
        compiled = (_Sized if read else Compiled)(_asking(module, sizes), self.compilers, partition)
        kept = [place for place, node in enumerate(placeholders) if node not in sizes]
        return (lambda *inputs: compiled(*[inputs[place] for place in kept])) if sizes else compiled


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
    return fx.GraphModule(module, graph)
