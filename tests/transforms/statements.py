"""What a program under transforms may say: views, smooth functions and writes, of float64 and of complex numbers.

Rows as in ``tests/programs/statements.py``; what raises on the tensors of an example is discarded.
"""

from __future__ import annotations

from torch import Tensor

from tests.programs.statements import Row, Scope

NUMBERS = ("0.5", "0.3", "-0.7", "2.0")
DOUBLE = "dtype=torch.float64"


def _number(scope: Scope) -> str:
    return scope.rng.choice(NUMBERS)


def _value(scope: Scope, tensor: Tensor) -> str:
    """A tensor that can be written into ``tensor``, mostly; or a number."""
    return _number(scope) if scope.rng.random() < 0.25 else scope.partner(tensor)


def _unbind(scope: Scope, name: str, tensor: Tensor) -> str:
    dim = scope.dim(tensor)
    return f"{name}.unbind({dim})[{scope.index(tensor, dim)}]"


def _pieces(scope: Scope, name: str, tensor: Tensor) -> str:
    how = scope.rng.choice(("split", "chunk", "tensor_split"))
    return f"{name}.{how}({scope.rng.randint(1, 2)}, {scope.dim(tensor)})[{scope.rng.choice((0, -1))}]"


def _unfold(scope: Scope, name: str, tensor: Tensor) -> str:
    dim = scope.dim(tensor)
    return f"{name}.unfold({dim}, {min(2, tensor.size(dim))}, {scope.rng.randint(1, 2)})"


def _expand(scope: Scope, name: str, tensor: Tensor) -> str:
    sizes = [scope.rng.randint(2, 3) if size == 1 else -1 for size in tensor.shape]
    front = [2] if scope.rng.random() < 0.4 or 1 not in tensor.shape else []
    return f"{name}.expand({', '.join(map(str, front + sizes))})"


def _diagonal(scope: Scope, name: str, tensor: Tensor) -> str:
    first, second = scope.rng.sample(range(tensor.dim()), 2)
    return f"{name}.diagonal({scope.rng.choice((0, 0, 1, -1))}, {first}, {second})"


def _real(scope: Scope, name: str, tensor: Tensor) -> str:
    if tensor.is_complex():
        return scope.rng.choice((f"torch.view_as_real({name})", f"torch.view_as_real({name})", f"{name}.real"))
    return f"torch.view_as_complex({name})"


def _complex(scope: Scope, name: str, tensor: Tensor) -> str:
    return f"torch.complex({name}, {scope.twin(tensor)})"


def _zeros(scope: Scope, name: str, tensor: Tensor) -> str:
    """Zeros that no transform knows of, of the sizes of a tensor."""
    how = (f"torch.zeros({tuple(tensor.shape)}, {DOUBLE})", f"torch.zeros_like({name})", f"{name}.new_zeros({{}})")
    return scope.rng.choice(how).format(scope.rng.choice((str(tuple(tensor.shape)), "(2, 3)", "(3,)")))


def _scatter(scope: Scope, name: str, tensor: Tensor) -> str:
    """Computed values scattered to distinct places: elements of other rows, at one index of ``dim``."""
    dim = scope.rng.randrange(tensor.dim())
    sizes = tuple(1 if d == dim else size for d, size in enumerate(tensor.shape))
    index = f"torch.full({sizes}, {scope.index(tensor, dim)})"
    return f"{name}.scatter_({dim}, {index}, {name}.narrow({dim}, 0, 1).cos())"


VIEWS: tuple[Row, ...] = (
    lambda s, x, t: f"{x}[{s.index(t, 0)}]",
    lambda s, x, t: f"{x}.select({(d := s.dim(t))}, {s.index(t, d)})",
    lambda s, x, t: f"{x}[{s.slices(t)}]",
    lambda s, x, t: f"{x}[{s.slice(t.size(0))}]",
    lambda s, x, t: f"{x}[{s.last_slice(t)}]",
    lambda s, x, t: f"{x}[{s.rng.choice(('::2', '1::2', '..., ::2', '..., 1::2'))}]",
    _diagonal,
    _diagonal,
    lambda s, x, t: f"{x}.view(-1)",
    lambda s, x, t: f"{x}.view(-1)",
    lambda s, x, t: f"{x}.view({s.shape(t)})",
    lambda s, x, t: f"{x}.view({s.shape(t)})",
    lambda s, x, t: f"{x}.reshape({s.shape(t)})",
    _unbind,
    _unbind,
    _pieces,
    _unfold,
    _expand,
    lambda s, x, t: f"{x}.t()",
    lambda s, x, t: f"{x}.transpose({s.dim(t)}, {s.dim(t)})",
    lambda s, x, t: f"{x}.permute({s.order(t)})",
    lambda s, x, t: f"{x}.unsqueeze({s.rng.randint(0, t.dim())})",
    lambda s, x, t: f"{x}.squeeze()",
    _real,
    _real,
)

