"""Importers that concatenate, repeat, split and slice tensors.

Sources: LiteRT, ``concatenation.cc``, ``pack.cc``, ``tile.cc``, ``split.cc``, ``split_v.cc``,
``unpack.cc``, ``slice.cc``, ``strided_slice.cc``, ``dynamic_update_slice.cc``.
"""

from __future__ import annotations

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, put_slice, take, take_slice
from ....numerics.element_types import I32, AnyArray
from ..arithmetic.requantization import round_half_away
from ..call import Call, importer
from ..operand import Operand


def _requantized(call: Call, operand: Operand) -> AnyArray:
    """Return an operand of a CONCATENATION in the parameters of the result.

    LiteRT requires equal parameters, except of uint8, which it rescales in f32. A lookup table
    rounds its product and sum separately here.
    """
    if operand.tensor.quantization is None or call.output.quantization is None:
        return operand.value
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    if x.scale == y.scale and x.zero_point == y.zero_point:
        return operand.value
    if operand.tensor.type != "UINT8":
        raise call.error(
            f"joins {operand.tensor} of another scale than the result", UnsupportedError
        )
    scale = x.scale * (np.float32(1) / y.scale)
    bias = np.float32(-x.zero_point) * scale
    table = round_half_away(np.arange(256, dtype=np.float32) * scale + bias).astype(np.int64)
    table = np.clip(table + y.zero_point, 0, 255).astype(np.uint8)
    return take(table, convert(operand.value, I32))


@importer("CONCATENATION")
def concatenation(call: Call) -> AnyArray:
    """Import CONCATENATION."""
    operands = call.all_inputs()
    values = [_requantized(call, operand) for operand in operands]
    axis = call.checked_axis(call.options.axis, len(operands[0].shape))
    joined = np.concatenate(values, axis=axis)
    return call.activated(joined) if operands[0].is_float else joined


@importer("PACK")
def pack(call: Call) -> AnyArray:
    """Import PACK: stacks operands along a new axis."""
    values = [operand.value for operand in call.all_inputs()]
    call.check_count("values_count", len(values))
    axis = call.checked_axis(call.options.axis, len(call.input(0).shape) + 1)
    return np.stack(values, axis=axis)


@importer("TILE")
def tile(call: Call) -> AnyArray:
    """Import TILE: repeats each axis by the count in input 1."""
    value = call.input(0).value
    for axis, count in enumerate(call.constant_integers(1, value.ndim).tolist()):
        if count < 1:
            raise call.error(f"repeats {count} times", UnsupportedError)
        value = np.concatenate([value] * count, axis=axis) if count > 1 else value
    return value


@importer("SPLIT")
def split(call: Call) -> list[AnyArray]:
    """Import SPLIT: equal pieces along the axis in input 0."""
    operand = call.input(1)
    axis, count = call.constant_axis(0, len(operand.shape)), len(call.operator.outputs)
    call.check_count("num_splits", count)
    if not count or operand.shape[axis] % count:
        raise call.error(f"cannot split {operand.shape[axis]} elements in {count} parts")
    size = operand.shape[axis] // count
    return [_slice_axis(operand.value, axis, n * size, size) for n in range(count)]


@importer("SPLIT_V")
def split_v(call: Call) -> list[AnyArray]:
    """Import SPLIT_V: pieces of the sizes in input 1, of which one may be -1."""
    operand, sizes = call.input(0), call.constant_list(1)
    axis = call.constant_axis(2, len(operand.shape))
    call.check_count("num_splits", len(call.operator.outputs))
    rest = operand.shape[axis] - sum(n for n in sizes if n >= 0)
    sizes = [rest if n < 0 else n for n in sizes]
    if sum(sizes) != operand.shape[axis] or min(sizes, default=0) < 0:
        raise call.error(f"cannot split {operand.shape[axis]} elements in {sizes}")
    starts = np.cumsum([0, *sizes[:-1]])
    return [_slice_axis(operand.value, axis, int(s), n) for s, n in zip(starts, sizes, strict=True)]


@importer("UNPACK")
def unpack(call: Call) -> list[AnyArray]:
    """Import UNPACK: a result for each index of an axis, which is removed."""
    operand = call.input(0)
    axis = call.checked_axis(call.options.axis, len(operand.shape))
    count = operand.shape[axis]
    call.check_count("num", count)
    shape = operand.shape[:axis] + operand.shape[axis + 1 :]
    return [_slice_axis(operand.value, axis, n, 1).reshape(shape) for n in range(count)]


def _slice_axis(value: AnyArray, axis: int, start: int, size: int) -> AnyArray:
    return value[(slice(None),) * axis + (slice(start, start + size),)]


