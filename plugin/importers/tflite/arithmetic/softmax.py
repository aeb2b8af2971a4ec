"""LiteRT's fixed-point logarithm, and the log-softmax of 8 bits that it computes by it.

Source: LiteRT, ``kernels/internal/common.h`` (``log_x_for_x_greater_than_or_equal_to_1``),
``reference/integer_ops/log_softmax.h``, ``quantization_util.cc``.
"""

from __future__ import annotations

import numpy as np

from ....numerics.array_functions import convert, lookup
from ....numerics.element_types import I32, I64, AnyArray, DType
from ....numerics.fixed_point import high_product
from .requantization import (
    below_greatest,
    divided,
    exponentials_of_differences,
    leading_zeros,
    multiplier_and_exponent,
    narrowed,
    one_over_one_plus,
    saturated_shift,
    scaled_by,
)

__all__ = ["log_softmax", "logarithm"]

# With 31 fractional bits:
_LOG_2, _SQRT_HALF, _FOURTH_ROOT_OF_HALF = 1488522236, 1518500250, 1805811301
_ALPHA_N, _ALPHA_D, _ALPHA_I, _ALPHA_F = 117049297, 127690142, 1057819769, 638450708
_QUARTER = 1 << 23  # with 25


def logarithm(values: AnyArray) -> AnyArray:
    """``log`` of numbers of 1 and more with 19 fractional bits, with 26.

    ``value = r * 2**n`` with `r` about 1, for which ``log(r)`` is a quotient of polynomials of its
    distance from the fourth root of a half.

    Args:
        values: int64, from ``2**19`` to ``2**31 - 1``.
    """
    whole_bits = 12
    zeros = leading_zeros(values)
    first = saturated_shift(high_product(values << (zeros - 1), np.int64(_SQRT_HALF)), 1)
    halved = high_product(values, np.int64(_SQRT_HALF))
    headroom = leading_zeros(halved) - 1
    second = np.minimum(values << headroom, (1 << 31) - 1)
    r = np.minimum(first, second)
    power = np.maximum(
        ((whole_bits - zeros) << 25) + _QUARTER, ((whole_bits - headroom) << 25) - _QUARTER
    )
    total = r + _FOURTH_ROOT_OF_HALF
    p = (total + 1) >> 1  # it is positive
    q = (r - _FOURTH_ROOT_OF_HALF) * 2
    square = high_product(q, q)
    numerator = high_product(q, r) + high_product(high_product(q, square), np.int64(_ALPHA_N))
    inner = _ALPHA_I + q + high_product(square, np.int64(_ALPHA_D))
    denominator = high_product(p, inner) + high_product(q, np.int64(_ALPHA_F))
    quotient = high_product(divided(numerator, 6), one_over_one_plus(denominator))
    return saturated_shift(high_product(power, np.int64(_LOG_2)) + quotient, 1)


def log_softmax(values: AnyArray, scale: float, dtype: DType) -> AnyArray:
    """Log-softmax along the last axis of 8-bit storage values.

    Args:
        values: int8 or uint8, at most 4096 along the axis.
        scale: of the input.
        dtype: of the result, whose scale is 1/16, and its zero point the greatest integer.
    """
    found = exponentials_of_differences(scale, 1.0)
    index = below_greatest(values)
    log_of_sum = logarithm(found.total(index))
    inverse = (1 << (31 - found.exponent)) / np.float64(found.multiplier)
    bound = scaled_by(log_of_sum - (1 << 31), *multiplier_and_exponent(inverse))
    rescaled = convert(lookup(found.rescaled.astype(np.int32), index), I64)
    info = np.iinfo(dtype)
    result = divided(rescaled - log_of_sum, 22) + int(info.max)
    is_above = index - 255 > np.maximum(convert(bound, I32), found.least - 1)
    result = np.where(is_above, result, int(info.min))
    return narrowed(result, int(info.min), int(info.max), dtype)
