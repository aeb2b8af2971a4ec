"""LiteRT's integer arithmetic, bit for bit as its reference kernels compute it.

Formulas are over NumPy's arrays and over values of a program alike, in 64-bit integers where a step
needs more than 32 bits. ``TfLiteRound`` rounds half away from zero.

A factor of scales becomes a multiplier of 31 bits and an exponent, and a product with it is rounded
twice: gemmlowp's rounding, of `subquant.numerics.fixed_point`. FULLY_CONNECTED with 8 bits
multiplies by the factor itself, in f64, and rounds once; `round_product` does that in integers.

Sources: LiteRT, ``kernels/internal/common.h``, ``quantization_util.cc``, ``kernel_util.cc``,
``reference/softmax.h``, ``reference/integer_ops/``; gemmlowp, ``fixedpoint.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, lookup
from ....numerics.element_types import I32, I64, AnyArray, Array, DType
from ....numerics.fixed_point import apply_scale, divide_by_power, high_product

__all__ = [
    "Exponentials",
    "activation_range",
    "below_greatest",
    "divided",
    "exponential_of_negatives",
    "exponentials_of_differences",
    "function_table",
    "in_double",
    "inverse_square_root",
    "leading_zeros",
    "multiplier_and_exponent",
    "narrowed",
    "one_over_one_plus",
    "power_of_two",
    "quantized",
    "reciprocal",
    "round_away",
    "round_product",
    "saturated_shift",
    "scaled",
    "scaled_by",
    "scaled_wide",
    "softmax",
]


_MOST, _LEAST = (1 << 31) - 1, -(1 << 31)


def round_away(values: npt.ArrayLike) -> Array:
    """Round to the nearest integer, half away from zero, in the type of the values."""
    given = np.asarray(values)
    magnitude = np.abs(given)
    whole = np.floor(magnitude)
    rounded: Array = np.copysign(whole + (magnitude - whole >= 0.5), given)
    return rounded.astype(given.dtype)


def multiplier_and_exponent(factors: npt.ArrayLike) -> tuple[Array, Array]:
    """Return ``multiplier * 2**(exponent - 31)`` for factors, as LiteRT's ``QuantizeMultiplier``.

    Args:
        factors: f64, not negative.

    Returns:
        Two int64 arrays of the shape of `factors`. A factor under ``2**-32`` becomes 0.
    """
    mantissa, exponent = np.frexp(np.asarray(factors, np.float64))
    multiplier = round_away(mantissa * 2.0**31).astype(np.int64)
    exponent = np.asarray(exponent, np.int64)
    is_next = multiplier == 1 << 31
    multiplier = np.where(is_next, multiplier >> 1, multiplier)
    exponent = np.where(is_next, exponent + 1, exponent)
    is_lost = exponent < -31
    return np.where(is_lost, 0, multiplier), np.where(is_lost, 0, exponent)


def power_of_two(scale: np.float32) -> int | None:
    """The exponent of two that a scale is, to a part in 1400, or None: LiteRT's ``CheckedLog2``."""
    exponent = np.float32(np.log(np.float32(scale)) * np.float32(1.0 / np.log(2.0)))
    nearest = round_away(exponent)
    return int(nearest) if abs(exponent - nearest) < np.float32(1e-3) else None


def scaled(values: AnyArray, factors: npt.ArrayLike) -> AnyArray:
    """LiteRT's ``MultiplyByQuantizedMultiplier`` of 32-bit values, by a factor of scales.

    Args:
        values: integers of 32 bits.
        factors: f64, which broadcast with `values`.

    Returns:
        32-bit integers.
    """
    return scaled_by(values, *multiplier_and_exponent(factors))


def scaled_by(values: AnyArray, multiplier: Array | int, exponent: Array | int) -> AnyArray:
    """The same with a multiplier of 31 bits and an exponent of two.

    A positive exponent shifts left first, and saturates what LiteRT leaves undefined.
    """
    shift = np.asarray(exponent, np.int64)
    wide = convert(values, I64)
    if (shift > 0).any():
        shifted = wide << np.minimum(np.maximum(shift, 0), 31)
        wide = np.minimum(np.maximum(shifted, _LEAST), _MOST)
    high = convert(high_product(wide, np.asarray(multiplier, np.int64)), I32)
    return divided(high, np.maximum(-shift, 0))


