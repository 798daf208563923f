"""Programs that change geometry, storage or autograd's state, for the comparison with PyTorch's analysis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._library.effects import EffectType
from torch.autograd import Function
from torch.func import grad, jacfwd, jvp, vmap

from tests.analysis.case import Case, adding_to, leaf, live, plain

CASES: list[Case] = []
program = adding_to(CASES)


# ------------------------------------------------------------------------------------------------------ geometry
@program("metadata-input", lambda: (plain(2, 3),))
def transposes(x: Tensor) -> Any:
    x.t_()
    return x, x[0]


@program("metadata-input", lambda: (plain(2, 3),))
def transposes_there_and_back(x: Tensor) -> Any:
    x.t_()
    x.t_()
    return x[0]


@program("metadata-input", lambda: (live(2, 3),))
def transposes_and_writes(x: Tensor) -> Any:
    x.transpose_(0, 1)
    x[0].mul_(2)
    return x * 1


@program("metadata-input", lambda: (plain(3, 1, 2), plain(9)))
def squeezes_and_restrides(x: Tensor, y: Tensor) -> Any:
    x.squeeze_(1)
    y.as_strided_((2, 2), (1, 2), 1)
    return x.unsqueeze(0), y * 2


@program("metadata-mid", lambda: (leaf(2, 4),))
def transposes_and_detaches_an_intermediate(w: Tensor) -> Any:
    y = w * 3
    y.t_()
    y.detach_()
    return y, w + 1


@program("resize", lambda: (plain(2, 2),))
def shrinks(x: Tensor) -> Any:
    x.resize_(2, 1)
    return x * 1


@program("strides", lambda: (leaf(2, 3, 4, 4).to(memory_format=torch.channels_last).detach().requires_grad_(),))
def keeps_strides(w: Tensor) -> Any:
    return w + 1, w.contiguous(), (w * 2).mul_(3)


# ------------------------------------------------------------------------------------------------------- storage
@program("set", lambda: (plain(2), plain(3)))
def takes_over_a_storage(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        torch.ops.aten.set_.source_Tensor(x, y)
    return x * 1


@program("set", lambda: (plain(3),))
def sets_an_intermediate(x: Tensor) -> Any:
    y = x * 2
    z = torch.empty(0)
    with torch.no_grad():
        torch.ops.aten.set_.source_Tensor(z, y[1:])
    return z


@program("storage", lambda: (plain(2), plain(2)))
def swaps_data(x: Tensor, y: Tensor) -> Any:
    x.data = y
    return x * 1


@program("storage", lambda: (plain(2), plain(2)))
def swaps_data_and_writes(x: Tensor, y: Tensor) -> Any:
    x.data = y
    x.add_(1)
    return x * 1


@program("storage", lambda: (plain(4),))
def narrows_data(x: Tensor) -> Any:
    x.data = x.data[:2]
    return x + 1


@program("storage", lambda: (plain(2, 2),))
def swaps_data_there_and_back(x: Tensor) -> Any:
    home = x.data
    x.data = torch.ones(4)
    away = x.view(2, 2)
    x.data = home
    return away


@program("storage", lambda: (plain(2, 2),))
def frees_storage(x: Tensor) -> Any:
    torch.ops.inductor.resize_storage_bytes_(x, 0)
    return x.shape[0]


# --------------------------------------------------------------------------------------------------- grad modes
@program("grad-mode", lambda: (leaf(2),))
def leaves_grad_off(w: Tensor) -> Any:
    y = w * 2
    torch.set_grad_enabled(False)
    return y, w * 3


@program("grad-mode", lambda: (leaf(2),))
def switches_grad_off_and_on(w: Tensor) -> Any:
    torch.set_grad_enabled(False)
    y = w * 2
    torch.set_grad_enabled(True)
    return y, w * 3


@program("grad-mode", lambda: (leaf(2, 2),))
def writes_an_intermediate_under_no_grad(w: Tensor) -> Any:
    y = w + 2
    with torch.no_grad():
        y.add_(2)
    return w * 2 + y


@program("requires-grad", lambda: (leaf(3, 4), plain(3, 4)))
def returns_values_and_indices(w: Tensor, x: Tensor) -> Any:
    values, indices = w.max(dim=1)
    return values, indices, x.cos()


@program("requires-grad", lambda: (leaf(3),))
def returns_a_leaf_of_its_own(w: Tensor) -> Any:
    own = torch.ones(3, requires_grad=True)
    return w * own, own


@program("metadata-grad", lambda: (plain(3, 3),))
def makes_a_view_require_grad(x: Tensor) -> Any:
    flat = x.view(-1)
    flat.requires_grad_()
    return flat * 2


@program("inference-mode", lambda: (plain(2, 2),))
def computes_in_inference_mode(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y, x * 1


# ----------------------------------------------------------------------------------- custom autograd functions
class Flat(Function):
    """A view of its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """See the class."""
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """See the class."""
        return gradients[0].view(2, 2) * 3


