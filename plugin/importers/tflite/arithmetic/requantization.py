"""LiteRT's requantization of integers, bit for bit as its reference kernels compute it.

The formulas run on NumPy arrays and on traced values of a program, in 64-bit integers where a step
needs more than 32 bits. ``TfLiteRound`` rounds half away from zero.

A ratio of scales becomes a 31-bit multiplier and an exponent. The product with it is rounded twice,
as gemmlowp does (`subquant.numerics.fixed_point`). FULLY_CONNECTED with 8 bits multiplies by the
ratio itself in f64 and rounds once: see `single_rounding`.

Sources: LiteRT, ``kernels/internal/common.h``, ``quantization_util.cc``, ``kernel_util.cc``,
``reference/integer_ops/``; gemmlowp, ``fixedpoint.h``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ....numerics.array_functions import convert
from ....numerics.element_types import I32, I64, AnyArray, Array, DType
from ....numerics.fixed_point import divide_by_power, high_product

INT32_MAX, INT32_MIN = (1 << 31) - 1, -(1 << 31)
"""The range of i32."""
ACTIVATION_BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "NONE": (None, None), "RELU": (0, None), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1),
    "RELU_0_TO_1": (0, 1),
}  # fmt: skip
"""The least and the greatest result of activation functions that clamp."""


def round_half_away(values: npt.ArrayLike) -> Array:
    """Round to the nearest integer, half away from zero, in the type of the values."""
    array = np.asarray(values)
    magnitude = np.abs(array)
    whole = np.floor(magnitude)
    rounded: Array = np.copysign(whole + (magnitude - whole >= 0.5), array)
    return rounded.astype(array.dtype)


def multiplier_and_exponent(factors: npt.ArrayLike) -> tuple[Array, Array]:
    """Return ``multiplier * 2**(exponent - 31)`` for factors: LiteRT's ``QuantizeMultiplier``.

    Factors are f64, not negative. The results are int64 arrays of their shape. A factor under
    ``2**-32`` becomes 0.
    """
    mantissa, exponent = np.frexp(np.asarray(factors, np.float64))
    multiplier = round_half_away(mantissa * 2.0**31).astype(np.int64)
    exponent = np.asarray(exponent, np.int64)
    overflows = multiplier == 1 << 31
    multiplier = np.where(overflows, multiplier >> 1, multiplier)
    exponent = np.where(overflows, exponent + 1, exponent)
    underflows = exponent < -31
    return np.where(underflows, 0, multiplier), np.where(underflows, 0, exponent)


def checked_log2(scale: np.float32) -> int | None:
    """Return the log2 of a scale if it is an integer to 0.001: LiteRT's ``CheckedLog2``."""
    exponent = np.float32(np.log(np.float32(scale)) * np.float32(1.0 / np.log(2.0)))
    nearest = round_half_away(exponent)
    return int(nearest) if abs(exponent - nearest) < np.float32(1e-3) else None


def rescale(values: AnyArray, factors: npt.ArrayLike) -> AnyArray:
    """Multiply 32-bit integers by ratios of scales (f64, broadcast) to 32-bit integers.

    LiteRT's ``MultiplyByQuantizedMultiplier`` of 32 bits.
    """
    return rescale_by(values, *multiplier_and_exponent(factors))


def rescale_by(values: AnyArray, multiplier: Array | int, exponent: Array | int) -> AnyArray:
    """Multiply 32-bit integers by ``multiplier * 2**(exponent - 31)``.

    A positive exponent shifts left first; an overflow, undefined in LiteRT, saturates.
    """
    shift = np.asarray(exponent, np.int64)
    wide = convert(values, I64)
    if (shift > 0).any():
        shifted = wide << np.minimum(np.maximum(shift, 0), 31)
        wide = np.minimum(np.maximum(shifted, INT32_MIN), INT32_MAX)
    high = convert(high_product(wide, np.asarray(multiplier, np.int64)), I32)
    return rounding_right_shift(high, np.maximum(-shift, 0))


def rounding_right_shift(values: AnyArray, exponent: Array | int) -> AnyArray:
    """Divide by ``2**exponent``, half away from zero: gemmlowp's ``RoundingDivideByPOT``.

    ``floor((v + h - [v < 0]) / 2**e)`` with ``h = 2**(e - 1)``, in two shifts, so that no
    intermediate needs a 33rd bit.

    Args:
        values: 32-bit integers except the two greatest and the least.
        exponent: 0 to 31; broadcasts with `values`.
    """
    shift = np.asarray(exponent, np.int32)
    if not shift.any():
        return values
    if (shift > 0).all():
        return (((values + (values >> 31)) >> (shift - 1)) + 1) >> 1
    return divide_by_power(values, shift)


def quantize_f32(
    values: AnyArray, scale: np.float32, zero_point: int, low: int, high: int
) -> AnyArray:
    """Quantize f32 values: the quotient rounded half away from zero, plus the zero point.

    `low` and `high` are the range of the storage type. A quotient beyond 32 bits, undefined in
    LiteRT, saturates. The result has 32-bit integers.
    """
    quotient = values / np.float32(scale)
    # Beyond 2**20, and for NaN, the result is a constant; below, f32 holds every integer exactly.
    limit = np.float32(1 << 20)
    bounded = np.minimum(np.maximum(quotient, -limit), limit)
    magnitude = np.abs(bounded)
    whole = np.floor(magnitude)
    rounded = convert(whole, I32) + convert(magnitude - whole >= np.float32(0.5), I32)
    total = np.where(bounded < 0, -rounded, rounded) + zero_point
    return np.minimum(np.maximum(total, low), high)


def rescale_int64(values: AnyArray, factors: npt.ArrayLike) -> AnyArray:
    """Multiply 64-bit integers by ratios of scales to 64-bit integers, rounded half up.

    LiteRT's ``MultiplyByQuantizedMultiplier`` of 64 bits. Values have at most 48 bits. Factors are
    f64 up to 128, and broadcast; the multiplier has 15 bits.
    """
    multiplier, exponent = multiplier_and_exponent(factors)
    reduced = np.where(multiplier < 0x7FFF0000, (multiplier + (1 << 15)) >> 16, 0x7FFF)
    shift = 15 - exponent
    return (convert(values, I64) * reduced + (np.int64(1) << (shift - 1))) >> shift


def saturating_cast(values: AnyArray, low: int, high: int, dtype: DType) -> AnyArray:
    """Clamp integers to a range, and convert them to a storage type."""
    return np.minimum(np.maximum(values, low), high).astype(dtype)


def clamp_activation(values: AnyArray, activation: str) -> AnyArray:
    """Apply an activation of `ACTIVATION_BOUNDS` to real numbers."""
    least, greatest = ACTIVATION_BOUNDS[activation]
    kind = values.dtype.type
    values = values if least is None else np.maximum(values, kind(least))
    return values if greatest is None else np.minimum(values, kind(greatest))


def activation_range(
    activation: str, scale: np.float32, zero_point: int, low: int, high: int
) -> tuple[int, int]:
    """Return the range of storage values to which an activation of `ACTIVATION_BOUNDS` clamps.

    `low` and `high` are the range of the result's storage type.
    """

    def to_storage(value: float) -> int:
        return int(round_half_away(np.float32(value) / np.float32(scale))) + zero_point

    least, greatest = ACTIVATION_BOUNDS[activation]
    low = low if least is None else max(low, to_storage(least))
    return low, high if greatest is None else min(high, to_storage(greatest))
