"""MaxUnpool and Col2Im: scatters of elements to positions of a larger image.

Sources: ONNX, MaxUnpool 22, Col2Im 18.
"""

from __future__ import annotations

import math

import numpy as np

from ....numerics.array_functions import convert, scatter
from ....numerics.element_types import I32, I64
from ..call import Call, Operand, importer
from ..elementwise.float_operands import along_axis


@importer("MaxUnpool")
def max_unpool(call: Call) -> Operand:
    """MaxUnpool-22: ``X`` at the positions ``I`` of the output, and 0 elsewhere."""
    pooled, positions = call.array(0), call.array(1)
    rank, sizes = pooled.ndim - 2, call.attribute("kernel_shape", [])
    strides = call.attribute("strides", [1] * rank)
    pads = call.attribute("pads", [0] * (2 * rank))
    if len(sizes) != rank or len(strides) != rank or len(pads) != 2 * rank:
        raise call.error(f"has windows of {sizes} in images of {rank} spatial dimensions")
    if tuple(pooled.shape) != tuple(positions.shape):
        raise call.error(f"has {list(pooled.shape)} elements and {list(positions.shape)} positions")
    inner = [
        (length - 1) * strides[axis] + sizes[axis] - pads[axis] - pads[axis + rank]
        for axis, length in enumerate(pooled.shape[2:])
    ]
    shape = [*pooled.shape[:2], *inner]
    if call.optional(2) is not None and call.constant_list(2) != shape:
        raise call.unsupported(
            f"has the output_shape {call.constant_list(2)}, and its windows give "
            f"{shape}: runtimes differ on the meaning of the positions; leave output_shape out and "
            "add a Pad"
        )
    count = math.prod(shape)
    if min(shape) < 0 or count >= 1 << 31:
        raise call.unsupported(f"has a result of {shape}")
    start = np.zeros(count, pooled.dtype)
    index = convert(np.minimum(np.maximum(convert(positions, I64), 0), max(count - 1, 0)), I32)
    result = scatter(start, index.reshape(-1), pooled.reshape(-1), "set")
    return call.typed(result.reshape(tuple(shape)))


@importer("Col2Im")
def col2im(call: Call) -> Operand:
    """Col2Im-18: blocks ``[N, C * prod(block), L]`` added at their positions in an image."""
    blocks = call.array(0)
    image, block = (call.constant_list(index) for index in (1, 2))
    rank = len(image)
    strides, dilations = (call.attribute(name, [1] * rank) for name in ("strides", "dilations"))
    pads = call.attribute("pads", [0] * (2 * rank))
    if not len(block) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        raise call.error(f"has an image of {image} and blocks of {block}")
    if blocks.ndim != 3 or min(*image, *block, *strides, *dilations) < 1 or min(pads) < 0:
        raise call.error(f"puts blocks {block} of {list(blocks.shape)} in an image of {image}")
    padded = [n + pads[axis] + pads[axis + rank] for axis, n in enumerate(image)]
    counts = [
        (n - (size - 1) * step - 1) // stride + 1
        for n, size, step, stride in zip(padded, block, dilations, strides, strict=True)
    ]
    area = math.prod(block)
    if blocks.shape[1] % area or blocks.shape[2] != math.prod(counts):
        raise call.error(
            f"has {list(blocks.shape)} elements, expected a multiple of {area} rows and "
            f"{math.prod(counts)} columns"
        )
    number, channels = blocks.shape[0], blocks.shape[1] // area
    flat = np.zeros((*block, *counts), np.int64)
    for axis in range(rank):
        offsets = np.arange(block[axis]) * dilations[axis]
        positions_of_blocks = np.arange(counts[axis]) * strides[axis]
        along = along_axis(offsets, axis, 2 * rank)
        along = along + along_axis(positions_of_blocks, axis + rank, 2 * rank)
        flat = flat + along * math.prod(padded[axis + 1 :])
    updates = blocks.reshape((number * channels, flat.size)).transpose(1, 0)
    start = np.zeros((math.prod(padded), number * channels), blocks.dtype)
    result = scatter(start, flat.reshape(-1).astype(np.int32), updates, "add")
    whole = result.transpose(1, 0).reshape((number, channels, *padded))
    inside = [slice(pads[axis], pads[axis] + n) for axis, n in enumerate(image)]
    return call.typed(whole[(slice(None), slice(None), *inside)])
