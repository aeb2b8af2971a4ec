"""RoiAlign and MaxRoiPool: regions of images, pooled to one size.

RoiAlign samples each bin of a region on a regular grid by bilinear interpolation; sample positions
are separable, so each sample is the sum of four gathers with products of weights. The number of
samples is an attribute; where it is 0, it follows from the size of each region, which must then be
constant. MaxRoiPool takes the maximum over bins of whole pixels, one axis after the other.

Sources: ONNX, RoiAlign 22, MaxRoiPool 22; ONNX Runtime, ``roialign.cc``, ``roi_pool.cc``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from ....numerics.array_functions import convert, is_known, take
from ....numerics.element_types import I32, AnyArray
from ..call import Call, Operand, importer
from ..elementwise.float_operands import computing_dtype


@importer("RoiAlign")
def roi_align(call: Call) -> Operand:
    """RoiAlign-22: ``X`` ``[N, C, H, W]``, ``rois`` ``[R, 4]`` and ``batch_indices`` ``[R]``."""
    images, regions, batch = call.array(0), call.array(1), call.array(2)
    mode = call.attribute("mode", "avg")
    transform = call.attribute("coordinate_transformation_mode", "half_pixel")
    sizes = [call.attribute(f"output_{name}", 1) for name in ("height", "width")]
    ratio = call.attribute("sampling_ratio", 0)
    scale = call.attribute("spatial_scale", 1.0)
    if images.ndim != 4 or regions.ndim != 2 or regions.shape[1] != 4:
        raise call.error(f"has images {list(images.shape)} and regions {list(regions.shape)}")
    if tuple(batch.shape) != (regions.shape[0],):
        raise call.error(
            f"has batch_indices of shape {list(batch.shape)} for {regions.shape[0]} regions"
        )
    if not math.prod(images.shape):
        raise call.error(f"has bins of {sizes}, {ratio} samples, and images {list(images.shape)}")
    dtype = computing_dtype(images.dtype)
    halves = dtype.type(0.5 if transform == "half_pixel" else 0.0)
    corners = regions.astype(dtype) * dtype.type(scale) - halves
    starts = [corners[:, 1], corners[:, 0]]
    spans = [corners[:, 3] - corners[:, 1], corners[:, 2] - corners[:, 0]]
    if transform == "output_half_pixel":
        spans = [np.maximum(span, dtype.type(1)) for span in spans]
    if ratio:
        samples = [[ratio, ratio]] * regions.shape[0]
    elif is_known(regions):
        samples = [
            [max(math.ceil(float(span[n]) / size), 1)
             for span, size in zip(spans, sizes, strict=True)]
            for n in range(regions.shape[0])
        ]  # fmt: skip
    else:
        raise call.unsupported(
            "takes as many samples as its regions are large, and the regions are computed; export "
            "it with a sampling_ratio above 0"
        )
    pooled_groups = []
    order = sorted(range(len(samples)), key=lambda n: (samples[n], n))
    for counts in sorted({tuple(each) for each in samples}):
        chosen = np.array([n for n in order if tuple(samples[n]) == counts], np.int32)
        picked = [take(each, chosen, 0) for each in (*starts, *spans, batch)]
        pooled_groups.append(
            _aligned(images.astype(dtype), picked[:2], picked[2:4], picked[4], sizes, counts, mode)
        )
    if not pooled_groups:
        pooled_groups.append(np.zeros((0, images.shape[1], *sizes), dtype))
    result = pooled_groups[0] if len(pooled_groups) == 1 else np.concatenate(pooled_groups, axis=0)
    if order != list(range(len(order))):
        result = take(result, np.argsort(order).astype(np.int32), 0)
    return call.typed(result.astype(images.dtype))


def _aligned(
    images: AnyArray,
    starts: Sequence[AnyArray],
    spans: Sequence[AnyArray],
    batch: AnyArray,
    sizes: Sequence[int],
    counts: Sequence[int],
    mode: str,
) -> AnyArray:
    """Compute the pooled samples of each bin: ``[R, C, height, width]``.

    Mode ``max`` gives the greatest product of a weight and a pixel, not the greatest sample, as
    ONNX Runtime and ONNX's reference evaluator do.
    """
    number, channels, *lengths = images.shape
    dtype = images.dtype
    taps = []
    for start, span, size, count, length in zip(starts, spans, sizes, counts, lengths, strict=True):
        offsets = (np.arange(size * count) + 0.5) / (size * count)
        along = start[:, None] + span[:, None] * offsets.astype(dtype)
        is_inside = (along >= dtype.type(-1)) & (along <= dtype.type(length))
        along = np.minimum(np.maximum(along, dtype.type(0)), dtype.type(length - 1))
        low = np.floor(along)
        rest = along - low
        inside = convert(is_inside, I32).astype(dtype)
        first = convert(low, I32)
        second = np.minimum(first + np.int32(1), np.int32(length - 1))
        taps.append(((first, (dtype.type(1) - rest) * inside), (second, rest * inside)))
    pixels = images.transpose(0, 2, 3, 1).reshape((-1, channels))
    chosen = np.minimum(np.maximum(convert(batch, I32), np.int32(0)), np.int32(number - 1))
    first = chosen.reshape((-1, 1, 1)) * np.int32(lengths[0] * lengths[1])
    total: AnyArray = None
    for (row, row_weight), (column, column_weight) in itertools.product(*taps):
        flat = first + row[:, :, None] * np.int32(lengths[1]) + column[:, None, :]
        weight = row_weight[:, :, None] * column_weight[:, None, :]
        term = take(pixels, flat.reshape(-1), 0).reshape((*flat.shape, channels))
        term = term * weight[..., None]
        if total is not None:
            term = total + term if mode == "avg" else np.maximum(total, term)
        total = term
    (height, width), (tall, wide) = sizes, counts
    bins = total.reshape((-1, height, tall, width, wide, channels))
    pooled = bins.mean(axis=(2, 4)) if mode == "avg" else bins.max(axis=(2, 4))
    return pooled.transpose(0, 3, 1, 2)


@importer("MaxRoiPool")
def max_roi_pool(call: Call) -> Operand:
    """MaxRoiPool-22: ``X`` ``[N, C, H, W]`` and ``rois`` ``[R, 5]``: batch, x1, y1, x2, y2."""
    images, regions = call.array(0), call.array(1)
    sizes = call.attribute("pooled_shape", [])
    scale = np.float32(call.attribute("spatial_scale", 1.0))
    if images.ndim != 4 or regions.ndim != 2 or regions.shape[1] != 5 or len(sizes) != 2:
        raise call.error(f"has images {list(images.shape)} and regions {list(regions.shape)}")
    # Round to the nearest integer, halves away from zero, as C's `round`.
    value = regions[:, 1:].astype(np.float32) * scale
    magnitude = np.floor(np.abs(value) + np.float32(0.5))
    ends = np.where(value < 0, -magnitude, magnitude)
    batch = convert(regions[:, 0].astype(np.float32), I32)
    rows = take(images, np.minimum(np.maximum(batch, 0), images.shape[0] - 1), 0)
    low = np.asarray(-np.inf, images.dtype)
    result = rows
    for axis, first in ((2, 1), (3, 0)):
        size, length = sizes[axis - 2], images.shape[axis]
        start, last = ends[:, first], ends[:, first + 2]
        span = np.maximum(last - start + np.float32(1), np.float32(1))
        bins = np.arange(size, dtype=np.float32)
        width = (span / np.float32(size))[:, None]
        bin_starts = np.floor(bins * width) + start[:, None]
        end = np.ceil((bins + np.float32(1)) * width) + start[:, None]
        pixel_numbers = np.arange(length, dtype=np.float32)
        is_inside = (pixel_numbers >= bin_starts[..., None]) & (pixel_numbers < end[..., None])
        if axis == 2:
            mask = is_inside[:, None, :, :, None]
            result = np.where(mask, result[:, :, None, :, :], low).max(axis=3)
        else:
            mask = is_inside[:, None, None, :, :]
            result = np.where(mask, result[:, :, :, None, :], low).max(axis=4)
    return call.typed(np.where(result == low, np.zeros((), images.dtype), result))