VALUES: tuple[Row, ...] = (
    lambda s, x, t: f"{x}.sin()",
    lambda s, x, t: f"{x}.tanh()",
    lambda s, x, t: f"{x}.sin().exp()",
    lambda s, x, t: f"{x} * {s.partner(t)}",
    lambda s, x, t: f"{x} + {s.partner(t)}",
    lambda s, x, t: f"{x} - {s.twin(t)}",
    lambda s, x, t: f"{x} * {_number(s)}",
    lambda s, x, t: f"{x}.clone()",
    lambda s, x, t: f"{x}.sum({s.dim(t)})",
    lambda s, x, t: f"{x}.sum()",
    lambda s, x, t: f"{x}.cumsum({s.dim(t)})",
    lambda s, x, t: f"{x} @ {x}.transpose(-1, -2)",
    lambda s, x, t: f"torch.cat([{x}, {s.twin(t)}], {s.dim(t)})",
    lambda s, x, t: f"torch.where({x} > {_number(s)}, {x}, {x}.sin())",
    lambda s, x, t: f"{x}.flip({s.dim(t)})",
    lambda s, x, t: f"{x}[{s.indices(t, 0)}]",
    _complex,
    _complex,
    _zeros,
    _zeros,
    _zeros,
)

WRITES: tuple[Row, ...] = (
    lambda s, x, t: f"{x}.add_({_value(s, t)})",
    lambda s, x, t: f"{x}.mul_({_value(s, t)})",
    lambda s, x, t: f"{x} += {_value(s, t)}",
    lambda s, x, t: f"{x}.copy_({s.twin(t)})",
    lambda s, x, t: f"{x}.copy_({s.partner(t)})",
    lambda s, x, t: f"{x}.copy_({s.twin(t)}.sin())",
    lambda s, x, t: f"{x}.sin_()",
    lambda s, x, t: f"{x}.tanh_()",
    lambda s, x, t: f"{x}.neg_()",
    lambda s, x, t: f"{x}.fill_({_number(s)})",
    lambda s, x, t: f"{x}[{s.index(t, 0)}] = {_value(s, t[0])}",
    lambda s, x, t: f"{x}[{s.slices(t)}] = {_number(s)}",
    lambda s, x, t: f"{x}[{s.slice(t.size(0))}] = {s.partner(t[0])}",
    lambda s, x, t: f"{x}[{s.slices(t)}] *= {_number(s)}",
    lambda s, x, t: f"{x}[{s.slices(t)}] += {x}.sum()",
    lambda s, x, t: f"{x}[{s.indices(t, 0)}] = {_value(s, t[0])}",
    lambda s, x, t: f"{x}.index_put_(({s.indices(t, 0)},), {s.any()}.sum(), accumulate={s.rng.random() < 0.5})",
    lambda s, x, t: f"{x}.index_copy_({(d := s.dim(t))}, torch.tensor([{s.index(t, d)}]), {x}.narrow({d}, 0, 1).sin())",
    lambda s, x, t: f"{x}.index_add_({(d := s.dim(t))}, torch.tensor([{s.index(t, d)}]), {x}.narrow({d}, 0, 1).sin())",
    lambda s, x, t: f"{x}.masked_fill_({x} > {_number(s)}, {_number(s)})",
    lambda s, x, t: f"{x}.masked_fill_({s.twin(t)} > 0, {_number(s)})",
    lambda s, x, t: f"{x}.scatter_({s.dim(t)}, torch.zeros({(1,) * t.dim()}, dtype=torch.int64), {_number(s)})",
    _scatter,
    lambda s, x, t: f"torch.mul({s.twin(t)}, {s.twin(t)}, out={x})",
    lambda s, x, t: f"torch.sin({s.twin(t)}, out={x})",
    lambda s, x, t: f"{x}.fill_diagonal_({_number(s)})",
)


def _inside(text: str) -> Row:
    """A statement about a tensor that is no argument: of those, autograd's state is the caller's too."""
    return lambda scope, name, tensor: text.format(name) if name.startswith("v") else ""


TOLD_VALUES: tuple[Row, ...] = (
    lambda s, x, t: f"{x}.detach()",
    lambda s, x, t: f"{x}.data.sin()",
    lambda s, x, t: f"Square.apply({x})",
    lambda s, x, t: f"Square.apply({x} * 1)",
    lambda s, x, t: f"View.apply({x})",
)
"""Gradients that a program tells itself; those functions have no derivative in forward mode."""

TOLD_WRITES: tuple[Row, ...] = (
    _inside("{}.detach_()"),
    _inside("{0}.register_hook(torch.sin) if {0}.requires_grad else None"),
)

DRAWN_VALUES: tuple[Row, ...] = (
    lambda s, x, t: f"torch.rand({tuple(t.shape)}, {DOUBLE})",
    lambda s, x, t: f"torch.randn_like({x})",
    lambda s, x, t: f"torch.nn.functional.dropout({x}, 0.5)",
    lambda s, x, t: f"torch.bernoulli(torch.rand({tuple(t.shape)}, {DOUBLE}))",
)
"""Random numbers."""

DRAWN_WRITES: tuple[Row, ...] = (
    lambda s, x, t: f"{x}.uniform_()",
    lambda s, x, t: f"{x}.normal_()",
    lambda s, x, t: f"{x}.bernoulli_(0.5)",
)
