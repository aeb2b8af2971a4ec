"""LiteRT's lookup tables of functions: 256 entries for 8 bits, 513 interpolated ones for 16 bits.

Sources: LiteRT, ``internal/common.h`` (``LUTPopulate``, ``LUTLookup``), ``activations.cc``,
``reference/integer_ops/logistic.h``, ``tanh.h``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....numerics.array_functions import take
from ....numerics.element_types import AnyArray, Array, DType
from .requantization import checked_log2, round_half_away


def in_f64(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Compute a function of f32 in f64: as C's library rounds it, but for a few results."""

    def rounded(values: Array) -> Array:
        return np.asarray(function(values.astype(np.float64)), values.dtype)

    return rounded


def lookup_table(
    function: Callable[[Array], Array],
    input_scale: np.float32,
    input_zero_point: int,
    output_scale: np.float32,
    output_zero_point: int,
    dtype: DType,
) -> Array:
    """Tabulate a function of f32 arrays on 8-bit storage values, from the lowest value on."""
    info = np.iinfo(dtype)
    storage = np.arange(info.min, info.max + 1)
    expressed = np.float32(input_scale) * (storage - input_zero_point).astype(np.float32)
    inverse = np.float32(1) / np.float32(output_scale)
    rescaled = round_half_away(function(expressed).astype(np.float32) * inverse)
    with np.errstate(over="ignore", invalid="ignore"):
        total = rescaled + np.float32(output_zero_point)
    return np.clip(np.trunc(total), info.min, info.max).astype(dtype)


# -- 16 bits --------------------------------------------------------------------------------------

_INTERVALS = 512
"""Intervals of an interpolated table, each of 128 storage values of 16 bits.

The number is LiteRT's, and `interpolate` has its shift and mask (7 bits): it must not change.
"""


def interpolation_table(
    function: Callable[[Array], Array],
    input_scale: np.floating,
    input_zero_point: int,
    output_scale: np.floating,
    output_zero_point: int,
) -> Array:
    """Tabulate a function of 16-bit storage values in 513 int16 entries.

    Each entry is lowered by half of the interpolation's error in the middle of its interval. The
    function is of arrays of the dtype of the scales, f32 or f64.
    """
    kind = np.dtype(type(input_scale)).type
    low, high = (kind(input_scale * (end - input_zero_point)) for end in (-32768, 32767))
    ends = [kind(output_scale * (end - output_zero_point)) for end in (-32768, 32767)]
    inverse = kind(65536) / (ends[1] - ends[0])
    step = (high - low) / kind(_INTERVALS)
    starts = low + np.arange(_INTERVALS).astype(kind) * step
    following = low + np.arange(1, _INTERVALS + 1).astype(kind) * step
    first = round_half_away(function(starts) * inverse)
    middle = round_half_away(function(starts + step / kind(2)) * inverse)
    between = round_half_away((function(following) * inverse + first) / kind(2))
    entries = first - round_half_away((between - middle) / kind(2))
    last = round_half_away(function(np.array([high], kind)) * inverse)
    clipped: Array = np.clip(np.concatenate([entries, last]), -32768, 32767)
    return clipped.astype(np.int16)


def interpolate(table: Array, values: AnyArray) -> AnyArray:
    """Look up 16-bit integers (as int32) in an `interpolation_table`."""
    index = (values >> 7) + 256
    slopes = np.diff(table.astype(np.int32)).astype(np.int16).astype(np.int32)
    rise = (take(slopes, index) * (values & 127) + 64) >> 7
    return take(table[:-1].astype(np.int32), index) + rise


_SIGMOID_ENTRIES_PER_UNIT = 24
"""Entries of LiteRT's table of the sigmoid for each unit of its argument; not tunable."""


def _sigmoids() -> Array:
    """Tabulate ``sigmoid(n / 24)`` with 16 fractional bits, plus half the interpolation's error."""

    def sigmoid(n: Array) -> Array:
        return np.asarray(65536 / (1 + np.exp(-n / _SIGMOID_ENTRIES_PER_UNIT)))

    n = np.arange(256.0)
    error = sigmoid(n + 0.5) - (sigmoid(n) + sigmoid(n + 1)) / 2
    table = np.floor(sigmoid(n) + error / 2 + 0.5)
    table[-1] = 65535
    return table.astype(np.int32)


_SIGMOIDS = _sigmoids()


def _sigmoid_position(values: AnyArray, scale: np.float32, shifts: tuple[int, ...]) -> AnyArray:
    """Rescale values to units of ``2**-12 / 3``."""
    exponent = checked_log2(scale)
    if exponent is not None and exponent + 12 in shifts:
        return values * (3 << (exponent + 12))
    factor, shift = float(scale) * 3 * 4096, 0
    while factor <= 32767 / 2 and shift <= 30:
        factor, shift = factor * 2, shift + 1
    scaled_values = values * int(factor)
    return scaled_values if not shift else (scaled_values + (1 << (shift - 1))) >> shift


def _sigmoid(position: AnyArray, bits: int, greatest: int) -> AnyArray:
    """Interpolate between entries of `_SIGMOIDS`, with `bits` more fractional bits."""
    index = position >> bits
    bounded = np.minimum(index, 254)
    rise = (position & ((1 << bits) - 1)) * take(np.diff(_SIGMOIDS), bounded)
    result = (take(_SIGMOIDS[:-1], bounded) << bits) + rise
    return np.where(index >= 255, greatest, result)


def logistic_by_table(values: AnyArray, scale: np.float32) -> AnyArray:
    """Compute ``1 / (1 + exp(-x))`` of 16-bit integers (as int32), with 15 fractional bits."""
    position = _sigmoid_position(values, scale, (0,))
    result = _sigmoid(np.abs(position), 9, 0x7FFF << 10)
    half = 1 << 9
    return np.where(position >= 0, result + half, (1 << 25) - result + half - 1) >> 10


def tanh_by_table(values: AnyArray, scale: np.float32) -> AnyArray:
    """Compute ``2 * sigmoid(2 * x) - 1`` of 16-bit integers (as int32), with 15 fractional bits."""
    position = _sigmoid_position(values, scale, (0, 1))
    result = _sigmoid(np.abs(position), 8, 0xFFFF << 8) - (1 << 23)
    return np.where(position >= 0, result + 128, 127 - result) >> 8
