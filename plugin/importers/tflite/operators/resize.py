"""Importers that resize images.

Sources: LiteRT, ``reference/resize_bilinear.h``, ``resize_nearest_neighbor.h``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....numerics.array_functions import convert, rounded_product, take
from ....numerics.element_types import F32, I32, I64, AnyArray, Array
from ..arithmetic.requantization import round_half_away, rounding_right_shift, saturating_cast
from ..call import Call, importer

_WEIGHT_BITS = 10
"""Fractional bits of integer weights along each axis: LiteRT's, not tunable."""


def _result_sizes(call: Call) -> list[int]:
    operand, sizes = call.input(0), call.constant_list(1)
    if len(operand.shape) != 4 or len(sizes) != 2 or min(*sizes, *operand.shape[1:3]) < 1:
        raise call.error(f"cannot resize {list(operand.shape)} to {sizes}")
    return sizes


def _scale(result_size: int, size: int, align_corners: bool) -> np.float32:
    if align_corners and result_size > 1:
        return np.float32(size - 1) / np.float32(result_size - 1)
    return np.float32(size) / np.float32(result_size)


@importer("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest_neighbor(call: Call) -> AnyArray:
    """Import RESIZE_NEAREST_NEIGHBOR; coordinates are computed in f32."""
    value, options = call.input(0).value, call.options
    for axis, result_size in enumerate(_result_sizes(call), 1):
        size = value.shape[axis]
        scale = _scale(result_size, size, options.align_corners)
        offset = np.float32(0.5 if options.half_pixel_centers else 0)
        coordinates = (np.arange(result_size, dtype=np.float32) + offset) * scale
        nearest = (round_half_away if options.align_corners else np.floor)(coordinates)
        value = take(value, np.clip(nearest, 0, size - 1).astype(np.int32), axis)
    return value


@importer("RESIZE_BILINEAR")
def resize_bilinear(call: Call) -> AnyArray:
    """Import RESIZE_BILINEAR; integers have weights with 10 fractional bits along each axis."""
    operand, options = call.input(0), call.options
    sizes = _result_sizes(call)
    if operand.tensor.type == "UINT8":
        return _resize_uint8(call, sizes)
    value = operand.value
    if not operand.is_float:
        value = convert(value, I32 if operand.tensor.type == "INT8" else I64)
    weights_of = _float_weights if operand.is_float else _integer_weights
    for axis, result_size in enumerate(sizes, 1):
        low, high, weights = weights_of(
            result_size, value.shape[axis], options.align_corners, options.half_pixel_centers
        )
        weights = weights.reshape((-1, *(1,) * (3 - axis)))
        one = weights.dtype.type(1 if operand.is_float else 1 << _WEIGHT_BITS)
        left, right = (take(value, indices, axis) for indices in (low, high))
        value = left * (one - weights) + right * weights
    if operand.is_float:
        return value
    if operand.tensor.type == "INT8":
        return rounding_right_shift(value, 2 * _WEIGHT_BITS).astype(np.int8)
    half = np.where(value > 0, np.int64(1 << 19), np.int64((1 << 19) - 1))
    return ((value + half) >> (2 * _WEIGHT_BITS)).astype(np.int16)


def _resize_uint8(call: Call, sizes: Sequence[int]) -> AnyArray:
    """Resize uint8 in f32: four products in LiteRT's order, each rounded, plus a half."""
    value, options = call.input(0).value, call.options
    rows, columns = (
        _float_weights(result_size, size, options.align_corners, options.half_pixel_centers)
        for result_size, size in zip(sizes, value.shape[1:3], strict=True)
    )
    one = np.float32(1)
    total: AnyArray = np.float32(0)
    row_weights, column_weights = rows[2].reshape((-1, 1, 1)), columns[2].reshape((-1, 1))
    for right in (False, True):
        for lower in (False, True):
            corner = take(take(value, rows[lower], 1), columns[right], 2)
            product = convert(corner, F32) * (row_weights if lower else one - row_weights)
            factor = column_weights if right else one - column_weights
            total = total + rounded_product(product, factor)
    truncated = convert(total + np.float32(0.5), I32)
    return saturating_cast(truncated, 0, 255, np.dtype(np.uint8))


def _float_weights(
    result_size: int, size: int, align_corners: bool, half_pixel_centers: bool
) -> tuple[Array, Array, Array]:
    """Return the two source indices of each result, and the weight of the second."""
    scale = _scale(result_size, size, align_corners)
    coordinates = np.arange(result_size, dtype=np.float32)
    half = np.float32(0.5)
    coordinates = (coordinates + half) * scale - half if half_pixel_centers else coordinates * scale
    low = np.maximum(np.floor(coordinates), 0).astype(np.int32)
    high = np.minimum(np.ceil(coordinates), size - 1).astype(np.int32)
    return low, high, (coordinates - low.astype(np.float32)).astype(np.float32)


def _integer_weights(
    result_size: int, size: int, align_corners: bool, half_pixel_centers: bool
) -> tuple[Array, Array, Array]:
    """Return indices and weights as `_float_weights` does, weights with 10 fractional bits."""
    one = 1 << _WEIGHT_BITS
    scale = (one * size + result_size // 2) // result_size
    if align_corners and result_size > 1:
        scale = (one * (size - 1) + (result_size - 1) // 2) // (result_size - 1)
    coordinates = np.arange(result_size, dtype=np.int64) * scale
    if half_pixel_centers:
        coordinates = coordinates + scale // 2 - one // 2
    low = np.maximum(coordinates, 0) // one  # C divides toward zero
    high = np.where(coordinates + one - 1 < 0, 0, (coordinates + one - 1) // one)
    high = np.minimum(high, size - 1)
    weights = coordinates - low * one
    return low.astype(np.int32), high.astype(np.int32), weights.astype(np.int32)
