"""The compilers below purefx: what makes callables of the graphs of one program, and the conventions they follow.

A compiler is what ``aot_autograd`` of PyTorch takes: it gets a graph and fake example inputs, and returns a callable
that takes the inputs one by one, or all in one list that it may empty if it has a true ``_boxed_call``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from purefx._torch import OpOverload, inductor_decompositions, inductor_for, untraced
from purefx.autodiff.partition import Partition, check_partition
from purefx.functional.decompose import Decompositions, as_one_call, decomposed
from purefx.operators import aten

_UNSEEN_BY_INDUCTOR: dict[OpOverload, Callable[..., Any]] = {aten.bernoulli.p: as_one_call(aten.bernoulli.p)}
"""What Inductor computes wrongly.

    layer_norm(x) * bernoulli(empty_like(x), 0.7)      the result is fused with its input, and read before it is drawn
"""

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
"""A compiler: takes the functional graph and example inputs, returns a callable with the graph's signature."""


@dataclass(frozen=True, slots=True)
class Compilers:
    """What compiles the graphs of a program that is trained, and of one that is not.

    ``partition`` says how forward and backward are told apart.
    """

    forward: Backend
    backward: Backend
    inference: Backend
    partition: Partition

    @classmethod
    def alike(cls, compiler: Backend) -> Compilers:
        """``compiler`` for all graphs, as they are."""
        return cls(compiler, compiler, compiler, "default")


def adapt(
    fw_compiler: Backend | str,
    bw_compiler: Backend | None,
    inference_compiler: Backend | None,
    partition: Partition,
    decompositions: Decompositions | None,
) -> Compilers:
    """Compilers made of such as ``aot_autograd`` takes; ValueError for an unknown name of a compiler or a partition."""
    check_partition(partition)
    if fw_compiler == "inductor":
        fw_compiler = inductor_for("forward")
        bw_compiler = bw_compiler or inductor_for("backward")
        inference_compiler = inference_compiler or inductor_for("inference")
        chosen = inductor_decompositions() if decompositions is None else decompositions
        decompositions = {**chosen, **_UNSEEN_BY_INDUCTOR}
    if not callable(fw_compiler):
        raise ValueError(f'there is no compiler {fw_compiler!r}: give a function, or "inductor"')
    table = decompositions or {}
    return Compilers(
        forward=_adapted(fw_compiler, table),
        backward=_adapted(bw_compiler or fw_compiler, table),
        inference=_adapted(inference_compiler or fw_compiler, table),
        partition=partition,
    )


def _adapted(compiler: Backend, decompositions: Decompositions) -> Backend:
    """``compiler`` as one that decomposes the graph first, and whose callables take their inputs one by one."""

    @functools.wraps(compiler)
    def compile_graph(module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        if decompositions:
            module = decomposed(module, examples, decompositions)
        compiled: Any = compiler(module, examples)
        return _by_themselves(compiled) if callable(compiled) else compiled

    return compile_graph


def one_by_one(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """``compiled`` for inputs that are given one by one."""
    return (lambda *inputs: compiled(list(inputs))) if getattr(compiled, "_boxed_call", False) else compiled


def _by_themselves(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """``compiled`` with outputs that show no base; Dynamo does not look into it."""
    call = one_by_one(compiled)

    def run(*inputs: Any) -> Any:
        outputs = call(*inputs)
        return tuple(map(_by_itself, outputs)) if isinstance(outputs, tuple | list) else outputs

    return untraced(run)


def _by_itself(output: Any) -> Any:
    """``output``, which must show no base, although the compiled code may have made it as a view of its own memory."""
    if isinstance(output, torch.Tensor) and not output.is_inference() and output._base is not None:
        return output.detach()
    return output
