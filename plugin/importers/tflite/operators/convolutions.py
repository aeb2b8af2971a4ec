"""Importers of convolutions and transposed convolutions.

Sources: LiteRT, ``reference/integer_ops/conv.h``, ``depthwise_conv.h``, ``transpose_conv.h``,
``conv3d.cc``, ``conv3d_transpose.cc``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....numerics.convolutions import convolve_last, dilate
from ....numerics.element_types import AnyArray
from ..call import Call, importer
from ..operand import Operand
from . import dynamic_range
from .integer_contraction import IntegerContraction, add_float_bias, bias_operand
from .padding import pad_images, pad_or_crop, spread


@importer("CONV_2D")
def conv_2d(call: Call) -> AnyArray:
    """Import CONV_2D, with filters ``[OC, KH, KW, C / groups]``."""
    images, filters = call.input(0), call.input(1)
    groups = _group_count(call, images.shape[3], filters.shape[3])
    return _conv_2d(call, images, (1, 2, 3, 0), 0, groups)


@importer("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(call: Call) -> AnyArray:
    """Import DEPTHWISE_CONV_2D, with filters ``[1, KH, KW, C * multiplier]``."""
    images, filters = call.input(0), call.input(1)
    channels, output_channels = images.shape[3], filters.shape[3]
    if not channels or output_channels % channels:
        raise call.error(f"has {output_channels} filters for images of {channels} channels")
    return _conv_2d(call, images, (1, 2, 0, 3), 3, channels)


def _group_count(call: Call, channels: int, channels_per_group: int) -> int:
    if not channels_per_group or channels % channels_per_group:
        raise call.error(f"has filters of {channels_per_group} channels for images of {channels}")
    return channels // channels_per_group


def _dilated_sizes(filter_sizes: Sequence[int], dilations: Sequence[int]) -> list[int]:
    return [(n - 1) * d + 1 for n, d in zip(filter_sizes, dilations, strict=True)]


def _conv_2d(call: Call, images: Operand, order: Sequence[int], axis: int, groups: int) -> AnyArray:
    """Convolve images ``[N, H, W, C]`` by the filters in input 1, with the bias in input 2.

    `order` transposes the filters to ``[KH, KW, C / groups, OC]``; `axis` is their output channels.
    """
    filters, options = call.input(1), call.options
    bias = bias_operand(call, 2, filters.shape[axis])
    strides = (options.stride_h, options.stride_w)
    dilations = (options.dilation_h_factor, options.dilation_w_factor)
    if min(*strides, *dilations) < 1:
        raise call.error(f"has the strides {strides} and the dilations {dilations}")
    sizes = _dilated_sizes([filters.shape[a] for a in order[:2]], dilations)
    pads = call.padding(images.shape[1:3], sizes, strides)
    if any(
        n + sum(pair) < size for n, pair, size in zip(images.shape[1:3], pads, sizes, strict=True)
    ):
        raise call.error(f"has windows of {sizes} in images of {list(images.shape[1:3])}")

    def convolve(left: AnyArray, right: AnyArray, fill: float, dtype: type) -> AnyArray:
        left = pad_images(left, pads, fill)
        return convolve_last(left, right.transpose(*order), strides, dilations, groups, dtype)

    return _contract(call, images, filters, bias, axis, convolve)


def _contract(
    call: Call,
    images: Operand,
    filters: Operand,
    bias: Operand | None,
    axis: int,
    convolve: Callable[[AnyArray, AnyArray, float, type], AnyArray],
) -> AnyArray:
    """Convolve in the arithmetic of the operands: floats, floats rounded to 8 bits, or integers."""
    if not images.is_float:
        return IntegerContraction(call, images, filters, bias, axis).compute(convolve)
    if dynamic_range.applies(call, filters):
        return call.activated(dynamic_range.convolve(call, images, filters, bias, convolve))
    values, weights = images.value.astype(np.float32), call.expressed(filters, images.value)
    return call.activated(add_float_bias(convolve(values, weights, 0.0, np.float32), bias))


# -- transposed convolutions ----------------------------------------------------------------------


@importer("TRANSPOSE_CONV")
def transpose_conv(call: Call) -> AnyArray:
    """Import TRANSPOSE_CONV, with filters ``[OC, KH, KW, C]`` and the result's shape in input 0.

    It becomes a convolution by the flipped filters of the images (input 2) with zeros between
    pixels.
    """
    images, filters, options = call.input(2), call.input(1), call.options
    strides = (options.stride_h, options.stride_w)
    if len(images.shape) != 4 or len(filters.shape) != 4 or min(strides) < 1:
        raise call.error(f"has images of shape {list(images.shape)} and the strides {strides}")
    sizes = filters.shape[1:3]
    _check_channels(call, images.shape[3], filters.shape[3])
    bias = bias_operand(call, 3, filters.shape[0])
    result_sizes = _stated_sizes(call, images, filters.shape[0])
    cropped = _cropped_before(call, images.shape[1:3], result_sizes, sizes, strides)
    flipped = Operand(filters.tensor, np.flip(filters.value, (1, 2)))

    def convolve(left: AnyArray, right: AnyArray, fill: float, dtype: type) -> AnyArray:
        value = spread_images(left, result_sizes, sizes, strides, cropped, fill)
        return convolve_last(value, right.transpose(1, 2, 3, 0), dtype=dtype)

    return _contract(call, images, flipped, bias, 0, convolve)


def _check_channels(call: Call, image_channels: int, filter_channels: int) -> None:
    """Refuse filters with another number of channels than the images."""
    if image_channels != filter_channels:
        raise call.error(
            f"has filters of {filter_channels} channels for images of {image_channels}"
        )


def _stated_sizes(call: Call, images: Operand, output_channels: int) -> list[int]:
    """Return the spatial sizes of the shape that input 0 states for the result."""
    shape = call.constant_list(0)
    batch = images.shape[0]
    if len(shape) != len(images.shape) or (shape[0], shape[-1]) != (batch, output_channels):
        raise call.error(
            f"has the shape {shape} of its result for {batch} images and {output_channels} channels"
        )
    return shape[1:-1]


def _cropped_before(
    call: Call,
    image_sizes: Sequence[int],
    result_sizes: Sequence[int],
    filter_sizes: Sequence[int],
    strides: Sequence[int],
) -> list[int]:
    """Return the elements that a transposed convolution drops at the start of each dimension."""
    pads = call.padding(result_sizes, filter_sizes, strides)
    for image_size, result_size, pair, filter_size, stride in zip(
        image_sizes, result_sizes, pads, filter_sizes, strides, strict=True
    ):
        if (result_size + sum(pair) - filter_size) // stride + 1 != image_size:
            raise call.error(
                f"makes {list(result_sizes)} of images of {list(image_sizes)} with the strides "
                f"{list(strides)}"
            )
    return [pair[0] for pair in pads]


def spread_images(
    images: AnyArray,
    result_sizes: Sequence[int],
    filter_sizes: Sequence[int],
    strides: Sequence[int],
    cropped: Sequence[int],
    fill: float,
) -> AnyArray:
    """Return the images whose convolution by flipped filters is a transposed convolution.

    The images are ``[N, ..., C]``, and `fill` is the value between and around their pixels. Each
    spatial dimension has sizes, a stride, the distance of the images' pixels in the result, and a
    number of elements that are dropped at the start of the result.
    """
    pads, sizes = [], images.shape[1:-1]
    for size, result_size, filter_size, stride, crop in zip(
        sizes, result_sizes, filter_sizes, strides, cropped, strict=True
    ):
        low, spread_size = filter_size - 1 - crop, max((size - 1) * stride + 1, 0)
        pads.append((low, result_size + filter_size - 1 - low - spread_size))
    if isinstance(fill, float) and fill == 0 and min(min(pair) for pair in pads) >= 0:
        return np.pad(dilate(images, (1, *strides, 1)), [(0, 0), *pads, (0, 0)])
    value = images
    for axis, (stride, (low, high)) in enumerate(zip(strides, pads, strict=True), 1):
        value = pad_or_crop(spread(value, axis, stride, fill), axis, low, high, fill)
    return value


# -- three dimensions -----------------------------------------------------------------------------


@importer("CONV_3D")
def conv_3d(call: Call) -> AnyArray:
    """Import CONV_3D on floats, with filters ``[KD, KH, KW, C / groups, OC]``."""
    images, filters = call.input(0), call.input(1)
    strides, dilations = _strides_and_dilations_3d(call, images, filters)
    bias = bias_operand(call, 2, filters.shape[4])
    groups = _group_count(call, images.shape[4], filters.shape[3])
    sizes = _dilated_sizes(filters.shape[:3], dilations)
    pads = call.padding(images.shape[1:4], sizes, strides)
    value = pad_images(images.value, pads)
    weights = call.expressed(filters, images.value)
    total = _convolve_3d(call, value, weights, strides, dilations, groups)
    return call.activated(add_float_bias(total, bias))


@importer("CONV_3D_TRANSPOSE")
def conv_3d_transpose(call: Call) -> AnyArray:
    """Import CONV_3D_TRANSPOSE on floats, with filters ``[KD, KH, KW, OC, C]``.

    Input 0 is the shape of the result.
    """
    images, filters = call.input(2), call.input(1)
    strides, dilations = _strides_and_dilations_3d(call, images, filters)
    _check_channels(call, images.shape[4], filters.shape[4])
    bias = bias_operand(call, 3, filters.shape[3])
    result_sizes = _stated_sizes(call, images, filters.shape[3])
    sizes = _dilated_sizes(filters.shape[:3], dilations)
    cropped = _cropped_before(call, images.shape[1:4], result_sizes, sizes, strides)
    value = spread_images(images.value, result_sizes, sizes, strides, cropped, 0.0)
    weights = np.flip(call.expressed(filters, images.value), (0, 1, 2)).transpose(0, 1, 2, 4, 3)
    total = _convolve_3d(call, value, weights, (1, 1, 1), dilations, 1)
    return call.activated(add_float_bias(total, bias))


def _strides_and_dilations_3d(
    call: Call, images: Operand, filters: Operand
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    options = call.options
    strides = (options.stride_d, options.stride_h, options.stride_w)
    dilations = (options.dilation_d_factor, options.dilation_h_factor, options.dilation_w_factor)
    if len(images.shape) != 5 or len(filters.shape) != 5 or min(*strides, *dilations) < 1:
        raise call.error(f"has images of shape {list(images.shape)} and the strides {strides}")
    call.require_float(images)
    return strides, dilations


def _convolve_3d(
    call: Call,
    images: AnyArray,
    filters: AnyArray,
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> AnyArray:
    """Convolve without padding: the sum over KD of two-dimensional convolutions."""
    batch, depth, *_ = images.shape
    result_depth = (depth - (filters.shape[0] - 1) * dilations[0] - 1) // strides[0] + 1
    if result_depth < 1:
        raise call.error(f"has filters of {filters.shape[0]} in images of {depth}")
    total = None
    for index in range(filters.shape[0]):
        start = index * dilations[0]
        planes = images[:, start : start + (result_depth - 1) * strides[0] + 1 : strides[0]]
        planes = planes.reshape((batch * result_depth, *planes.shape[2:]))
        product = convolve_last(
            planes, filters[index], (strides[1], strides[2]), (dilations[1], dilations[2]), groups
        )
        total = product if total is None else total + product
    assert total is not None  # KD of 0 leaves no result
    return total.reshape((batch, result_depth, *total.shape[1:]))
