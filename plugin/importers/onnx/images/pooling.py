"""Means and greatest elements of windows and axes, of reals that are integers and one scale.

A mean is the sum of integers with the scale divided by their number, exact; where windows reach
into padding that does not count, the numbers differ between output pixels, and so do the scales.

Sources: ONNX, MaxPool 1 to 22, AveragePool 1 to 22, GlobalAveragePool, ReduceMean 1 to 18; ONNX
Runtime, ``ContribOperators.md``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, is_known
from ....numerics.convolutions import pool
from ....numerics.element_types import F32, AnyArray, Array, ElementType
from ..call import Call, Typed, importer
from ..contraction.convolutions import padding
from ..quantization.expressed import (
    ExpressedValue,
    Quantized,
    ScaledSum,
    ScaledTerm,
    scale_factor,
    scale_product,
)
from ..quantization.quantize_linear import quantized, stored
from ..reduction.reductions import greatest, reduced, reduction_axes

# -- means ----------------------------------------------------------------------------------------


def _mean(operand: Quantized, axes: Sequence[int], *, keep: bool = True) -> ScaledSum:
    """The mean over axes."""
    count = math.prod(operand.shape[axis] for axis in axes)
    value, bound = operand.centered()
    dtype = np.dtype(np.int64 if bound * count >= 1 << 31 else np.int32)
    total = convert(value, ElementType.of_dtype(dtype)).sum(
        axis=tuple(axes), dtype=dtype, keepdims=keep
    )
    return _divided(operand, total, bound * count, np.full((1,) * total.ndim, max(count, 1)))


def _divided(operand: Quantized, total: AnyArray, bound: int, counts: Array) -> ScaledSum:
    """Sums of storage by how many elements each has."""
    scale = scale_factor(operand.scales.reshape((1,) * total.ndim))
    if scale.dtype == object:
        inverse = np.array([Fraction(1, int(n)) for n in counts.reshape(-1)], object)
    else:
        inverse = np.float32(1) / counts.astype(np.float32)
    return ScaledSum(
        (ScaledTerm(total, bound, scale_product(scale, inverse.reshape(counts.shape))),)
    )


def _whole(call: Call) -> Quantized | None:
    """The operand of a mean, if it is storage with one scale."""
    real = call.input(0).value
    if not isinstance(real, Quantized):
        return None
    if not real.is_per_tensor or real.dtype != np.float32:
        call.with_floats("the operand has several scales, or one that is not f32")
        return None
    return real


@importer("GlobalAveragePool")
def global_average_pool(call: Call) -> ScaledSum | Typed:
    """The mean of each channel: exact for integers with one scale."""
    real = _whole(call)
    if real is not None:
        return _mean(real, range(2, len(real.shape)))
    value = _wide(call)
    axes = tuple(range(2, value.ndim))
    count = math.prod(value.shape[axis] for axis in axes)
    total = value.sum(axis=axes, dtype=value.dtype, keepdims=True)
    return _like_input(call, total / np.asarray(count, value.dtype))


@importer("GlobalMaxPool")
def global_max_pool(call: Call) -> Typed:
    """The greatest element of each channel."""
    value = call.array(0)
    return Typed(call.input(0).type, greatest(value, tuple(range(2, value.ndim)), True))


@importer("GlobalLpPool")
def global_lp_pool(call: Call) -> Typed:
    """``sum(|x| ** p) ** (1 / p)`` of each channel."""
    value = _wide(call)
    axes = tuple(range(2, value.ndim))
    powers = _powers(call, value)
    return _like_input(call, _root(call, powers.sum(axis=axes, dtype=value.dtype, keepdims=True)))


def _wide(call: Call) -> AnyArray:
    """The first input as floats, f16 and bf16 as f32."""
    value = call.array(0)
    dtype = np.dtype(value.dtype)
    if dtype.kind in "iub":
        raise call.error(f"of {call.input(0).type} is not lowered, expected floats",
                         UnsupportedError)  # fmt: skip
    return value if dtype.itemsize > 2 else convert(value, F32)


def _like_input(call: Call, value: AnyArray) -> Typed:
    """A result of the type of the first input."""
    element = ElementType.of_dtype(np.dtype(call.array(0).dtype))
    return Typed(call.input(0).type, convert(value, element))


def _powers(call: Call, value: AnyArray) -> AnyArray:
    """``|x| ** p``."""
    magnitude, p = np.abs(value), call.attribute("p", 2)
    if p == 1:
        return magnitude
    return magnitude * magnitude if p == 2 else np.power(magnitude, np.asarray(p, value.dtype))


def _root(call: Call, value: AnyArray) -> AnyArray:
    """``x ** (1 / p)``."""
    p = call.attribute("p", 2)
    if p == 1:
        return value
    return np.sqrt(value) if p == 2 else np.power(value, np.asarray(1 / p, value.dtype))


@importer("com.microsoft.QLinearGlobalAveragePool")
def qlinear_global_average_pool(call: Call) -> Typed:
    """``X, x_scale, x_zero, y_scale, y_zero``: the mean of each channel, rounded once."""
    operand = quantized(call, 0, 1, 2)
    rank = len(operand.shape)
    first = 1 if call.attribute("channels_last", 0) else 2
    return stored(call, _mean(operand, range(first, first + rank - 2)), 3, 4)


@importer("ReduceMean")
def reduce_mean(call: Call) -> ScaledSum | Typed:
    """The mean along axes: exact for integers with one scale."""
    real = _whole(call)
    if real is None:
        return reduced(call)
    keep = bool(call.attribute("keepdims", 1))
    axes = reduction_axes(call, len(real.shape))
    if axes is None:
        total = real.as_sum()
        return reduced(call) if total is None else total
    return _mean(real, axes, keep=keep)


@importer("com.microsoft.QLinearReduceMean")
def qlinear_reduce_mean(call: Call) -> Typed:
    """``X, x_scale, x_zero, y_scale, y_zero``."""
    operand = quantized(call, 0, 1, 2)
    rank = len(operand.shape)
    chosen = call.attribute("axes") or range(rank)
    axes = sorted({call.checked_axis(int(axis), rank) for axis in chosen})
    return stored(call, _mean(operand, axes, keep=bool(call.attribute("keepdims", 1))), 3, 4)


@importer("AveragePool")
def average_pool(call: Call) -> ScaledSum | Typed:
    """Means of windows: exact for integers with one scale."""
    real = _whole(call)
    if real is not None:
        return _window_means(call, real)
    value = _wide(call)
    total = _windows(call, value, 0, "add")
    return _like_input(call, total / _counts(call, value.shape).astype(value.dtype))


@importer("LpPool")
def lp_pool(call: Call) -> Typed:
    """``sum(|x| ** p) ** (1 / p)`` of windows."""
    powers = _powers(call, _wide(call))
    return _like_input(call, _root(call, _windows(call, powers, 0, "add")))


@importer("com.microsoft.QLinearAveragePool")
def qlinear_average_pool(call: Call) -> Typed:
    """``X, x_scale, x_zero, y_scale, y_zero``: means of windows, rounded once."""
    operand = quantized(call, 0, 1, 2)
    is_last = bool(call.attribute("channels_last", 0))
    rank = len(operand.shape)
    if is_last:
        operand = operand.transposed((0, rank - 1, *range(1, rank - 1)))
    total = _window_means(call, operand, is_whole=True)
    if is_last:
        (term,) = total.terms
        order = (0, *range(2, rank), 1)
        total = ScaledSum(
            (ScaledTerm(term.value.transpose(order), term.bound, term.factor.transpose(order)),)
        )
    return stored(call, total, 3, 4)


def _window_means(call: Call, operand: Quantized, *, is_whole: bool = False) -> ScaledSum:
    """Means of windows.

    Args:
        call: with the attributes of the pool.
        operand: integers with one scale.
        is_whole: with ``count_include_pad``, indices beyond the padding count, too.
    """
    value, bound = operand.centered()
    sizes = call.attribute("kernel_shape", [])
    bound *= math.prod(sizes)
    element = ElementType.of_dtype(np.dtype(np.int64 if bound >= 1 << 31 else np.int32))
    total = _windows(call, convert(value, element), 0, "add")
    return _divided(operand, total, bound, _counts(call, value.shape, is_whole=is_whole))


def _counts(call: Call, shape: Sequence[int], *, is_whole: bool = False) -> Array:
    """The number of elements that each window is divided by.

    Padding counts with ``count_include_pad``; indices beyond it, which only ``ceil_mode`` reaches,
    count in ONNX Runtime's QLinearAveragePool only.
    """
    inside = bool(call.attribute("count_include_pad", 0))
    ones = np.ones((1, 1, *shape[2:]), np.int32)
    counts = _windows(call, ones, int(inside), "add", beyond=int(inside and is_whole))
    result: Array = np.maximum(np.asarray(counts), 1)
    return result


@dataclass(frozen=True)
class _Windows:
    """The geometry of a pool: one number, or pair of numbers, for each spatial dimension.

    Args:
        sizes, strides, dilations: of the windows.
        pads: elements before and after the image.
        beyond: elements after the padding that the last window reaches with ``ceil_mode``.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    beyond: tuple[int, ...]


