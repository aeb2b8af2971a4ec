"""Functions of arrays, written as MLIR modules.

A `TracedArray` is a `TracedValue` tensor with NumPy's type promotion, broadcasting and shape
functions. So one function runs on arrays, and `trace` writes it as a module. Shapes are static. A
function without a translation raises `UnsupportedError` with its name.

IREE computes a product and a sum after it with one rounding where NumPy has two: a result differs
by at most half a unit in the last place of the product. Everything else is the same to the bit,
sums of floats aside, whose order is the compiler's.

Unsigned integers are signless in the module: StableHLO's unsigned types do not reach every device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..core._mlir import Value, ir
from ..dialects import create_context
from ..numerics.element_types import AnyArray, ElementType
from . import traced_functions  # noqa: F401 - registers the translations
from .functions import write_function
from .operation import mlir_type, tensor_type
from .traced_arrays import TracedArray, traced, traced_array

__all__ = ["TracedArray", "trace", "traced"]


def trace(
    function: Callable[..., AnyArray], arguments: Sequence[tuple[Sequence[int], npt.DTypeLike]]
) -> ir.Module:
    """Write a function of arrays as ``main`` of a module in its own context, of signless integers.

    Raises:
        UnsupportedError: an operation of the function has no translation.
    """
    elements = [ElementType.of_dtype(np.dtype(dtype)) for _, dtype in arguments]
    with create_context(), ir.Location.unknown():
        module = ir.Module.create()
        types = [
            tensor_type(shape, mlir_type(element))
            for (shape, _), element in zip(arguments, elements, strict=True)
        ]

        def body(values: Sequence[Value]) -> list[Value]:
            results = function(*map(traced, values, elements))
            outputs = list(results) if isinstance(results, (tuple, list)) else [results]
            return [traced_array(output).value for output in outputs]

        with ir.InsertionPoint(module.body):
            write_function("main", types, body)
        module.operation.verify()
        return module