class Doubled(Function):
    """Its argument, written in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """See the class."""
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """See the class."""
        return gradients[0] * 2


class Sorted(Function):
    """Values, and indices that nobody differentiates."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """See the class."""
        values, indices = x.sort()
        ranks = indices * 1.0
        ctx.mark_non_differentiable(ranks)
        ctx.save_for_backward(indices)
        return values, ranks

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """See the class."""
        return torch.zeros_like(gradients[0]).scatter(0, ctx.saved_tensors[0], gradients[0])


@program("custom-function", lambda: (leaf(2, 2),))
def applies_a_view_function(w: Tensor) -> Any:
    return Flat.apply(w)


@program("custom-function", lambda: (leaf(3),))
def applies_a_dirty_function(w: Tensor) -> Any:
    y = w * 1
    return Doubled.apply(y), y


@program("custom-function", lambda: (plain(3), leaf(3)))
def applies_a_dirty_function_to_an_input(x: Tensor, w: Tensor) -> Any:
    x.mul_(w)
    return Doubled.apply(x)


@program("custom-function", lambda: (leaf(3),))
def applies_a_function_with_indices(w: Tensor) -> Any:
    return Sorted.apply(w)


@program("inner-grad", lambda: (leaf(3),))
def differentiates_inside(w: Tensor) -> Any:
    return torch.autograd.grad((w**3).sum(), w, create_graph=True)


@program("hooks", lambda: (leaf(3),))
def registers_hooks(w: Tensor) -> Any:
    y = w * 2
    y.register_hook(lambda g: g * 10)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        return y * y.sin()


@program("checkpoint", lambda: (leaf(3),))
def checkpoints(w: Tensor) -> Any:
    return torch.utils.checkpoint.checkpoint(lambda x: x.sin().exp(), w, use_reentrant=False)


@program("autocast", lambda: (leaf(2, 3), leaf(3, 2)))
def casts_inside(x: Tensor, w: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
    return y.add_(1)


# --------------------------------------------------------------------------------- transforms and other operators
@program("vmap-of", lambda: (plain(2, 3),))
def maps_over_rows_that_are_written(x: Tensor) -> Any:
    return vmap(lambda row: row.mul_(2).sum())(x)


@program("grad-of", lambda: (plain(3),))
def takes_the_gradient_of_writes(x: Tensor) -> Any:
    return grad(lambda y: y.clone().mul_(y).sum())(x)


@program("jvp-of", lambda: (plain(3),))
def pushes_forward(x: Tensor) -> Any:
    return jvp(lambda y: y.clone().mul_(2), (x,), (torch.ones(3),))


@program("jacobian", lambda: (plain(3),))
def takes_a_jacobian(x: Tensor) -> Any:
    return jacfwd(lambda y: y.clone().mul_(y))(x)


@torch.library.custom_op("purefx_analysis::bump", mutates_args={"x"})
def bump(x: Tensor, by: Tensor) -> None:
    """Write to ``x``."""
    x.add_(by)


@program("custom-op", lambda: (plain(2, 3), plain(3)))
def calls_a_custom_operator(x: Tensor, by: Tensor) -> Any:
    bump(x[1], by)
    return x * 1


@torch.library.custom_op("purefx_analysis::log", mutates_args=())
def log(x: Tensor) -> None:
    """Do something that no tensor shows."""


log.register_fake(lambda x: None)
log.register_effect(EffectType.ORDERED)


@program("effects", lambda: (plain(2),))
def logs_twice(x: Tensor) -> Any:
    log(x)
    log(x + 1)
    return x * 2


@program("static", lambda: (torch.nn.Parameter(plain(2)), plain(2)))
def takes_a_parameter(w: Tensor, x: Tensor) -> Any:
    return w * x


@program("numbers", lambda: (plain(2), 3, 0.5))
def takes_numbers(x: Tensor, n: int, scale: float) -> Any:
    return x * n * scale, n + 1
