"""Convolutions and matrix products, as LiteRT's reference kernels compute them.

Sources: LiteRT, ``reference/integer_ops/conv.h``, ``depthwise_conv.h``, ``fully_connected.h``,
``reference/batch_matmul.h``, and ``Prepare`` of ``conv.cc``, ``depthwise_conv.cc``,
``fully_connected.cc``, ``batch_matmul.cc``, ``kernel_util.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...errors import UnsupportedError
from ...numerics import litert
from ...numerics.array_functions import contract, convert, convolve_last
from ...numerics.element_types import I64, AnyArray, Array
from .call import Call, Operand, kernel

__all__: list[str] = []

_WIDE = 1 << 31


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
    filters, bias, options = call.input(1), call.optional(2), call.options
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

    if images.is_float:
        real = convolved(
            images.value.astype(np.float32), call.reals(filters, images.value), 0.0, np.float32
        )
        return call.activated(_with_bias(real, bias))
    if not filters.is_known:
        raise call.error(f"needs constant filters, and {filters.tensor} is computed",
                         UnsupportedError)  # fmt: skip
    return _integer_product(
        call, images, filters, bias, axis, lambda x, w, fill, dtype: convolved(x, w, fill, dtype),
        math.prod(filters.shape) // max(filters.shape[axis], 1),
        sums=lambda w: w.astype(np.int64).sum(axis=tuple(a for a in range(4) if a != axis)),
    )  # fmt: skip


def _with_bias(real: AnyArray, bias: Operand | None) -> AnyArray:
    return real if bias is None else real + bias.value.astype(np.float32)


def _integer_product(call, activations, weights, bias, axis, product, length, sums) -> AnyArray:
    """Sums of products of centered storage, the bias, and the scale of the result.

    Args:
        call: the operator.
        activations, weights, bias: its operands.
        axis: of the weights, that counts features: the last of the result.
        product: of storage values, a fill for padding, and the dtype of sums.
        length: of a sum.
        sums: of the weights that each feature has.
    """
    x = call.per_tensor(activations.tensor)
    w = call.parameters(weights.tensor)
    if not w.is_per_tensor and (w.axis != axis or w.zero_points.any()):
        raise call.error(
            f"needs scales of {weights.tensor} along dimension {axis} and zero points of 0, got "
            f"dimension {w.axis}"
        )
    info = np.iinfo(activations.value.dtype)
    largest = max(x.zero_point - int(info.min), int(info.max) - x.zero_point)
    centered = np.asarray(weights.value, np.int16) - w.zero_point if w.is_per_tensor else (
        np.asarray(weights.value)
    )
    bound = largest * int(np.abs(centered.astype(np.int64)).max(initial=0)) * length
    is_wide = activations.tensor.type == "INT16" and (bias is None or bias.tensor.type == "INT64")
    dtype = np.int64 if is_wide and bound >= _WIDE else np.int32
    storage = activations.value
    if storage.dtype == np.uint8:
        storage = storage.astype(np.int16)
    if centered.min(initial=0) >= -128 and centered.max(initial=0) <= 127:
        centered = centered.astype(np.int8)
    total = product(storage, centered, x.zero_point, dtype)
    offset = -x.zero_point * sums(centered) if x.zero_point else np.zeros(1, np.int64)
    if bias is not None:
        offset = offset + np.asarray(bias.value, np.int64).reshape(-1)
    if is_wide:
        total = convert(total, I64)
    if offset.any():
        total = total + (offset if is_wide else _wrapped(offset))
    return call.stored(_rescaled(call, total, activations, weights, is_wide, bound, offset))


def _wrapped(values: Array) -> Array:
    """As sums of 32 bits, which wrap in LiteRT as here."""
    return values.astype(np.int64).astype(np.uint32).view(np.int32) if values.ndim else values


def _rescaled(call, total, activations, weights, is_wide, bound, offset) -> AnyArray:
    x, y = call.per_tensor(activations.tensor), call.per_tensor(call.output)
    scales = call.parameters(weights.tensor).scales.reshape(-1)
    factors = np.float64(x.scale) * scales.astype(np.float64) / np.float64(y.scale)
    if activations.tensor.type == "UINT8":  # one rounding more, in f32
        factors = (x.scale * scales).astype(np.float64) / np.float64(y.scale)
    if is_wide:
        return litert.scaled_wide(total, factors)
    if call.operator.name == "FULLY_CONNECTED" and call.output.type in ("INT8", "UINT8"):
        low, high = call.range(call.output)
        most = min(bound + int(np.abs(offset).max(initial=0)), _WIDE)
        return litert.round_product(total, factors, most, low - y.zero_point, high - y.zero_point)
    return litert.scaled(total, factors)


@kernel("FULLY_CONNECTED")
def fully_connected(call: Call) -> AnyArray:
    """Weights are ``[features, depth]``; what the input has before `depth` counts rows."""
    rows, weights, bias = call.input(0), call.input(1), call.optional(2)
    if call.options.weights_format:
        raise call.error("has shuffled weights", UnsupportedError)
    if len(weights.shape) != 2:
        raise call.error(f"has weights of shape {list(weights.shape)}, expected 2 dimensions")
    features, depth = weights.shape
    count = math.prod(rows.shape)
    if not depth or count % depth:
        raise call.error(f"has {count} elements for weights of {depth} columns")
    flat = rows.value.reshape((count // depth, depth))

    def product(left: AnyArray, right: AnyArray, fill: float, dtype: type) -> AnyArray:
        return contract(left, right, ((1,), (1,)), dtype=dtype)

    if rows.is_float:
        real = contract(flat.astype(np.float32), call.reals(weights, flat), ((1,), (1,)))
        result = call.activated(_with_bias(real, bias))
    elif not weights.is_known:
        raise call.error(f"needs constant weights, and {weights.tensor} is computed",
                         UnsupportedError)  # fmt: skip
    else:
        operand = Operand(rows.tensor, flat)
        result = _integer_product(
            call, operand, weights, bias, 0, product, depth,
            sums=lambda w: w.astype(np.int64).sum(axis=1),
        )  # fmt: skip
    if call.options.keep_num_dims:
        return result.reshape((*rows.shape[:-1], features))
    return result


@kernel("BATCH_MATMUL")
def batch_matmul(call: Call) -> AnyArray:
    """Both operands are ``[..., rows, columns]``; ``adj_x``, ``adj_y`` swap the last two."""
    left, right = call.input(0), call.input(1)
    sides = []
    for operand, swapped in ((left, call.options.adj_x), (right, call.options.adj_y)):
        rank = len(operand.shape)
        if rank < 2:
            raise call.error(f"has an operand of shape {list(operand.shape)}")
        order = [*range(rank - 2), rank - 1, rank - 2]
        value = operand.value if operand.is_float or operand.is_known else operand.value
        sides.append((operand, value.transpose(*order) if swapped else value))
    batch = np.broadcast_shapes(*(value.shape[:-2] for _, value in sides))
    if left.is_float:
        reals = [
            _real_side(call, operand, left, value, swapped)
            for (operand, value), swapped in zip(
                sides, (call.options.adj_x, call.options.adj_y), strict=True
            )
        ]
        return _matmul(reals, batch, np.float32)
    x, w, y = (call.per_tensor(t) for t in (left.tensor, right.tensor, call.output))
    centered = [
        call.centered(Operand(operand.tensor, value)) for operand, value in sides
    ]
    depth = sides[0][1].shape[-1]
    bound = depth * math.prod(
        1 << (np.dtype(operand.value.dtype).itemsize * 8) for operand, _ in sides
    )
    is_wide = left.tensor.type == "INT16"
    dtype = np.int64 if is_wide and bound >= _WIDE else np.int32
    total = _matmul(centered, batch, dtype)
    factor = np.float64(x.scale) * np.float64(w.scale) / np.float64(y.scale)
    if is_wide:
        return call.stored(litert.scaled_wide(convert(total, I64), factor))
    return call.stored(litert.scaled(total, factor))


def _real_side(
    call: Call, operand: Operand, left: Operand, value: AnyArray, swapped: bool
) -> AnyArray:
    if operand.is_float:
        return value.astype(np.float32)
    real = call.reals(operand, left.value)
    rank = real.ndim
    return real.transpose(*range(rank - 2), rank - 1, rank - 2) if swapped else real


def _matmul(sides: Sequence[AnyArray], batch: tuple[int, ...], dtype: type) -> AnyArray:
    left, right = (side.reshape((1,) * (len(batch) + 2 - side.ndim) + side.shape) for side in sides)
    left = np.broadcast_to(left, (*batch, *left.shape[-2:]))
    right = np.broadcast_to(right, (*batch, *right.shape[-2:]))
    rank = len(batch)
    axes = tuple(range(rank))
    return contract(left, right, ((rank + 1,), (rank,)), (axes, axes), dtype=dtype)
