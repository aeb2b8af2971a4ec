"""Means and greatest elements of windows and axes, of reals that are integers and one scale.

A mean is the sum of integers with the scale divided by their number, exact; where windows reach
into padding that does not count, the numbers differ from place to place, and so do the scales.

Sources: ONNX, MaxPool 1 to 22, AveragePool 1 to 22, GlobalAveragePool, ReduceMean 1 to 18; ONNX
Runtime, ``ContribOperators.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from ...errors import UnsupportedError
from ...numerics.array_functions import convert, is_known, pool
from ...numerics.element_types import AnyArray, Array, ElementType
from .call import Call, Typed, kernel
from .contractions import padding
from .quantization import quantized, stored
from .reals import Quantized, Real, Scaled, Sum, factor_of, product_of

__all__: list[str] = []


# -- means ----------------------------------------------------------------------------------------


def _mean(operand: Quantized, axes: Sequence[int], *, keep: bool = True) -> Sum:
    """The mean over axes."""
    count = math.prod(operand.shape[axis] for axis in axes)
    value, bound = operand.centered()
    dtype = np.dtype(np.int64 if bound * count >= 1 << 31 else np.int32)
    total = convert(value, ElementType.of_dtype(dtype)).sum(
        axis=tuple(axes), dtype=dtype, keepdims=keep
    )
    return _divided(operand, total, bound * count, np.full((1,) * total.ndim, max(count, 1)))


def _divided(operand: Quantized, total: AnyArray, bound: int, counts: Array) -> Sum:
    """Sums of storage by how many elements each has."""
    scale = factor_of(operand.scales.reshape((1,) * total.ndim))
    if scale.dtype == object:
        inverse = np.array([Fraction(1, int(n)) for n in counts.reshape(-1)], object)
    else:
        inverse = np.float32(1) / counts.astype(np.float32)
    return Sum((Scaled(total, bound, product_of(scale, inverse.reshape(counts.shape))),))


def _whole(call: Call) -> Quantized | None:
    """The operand of a mean, if it is storage with one scale."""
    real = call.input(0).value
    if not isinstance(real, Quantized):
        return None
    if not real.is_per_tensor or real.dtype != np.float32:
        call.with_floats("the operand has several scales, or one that is not f32")
        return None
    return real


@kernel("GlobalAveragePool")
def global_average_pool(call: Call) -> Sum | None:
    """A mean of integers with one scale; else torch-mlir's."""
    real = _whole(call)
    return None if real is None else _mean(real, range(2, len(real.shape)))


@kernel("com.microsoft.QLinearGlobalAveragePool")
def qlinear_global_average_pool(call: Call) -> Typed:
    """``X, x_scale, x_zero, y_scale, y_zero``: the mean of each channel, rounded once."""
    operand = quantized(call, 0, 1, 2)
    rank = len(operand.shape)
    first = 1 if call.attribute("channels_last", 0) else 2
    return stored(call, _mean(operand, range(first, first + rank - 2)), 3, 4)


@kernel("ReduceMean")
def reduce_mean(call: Call) -> Sum | None:
    """A mean of integers with one scale; else torch-mlir's."""
    real = _whole(call)
    if real is None:
        return None
    axes = call.attribute("axes")
    if call.version >= 18 and call.optional(1) is not None:
        axes = call.known(1).reshape(-1).tolist()
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return real.sum()
    return _mean(real, _chosen(call, real, axes), keep=bool(call.attribute("keepdims", 1)))


def _chosen(call: Call, real: Quantized, axes: Sequence[int] | None) -> list[int]:
    rank = len(real.shape)
    return sorted({call.checked_axis(int(axis), rank) for axis in axes or range(rank)})


@kernel("com.microsoft.QLinearReduceMean")
def qlinear_reduce_mean(call: Call) -> Typed:
    """``X, x_scale, x_zero, y_scale, y_zero``."""
    operand = quantized(call, 0, 1, 2)
    axes = _chosen(call, operand, call.attribute("axes"))
    return stored(call, _mean(operand, axes, keep=bool(call.attribute("keepdims", 1))), 3, 4)


@kernel("AveragePool")
def average_pool(call: Call) -> Sum | None:
    """Means of windows of integers with one scale; else torch-mlir's."""
    real = _whole(call)
    if real is None or len(real.shape) != 4:
        return None
    return _window_means(call, real)


@kernel("com.microsoft.QLinearAveragePool")
def qlinear_average_pool(call: Call) -> Typed:
    """``X, x_scale, x_zero, y_scale, y_zero``: means of windows, rounded once."""
    operand = quantized(call, 0, 1, 2)
    is_last = bool(call.attribute("channels_last", 0))
    if len(operand.shape) != 4:
        raise call.error(f"of {len(operand.shape)} dimensions is not lowered", UnsupportedError)
    if is_last:
        operand = operand.transposed((0, 3, 1, 2))
    total = _window_means(call, operand)
    if is_last:
        (term,) = total.terms
        order = (0, 2, 3, 1)
        total = Sum(
            (Scaled(term.value.transpose(order), term.bound, term.factor.transpose(order)),)
        )
    return stored(call, total, 3, 4)


