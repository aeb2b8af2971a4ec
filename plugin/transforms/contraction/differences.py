"""Integer contractions of differences with zero points, raised to the dialect's operations.

Integer contractions of ONNX and others subtract zero points in wider integers::

    %0 = stablehlo.convert %x : (tensor<4x8xi8>) -> tensor<4x8xi16>
    %1 = stablehlo.subtract %0, dense<3> : tensor<4x8xi16>
    %2 = stablehlo.pad %1, 0 ...

(TensorFlow Lite's importer pads storage with the zero point ``p``: that is ``x - p`` padded with 0,
and ``p`` times the sum of the weight.)

This is ``subquant.subtract_zero_point`` of a quantized tensor with the scale 1, whose storage
`subquant.transforms.contraction.zero_points` contracts. Unsigned integers are masked ones,
``stablehlo.and %0, dense<255>``. Zero points of a matrix product may be computed (activations that
are quantized when they are computed): they are subtracted after the sum, times the sums of the
other operand (`_subtract_computed_zeros`).

A difference may be reshaped: ONNX's convolutions along one axis
are those of images of one row. A constant weight of a convolution stays in 16 bits if it does not
fit 8: kernels take it as the sum of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ...core._mlir import Operation, Value, ir, stablehlo
from ...dialects.dense import CONSTANTS, array_of_dense, constant_array, known_integer
from ...dialects.windows import pad_amounts, window_padding
from ...emit import ArrayLike, tensor
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import dense, mlir_type, value, with_element
from ...numerics.element_types import I8, I16, I32, AnyArray, Array
from ..base import NoMatch, producer_named, producer_of
from ..quantization.math.contraction import Contraction, Side

Correction: TypeAlias = Callable[[Value], Value]
"""Emits the corrected sums of a contraction."""

_LOW, _HIGH = -128, 127
"""The range of i8."""


def raise_differences(op: Operation) -> tuple[Operation, Correction] | None:
    """Rewrite a dot_general or convolution of wider integers on ``subquant.subtract_zero_point``.

    Returns:
        The new operation, and the function that corrects its result;
        None if `op` is no contraction of differences of 8-bit integers in i32.
    """
    if [str(each.type.element_type) for each in op.results] != ["i32"]:
        return None
    left, right = op.operands
    changed: dict[str, ir.Attribute] = {}
    padding = 0
    is_window = "convolution" in op.name
    w = _difference(right, is_wide=is_window)
    if is_window:
        left, padding, changed = _without_pad(op, left)
    x = _difference(left)
    if x is None or w is None:
        return None
    contraction = Contraction.of(op)
    correct: Correction = _unchanged
    x_zero, w_zero = _computed_zero(x, contraction.left), _computed_zero(w, contraction.right)
    if isinstance(x_zero, NoMatch) or isinstance(w_zero, NoMatch):
        return None
    has_computed_zeros = x_zero is not None or w_zero is not None
    if has_computed_zeros and (is_window or not op.results[0].type.has_static_shape):
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
        terms = weights.sum(axis=summed) * padding
        shape = [1] * op.results[0].type.rank
        shape[numbers.output_feature_dimension] = terms.size
        addend = terms.reshape(shape)

        def add_terms(total: Value) -> Value:
            corrected: ArrayLike = tensor(total) + addend
            return corrected.value

        correct = add_terms
        x = replace(x, zero=x.zero + padding)
    emitted = x.emit(), w.emit()
    result = contraction.create(*emitted, mlir_type(I32), changed)
    if has_computed_zeros:
        correct = _subtract_computed_zeros(contraction, (x, w), (x_zero, w_zero), emitted)
    return result.owner.operation, correct


def _unchanged(total: Value) -> Value:
    return total


@dataclass(frozen=True)
class _ComputedZero:
    """A computed zero point of an operand: integers, and the axes of the operand that they have."""

    value: Value
    axes: list[int]

    def spread(self, side: Side, result: ir.Type) -> AnyArray:
        """The zero point in the shape of a contraction's result."""
        wide = emit_stablehlo.convert(self.value, mlir_type(I32))
        sizes = [int(size) for size in self.value.type.shape]
        wide = emit_stablehlo.reshape(wide, [size for size in sizes if size != 1])
        axes = [side.to_result[axis] for axis in self.axes]
        return tensor(emit_stablehlo.broadcast(wide, result, axes))


