"""Rules of comparisons and selections: on storage, in the result's parameters.

A change of parameters is monotone, so it may come first.

Source: StableHLO specification, the operations' own sections, and "dequantize_compare".
"""

from __future__ import annotations

import numpy as np

from ....core._mlir import Value
from ....emit import ArrayLike, as_quantized, like, tensor, value
from ....emit.operation import parse_attribute
from ....numerics.array_functions import convert
from ....numerics.element_types import I32, I64
from .operands import Operand
from .rules import QuantizedOperation, lowers

__all__: list[str] = []


@lowers("stablehlo.maximum", "stablehlo.minimum")
def extremum(op: QuantizedOperation) -> Value:
    """``q3 = max(q1, q2)`` or ``min(q1, q2)``, both in the result's parameters."""
    function = np.maximum if op.op.name == "stablehlo.maximum" else np.minimum
    return op.holding(function(*(_comparable(op, operand) for operand in op.operands)))


@lowers("stablehlo.clamp")
def clamp(op: QuantizedOperation) -> Value:
    """``q = min(max(x, low), high)``, the bounds of rank 0 or of the operand's shape."""
    operands = [_comparable(op, operand).value for operand in op.operands]
    return op.holding(tensor(value("stablehlo.clamp", operands, operands[1].type)))


def _comparable(op: QuantizedOperation, operand: Operand) -> ArrayLike:
    """Storage in the result's parameters, widened if it is unsigned."""
    storage = operand.in_parameters(op.target)
    target = op.target.storage
    if target.signed:
        return storage
    return convert(storage, I64 if target.width == 32 else I32)


@lowers("stablehlo.select")
def select(op: QuantizedOperation) -> Value:
    """``q3 = q1`` or ``q2``, in the result's parameters."""
    predicate = op.op.operands[0]
    chosen = [op.operand(number).in_parameters(op.target).value for number in (1, 2)]
    result = value("stablehlo.select", [predicate, *chosen], chosen[0].type)
    return as_quantized(result, op.op.results[0].type)


@lowers("stablehlo.compare")
def compare(op: QuantizedOperation) -> Value:
    """``q1 < q2`` if both have one scale and zero point, else ``x1 < x2`` of expressed values."""
    left, right = op.operands
    if left.parameters == right.parameters:
        kind, values = "SIGNED", [left.widened(), right.widened()]
    else:
        kind, values = "FLOAT", [op.dequantized(0), op.dequantized(1)]
    attributes = {"compare_type": parse_attribute(f"#stablehlo<comparison_type {kind}>")}
    return like(op.op, [v.value for v in values], attributes=attributes).results[0]