def _geometry(call: Call, shape: Sequence[int]) -> _Windows:
    """Read the attributes of a pool of ``[N, C, ...]``, and check them."""
    rank, sizes = len(shape) - 2, call.attribute("kernel_shape", [])
    strides = call.attribute("strides", [1] * rank)
    dilations = call.attribute("dilations", [1] * rank)
    is_ceil = bool(call.attribute("ceil_mode", 0))
    lists = (sizes, strides, dilations)
    if rank < 1 or any(len(each) != rank or min(each) < 1 for each in lists):
        raise call.error(
            f"has windows of {list(sizes)}, strides {list(strides)} and dilations "
            f"{list(dilations)} for images of {list(shape)}"
        )
    spans = [(size - 1) * step + 1 for size, step in zip(sizes, dilations, strict=True)]
    _check_same_padding(call, shape[2:], spans, strides)
    pads = padding(call, shape[2:], spans, strides)
    beyond = []
    for extent, pair, span, stride in zip(shape[2:], pads, spans, strides, strict=True):
        padded = extent + sum(pair)
        if padded < span and (not is_ceil or padded <= span - stride):
            raise call.error(f"has windows of {list(sizes)} in images of {list(shape)}")
        beyond.append(_beyond(padded, span, stride, pair) if is_ceil else 0)
    return _Windows(tuple(sizes), tuple(strides), tuple(dilations), tuple(pads), tuple(beyond))


