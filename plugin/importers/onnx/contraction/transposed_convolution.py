"""ConvTranspose: each input pixel adds a scaled kernel to the output.

It is a convolution of the input, with ``stride - 1`` zeros between pixels and a margin of
``(kernel - 1) * dilation - pads`` around them, with the kernel reversed along its spatial axes.
Negative margins crop.

Source: ONNX, ConvTranspose 22.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....errors import UnsupportedError
from ....numerics.convolutions import convolve, dilate
from ....numerics.element_types import AnyArray
from ..call import Call, Operand, importer
from .convolutions import bias_of


@importer("ConvTranspose")
def conv_transpose(call: Call) -> Operand:
    """ConvTranspose-22: ``X`` ``[N, C, ...]``, ``W`` ``[C, M / group, ...]`` and ``B``."""
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
    strides, dilations = (_steps(call, name, rank) for name in ("strides", "dilations"))
    spans = [(size - 1) * step + 1 for size, step in zip(sizes, dilations, strict=True)]
    margins = _margins(call, images.shape[2:], spans, strides)
    images = _with_margins(dilate(images, (1, 1, *strides)), margins)
    mirrored = np.flip(kernels, tuple(range(2, rank + 2)))
    grouped = mirrored.reshape((groups, channels // groups, per_group, *sizes))
    order = (0, 2, 1, *range(3, rank + 3))
    weights = grouped.transpose(order).reshape((groups * per_group, channels // groups, *sizes))
    result = _convolution(images, weights, dilations, groups)
    stated = call.attribute("output_shape", [0] * rank)
    if len(stated) == rank + 2 and tuple(stated[:2]) != tuple(result.shape[:2]):
        raise call.error(
            f"has the output_shape {stated} for {result.shape[0]} images of {result.shape[1]} "
            "channels"
        )
    if bias_of(call, 2, result.shape[1]) is not None:
        result = result + call.array(2).astype(result.dtype).reshape((-1, *(1,) * rank))
    return call.typed(result.astype(images.dtype))


def _steps(call: Call, name: str, rank: int) -> list[int]:
    steps: list[int] = call.attribute(name, [1] * rank)
    if len(steps) != rank or min(steps) < 1:
        raise call.error(f"has the {name} {steps}, expected {rank} positive integers")
    return steps


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
                raise call.error(
                    f"asks for {target} elements in spatial dimension {axis}, where the kernels "
                    f"with strides of {stride} reach {whole}; say the output as pads and "
                    "output_padding",
                    UnsupportedError,
                )
            total = max(whole - target, 0)
            low = total // 2 if auto == "SAME_UPPER" else total - total // 2
            high = whole - target - low
        margins.append((span - 1 - low, span - 1 - high + extra[axis]))
    return margins


def _with_margins(images: AnyArray, margins: Sequence[tuple[int, int]]) -> AnyArray:
    added = [(max(low, 0), max(high, 0)) for low, high in margins]
    images = np.pad(images, ((0, 0), (0, 0), *added))
    crops = [
        slice(max(-low, 0), length - max(-high, 0))
        for (low, high), length in zip(margins, images.shape[2:], strict=True)
    ]
    return images[(slice(None), slice(None), *crops)]


def _convolution(
    images: AnyArray, weights: AnyArray, dilations: Sequence[int], groups: int
) -> AnyArray:
    """A convolution with products summed in f32, or f64."""
    dtype = np.float64 if images.dtype == np.float64 else np.float32
    rank = images.ndim - 2
    if rank > 1:
        return convolve(images, weights, (1,) * rank, tuple(dilations), groups, dtype)
    line, row = (
        array.reshape((*array.shape[:2], 1, array.shape[2])) for array in (images, weights)
    )
    result = convolve(line, row, (1, 1), (1, *dilations), groups, dtype)
    return result.reshape((*result.shape[:2], math.prod(result.shape[2:])))
