"""Operators that move elements by what only the reference evaluator knows, and by indices.

A movement whose parameters are known is found once, by evaluating the operator on the numbers of
the elements; the program then takes the elements at these places. It is for integers and for reals
that are integers and scales: torch-mlir moves floats.

Sources: ONNX, Gather 1 to 13, Pad 2 to 25, Resize 10 to 19, Expand, Tile, DepthToSpace,
SpaceToDepth; ONNX Runtime, GatherBlockQuantized.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...errors import UnsupportedError
from ...numerics.array_functions import convert, is_known, take, unpack_bits
from ...numerics.element_types import I32, AnyArray
from .arithmetic import broadcast_shapes
from .call import Call, Operand, Typed, kernel
from .reals import Quantized, Sum
from .reference import evaluated
from .shapes import moved

__all__: list[str] = []

_FLOATS = frozenset(("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "BOOL", "INT32", "INT64"))


def _is_moved_here(operand: Operand) -> bool:
    """Storage with one scale, or of a type that torch-mlir does not read."""
    value = operand.value
    if isinstance(value, Quantized):
        return value.is_per_tensor
    return not isinstance(value, Sum) and operand.type not in _FLOATS


# -- at indices -----------------------------------------------------------------------------------


@kernel("Gather")
def gather(call: Call) -> Typed:
    """Slices along an axis; a table of storage keeps its scales, for each row if it has them."""
    operand, indices = call.input(0), call.array(1)
    axis = call.axis("axis", len(operand.shape), 0)
    if isinstance(operand.value, Quantized):
        found = _gathered(operand.value, indices, axis)
        if found is not None:
            return Typed(operand.type, found)
        call.with_floats("the table has scales for blocks along the axis")
    return Typed(operand.type, _taken(call.array(0), indices, axis))


def _taken(table: AnyArray, indices: AnyArray, axis: int) -> AnyArray:
    """As ``np.take``, with indices of any shape, and negative ones from the end."""
    count = int(table.shape[axis])
    if is_known(table) and is_known(indices):  # shapes, which later nodes need as constants
        inside = np.asarray(indices, np.int64)
        if inside.size and not ((inside >= -count) & (inside < count)).all():
            raise UnsupportedError(f"has indices beyond the {count} elements of the axis")
        return np.take(table, inside, axis)
    places = convert(indices, I32).reshape(-1)
    places = np.where(places < 0, places + np.int32(count), places)
    found = take(table, places, axis)
    return found.reshape((*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :]))


def _gathered(table: Quantized, indices: AnyArray, axis: int) -> Quantized | None:
    storage = _taken(table.storage, indices, axis)
    extents = tuple(indices.shape)
    before, after = table.block_sizes[:axis], table.block_sizes[axis + 1 :]
    if table.scales.shape[axis] == 1:
        inner = (1,) * len(extents)
        shape = (*table.scales.shape[:axis], *inner, *table.scales.shape[axis + 1 :])
        planes = [
            None if p is None else p.reshape(shape) for p in (table.scales, table.zero_points)
        ]
        return Quantized(storage, table.type, planes[0], planes[1], (*before, *extents, *after))
    if table.scales.shape[axis] != table.shape[axis]:
        return None
    planes = [
        None if p is None else _taken(p, indices, axis) for p in (table.scales, table.zero_points)
    ]
    ones = (1,) * len(extents)
    return Quantized(storage, table.type, planes[0], planes[1], (*before, *ones, *after))


@kernel("com.microsoft.GatherBlockQuantized")
def gather_block_quantized(call: Call) -> Quantized | None:
    """``data, indices, scales, zero_points``: rows of a table in blocks, as reals of the scales."""
    data, indices = call.input(0), call.array(1)
    rank, size, bits = len(data.shape), call.attribute("block_size", 128), call.attribute("bits", 4)
    axis, along = call.axis("gather_axis", rank, 0), call.axis("quantize_axis", rank, 1)
    if axis == along:
        raise call.error("gathers along the axis of the blocks")
    if size < 16 or size & (size - 1):
        raise call.error(f"has blocks of {size}")
    storage, held, zeros = data.value, data.type, None
    if held == "UINT8":  # in bytes, the lowest bits first
        if bits not in (2, 4, 8) or along != rank - 1:
            raise call.error(f"has bytes of {bits} bits along dimension {along}", UnsupportedError)
        held, storage = f"UINT{bits}", call.known(0)
        storage = storage if bits == 8 else np.asarray(unpack_bits(storage, bits))
    elif held not in ("INT4", "UINT4"):
        raise call.error(f"has a table of type {held}", UnsupportedError)
    scales = call.input(2)
    blocks = -(-storage.shape[along] // size)
    grid = tuple(blocks if a == along else n for a, n in enumerate(storage.shape))
    if scales.shape != grid:
        raise call.error(f"has scales of shape {list(scales.shape)}, expected {list(grid)}")
    if call.optional(3) is not None:
        zeros = call.array(3)
        if data.type == "UINT8" and bits != 8:
            zeros = np.asarray(unpack_bits(call.known(3), bits))[..., :blocks]
        if tuple(zeros.shape) != grid:
            raise call.error(f"has zero points of shape {list(zeros.shape)}, expected {list(grid)}")
    elif data.type == "UINT8":
        zeros = np.full(grid, 1 << (bits - 1), np.uint8)
    longest = max(min(size, storage.shape[along]), 1)
    sizes = tuple(longest if a == along else 1 for a in range(rank))
    call.with_floats("it gives the reals of a table in blocks")
    return _gathered(Quantized(storage, held, scales.value, zeros, sizes), indices, axis)


# -- movements ------------------------------------------------------------------------------------


@kernel("Expand")
def expand(call: Call) -> Typed:
    """An operand repeated along axes of one element, or along new first axes."""
    operand = call.input(0)
    wanted = tuple(int(n) for n in call.known(1).reshape(-1))
    if min(wanted, default=0) < 0:
        raise call.error(f"expands {list(operand.shape)} to the shape {list(wanted)}")
    shape = broadcast_shapes(call, [operand.shape, wanted])
    return moved(call, lambda value: np.broadcast_to(value, shape))


@kernel("Tile")
def tile(call: Call) -> Typed:
    """An operand repeated as a whole along axes."""
    operand = call.input(0)
    counts = [int(n) for n in call.known(1).reshape(-1)]
    shape = operand.shape
    if len(counts) != len(shape) or min(counts, default=0) < 0:
        raise call.error(f"repeats {list(shape)} {list(counts)} times")
    split = [n for pair in zip((1,) * len(shape), shape, strict=True) for n in pair]
    spread = [n for pair in zip(counts, shape, strict=True) for n in pair]
    tiled = [count * extent for count, extent in zip(counts, shape, strict=True)]
    return moved(
        call, lambda value: np.broadcast_to(value.reshape(split), tuple(spread)).reshape(tiled)
    )


@kernel("DepthToSpace", "SpaceToDepth")
def moved_by_numbers(call: Call) -> Typed | None:
    """Elements at places that are found when the program is written; None for floats."""
    return _by_numbers(call)


def _by_numbers(call: Call) -> Typed | None:
    operand = call.input(0)
    others = [each for each in call.inputs[1:] if each is not None]
    if operand.is_known or not _is_moved_here(operand) or not all(o.is_known for o in others):
        return None
    if call.node.operator == "Resize" and (
        call.attribute("mode", "nearest") != "nearest"
        or call.attribute("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    ):
        return None
    places = _places(call, operand.shape)
    value = operand.value
    if isinstance(value, Quantized):
        return Typed(operand.type, value.moved(lambda storage: _at(storage, places)))
    return Typed(operand.type, _at(value, places))


def _places(call: Call, shape: Sequence[int]) -> AnyArray:
    """The number of the element that comes to each place."""
    numbers = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    operands = [Operand("", "DOUBLE", numbers), *call.inputs[1:]]
    call.read_all()
    (found,) = evaluated(call.graph.model, call.node, operands, call.graph.place)
    return np.rint(found).astype(np.int32)


def _at(value: AnyArray, places: AnyArray) -> AnyArray:
    return take(value.reshape(-1), places.reshape(-1), 0).reshape(places.shape)
