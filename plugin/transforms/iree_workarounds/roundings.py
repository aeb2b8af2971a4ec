"""Roundings of f32 to even by additions, for llvm-cpu.

Symptom: a quantization takes twice as long as its arithmetic needs.
Cause: IREE expands ``math.roundeven`` to 40 instructions, although x86 and Arm have one.
Test: none: results are the same.

Source: StableHLO specification, ``round_nearest_even``: roundToIntegralTiesToEven of IEEE-754.
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...emit import tensor_or_scalar
from ...numerics.array_functions import rounded_by_addition
from ..base import NoMatch, Replacement

ROUNDINGS = ("math.roundeven", "stablehlo.round_nearest_even")


def round_by_addition(op: Operation) -> Replacement:
    """Rewrite a rounding of tensors, or of scalars in a body; NoMatch for other types than f32."""
    type_ = op.results[0].type
    if not isinstance(element_type(type_), ir.F32Type) or isinstance(type_, ir.VectorType):
        return NoMatch("is no rounding of f32")
    result: Value = rounded_by_addition(tensor_or_scalar(op.operands[0])).value
    return result