def divided(values: AnyArray, exponent: Array | int) -> AnyArray:
    """``values / 2**exponent``, half away from zero: gemmlowp's ``RoundingDivideByPOT``.

    ``floor((v + h - [v < 0]) / 2**e)`` with ``h = 2**(e - 1)``, in two shifts, so that nothing
    needs a bit more.

    Args:
        values: 32-bit integers but the two greatest and the least.
        exponent: 0 to 31; they broadcast with `values`.
    """
    known = np.asarray(exponent, np.int32)
    if not known.any():
        return values
    if (known > 0).all():
        return (((values + (values >> 31)) >> (known - 1)) + 1) >> 1
    return divide_by_power(values, known)


def quantized(
    values: AnyArray, scale: np.float32, zero_point: int, low: int, high: int
) -> AnyArray:
    """Storage values of f32 numbers: the quotient half away from zero, and the zero point.

    Args:
        values: f32.
        scale, zero_point: of the result.
        low, high: of its storage type.

    Returns:
        32-bit integers. What is beyond 32 bits, which LiteRT leaves undefined, saturates.
    """
    quotient = values / np.float32(scale)
    # Beyond these, and for NaN, the result is known; within, all integers are exact in f32.
    limit = np.float32(1 << 20)
    inside = np.minimum(np.maximum(quotient, -limit), limit)
    magnitude = np.abs(inside)
    whole = np.floor(magnitude)
    rounded = convert(whole, I32) + convert(magnitude - whole >= np.float32(0.5), I32)
    total = np.where(inside < 0, -rounded, rounded) + zero_point
    return np.minimum(np.maximum(total, low), high)


def scaled_wide(values: AnyArray, factors: npt.ArrayLike) -> AnyArray:
    """LiteRT's ``MultiplyByQuantizedMultiplier`` of 64-bit values: a multiplier of 15 bits.

    Args:
        values: 64-bit integers of up to 48 bits.
        factors: f64 up to 128, which broadcast with `values`.

    Returns:
        64-bit integers; rounded half up.
    """
    multiplier, exponent = multiplier_and_exponent(factors)
    reduced = np.where(multiplier < 0x7FFF0000, (multiplier + (1 << 15)) >> 16, 0x7FFF)
    shift = 15 - exponent
    return (convert(values, I64) * reduced + (np.int64(1) << (shift - 1))) >> shift


def narrowed(values: AnyArray, low: int, high: int, dtype: DType) -> AnyArray:
    """Clamp integers, and convert them to a storage type."""
    return np.minimum(np.maximum(values, low), high).astype(dtype)


def activation_range(
    activation: str, scale: np.float32, zero_point: int, low: int, high: int
) -> tuple[int, int]:
    """The storage values that a fused activation leaves of those from `low` to `high`.

    Args:
        activation: a name of `subquant.importers.tflite.reading.schema.ACTIVATIONS`.
        scale, zero_point: of the result.
        low, high: of its storage type.
    """

    def stored(real: float) -> int:
        return int(round_away(np.float32(real) / np.float32(scale))) + zero_point

    if activation in ("RELU", "RELU6", "RELU_0_TO_1"):
        low = max(low, stored(0.0))
    if activation == "RELU6":
        high = min(high, stored(6.0))
    if activation == "RELU_N1_TO_1":
        low = max(low, stored(-1.0))
    if activation in ("RELU_N1_TO_1", "RELU_0_TO_1"):
        high = min(high, stored(1.0))
    return low, high


# -- one rounding ---------------------------------------------------------------------------------

_WORD = 62  # bits of products
_PART = 27  # bits of the lower part of a factor's 53
_MOST_STEPS = 1 << 20


