"""Requantization with one rounding, ``TfLiteRound(double(value) * factor)``, in integers.

Source: LiteRT, ``reference/integer_ops/fully_connected.h``, ``kernels/internal/common.h``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ....errors import UnsupportedError
from ....numerics.array_functions import convert
from ....numerics.element_types import I64, AnyArray, Array
from .fixed_point_functions import leading_zeros
from .requantization import round_half_away

_PRODUCT_BITS = 62
"""The bits of a product that i64 holds, with room for the half that rounds it."""
_LOWER_WORD_BITS = 27
"""The bits of the lower of two words of a factor, which has 53."""
_MAX_CHECKED_STEPS = 1 << 20
"""With more steps between results, over all factors, the check at every step is left out."""


def rescale_once(
    values: AnyArray, factors: npt.ArrayLike, bound: int, low: int, high: int
) -> AnyArray:
    """Compute ``TfLiteRound(double(value) * factor)``, clamped, in integers.

    The magnitude of a value is multiplied by the factor with as many bits as fit 64, and rounded
    half up. This product and the f64 product are both monotone in the value, so they are the same
    function if they agree on both sides of each step between two results. The importer compares
    them at every step. Where they differ, or there are too many steps, `_rescale_as_f64` is used.

    Args:
        values: integers of at most 37 bits.
        factors: positive f64; broadcasts with `values`.
        bound: the greatest magnitude of values.
        low, high: clamping range of results.

    Returns:
        64-bit integers.

    Raises:
        UnsupportedError: `bound` is ``2**36`` or more, or a factor is ``2**24`` or more.
    """
    factor = np.asarray(factors, np.float64)
    if bound >= 1 << 36 or (factor >= 1 << 24).any():
        raise UnsupportedError(
            f"has accumulators of up to {bound:,} and factors of up to {factor.max():.3g}; "
            "expected accumulators under 2**36 and factors under 2**24"
        )
    wide = convert(values, I64)
    fraction, exponent = np.frexp(factor)
    digits = _PRODUCT_BITS - max(bound, 1).bit_length()
    shift = np.minimum(digits - np.asarray(exponent, np.int64), _PRODUCT_BITS)
    scaled_fraction = np.ldexp(fraction, np.asarray(shift + exponent, np.int32))
    multiplier = round_half_away(scaled_fraction).astype(np.int64)
    if (high - low) * factor.size <= _MAX_CHECKED_STEPS:
        steps = np.stack(_steps(factor, bound, low, high))
        if (_rescale_magnitude(steps, multiplier, shift) == _in_f64(steps, factor)).all():
            return np.minimum(np.maximum(_rescale_magnitude(wide, multiplier, shift), low), high)
    return np.minimum(np.maximum(_rescale_as_f64(wide, factor), low), high)


def _rescale_as_f64(values: AnyArray, factor: Array) -> AnyArray:
    """Round the two-word product to the 53 bits of f64, and then half away from zero.

    Rounding to 53 bits matters only just below a half, where it adds up to half of the last bit.
    A half itself has few bits, so a tie of the first rounding goes to it.
    """
    fraction, exponent = np.frexp(factor)
    whole = np.ldexp(fraction, 53).astype(np.int64)
    upper, lower = whole >> _LOWER_WORD_BITS, whole & ((1 << _LOWER_WORD_BITS) - 1)
    shift = 53 - np.asarray(exponent, np.int64) - _LOWER_WORD_BITS
    underflows = shift > _PRODUCT_BITS  # every product is under a half
    upper, lower = np.where(underflows, 0, upper), np.where(underflows, 0, lower)
    shift = np.where(underflows, _PRODUCT_BITS, shift)
    negative = values < 0
    magnitude = np.where(negative, -values, values)
    low_product = magnitude * lower
    high = magnitude * upper + (low_product >> _LOWER_WORD_BITS)
    bits = 64 - leading_zeros(high, 64)
    half_ulp = np.where(bits >= _LOWER_WORD_BITS, 1 << np.maximum(bits - _LOWER_WORD_BITS, 0), 0)
    low_bits = low_product & ((1 << _LOWER_WORD_BITS) - 1)
    high = high + ((low_bits + half_ulp) >> _LOWER_WORD_BITS)
    rounded = (high + (np.int64(1) << (shift - 1))) >> shift
    return np.where(negative, -rounded, rounded)


def _rescale_magnitude(values: AnyArray, multiplier: Array, shift: Array) -> AnyArray:
    negative = values < 0
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
    magnitude = (np.where(negative, -values, values) * multiplier + half) >> shift
    return np.where(negative, -magnitude, magnitude)


def _in_f64(values: Array, factor: Array) -> Array:
    return round_half_away(values.astype(np.float64) * factor)


def _steps(factor: Array, bound: int, low: int, high: int) -> tuple[Array, Array]:
    """For each result but the first, return the last value below its step and the first at it.

    The arrays have the shape ``[high - low, *factor.shape]``, clamped to `bound`.
    """
    results = np.arange(low + 1, high + 1).reshape(-1, *(1,) * factor.ndim)
    guess = np.clip((results - 0.5) / factor, -bound, bound)
    first = np.floor(guess).astype(np.int64) - 2
    for _ in range(4):
        first = np.where(_in_f64(first, factor) < results, first + 1, first)
    first = np.clip(first, -bound, bound)
    return np.clip(first - 1, -bound, bound), first
