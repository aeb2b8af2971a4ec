"""Operators that choose, repeat and rearrange elements; resizing.

Sources: LiteRT, ``gather.cc``, ``gather_nd.cc``, ``mirror_pad.cc``, ``one_hot.cc``, ``range.cc``,
``dynamic_update_slice.cc``, ``embedding_lookup.cc``, ``reference/resize_bilinear.h``,
``resize_nearest_neighbor.h``, ``space_to_batch_nd.h``, ``depth_to_space.h`` and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, put_slice, rounded_product, take
from ....numerics.element_types import F32, I32, I64, AnyArray, Array, ElementType
from ..arithmetic import requantization
from ..call import Call, kernel

__all__: list[str] = []


# -- by positions ---------------------------------------------------------------------------------


@kernel("GATHER")
def gather(call: Call) -> AnyArray:
    """Along an axis, at positions that have the first axes of the operand in common."""
    operand, positions = call.input(0), call.input(1)
    rank = len(operand.shape)
    axis = call.checked_axis(getattr(call.options, "axis", 0), rank)
    batch = getattr(call.options, "batch_dims", 0)
    batch += len(positions.shape) if batch < 0 else 0
    indices = convert(positions.value, I32)
    if not batch:
        return take(operand.value, indices, axis)
    shape, shared = operand.shape, operand.shape[:batch]
    if (
        not 0 < batch <= min(rank, len(positions.shape))
        or axis < batch
        or positions.shape[:batch] != shared
    ):
        raise call.error(f"has {batch} axes of a batch in {list(shape)} and {positions.shape}")
    count, extent = math.prod(shared), shape[axis]
    between, after = shape[batch:axis], shape[axis + 1 :]
    first = operand.value.transpose(
        *range(batch), axis, *range(batch, axis), *range(axis + 1, rank)
    ).reshape((count * extent, *between, *after))
    rows = positions.shape[batch:]
    starts = np.arange(count, dtype=np.int32).reshape((-1, *(1,) * len(rows))) * extent
    found = take(first, indices.reshape((count, *rows)) + starts, 0)
    found = found.reshape((*shared, *rows, *between, *after))
    middle = batch + len(rows)
    return found.transpose(
        *range(batch),
        *range(middle, middle + len(between)),
        *range(batch, middle),
        *range(middle + len(between), len(found.shape)),
    )


@kernel("GATHER_ND")
def gather_nd(call: Call) -> AnyArray:
    """At positions of the first axes, which are along the last axis of input 1."""
    operand, positions = call.input(0), call.input(1)
    depth = positions.shape[-1]
    shape = operand.shape
    if depth > len(shape):
        raise call.error(f"has positions of {depth} numbers in {len(shape)} dimensions")
    strides = [math.prod(shape[n + 1 : depth]) for n in range(depth)]
    linear = (convert(positions.value, I32) * np.array(strides, np.int32)).sum(
        axis=-1, dtype=np.int32
    )
    rows = operand.value.reshape((math.prod(shape[:depth]), *shape[depth:]))
    return take(rows, linear, 0)


@kernel("EMBEDDING_LOOKUP")
def embedding_lookup(call: Call) -> AnyArray:
    """Rows of input 1; those of integers are reals where the result is."""
    rows, table = convert(call.input(0).value, I32), call.input(1)
    found = take(table.value, rows, 0)
    if not call.output.is_float:
        return found
    element = ElementType.parse(call.output.element)
    if table.is_float:
        return convert(found, element)
    scales = call.parameters(table.tensor)
    if scales.axis not in (None, 0) or scales.zero_points.any():
        raise call.error(f"needs scales of the rows of {table.tensor}", UnsupportedError)
    real = convert(found, F32)
    if scales.axis is None and not scales.block_size:
        return convert(real * scales.scale, element)
    factors = take(scales.scales, rows, 0)
    if not scales.block_size:
        return convert(real * factors.reshape((-1, *(1,) * (real.ndim - 1))), element)
    blocks = real.reshape((*factors.shape, scales.block_size)) * factors[..., None]
    return convert(blocks.reshape(real.shape), element)


@kernel("ONE_HOT")
def one_hot(call: Call) -> AnyArray:
    """Input 2 at the positions, and input 3 elsewhere, along an axis of input 1's extent."""
    positions, depth = call.input(0), int(call.constant_scalar(1))
    rank = len(positions.shape)
    if not -1 <= call.options.axis <= rank:
        raise call.error(f"has the axis {call.options.axis} for {list(positions.shape)}")
    axis = call.options.axis % (rank + 1)
    indices = convert(positions.value, I32)
    indices = indices.reshape((*positions.shape[:axis], 1, *positions.shape[axis:]))
    places = np.arange(depth, dtype=np.int32).reshape((-1, *(1,) * (rank - axis)))
    on, off = (call.input(index).value.reshape(()) for index in (2, 3))
    return np.where(indices == places, on, off)


