"""Integer contractions of differences with zero points, raised to the dialect's operations.

Integer contractions of ONNX and others subtract zero points in wider integers::

    %0 = stablehlo.convert %x : (tensor<4x8xi8>) -> tensor<4x8xi16>
    %1 = stablehlo.subtract %0, dense<3> : tensor<4x8xi16>
    %2 = stablehlo.pad %1, 0 ...

(TensorFlow Lite's importer pads storage with the zero point ``p``: that is ``x - p`` padded with 0,
and ``p`` times the sum of the weight.)

This is ``subquant.subtract_zero_point`` of a quantized tensor with the scale 1, whose storage
`subquant.transforms.quantization.math.zero_points` contracts. Unsigned integers are masked ones,
``stablehlo.and %0, dense<255>``. A difference may be reshaped: ONNX's convolutions along one axis
are those of images of one row. A constant weight of a convolution stays in 16 bits if it does not
fit 8: kernels take it as the sum of two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ....core._mlir import Operation, Value, ir, stablehlo
from ....dialects.dense import CONSTANTS, array_of_dense, known_integer
from ....dialects.windows import window_padding
from ....emit import stablehlo as emit_stablehlo
from ....emit.operation import dense, mlir_type, value, with_element
from ....numerics.element_types import I8, I16, I32, Array
from ...base import producer_named, producer_of
from .contraction import Contraction

_LOW, _HIGH = -128, 127
"""The range of i8."""


def raise_differences(op: Operation) -> tuple[Operation, Array | None] | None:
    """Rewrite a dot_general or convolution of wider integers on ``subquant.subtract_zero_point``.

    Returns:
        The new operation, and the correction to add to its result, for each feature, if one is
            needed;
        None if `op` is no contraction of differences of 8-bit integers in i32.
    """
    if [str(each.type.element_type) for each in op.results] != ["i32"]:
        return None
    left, right = op.operands
    changed: dict[str, ir.Attribute] = {}
    padding, correction = 0, None
    is_window = "convolution" in op.name
    w = _difference(right, is_wide=is_window)
    if is_window:
        left, padding, changed = _without_pad(op, left)
    x = _difference(left)
    if x is None or w is None:
        return None
    if padding:
        # x padded with p is x - p padded with 0, and p.
        low, high = (_LOW, _HIGH) if x.signed else (0, 255)
        if not isinstance(w.stored, ir.DenseElementsAttr) or not low <= x.zero + padding <= high:
            return None
        numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        features = numbers.kernel_output_feature_dimension
        weights = array_of_dense(w.stored).astype(np.int64) - w.zero
        summed = tuple(axis for axis in range(weights.ndim) if axis != features)
        correction = weights.sum(axis=summed) * padding
        x = replace(x, zero=x.zero + padding)
    result = Contraction.of(op).create(x.emit(), w.emit(), mlir_type(I32), changed)
    return result.owner.operation, correction


def _without_pad(op: Operation, operand: Value) -> tuple[Value, int, dict[str, ir.Attribute]]:
    """Move a pad along spatial axes into the window: its operand, its value, the new attributes."""
    pad = producer_named(operand, "stablehlo.pad")
    if pad is None:
        return operand, 0, {}
    pad_value = known_integer(pad.operands[1])
    has_padding = window_padding(op, pad.results[0].type.rank - 2).any()
    if pad_value is None or (pad_value and has_padding):
        return operand, 0, {}
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = list(numbers.input_spatial_dimensions)
    low, high, interior = (
        np.array(pad.attributes[name])
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    not_spatial = [axis for axis in range(low.size) if axis not in spatial]
    if interior.any() or low[not_spatial].any() or high[not_spatial].any():
        return operand, 0, {}
    padding = window_padding(op, len(spatial)) + np.stack([low, high], 1)[spatial]
    i64 = ir.IntegerType.get_signless(64)
    return pad.operands[0], pad_value, {"padding": dense(padding.astype(np.int64), i64)}


@dataclass(frozen=True)
class _Difference:
    """8-bit integers, a value or a constant, with a zero point to subtract.

    They are read as signed or unsigned; `shape` is the shape of a reshaped difference.
    """

    stored: Value | ir.DenseElementsAttr
    zero: int
    signed: bool = True
    shape: tuple[int, ...] = ()

    def emit(self) -> Value:
        """Write ``subquant.subtract_zero_point``."""
        stored = self.stored
        if isinstance(stored, ir.DenseElementsAttr):
            stored = emit_stablehlo.constant_of(stored)
        elif self.shape:
            stored = emit_stablehlo.reshape(stored, self.shape)
        storage = f"{'i' if self.signed else 'u'}{stored.type.element_type.width}"
        quantized = ir.Type.parse(f"!quant.uniform<{storage}:f32, 1.0:{self.zero}>")
        cast = value("subquant.scast", [stored], with_element(stored.type, quantized))
        wide = with_element(stored.type, mlir_type(I32))
        return value("subquant.subtract_zero_point", [cast], wide)


def _difference(difference: Value, *, is_wide: bool = False) -> _Difference | None:
    """Match 8-bit integers and a zero point to subtract; None for wider, or computed zero points.

    With `is_wide`, constants whose zero point is not 0 stay in 16 bits.
    """
    owner = producer_of(difference)
    if owner is None:
        return None
    if owner.name in CONSTANTS:
        return _constant_difference(owner, is_wide=is_wide)
    if owner.name == "stablehlo.reshape" and owner.results[0].type.has_static_shape:
        before = _difference(owner.operands[0], is_wide=is_wide)
        if before is None or isinstance(before.stored, ir.DenseElementsAttr):
            return None
        return replace(before, shape=tuple(int(n) for n in owner.results[0].type.shape))
    zero, signed = 0, True
    if owner.name == "stablehlo.subtract":
        zero_point = known_integer(owner.operands[1])
        owner = producer_of(owner.operands[0])
        if zero_point is None or owner is None:
            return None
        zero = zero_point
    if owner.name == "stablehlo.and" and known_integer(owner.operands[1]) == 255:
        owner, signed = producer_of(owner.operands[0]), False
    if owner is None or owner.name != "stablehlo.convert":
        return None
    stored = owner.operands[0]
    low, high = (_LOW, _HIGH) if signed else (0, 255)
    if stored.type.element_type != mlir_type(I8) or not low <= zero <= high:
        return None
    return _Difference(stored, zero, signed)


def _constant_difference(constant: Operation, *, is_wide: bool) -> _Difference | None:
    """Constant integers as 8-bit integers and a zero point; None for ranges of over 8 bits."""
    attribute = constant.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr):
        return None
    array = array_of_dense(attribute)
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    least, most = max(_LOW, _LOW - low), min(_HIGH, _HIGH - high)
    if least > most:
        return None
    zero = min(max(0, least), most)
    if zero and is_wide:
        return _Difference(dense(array.astype(np.int16), mlir_type(I16)), 0)
    return _Difference(dense((array + zero).astype(np.int8), mlir_type(I8)), zero)
