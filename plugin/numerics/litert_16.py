"""LiteRT's functions of 16-bit integers: gemmlowp's fixed point with 15 bits.

All products fit 32 bits, in which formulas compute; they are over NumPy's arrays and over values of
a program alike.

Sources: gemmlowp, ``fixedpoint.h``; LiteRT, ``reference/portable_tensor_utils.cc``.
"""

from __future__ import annotations

import numpy as np

from .element_types import AnyArray
from .fixed_point import divide_by_power, high_product
from .litert import EXPONENTIALS, divided

__all__ = ["logistic", "tanh"]

_ONE = (1 << 15) - 1


def _constant(number: int) -> int:
    """A constant of 31 bits with 15."""
    return int(divide_by_power(np.int64(number), np.int64(16)))


def _product(left: AnyArray, right: AnyArray) -> AnyArray:
    return high_product(left, right, 15)


def _exponential(values: AnyArray, integer_bits: int) -> AnyArray:
    """``exp`` with 15 fractional bits.

    Args:
        values: from ``-2**15`` to 0.
        integer_bits: how many bits count whole numbers, besides the sign.
    """
    fraction = 15 - integer_bits
    quarter = 1 << (fraction - 2)
    rest = (values & (quarter - 1)) - quarter
    x = (rest << integer_bits) + (1 << 12)
    x2 = _product(x, x)
    x3, x4 = _product(x2, x), _product(x2, x2)
    tail = divided(_product(divided(x4, 2) + x3, _constant(715827883)) + x2, 1)
    start = _constant(1895147668)
    result = np.minimum(_product(x + tail, start) + start, _ONE)
    remainder = rest - values
    for exponent, factor in EXPONENTIALS:
        if exponent < integer_bits:
            is_set = (remainder & (1 << (fraction + exponent))) != 0
            result = np.where(is_set, _product(result, _constant(factor)), result)
    if integer_bits > 5:
        result = np.where(values < -(32 << fraction), 0, result)
    return np.where(values == 0, _ONE, result)


def _reciprocal(values: AnyArray) -> AnyArray:
    """``2 / (1 + value)`` with 13 fractional bits, by Newton's method.

    Args:
        values: in [0, 1], with 15 fractional bits.
    """
    half_denominator = (values + _ONE + 1) >> 1
    x = _product(half_denominator, _constant(-1010580540)) + _constant(1515870810)
    for _ in range(3):
        rest = (1 << 13) - _product(half_denominator, x)
        x = x + (_product(x, rest) << 2)
    return x


def logistic(values: AnyArray) -> AnyArray:
    """``1 / (1 + exp(-x))`` with 15 fractional bits: gemmlowp's ``logistic``.

    Args:
        values: 32-bit integers of 16, with 12 fractional bits.
    """
    x = _reciprocal(_exponential(-np.abs(values), 3))
    positive = np.minimum(x << 1, _ONE)
    result = np.where(values > 0, positive, _ONE - positive)
    return np.where(values == 0, 1 << 14, result)


def tanh(values: AnyArray, integer_bits: int) -> AnyArray:
    """``tanh`` with 15 fractional bits: gemmlowp's.

    Args:
        values: 32-bit integers of 16.
        integer_bits: how many of them count whole numbers, besides the sign: 0 to 6.
    """
    x = _reciprocal(_exponential(-np.abs(values), integer_bits + 1))
    positive = np.minimum((x - (1 << 13)) << 2, _ONE)
    return np.where(values == 0, 0, np.where(values < 0, -positive, positive))
