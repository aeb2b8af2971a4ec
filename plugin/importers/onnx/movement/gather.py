"""Operators that move elements: Gather, Expand, Tile, DepthToSpace.

They take every type, and quantized operands as integers and scales.

Sources: ONNX, Gather 13, Expand 13, Tile 13, DepthToSpace 13, SpaceToDepth 27; ONNX Runtime,
GatherBlockQuantized.
"""

from __future__ import annotations

import numpy as np

from ....numerics.array_functions import convert, is_known, take, unpack_bits
from ....numerics.element_types import I32, AnyArray
from ..call import Call, Operand, importer
from ..quantization.expressed import Quantized
from .shapes import moved


@importer("Gather")
def gather(call: Call) -> Operand:
    """Gather-13: slices along an axis; a quantized table keeps its scales, also for each row."""
    operand, indices = call.input(0), call.array(1)
    if not operand.shape:
        raise call.error("gathers from a tensor without dimensions")
    axis = call.axis("axis", len(operand.shape), 0)
    count = operand.shape[axis]
    if is_known(indices) and ((indices < -count) | (indices >= count)).any():
        raise call.error(f"gathers beyond the {count} elements of axis {axis}")
    if isinstance(operand.value, Quantized):
        result = _gathered(operand.value, indices, axis)
        if result is not None:
            return Operand(operand.type, result)
        call.with_floats("the table has scales for blocks along the axis")
    return Operand(operand.type, _gathered_slices(call.array(0), indices, axis))


def rows_of(call: Call, table: AnyArray, indices: AnyArray, name: str) -> AnyArray:
    """Return the rows of a table ``[rows, width]`` for indices of any shape.

    Raises:
        InputError: a constant index is outside of the table.
    """
    if len(table.shape) != 2:
        raise call.error(f"has {name} of shape {list(table.shape)}, expected two dimensions")
    if is_known(indices) and indices.size:
        low, high = int(indices.min()), int(indices.max())
        if low < 0 or high >= table.shape[0]:
            raise call.error(f"reads the rows {low} to {high} of {table.shape[0]} in {name}")
    rows = take(table, convert(indices, I32).reshape(-1), 0)
    return rows.reshape((*indices.shape, table.shape[1]))


def _gathered_slices(table: AnyArray, indices: AnyArray, axis: int) -> AnyArray:
    """Gather slices along an axis; negative indices count from the end."""
    count = int(table.shape[axis])
    positions = convert(indices, I32).reshape(-1)
    positions = np.where(positions < 0, positions + np.int32(count), positions)
    result = take(table, positions, axis)
    return result.reshape((*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :]))


def _gathered(table: Quantized, indices: AnyArray, axis: int) -> Quantized | None:
    """Gather rows of a table with one scale, or one for each row; None for other scales."""
    storage, count = _gathered_slices(table.storage, indices, axis), table.scales.shape[axis]
    sizes = tuple(indices.shape)
    if count not in (1, table.shape[axis]):
        return None
    shape = (*table.scales.shape[:axis], *(1,) * len(sizes), *table.scales.shape[axis + 1 :])
    scales, zero_points = (
        None if plane is None
        else plane.reshape(shape) if count == 1
        else _gathered_slices(plane, indices, axis)
        for plane in (table.scales, table.zero_points)
    )  # fmt: skip
    block_sizes = sizes if count == 1 else (1,) * len(sizes)
    block_sizes = (*table.block_sizes[:axis], *block_sizes, *table.block_sizes[axis + 1 :])
    return Quantized(storage, table.type, scales, zero_points, block_sizes)


