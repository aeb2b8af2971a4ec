"""Windows of pooling: their geometry, and sums or greatest elements of them.

Sources: ONNX, MaxPool 1 to 22, AveragePool 1 to 22; ONNX Runtime, ``ContribOperators.md``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....numerics.convolutions import pool
from ....numerics.element_types import AnyArray
from ..call import Call
from ..contraction.convolutions import padding


@dataclass(frozen=True)
class PoolGeometry:
    """The geometry of a pool, for each spatial dimension.

    Args:
        sizes, strides, dilations: the parameters of the windows.
        pads: the padding before and after the image.
        beyond: the pixels after the padding that the last window reaches with ``ceil_mode``.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    beyond: tuple[int, ...]


def pool_geometry(call: Call, shape: Sequence[int]) -> PoolGeometry:
    """Read the attributes of a pool of ``[N, C, ...]``, and check them.

    Raises:
        UnsupportedError: strides are longer than windows by so much that runtimes crop images.
    """
    rank, sizes = len(shape) - 2, call.attribute("kernel_shape", [])
    strides = call.attribute("strides", [1] * rank)
    dilations = call.attribute("dilations", [1] * rank)
    is_ceil = bool(call.attribute("ceil_mode", 0))
    lists = (sizes, strides, dilations)
    if rank < 1 or any(len(each) != rank for each in lists):
        raise call.error(
            f"has windows of {list(sizes)}, strides {list(strides)} and dilations "
            f"{list(dilations)} for images of {list(shape)}"
        )
    spans = [(size - 1) * step + 1 for size, step in zip(sizes, dilations, strict=True)]
    is_same = call.attribute("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    pads = padding(call, shape[2:], spans, strides)
    beyond = []
    for length, pair, span, stride in zip(shape[2:], pads, spans, strides, strict=True):
        if is_same and (-(-length // stride) - 1) * stride + span - length < -1:
            raise call.unsupported(
                f"has strides of {stride} and windows of {span} in {length} elements, for which "
                "auto_pad asks for negative padding: runtimes differ; say pads"
            )
        padded = length + sum(pair)
        if padded < span and (not is_ceil or padded <= span - stride):
            raise call.error(f"has windows of {list(sizes)} in images of {list(shape)}")
        count = max(-(-(padded - span) // stride), 0) + 1
        if count > 1 and (count - 1) * stride >= padded - pair[1]:
            count -= 1  # the last window starts before the padding
        beyond.append(max((count - 1) * stride + span - padded, 0) if is_ceil else 0)
    return PoolGeometry(tuple(sizes), tuple(strides), tuple(dilations), tuple(pads), tuple(beyond))


def pool_windows(
    call: Call, images: AnyArray, fill: float, function: str, beyond: int | None = None
) -> AnyArray:
    """Compute sums or greatest elements of windows of ``[N, C, ...]``.

    Args:
        images: floats, or integers of 32 or 64 bits.
        fill: the value of padding.
        function: ``add`` or ``maximum``.
        beyond: the value of pixels after the padding; `fill` by default.
    """
    geometry = pool_geometry(call, images.shape)
    images = pad_images(images, geometry, fill, fill if beyond is None else beyond)
    rank = len(geometry.sizes)
    if any(step != 1 for step in geometry.dilations):
        combine = np.add if function == "add" else np.maximum
        return functools.reduce(combine, window_elements(images, geometry))
    is_float = np.dtype(images.dtype).kind not in "iu"
    if is_float or rank != 2:
        axes = tuple(range(2, 2 + rank))
        return pool(images, geometry.sizes, geometry.strides, function, axes)
    result = pool(images.transpose(0, 2, 3, 1), geometry.sizes, geometry.strides, function)
    return result.transpose(0, 3, 1, 2)


def pad_images(images: AnyArray, geometry: PoolGeometry, fill: float, beyond: float) -> AnyArray:
    """Pad images with one value, and with another value beyond the padding."""
    if any(map(any, geometry.pads)):
        images = np.pad(images, ((0, 0), (0, 0), *geometry.pads), constant_values=fill)
    if any(geometry.beyond):
        after = [(0, n) for n in geometry.beyond]
        images = np.pad(images, ((0, 0), (0, 0), *after), constant_values=beyond)
    return images


def window_elements(images: AnyArray, geometry: PoolGeometry) -> Iterator[AnyArray]:
    """Return the elements of all windows at each position of a window, in row-major order."""
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
        yield images[tuple(index)]
