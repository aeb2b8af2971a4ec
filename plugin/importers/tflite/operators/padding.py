"""Importers that pad tensors.

Sources: LiteRT, ``pad.cc``, ``mirror_pad.cc``, ``stablehlo_pad.cc``, ``dilate.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....numerics.element_types import AnyArray
from ..call import Call, importer


@importer("PAD", "PADV2")
def pad(call: Call) -> AnyArray:
    """Import PAD and PADV2: the padding value is input 2, or the zero point."""
    operand = call.input(0)
    widths = [tuple(map(int, pair)) for pair in call.constant_integers(1, len(operand.shape), 2)]
    if any(n < 0 for pair in widths for n in pair):
        raise call.error(f"has the paddings {widths}")
    fill: AnyArray | int = 0
    if call.optional(2) is not None:
        fill = call.input(2).value.reshape(())
    elif operand.tensor.quantization is not None:
        fill = call.per_tensor(call.output).zero_point
    return np.pad(operand.value, widths, constant_values=fill)


@importer("MIRROR_PAD")
def mirror_pad(call: Call) -> AnyArray:
    """Import MIRROR_PAD: reflects with (mode 1) or without the element at the border."""
    operand, repeats_border = call.input(0), call.options.mode == 1
    if call.options.mode not in (0, 1):
        raise call.error(f"has the unknown mode {call.options.mode}")
    value = operand.value
    for axis, (before, after) in enumerate(
        call.constant_integers(1, len(operand.shape), 2).tolist()
    ):
        size, first = operand.shape[axis], 0 if repeats_border else 1
        if max(before, after) > size - first or min(before, after) < 0:
            raise call.error(f"has the paddings {before} and {after} of {size} elements")

        left, right = (
            [np.flip(value[(slice(None),) * axis + (slice(start, start + count),)], (axis,))]
            if count
            else []
            for start, count in ((first, before), (size - first - after, after))
        )
        value = np.concatenate([*left, value, *right], axis=axis) if left or right else value
    return value


@importer("STABLEHLO_PAD")
def stablehlo_pad(call: Call) -> AnyArray:
    """Import STABLEHLO_PAD: input 1 between and around elements; negative widths crop."""
    operand, options = call.input(0), call.options
    value, fill = operand.value, call.input(1).value.reshape(())
    widths = (options.edge_padding_low, options.edge_padding_high, options.interior_padding)
    for axis, (low, high, interior) in enumerate(
        zip(*(map(int, each) for each in widths), strict=True)
    ):
        if interior < 0:
            raise call.error(f"has an interior padding of {interior}")
        if (value.shape[axis] - 1) * (interior + 1) + 1 + min(low, 0) + min(high, 0) < 0:
            raise call.error(f"crops {-min(low, 0) - min(high, 0)} elements")
        value = spread(value, axis, interior + 1, fill)
        value = pad_or_crop(value, axis, low, high, fill)
    return value


@importer("DILATE")
def dilate(call: Call) -> AnyArray:
    """Import DILATE: input 2 between elements, at the distances in input 1."""
    value, fill = call.input(0).value, call.input(2).value.reshape(())
    for axis, distance in enumerate(call.constant_list(1)):
        if distance < 1:
            raise call.error(f"has elements {distance} apart")
        value = spread(value, axis, distance, fill)
    return value


def pad_images(images: AnyArray, pads: Sequence[tuple[int, int]], fill: float = 0) -> AnyArray:
    """Pad the spatial dimensions of images ``[N, ..., C]``."""
    if not any(map(any, pads)):
        return images
    return np.pad(images, ((0, 0), *pads, (0, 0)), constant_values=fill)


def spread(value: AnyArray, axis: int, stride: int, fill: AnyArray | float) -> AnyArray:
    """Insert ``stride - 1`` elements between any two along an axis."""
    if stride == 1 or not value.shape[axis]:
        return value
    shape = value.shape
    columns = value.reshape((*shape[: axis + 1], 1, *shape[axis + 1 :]))
    widths = [(0, 0)] * (len(shape) + 1)
    widths[axis + 1] = (0, stride - 1)
    columns = np.pad(columns, widths, constant_values=fill)
    flat = columns.reshape((*shape[:axis], shape[axis] * stride, *shape[axis + 1 :]))
    return flat[(slice(None),) * axis + (slice(0, (shape[axis] - 1) * stride + 1),)]


def pad_or_crop(
    value: AnyArray, axis: int, low: int, high: int, fill: AnyArray | float
) -> AnyArray:
    """Pad an axis; negative widths crop it."""
    size = value.shape[axis]
    cropped = slice(min(max(-low, 0), size), max(size + min(high, 0), 0))
    value = value[(slice(None),) * axis + (cropped,)]
    widths = [(0, 0)] * len(value.shape)
    widths[axis] = (max(low, 0), max(high, 0))
    return np.pad(value, widths, constant_values=fill) if any(widths[axis]) else value
