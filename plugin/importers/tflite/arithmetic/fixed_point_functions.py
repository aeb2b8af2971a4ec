"""Functions of fixed-point numbers in LiteRT and gemmlowp: ``exp``, ``log``, reciprocals, roots.

Functions with 31 fractional bits compute in 64-bit integers. `logistic` and `tanh` have 15
fractional bits, and all their products fit 32 bits.

Sources: gemmlowp, ``fixedpoint.h``; LiteRT, ``kernels/internal/common.h``
(``log_x_for_x_greater_than_or_equal_to_1``, ``GetReciprocal``), ``quantization_util.cc``
(``GetInvSqrtQuantizedMultiplierExp``), ``reference/portable_tensor_utils.cc``.
"""

from __future__ import annotations

import numpy as np

from ....numerics.element_types import AnyArray
from ....numerics.fixed_point import divide_by_power, high_product
from .requantization import INT32_MAX, INT32_MIN, rounding_right_shift

# -- 31 fractional bits ---------------------------------------------------------------------------

_EXPONENTIALS = (
    (-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535),
    (3, 720401), (4, 242),
)  # fmt: skip
"""``exp(-2**n)`` with 31 fractional bits, as in gemmlowp's ``fixedpoint.h``; not tunable."""

_EXP_EIGHTH, _THIRD = 1895147668, 715827883
"""``exp(-1/8)`` and 1/3 with 31 fractional bits."""
_SQRT_HALF, _LOG_2, _FOURTH_ROOT_OF_HALF = 1518500250, 1488522236, 1805811301
"""The roots of 1/2 and the logarithm of 2 of gemmlowp's and LiteRT's fixed-point ``log``."""
_ALPHA_N, _ALPHA_D, _ALPHA_I, _ALPHA_F = 117049297, 127690142, 1057819769, 638450708
"""Coefficients of the rational approximation of ``log`` in LiteRT; not tunable."""
_RECIPROCAL_START, _RECIPROCAL_SLOPE = 1515870810, -1010580540
"""48/17 and -32/17 with 29 fractional bits: the first estimate of a reciprocal."""
_QUARTER_25 = 1 << 23
"""1/4 with 25 fractional bits."""


def saturating_shift(values: AnyArray, bits: int) -> AnyArray:
    """Multiply by a power of two, and saturate to 32 bits."""
    return np.minimum(np.maximum(values << bits, INT32_MIN), INT32_MAX)


def exponential_of_negatives(values: AnyArray, bits: int, integer_bits: int) -> AnyArray:
    """Compute ``exp`` with 31 or 15 fractional `bits`: gemmlowp's ``exp_on_negative_values``.

    The values are from ``-2**bits`` to 0, with `integer_bits` bits before the point.
    """

    def product(left: AnyArray, right: AnyArray) -> AnyArray:
        return high_product(left, right, bits)

    greatest, fraction = (1 << bits) - 1, bits - integer_bits
    quarter = 1 << (fraction - 2)
    rest = (values & (quarter - 1)) - quarter
    x = (rest << integer_bits) + (1 << (bits - 3))
    x2 = product(x, x)
    x3, x4 = product(x2, x), product(x2, x2)
    tail = product(rounding_right_shift(x4, 2) + x3, _constant(_THIRD, bits)) + x2
    start = _constant(_EXP_EIGHTH, bits)
    result = product(x + rounding_right_shift(tail, 1), start) + start
    result = np.minimum(result, greatest)
    remainder = rest - values
    for exponent, factor in _EXPONENTIALS:
        if exponent < integer_bits:
            is_set = (remainder & (1 << (fraction + exponent))) != 0
            result = np.where(is_set, product(result, _constant(factor, bits)), result)
    if integer_bits > 5:
        result = np.where(values < -(32 << fraction), 0, result)
    return np.where(values == 0, greatest, result)


def _constant(number: int, bits: int) -> int:
    """Round a constant with 31 fractional bits to `bits`."""
    return int(divide_by_power(np.int64(number), np.int64(31 - bits)))


def one_over_one_plus(values: AnyArray) -> AnyArray:
    """Compute ``1 / (1 + x)`` for x in [0, 1], with 31 fractional bits, by Newton's method."""
    half_denominator = (values + INT32_MAX + 1) >> 1  # both terms are positive
    x = _RECIPROCAL_START + high_product(half_denominator, np.int64(_RECIPROCAL_SLOPE))
    for _ in range(3):
        rest = (1 << 29) - high_product(half_denominator, x)
        x = x + saturating_shift(high_product(x, rest), 2)
    return saturating_shift(x, 1)