@importer("com.microsoft.GatherBlockQuantized")
def gather_block_quantized(call: Call) -> Quantized | None:
    """GatherBlockQuantized-1: ``data, indices, scales, zero_points``: rows of the table."""
    data, indices = call.input(0), call.array(1)
    rank, size, bits = len(data.shape), call.attribute("block_size", 128), call.attribute("bits", 4)
    axis, along = call.axis("gather_axis", rank, 0), call.axis("quantize_axis", rank, 1)
    if axis == along:
        raise call.error("gathers along the axis of the blocks")
    if size < 16 or size & (size - 1):
        raise call.error(f"has blocks of {size}")
    storage, storage_type, zeros = data.value, data.type, None
    if storage_type == "UINT8":  # in bytes, the lowest bits first
        if bits not in (2, 4, 8) or along != rank - 1:
            raise call.unsupported(f"has bytes of {bits} bits along dimension {along}")
        storage_type, storage = f"UINT{bits}", call.constant(0)
        storage = storage if bits == 8 else np.asarray(unpack_bits(storage, bits))
    elif storage_type not in ("INT4", "UINT4"):
        raise call.unsupported(f"has a table of type {storage_type}")
    scales = call.input(2)
    blocks = -(-storage.shape[along] // size)
    grid = tuple(blocks if a == along else n for a, n in enumerate(storage.shape))
    if scales.shape != grid:
        raise call.error(f"has scales of shape {list(scales.shape)}, expected {list(grid)}")
    if call.optional(3) is not None:
        zeros = call.array(3)
        if data.type == "UINT8" and bits != 8:
            zeros = np.asarray(unpack_bits(call.constant(3), bits))[..., :blocks]
        if tuple(zeros.shape) != grid:
            raise call.error(f"has zero points of shape {list(zeros.shape)}, expected {list(grid)}")
    elif data.type == "UINT8":
        zeros = np.full(grid, 1 << (bits - 1), np.uint8)
    sizes = tuple(size if a == along else 1 for a in range(rank))
    call.with_floats("it gives the reals of a table in blocks")
    return _gathered(Quantized(storage, storage_type, scales.value, zeros, sizes), indices, axis)


@importer("Expand")
def expand(call: Call) -> Operand:
    """Expand-13: ``input`` broadcast with a shape, which can have shorter axes."""
    before, shape = call.input(0).shape, call.constant_list(1)
    try:
        target = np.broadcast_shapes(before, tuple(shape))
    except ValueError:
        raise call.error(f"cannot broadcast {list(before)} with {shape}") from None
    padded = (*(1,) * (len(target) - len(before)), *before)
    return moved(call, lambda value: np.broadcast_to(value.reshape(padded), target))


@importer("Tile")
def tile(call: Call) -> Operand:
    """Tile-13: ``repeats`` copies of the input along each axis."""
    repeats, shape = call.constant_list(1), call.input(0).shape
    if len(repeats) != len(shape) or min(repeats, default=0) < 0:
        raise call.error(f"has the repeats {repeats} for {len(shape)} dimensions")

    def tiled(value: AnyArray) -> AnyArray:
        for axis, count in enumerate(repeats):
            if count != 1:
                before, after = value.shape[:axis], value.shape[axis:]
                copies = np.broadcast_to(
                    value.reshape((*before, 1, *after)), (*before, count, *after)
                )
                value = copies.reshape((*before, count * after[0], *after[1:]))
        return value

    return moved(call, tiled)


@importer("DepthToSpace")
def depth_to_space(call: Call) -> Operand:
    """DepthToSpace-28: channels as blocks of pixels; blocks outside (DCR) or inside (CRD)."""
    shape, size = call.input(0).shape, call.integer("blocksize")
    mode = call.attribute("mode", "DCR")
    if len(shape) != 4 or shape[1] % (size * size):
        raise call.error(f"cannot make blocks of {size} of {list(shape)} in the mode {mode!r}")
    count, channels, height, width = shape
    depth = channels // (size * size)

    def rearranged(value: AnyArray) -> AnyArray:
        if mode == "DCR":
            blocks = value.reshape((count, size, size, depth, height, width))
            blocks = blocks.transpose(0, 3, 4, 1, 5, 2)
        else:
            blocks = value.reshape((count, depth, size, size, height, width))
            blocks = blocks.transpose(0, 1, 4, 2, 5, 3)
        return blocks.reshape((count, depth, height * size, width * size))

    return moved(call, rearranged)


@importer("SpaceToDepth")
def space_to_depth(call: Call) -> Operand:
    """SpaceToDepth-28: blocks of pixels as channels; blocks outside (DCR) or inside (CRD)."""
    shape, size = call.input(0).shape, call.integer("blocksize")
    mode = call.attribute("mode", "DCR")
    if len(shape) != 4 or shape[2] % size or shape[3] % size:
        raise call.error(f"cannot take blocks of {size} of {list(shape)}")
    count, channels, height, width = shape

    def rearranged(value: AnyArray) -> AnyArray:
        blocks = value.reshape((count, channels, height // size, size, width // size, size))
        blocks = blocks.transpose((0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
        return blocks.reshape((count, channels * size * size, height // size, width // size))

    return moved(call, rearranged)
