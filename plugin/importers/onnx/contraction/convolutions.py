"""Convolutions: Conv, its integer forms and ConvTranspose.

Products of storage less zero points are accumulated in 32 bits, or in 64 where 32 could overflow.
The product of the scales becomes the scale of the accumulator. ConvInteger wraps in 32 bits, which
the specification forbids models to reach.

Sources: ONNX, ConvInteger 10, QLinearConv 10, ConvTranspose 22; ONNX Runtime,
``ContribOperators.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ....numerics.array_functions import convert, is_known
from ....numerics.convolutions import convolve, dilate
from ....numerics.element_types import AnyArray, DType, ElementType
from ..call import Call, Operand, importer
from ..elementwise.float_operands import computing_dtype
from ..quantization.expressed import Quantized, ScaledSum, accumulator_type
from ..quantization.quantize_linear import grid, quantized, stored
from .accumulators import accumulator, add_bias, integer_input, product_factor, reason_for_floats


def _geometry(call: Call, images: Sequence[int], kernels: Sequence[int]) -> tuple[
    list[tuple[int, int]], tuple[int, ...], tuple[int, ...], int
]:  # fmt: skip
    """Read and check padding, strides, dilations and groups."""
    rank = len(images) - 2
    if rank < 1 or len(kernels) != rank + 2:
        raise call.unsupported(
            f"convolves images of shape {list(images)} with kernels of shape {list(kernels)}"
        )
    groups = call.attribute("group", 1)
    strides = tuple(call.attribute("strides", [1] * rank))
    dilations = tuple(call.attribute("dilations", [1] * rank))
    sizes = call.attribute("kernel_shape", list(kernels[2:]))
    if list(sizes) != list(kernels[2:]):
        raise call.error(f"has kernels of shape {list(kernels)}, and says {list(sizes)}")
    has_channels = kernels[1] * groups == images[1] and not kernels[0] % groups
    if not has_channels or len(strides) != rank or len(dilations) != rank:
        raise call.error(
            f"convolves images of shape {list(images)} with kernels of shape {list(kernels)} in "
            f"{groups} groups, with the strides {list(strides)} and the dilations {list(dilations)}"
        )
    spans = [(n - 1) * d + 1 for n, d in zip(kernels[2:], dilations, strict=True)]
    pads = padding(call, images[2:], spans, strides)
    for size, pair, span in zip(images[2:], pads, spans, strict=True):
        if size + sum(pair) < span:
            raise call.error(f"has windows of {spans} in images of {list(images[2:])}")
    return pads, strides, dilations, groups


def bias_of(call: Call, index: int, channels: int) -> Operand | None:
    """Return the bias of a convolution, which has an element for each output channel."""
    bias = call.optional(index)
    if bias is not None and bias.shape != (channels,):
        raise call.error(f"adds {bias} of shape {list(bias.shape)} to {channels} channels")
    return bias


def padding(
    call: Call, sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """Read the padding before and after each spatial axis, from ``pads`` or ``auto_pad``.

    The images have the sizes, the kernels the dilated sizes `spans`.
    """
    rank, auto = len(sizes), call.attribute("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        for size, span, stride in zip(sizes, spans, strides, strict=True):
            total = max((-(-size // stride) - 1) * stride + span - size, 0)
            less, more = total // 2, total - total // 2
            pairs.append((less, more) if auto == "SAME_UPPER" else (more, less))
        return pairs
    pads = [0] * (2 * rank) if auto == "VALID" else call.attribute("pads", [0] * (2 * rank))
    if len(pads) != 2 * rank or min(pads, default=0) < 0:
        raise call.error(f"has the padding {list(pads)} ({auto})")
    return [(int(pads[a]), int(pads[a + rank])) for a in range(rank)]


def convolution(call: Call, images: AnyArray, kernels: AnyArray, dtype: DType) -> AnyArray:
    """Convolve ``[N, C, ...]`` with ``[OC, C / groups, ...]``; padding is 0."""
    return _convolved(images, kernels, *_geometry(call, images.shape, kernels.shape), dtype)


def _convolved(
    images: AnyArray,
    kernels: AnyArray,
    pads: Sequence[tuple[int, int]],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    groups: int,
    dtype: DType,
) -> AnyArray:
    is_1d = len(pads) == 1  # IREE has fast named operations of two spatial dimensions
    if is_1d:
        images = images.reshape((*images.shape[:2], 1, images.shape[2]))
        kernels = kernels.reshape((*kernels.shape[:2], 1, kernels.shape[2]))
        pads, strides, dilations = [(0, 0), *pads], (1, *strides), (1, *dilations)
    if any(map(any, pads)):
        images = np.pad(images, ((0, 0), (0, 0), *pads))
    result = convolve(images, kernels, strides, dilations, groups, dtype)
    return result.reshape((*result.shape[:2], result.shape[3])) if is_1d else result


def _centered_convolution(
    call: Call, images: Quantized, centered: AnyArray, kernels: AnyArray, dtype: DType
) -> AnyArray:
    """Convolve images less their zero point; padding is 0. `centered` are these differences.

    A computed zero point ``z`` of 8-bit images is the padding of their storage ``q``, and it is
    subtracted after the sum, so that kernels for 8 bits multiply ``q``::

        sum_k (q[k] - z) * w[k] = sum_k q[k] * w[k] - z * sum_k w[k]      (modulo 2**32)
    """
    zero_points, storage = images.zero_points, images.storage
    if (
        zero_points is None
        or is_known(zero_points)
        or math.prod(zero_points.shape) != 1
        or is_known(storage)
        or not is_known(kernels)
        or images.type not in ("INT8", "UINT8")
        or dtype != np.int32
    ):
        return convolution(call, centered, kernels, dtype)
    pads, strides, dilations, groups = _geometry(call, storage.shape, kernels.shape)
    if any(map(any, pads)):
        fill = zero_points.reshape(())
        storage = np.pad(storage, ((0, 0), (0, 0), *pads), constant_values=fill)
    widened = replace(images, storage=storage, zero_points=None).centered()[0]
    no_pads = [(0, 0)] * len(pads)
    total = _convolved(widened, kernels, no_pads, strides, dilations, groups, dtype)
    shape = (1, -1, *(1,) * len(pads))
    weight_sums = kernels.sum(axis=tuple(range(1, kernels.ndim)), dtype=np.int32).reshape(shape)
    return total - zero_points.astype(np.int32).reshape((1,) * total.ndim) * weight_sums


def _integer_convolution(call: Call, images: Quantized, kernels: Quantized) -> ScaledSum | None:
    """Convolve integers; None for several image scales, f16 ones, or kernels not by channel."""
    reason = ""
    if not images.is_per_tensor:
        reason = "the images have more than one scale"
    elif not kernels.broadcasts or math.prod(kernels.scales.shape[1:]) != 1:
        reason = "the kernels have other scales than one for each feature"
    elif images.dtype != np.float32:
        reason = f"the scale of the images is {images.dtype.name}"
    if reason:
        call.with_floats(reason)
        return None
    (x, x_bound), (w, w_bound) = images.centered(), kernels.centered()
    bound, dtype = accumulator(w, w_bound, x_bound, tuple(range(1, w.ndim)))
    total = _centered_convolution(call, images, x, w, dtype)
    rank = total.ndim
    channel_scales = kernels.scales.reshape((1, -1, *(1,) * (rank - 2)))
    factor = product_factor(images.scales.reshape((1,) * rank), channel_scales, rank)
    return ScaledSum.of(total, bound, factor)


@importer("ConvInteger")
def conv_integer(call: Call) -> AnyArray:
    """ConvInteger-10: ``x, w, x_zero_point, w_zero_point`` to int32."""
    images, kernels = (
        integer_input(call, n, lambda zeros, shape: grid(call, zeros, shape, 0)) for n in (0, 1)
    )
    call.with_integers()
    (x, _), (w, _) = images.centered(), kernels.centered()
    return _centered_convolution(call, images, x, w, np.dtype(np.int32))


@importer("QLinearConv", "com.microsoft.QLinearConv")
def qlinear_conv(call: Call) -> Operand:
    """QLinearConv-10: ``x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, B``.

    B has the scale of ``x * w``.
    """
    images, kernels = quantized(call, 0, 1, 2), quantized(call, 3, 4, 5, axis=0)
    rank, is_last = len(images.shape), bool(call.attribute("channels_last", 0))
    if is_last:
        images = images.transposed((0, rank - 1, *range(1, rank - 1)))
    total = _integer_convolution(call, images, kernels)
    if total is None:
        raise call.unsupported("has scales other than one for each feature")
    bias = bias_of(call, 8, kernels.shape[0])
    if bias is not None:
        (term,) = total.terms
        bound = 1 << 31
        if bias.is_constant:
            bound = int(np.abs(np.asarray(bias.value, np.int64)).max(initial=0))
        bound += term.bound
        dtype = accumulator_type(bound).dtype
        addend = bias.value.astype(dtype).reshape((1, -1, *(1,) * (len(images.shape) - 2)))
        total = ScaledSum.of(term.value.astype(dtype) + addend, bound, term.factor)
    return stored(call, total.channels_last() if is_last else total, 6, 7)


@importer("Conv")
def conv(call: Call) -> ScaledSum | AnyArray:
    """Conv-22: ``X * W + B``; a scaled integer convolution where both operands are quantized."""
    images, kernels = call.input(0).value, call.input(1).value
    bias = bias_of(call, 2, kernels.shape[0])
    if isinstance(images, Quantized) and isinstance(kernels, Quantized):
        total = _integer_convolution(call, images, kernels)
        if total is not None:
            return total if bias is None else add_bias(call, total, bias.value, axis=1)
    call.with_floats(reason_for_floats(images, kernels))
    x, w = call.floats(images), call.floats(kernels)
    element = ElementType.of_dtype(np.dtype(x.dtype))
    dtype = np.dtype(np.float32) if element.bits < 32 else element.dtype
    result = convolution(call, x, w, dtype)
    if bias is not None:
        addend = convert(call.floats(bias.value), ElementType.of_dtype(dtype))
        result = result + addend.reshape((1, -1, *(1,) * (result.ndim - 2)))
    return convert(result, element)


@importer("ConvTranspose")
def conv_transpose(call: Call) -> Operand:
    """ConvTranspose-22: ``X`` ``[N, C, ...]``, ``W`` ``[C, M / group, ...]`` and ``B``.

    Each input pixel adds a scaled kernel to the output. That is a convolution of the input, with
    ``stride - 1`` zeros between pixels and a margin of ``(kernel - 1) * dilation - pads`` around
    them, with the kernel reversed along its spatial axes. Negative margins crop.
    """
    images, kernels = call.array(0), call.array(1)
    rank, groups = images.ndim - 2, call.attribute("group", 1)
    if rank < 1 or kernels.ndim != images.ndim:
        raise call.error(
            f"has images of {images.ndim} dimensions and kernels of {kernels.ndim}, expected 3 or "
            "more, as many of both"
        )
    channels, per_group, *sizes = kernels.shape
    if groups < 1 or channels % groups or images.shape[1] != channels:
        raise call.error(
            f"has {images.shape[1]} channels, and kernels for {channels} in {groups} groups"
        )
    if call.attribute("kernel_shape", sizes) != sizes:
        raise call.error(
            f"has the kernel_shape {call.attribute('kernel_shape')}, and kernels of {sizes}"
        )
    strides, dilations = (call.attribute(n, [1] * rank) for n in ("strides", "dilations"))
    for name, steps in (("strides", strides), ("dilations", dilations)):
        if len(steps) != rank or min(steps) < 1:
            raise call.error(f"has the {name} {steps}, expected {rank} positive integers")
    spans = [(size - 1) * step + 1 for size, step in zip(sizes, dilations, strict=True)]
    margins = _margins(call, images.shape[2:], spans, strides)
    added = [(max(low, 0), max(high, 0)) for low, high in margins]
    images = np.pad(dilate(images, (1, 1, *strides)), ((0, 0), (0, 0), *added))
    crops = [
        slice(max(-low, 0), length - max(-high, 0))
        for (low, high), length in zip(margins, images.shape[2:], strict=True)
    ]
    images = images[(slice(None), slice(None), *crops)]
    mirrored = np.flip(kernels, tuple(range(2, rank + 2)))
    grouped = mirrored.reshape((groups, channels // groups, per_group, *sizes))
    order = (0, 2, 1, *range(3, rank + 3))
    weights = grouped.transpose(order).reshape((groups * per_group, channels // groups, *sizes))
    pads = [(0, 0)] * rank
    dtype = computing_dtype(images.dtype)
    result = _convolved(images, weights, pads, (1,) * rank, tuple(dilations), groups, dtype)
    stated = call.attribute("output_shape", [0] * rank)
    if len(stated) == rank + 2 and tuple(stated[:2]) != tuple(result.shape[:2]):
        raise call.error(
            f"has the output_shape {stated} for {result.shape[0]} images of {result.shape[1]} "
            "channels"
        )
    if bias_of(call, 2, result.shape[1]) is not None:
        result = result + call.array(2).astype(result.dtype).reshape((-1, *(1,) * rank))
    return call.typed(result.astype(images.dtype))


def _margins(
    call: Call, lengths: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """Numbers of zeros before and after the dilated images that give the result its shape."""
    rank, auto = len(lengths), call.attribute("auto_pad", "NOTSET")
    extra = call.attribute("output_padding", [0] * rank)
    pads = call.attribute("pads", [0] * (2 * rank))
    shape = call.attribute("output_shape", [0] * rank)
    if len(extra) != rank or min(extra) < 0:
        raise call.error(f"has the output_padding {extra}, expected {rank} integers from 0 on")
    if len(pads) != 2 * rank or auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise call.error(f"has the pads {pads} ({auto}), expected {2 * rank} integers")
    if len(shape) == rank + 2:  # with the batch and the channels, which it cannot change
        shape = shape[2:]
    if len(shape) != rank:
        raise call.error(f"has the output_shape {shape}, expected {rank} integers")
    is_same = auto.startswith("SAME")
    margins = []
    for axis, (length, span, stride) in enumerate(zip(lengths, spans, strides, strict=True)):
        whole = stride * (length - 1) + extra[axis] + span
        low, high = (0, 0) if auto == "VALID" else (pads[axis], pads[axis + rank])
        target = shape[axis] or (length * stride if is_same else 0)
        if target:
            if target - whole >= (stride if shape[axis] else 1):
                raise call.unsupported(
                    f"asks for {target} elements in spatial dimension {axis}, where the kernels "
                    f"with strides of {stride} reach {whole}; say the output as pads and "
                    "output_padding"
                )
            total = max(whole - target, 0)
            low = total // 2 if auto == "SAME_UPPER" else total - total // 2
            high = whole - target - low
        margins.append((span - 1 - low, span - 1 - high + extra[axis]))
    return margins
