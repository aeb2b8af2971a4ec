"""Rules of operations that are linear in the expressed values: exact integers, requantized once.

A quantized value ``q`` of scale ``s`` and zero point ``z`` expresses ``s * (q - z)``; ``s3`` and
``z3`` are those of the result.

Source: StableHLO specification, "Quantization computations", and the operations' own sections.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ....core._mlir import Value
from ....dialects.grids import scale_grid, zero_point_grid
from ....emit import as_quantized, like, tensor
from ....emit.casts import Scaled, ScaledSum, requantize
from ....emit.operation import mlir_type, with_element
from ....numerics.element_types import I32, Array
from ....numerics.parameters import QuantizationParameters
from .rules import QuantizedOperation, lowers

__all__: list[str] = []


@lowers("stablehlo.add")
def add(op: QuantizedOperation) -> Value:
    """``s3 * (q3 - z3) = s1 * (q1 - z1) + s2 * (q2 - z2)``."""
    x, y = op.operands
    return op.nearest(x.real + y.real)


@lowers("stablehlo.subtract")
def subtract(op: QuantizedOperation) -> Value:
    """``s3 * (q3 - z3) = s1 * (q1 - z1) - s2 * (q2 - z2)``."""
    x, y = op.operands
    return op.nearest(x.real - y.real)


@lowers("stablehlo.negate")
def negate(op: QuantizedOperation) -> Value:
    """``s3 * (q3 - z3) = -s1 * (q1 - z1)``."""
    (x,) = op.operands
    return op.nearest(-x.real)


@lowers("stablehlo.abs")
def absolute(op: QuantizedOperation) -> Value:
    """``s3 * (q3 - z3) = s1 * |q1 - z1|``: scales are positive."""
    (x,) = op.operands
    return op.nearest(abs(x.real))


@lowers("stablehlo.multiply")
def multiply(op: QuantizedOperation) -> Value:
    """``s3 * (q3 - z3) = s1 * s2 * (q1 - z1) * (q2 - z2)``."""
    x, y = op.operands
    return op.nearest(x.real * y.real)


@lowers("stablehlo.sign")
def sign(op: QuantizedOperation) -> Value:
    """-1, 0 or 1 by the sign of ``q1 - z1``; each has one storage value in the result."""
    (x,) = op.operands
    difference = x.difference
    minus, zero, one = (_storage_of(number, op.target, x.rank) for number in (-1, 0, 1))
    storage = difference.form.known
    element = op.target.storage.element
    below, above = difference < 0, difference > 0
    positive = np.where(above, storage(one, element), storage(zero, element))
    return op.holding(np.where(below, storage(minus, element), positive))


def _storage_of(number: int, target: QuantizationParameters, rank: int) -> Array:
    """``clamp(round(number / s + z))``, exactly."""
    scales, zero_points = scale_grid(target, rank), zero_point_grid(target, rank)
    numbers = [
        round(number / Fraction(scale) + int(zero_point))
        for scale, zero_point in zip(scales.reshape(-1), zero_points.reshape(-1), strict=True)
    ]
    clamped = np.clip(np.array(numbers, object), target.storage.minimum, target.storage.maximum)
    return np.asarray(clamped, np.int64).reshape(scales.shape)


@lowers("stablehlo.iota", "stablehlo.dynamic_iota")
def iota(op: QuantizedOperation) -> Value:
    """``s * (q - z) = i``, the position along an axis."""
    type_ = op.op.results[0].type
    position = like(op.op, results=[with_element(type_, mlir_type(I32))]).results[0]
    axis = int(op.op.attributes["iota_dimension"].value)
    bound = (1 << 31) - 1 if type_.is_dynamic_dim(axis) else int(type_.shape[axis])
    total = ScaledSum((Scaled(tensor(position), bound, (np.array(1.0),)),))
    return as_quantized(requantize(total, op.target), type_)
