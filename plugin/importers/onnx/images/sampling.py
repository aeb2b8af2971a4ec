"""GridSample, DeformConv and AffineGrid: images sampled at computed coordinates.

GridSample's output is a weighted sum of the pixels near each grid point: one for each spatial axis
in mode ``nearest``, two in mode ``linear``, four in mode ``cubic``. All are gathered at once. The
padding mode acts on the integer positions of the pixels.

Source: ONNX, GridSample 22, DeformConv 22, AffineGrid 20; ONNX Runtime, ``grid_sample.cc``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ....numerics.array_functions import convert, take
from ....numerics.convolutions import contract
from ....numerics.element_types import I32, AnyArray, Array
from ..call import Call, Operand, importer
from ..elementwise.float_operands import along_axis, computing_dtype

_LIMIT = np.float32(1 << 30)
"""Coordinates are clamped to this magnitude, so that they fit integers of 32 bits."""
_CUBIC_SLOPE = -0.75
"""The parameter ``a`` of GridSample's cubic convolution, as in the specification."""
_MODES = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic",
          "bicubic": "cubic"}  # fmt: skip


@importer("GridSample")
def grid_sample(call: Call) -> Operand:
    """GridSample-22: ``X`` ``[N, C, ...]`` at the coordinates ``grid`` ``[N, ..., rank]``."""
    images, grid = call.array(0), call.array(1)
    rank, count = images.ndim - 2, images.shape[0]
    mode = _MODES[call.attribute("mode", "linear")]
    padding = call.attribute("padding_mode", "zeros")
    corners = bool(call.attribute("align_corners", 0))
    if rank < 1 or grid.ndim != rank + 2 or grid.shape[-1] != rank or grid.shape[0] != count:
        raise call.error(f"has images {list(images.shape)} and a grid {list(grid.shape)}")
    if not math.prod(images.shape):
        raise call.error(f"samples images {list(images.shape)}, which have no elements")
    margin = 1 if padding == "zeros" else 0
    if margin:
        images = np.pad(images, ((0, 0), (0, 0), *[(1, 1)] * rank))
    lengths = images.shape[2:]
    coordinates, channels = grid.astype(computing_dtype(grid.dtype)), images.shape[1]
    taps: list[Taps] = []
    for axis, padded in enumerate(lengths):
        length = padded - 2 * margin
        along = coordinates[..., rank - 1 - axis]
        if corners:
            along = (along + np.float32(1)) * np.float32(0.5) * np.float32(length - 1)
        else:
            along = ((along + np.float32(1)) * np.float32(length) - np.float32(1)) * np.float32(0.5)
        taps.append(_taps(along, mode, length, padding, corners=corners))
    pixels = images.transpose(0, *range(2, rank + 2), 1).reshape((-1, channels))
    first = np.arange(count, dtype=np.int32).reshape((-1, *(1,) * rank)) * math.prod(lengths)
    total = _interpolated(pixels, taps, first, lengths)
    order = (0, rank + 1, *range(1, rank + 1))
    return call.typed(total.astype(images.dtype).transpose(*order))


Taps: TypeAlias = list[tuple[AnyArray, AnyArray]]
"""The type has positions along one axis, i32, and their weights; None for the weight 1."""


def _interpolated(
    pixels: AnyArray, taps: Sequence[Taps], first: AnyArray, lengths: Sequence[int]
) -> AnyArray:
    """Compute sums of weighted pixels, with the channels as a new last axis.

    Args:
        pixels: ``[images * pixels, channels]``.
        taps: the taps of each spatial axis; positions have the shape of the result.
        first: the number of the first pixel of the image that each sample reads.
        lengths: the lengths of the spatial axes.
    """
    positions: list[AnyArray] = []
    weights: list[AnyArray] = []
    strides = [math.prod(lengths[axis + 1 :]) for axis in range(len(lengths))]
    for chosen in itertools.product(*taps):
        flat: AnyArray = first
        weight: AnyArray = None
        for (position, factor), stride in zip(chosen, strides, strict=True):
            flat = flat + position * np.int32(stride)
            weight = factor if weight is None else weight if factor is None else weight * factor
        positions.append(flat)
        weights.append(weight)
    shape = tuple(positions[0].shape)
    result = take(pixels, np.stack(positions).reshape(-1), 0)
    result = result.reshape((len(positions), *shape, pixels.shape[1]))
    if weights[0] is not None:
        factors = np.stack(weights)[..., None]
        result = result.astype(computing_dtype(result.dtype)) * factors.astype(
            computing_dtype(result.dtype)
        )
    return result[0] if len(positions) == 1 else result.sum(axis=0, dtype=result.dtype)


