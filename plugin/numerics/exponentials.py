"""Powers, hyperbolic functions and the complementary error function of f32.

Each is an exponential. If its exponent is rounded to f32, the error of the result grows with the
exponent: 50 units in the last place near the end of the range. Here exponents have two parts, of
which the first one has 12 bits: products of two such parts are exact.

Functions of arrays, and of values of programs, with an error of three units in the last place.

Sources: IEEE 754-2019, 9.2; coefficients of Cephes 2.8, ``sinhf.c`` and ``ndtrf.c`` (S. Moshier).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .array_functions import bits_of, convert
from .element_types import F32, I32, AnyArray

_MANTISSA_BITS, _BIAS = 23, 127
_HEAD_MASK = -(1 << 12)
"""The bits of an f32 that has 12 bits of significand."""
_SUBNORMAL_SCALE_BITS = 24
"""Subnormals times two to this power are normal numbers."""
_LEAST_BITS = 0x3F5DB3D7
"""The bits of the f32 that is nearest to ``sqrt(3) / 2``."""
_MAX_EXPONENT = 250.0
"""Powers of two are infinite from here on, and 0 up to its negative; half of it is in range."""
_MAX_OPERAND = 2.0**40
"""Exponents of more give 0, 1 or infinity."""
_FACTOR_HEAD = 2.884765625
_FACTOR = 2.0 / math.log(2.0)
_FACTOR_REST = _FACTOR - _FACTOR_HEAD
"""``2 / log(2)`` in two parts."""
_LOG_3_2_HEAD = 599 / 1024
_LOG_3_2_REST = math.log2(1.5) - _LOG_3_2_HEAD
"""The logarithm of 3/2 to base 2 in two parts."""
_LOG_E_HEAD = 1.4423828125
_LOG_E_REST = 1.0 / math.log(2.0) - _LOG_E_HEAD
"""The logarithm of e to base 2 in two parts."""
_EXP2 = (
    *(6.931472028550421e-1, 2.402264791363012e-1, 5.550332471162809e-2, 9.618437357674640e-3),
    *(1.339887440266574e-3, 1.535336188319500e-4),
)
"""Coefficients of ``(2**x - 1) / x`` from -1/2 to 1/2."""
_SINH = (1.66667160211e-1, 8.33028376239e-3, 2.03721912945e-4)
"""Coefficients of ``sinh(x) / x - 1`` below 1, from ``x**2`` on."""
_ERF_SLOPE = 1.125
_ERF = (
    *(1.128379165726710 - _ERF_SLOPE, -3.761262582423300e-1, 1.128358514861418e-1),
    *(-2.685381193529856e-2, 5.188327685732524e-3, -8.010193625184903e-4, 7.853861353153693e-5),
)
"""Coefficients of ``erf(x) / x - _ERF_SLOPE`` below 1, from the constant on."""
_ERFC_BELOW_2 = (
    *(5.638259427386472e-1, -2.741127028184656e-1, 3.404879937665872e-1, -4.944515323274145e-1),
    *(6.210004621745983e-1, -5.824733027278666e-1, 3.687424674597105e-1, -1.387039388740657e-1),
    2.326819970068386e-2,
)
_ERFC_FROM_2 = (
    *(5.641895067754075e-1, -2.820767439740514e-1, 4.218463358204948e-1, -1.015265279202700),
    *(2.921019019210786, -7.495518717768503, 1.297719955372516e1, -1.047766399936249e1),
)
"""Coefficients of polynomials of ``1 / x**2``, from the constant on."""
_ERFC_END = 12.0
"""``erfc`` is 0 from here on."""


def sinh(x: AnyArray) -> AnyArray:
    """The hyperbolic sine."""
    half = _half_exponential(np.abs(x))
    magnitude: AnyArray = half - 0.25 / half
    square = x * x
    small: AnyArray = x + x * (square * _polynomial(square, _SINH))
    return np.where(np.abs(x) < 1.0, small, np.where(x < 0.0, -magnitude, magnitude))


def cosh(x: AnyArray) -> AnyArray:
    """The hyperbolic cosine."""
    half = _half_exponential(np.abs(x))
    result: AnyArray = half + 0.25 / half
    return result


def erfc(x: AnyArray) -> AnyArray:
    """The complementary error function, ``1 - erf(x)``.

    Below 1 it is ``(1 - 1.125 * x) - x * P(x**2)``, then ``exp(-x**2) / x * P(1 / x**2)``.
    """
    size: AnyArray = np.minimum(np.maximum(np.abs(x), 1.0), _ERFC_END)
    head = _head_of(size)
    square = head * head
    square_head = _head_of(square)
    exponential = _exp(-square_head, (head - size) * (head + size) - (square - square_head))
    reciprocal = 1.0 / size
    inverse = reciprocal * reciprocal
    below, above = _polynomial(inverse, _ERFC_BELOW_2), _polynomial(inverse, _ERFC_FROM_2)
    tail: AnyArray = exponential * reciprocal * np.where(size < 2.0, below, above)
    tail = np.where(x < 0.0, 2.0 - tail, tail)
    x_head = _head_of(x)
    near_zero: AnyArray = 1.0 - x_head * _ERF_SLOPE
    near_zero = near_zero - ((x - x_head) * _ERF_SLOPE + x * _polynomial(x * x, _ERF))
    return np.where(np.abs(x) >= 1.0, tail, near_zero)  # NaN: that of x


def power(base: AnyArray, exponent: AnyArray) -> AnyArray:
    """``base**exponent`` of positive, finite bases."""
    head, rest = _logarithm(base)
    size = _clipped(exponent, _MAX_OPERAND)
    size_head = _head_of(size)
    return _exp2(size_head * head, (size - size_head) * head + size * rest)


def _half_exponential(x: AnyArray) -> AnyArray:
    """``exp(x) / 2`` of numbers that are not negative."""
    head = _head_of(np.minimum(x, _MAX_OPERAND))
    return _exp(head, np.where(x < _MAX_OPERAND, x - head, 0.0), -1.0)


def _exp(head: AnyArray, rest: AnyArray, twos: float = 0.0) -> AnyArray:
    """The exponential of a sum, whose first term has 12 bits, times a power of two."""
    product = head * _LOG_E_HEAD
    return _exp2(product, head * _LOG_E_REST + rest * (_LOG_E_HEAD + _LOG_E_REST), twos)


def _exp2(head: AnyArray, rest: AnyArray, twos: float = 0.0) -> AnyArray:
    """Two to the power of a sum of three terms."""
    whole = np.rint(_clipped(head + rest, _MAX_EXPONENT))
    fraction = _clipped((head - whole) + rest, 1.0)
    result: AnyArray = 1.0 + fraction * _polynomial(fraction, _EXP2)
    exponent = convert(whole + twos, I32)
    first = exponent >> 1  # two factors: one would be infinite or subnormal before the result is
    return (result * _power_of_two(first)) * _power_of_two(exponent - first)


def _logarithm(x: AnyArray) -> tuple[AnyArray, AnyArray]:
    """The logarithm to base 2: a part of 12 bits, and the rest.

    ``x = m * 2**e`` with m near a number c, 1 or 3/2; ``log(m / c) = 2 * atanh(s)`` with
    ``s = (m - c) / (m + c)``.
    """
    is_subnormal = x < 2.0**-126
    bits = bits_of(np.where(is_subnormal, x * 2.0**_SUBNORMAL_SCALE_BITS, x), I32)
    twos = (bits - _LEAST_BITS) >> _MANTISSA_BITS
    significand = bits_of(bits - (twos << _MANTISSA_BITS), F32)
    twos = np.where(is_subnormal, twos - _SUBNORMAL_SCALE_BITS, twos)
    is_near_1 = significand < math.sqrt(3 / 2)
    center = np.where(is_near_1, np.float32(1.0), np.float32(1.5))
    numerator, denominator = significand - center, significand + center
    ratio: AnyArray = numerator / denominator
    ratio_head, denominator_head = _head_of(ratio), _head_of(denominator)
    denominator_rest = significand - (denominator_head - center)
    error = (numerator - ratio_head * denominator_head) - ratio_head * denominator_rest
    square = ratio * ratio
    series = ratio * (square * _polynomial(square, [1 / n for n in (3, 5, 7, 9)]))
    rest = ratio_head * _FACTOR_REST + (error / denominator + series) * _FACTOR
    rest = rest + np.where(is_near_1, np.float32(0.0), np.float32(_LOG_3_2_REST))
    whole: AnyArray = convert(twos, F32)
    whole = whole + np.where(is_near_1, np.float32(0.0), np.float32(_LOG_3_2_HEAD))
    head = ratio_head * _FACTOR_HEAD
    result = _head_of((whole + head) + rest)
    return result, ((whole - result) + head) + rest


def _clipped(x: AnyArray, limit: float) -> AnyArray:
    """A number between a limit and its negative."""
    return np.minimum(np.maximum(x, -limit), limit)


def _head_of(x: AnyArray) -> AnyArray:
    """The first 12 bits of the significand."""
    return bits_of(bits_of(x, I32) & _HEAD_MASK, F32)


def _power_of_two(exponent: AnyArray) -> AnyArray:
    """Two to a power, an i32, of normal numbers."""
    return bits_of((exponent + _BIAS) << _MANTISSA_BITS, F32)


def _polynomial(x: AnyArray, coefficients: Sequence[float]) -> AnyArray:
    """A polynomial from its coefficients, the constant first."""
    result: AnyArray = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        result = result * x + coefficient
    return result
