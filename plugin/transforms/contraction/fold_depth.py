"""Convolutions along three axes as convolutions of images, whose channels are those of the taps.

Kernels, and IREE's fast loops, are of convolutions along two axes. The results of one depth are a
convolution of the images at the depths of its taps, one behind the other in their channels. For
each tap ``i`` of the depth, with stride ``s`` and padding ``p``::

    y[d] = sum_i conv2d(x[s * d + i - p], w[i])

Before::

    %y = stablehlo.convolution(%x, %w)
         dim_numbers = [b, f, 0, 1, 2]x[o, i, 0, 1, 2]->[b, f, 0, 1, 2], ... :
         (tensor<1x16x8x28x28xf32>, tensor<32x16x3x3x3xf32>) -> tensor<1x32x8x28x28xf32>

After, with an image for each of the 8 depths and the channels of 3 taps::

    %c = stablehlo.concatenate %x0, %x1, %x2, dim = 4
    %y = stablehlo.convolution(%images, %weight)
         dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], ... :
         (tensor<8x28x28x48xf32>, tensor<3x3x48x32xf32>) -> tensor<8x28x28x32xf32>
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core._mlir import Operation, Value, stablehlo
from ...dialects.dense import constant_array
from ...dialects.windows import has_reversal, window_padding, window_steps
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import dense, integers, mlir_type, tensor_type
from ...kernels.conv_geometry import ConvAxis
from ...kernels.select.images import Images
from ...numerics.element_types import I64


def fold_depth(op: Operation) -> Value | None:
    """Emit a convolution along three axes as one along two, and return its result.

    None for other operations, several groups, images that are neither f32 nor bytes, and computed
    weights of other types.
    """
    if not _is_plain(op):
        return None
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = list(numbers.input_spatial_dimensions)
    images = Images.of(op.operands[0])
    if images is None or images.zero is None or any(images.padding_values):
        return None
    padding = images.padding[spatial] + window_padding(op, 3)
    batch_and_channels = numbers.input_batch_dimension, numbers.input_feature_dimension
    if padding.min() < 0 or images.padding[list(batch_and_channels)].any():
        return None
    weight = _folded_weight(op.operands[1], numbers)
    if weight is None:
        return None
    strides, dilations = (window_steps(op, name, 3) for name in ("window_strides", "rhs_dilation"))
    kernel_shape, result_type = op.operands[1].type.shape, op.results[0].type
    taps, n = int(kernel_shape[numbers.kernel_spatial_dimensions[0]]), int(weight.type.shape[-1])
    value = _ordered(images, [batch_and_channels[0], *spatial, batch_and_channels[1]])
    depth = ConvAxis(
        int(value.type.shape[1]), taps, strides[0], dilations[0], *map(int, padding[0])
    )
    value = _taps_as_channels(value, depth, images)
    batch = [int(value.type.shape[0]), depth.outputs]
    value = emit_stablehlo.reshape(value, [batch[0] * batch[1], *map(int, value.type.shape[2:])])
    value = images.as_read(value, op.operands[0].type)
    if padding[1:].any():
        low, high = ([0, *map(int, padding[1:, side]), 0] for side in (0, 1))
        value = emit_stablehlo.pad(value, low, high)
    rows, columns = (
        int(result_type.shape[axis]) for axis in list(numbers.output_spatial_dimensions)[1:]
    )
    result = tensor_type([batch[0] * batch[1], rows, columns, n], result_type.element_type)
    attributes = {
        "window_strides": integers(strides[1:]),
        "rhs_dilation": integers(dilations[1:]),
        "padding": dense(np.zeros((2, 2), np.int64), mlir_type(I64)),
    }
    layout = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    value = emit_stablehlo.convolution(value, weight, result, layout, attributes)
    value = emit_stablehlo.reshape(value, [*batch, rows, columns, n])
    axes = [numbers.output_batch_dimension, *numbers.output_spatial_dimensions]
    axes.append(numbers.output_feature_dimension)
    return emit_stablehlo.transpose(value, [axes.index(axis) for axis in range(5)])


def _is_plain(op: Operation) -> bool:
    """True for a convolution along three axes, of one group and of images without dilation."""
    types = [each.type for each in (*op.operands, *op.results)]
    if op.name != "stablehlo.convolution" or not all(type_.has_static_shape for type_ in types):
        return False
    groups = [int(op.attributes[f"{kind}_group_count"].value) for kind in ("feature", "batch")]
    has_axes = types[0].rank == 5 and groups == [1, 1] and not has_reversal(op)
    return has_axes and window_steps(op, "lhs_dilation", 3) == [1, 1, 1]


def _folded_weight(weight: Value, numbers: stablehlo.ConvDimensionNumbers) -> Value | None:
    """The weight as ``KH x KW x (KD * C) x OC``; None for one of a type that is not supported."""
    depth, *taps = numbers.kernel_spatial_dimensions
    axes = [*taps, depth, numbers.kernel_input_feature_dimension]
    axes.append(numbers.kernel_output_feature_dimension)
    height, width, depths, channels, n = (int(weight.type.shape[axis]) for axis in axes)
    shape = [height, width, depths * channels, n]
    images = Images.of(weight)
    if images is not None and not images.padding.any():
        folded = emit_stablehlo.reshape(_ordered(images, axes), shape)
        return images.as_read(folded, weight.type)
    constant = constant_array(weight)
    if constant is None:
        return None
    return emit_stablehlo.constant(
        constant.transpose(axes).reshape(shape), weight.type.element_type
    )


def _ordered(images: Images, axes: Sequence[int]) -> Value:
    """The images with the axes of the convolution's operand in an order."""
    return emit_stablehlo.transpose(images.value, [images.order[axis] for axis in axes])


def _taps_as_channels(value: Value, depth: ConvAxis, images: Images) -> Value:
    """Concatenate the depths of each tap of NDHWC images along their channels."""
    if depth.pad_low or depth.pad_high:
        assert images.zero is not None  # `fold_depth`
        low, high = ([0, size, 0, 0, 0] for size in (depth.pad_low, depth.pad_high))
        fill = emit_stablehlo.constant(images.zero, value.type.element_type)
        value = emit_stablehlo.pad(value, low, high, fill=fill)
    shape = [int(size) for size in value.type.shape]
    taps = []
    for tap in range(depth.taps):
        first = tap * depth.dilation
        end = first + (depth.outputs - 1) * depth.stride + 1
        starts, ends = [0, first, 0, 0, 0], [shape[0], end, *shape[2:]]
        taps.append(emit_stablehlo.slice_(value, starts, ends, [1, depth.stride, 1, 1, 1]))
    return taps[0] if len(taps) == 1 else emit_stablehlo.concatenate(taps, 4)
