"""Fold arithmetic on constants, ahead of the patterns of dequantization.

PyTorch writes numbers as f64 or i64 scalars that are converted and broadcast, and Brevitas computes
quantized weights from float ones. Before::

    %c = arith.constant dense<1.275e+02> : tensor<1xf64>
    %0 = stablehlo.convert %c : (tensor<1xf64>) -> tensor<1xf32>
    %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>

After::

    %1 = stablehlo.constant dense<1.275e+02> : tensor<f32>
"""

from __future__ import annotations

import math

from ...core._mlir import Operation, ir
from ...dialects.dense import dense_of_array
from ...emit.constant_values import constant_elements, erase_unused
from ...emit.operation import backward_slice, value
from ...emit.parameters import ModuleGlobals
from ..base import named

_FOLDED = (
    *("stablehlo.add", "stablehlo.convert", "stablehlo.divide", "stablehlo.multiply"),
    *("stablehlo.reshape", "stablehlo.subtract"),
)

_BROADCAST = "stablehlo.broadcast_in_dim"
"""Broadcasts stay: a constant of equal elements looks like one parameter for each element."""

_MAX_ELEMENTS = 1 << 12
"""Elements of a folded result, at most: parameters, not weights."""

_MAX_STORAGE_BITS = 16
"""Bits of integers that ``raise-dequantization`` takes as quantized ones."""


def fold_constant_arithmetic(module: Operation) -> None:
    """Fold arithmetic on constants with small results."""
    module_globals = ModuleGlobals(module)
    for op in named(module, _FOLDED):
        type_ = op.results[0].type
        if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
            continue
        if math.prod(type_.shape) > _MAX_ELEMENTS:
            continue
        elements = constant_elements(op.results[0], module_globals)
        if elements is None or any(map(_is_left, backward_slice(op))):
            continue
        attribute = dense_of_array(elements, type_.element_type)
        with ir.InsertionPoint(op), op.location:
            folded = value("stablehlo.constant", [], type_, {"value": attribute})
        result = op.results[0]
        result.replace_all_uses_with(folded)
        erase_unused(result)


def _is_left(op: Operation) -> bool:
    """True for a broadcast, and for a conversion of integers that may be quantized weights."""
    if op.name != "stablehlo.convert":
        return bool(op.name == _BROADCAST)
    element = op.operands[0].type.element_type
    return isinstance(element, ir.IntegerType) and element.width <= _MAX_STORAGE_BITS