def round_product(
    values: AnyArray, factors: npt.ArrayLike, bound: int, low: int, high: int
) -> AnyArray:
    """``TfLiteRound(double(value) * factor)``, clamped, in integers.

    The magnitude of a value is multiplied by the factor with as many bits as 64 leave, and rounded
    half up. Both that and the product in f64 rise with the value, so they are the same function if
    they agree on both sides of each step between two results. That is looked at here, for every
    step; where they do not, or there are too many steps, `_rounded_as_f64` is used.

    Args:
        values: integers of at most 37 bits.
        factors: positive f64, which broadcast with `values`.
        bound: the greatest magnitude of values.
        low, high: where results are clamped.

    Returns:
        64-bit integers.

    Raises:
        UnsupportedError: a greater bound, or a factor of ``2**24`` and more.
    """
    factor = np.asarray(factors, np.float64)
    if bound >= 1 << 36 or (factor >= 1 << 24).any():
        raise UnsupportedError(
            f"has sums of up to {bound:,} and factors of up to {factor.max():.3g}; expected sums "
            "under 2**36 and factors under 2**24"
        )
    wide = convert(values, I64)
    fraction, exponent = np.frexp(factor)
    digits = _WORD - max(bound, 1).bit_length()
    shift = np.minimum(digits - np.asarray(exponent, np.int64), _WORD)
    scaled_fraction = np.ldexp(fraction, np.asarray(shift + exponent, np.int32))
    multiplier = round_away(scaled_fraction).astype(np.int64)
    if (high - low) * factor.size <= _MOST_STEPS:
        sides = np.stack(_steps(factor, bound, low, high))
        if (_half_away(sides, multiplier, shift) == _in_f64(sides, factor)).all():
            return np.minimum(np.maximum(_half_away(wide, multiplier, shift), low), high)
    return np.minimum(np.maximum(_rounded_as_f64(wide, factor), low), high)


def _rounded_as_f64(values: AnyArray, factor: Array) -> AnyArray:
    """The product in two words, rounded to the 53 bits of f64 and then half away from zero.

    Rounding to 53 bits matters only just below a half: there it adds up to half of the last bit.
    A half itself has few bits, so a tie of the first rounding goes to it.
    """
    fraction, exponent = np.frexp(factor)
    whole = np.ldexp(fraction, 53).astype(np.int64)
    upper, lower = whole >> _PART, whole & ((1 << _PART) - 1)
    shift = 53 - np.asarray(exponent, np.int64) - _PART
    is_lost = shift > _WORD  # every product is under a half
    upper, lower = np.where(is_lost, 0, upper), np.where(is_lost, 0, lower)
    shift = np.where(is_lost, _WORD, shift)
    negative = values < 0
    magnitude = np.where(negative, -values, values)
    below = magnitude * lower
    high = magnitude * upper + (below >> _PART)
    bits = 64 - leading_zeros(high, 64)
    half_ulp = np.where(bits >= _PART, 1 << np.maximum(bits - _PART, 0), 0)
    high = high + (((below & ((1 << _PART) - 1)) + half_ulp) >> _PART)
    rounded = (high + (np.int64(1) << (shift - 1))) >> shift
    return np.where(negative, -rounded, rounded)


def _half_away(values: AnyArray, multiplier: Array, shift: Array) -> AnyArray:
    negative = values < 0
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
    magnitude = (np.where(negative, -values, values) * multiplier + half) >> shift
    return np.where(negative, -magnitude, magnitude)


def _in_f64(values: Array, factor: Array) -> Array:
    return round_away(values.astype(np.float64) * factor)


def _steps(factor: Array, bound: int, low: int, high: int) -> tuple[Array, Array]:
    """For each result but the first, the last value below it and the first that gives it.

    Returns:
        Arrays of the shape ``[high - low, *factor.shape]``; values beyond `bound` stay at it.
    """
    results = np.arange(low + 1, high + 1).reshape(-1, *(1,) * factor.ndim)
    guess = np.clip((results - 0.5) / factor, -bound, bound)
    first = np.floor(guess).astype(np.int64) - 2
    for _ in range(4):
        first = np.where(_in_f64(first, factor) < results, first + 1, first)
    first = np.clip(first, -bound, bound)
    return np.clip(first - 1, -bound, bound), first


