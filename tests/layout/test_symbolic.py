"""Real symbolic sizes: questions are decided, and no size is fixed to a number on the way."""

from __future__ import annotations

from typing import cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from purefx.layout import (
    Chain,
    Diagonal,
    Expand,
    Geometry,
    Join,
    Permute,
    Piece,
    Rest,
    Select,
    Slice,
    Step,
    Unsqueeze,
    View,
    assemble,
    box_of,
    compose,
    covers,
    has_internal_overlap,
    holds,
    identity,
    is_symbolic,
    overlaps,
    reify,
)
from tests.layout.test_steps import geometry_of, run


class Matrix:
    """A fake 6 by 4 tensor whose sizes are symbols, and the guards on them."""

    def __init__(self, *sizes: int) -> None:
        self.env = ShapeEnv()
        every = [DimDynamic.DYNAMIC] * len(sizes or (6, 4))
        dynamic: StatelessSymbolicContext[..., None] = StatelessSymbolicContext(dynamic_sizes=every)
        self.mode = FakeTensorMode(shape_env=self.env)
        self.fake = self.mode.from_tensor(torch.zeros(sizes or (6, 4)), symbolic_context=dynamic)
        self.geometry = geometry_of(self.fake)

    def view(self, *chain: Step) -> Geometry:
        """The geometry that PyTorch gives the view."""
        x: torch.Tensor = self.fake
        with self.mode:
            for step in chain:
                x = run(step, x)
        return geometry_of(x)

    def assert_general(self) -> None:
        """No symbol has been replaced by a number or by another symbol."""
        assert not self.env.replacements
        assert not any(str(guard.expr).startswith("Eq(") for guard in self.env.guards)


CHAINS: tuple[Chain, ...] = (
    (), (Select(0, 1),), (Select(1, 0),), (Slice(0, 1),), (Slice(1, 1, 3),), (View((-1,)),),
    (Permute((1, 0)),),
    (Slice(0, 1, 5), Slice(1, 0, 2)), (Unsqueeze(1),), (Slice(0, 1), Permute((1, 0))), (Select(0, 1),
    Slice(0, 1)),
    (Slice(0, 0, 4, 2),), (Unsqueeze(0), Expand((3, -1, -1))),
)  # fmt: skip


def test_views_of_symbolic_sizes_are_found_as_pytorch_makes_them() -> None:
    for chain in CHAINS:
        matrix = Matrix()
        view = matrix.view(*chain)
        assert compose(matrix.geometry, chain) == view, chain
        found = reify(matrix.geometry, view)
        assert found is not None, chain
        assert len(found) <= len(chain)
        assert compose(matrix.geometry, found) == view
        assert covers(matrix.geometry, view)
        assert overlaps(matrix.geometry, view)
        matrix.assert_general()


def test_a_diagonal_of_symbolic_sizes_is_found() -> None:
    matrix = Matrix()
    view = matrix.view(Diagonal(0, 0, 1))
    found = reify(matrix.geometry, view)
    assert found is not None
    assert compose(matrix.geometry, found) == view


def test_equality_of_geometries_adds_no_guard() -> None:
    matrix = Matrix()
    assert matrix.geometry != Geometry.contiguous((6, 4))
    assert matrix.geometry == matrix.view()
    assert len({matrix.geometry, matrix.view(), matrix.view(Select(0, 0))}) == 2
    assert not matrix.env.guards


def test_rows_columns_and_blocks_of_a_symbolic_matrix_are_apart() -> None:
    matrix = Matrix()
    rows = [matrix.view(Select(0, row)) for row in range(3)]
    columns = [matrix.view(Select(1, column)) for column in range(3)]
    assert not overlaps(rows[0], rows[1])
    assert not overlaps(rows[0], rows[2], 4, 4)
    assert not overlaps(columns[0], columns[1])
    assert overlaps(rows[0], columns[1])
    upper_left = matrix.view(Slice(0, 0, 2), Slice(1, 0, 2))
    upper_right = matrix.view(Slice(0, 0, 2), Slice(1, 2, 4))
    lower_right = matrix.view(Slice(0, 1, 3), Slice(1, 2, 4))
    assert not overlaps(upper_left, upper_right)
    assert not overlaps(upper_left, lower_right)
    assert overlaps(upper_right, lower_right)
    assert not covers(upper_left, upper_right)
    matrix.assert_general()