def _taps(along: AnyArray, mode: str, length: int, padding: str, *, corners: bool) -> Taps:
    """Return the pixels near coordinates along one axis of an image, and their weights."""
    along = np.minimum(np.maximum(along, -_LIMIT), _LIMIT)
    first = np.rint(along) if mode == "nearest" else np.floor(along)
    if mode == "nearest":
        taps = [(first, None)]
    else:
        rest, one = along - first, np.float32(1)
        if mode == "linear":
            taps = [(first, one - rest), (first + one, rest)]
        else:
            distances = [rest + one, rest, one - rest, np.float32(2) - rest]
            taps = [
                (first + np.float32(tap - 1), _cubic(distance, is_near=tap in (1, 2)))
                for tap, distance in enumerate(distances)
            ]
    return [
        (_inside(position, length, padding, corners=corners), weight) for position, weight in taps
    ]


def _cubic(distance: AnyArray, *, is_near: bool) -> AnyArray:
    """The cubic convolution kernel: of distances up to 1, and from 1 to 2."""
    slope = _CUBIC_SLOPE
    if is_near:
        factor = np.float32(slope + 2) * distance - np.float32(slope + 3)
        return factor * distance * distance + np.float32(1)
    inner = np.float32(slope) * distance - np.float32(5 * slope)
    return (inner * distance + np.float32(8 * slope)) * distance - np.float32(4 * slope)


def _inside(position: AnyArray, length: int, padding: str, *, corners: bool) -> AnyArray:
    """Return positions (i32) in an image, which has a margin of zeros in mode ``zeros``."""
    index = convert(position, I32)
    if padding == "zeros":
        return np.minimum(np.maximum(index + np.int32(1), np.int32(0)), np.int32(length + 1))
    if padding == "reflection":
        index = _reflected(index, length, corners=corners)
    return np.minimum(np.maximum(index, np.int32(0)), np.int32(length - 1))


def _reflected(index: AnyArray, length: int, *, corners: bool) -> AnyArray:
    """Reflect positions at the centers of the outer pixels, or at their outer edges."""
    if length == 1:
        return index * np.int32(0)
    if corners:
        period, last = 2 * (length - 1), 2 * (length - 1)
    else:
        period, last = 2 * length, 2 * length - 1
    # The remainder from 0 on: floats divide the magnitudes exactly enough only when small.
    magnitude = np.where(index < 0, -index if corners else -1 - index, index)
    quotient = convert(np.floor(magnitude.astype(np.float64) / np.float64(period)), I32)
    rest = magnitude - quotient * np.int32(period)
    return np.minimum(rest, np.int32(last) - rest)