@kernel("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(call: Call) -> AnyArray:
    """Replace a part, from positions that are moved so that it is inside."""
    operand, part, starts = call.input(0), call.input(1), call.input(2)
    if starts.shape != (len(operand.shape),):
        raise call.error(
            f"has starts of shape {list(starts.shape)}, expected [{len(operand.shape)}]"
        )
    room = np.array(
        [n - m for n, m in zip(operand.shape, part.shape, strict=True)], starts.value.dtype
    )
    inside = np.minimum(np.maximum(starts.value, 0), room)
    return put_slice(operand.value, part.value, convert(inside, I32))


# -- rearrangements -------------------------------------------------------------------------------


@kernel("REVERSE_V2")
def reverse(call: Call) -> AnyArray:
    """Along the axes that input 1 names."""
    rank = len(call.input(0).shape)
    return np.flip(call.input(0).value, call.constant_axes(1, rank))


@kernel("MIRROR_PAD")
def mirror_pad(call: Call) -> AnyArray:
    """Reflected, with (mode 1) or without the element at the edge."""
    operand, again = call.input(0), call.options.mode == 1
    if call.options.mode not in (0, 1):
        raise call.error(f"has the unknown mode {call.options.mode}")
    value = operand.value
    for axis, (before, after) in enumerate(
        call.constant_integers(1, len(operand.shape), 2).tolist()
    ):
        extent, first = operand.shape[axis], 0 if again else 1
        if max(before, after) > extent - first or min(before, after) < 0:
            raise call.error(f"has the paddings {before} and {after} of {extent} elements")

        def part(start: int, count: int, axis: int = axis, value: AnyArray = value) -> AnyArray:
            index = (slice(None),) * axis + (slice(start, start + count),)
            return np.flip(value[index], (axis,))

        parts = [part(first, before)] if before else []
        parts.append(value)
        if after:
            parts.append(part(extent - first - after, after))
        value = np.concatenate(parts, axis=axis) if len(parts) > 1 else value
    return value


@kernel("DEPTH_TO_SPACE")
def depth_to_space(call: Call) -> AnyArray:
    """Channels to blocks of the image."""
    batch, height, width, channels = call.input(0).shape
    size = call.options.block_size
    if size < 1 or channels % (size * size):
        raise call.error(f"cannot make blocks of {size} of {channels} channels")
    depth = channels // (size * size)
    parts = call.input(0).value.reshape((batch, height, width, size, size, depth))
    return parts.transpose(0, 1, 3, 2, 4, 5).reshape((batch, height * size, width * size, depth))


@kernel("SPACE_TO_DEPTH")
def space_to_depth(call: Call) -> AnyArray:
    """Blocks of the image to channels."""
    batch, height, width, channels = call.input(0).shape
    size = call.options.block_size
    if size < 1 or height % size or width % size:
        raise call.error(f"cannot take blocks of {size} of an image of {height} x {width}")
    parts = call.input(0).value.reshape(
        (batch, height // size, size, width // size, size, channels)
    )
    return parts.transpose(0, 1, 3, 2, 4, 5).reshape(
        (batch, height // size, width // size, size * size * channels)
    )


@kernel("SPACE_TO_BATCH_ND")
def space_to_batch(call: Call) -> AnyArray:
    """Blocks of padded axes to the batch; padding is the zero point."""
    operand = call.input(0)
    blocks = [int(n) for n in call.constant(1).reshape(-1)]
    count = len(blocks)
    pads = [tuple(map(int, pair)) for pair in call.constant_integers(2, count, 2)]
    rest = operand.shape[1 + count :]
    fill = 0
    if operand.tensor.quantization is not None and not operand.is_float:
        fill = call.per_tensor(call.output).zero_point
    value = np.pad(operand.value, [(0, 0), *pads, *[(0, 0)] * len(rest)], constant_values=fill)
    extents = value.shape[1 : 1 + count]
    if min(blocks, default=1) < 1 or any(n % b for n, b in zip(extents, blocks, strict=True)):
        raise call.error(f"cannot take blocks of {blocks} of {list(extents)}")
    split = [each for n, b in zip(extents, blocks, strict=True) for each in (n // b, b)]
    value = value.reshape((value.shape[0], *split, *rest))
    inner, outer = range(2, 2 * count + 1, 2), range(1, 2 * count + 1, 2)
    value = value.transpose(*inner, 0, *outer, *range(2 * count + 1, value.ndim))
    batch = operand.shape[0] * math.prod(blocks)
    return value.reshape((batch, *(n // b for n, b in zip(extents, blocks, strict=True)), *rest))


@kernel("BATCH_TO_SPACE_ND")
def batch_to_space(call: Call) -> AnyArray:
    """The batch to blocks of axes, of which ends are cropped."""
    operand = call.input(0)
    blocks = [int(n) for n in call.constant(1).reshape(-1)]
    count, whole = len(blocks), math.prod(blocks)
    crops = [tuple(map(int, pair)) for pair in call.constant_integers(2, count, 2)]
    if not whole or operand.shape[0] % whole:
        raise call.error(f"cannot make blocks of {blocks} of a batch of {operand.shape[0]}")
    extents, rest = operand.shape[1 : 1 + count], operand.shape[1 + count :]
    batch = operand.shape[0] // whole
    value = operand.value.reshape((*blocks, batch, *extents, *rest))
    order = [count]
    for axis in range(count):
        order += [count + 1 + axis, axis]
    value = value.transpose(*order, *range(2 * count + 1, value.ndim))
    value = value.reshape((batch, *(n * b for n, b in zip(extents, blocks, strict=True)), *rest))
    index = [slice(None)]
    for axis, (low, high) in enumerate(crops, 1):
        index.append(slice(low, value.shape[axis] - high))
    return value[tuple(index)]


@kernel("TILE")
def tile(call: Call) -> AnyArray:
    """Each axis repeated as often as input 1 says."""
    value = call.input(0).value
    for axis, count in enumerate(call.constant_integers(1, value.ndim).tolist()):
        if count < 1:
            raise call.error(f"repeats {count} times", UnsupportedError)
        value = np.concatenate([value] * count, axis=axis) if count > 1 else value
    return value


@kernel("BROADCAST_TO")
def broadcast_to(call: Call) -> AnyArray:
    """To the shape that is input 1."""
    return np.broadcast_to(call.input(0).value, [int(n) for n in call.constant(1).reshape(-1)])


# -- made of nothing ------------------------------------------------------------------------------


@kernel("FILL")
def fill(call: Call) -> AnyArray:
    """Input 1 everywhere, of the shape that is input 0."""
    shape = [int(n) for n in call.constant(0).reshape(-1)]
    return np.broadcast_to(call.input(1).value.reshape(()), shape)


@kernel("ZEROS_LIKE")
def zeros_like(call: Call) -> AnyArray:
    """Zeros: storage zeros of storage, as LiteRT writes them."""
    operand = call.input(0)
    return np.zeros(operand.shape, operand.value.dtype)


@kernel("SHAPE")
def shape(call: Call) -> AnyArray:
    """The extents."""
    call.check_type("out_type")
    return np.array(call.input(0).shape, call.dtype(call.output))


@kernel("RANK")
def rank(call: Call) -> AnyArray:
    """The number of axes."""
    return np.array(len(call.input(0).shape), call.dtype(call.output))


@kernel("RANGE")
def range_(call: Call) -> AnyArray:
    """From input 0 to before input 1 in steps of input 2."""
    start, limit, delta = (call.constant(index).reshape(()) for index in range(3))
    if not delta:
        raise call.error("has the step 0")
    count = max(0, math.ceil((float(limit) - float(start)) / float(delta)))
    kind = call.dtype(call.output).type
    return np.array(kind(start) + np.arange(count).astype(kind) * kind(delta), kind)


# -- resizing -------------------------------------------------------------------------------------


def _sizes(call: Call) -> list[int]:
    operand, sizes = call.input(0), [int(n) for n in call.constant(1).reshape(-1)]
    if len(operand.shape) != 4 or len(sizes) != 2 or min(*sizes, *operand.shape[1:3]) < 1:
        raise call.error(f"cannot resize {list(operand.shape)} to {sizes}")
    return sizes


@kernel("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest_neighbor(call: Call) -> AnyArray:
    """Positions are computed in f32."""
    value, options = call.input(0).value, call.options
    for axis, size in enumerate(_sizes(call), 1):
        extent = value.shape[axis]
        scale = np.float32(extent) / np.float32(size)
        if options.align_corners and size > 1:
            scale = np.float32(extent - 1) / np.float32(size - 1)
        offset = np.float32(0.5 if options.half_pixel_centers else 0)
        places = (np.arange(size, dtype=np.float32) + offset) * scale
        nearest = requantization.round_away(places) if options.align_corners else np.floor(places)
        value = take(value, np.clip(nearest, 0, extent - 1).astype(np.int32), axis)
    return value


@kernel("RESIZE_BILINEAR")
def resize_bilinear(call: Call) -> AnyArray:
    """Between two rows and two columns; of integers with 10 fractional bits for each."""
    operand, options = call.input(0), call.options
    sizes = _sizes(call)
    if operand.tensor.type == "UINT8":
        return _resize_bytes(call, sizes)
    value = operand.value
    if not operand.is_float:
        value = convert(value, I32 if operand.tensor.type == "INT8" else I64)
    for axis, size in enumerate(sizes, 1):
        extent = value.shape[axis]
        weigh = _real_weights if operand.is_float else _integer_weights
        low, high, rest = weigh(size, extent, options.align_corners, options.half_pixel_centers)
        column = rest.reshape((-1, *(1,) * (3 - axis)))
        whole = column.dtype.type(1 if operand.is_float else 1 << 10)
        sides = [take(value, places, axis) for places in (low, high)]
        value = sides[0] * (whole - column) + sides[1] * column
    if operand.is_float:
        return value
    if operand.tensor.type == "INT8":
        return requantization.divided(value, 20).astype(np.int8)
    half = np.where(value > 0, np.int64(1 << 19), np.int64((1 << 19) - 1))
    return ((value + half) >> 20).astype(np.int16)


def _resize_bytes(call: Call, sizes: Sequence[int]) -> AnyArray:
    """Of uint8 in f32: four products in LiteRT's order, each rounded, and a half."""
    value, options = call.input(0).value, call.options
    rows, columns = (
        _real_weights(size, extent, options.align_corners, options.half_pixel_centers)
        for size, extent in zip(sizes, value.shape[1:3], strict=True)
    )
    one = np.float32(1)
    total: AnyArray = np.float32(0)
    for right in (False, True):
        for below in (False, True):
            corner = take(take(value, rows[below], 1), columns[right], 2)
            down, along = rows[2].reshape((-1, 1, 1)), columns[2].reshape((-1, 1))
            share = convert(corner, F32) * (down if below else one - down)
            product = rounded_product(share, along if right else one - along)
            total = total + product
    cut = convert(total + np.float32(0.5), I32)
    return requantization.narrowed(cut, 0, 255, np.dtype(np.uint8))


def _real_weights(
    size: int, extent: int, corners: bool, centers: bool
) -> tuple[Array, Array, Array]:
    """The two positions for each result, and how much of the second it has."""
    scale = np.float32(extent) / np.float32(size)
    if corners and size > 1:
        scale = np.float32(extent - 1) / np.float32(size - 1)
    places = np.arange(size, dtype=np.float32)
    half = np.float32(0.5)
    places = (places + half) * scale - half if centers else places * scale
    low = np.maximum(np.floor(places), 0).astype(np.int32)
    high = np.minimum(np.ceil(places), extent - 1).astype(np.int32)
    return low, high, (places - low.astype(np.float32)).astype(np.float32)


def _integer_weights(
    size: int, extent: int, corners: bool, centers: bool
) -> tuple[Array, Array, Array]:
    """The same with 10 fractional bits."""
    one = 1 << 10
    scale = (one * extent + size // 2) // size
    if corners and size > 1:
        scale = (one * (extent - 1) + (size - 1) // 2) // (size - 1)
    places = np.arange(size, dtype=np.int64) * scale
    if centers:
        places = places + scale // 2 - one // 2
    low = np.maximum(places, 0) // one  # C divides towards zero
    high = np.where(places + one - 1 < 0, 0, (places + one - 1) // one)
    high = np.minimum(high, extent - 1)
    rest = places - low * one
    return low.astype(np.int32), high.astype(np.int32), rest.astype(np.int32)