def test_even_and_odd_rows_of_a_symbolic_matrix_are_apart() -> None:
    matrix = Matrix()
    even, odd = matrix.view(Slice(0, 0, 6, 2)), matrix.view(Slice(0, 1, 6, 2))
    assert not overlaps(even, odd)


def test_internal_overlap_of_symbolic_sizes() -> None:
    matrix = Matrix()
    assert not has_internal_overlap(matrix.geometry)
    assert not has_internal_overlap(matrix.view(Permute((1, 0))))
    assert has_internal_overlap(matrix.view(Unsqueeze(0), Expand((3, -1, -1))))
    matrix.assert_general()


def test_a_symbolic_matrix_is_contiguous_and_dense() -> None:
    matrix = Matrix()
    assert matrix.geometry.is_contiguous
    assert matrix.view(Permute((1, 0))).is_dense
    assert not matrix.view(Permute((1, 0))).is_contiguous
    assert not matrix.view(Slice(1, 1)).is_dense
    matrix.assert_general()


def test_boxes_of_a_symbolic_matrix_are_assembled() -> None:
    matrix = Matrix()
    sizes = matrix.geometry.sizes
    boxes = [box_of(matrix.geometry, matrix.view(Select(0, row))) for row in (2, 0)]
    assert boxes[0] is not None
    assert boxes[1] is not None
    part = assemble(sizes, [boxes[0], boxes[1]])
    match part:
        case Join(0, (Piece(1), Rest(((1, 2), _)), Piece(0), Rest(((3, stop), _)))):
            assert identity(stop) == identity(sizes[0])
        case _:
            raise AssertionError(part)
    matrix.assert_general()


def test_a_condition_on_symbols_is_guarded_when_it_has_a_hint_and_false_when_it_has_none() -> None:
    matrix = Matrix()
    size = matrix.geometry.sizes[0]
    assert is_symbolic(size)
    assert holds(size > 3)
    assert len(matrix.env.guards) == 1
    unknown = matrix.env.create_unbacked_symint()
    assert not holds(unknown > 3)
    assert not holds(unknown <= 3)


def test_three_symbolic_dimensions() -> None:
    cube = Matrix(5, 6, 7)
    for chain in ((View((-1,)),), (Permute((2, 0, 1)),), (Select(1, 2),), (Slice(1, 1), Select(0, 0))):
        view = cube.view(*chain)
        found = reify(cube.geometry, view)
        assert found is not None, chain
        assert compose(cube.geometry, found) == view
    flat = cube.view(View((-1, cube.geometry.sizes[2])))
    assert reify(cube.geometry, flat) == (View(flat.sizes),)
    cube.assert_general()


def test_the_last_row_and_the_others_are_apart() -> None:
    matrix = Matrix()
    others, last = matrix.view(Slice(0, 0, -1)), matrix.view(Select(0, -1), Slice(0, 1))
    assert not overlaps(others, last)
    found = reify(matrix.geometry, last)
    assert found is not None
    assert compose(matrix.geometry, found) == last
    matrix.assert_general()


def test_views_of_a_size_without_a_hint_are_found_where_they_do_not_depend_on_it() -> None:
    unknown = cast(int, ShapeEnv().create_unbacked_symint())
    base = Geometry.contiguous((unknown, 4, 6))
    for step in (Permute((1, 0, 2)), Select(1, 2), Slice(2, 1, 4), View((base.sizes[0], 24)), View((-1,))):
        view = step.apply(base)
        found = reify(base, view)
        assert found is not None
        assert compose(base, found) == view
        assert covers(base, view)
    assert not overlaps(Select(1, 2).apply(base), Select(1, 3).apply(base))
    assert reify(base, Select(0, 3).apply(base)) is None
