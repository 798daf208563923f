"""Dynamo and Inductor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType, MethodType
from typing import Any, Literal, ParamSpec, TypeVar

import torch
import torch.utils._pytree as pytree  # the flattening that torch.compile and transformers register types with
from torch._C._dynamo.eval_frame import set_eval_frame  # what Dynamo does with the frames that are called
from torch._dynamo import OptimizedModule  # what torch.compile makes of a module
from torch._inductor.custom_graph_pass import CustomGraphPass, get_custom_graph_passes  # ours, and those of the user
from torch._ops import OpOverload  # the types of operators; no public spelling

P = ParamSpec("P")
R = TypeVar("R")


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, into which Dynamo does not look; PyTorch leaves the types of its decorator open."""
    outside: Callable[P, R] = torch.compiler.disable(function, reason="purefx compiles it")  # type: ignore[no-untyped-call]
    return outside


@contextmanager
def without_dynamo() -> Iterator[None]:
    """Run what ``torch.compile`` has made as it was written.

    Dynamo gives up for good a function that it meets below a dispatch mode: it stays in eager until a reset.
    ``set_stance`` refuses where Dynamo is looking, so that it has to look away first.
    """
    looking = set_eval_frame(None)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        set_eval_frame(looking)


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """What ``torch.compile`` has made ``function`` of; itself, if it has not made it."""
    if isinstance(function, OptimizedModule):
        module: torch.nn.Module = function._orig_mod
        return module
    if isinstance(function, MethodType):
        method = as_written(function.__func__)
        return function if method is function.__func__ else MethodType(method, function.__self__)
    if isinstance(function, FunctionType) and hasattr(function, "_is_torch_compile"):  # a module inside is told, too
        original: Callable[..., Any] = vars(function)["_torchdynamo_orig_callable"]
        return original
    return function


def inductor_for(
    graphs: Literal["forward", "backward", "inference"],
) -> Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]:
    """The compiler of Inductor for such graphs, which must be functional.

    Its public functions take graphs that are not functional yet, and functionalize them by AOTAutograd.
    """
    from torch._inductor.compile_fx import compile_fx_inner  # seconds that only its users pay

    def inductor(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        output = module.graph.output_node()
        output.meta["user_visible_output_idxs"] = range(len(pytree.tree_leaves(output.args)))  # their strides are kept
        with _eager_random_numbers(), _writing_copies():
            compiled: Callable[..., Any] = compile_fx_inner(
                module, example_inputs, is_backward=graphs == "backward", is_inference=graphs == "inference"
            )
        return compiled

    return inductor


def inductor_decompositions() -> Mapping[OpOverload, Callable[..., Any]]:
    """The operators that Inductor has no lowering for, and what it wants them to be made of."""
    from torch._inductor.decomposition import select_decomp_table

    with _eager_random_numbers():
        table: Mapping[OpOverload, Callable[..., Any]] = select_decomp_table()
    return table


def without_merging() -> AbstractContextManager[Any]:
    """Have PyTorch's partitioners take a joint graph as it is: they merge equal calls, of forward and backward too.

    What a checkpoint computes again is a call of the backward, equal to one of the forward.  Where that has several
    results it would be merged, and its results would not: these have to be in the backward, and it could not be kept.
    """
    from torch._functorch import config

    return config.patch(cse=False)  # type: ignore[no-any-return]


def _eager_random_numbers() -> AbstractContextManager[Any]:
    """Have Inductor draw the numbers that eager draws; its own generator gives others."""
    from torch._inductor import config

    return config.patch(fallback_random=True)  # type: ignore[no-any-return]


class _WritingCopies(CustomGraphPass):
    """Has each ``index_put`` take a copy of its own, which Inductor then may write to in the place of making another.

        index_put(x, [rows], x)                                     rows of x are read after they are written
        y = index_put(x, [rows], v); index_put(y, [y > 0], w)       this is a choice that gives y other memory, where
                                                                    the rows, as they are due still, then are written

    Inductor calls it when it has taken away the copies that it holds for useless, and before it makes writes of calls.
    """

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Insert the copies."""
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.index_put.default):
            (x, *others) = node.args
            with graph.inserting_before(node):
                copy = graph.call_function(torch.ops.aten.clone.default, (x,))
            copy.meta["val"] = x.meta["val"].clone()
            node.args = (copy, *others)

    def uuid(self) -> str:
        """What compiled code is kept under."""
        return "purefx: index_put takes a copy"


def _writing_copies() -> AbstractContextManager[Any]:
    from torch._inductor import config

    passes = get_custom_graph_passes(config.post_grad_custom_post_pass)
    return config.patch(post_grad_custom_post_pass=[*passes, _WritingCopies()])  # type: ignore[no-any-return]
