"""Pooling, and means, as LiteRT's reference kernels compute them.

Sources: LiteRT, ``reference/pooling.h``, ``reference/integer_ops/pooling.h``,
``reference/reduce.h``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, divide_truncated, pool
from ....numerics.element_types import I32, I64, AnyArray, Array, ElementType
from ..arithmetic import requantization
from ..call import Call, kernel

__all__: list[str] = []


def _window(call: Call) -> tuple[tuple[int, int], tuple[int, int], list[tuple[int, int]]]:
    """Sizes, strides and padding of windows."""
    options, extents = call.options, call.input(0).shape[1:3]
    sizes = (options.filter_height, options.filter_width)
    strides = (options.stride_h, options.stride_w)
    if min(*sizes, *strides) < 1 or len(call.input(0).shape) != 4:
        raise call.error(f"has windows of {sizes} with the strides {strides}")
    pads = call.padding(extents, sizes, strides)
    if any(n + sum(pair) < size for n, pair, size in zip(extents, pads, sizes, strict=True)):
        raise call.error(
            f"has windows of {sizes} (filter_height and filter_width) in images of {list(extents)}"
        )
    return sizes, strides, pads


def _padded(value: AnyArray, pads: Sequence[tuple[int, int]], fill: float) -> AnyArray:
    if not any(map(any, pads)):
        return value
    return np.pad(value, ((0, 0), *pads, (0, 0)), constant_values=fill)


def _counts(
    extents: Sequence[int],
    sizes: tuple[int, int],
    strides: tuple[int, int],
    pads: Sequence[tuple[int, int]],
) -> Array:
    """How many elements of the image each window has, ``[1, OH, OW, 1]``."""
    along = []
    for extent, size, stride, (before, after) in zip(extents, sizes, strides, pads, strict=True):
        first = np.arange((extent + before + after - size) // stride + 1) * stride - before
        along.append(np.minimum(first + size, extent) - np.maximum(first, 0))
    counts = along[0][:, None] * along[1]
    return np.asarray(counts[None, :, :, None], np.int32)


@kernel("AVERAGE_POOL_2D")
def average_pool_2d(call: Call) -> AnyArray:
    """The mean of what is inside the image, half away from zero; scales do not matter."""
    images = call.input(0)
    sizes, strides, pads = _window(call)
    counts = _counts(images.shape[1:3], sizes, strides, pads)
    if images.is_float:
        total = pool(_padded(images.value, pads, 0.0), sizes, strides, "add")
        return call.activated(total / counts.astype(np.float32))
    wide = convert(_padded(images.value, pads, 0), I32)
    total = pool(wide, sizes, strides, "add")
    half = counts // 2
    mean = divide_truncated(np.where(total > 0, total + half, total - half), counts)
    return requantization.narrowed(mean, *call.range(call.output), call.dtype(call.output))


@kernel("L2_POOL_2D")
def l2_pool_2d(call: Call) -> AnyArray:
    """The root of the mean square of what is inside the image, of floats."""
    images = call.input(0)
    if not images.is_float:
        raise call.error(f"of {images.tensor.type} is not lowered", UnsupportedError)
    sizes, strides, pads = _window(call)
    counts = _counts(images.shape[1:3], sizes, strides, pads)
    total = pool(_padded(images.value * images.value, pads, 0.0), sizes, strides, "add")
    return call.activated(np.sqrt(total / counts.astype(np.float32)))


@kernel("MAX_POOL_2D")
def max_pool_2d(call: Call) -> AnyArray:
    """The greatest of what is inside the image."""
    images = call.input(0)
    sizes, strides, pads = _window(call)
    if images.is_float:
        return call.activated(pool(_padded(images.value, pads, -np.inf), sizes, strides, "maximum"))
    least = int(np.iinfo(images.value.dtype).min)
    # Comparisons of signed integers: unsigned ones are widened.
    value = convert(images.value, I32) if images.tensor.type == "UINT8" else images.value
    greatest = pool(_padded(value, pads, least), sizes, strides, "maximum")
    return requantization.narrowed(greatest, *call.range(call.output), call.dtype(call.output))


@kernel("MEAN")
def mean(call: Call) -> AnyArray:
    """The mean over the axes that input 1 names."""
    operand = call.input(0)
    rank = len(operand.shape)
    axes = call.constant_axes(1, rank) if rank else ()
    keep = bool(call.options.keep_dims)
    count = math.prod(operand.shape[axis] for axis in axes)
    if operand.is_float:
        total = operand.value.astype(np.float32).sum(axis=axes, dtype=np.float32, keepdims=keep)
        return total / np.float32(count)
    if operand.tensor.quantization is None:  # integers, divided towards zero
        kind = ElementType.of_dtype(operand.value.dtype)
        total = convert(operand.value, I64).sum(axis=axes, dtype=np.int64, keepdims=keep)
        return convert(divide_truncated(total, np.int64(max(count, 1))), kind)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    total = convert(operand.value, I32).sum(axis=axes, dtype=np.int32, keepdims=keep)
    if x.zero_point:
        total = total - x.zero_point * count
    multiplier, exponent = requantization.multiplier_and_exponent(
        np.float64(x.scale) / np.float64(y.scale)
    )
    shift = min(count.bit_length() - 1, 32, 31 + int(exponent))
    reduced = (int(multiplier) << shift) // count
    return call.stored(requantization.scaled_by(total, reduced, int(exponent) - shift))