def inverse_square_root(values: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Compute ``1 / sqrt(x)`` as ``multiplier * 2**(-shift - 31)``, by Newton's method.

    The values are int64 from 0 (treated as 1) to ``2**31 - 1``. Both results are int64: multipliers
    of at most 31 bits, and non-negative shifts.
    """
    is_large = values >= 1 << 29
    bounded = np.maximum(np.where(is_large, values >> 2, values), 2)
    pairs = ((leading_zeros(bounded) - 1) >> 1) - 1
    shift = np.where(is_large, 12, 11) - pairs
    number = (bounded << (pairs * 2)) >> 1
    half = (number + 1) >> 1
    x: AnyArray = np.int64(1 << 28)
    for _ in range(5):
        cube = saturating_shift(high_product(high_product(x, x), x), 6)
        rest = high_product(x, np.int64((1 << 28) + (1 << 27))) - high_product(half, cube)
        x = saturating_shift(rest, 3)
    x = high_product(x, np.int64(_SQRT_HALF)) << np.maximum(-shift, 0)
    is_one = values <= 1
    return np.where(is_one, np.int64(INT32_MAX), x), np.where(is_one, 0, np.maximum(shift, 0))


def leading_zeros(values: AnyArray, width: int = 32) -> AnyArray:
    """Count the leading zero bits of int64 values of 1 to `width` bits; ``width - 1`` for 0."""
    count: AnyArray = 0
    for step in (32, 16, 8, 4, 2, 1)[width == 32 :]:
        is_small = values < np.int64(1) << (width - step)
        count = count + np.where(is_small, step, 0)
        values = np.where(is_small, values << step, values)
    return count


def reciprocal(values: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Compute ``1 / x`` as ``multiplier * 2**(-31 - shift)``: LiteRT's ``GetReciprocal``.

    The values are int64 from 1 to ``2**31 - 1``. Both results are int64: 31-bit multipliers, and
    shifts.
    """
    headroom = leading_zeros(values)
    return one_over_one_plus((values << headroom) - (1 << 31)), 31 - headroom


def logarithm(values: AnyArray) -> AnyArray:
    """Compute ``log`` with 26 fractional bits for numbers from 1 on with 19 fractional bits.

    The values are int64 from ``2**19`` to ``2**31 - 1``. ``value = r * 2**n`` with `r` about 1.
    ``log(r)`` is a quotient of polynomials in the distance of `r` from the fourth root of a half.
    """
    whole_bits = 12
    zeros = leading_zeros(values)
    first = saturating_shift(high_product(values << (zeros - 1), np.int64(_SQRT_HALF)), 1)
    halved = high_product(values, np.int64(_SQRT_HALF))
    headroom = leading_zeros(halved) - 1
    second = np.minimum(values << headroom, (1 << 31) - 1)
    r = np.minimum(first, second)
    power = np.maximum(
        ((whole_bits - zeros) << 25) + _QUARTER_25, ((whole_bits - headroom) << 25) - _QUARTER_25
    )
    total = r + _FOURTH_ROOT_OF_HALF
    p = (total + 1) >> 1  # total is positive
    q = (r - _FOURTH_ROOT_OF_HALF) * 2
    square = high_product(q, q)
    numerator = high_product(q, r) + high_product(high_product(q, square), np.int64(_ALPHA_N))
    inner = _ALPHA_I + q + high_product(square, np.int64(_ALPHA_D))
    denominator = high_product(p, inner) + high_product(q, np.int64(_ALPHA_F))
    numerator = rounding_right_shift(numerator, 6)
    quotient = high_product(numerator, one_over_one_plus(denominator))
    return saturating_shift(high_product(power, np.int64(_LOG_2)) + quotient, 1)


# -- 15 fractional bits ---------------------------------------------------------------------------

_ONE_15 = (1 << 15) - 1
"""The greatest number below 1 with 15 fractional bits."""


def _two_over_one_plus_15(values: AnyArray) -> AnyArray:
    """Compute ``2 / (1 + x)`` with 13 fractional bits, for x in [0, 1] with 15."""
    half_denominator = (values + _ONE_15 + 1) >> 1
    start = _constant(_RECIPROCAL_START, 15)
    x = high_product(half_denominator, _constant(_RECIPROCAL_SLOPE, 15), 15) + start
    for _ in range(3):
        rest = (1 << 13) - high_product(half_denominator, x, 15)
        x = x + (high_product(x, rest, 15) << 2)
    return x


def logistic(values: AnyArray) -> AnyArray:
    """Compute ``1 / (1 + exp(-x))`` with 15 fractional bits: gemmlowp's ``logistic``.

    The values are 16-bit integers as int32, with 12 fractional bits.
    """
    x = _two_over_one_plus_15(exponential_of_negatives(-np.abs(values), 15, 3))
    positive = np.minimum(x << 1, _ONE_15)
    result = np.where(values > 0, positive, _ONE_15 - positive)
    return np.where(values == 0, 1 << 14, result)


def tanh(values: AnyArray, integer_bits: int) -> AnyArray:
    """Compute ``tanh`` with 15 fractional bits: gemmlowp's ``tanh``.

    The values are 16-bit integers as int32, with `integer_bits` bits before the point (0 to 6),
    without the sign.
    """
    exponential = exponential_of_negatives(-np.abs(values), 15, integer_bits + 1)
    x = _two_over_one_plus_15(exponential)
    positive = np.minimum((x - (1 << 13)) << 2, _ONE_15)
    return np.where(values == 0, 0, np.where(values < 0, -positive, positive))
