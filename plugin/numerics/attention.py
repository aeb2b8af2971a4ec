"""The meaning of ``subquant.attention``: weighted sums of values, by how keys agree with queries.

`subquant.dialects.attention` has the formulas.
"""

from __future__ import annotations

import numpy as np

from .array_functions import bits_of, dispatched
from .cache_formats import stored_as
from .element_types import F32, I32, AnyArray

_MAX_QUERIES = 128
"""Queries whose scores are computed in one step."""


@dispatched
def attend(
    query: AnyArray,
    keys: AnyArray,
    values: AnyArray,
    position: AnyArray,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    causal: bool = True,
) -> AnyArray:
    """Attend the keys and values of a cache; the result is ``[T, heads, D]``, float32.

    Args:
        query: ``[T, heads, D]``, float32.
        keys, values: ``[context, kv_heads, row]``, in a format of `numerics.cache_formats`, where
            ``T <= context`` and ``kv_heads`` divides ``heads``.
        position: of the first query, an integer.
        window: how many keys a query attends at most; 0 for no such limit.
        softcap: what scores are bounded by; 0 for no bound.
        causal: False lets each query attend all keys, whatever `position` is; the result is 0
            where all scores are -inf.
    """
    count, heads, head_size = query.shape
    context, groups, _ = keys.shape
    start = int(np.clip(position, 0, max(0, context - count)))
    if causal and count > _MAX_QUERIES:  # so that no scores of later keys are computed
        settings = scale, window, softcap
        pieces = [
            attend(query[first : first + _MAX_QUERIES], keys, values, start + first, *settings)
            for first in range(0, count, _MAX_QUERIES)
        ]
        return np.concatenate(pieces)
    first = max(0, start - window + 1) if window else 0
    attended = slice(first, start + count) if causal else slice(None)
    key, value = (
        stored_as(array, head_size).decode(array[attended], head_size) for array in (keys, values)
    )
    grouped = query.reshape((count, groups, heads // groups, head_size))
    scores = np.einsum("tkgd,jkd->kgtj", grouped, key, optimize=True) * np.float32(scale)
    if softcap:
        scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
    if causal:
        at, of = np.arange(first, start + count), np.arange(start, start + count)[:, None]
        is_attended = (at <= of) & (at > of - window) if window else at <= of
        scores = np.where(is_attended, scores, -np.inf)
    greatest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - greatest)
    weights /= weights.sum(-1, keepdims=True)
    if not causal:
        weights = np.where(greatest == -np.inf, 0.0, weights)
    return np.einsum("kgtj,jkd->tkgd", weights, value, optimize=True).reshape(query.shape)


_LOG2_E = 1.4426950408889634
"""The binary logarithm of e."""
_LN_2_HIGH, _LN_2_LOW = 0.693359375, -2.12194440e-4
"""Their sum is ln 2; products of the first with integers of few bits are exact in f32."""
_F32_ROUNDER = 1.5 * 2**23
"""Adding and subtracting it rounds an f32 below 2**22 to an integer, half to even."""
_MIN_EXPONENT = -87.0
"""The exponent up to which exp is 0; exp(-87) is 1.6e-38."""
_COEFFICIENTS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
"""Coefficients of ``(exp(r) - 1 - r) / r**2``, the highest first (Cephes, ``expf``)."""


def exponential(x: AnyArray) -> AnyArray:
    """``exp`` of f32 that are at most 0, within 2 units in the last place; 0 from -87 down.

    With ``n = round(x / ln 2)`` and ``r = x - n ln 2``, at most ``ln 2 / 2`` in magnitude, it is
    ``2**n exp(r)``, where exp is a polynomial.

    Source: Cephes, ``expf``.
    """
    inside = np.maximum(x, _MIN_EXPONENT)
    shifted = inside * _LOG2_E + _F32_ROUNDER
    n = shifted - _F32_ROUNDER
    r = (inside - n * _LN_2_HIGH) - n * _LN_2_LOW
    total = r * _COEFFICIENTS[0] + _COEFFICIENTS[1]
    for coefficient in _COEFFICIENTS[2:]:
        total = total * r + coefficient
    fraction_exp = total * (r * r) + r + 1.0
    power = bits_of((bits_of(shifted, I32) + 127) << 23, F32)
    return np.where(x <= _MIN_EXPONENT, 0.0, fraction_exp * power)  # NaN stays NaN


def bounded(score: AnyArray, softcap: float) -> AnyArray:
    """``softcap * tanh(score / softcap)`` of f32, off by at most 4 units of the softcap's.

    ``tanh |x| = (1 - e) / (1 + e)`` with ``e = exp(-2 |x|)``.
    """
    e = exponential(np.abs(score) * (-2.0 / softcap))
    magnitude = (1.0 - e) / (1.0 + e) * softcap
    return np.where(score < 0.0, -magnitude, magnitude)
