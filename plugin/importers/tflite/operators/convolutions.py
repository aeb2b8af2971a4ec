"""Convolutions and matrix products, as LiteRT's reference kernels compute them.

Sources: LiteRT, ``reference/integer_ops/conv.h``, ``depthwise_conv.h``, ``fully_connected.h``,
``reference/batch_matmul.h``, and ``Prepare`` of ``conv.cc``, ``depthwise_conv.cc``,
``fully_connected.cc``, ``batch_matmul.cc``, ``kernel_util.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import contract, convert, convolve_last
from ....numerics.element_types import I32, AnyArray, Array
from ..arithmetic import requantization
from ..call import Call, Operand, kernel
from ..reading.model import Tensor
from ..reading.schema import TENSOR_TYPES
from . import dynamic_range
from .shapes import padded_or_cut, spread

__all__ = ["spread_images"]

_WIDE = 1 << 31
_MAX_BIAS_ERROR = np.float32(0.02)


@kernel("CONV_2D")
def conv_2d(call: Call) -> AnyArray:
    """Filters are ``[F, KH, KW, C / groups]``."""
    images, filters = call.input(0), call.input(1)
    channels, per_group = images.shape[3], filters.shape[3]
    if not per_group or channels % per_group:
        raise call.error(f"has filters of {per_group} channels for images of {channels}")
    return _convolution(call, images, (1, 2, 3, 0), 0, channels // per_group)


@kernel("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(call: Call) -> AnyArray:
    """Filters are ``[1, KH, KW, C * multiplier]``."""
    images, filters = call.input(0), call.input(1)
    channels, features = images.shape[3], filters.shape[3]
    if not channels or features % channels:
        raise call.error(f"has {features} filters for images of {channels} channels")
    return _convolution(call, images, (1, 2, 0, 3), 3, channels)


def _convolution(
    call: Call, images: Operand, order: Sequence[int], axis: int, groups: int
) -> AnyArray:
    """A convolution.

    Args:
        call: with filters and bias as inputs 1 and 2.
        images: ``[N, H, W, C]``.
        order: the axes of the filters as ``[KH, KW, C / groups, F]``.
        axis: which axis of the filters counts features.
        groups: of channels.
    """
    filters, options = call.input(1), call.options
    bias = _bias(call, 2, filters.shape[axis])
    strides = (options.stride_h, options.stride_w)
    dilations = (options.dilation_h_factor, options.dilation_w_factor)
    if min(*strides, *dilations) < 1:
        raise call.error(f"has the strides {strides} and the dilations {dilations}")
    kernel_sizes = [filters.shape[a] for a in order[:2]]
    spans = [(n - 1) * d + 1 for n, d in zip(kernel_sizes, dilations, strict=True)]
    pads = call.padding(images.shape[1:3], spans, strides)
    if any(
        n + sum(pair) < span for n, pair, span in zip(images.shape[1:3], pads, spans, strict=True)
    ):
        raise call.error(f"has windows of {spans} in images of {list(images.shape[1:3])}")

    def convolved(left: AnyArray, right: AnyArray, fill: float, dtype: type) -> AnyArray:
        padded = left
        if any(map(any, pads)):
            padded = np.pad(left, ((0, 0), *pads, (0, 0)), constant_values=fill)
        kernels = right.transpose(*order)
        return convolve_last(padded, kernels, strides, dilations, groups, dtype)

    if images.is_float and dynamic_range.is_hybrid(call, filters):
        return call.activated(dynamic_range.convolved(call, images, filters, bias, convolved))
    if images.is_float:
        real = convolved(
            images.value.astype(np.float32), call.reals(filters, images.value), 0.0, np.float32
        )
        return call.activated(_with_bias(real, bias))
    product = _Product(call, images, filters, bias, axis)
    return product.stored(lambda x, w, fill, dtype: convolved(x, w.reshape(filters.shape), fill,
                                                              dtype))  # fmt: skip


@kernel("CONV_3D")
def conv_3d(call: Call) -> AnyArray:
    """Of floats; filters are ``[KD, KH, KW, C / groups, F]``."""
    images, filters = call.input(0), call.input(1)
    strides, dilations = _in_space(call, images, filters)
    bias = _bias(call, 2, filters.shape[4])
    channels, per_group = images.shape[4], filters.shape[3]
    if not per_group or channels % per_group:
        raise call.error(f"has filters of {per_group} channels for images of {channels}")
    spans = [(n - 1) * d + 1 for n, d in zip(filters.shape[:3], dilations, strict=True)]
    pads = call.padding(images.shape[1:4], spans, strides)
    value = np.pad(images.value, ((0, 0), *pads, (0, 0))) if any(map(any, pads)) else images.value
    kernels = call.reals(filters, images.value)
    total = _volume(call, value, kernels, strides, dilations, channels // per_group)
    return call.activated(_with_bias(total, bias))


@kernel("CONV_3D_TRANSPOSE")
def conv_3d_transpose(call: Call) -> AnyArray:
    """Of floats; filters are ``[KD, KH, KW, F, C]``; input 0 is the shape of the result."""
    images, filters = call.input(2), call.input(1)
    strides, dilations = _in_space(call, images, filters)
    if images.shape[4] != filters.shape[4]:
        raise call.error(f"has filters of {filters.shape[4]} channels, and {images.shape[4]}")
    bias = _bias(call, 3, filters.shape[3])
    extents = _stated_extents(call, images, filters.shape[3])
    spans = [(n - 1) * d + 1 for n, d in zip(filters.shape[:3], dilations, strict=True)]
    before = _cut_before(call, images.shape[1:4], extents, spans, strides)
    value = images.value
    for axis, (extent, span, stride, pad) in enumerate(
        zip(extents, spans, strides, before, strict=True), 1
    ):
        value = spread(value, axis, stride, 0.0)
        low = span - 1 - pad
        high = extent + span - 1 - low - value.shape[axis]
        value = padded_or_cut(value, axis, low, high, 0.0)
    kernels = np.flip(call.reals(filters, images.value), (0, 1, 2)).transpose(0, 1, 2, 4, 3)
    total = _volume(call, value, kernels, (1, 1, 1), dilations, 1)
    return call.activated(_with_bias(total, bias))


def _in_space(
    call: Call, images: Operand, filters: Operand
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Strides and dilations along depth, height and width."""
    options = call.options
    strides = (options.stride_d, options.stride_h, options.stride_w)
    dilations = (options.dilation_d_factor, options.dilation_h_factor, options.dilation_w_factor)
    if len(images.shape) != 5 or len(filters.shape) != 5 or min(*strides, *dilations) < 1:
        raise call.error(f"has images of shape {list(images.shape)} and the strides {strides}")
    if not images.is_float:
        raise call.error(f"of {images.tensor.type} is not lowered", UnsupportedError)
    return strides, dilations


