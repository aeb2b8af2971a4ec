"""Choice whether IREE computes constant expressions once, before the first call of a program.

IREE hoists operations on constants and immutable globals into initializers. In a language model
kernels read all weights as they are, and IREE hoists broadcasts of the weights of norms only:
without the analysis its compiler takes 20 % less CPU time for Gemma 3 270M and 6 % less for SmolLM2
135M (`docs/performance/compile-time.md`), and a token takes as long.
"""

from __future__ import annotations

import math

from ..core._mlir import Operation, Value, ir
from ..transforms.base import walk

_MAX_SHARE = 0.001
"""The share of constant elements that operations other than kernels read, without hoisting."""
_DISPATCH = "flow.dispatch"
_CONSTANTS = ("stablehlo.constant", "arith.constant")


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
            constants.update((result, _elements(operation, result)) for result in operation.results)
    return not by_kernels or by_others > _MAX_SHARE * by_kernels


def _elements(op: Operation, result: Value) -> int:
    """Return the number of elements of a constant; 0 for one element or a repeated one."""
    type_ = result.type
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return 0
    if op.name in _CONSTANTS:
        attribute = op.attributes["value"]
        if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
            return 0
    return math.prod(type_.shape)
