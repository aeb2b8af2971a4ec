"""Sine, cosine, tangent and their inverses of f32: of arrays, and of values of programs.

The magnitude of an angle is reduced to ``[-pi/4, pi/4]`` (Payne and Hanek). Its significand, an
integer ``m`` of 24 bits, is multiplied with 96 bits of ``2 / pi``. The bits before them have
products with ``m`` that are multiples of four quarter turns, and are left out. Integers are exact:
the reduced angle has an error of one unit in the last place, whatever the number of turns. There,
polynomials compute sine and cosine.

Sources: M. Payne and R. Hanek, "Radian reduction for trigonometric functions", 1983; coefficients
of Cephes 2.8, ``sinf.c`` (S. Moshier).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from .array_functions import bits_of, convert
from .element_types import F32, I32, I64, AnyArray

_TWO_OVER_PI = (
    *(0, 0xA2F9836E, 0x4E441529, 0xFC2757D1),
    *(0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB),
)
"""The bits of ``2 / pi`` behind the point, in words of 32, and a word of zeros before them."""
_WORDS = 4
"""Words that have the 96 bits of a product, which may begin inside a word."""
_WORD_BITS, _WORD = 32, 0xFFFFFFFF
_FIRST_BIT = 120
"""The exponent, as stored, of angles whose product begins with the first bit of the words."""
_MANTISSA_BITS, _INFINITE = 23, 0xFF
_SIGN = -(1 << 31)
_QUARTER_BITS = 30
"""Bits of the product behind the number of quarter turns, in its first word."""
_SINE = (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
_COSINE = (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)
_TINY = 2.0**-12
"""The sine and the tangent of smaller angles are the angles."""


def sine(x: AnyArray) -> AnyArray:
    """The sine of f32 angles in radians, with an error of two units in the last place."""
    quarters, of_sine, of_cosine = _of_magnitude(x)
    value = np.where((quarters & 1) == 0, of_sine, of_cosine)
    value = _with_sign(value, (quarters << 30) ^ bits_of(x, I32))
    return _finished(x, np.where(np.abs(x) < _TINY, x, value))


def cosine(x: AnyArray) -> AnyArray:
    """The cosine of f32 angles in radians, with an error of two units in the last place."""
    quarters, of_sine, of_cosine = _of_magnitude(x)
    value = np.where((quarters & 1) == 0, of_cosine, of_sine)
    return _finished(x, _with_sign(value, (quarters + 1) << 30))


def tangent(x: AnyArray) -> AnyArray:
    """The tangent of f32 angles in radians, with an error of four units in the last place."""
    quarters, of_sine, of_cosine = _of_magnitude(x)
    is_even = (quarters & 1) == 0
    value = np.where(is_even, of_sine, -of_cosine) / np.where(is_even, of_cosine, of_sine)
    return _finished(x, np.where(np.abs(x) < _TINY, x, _with_sign(value, bits_of(x, I32))))


def arcsine(x: AnyArray) -> AnyArray:
    """The arcsine, ``atan2(x, sqrt((1 - x) * (1 + x)))``; the differences have no large error."""
    return np.arctan2(x, np.sqrt((1.0 - x) * (1.0 + x)))


def arccosine(x: AnyArray) -> AnyArray:
    """The arccosine, ``2 * atan2(sqrt(1 - x), sqrt(1 + x))``."""
    result: AnyArray = 2.0 * np.arctan2(np.sqrt(1.0 - x), np.sqrt(1.0 + x))
    return result


def _finished(x: AnyArray, value: AnyArray) -> AnyArray:
    """NaN for infinities and NaN."""
    is_finite = ((bits_of(x, I32) >> _MANTISSA_BITS) & _INFINITE) != _INFINITE
    return np.where(is_finite, value, x - x)


def _with_sign(value: AnyArray, sign: AnyArray) -> AnyArray:
    """A number, negated where the first bit of an i32 is set."""
    return bits_of(bits_of(value, I32) ^ (sign & _SIGN), F32)


def _of_magnitude(x: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
    """The quarter turns in ``|x|``, i32, modulo 4; sine and cosine of the rest."""
    magnitude = np.abs(x)
    quarters, large_rest = _reduced(magnitude)
    is_small = magnitude < np.float32(math.pi / 4)
    quarters = np.where(is_small, 0, quarters)
    rest: AnyArray = np.where(is_small, magnitude, large_rest)
    square = rest * rest
    of_sine = square * (_SINE[0] + square * (_SINE[1] + square * _SINE[2]))
    of_cosine = square * (_COSINE[0] + square * (_COSINE[1] + square * _COSINE[2]))
    sine_of_rest: AnyArray = rest + rest * of_sine
    cosine_of_rest: AnyArray = 1.0 - (0.5 * square - square * of_cosine)
    return quarters, sine_of_rest, cosine_of_rest


def _reduced(magnitude: AnyArray) -> tuple[AnyArray, AnyArray]:
    """The quarter turns in angles of pi/4 and more, i32, and the rest, in radians."""
    bits = bits_of(magnitude, I32)
    significand = (bits & ((1 << _MANTISSA_BITS) - 1)) | (1 << _MANTISSA_BITS)
    first = convert(np.maximum((bits >> _MANTISSA_BITS) - _FIRST_BIT, 0), I64)
    word, shift = first >> 5, first & (_WORD_BITS - 1)
    words = [_chosen(word, _TWO_OVER_PI[number:]) for number in range(_WORDS)]
    factors = [
        ((left << shift) | (right >> (_WORD_BITS - shift))) & _WORD
        for left, right in itertools.pairwise(words)
    ]
    multiplier = convert(significand, I64)
    low = multiplier * factors[2]
    middle = multiplier * factors[1] + (low >> _WORD_BITS)
    high = (multiplier * factors[0] + (middle >> _WORD_BITS)) & _WORD
    quarters = (high + (1 << (_QUARTER_BITS - 1))) >> _QUARTER_BITS
    rest: AnyArray = convert(convert(high - (quarters << _QUARTER_BITS), I32), F32)
    fraction = convert(convert((middle & _WORD) >> 8, I32), F32) * 2.0**-24
    return convert(quarters, I32), (rest + fraction) * (math.pi / 2 * 2.0**-_QUARTER_BITS)


def _chosen(index: AnyArray, words: Sequence[int]) -> AnyArray:
    """The word at an index less than 5; a selection is faster than a gather."""
    *candidates, last = words[: len(_TWO_OVER_PI) - _WORDS + 1]
    chosen: AnyArray | int = last
    for number, candidate in reversed(list(enumerate(candidates))):
        chosen = np.where(index == number, candidate, chosen)
    assert not isinstance(chosen, int)
    return chosen
