"""LiteRT's functions of 16-bit integers: gemmlowp's fixed point with 15 bits, and its tables.

All products fit 32 bits, in which formulas compute; they are over NumPy's arrays and over values of
a program alike.

Tables have fewer entries than there are integers: between two, values are interpolated.

Sources: gemmlowp, ``fixedpoint.h``; LiteRT, ``reference/portable_tensor_utils.cc``,
``internal/common.h`` (``LUTPopulate``, ``LUTLookup``), ``reference/integer_ops/logistic.h``,
``tanh.h``, ``reference/softmax.h`` (``SoftmaxInt16``), ``activations.cc``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....numerics.array_functions import convert, lookup
from ....numerics.element_types import I32, I64, AnyArray, Array
from ....numerics.fixed_point import divide_by_power, high_product
from .requantization import EXPONENTIALS, divided, leading_zeros, power_of_two, round_away, scaled

__all__ = [
    "function_table",
    "interpolated",
    "logistic",
    "logistic_by_table",
    "softmax",
    "tanh",
    "tanh_by_table",
]

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


# -- tables ---------------------------------------------------------------------------------------

_STEPS = 512


def function_table(
    function: Callable[[Array], Array],
    input_scale: np.floating,
    input_zero_point: int,
    output_scale: np.floating,
    output_zero_point: int,
) -> Array:
    """The 513 entries for a function of 16-bit storage values.

    An entry is lowered by half of the interpolation's error in the middle of its step.

    Args:
        function: of arrays of the dtype of the scales, f32 or f64.
        input_scale, input_zero_point, output_scale, output_zero_point: the parameters.

    Returns:
        int16.
    """
    kind = np.dtype(type(input_scale)).type
    low, high = (kind(input_scale * (end - input_zero_point)) for end in (-32768, 32767))
    ends = [kind(output_scale * (end - output_zero_point)) for end in (-32768, 32767)]
    inverse = kind(65536) / (ends[1] - ends[0])
    step = (high - low) / kind(_STEPS)
    starts = low + np.arange(_STEPS).astype(kind) * step
    following = low + np.arange(1, _STEPS + 1).astype(kind) * step
    first = round_away(function(starts) * inverse)
    middle = round_away(function(starts + step / kind(2)) * inverse)
    between = round_away((function(following) * inverse + first) / kind(2))
    entries = first - round_away((between - middle) / kind(2))
    last = round_away(function(np.array([high], kind)) * inverse)
    whole = np.concatenate([entries, last])
    clipped: Array = np.clip(whole, -32768, 32767)
    return clipped.astype(np.int16)


def interpolated(table: Array, values: AnyArray) -> AnyArray:
    """Look up 16-bit integers.

    Args:
        table: of `function_table`.
        values: 32-bit integers of 16.

    Returns:
        32-bit integers of 16.
    """
    index = (values >> 7) + 256
    slopes = np.diff(table.astype(np.int32)).astype(np.int16).astype(np.int32)
    rise = (lookup(slopes, index) * (values & 127) + 64) >> 7
    return lookup(table[:-1].astype(np.int32), index) + rise


_SIGMOID_STEP = 24  # entries for each whole number


def _sigmoids() -> Array:
    """``sigmoid(n / 24)`` with 16 fractional bits, and half of the interpolation's error."""

    def real(n: Array) -> Array:
        return np.asarray(65536 / (1 + np.exp(-n / _SIGMOID_STEP)))

    n = np.arange(256.0)
    table = np.floor(real(n) + (real(n + 0.5) - (real(n) + real(n + 1)) / 2) / 2 + 0.5)
    table[-1] = 65535
    return table.astype(np.int32)


_SIGMOIDS = _sigmoids()


def _position(values: AnyArray, scale: np.float32, shifts: tuple[int, ...]) -> AnyArray:
    """Values in units of ``2**-12 / 3``."""
    exponent = power_of_two(scale)
    if exponent is not None and exponent + 12 in shifts:
        return values * (3 << (exponent + 12))
    factor, shift = float(scale) * 3 * 4096, 0
    while factor <= 32767 / 2 and shift <= 30:
        factor, shift = factor * 2, shift + 1
    scaled_values = values * int(factor)
    return scaled_values if not shift else (scaled_values + (1 << (shift - 1))) >> shift


def _sigmoid(position: AnyArray, bits: int, most: int) -> AnyArray:
    """Of a magnitude, with as many more bits as there are between two entries."""
    index = position >> bits
    inside = np.minimum(index, 254)
    rise = (position & ((1 << bits) - 1)) * lookup(np.diff(_SIGMOIDS), inside)
    result = (lookup(_SIGMOIDS[:-1], inside) << bits) + rise
    return np.where(index >= 255, most, result)


def logistic_by_table(values: AnyArray, scale: np.float32) -> AnyArray:
    """``1 / (1 + exp(-x))`` with 15 fractional bits, of 32-bit integers of 16 with a scale."""
    position = _position(values, scale, (0,))
    result = _sigmoid(np.abs(position), 9, 0x7FFF << 10)
    half = 1 << 9
    return np.where(position >= 0, result + half, (1 << 25) - result + half - 1) >> 10


def tanh_by_table(values: AnyArray, scale: np.float32) -> AnyArray:
    """``2 * sigmoid(2 * x) - 1`` with 15 fractional bits, of 32-bit integers of 16 with a scale."""
    position = _position(values, scale, (0, 1))
    result = _sigmoid(np.abs(position), 8, 0xFFFF << 8) - (1 << 23)
    return np.where(position >= 0, result + 128, 127 - result) >> 8


def softmax(values: AnyArray, scale: np.float32, beta: float) -> AnyArray:
    """Softmax along the last axis, with 15 fractional bits.

    Args:
        values: int16.
        scale: of the input.
        beta: what differences are multiplied by besides.

    Returns:
        int16.
    """
    unit = np.float64(1.0 / 65535)
    exponentials = function_table(np.exp, 10 * unit, 32767, 2 * unit, 0)
    reciprocals = function_table(lambda x: 1 / (1 + x), unit, -32768, 2 * unit, 0)
    wide = convert(values, I32)
    factor = np.float64(np.float32(scale) * np.float32(beta)) / (10.0 / 65535)
    below = scaled(wide - wide.max(axis=-1, keepdims=True), factor) + 32767
    exps = interpolated(exponentials, np.minimum(np.maximum(below, -32768), 32767))
    total = exps.sum(axis=-1, dtype=np.int32, keepdims=True)
    zeros = convert(leading_zeros(convert(total, I64)), I32)
    shifted = ((convert(total, I64) << convert(zeros - 1, I64)) + (1 << 13)) >> 14
    centered = convert(shifted, I32) - ((1 << 15) + (1 << 16))
    inverse = interpolated(reciprocals, np.minimum(np.maximum(centered, -32768), 32767))
    shift = 31 - zeros
    result = (exps * inverse + (1 << (shift - 1))) >> shift
    return np.minimum(np.maximum(result, 0), 32767).astype(np.int16)