# -- functions by tables --------------------------------------------------------------------------


def in_double(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function of f32, computed in f64: as C's library rounds it, but for a few results."""

    def rounded(values: Array) -> Array:
        return np.asarray(function(values.astype(np.float64)), values.dtype)

    return rounded


def function_table(
    function: Callable[[Array], Array],
    input_scale: np.float32,
    input_zero_point: int,
    output_scale: np.float32,
    output_zero_point: int,
    dtype: DType,
) -> Array:
    """The storage values of a function of 8-bit storage values, from the lowest.

    Args:
        function: of f32 arrays.
        input_scale, input_zero_point, output_scale, output_zero_point: the parameters.
        dtype: int8 or uint8, of both.
    """
    info = np.iinfo(dtype)
    storage = np.arange(info.min, info.max + 1)
    real = np.float32(input_scale) * (storage - input_zero_point).astype(np.float32)
    inverse = np.float32(1) / np.float32(output_scale)
    rescaled = round_away(function(real).astype(np.float32) * inverse)
    with np.errstate(over="ignore", invalid="ignore"):
        total = rescaled + np.float32(output_zero_point)
    return np.clip(np.trunc(total), info.min, info.max).astype(dtype)


# -- fixed point ----------------------------------------------------------------------------------


def saturated_shift(values: AnyArray, bits: int) -> AnyArray:
    """Multiplied by a power of two, saturating."""
    return np.minimum(np.maximum(values << bits, _LEAST), _MOST)


EXPONENTIALS = (
    (-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535),
    (3, 720401), (4, 242),
)  # fmt: skip
"""``exp(-2**n)`` with 31 fractional bits."""


def exponential_of_negatives(values: Array) -> Array:
    """``exp`` of negative numbers with 26 fractional bits, with 31: gemmlowp's.

    Args:
        values: int64, from ``-2**31`` to 0.
    """
    quarter = 1 << 24
    rest = (values & (quarter - 1)) - quarter
    x = saturated_shift(rest, 5) + (1 << 28)
    x2 = high_product(x, x)
    x3, x4 = high_product(x2, x), high_product(x2, x2)
    tail = high_product(divide_by_power(x4, np.int64(2)) + x3, np.int64(715827883)) + x2
    start = np.int64(1895147668)
    result = start + high_product(x + divide_by_power(tail, np.int64(1)), start)
    remainder = rest - values
    for exponent, factor in EXPONENTIALS:
        is_set = (remainder & (1 << (26 + exponent))) != 0
        result = np.where(is_set, high_product(result, np.int64(factor)), result)
    return np.where(values == 0, _MOST, result)


def one_over_one_plus(values: AnyArray) -> AnyArray:
    """``1 / (1 + value)`` of numbers in [0, 1] with 31 fractional bits, by Newton's method."""
    half_denominator = (values + _MOST + 1) >> 1  # both are positive
    x = 1515870810 + high_product(half_denominator, np.int64(-1010580540))
    for _ in range(3):
        rest = (1 << 29) - high_product(half_denominator, x)
        x = x + saturated_shift(high_product(x, rest), 2)
    return saturated_shift(x, 1)


def inverse_square_root(values: AnyArray) -> tuple[AnyArray, AnyArray]:
    """``1 / sqrt(value)`` as ``multiplier * 2**(-shift - 31)``, by Newton's method.

    Args:
        values: int64, from 0 (as 1) to ``2**31 - 1``.

    Returns:
        Two int64 arrays: multipliers of up to 31 bits, and shifts that are not negative.
    """
    is_large = values >= 1 << 29
    inside = np.maximum(np.where(is_large, values >> 2, values), 2)
    pairs = ((leading_zeros(inside) - 1) >> 1) - 1
    shift = np.where(is_large, 12, 11) - pairs
    number = (inside << (pairs * 2)) >> 1
    half = (number + 1) >> 1
    x: AnyArray = np.int64(1 << 28)
    for _ in range(5):
        cube = saturated_shift(high_product(high_product(x, x), x), 6)
        rest = high_product(x, np.int64((1 << 28) + (1 << 27))) - high_product(half, cube)
        x = saturated_shift(rest, 3)
    x = high_product(x, np.int64(1518500250)) << np.maximum(-shift, 0)
    is_one = values <= 1
    return np.where(is_one, np.int64(_MOST), x), np.where(is_one, 0, np.maximum(shift, 0))


def leading_zeros(values: AnyArray, width: int = 32) -> AnyArray:
    """Of integers of 1 to `width` bits (under 64), in 64; of 0 one less than `width`."""
    count: AnyArray = 0
    for step in (32, 16, 8, 4, 2, 1)[width == 32 :]:
        is_small = values < np.int64(1) << (width - step)
        count = count + np.where(is_small, step, 0)
        values = np.where(is_small, values << step, values)
    return count


def reciprocal(values: AnyArray) -> tuple[AnyArray, AnyArray]:
    """``1 / value`` as ``multiplier * 2**(-31 - shift)``: LiteRT's ``GetReciprocal``.

    Args:
        values: int64, from 1 to ``2**31 - 1``.

    Returns:
        Two int64 arrays: multipliers of 31 bits, and shifts.
    """
    headroom = leading_zeros(values)
    return one_over_one_plus((values << headroom) - (1 << 31)), 31 - headroom


_SUM_BITS = 12


@dataclass(frozen=True)
class Exponentials:
    """``exp`` of the differences of 8-bit storage values, from -255 to 0.

    Args:
        multiplier, exponent: of differences, to 26 fractional bits.
        rescaled: the differences with 26 fractional bits.
        values: their exponentials, with 31.
        least: the least difference that counts.
    """

    multiplier: int
    exponent: int
    rescaled: Array
    values: Array
    least: int

    @property
    def is_counted(self) -> Array:
        """Which of them are not taken for zero."""
        return np.arange(-255, 1) >= self.least

    def total(self, index: AnyArray) -> AnyArray:
        """Sums along the last axis, with 19 fractional bits, in 64."""
        addends = np.where(self.is_counted, divide_by_power(self.values, np.int64(_SUM_BITS)), 0)
        return convert(lookup(addends.astype(np.int32), index), I64).sum(axis=-1, keepdims=True)


def exponentials_of_differences(scale: float, beta: float) -> Exponentials:
    """Of differences of storage values of a scale, multiplied by `beta`."""
    factor = min(float(beta) * float(scale) * (1 << 26), float((1 << 31) - 1))
    multiplier, exponent = multiplier_and_exponent(factor)
    least = -int(np.floor(31.0 * (1 << 26) / (1 << max(int(exponent), 0))))
    scaled_ = apply_scale(np.arange(-255, 1), multiplier, 31 - exponent, "gemmlowp")
    rescaled = np.asarray(scaled_, np.int64)
    exponentials = exponential_of_negatives(rescaled)
    return Exponentials(int(multiplier), int(exponent), rescaled, exponentials, least)


def below_greatest(values: AnyArray) -> AnyArray:
    """8-bit values less the greatest along the last axis, plus 255: an index of `Exponentials`."""
    wide = convert(values, I32)
    return wide - wide.max(axis=-1, keepdims=True) + 255


def softmax(values: AnyArray, scale: float, beta: float, dtype: DType) -> AnyArray:
    """Softmax along the last axis of 8-bit storage values.

    Args:
        values: int8 or uint8.
        scale: of the input.
        beta: what differences are multiplied by besides.
        dtype: int8, uint8 or int16; the scale of the result is 1/256, or 1/65536 for int16, and its
            zero point the least integer.
    """
    found = exponentials_of_differences(scale, beta)
    table = np.where(found.is_counted, found.values, 0).astype(np.int32)
    index = below_greatest(values)
    exps = convert(lookup(table, index), I64)
    inverse, shift = reciprocal(found.total(index))
    info = np.iinfo(dtype)
    shift = shift + (_SUM_BITS - info.bits)
    result = divide_by_power(high_product(inverse, exps), shift) + int(info.min)
    return narrowed(result, int(info.min), int(info.max), dtype)