def _window_means(call: Call, operand: Quantized) -> Sum:
    value, bound = operand.centered()
    sizes = call.attribute("kernel_shape", [])
    bound *= math.prod(sizes)
    element = ElementType.of_dtype(np.dtype(np.int64 if bound >= 1 << 31 else np.int32))
    total = _windows(call, convert(value, element), 0, "add")
    inside = bool(call.attribute("count_include_pad", 0))
    ones = np.ones((1, 1, *value.shape[2:]), np.int32)
    counts = _windows(call, ones, int(inside), "add", beyond=0)
    return _divided(operand, total, bound, np.maximum(np.asarray(counts), 1))


def _windows(
    call: Call, images: AnyArray, fill: int, function: str, beyond: int | None = None
) -> AnyArray:
    """Sums or greatest elements of windows of ``[N, C, H, W]``.

    Args:
        call: with the windows.
        images: integers of 32 or 64 bits.
        fill: what padding is.
        function: ``add`` or ``maximum``.
        beyond: what is after padding, where windows begin that the images do not fill.
    """
    rank, sizes = len(images.shape) - 2, call.attribute("kernel_shape", [])
    strides = call.attribute("strides", [1] * rank)
    if rank != 2 or len(sizes) != 2 or len(strides) != 2 or min(*sizes, *strides) < 1:
        raise call.error(f"has windows of {sizes} in images of {list(images.shape)}")
    dilations = call.attribute("dilations", [1, 1])
    spans = [(size - 1) * step + 1 for size, step in zip(sizes, dilations, strict=True)]
    pads = padding(call, images.shape[2:], spans, strides)
    if any(map(any, pads)):
        images = np.pad(images, ((0, 0), (0, 0), *pads), constant_values=fill)
    if any(n < span for n, span in zip(images.shape[2:], spans, strict=True)):
        raise call.error(f"has windows of {sizes} in images of {list(images.shape)}")
    if call.attribute("ceil_mode", 0):
        more = [
            _beyond(n, span, stride, pair)
            for n, span, stride, pair in zip(images.shape[2:], spans, strides, pads, strict=True)
        ]
        images = np.pad(
            images,
            ((0, 0), (0, 0), *((0, n) for n in more)),
            constant_values=fill if beyond is None else beyond,
        )
    if any(step != 1 for step in dilations):
        return _dilated(images, sizes, strides, dilations, function)
    found = pool(images.transpose(0, 2, 3, 1), tuple(sizes), tuple(strides), function)
    return found.transpose(0, 3, 1, 2)


def _beyond(extent: int, span: int, stride: int, pads: tuple[int, int]) -> int:
    """How much further the last window reaches, if it begins in the image or before it."""
    count = -(-(extent - span) // stride) + 1
    if (count - 1) * stride >= extent - pads[1]:
        count -= 1
    return max((count - 1) * stride + span - extent, 0)


def _dilated(
    images: AnyArray,
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    function: str,
) -> AnyArray:
    """Windows with gaps: each of their places is a part of the image."""
    counts = [
        (n - (size - 1) * step - 1) // stride + 1
        for n, size, step, stride in zip(images.shape[2:], sizes, dilations, strides, strict=True)
    ]
    found: AnyArray = None
    for i in range(sizes[0]):
        for j in range(sizes[1]):
            y, x = i * dilations[0], j * dilations[1]
            part = images[
                :, :,
                y : y + (counts[0] - 1) * strides[0] + 1 : strides[0],
                x : x + (counts[1] - 1) * strides[1] + 1 : strides[1],
            ]  # fmt: skip
            if found is None:
                found = part
            else:
                found = found + part if function == "add" else np.maximum(found, part)
    return found


# -- greatest elements ----------------------------------------------------------------------------


@kernel("MaxPool")
def max_pool(call: Call) -> Real:
    """Of integers, or of reals with one scale that is above 0; else torch-mlir's."""
    operand = call.input(0)
    if isinstance(operand.value, Quantized):
        scales = operand.value.scales
        if not is_known(scales) or not (np.asarray(scales) > 0).all():
            call.with_floats("a scale is an argument, or not above 0")
            return None
        found = operand.value.moved(lambda storage: _max_pool(call, storage))
        if found is None:
            call.with_floats("the operand has several scales")
        return found
    if operand.type not in ("INT8", "UINT8"):
        return None
    return Typed(operand.type, _max_pool(call, operand.value))


@kernel("com.microsoft.NhwcMaxPool")
def nhwc_max_pool(call: Call) -> Typed:
    """Of integers, with the channels last."""
    operand = call.input(0)
    if operand.type not in ("INT8", "UINT8") or len(operand.shape) != 4:
        raise call.error(f"of {operand.type} and {len(operand.shape)} dimensions is not lowered",
                         UnsupportedError)  # fmt: skip
    found = _max_pool(call, operand.value.transpose(0, 3, 1, 2))
    return Typed(operand.type, found.transpose(0, 2, 3, 1))


def _max_pool(call: Call, images: AnyArray) -> AnyArray:
    if len(call.node.outputs) > 1:
        raise call.error("of integers gives indices", UnsupportedError)
    wide = images.astype(np.int32)  # comparisons of signed integers
    least = int(np.iinfo(images.dtype).min)
    return _windows(call, wide, least, "maximum").astype(images.dtype)
