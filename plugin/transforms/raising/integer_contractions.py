"""Contractions of integers with zero points, from differences that a program computes in i32.

With storage ``q`` and zero points ``z`` of the left (x) and right (w) operand::

    sum_k (qx - zx) * (qw - zw) = sum_k qx * qw - zx * sum_k qw - zw * sum_k qx + K * zx * zw

Constant zero points of the whole operand are part of the type of ``subquant.subtract_zero_point``,
for `select-kernels` and ``correct-zero-points``; computed ones are subtracted after the sum, in
i32, where both sides are equal modulo 2**32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Value, ir
from ...emit import stablehlo
from ...emit.operation import mlir_type, producer_named, value, with_element
from ...numerics.element_types import I8, I32
from .linalg_loops import Untranslatable
from .tensor_views import tensor_view

_MAX_BITS = 8


@dataclass(frozen=True)
class Difference:
    """Storage minus zero points.

    Attributes:
        storage: integers of at most 8 bits.
        constant: the zero point of all elements, where it is a constant.
        computed: the zero points with their axes of the storage, where they are computed.
    """

    storage: Value
    constant: int = 0
    computed: tuple[Value, list[int]] | None = None

    @classmethod
    def of(cls, difference: Value, contracted: Sequence[int]) -> Difference | None:
        """The storage and zero points of a value of i32; None if it is no such difference."""
        reshape = producer_named(difference, "stablehlo.reshape")
        if reshape is not None:
            before = cls.of(reshape.operands[0], ())
            if before is None or before.computed is not None:
                return None
            shape = [int(n) for n in difference.type.shape]
            return replace(before, storage=stablehlo.reshape(before.storage, shape))
        subtraction = producer_named(difference, "stablehlo.subtract")
        converted = difference if subtraction is None else subtraction.operands[0]
        conversion = producer_named(converted, "stablehlo.convert")
        storage = converted if conversion is None else conversion.operands[0]
        element = storage.type.element_type
        if not isinstance(element, ir.IntegerType) or not 2 <= element.width <= _MAX_BITS:
            return None
        if subtraction is None:
            return cls(storage)
        zero_points = subtraction.operands[1]
        numbers = tensor_view(zero_points).numbers if zero_points.type.has_static_shape else None
        if numbers is not None and numbers.size == 1:
            signed = not element.is_unsigned
            low = -(1 << (element.width - 1)) if signed else 0
            number = int(numbers.reshape(-1)[0])
            if low <= number < low + (1 << element.width):
                return cls(storage, number)
        broadcast = producer_named(zero_points, "stablehlo.broadcast_in_dim")
        if broadcast is None:
            return None
        source = broadcast.operands[0]
        axes = [int(axis) for axis in broadcast.attributes["broadcast_dimensions"]]
        if any(axis in contracted for axis in axes):
            raise Untranslatable("zero points differ along a loop that is summed over")
        return cls(storage, 0, (source, axes))

    @property
    def is_i8(self) -> bool:
        """True for signed storage without a constant zero point."""
        element = self.storage.type.element_type
        return not self.constant and (not element.is_unsigned or element.width < _MAX_BITS)

    def emit_storage(self) -> Value:
        """Emit the storage as i8, or as the bits of 8 unsigned ones."""
        if self.storage.type.element_type.width < _MAX_BITS:
            return stablehlo.convert(self.storage, mlir_type(I8))
        return _signless(self.storage)

    def emit(self) -> Value:
        """Emit the difference from the constant zero point, in i32."""
        element, storage = self.storage.type.element_type, self.emit_storage()
        name = "u8" if element.is_unsigned and element.width == _MAX_BITS else "i8"
        quantized = ir.Type.parse(f"!quant.uniform<{name}:f32, 1.0:{self.constant}>")
        cast = value("subquant.scast", [storage], with_element(storage.type, quantized))
        i32 = mlir_type(I32)
        return value("subquant.subtract_zero_point", [cast], with_element(cast.type, i32))


def _signless(storage: Value) -> Value:
    element = storage.type.element_type
    if element.is_signless:
        return storage
    signless = with_element(storage.type, ir.IntegerType.get_signless(element.width))
    bitcast = producer_named(storage, "stablehlo.bitcast_convert")
    if bitcast is not None and bitcast.operands[0].type == signless:
        return bitcast.operands[0]
    return value("stablehlo.bitcast_convert", [storage], signless)


def contract_differences(
    left: Difference,
    right: Difference,
    contracted: Sequence[Sequence[int]],
    result_axes: Sequence[Sequence[int]],
    dot: Callable[[Value, Value], Value],
) -> Value:
    """Emit the sum of products of differences.

    Args:
        contracted: for each side the axes that are summed over.
        result_axes: for each side, and each of its axes, the axis of the result; -1 if it has none.
        dot: emits the contraction of two operands.
    """
    if left.is_i8 and right.is_i8:
        operands = [left.emit_storage(), right.emit_storage()]
    else:
        operands = [left.emit(), right.emit()]
    total = dot(*operands)
    if left.computed is None and right.computed is None:
        return total
    if not total.type.has_static_shape:
        raise Untranslatable("zero points are computed, and the result has a dynamic shape")

    def spread(tensor: Value, axes: Sequence[int]) -> Value:
        order = sorted(range(len(axes)), key=axes.__getitem__)
        return stablehlo.broadcast(
            stablehlo.transpose(tensor, order), total.type, [axes[n] for n in order]
        )

    zeros: list[Value | None] = []
    for side, axes_of in zip((left, right), result_axes, strict=True):
        zero = None
        if side.computed is not None:
            zero = spread(side.computed[0], [axes_of[axis] for axis in side.computed[1]])
        zeros.append(zero)
    for number, zero in enumerate(zeros):
        if zero is None:
            continue
        other, summed = operands[1 - number], list(contracted[1 - number])
        totals = stablehlo.reduce(stablehlo.convert(other, mlir_type(I32)), summed)
        free = [n for n in range(other.type.rank) if n not in summed]
        spread_sums = spread(totals, [result_axes[1 - number][n] for n in free])
        product = value("stablehlo.multiply", [zero, spread_sums], total.type)
        total = value("stablehlo.subtract", [total, product], total.type)
    if all(zero is not None for zero in zeros):
        count = int(np.prod([operands[0].type.shape[n] for n in contracted[0]]))
        factor = stablehlo.constant(np.full(list(total.type.shape), count), mlir_type(I32))
        product = value("stablehlo.multiply", zeros, total.type)
        product = value("stablehlo.multiply", [product, factor], total.type)
        total = value("stablehlo.add", [total, product], total.type)
    return total