def _check_same_padding(
    call: Call, extents: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> None:
    """Check that the padding of ``SAME_UPPER`` and ``SAME_LOWER`` is not negative.

    Raises:
        UnsupportedError: strides are longer than windows by so much that runtimes crop images.
    """
    if call.attribute("auto_pad", "NOTSET") not in ("SAME_UPPER", "SAME_LOWER"):
        return
    for extent, span, stride in zip(extents, spans, strides, strict=True):
        if (-(-extent // stride) - 1) * stride + span - extent < -1:
            raise call.error(
                f"has strides of {stride} and windows of {span} in {extent} elements, for which "
                "auto_pad asks for negative padding: runtimes differ; say pads",
                UnsupportedError,
            )


def _beyond(padded: int, span: int, stride: int, pads: tuple[int, int]) -> int:
    """Return how far the last window reaches beyond the padding; it starts before that."""
    count = max(-(-(padded - span) // stride), 0) + 1
    if count > 1 and (count - 1) * stride >= padded - pads[1]:
        count -= 1
    return max((count - 1) * stride + span - padded, 0)


def _windows(
    call: Call, images: AnyArray, fill: float, function: str, beyond: int | None = None
) -> AnyArray:
    """Sums or greatest elements of windows of ``[N, C, ...]``.

    Args:
        call: with the attributes of the pool.
        images: floats, or integers of 32 or 64 bits.
        fill: the value of padding.
        function: ``add`` or ``maximum``.
        beyond: the value of indices after the padding; `fill` by default.
    """
    geometry = _geometry(call, images.shape)
    images = _padded(images, geometry, fill, fill if beyond is None else beyond)
    rank = len(geometry.sizes)
    if any(step != 1 for step in geometry.dilations):
        taps = (part for _, part in _window_elements(images, geometry))
        combine = np.add if function == "add" else np.maximum
        return functools.reduce(combine, taps)
    is_float = np.dtype(images.dtype).kind not in "iu"
    if is_float or rank != 2:
        axes = tuple(range(2, 2 + rank))
        return pool(images, geometry.sizes, geometry.strides, function, axes)
    result = pool(images.transpose(0, 2, 3, 1), geometry.sizes, geometry.strides, function)
    return result.transpose(0, 3, 1, 2)


def _padded(images: AnyArray, geometry: _Windows, fill: float, beyond: float) -> AnyArray:
    if any(map(any, geometry.pads)):
        images = np.pad(images, ((0, 0), (0, 0), *geometry.pads), constant_values=fill)
    if any(geometry.beyond):
        after = [(0, n) for n in geometry.beyond]
        images = np.pad(images, ((0, 0), (0, 0), *after), constant_values=beyond)
    return images


def _window_elements(
    images: AnyArray, geometry: _Windows
) -> Iterator[tuple[tuple[int, ...], AnyArray]]:
    """Each position of a window, in row-major order, and the elements at it of all windows."""
    counts = [
        (n - (size - 1) * step - 1) // stride + 1
        for n, size, step, stride in zip(
            images.shape[2:], geometry.sizes, geometry.dilations, geometry.strides, strict=True
        )
    ]
    for position in np.ndindex(*geometry.sizes):
        index = [slice(None), slice(None)]
        for n, step, stride, count in zip(
            position, geometry.dilations, geometry.strides, counts, strict=True
        ):
            start = n * step
            index.append(slice(start, start + (count - 1) * stride + 1, stride))
        yield position, images[tuple(index)]


# -- greatest elements ----------------------------------------------------------------------------


@importer("MaxPool")
def max_pool(call: Call) -> ExpressedValue:
    """The greatest elements of windows; integers with one positive scale stay integers."""
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
    return Typed(operand.type, _max_pool(call, call.array(0)))


def _max_pool_with_indices(call: Call) -> list[Typed]:
    """The greatest elements, and the index of the first of each in the whole operand.

    With ``storage_order`` 1 the first spatial axis of a channel is the fastest one.
    """
    value = call.array(0)
    geometry = _geometry(call, value.shape)
    extents = value.shape[2:]
    indices = np.arange(math.prod(extents), dtype=np.int64).reshape(extents)
    if call.attribute("storage_order", 0):
        indices = indices.reshape(extents[::-1]).T
    planes = np.arange(math.prod(value.shape[:2]), dtype=np.int64) * math.prod(extents)
    numbers = planes.reshape((*value.shape[:2], *(1,) * len(extents))) + indices
    signed, least = _signed(value)
    images = _padded(signed, geometry, least, least)
    indices = _padded(numbers, geometry, -1, -1)  # of padding, which is never greater
    best: AnyArray = None
    index: AnyArray = None
    for (_, part), (_, number) in zip(
        _window_elements(images, geometry), _window_elements(indices, geometry), strict=True
    ):
        if best is None:
            best, index = part, number
            continue
        is_better = (part > best) | ((index < 0) & (number >= 0))
        best, index = np.where(is_better, part, best), np.where(is_better, number, index)
    return [Typed(call.input(0).type, best.astype(value.dtype)), Typed("INT64", index)]


def _signed(value: AnyArray) -> tuple[AnyArray, float]:
    """Floats, or integers as i32 or i64, and their least value."""
    dtype = np.dtype(value.dtype)
    if dtype.kind not in "iu":
        return value, -math.inf
    return value.astype(np.int32 if dtype.itemsize < 4 else dtype), int(np.iinfo(dtype).min)


@importer("com.microsoft.NhwcMaxPool")
def nhwc_max_pool(call: Call) -> Typed:
    """Of integers, with the channels last."""
    operand = call.input(0)
    value, rank = call.array(0), len(operand.shape)
    result = _max_pool(call, value.transpose(0, rank - 1, *range(1, rank - 1)))
    return Typed(operand.type, result.transpose(0, *range(2, rank), 1))


def _max_pool(call: Call, images: AnyArray) -> AnyArray:
    signed, least = _signed(images)
    return _windows(call, signed, least, "maximum").astype(images.dtype)


@importer("LRN")
def local_response_normalization(call: Call) -> Typed:
    """``x / (bias + alpha / size * sum(x ** 2)) ** beta`` over `size` channels around each."""
    x = _wide(call)
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
    return _like_input(call, x / np.power(base, np.asarray(beta, x.dtype)))
