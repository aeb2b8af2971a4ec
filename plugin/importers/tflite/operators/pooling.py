"""Importers of pooling.

Sources: LiteRT, ``reference/pooling.h``, ``reference/integer_ops/pooling.h``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....numerics.array_functions import convert, divide_truncated
from ....numerics.convolutions import pool
from ....numerics.element_types import I32, AnyArray, Array
from ..arithmetic.requantization import saturating_cast
from ..call import Call, importer
from .padding import pad_images


@dataclass(frozen=True)
class _Window:
    """Geometry of pooling windows: KH x KW, strides, padding, and the sizes of images."""

    sizes: tuple[int, int]
    strides: tuple[int, int]
    pads: list[tuple[int, int]]
    image_sizes: tuple[int, ...]

    @classmethod
    def of(cls, call: Call) -> _Window:
        """Return the checked windows of an operator."""
        options, image_sizes = call.options, call.input(0).shape[1:3]
        sizes = (options.filter_height, options.filter_width)
        strides = (options.stride_h, options.stride_w)
        if min(*sizes, *strides) < 1 or len(call.input(0).shape) != 4:
            raise call.error(f"has windows of {sizes} with the strides {strides}")
        pads = call.padding(image_sizes, sizes, strides)
        if any(
            n + sum(pair) < size for n, pair, size in zip(image_sizes, pads, sizes, strict=True)
        ):
            raise call.error(
                f"has windows of {sizes} (filter_height and filter_width) in images of "
                f"{list(image_sizes)}"
            )
        return cls(sizes, strides, pads, image_sizes)

    def pool(self, images: AnyArray, fill: float, function: str) -> AnyArray:
        """Reduce each window of images that are padded with a value; integers become i32."""
        padded = pad_images(images, self.pads, fill)
        if padded.dtype.kind in "iu" and (function == "add" or padded.dtype == np.uint8):
            padded = convert(padded, I32)  # comparisons are signed, so uint8 is widened
        return pool(padded, self.sizes, self.strides, function)

    def counts(self) -> Array:
        """Return the number of pixels without padding in each window, ``[1, OH, OW, 1]``."""
        by_axis = []
        for length, size, stride, (before, after) in zip(
            self.image_sizes, self.sizes, self.strides, self.pads, strict=True
        ):
            first = np.arange((length + before + after - size) // stride + 1) * stride - before
            by_axis.append(np.minimum(first + size, length) - np.maximum(first, 0))
        counts = by_axis[0][:, None] * by_axis[1]
        return np.asarray(counts[None, :, :, None], np.int32)


@importer("AVERAGE_POOL_2D")
def average_pool_2d(call: Call) -> AnyArray:
    """Import AVERAGE_POOL_2D, without padding pixels; storage is rounded half away from zero."""
    images, window = call.input(0), _Window.of(call)
    counts = window.counts()
    if images.is_float:
        total = window.pool(images.value, 0.0, "add")
        return call.activated(total / counts.astype(np.float32))
    total = window.pool(images.value, 0, "add")
    half = counts // 2
    mean = divide_truncated(np.where(total > 0, total + half, total - half), counts)
    return saturating_cast(mean, *call.range(call.output), call.dtype(call.output))


@importer("L2_POOL_2D")
def l2_pool_2d(call: Call) -> AnyArray:
    """Import L2_POOL_2D: the root of the mean square, without padding pixels, of floats."""
    images = call.input(0)
    call.require_float(images)
    window = _Window.of(call)
    total = window.pool(images.value * images.value, 0.0, "add")
    return call.activated(np.sqrt(total / window.counts().astype(np.float32)))


@importer("MAX_POOL_2D")
def max_pool_2d(call: Call) -> AnyArray:
    """Import MAX_POOL_2D."""
    images, window = call.input(0), _Window.of(call)
    if images.is_float:
        return call.activated(window.pool(images.value, -np.inf, "maximum"))
    least = int(np.iinfo(images.value.dtype).min)
    greatest = window.pool(images.value, least, "maximum")
    return saturating_cast(greatest, *call.range(call.output), call.dtype(call.output))