def _volume(
    call: Call,
    images: AnyArray,
    kernels: AnyArray,
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> AnyArray:
    """A convolution without padding: the sum over the depth of the filters of ones of images."""
    batch, extent, *_ = images.shape
    depth = (extent - (kernels.shape[0] - 1) * dilations[0] - 1) // strides[0] + 1
    if depth < 1:
        raise call.error(f"has filters of {kernels.shape[0]} in images of {extent}")
    total = None
    for place in range(kernels.shape[0]):
        start = place * dilations[0]
        layers = images[:, start : start + (depth - 1) * strides[0] + 1 : strides[0]]
        flat = layers.reshape((batch * depth, *layers.shape[2:]))
        found = convolve_last(
            flat, kernels[place], (strides[1], strides[2]), (dilations[1], dilations[2]), groups
        )
        total = found if total is None else total + found
    assert total is not None  # a depth of 0 leaves no windows
    return total.reshape((batch, depth, *total.shape[1:]))


@kernel("TRANSPOSE_CONV")
def transpose_conv(call: Call) -> AnyArray:
    """Filters are ``[F, KH, KW, C]``; input 0 is the shape of the result, input 2 the images.

    A convolution of the images with zeros between, with the filters reversed.
    """
    images, filters, options = call.input(2), call.input(1), call.options
    strides = (options.stride_h, options.stride_w)
    if len(images.shape) != 4 or len(filters.shape) != 4 or min(strides) < 1:
        raise call.error(f"has images of shape {list(images.shape)} and the strides {strides}")
    sizes = filters.shape[1:3]
    if images.shape[3] != filters.shape[3]:
        raise call.error(f"has filters of {filters.shape[3]} channels, and {images.shape[3]}")
    bias = _bias(call, 3, filters.shape[0])
    extents = _stated_extents(call, images, filters.shape[0])
    before = _cut_before(call, images.shape[1:3], extents, sizes, strides)
    flipped = Operand(filters.tensor, np.flip(filters.value, (1, 2)))

    def convolved(left: AnyArray, right: AnyArray, fill: float, dtype: type) -> AnyArray:
        value = spread_images(left, extents, sizes, strides, before, fill)
        return convolve_last(value, right.transpose(1, 2, 3, 0), dtype=dtype)

    if images.is_float and dynamic_range.is_hybrid(call, filters):
        return call.activated(dynamic_range.convolved(call, images, flipped, bias, convolved))
    if images.is_float:
        reals = call.reals(flipped, images.value)
        return call.activated(
            _with_bias(convolved(images.value.astype(np.float32), reals, 0.0, np.float32), bias)
        )
    return _Product(call, images, flipped, bias, 0).stored(convolved)


def _stated_extents(call: Call, images: Operand, features: int) -> list[int]:
    """Return the extents in space of the shape that input 0 states for the result."""
    shape = call.constant(0).reshape(-1).tolist()
    extents = shape[1:-1]
    if len(shape) != len(images.shape) or (shape[0], shape[-1]) != (images.shape[0], features):
        raise call.error(
            f"has the shape {shape} of its result for {images.shape[0]} images and {features} "
            "channels"
        )
    return extents


def _cut_before(
    call: Call,
    images: Sequence[int],
    extents: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
) -> list[int]:
    """Return the elements cut from the beginning of each dimension of a transposed convolution.

    Args:
        call: says the padding.
        images: the extents of the images.
        extents: of the result, a convolution of which would have those of the images.
        sizes: of the filters.
        strides: of them.
    """
    pads = call.padding(extents, sizes, strides)
    for image, extent, pair, size, stride in zip(
        images, extents, pads, sizes, strides, strict=True
    ):
        if (extent + sum(pair) - size) // stride + 1 != image:
            raise call.error(
                f"makes {list(extents)} of images of {list(images)} with the strides "
                f"{list(strides)}"
            )
    return [pair[0] for pair in pads]


def spread_images(
    images: AnyArray,
    extents: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    before: Sequence[int],
    fill: float,
) -> AnyArray:
    """Return the images whose convolution with reversed filters is a transposed convolution.

    Args:
        images: ``[N, H, W, C]``.
        extents: height and width of the result.
        sizes: of the filters.
        strides: the distance of the images' pixels in the result.
        before: the rows and columns that are cut from the beginning of the result.
        fill: the value between the pixels, and around them.
    """
    value = images
    for axis, (extent, size, stride, cut) in enumerate(
        zip(extents, sizes, strides, before, strict=True), 1
    ):
        value = spread(value, axis, stride, fill)
        low = size - 1 - cut
        high = extent + size - 1 - low - value.shape[axis]
        value = padded_or_cut(value, axis, low, high, fill)
    return value


def _bias(call: Call, index: int, features: int) -> Operand | None:
    """Return the bias, which has an element for each output channel."""
    bias = call.optional(index)
    if bias is not None and math.prod(bias.shape) != features:
        raise call.error(f"adds {bias} of shape {list(bias.shape)} to {features} channels")
    return bias


def _with_bias(real: AnyArray, bias: Operand | None) -> AnyArray:
    return real if bias is None else real + bias.value.astype(np.float32)


@dataclass(frozen=True, eq=False)
class _Product:
    """Sums of products of centered storage, the bias, and the scale of the result.

    ``sum (x - zx) * (w - zw) = sum x * (w - zw) - zx * sum (w - zw)``: the second sum is known, and
    is added with the bias. 16-bit activations have sums of 64 bits in LiteRT, unless the operator
    says i32; here they have 64 where they need them. Other sums wrap in 32 bits, there and here.

    Args:
        call: the operator.
        activations: with one scale.
        weights: constant; one scale, or one for each feature and zero points of 0.
        bias: in units of both scales.
        axis: of the weights, that counts features; the last axis of the result does.
    """

    call: Call
    activations: Operand
    weights: Operand
    bias: Operand | None
    axis: int

    def stored(self, product: Callable[[AnyArray, Array, int, type], AnyArray]) -> AnyArray:
        """The storage of the result.

        Args:
            product: of the activations' storage and the centered weights, with a fill for padding,
                in a dtype.
        """
        call, x = self.call, self.call.per_tensor(self.activations.tensor)
        weights = self._centered()
        others = tuple(axis for axis in range(weights.ndim) if axis != self.axis)
        info = np.iinfo(self.activations.value.dtype)
        largest = max(x.zero_point - int(info.min), int(info.max) - x.zero_point)
        bound = int(np.abs(weights.astype(np.int64)).sum(axis=others).max(initial=0)) * largest
        offset = -x.zero_point * weights.astype(np.int64).sum(axis=others)
        if self.bias is not None:
            if not self.bias.is_constant:
                raise call.error(f"needs {self.bias.tensor} to be constant", UnsupportedError)
            self._check_bias(self.bias.tensor)
            offset = offset + np.asarray(self.bias.value, np.int64).reshape(-1)
            bound += int(np.abs(np.asarray(self.bias.value, np.int64)).max(initial=0))
        storage = self.activations.value
        if storage.dtype == np.uint8:
            storage = storage.astype(np.int16)
        narrow = np.int8 if np.abs(weights + 0.5).max(initial=0) < 128 else np.int16
        is_wide = self._is_wide() and bound >= _WIDE
        dtype = np.int64 if is_wide else np.int32
        total = product(storage, weights.astype(narrow), x.zero_point, dtype)
        if offset.any():
            total = total + (offset if is_wide else offset.astype(np.uint32).view(np.int32))
        return call.stored(self._scaled(total, bound if is_wide else min(bound, _WIDE)))

    def _centered(self) -> Array:
        call, tensor = self.call, self.weights.tensor
        if not self.weights.is_constant:
            raise call.error(f"needs {tensor} to be constant, and it is computed", UnsupportedError)
        found = call.parameters(tensor)
        if found.is_per_tensor:
            is_convolution = call.operator.name != "FULLY_CONNECTED"
            if is_convolution and self.activations.tensor.type != "UINT8":
                call.symmetric_scale(self.weights)  # LiteRT subtracts no zero point
            return np.asarray(self.weights.value, np.int16) - np.int16(found.zero_point)
        if found.axis != self.axis or found.zero_points.any():
            raise call.error(
                f"needs scales of {tensor} along dimension {self.axis} and zero points of 0, and "
                f"they are along {found.axis}"
            )
        return np.asarray(self.weights.value, np.int16)

    def _check_bias(self, bias: Tensor) -> None:
        """Check that a bias has the scale of the products, as LiteRT does: to 2 % of the result's.

        LiteRT checks it of one scale only.
        """
        parameters = bias.quantization
        if parameters is None:
            return
        x, y = self.call.per_tensor(self.activations.tensor), self.call.per_tensor(self.call.output)
        products = x.scale * self.call.parameters(self.weights.tensor).scales.reshape(-1)
        scales = parameters.scales.reshape(-1)
        is_other = scales.size not in (1, products.size) and products.size != 1
        if is_other or (np.abs(scales - products) > _MAX_BIAS_ERROR * y.scale).any():
            raise self.call.error(f"needs a scale of {bias} that is that of the products")
        if parameters.zero_points.any():
            raise self.call.error(f"needs zero points of 0 of {bias}")

    def _is_wide(self) -> bool:
        if self.activations.tensor.type != "INT16":
            return False
        code = getattr(self.call.options, "quantized_bias_type", 0)
        stated = TENSOR_TYPES[code] if 0 < code < len(TENSOR_TYPES) else None
        if code and stated not in ("INT32", "INT64"):
            raise self.call.error(f"has the option quantized_bias_type = {stated or code}")
        if stated is not None and self.bias is not None and self.bias.tensor.type != stated:
            raise self.call.error(f"has sums of {stated} and a bias of {self.bias.tensor.type}")
        return stated != "INT32" and (self.bias is None or self.bias.tensor.type == "INT64")

    def _scaled(self, total: AnyArray, bound: int) -> AnyArray:
        call, w = self.call, self.call.parameters(self.weights.tensor)
        x, y = call.per_tensor(self.activations.tensor), call.per_tensor(call.output)
        scales = w.scales.reshape(-1)
        factors = np.float64(x.scale) * scales.astype(np.float64) / np.float64(y.scale)
        if call.operator.name == "FULLY_CONNECTED":
            low, high = call.range(call.output)
            steps = (low - y.zero_point, high - y.zero_point)
            return requantization.round_product(total, factors, bound, *steps)
        if self.activations.tensor.type == "UINT8":  # the product of scales is rounded to f32
            factors = (x.scale * scales).astype(np.float64) / np.float64(y.scale)
        if self._is_wide():
            return requantization.scaled_wide(total, factors)
        return requantization.scaled(total, factors)


@kernel("FULLY_CONNECTED")
def fully_connected(call: Call) -> AnyArray:
    """Weights are ``[features, depth]``; what the input has before `depth` counts rows."""
    rows, weights = call.input(0), call.input(1)
    if call.options.weights_format:
        raise call.error("has shuffled weights", UnsupportedError)
    if len(weights.shape) != 2:
        raise call.error(f"has weights of shape {list(weights.shape)}, expected 2 dimensions")
    features, depth = weights.shape
    bias = _bias(call, 2, features)
    count = math.prod(rows.shape)
    if not depth or count % depth:
        raise call.error(f"has {count} elements for weights of {depth} columns")
    flat = rows.value.reshape((count // depth, depth))

    if rows.is_float and dynamic_range.is_hybrid(call, weights):
        result = call.activated(_with_bias(dynamic_range.of_rows(call, flat, weights), bias))
    elif rows.is_float:
        real = contract(flat.astype(np.float32), call.reals(weights, flat), ((1,), (1,)))
        result = call.activated(_with_bias(real, bias))
    else:
        operand = Operand(rows.tensor, flat)
        result = _Product(call, operand, weights, bias, 0).stored(
            lambda x, w, _, dtype: contract(x, w, ((1,), (1,)), dtype=dtype)
        )
    if call.options.keep_num_dims:
        return result.reshape((*rows.shape[:-1], features))
    return result


@kernel("BATCH_MATMUL")
def batch_matmul(call: Call) -> AnyArray:
    """Both operands are ``[..., rows, columns]``; ``adj_x``, ``adj_y`` swap the last two.

    LiteRT takes a right operand with several scales for one of scale 0 and answers zero points;
    here each column has its scale.
    """
    left, right = call.input(0), call.input(1)
    swaps = (bool(call.options.adj_x), bool(call.options.adj_y))
    if min(len(left.shape), len(right.shape)) < 2:
        raise call.error(f"has operands of shapes {list(left.shape)} and {list(right.shape)}")
    if left.is_float and dynamic_range.is_hybrid(call, right):
        rows = left.value.transpose(*range(left.value.ndim - 2), -1, -2) if swaps[0] else left.value
        right_only = (False, swaps[1])
        return dynamic_range.batch_matmul(
            call, rows, right, lambda x, w, dtype: _matmul((x, w), right_only, dtype)
        )
    if left.is_float:
        reals = [call.reals(operand, left.value) for operand in (left, right)]
        return _matmul(reals, swaps, np.float32)
    x, y, w = (
        call.per_tensor(left.tensor),
        call.per_tensor(call.output),
        call.parameters(right.tensor),
    )
    columns = len(right.shape) - (2 if swaps[1] else 1)
    if not w.is_per_tensor and (w.axis != columns or w.zero_points.any()):
        raise call.error(
            f"needs scales of {right.tensor} along dimension {columns} and zero points of 0, and "
            f"they are along {w.axis}"
        )
    centered = [call.centered(left), convert(right.value, I32)]
    if w.is_per_tensor:
        centered[1] = call.centered(right)
    depth = left.shape[-2 if swaps[0] else -1]
    bits = sum(operand.value.dtype.itemsize * 8 for operand in (left, right))
    is_wide = left.tensor.type == "INT16"
    total = _matmul(centered, swaps, np.int64 if is_wide and depth << bits >= _WIDE else np.int32)
    factors = np.float64(x.scale) * w.scales.reshape(-1).astype(np.float64) / np.float64(y.scale)
    return call.stored(
        (requantization.scaled_wide if is_wide else requantization.scaled)(total, factors)
    )


def _matmul(sides: Sequence[AnyArray], swaps: tuple[bool, bool], dtype: type) -> AnyArray:
    batch = np.broadcast_shapes(*(side.shape[:-2] for side in sides))
    left, right = (
        np.broadcast_to(
            side.reshape((1,) * (len(batch) + 2 - side.ndim) + side.shape),
            (*batch, *side.shape[-2:]),
        )
        for side in sides
    )
    rank = len(batch)
    axes = tuple(range(rank))
    summed = (rank if swaps[0] else rank + 1, rank + 1 if swaps[1] else rank)
    return contract(left, right, ((summed[0],), (summed[1],)), (axes, axes), dtype=dtype)
