"""LiteRT's softmax and log-softmax of quantized tensors, along the last axis.

Sources: LiteRT, ``reference/softmax.h`` (``SoftmaxInt16`` for 16 bits),
``reference/integer_ops/log_softmax.h``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....numerics.array_functions import convert, take
from ....numerics.element_types import I32, I64, AnyArray, Array, DType
from ....numerics.fixed_point import apply_scale, divide_by_power, high_product
from .fixed_point_functions import exponential_of_negatives, leading_zeros, logarithm, reciprocal
from .lookup_tables import interpolate, interpolation_table
from .requantization import (
    multiplier_and_exponent,
    rescale,
    rescale_by,
    rounding_right_shift,
    saturating_cast,
)

_SUM_INTEGER_BITS = 12
"""Integer bits of the sum of exponentials: LiteRT's ``kAccumulationIntegerBits``, not tunable."""


@dataclass(frozen=True)
class _Exponentials:
    """Table of ``exp`` of the differences of 8-bit storage values, from -255 to 0.

    Args:
        multiplier, exponent: rescale differences to 26 fractional bits.
        rescaled: the differences with 26 fractional bits.
        values: their exponentials with 31 fractional bits.
        min_difference: the exponentials of lesser differences count as zero.
    """

    multiplier: int
    exponent: int
    rescaled: Array
    values: Array
    min_difference: int

    @property
    def is_nonzero(self) -> Array:
        """Mask of the differences whose exponentials do not count as zero."""
        return np.arange(-255, 1) >= self.min_difference

    def sum_last_axis(self, index: AnyArray) -> AnyArray:
        """Sum exponentials along the last axis: int64 with 19 fractional bits."""
        shifted = divide_by_power(self.values, np.int64(_SUM_INTEGER_BITS))
        addends = np.where(self.is_nonzero, shifted, 0)
        return convert(take(addends.astype(np.int32), index), I64).sum(axis=-1, keepdims=True)


def _exponentials(scale: float, beta: float) -> _Exponentials:
    """Tabulate ``exp(beta * scale * difference)``."""
    factor = min(float(beta) * float(scale) * (1 << 26), float((1 << 31) - 1))
    multiplier, exponent = multiplier_and_exponent(factor)
    min_difference = -int(np.floor(31.0 * (1 << 26) / (1 << max(int(exponent), 0))))
    scaled = apply_scale(np.arange(-255, 1), multiplier, 31 - exponent, "gemmlowp")
    rescaled = np.asarray(scaled, np.int64)
    values = np.asarray(exponential_of_negatives(rescaled, 31, 5))
    return _Exponentials(int(multiplier), int(exponent), rescaled, values, min_difference)


def _index_below_greatest(values: AnyArray) -> AnyArray:
    """Return each value less the greatest of its row, plus 255: an index of `_Exponentials`."""
    wide = convert(values, I32)
    return wide - wide.max(axis=-1, keepdims=True) + 255


def softmax(values: AnyArray, scale: float, beta: float, dtype: DType) -> AnyArray:
    """Compute the softmax of int8 or uint8 storage values.

    Args:
        beta: additional factor of differences.
        dtype: int8, uint8 or int16. The result's scale is 1/256 (1/65536 for int16), and its zero
            point the least integer.
    """
    table = _exponentials(scale, beta)
    index = _index_below_greatest(values)
    nonzero = np.where(table.is_nonzero, table.values, 0).astype(np.int32)
    exponentials = convert(take(nonzero, index), I64)
    inverse, shift = reciprocal(table.sum_last_axis(index))
    info = np.iinfo(dtype)
    shift = shift + (_SUM_INTEGER_BITS - info.bits)
    result = divide_by_power(high_product(inverse, exponentials), shift) + int(info.min)
    return saturating_cast(result, int(info.min), int(info.max), dtype)


def log_softmax(values: AnyArray, scale: float, dtype: DType) -> AnyArray:
    """Compute the log-softmax of int8 or uint8 storage values.

    Args:
        values: int8 or uint8, at most 4096 along the axis.
        dtype: int8 or uint8. The result's scale is 1/16, and its zero point the greatest integer.
    """
    table = _exponentials(scale, 1.0)
    index = _index_below_greatest(values)
    log_of_sum = logarithm(table.sum_last_axis(index))
    inverse = (1 << (31 - table.exponent)) / np.float64(table.multiplier)
    bound = rescale_by(log_of_sum - (1 << 31), *multiplier_and_exponent(inverse))
    rescaled = convert(take(table.rescaled.astype(np.int32), index), I64)
    info = np.iinfo(dtype)
    result = rounding_right_shift(rescaled - log_of_sum, 22) + int(info.max)
    is_above = index - 255 > np.maximum(convert(bound, I32), table.min_difference - 1)
    result = np.where(is_above, result, int(info.min))
    return saturating_cast(result, int(info.min), int(info.max), dtype)


def softmax_int16(values: AnyArray, scale: np.float32, beta: float) -> AnyArray:
    """Compute the softmax of int16 storage values: int16 with 15 fractional bits."""
    unit = np.float64(1.0 / 65535)
    exponential_table = interpolation_table(np.exp, 10 * unit, 32767, 2 * unit, 0)
    reciprocal_table = interpolation_table(lambda x: 1 / (1 + x), unit, -32768, 2 * unit, 0)
    wide = convert(values, I32)
    factor = np.float64(np.float32(scale) * np.float32(beta)) / (10.0 / 65535)
    differences = rescale(wide - wide.max(axis=-1, keepdims=True), factor) + 32767
    bounded = np.minimum(np.maximum(differences, -32768), 32767)
    exponentials = interpolate(exponential_table, bounded)
    total = exponentials.sum(axis=-1, dtype=np.int32, keepdims=True)
    zeros = convert(leading_zeros(convert(total, I64)), I32)
    shifted = ((convert(total, I64) << convert(zeros - 1, I64)) + (1 << 13)) >> 14
    centered = convert(shifted, I32) - ((1 << 15) + (1 << 16))
    inverse = interpolate(reciprocal_table, np.minimum(np.maximum(centered, -32768), 32767))
    shift = 31 - zeros
    result = (exponentials * inverse + (1 << (shift - 1))) >> shift
    return np.minimum(np.maximum(result, 0), 32767).astype(np.int16)