@importer("SLICE")
def slice_(call: Call) -> AnyArray:
    """Import SLICE, from the starts in input 1, of the sizes in input 2 (-1 for the rest).

    Computed starts are clamped so that the slice is inside; LiteRT refuses others.
    """
    operand = call.input(0)
    if not call.input(1).is_constant:
        sizes = call.constant_list(2)
        if len(sizes) != len(operand.shape) or any(
            not 0 <= n <= size for n, size in zip(sizes, operand.shape, strict=True)
        ):
            raise call.error(f"takes {sizes} of {list(operand.shape)} from computed starts")
        max_starts = np.array(operand.shape, np.int32) - np.array(sizes, np.int32)
        starts = np.minimum(np.maximum(convert(call.input(1).value, I32), 0), max_starts)
        return take_slice(operand.value, starts.reshape(-1), sizes)
    index = []
    for size, start, count in zip(
        operand.shape, call.constant_list(1), call.constant_list(2), strict=True
    ):
        stop = size if count < 0 else start + count
        if not 0 <= start <= stop <= size:
            raise call.error(f"takes elements {start} to {stop} of {size}")
        index.append(slice(start, stop))
    return operand.value[tuple(index)]


@importer("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(call: Call) -> AnyArray:
    """Import DYNAMIC_UPDATE_SLICE; starts are clamped so that the update is inside."""
    operand, update, starts = call.input(0), call.input(1), call.input(2)
    if starts.shape != (len(operand.shape),):
        raise call.error(
            f"has starts of shape {list(starts.shape)}, expected [{len(operand.shape)}]"
        )
    sizes = [n - m for n, m in zip(operand.shape, update.shape, strict=True)]
    max_starts = np.array(sizes, starts.value.dtype)
    clamped = np.minimum(np.maximum(starts.value, 0), max_starts)
    return put_slice(operand.value, update.value, convert(clamped, I32))


@importer("STRIDED_SLICE")
def strided_slice(call: Call) -> AnyArray:
    """Import STRIDED_SLICE: Python's slices, with masks of full, new and removed dimensions."""
    operand, options = call.input(0), call.options
    offset = options.offset
    starts, stops, steps = (call.constant_list(index) for index in (1, 2, 3))
    # All masks are read, even those that another mask overrides.
    begin_mask, end_mask = options.begin_mask, options.end_mask
    ellipsis_mask, new_axis_mask = options.ellipsis_mask, options.new_axis_mask
    shrink_axis_mask = options.shrink_axis_mask

    def has(mask: int, entry: int) -> bool:
        return bool(mask >> entry & 1)

    rank = len(operand.shape)
    used = sum(not has(ellipsis_mask | new_axis_mask, entry) for entry in range(len(starts)))
    ellipses = sum(has(ellipsis_mask, entry) for entry in range(len(starts)))
    masks = f"(ellipsis_mask = {ellipsis_mask}, new_axis_mask = {new_axis_mask})"
    if ellipses > 1:
        raise call.error(f"has {ellipses} ellipses in its ellipsis_mask, expected one at most")
    if ellipses and used == rank:
        raise call.error(
            f"has {used} slices beside the ellipsis for {used} dimensions {masks}; LiteRT takes "
            "one of them for the ellipsis",
            UnsupportedError,
        )
    if used > rank:
        raise call.error(f"has {used} slices of {rank} dimensions {masks}")
    index: list[slice | int | None] = []
    reversed_axes: list[int] = []
    dimensions = iter(enumerate(operand.shape))
    for entry, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
        if has(ellipsis_mask, entry):
            index += [slice(None) for _ in range(rank - used)]
            for _ in range(rank - used):
                next(dimensions)
            continue
        if has(new_axis_mask, entry):
            index.append(None)
            continue
        if not step:
            raise call.error("has the stride 0")
        axis, size = next(dimensions)
        first = None if has(begin_mask, entry) else start
        if has(shrink_axis_mask, entry):
            if not -size <= (first or 0) < size:
                raise call.error(f"takes element {first} of {size}")
            index.append(first or 0)
            continue
        last = None if has(end_mask, entry) else stop + (start * offset)
        elements = range(*slice(first, last, step).indices(size))
        if step > 0:
            index.append(slice(elements.start, max(elements.stop, elements.start), step))
            continue
        reversed_axes.append(axis)
        low, high = (size - 1 - elements[0], size - elements[-1]) if len(elements) else (0, 0)
        index.append(slice(low, high, -step))
    value = np.flip(operand.value, tuple(reversed_axes)) if reversed_axes else operand.value
    return value[tuple(index)]