def _computed_zero(operand: _Difference, side: Side) -> _ComputedZero | NoMatch | None:
    """The computed zero point of an operand, whose axes are not summed over; None for none."""
    broadcast = operand.computed
    if broadcast is None:
        return None
    zero, dims = broadcast.operands[0], list(broadcast.attributes["broadcast_dimensions"])
    if operand.shape:
        return NoMatch("a difference with a computed zero point is reshaped")
    if zero.type.element_type != mlir_type(I32) and not _has_8_bits(zero):
        return NoMatch("the difference may wrap")
    sizes = [int(size) for size in zero.type.shape]
    axes = [int(axis) for axis, size in zip(dims, sizes, strict=True) if size != 1]
    if any(axis in side.contracted for axis in axes):
        return NoMatch("the zero point varies along an axis that is summed over")
    return _ComputedZero(zero, axes)


def _subtract_computed_zeros(
    contraction: Contraction,
    operands: Sequence[_Difference],
    zeros: Sequence[_ComputedZero | None],
    emitted: Sequence[Value],
) -> Correction:
    """Return the correction for computed zero points.

    With operands ``a`` and ``b`` of ``K`` summed elements, and zero points ``z``, modulo 2**32::

        sum_k (a - z_a) * (b - z_b) = sum_k a * b - z_a * sum_k b - z_b * sum_k a + K * z_a * z_b
    """
    sides, products = (contraction.left, contraction.right), contraction.products
    assert products is not None  # shapes are static

    def correct(total: Value) -> Value:
        corrected: ArrayLike = tensor(total)
        form = corrected.form
        spread = [
            None if zero is None else zero.spread(side, total.type)
            for zero, side in zip(zeros, sides, strict=True)
        ]

        def terms(number: int) -> AnyArray:
            """The sums of one of the operands."""
            constant = operands[number].constant
            return sides[number].operand_sums(form, constant, lambda: emitted[number])

        left, right = spread
        if left is not None:
            corrected = corrected - left * terms(1)
        if right is not None:
            corrected = corrected - right * terms(0)
        if left is not None and right is not None:
            corrected = corrected + left * right * np.int32(products)
        return corrected.value

    return correct


def _has_8_bits(wide: Value) -> bool:
    """True if wider integers are those of an 8-bit type."""
    owner = producer_of(wide)
    if owner is None:
        return False
    if owner.name == "stablehlo.convert":
        return bool(owner.operands[0].type.element_type == mlir_type(I8))
    if owner.name == "stablehlo.and":
        return known_integer(owner.operands[1]) == 255
    return owner.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape") and _has_8_bits(
        owner.operands[0]
    )


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
    low, high, interior = pad_amounts(pad)
    not_spatial = [axis for axis in range(low.size) if axis not in spatial]
    if interior.any() or low[not_spatial].any() or high[not_spatial].any():
        return operand, 0, {}
    padding = window_padding(op, len(spatial)) + np.stack([low, high], 1)[spatial]
    i64 = ir.IntegerType.get_signless(64)
    return pad.operands[0], pad_value, {"padding": dense(padding.astype(np.int64), i64)}


@dataclass(frozen=True)
class _Difference:
    """8-bit integers, a value or a constant, with a zero point to subtract.

    They are read as signed or unsigned; `shape` is the shape of a reshaped difference. `computed`
    is the broadcast of a computed zero point, which is subtracted too; None for none.
    """

    stored: Value | ir.DenseElementsAttr
    zero: int
    signed: bool = True
    shape: tuple[int, ...] = ()
    computed: Operation | None = None

    @property
    def constant(self) -> Array | None:
        """The differences, in i64; None if they are not constants."""
        stored = self.stored
        if isinstance(stored, ir.DenseElementsAttr):
            return array_of_dense(stored).astype(np.int64) - self.zero
        array = constant_array(stored)
        if array is None or self.shape:
            return None
        return (array.astype(np.int64) if self.signed else array.astype(np.int64) & 255) - self.zero

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
    """Match 8-bit integers and a zero point to subtract; None for wider integers.

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
    zero, signed, computed = 0, True, None
    if owner.name == "stablehlo.subtract":
        zero_point = known_integer(owner.operands[1])
        if zero_point is None:
            computed = producer_named(owner.operands[1], "stablehlo.broadcast_in_dim")
        owner = producer_of(owner.operands[0])
        if (zero_point is None and computed is None) or owner is None:
            return None
        zero = zero_point or 0
    if owner.name == "stablehlo.and" and known_integer(owner.operands[1]) == 255:
        owner, signed = producer_of(owner.operands[0]), False
    if owner is None or owner.name != "stablehlo.convert":
        return None
    stored = owner.operands[0]
    low, high = (_LOW, _HIGH) if signed else (0, 255)
    if stored.type.element_type != mlir_type(I8) or not low <= zero <= high:
        return None
    return _Difference(stored, zero, signed, computed=computed)


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
