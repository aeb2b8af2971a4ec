"""Roundings of f32 to even by additions, for llvm-cpu.

Symptom: a quantization takes twice as long as its arithmetic needs.
Cause: IREE expands ``math.roundeven`` to 40 instructions, although x86 and Arm have one.
Test: none: results are the same.

The unit in the last place of ``2**23 + a`` is 1 for ``0 <= a < 2**23``, so the addition rounds
``a`` half to even, and subtracting ``2**23`` is exact. Greater magnitudes, infinities and NaN are
integers or stay as they are. The sign bit is the operand's: -0.25 becomes -0.

The magnitude stands between a product and the addition: LLVM would fuse ``x * y + 2**23`` into one
operation, which does not round the product.

Source: StableHLO specification, ``round_nearest_even``: roundToIntegralTiesToEven of IEEE-754.
"""

from __future__ import annotations

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...emit import ArrayLike, scalar, tensor
from ...numerics.array_functions import bits_of
from ...numerics.element_types import F32, I32
from ..base import NoMatch, Replacement

ROUNDINGS = ("math.roundeven", "stablehlo.round_nearest_even")
_INTEGRAL = float(1 << 23)
"""f32 numbers from this one on are integers."""
_SIGN_BIT = -(1 << 31)


def round_by_addition(op: Operation) -> Replacement:
    """Rewrite a rounding of tensors, or of scalars in a body; NoMatch for other types than f32."""
    type_ = op.results[0].type
    is_tensor = isinstance(type_, ir.RankedTensorType)
    if not isinstance(element_type(type_), ir.F32Type) or isinstance(type_, ir.VectorType):
        return NoMatch("is no rounding of f32")
    x: ArrayLike = (tensor if is_tensor else scalar)(op.operands[0])
    magnitude = np.abs(x)
    rounded = (magnitude + _INTEGRAL) - _INTEGRAL
    rounded = np.where(magnitude < _INTEGRAL, rounded, magnitude)
    result: Value = bits_of(bits_of(rounded, I32) | (bits_of(x, I32) & _SIGN_BIT), F32).value
    return result
