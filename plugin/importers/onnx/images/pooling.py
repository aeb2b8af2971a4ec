"""Average, maximum and Lp pooling, ReduceMean and LRN.

A mean of quantized operands is a sum of integers with the scale divided by their number, exact.
Where windows reach into padding that is not counted, the numbers differ between output pixels, and
so do the scales.

Sources: ONNX, AveragePool 1 to 22, MaxPool 1 to 22, GlobalAveragePool 22, GlobalMaxPool 22,
LpPool 22, LRN 13, ReduceMean 1 to 18; ONNX Runtime, ``ContribOperators.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from ....numerics.array_functions import convert, is_known
from ....numerics.convolutions import pool
from ....numerics.element_types import AnyArray, Array
from ..call import Call, Operand, importer
from ..elementwise.float_operands import as_input_type, float_input
from ..quantization.expressed import (
    ExpressedValue,
    Quantized,
    ScaledSum,
    accumulator_type,
    scale_factor,
    scale_product,
)
from ..quantization.quantize_linear import quantized, stored
from ..reduction.reductions import greatest, reduced, reduction_axes
from .pooling_windows import pad_images, pool_geometry, pool_windows, window_elements


def _mean(operand: Quantized, axes: Sequence[int], *, keep: bool = True) -> ScaledSum:
    """Compute the mean over axes."""
    count = math.prod(operand.shape[axis] for axis in axes)
    value, bound = operand.centered()
    type_ = accumulator_type(bound * count)
    total = convert(value, type_).sum(axis=tuple(axes), dtype=type_.dtype, keepdims=keep)
    return _divided(operand, total, bound * count, np.full((1,) * total.ndim, max(count, 1)))


def _divided(operand: Quantized, total: AnyArray, bound: int, counts: Array) -> ScaledSum:
    """Divide sums of storage by their numbers of elements."""
    scale = scale_factor(operand.scales.reshape((1,) * total.ndim))
    if scale.dtype == object:
        inverse = np.array([Fraction(1, int(n)) for n in counts.reshape(-1)], object)
    else:
        inverse = np.float32(1) / counts.astype(np.float32)
    return ScaledSum.of(total, bound, scale_product(scale, inverse.reshape(counts.shape)))


def _quantized_operand(call: Call) -> Quantized | None:
    """The operand of a mean if it is storage with one f32 scale; None for floats, other scales."""
    real = call.input(0).value
    if not isinstance(real, Quantized):
        return None
    if not real.is_per_tensor or real.dtype != np.float32:
        call.with_floats("the operand has several scales, or one that is not f32")
        return None
    return real


@importer("GlobalAveragePool")
def global_average_pool(call: Call) -> ScaledSum | AnyArray | Operand:
    """GlobalAveragePool-22: the mean of each channel; exact for integers with one scale."""
    real = _quantized_operand(call)
    if real is not None:
        return _mean(real, range(2, len(real.shape)))
    value = float_input(call)
    axes = tuple(range(2, value.ndim))
    count = math.prod(value.shape[axis] for axis in axes)
    total = value.sum(axis=axes, dtype=value.dtype, keepdims=True)
    return as_input_type(call, 0, total / np.asarray(count, value.dtype))


@importer("com.microsoft.QLinearGlobalAveragePool")
def qlinear_global_average_pool(call: Call) -> Operand:
    """QLinearGlobalAveragePool-1: ``X, x_scale, x_zero, y_scale, y_zero``: means of channels."""
    operand = quantized(call, 0, 1, 2)
    rank = len(operand.shape)
    first = 1 if call.attribute("channels_last", 0) else 2
    return stored(call, _mean(operand, range(first, first + rank - 2)), 3, 4)


@importer("ReduceMean")
def reduce_mean(call: Call) -> ScaledSum | AnyArray | Operand:
    """ReduceMean-18: the mean along axes; exact for integers with one scale."""
    real = _quantized_operand(call)
    if real is None:
        return reduced(call)
    keep = bool(call.attribute("keepdims", 1))
    axes = reduction_axes(call, len(real.shape))
    if axes is None:
        total = real.as_sum()
        return reduced(call) if total is None else total
    return _mean(real, axes, keep=keep)


@importer("com.microsoft.QLinearReduceMean")
def qlinear_reduce_mean(call: Call) -> Operand:
    """QLinearReduceMean-1: ``X, x_scale, x_zero, y_scale, y_zero``."""
    operand = quantized(call, 0, 1, 2)
    rank = len(operand.shape)
    chosen = call.attribute("axes") or range(rank)
    axes = sorted({call.checked_axis(int(axis), rank) for axis in chosen})
    return stored(call, _mean(operand, axes, keep=bool(call.attribute("keepdims", 1))), 3, 4)


@importer("AveragePool")
def average_pool(call: Call) -> ScaledSum | AnyArray | Operand:
    """AveragePool-22: means of windows; exact for integers with one scale."""
    real = _quantized_operand(call)
    if real is not None:
        return _window_means(call, real)
    value = float_input(call)
    total = pool_windows(call, value, 0, "add")
    return as_input_type(call, 0, total / _counts(call, value.shape).astype(value.dtype))


@importer("GlobalLpPool", "LpPool")
def lp_pool(call: Call) -> AnyArray:
    """GlobalLpPool-22, LpPool-22: ``sum(|x| ** p) ** (1 / p)`` of channels, or of windows."""
    x, p = float_input(call), call.attribute("p", 2)
    powers = np.abs(x)
    if p != 1:
        powers = powers * powers if p == 2 else np.power(powers, np.asarray(p, x.dtype))
    if call.node.operator == "LpPool":
        total = pool_windows(call, powers, 0, "add")
    else:
        total = powers.sum(axis=tuple(range(2, x.ndim)), dtype=x.dtype, keepdims=True)
    if p != 1:
        total = np.sqrt(total) if p == 2 else np.power(total, np.asarray(1 / p, x.dtype))
    return as_input_type(call, 0, total)


@importer("com.microsoft.QLinearAveragePool")
def qlinear_average_pool(call: Call) -> Operand:
    """QLinearAveragePool-1: ``X, x_scale, x_zero, y_scale, y_zero``: means of windows."""
    operand = quantized(call, 0, 1, 2)
    is_last = bool(call.attribute("channels_last", 0))
    rank = len(operand.shape)
    if is_last:
        operand = operand.transposed((0, rank - 1, *range(1, rank - 1)))
    total = _window_means(call, operand, is_whole=True)
    return stored(call, total.channels_last() if is_last else total, 3, 4)


def _window_means(call: Call, operand: Quantized, *, is_whole: bool = False) -> ScaledSum:
    """Compute means of windows of integers with one scale.

    With `is_whole`, ``count_include_pad`` also counts pixels beyond the padding.
    """
    value, bound = operand.centered()
    sizes = call.attribute("kernel_shape", [])
    bound *= math.prod(sizes)
    total = pool_windows(call, convert(value, accumulator_type(bound)), 0, "add")
    return _divided(operand, total, bound, _counts(call, value.shape, is_whole=is_whole))


def _counts(call: Call, shape: Sequence[int], *, is_whole: bool = False) -> Array:
    """Return the divisor of each window.

    ``count_include_pad`` counts padding. Pixels beyond it, which only ``ceil_mode`` reaches, are
    counted by ONNX Runtime's QLinearAveragePool only.
    """
    inside = bool(call.attribute("count_include_pad", 0))
    ones = np.ones((1, 1, *shape[2:]), np.int32)
    counts = pool_windows(call, ones, int(inside), "add", beyond=int(inside and is_whole))
    result: Array = np.maximum(np.asarray(counts), 1)
    return result


@importer("LRN")
def local_response_normalization(call: Call) -> AnyArray:
    """LRN-13: ``x / (bias + alpha / size * sum(x ** 2)) ** beta``, summed over channels."""
    x = float_input(call)
    size = call.integer("size")
    alpha, beta, bias = (
        call.attribute(name, value)
        for name, value in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    before = (size - 1) // 2
    widths = [(0, 0)] * x.ndim
    widths[1] = (before, size - 1 - before)
    total = pool(np.pad(x * x, widths), (size,), (1,), "add", (1,))
    base = np.asarray(bias, x.dtype) + np.asarray(alpha / size, x.dtype) * total
    return as_input_type(call, 0, x / np.power(base, np.asarray(beta, x.dtype)))


@importer("GlobalMaxPool")
def global_max_pool(call: Call) -> Operand:
    """GlobalMaxPool-22: the greatest element of each channel."""
    value = call.array(0)
    return call.typed(greatest(value, tuple(range(2, value.ndim)), True))


@importer("MaxPool")
def max_pool(call: Call) -> ExpressedValue:
    """MaxPool-22: greatest elements of windows; integers with one positive scale stay integers."""
    operand = call.input(0)
    if any(call.node.outputs[1:]):
        return _max_pool_with_indices(call)
    call.attribute("storage_order", 0)  # of the indices
    if isinstance(operand.value, Quantized):
        scales = operand.value.scales
        if is_known(scales) and (np.asarray(scales) > 0).all():
            result = operand.value.moved(lambda storage: _max_pool(call, storage))
            if result is not None:
                return result
            call.with_floats("the operand has several scales")
        else:
            call.with_floats("a scale is an argument, or not above 0")
    return Operand(operand.type, _max_pool(call, call.array(0)))


def _max_pool_with_indices(call: Call) -> list[Operand]:
    """Return the greatest elements, and the index of the first of each in the whole operand.

    With ``storage_order`` 1 the first spatial axis of a channel is the fastest one.
    """
    value = call.array(0)
    geometry = pool_geometry(call, value.shape)
    sizes = value.shape[2:]
    indices = np.arange(math.prod(sizes), dtype=np.int64).reshape(sizes)
    if call.attribute("storage_order", 0):
        indices = indices.reshape(sizes[::-1]).T
    planes = np.arange(math.prod(value.shape[:2]), dtype=np.int64) * math.prod(sizes)
    numbers = planes.reshape((*value.shape[:2], *(1,) * len(sizes))) + indices
    signed, least = _signed(value)
    images = pad_images(signed, geometry, least, least)
    indices = pad_images(numbers, geometry, -1, -1)  # of padding, which is never greater
    pairs = zip(*(window_elements(each, geometry) for each in (images, indices)), strict=True)
    best, index = next(pairs)
    for part, number in pairs:
        is_better = (part > best) | ((index < 0) & (number >= 0))
        best, index = np.where(is_better, part, best), np.where(is_better, number, index)
    return [call.typed(best.astype(value.dtype)), Operand("INT64", index)]


def _signed(value: AnyArray) -> tuple[AnyArray, float]:
    """Return floats, or integers as i32 or i64, and their least value."""
    dtype = np.dtype(value.dtype)
    if dtype.kind not in "iu":
        return value, -math.inf
    return value.astype(np.int32 if dtype.itemsize < 4 else dtype), int(np.iinfo(dtype).min)


@importer("com.microsoft.NhwcMaxPool")
def nhwc_max_pool(call: Call) -> Operand:
    """NhwcMaxPool-1: greatest elements of windows of integers, with the channels last."""
    operand = call.input(0)
    value, rank = call.array(0), len(operand.shape)
    result = _max_pool(call, value.transpose(0, rank - 1, *range(1, rank - 1)))
    return Operand(operand.type, result.transpose(0, *range(2, rank), 1))


def _max_pool(call: Call, images: AnyArray) -> AnyArray:
    signed, least = _signed(images)
    return pool_windows(call, signed, least, "maximum").astype(images.dtype)
