"""What is taken from private modules as it is."""

from __future__ import annotations

import torch.utils._pytree as pytree  # the flattening that torch.compile and transformers register types with
from functorch.compile import (  # type: ignore[import-untyped]  # public, and without types
    min_cut_rematerialization_partition as min_cut_partition,
)
from torch._dynamo.source import ConstantSource  # names a size symbol; the symbol factory asks for a source
from torch._ops import HigherOrderOperator, OpOverload  # the types of operators; no public spelling
from torch._subclasses.fake_tensor import (  # fake tensors have no public constructor
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
    free_unbacked_symbols,
)
from torch.fx.passes.fake_tensor_prop import FakeTensorProp  # gives nodes the fake values that partitioners read
from torch.utils._python_dispatch import TorchDispatchMode  # the documented way to see operators
from torch.utils._sympy.interp import sympy_interp  # lowers a size expression to graph nodes
from torch.utils._sympy.printers import PythonPrinter  # prints a size expression as Python
from torch.utils._sympy.reference import PythonReferenceAnalysis


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its __init_subclass__ untyped
    """A dispatch mode that is not wrapped once more to keep Dynamo out of each operator: Dynamo is away already."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


__all__ = [
    "ConstantSource",
    "DataDependentOutputException",
    "DimDynamic",
    "DispatchMode",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "FakeTensorProp",
    "GuardOnDataDependentSymNode",
    "HigherOrderOperator",
    "OpOverload",
    "PythonPrinter",
    "PythonReferenceAnalysis",
    "ShapeEnv",
    "StatelessSymbolicContext",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
    "free_unbacked_symbols",
    "min_cut_partition",
    "pytree",
    "sympy_interp",
]
