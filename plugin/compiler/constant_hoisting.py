"""Choice whether IREE computes constant expressions once, before the first call of a program.

IREE hoists operations on constants and immutable globals into initializers. In a language model
kernels read all weights as they are, and IREE hoists broadcasts of the weights of norms only:
without the analysis its compiler takes 20 % less CPU time for Gemma 3 270M and 6 % less for SmolLM2
135M (`docs/performance/compile-time.md`), and a token takes as long.
"""

from __future__ import annotations

import math

from ..core._mlir import Value, ir
from ..dialects.dense import constant_attribute
from ..transforms.base import walk

_MAX_SHARE = 0.001
"""The share of constant elements that operations other than kernels read, without hoisting."""
_DISPATCH = "flow.dispatch"


def hoists_constants(module: ir.Module) -> bool:
    """Return False if almost all constant elements that a program reads are read by kernels.

    True without such kernels: IREE 3.13 crashes on a product with K = 0 if it hoists nothing.

    Elements are counted where an operation reads them: those of constants, of globals and of
    results that are computed from nothing else. A constant of one repeated element has none; what
    has no static shape is not counted.
    """
    constants: dict[Value, int] = {}
    by_kernels = by_others = 0
    for op in walk(module.operation, in_kernels=False):
        operation = op.operation
        operands = list(operation.operands)
        elements = sum(constants.get(operand, 0) for operand in operands)
        if operation.name == _DISPATCH:
            by_kernels += elements
            continue
        by_others += elements
        if all(operand in constants for operand in operands):
            constants.update((result, _elements(result)) for result in operation.results)
    return not by_kernels or by_others > _MAX_SHARE * by_kernels


def _elements(result: Value) -> int:
    """Return the number of elements of a constant; 0 for a scalar or a repeated element."""
    type_, attribute = result.type, constant_attribute(result)
    is_tensor = isinstance(type_, ir.RankedTensorType) and type_.has_static_shape
    if not is_tensor or (attribute is not None and attribute.is_splat):
        return 0
    return math.prod(type_.shape)