@importer("DeformConv")
def deform_conv(call: Call) -> Operand:
    """DeformConv-22: ``X, W, offset, B, mask``: a convolution at computed offsets."""
    images, kernels, offsets = (call.array(index) for index in range(3))
    groups, offset_groups = call.attribute("group", 1), call.attribute("offset_group", 1)
    if images.ndim != 4 or kernels.ndim != 4:
        raise call.unsupported(
            f"has images {list(images.shape)}; only images of 2 dimensions are lowered"
        )
    count, channels, *lengths = images.shape
    features, per_group, *sizes = kernels.shape
    strides, dilations = (call.attribute(n, [1, 1]) for n in ("strides", "dilations"))
    pads = call.attribute("pads", [0, 0, 0, 0])
    if (len(strides), len(dilations), len(pads)) != (2, 2, 4):
        raise call.error(
            f"has the strides {strides}, dilations {dilations} and pads {pads}, expected 2, 2 and 4"
        )
    area, outer = math.prod(sizes), tuple(offsets.shape[2:])
    expected = tuple(
        (n + pads[a] + pads[a + 2] - (size - 1) * dilations[a] - 1) // strides[a] + 1
        for a, (n, size) in enumerate(zip(lengths, sizes, strict=True))
    )
    if (
        call.attribute("kernel_shape", sizes) != sizes
        or channels % offset_groups
        or channels != per_group * groups
        or features % groups or outer != expected or offsets.shape[1] != offset_groups * area * 2
    ):  # fmt: skip
        raise call.error(
            f"has images {list(images.shape)}, kernels {list(kernels.shape)} and offsets "
            f"{list(offsets.shape)} for {groups} groups and {offset_groups} offset groups"
        )
    dtype = computing_dtype(images.dtype)
    shape = (count, offset_groups, *sizes, *outer)
    moves = offsets.astype(dtype).reshape((count, offset_groups, *sizes, 2, *outer))
    taps: list[Taps] = []
    for axis, length in enumerate(lengths):
        kernel_positions = np.arange(sizes[axis]) * dilations[axis]
        output_positions = np.arange(outer[axis]) * strides[axis] - pads[axis]
        grid = along_axis(kernel_positions, 2 + axis, 6) + along_axis(output_positions, 4 + axis, 6)
        along = moves[:, :, :, :, axis] + grid.astype(dtype)
        taps.append(_taps(along, "linear", length, "zeros", corners=True))
    padded = np.pad(images.astype(dtype), ((0, 0), (0, 0), (1, 1), (1, 1)))
    own = [length + 2 for length in lengths]
    split = padded.reshape((count, offset_groups, channels // offset_groups, *own)).transpose(
        0, 1, 3, 4, 2
    )
    first = np.arange(count * offset_groups, dtype=np.int32).reshape(
        (count, offset_groups, 1, 1, 1, 1)
    )
    pixels = split.reshape((-1, channels // offset_groups))
    samples = _interpolated(pixels, taps, first * np.int32(math.prod(own)), own)
    if call.optional(4) is not None:
        samples = samples * call.array(4).astype(dtype).reshape(shape)[..., None]
    # [N, parts, KH, KW, OH, OW, C / parts] -> [groups, C / groups * KH * KW, N * OH * OW]
    columns = samples.transpose(1, 6, 2, 3, 0, 4, 5).reshape((groups, per_group * area, -1))
    matrix = kernels.astype(dtype).reshape((groups, features // groups, per_group * area))
    result = contract(matrix, columns, ([2], [1]), ([0], [0]), dtype=dtype)
    result = result.reshape((features, count, *outer)).transpose(1, 0, 2, 3)
    if call.optional(3) is not None:
        result = result + call.array(3).astype(dtype).reshape((-1, 1, 1))
    return call.typed(result.astype(images.dtype))


@importer("AffineGrid")
def affine_grid(call: Call) -> Operand:
    """AffineGrid-20: ``theta @ [x, y, (z,) 1]``: the coordinates of each pixel of images."""
    theta = call.array(0)
    size = call.constant_list(1)
    corners, rank = bool(call.attribute("align_corners", 0)), len(size) - 2
    if rank not in (2, 3) or tuple(theta.shape) != (size[0], rank, rank + 1):
        raise call.error(f"has theta of shape {list(theta.shape)} for images {size}")
    axes = [_centers(length, corners=corners) for length in reversed(size[2:])]
    points = np.meshgrid(*axes, np.ones(1), indexing="ij")
    order = (*reversed(range(rank)), rank)
    homogeneous = np.stack([each.transpose(order).reshape(-1) for each in points], axis=-1)
    dtype = computing_dtype(theta.dtype)
    result = contract(theta.astype(dtype), homogeneous.astype(dtype), ([2], [1]), dtype=dtype)
    grid = result.transpose(0, 2, 1).reshape((size[0], *size[2:], rank))
    return call.typed(grid.astype(theta.dtype))


def _centers(length: int, *, corners: bool) -> Array:
    """Return the centers of pixels from -1 to 1; with `corners`, the outer centers are -1 and 1."""
    if corners:
        return np.linspace(-1, 1, length) if length > 1 else np.zeros(1)
    return (2 * np.arange(length) + 1) / length - 1
