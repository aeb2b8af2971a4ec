"""Searches for the scales of GGML's blocks, bit-equal to those of llama.cpp.

All functions take arrays with the elements of a block along axis 0: ``[B, n]`` float32 for ``n``
blocks. Sums run over the elements in order, in float32, as the loops of ggml do; products and sums
are rounded one by one. No flag of ggml's build allows a compiler to reorder sums. A
compiler may fuse a product and a sum on a target with fused instructions (x86-64 has none by
default); the blocks of that build can differ from these in a last bit.

Each search minimizes ``sum_k w[k] (x[k] - value[k])**2`` for weights ``w`` of the elements.

Source: ggml-quants.c of llama.cpp, ``make_qx_quants``, ``make_q3_quants``, ``make_qkx2_quants``,
``make_qkx3_quants``, ``make_qp_quants``, ``quantize_row_iq4_nl_impl``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..numerics.element_types import Array

NO_MAGNITUDE = np.float32(1e-15)
"""Blocks of lesser magnitudes have the scale 0 (``GROUP_MAX_EPS``)."""

_HALF_STEP = np.float32(0.1)
"""Steps in which the searches change a range, in integers."""


def sequential_sum(terms: Array) -> Array:
    """Return the sum over axis 0, from the first element on."""
    total = np.zeros(terms.shape[1:], np.float32)
    for term in terms:
        total += term
    return total


def nearest_int(values: Array) -> Array:
    """Return the nearest integers, ties to even, int32.

    Magnitudes of 2**22 and above, infinities and NaN give the low bits of a sum, as in ggml.
    """
    bits = (values + np.float32(12582912)).view(np.int32)
    integers: Array = (bits & np.int32(0x7FFFFF)) - np.int32(0x400000)
    return integers


def range_factors(start: float, step: float, count: int, most: int) -> list[np.float32]:
    """Return ``start + step i + most`` for ``i`` from 0 to `count`, rounded at each operation."""
    first, width = np.float32(start), np.float32(step)
    return [first + width * np.float32(number) + np.float32(most) for number in range(count + 1)]


def fit_with_minimum(
    x: Array, weights: Array, most: int, factors: Sequence[np.float32]
) -> tuple[Array, Array, Array]:
    """Fit ``d q - m`` with integers ``q`` from 0 to `most`, and ``m`` of 0 or more.

    Each factor tries the integers of another range, with the scale and minimum that fit them best.

    Returns:
        ``d`` and ``m``, float32 ``[n]``, and ``q``, float32 ``[B, n]``.
    """
    low, high = x.min(0), x.max(0)
    low = np.where(low > 0, np.float32(0), low)  # a minimum of -0 stays
    first_low, is_flat = low, low == high
    sum_w, sum_x = sequential_sum(weights), sequential_sum(weights * x)
    with np.errstate(all="ignore"):
        inverse = np.float32(most) / (high - low)
        scale = np.float32(1) / inverse
        q = np.clip(np.rint(inverse * (x - low)), 0, most)
        error = sequential_sum(weights * np.square(scale * q + low - x))
        for factor in factors:
            inverse = factor / (high - low)
            # The minimum may come near the greatest element: NaN becomes 0, infinity `most`.
            tried = np.rint(np.fmin(np.fmax(inverse * (x - low), 0), most))
            products = weights * tried
            sum_q = sequential_sum(products)
            sum_q2, sum_xq = sequential_sum(products * tried), sequential_sum(products * x)
            determinant = sum_w * sum_q2 - sum_q * sum_q
            slope = (sum_w * sum_xq - sum_x * sum_q) / determinant
            intercept = (sum_q2 * sum_x - sum_q * sum_xq) / determinant
            is_above = intercept > 0
            slope = np.where(is_above, sum_xq / sum_q2, slope)
            intercept = np.where(is_above, np.float32(0), intercept)
            tried_error = sequential_sum(weights * np.square(slope * tried + intercept - x))
            is_better = (determinant > 0) & (tried_error < error)
            error = np.where(is_better, tried_error, error)
            scale, low = np.where(is_better, slope, scale), np.where(is_better, intercept, low)
            np.copyto(q, tried, where=is_better)
    q[:, is_flat] = 0
    return (
        np.where(is_flat, np.float32(0), scale),
        -np.where(is_flat, first_low, low),
        q,
    )


def fit_positive(x: Array, weights: Array, most: int) -> tuple[Array, Array]:
    """Fit ``d q`` with integers ``q`` from 0 to `most`, for elements of 0 or more.

    Returns:
        ``d``, float32 ``[n]``, and ``q``, uint8 ``[B, n]``.
    """
    high = np.maximum(x.max(0), np.float32(0))
    is_zero = high < NO_MAGNITUDE
    with np.errstate(all="ignore"):
        inverse = np.float32(most) / high
        error = _positive_error(x, weights, nearest_int(inverse * x), np.float32(1) / inverse)
        for number in (-4, -3, -2, -1, 1, 2, 3, 4):
            tried = (_HALF_STEP * np.float32(number) + np.float32(most)) / high
            integers = np.minimum(nearest_int(tried * x), most)
            tried_error = _positive_error(x, weights, integers, np.float32(1) / tried)
            is_better = tried_error < error
            error = np.where(is_better, tried_error, error)
            inverse = np.where(is_better, tried, inverse)
        q = np.minimum(nearest_int(inverse * x), most)
        scale = _descend(x, weights, q, 0, most)
    q[:, is_zero] = 0
    return np.where(is_zero, np.float32(0), scale), q.astype(np.uint8)


def _positive_error(x: Array, weights: Array, integers: Array, scale: Array) -> Array:
    difference = x - scale * integers.astype(np.float32)
    return sequential_sum(weights * difference * difference)


def _descend(x: Array, weights: Array, q: Array, low: int, most: int) -> Array:
    """Improve integers `q`, int32 ``[B, n]``, one by one; return the scales that fit them.

    The error of the best scale falls as ``(sum w x q)**2 / sum w q**2`` grows. An element's integer
    is that nearest to it for the scale of the other elements.
    """
    weighted = weights * x
    floats = q.astype(np.float32)
    sum_xq = sequential_sum(weighted * floats)
    sum_q2 = sequential_sum(weights * floats * floats)
    for _ in range(5):
        for element in range(len(x)):
            w, wx, old = weights[element], weighted[element], q[element].astype(np.float32)
            other_xq, other_q2 = sum_xq - wx * old, sum_q2 - w * old * old
            is_defined = (other_xq > 0) & ((other_q2 > 0) | (low < 0))
            tried = nearest_int(x[element] * other_q2 / other_xq)
            tried = np.minimum(tried, most) if low == 0 else np.clip(tried, low, most)
            new = tried.astype(np.float32)
            new_xq, new_q2 = other_xq + wx * new, other_q2 + w * new * new
            is_better = new_xq * new_xq * sum_q2 > sum_xq * sum_xq * new_q2
            is_better &= is_defined & (new_q2 > 0) & (tried != q[element])
            np.copyto(q[element], tried, where=is_better)
            sum_xq = np.where(is_better, new_xq, sum_xq)
            sum_q2 = np.where(is_better, new_q2, sum_q2)
    result: Array = np.where(sum_q2 > 0, sum_xq / sum_q2, np.float32(0))
    return result


def peaks(x: Array) -> Array:
    """Return the first element of the greatest magnitude of each block, ``[n]``."""
    first = np.abs(x).argmax(0)
    result: Array = np.take_along_axis(x, first[None], 0)[0] + np.float32(0)  # no -0
    return result


def fit_symmetric(x: Array, weights: Array, half: int) -> tuple[Array, Array]:
    """Fit ``d q`` with integers ``q`` from ``-half`` to ``half - 1``.

    Returns:
        ``d``, float32 ``[n]``, and ``q + half``, float32 ``[B, n]``.
    """
    peak = peaks(x)
    is_zero = np.abs(peak) < NO_MAGNITUDE
    weighted = weights * x
    steps = [0, *range(-9, 0), *range(1, 10)]
    q, scale, best = np.empty_like(x), np.zeros_like(peak), np.zeros_like(peak)
    with np.errstate(all="ignore"):
        for number in steps:
            inverse = -(np.float32(half) + _HALF_STEP * np.float32(number)) / peak
            tried = np.clip(np.rint(inverse * x), -half, half - 1)
            sum_xq = sequential_sum(weighted * tried)
            sum_q2 = sequential_sum(weights * tried * tried)
            is_better = (sum_q2 > 0) & (sum_xq * sum_xq > best * sum_q2)
            if number == 0:
                q, is_better = tried, sum_q2 != 0
            scale = np.where(is_better, sum_xq / sum_q2, scale)
            best = np.where(is_better, scale * sum_xq, best)
            np.copyto(q, tried, where=is_better)
    q += np.float32(half)
    q[:, is_zero] = 0
    return np.where(is_zero, np.float32(0), scale), q


def fit_symmetric_by_descent(x: Array, half: int) -> tuple[Array, Array]:
    """Fit as `fit_symmetric`, with ``x**2`` as weights, from one range on by descent."""
    peak = peaks(x)
    is_zero = np.abs(peak) < NO_MAGNITUDE
    with np.errstate(all="ignore"):
        inverse = np.float32(-half) / peak
        q = np.clip(nearest_int(inverse * x), -half, half - 1)
        scale = _descend(x, x * x, q, -half, half - 1)
    q += half
    q[:, is_zero] = 0
    return np.where(is_zero, np.float32(0), scale), q.astype(np.float32)


class Codebook:
    """Levels of 4-bit indices, ascending integers, and the search for the scale of a block."""

    def __init__(self, levels: Sequence[int]) -> None:
        self.levels = np.array(levels, np.float32)
        # Twice the middle of two levels is an integer: the floor of twice a value tells its side.
        self._first = levels[0] + levels[1] - 1
        doubles = np.arange(self._first, levels[-1] + levels[-2] + 1)
        middles = np.add(levels[:-1], levels[1:])
        self._indices = np.searchsorted(middles, doubles, side="right").astype(np.uint8)

    def nearest(self, values: Array) -> Array:
        """Return the indices of the nearest levels, the greater of two, uint8."""
        last = self._first + len(self._indices) - 1
        floors = np.fmin(np.fmax(np.floor(values + values), self._first), last)
        indices: Array = self._indices[(floors - np.float32(self._first)).astype(np.int32)]
        return indices

    def fit(self, x: Array, weights: Array, tries: int) -> Array:
        """Return the scales of blocks, float32 ``[n]``."""
        peak = peaks(x)
        with np.errstate(all="ignore"):
            inverse = np.float32(1) / (-peak / self.levels[0])
            sum_xq, sum_q2 = self._products_with_levels(x, weights, inverse)
            scale = np.where(sum_q2 > 0, sum_xq / sum_q2, np.float32(0))
            best = scale * sum_xq
            for number in range(-tries, tries + 1):
                sum_xq, sum_q2 = self._products_with_levels(
                    x, weights, (number + self.levels[0]) / peak
                )
                is_better = (sum_q2 > 0) & (sum_xq * sum_xq > best * sum_q2)
                scale = np.where(is_better, sum_xq / sum_q2, scale)
                best = np.where(is_better, scale * sum_xq, best)
        return np.where(np.abs(peak) < NO_MAGNITUDE, np.float32(0), scale)

    def _products_with_levels(
        self, x: Array, weights: Array, inverse: Array
    ) -> tuple[Array, Array]:
        levels = self.levels[self.nearest(inverse * x)]
        products = weights * levels
        return sequential_sum(products * x), sequential_sum(products * levels)
