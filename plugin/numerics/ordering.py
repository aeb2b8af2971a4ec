"""The greatest elements along an axis, and accumulations along an axis."""

from __future__ import annotations

import numpy as np

from .array_functions import bits_of, convert, over_time, take
from .element_types import I32, I64, AnyArray, ElementType

_MAX_RANKED_PAIRS = 1 << 20
"""Pairs of elements of all rows that are compared, at most, to order whole rows."""
_MAX_COUNT_IN_LOOP = 8
"""The greatest elements, at most, that a loop takes one by one; more are searched together."""
_DIGIT_BITS = 2
"""Bits of the least of the greatest keys that a step of the search finds: 3 comparisons with each
key."""
_PREFIX_BLOCK = 8
"""Elements of a block of a prefix sum: see `_prefix_sum`."""
_SEARCHED_BLOCK = 64
"""Elements of a block, which is found before the elements in it: see `_positions`."""
_BLOCK = 256
"""The elements of a row that are reduced together.

IREE keeps a whole row on the stack, of at most 32 KiB, where several reductions share a producer.
"""


def reduce_rows(rows: AnyArray, function: str) -> AnyArray:
    """Return ``max`` or ``min`` of rows ``[rows, n]`` of int32, int64 or floats without NaN."""
    count, length = rows.shape
    if length > 4 * _BLOCK:
        blocks, kind = -(-length // _BLOCK), rows.dtype
        fill: float = -np.inf if function == "max" else np.inf
        if kind.kind != "f":
            info = np.iinfo(kind)
            fill = int(info.min if function == "max" else info.max)
        padded = np.pad(rows, ((0, 0), (0, blocks * _BLOCK - length)), constant_values=fill)
        in_blocks = padded.reshape((count, blocks, _BLOCK))
        rows = getattr(in_blocks, function)(axis=2)
    return getattr(rows, function)(axis=1)


def greatest_first(keys: AnyArray, count: int) -> AnyArray:
    """The int32 positions of the `count` (1 or more) greatest keys along the last axis.

    Keys are int32, int64 or floats without NaN, of two axes; the first of equal ones comes first.
    """
    rows, length = keys.shape
    if rows * length * length <= _MAX_RANKED_PAIRS:
        return _ranked(keys, count)
    if count <= _MAX_COUNT_IN_LOOP:
        return _one_by_one(keys, count)
    # The positions of the greatest keys, in ascending order; then in the order of the keys.
    integers = keys
    if keys.dtype.kind == "f":
        integers = total_order(np.where(keys == 0, np.asarray(0, keys.dtype), keys))
    positions = _positions(_are_greatest(integers, count), count)
    return take_in_rows(positions, _ranked(take_in_rows(keys, positions), count))


def take_in_rows(rows: AnyArray, positions: AnyArray) -> AnyArray:
    """Return the elements at int32 positions of each row, in range; both have as many rows."""
    count, length = rows.shape
    starts = np.arange(count, dtype=np.int32)[:, None] * np.int32(length)
    elements = take(rows.reshape(-1), (positions + starts).reshape(-1), 0)
    return elements.reshape(positions.shape)


def ordered_keys(value: AnyArray) -> AnyArray:
    """Return elements as f32, f64, i32 or i64, in the same order."""
    element = ElementType.of_dtype(np.dtype(value.dtype))
    if element.is_float and element.bits < 32:
        return value.astype(np.float32)
    if element.is_float or element in (I32, I64):
        return value
    if element.bits == 64:
        return bits_of(value ^ np.uint64(1 << 63), I64)
    return convert(value, I64 if element.bits == 32 else I32)


def total_order(numbers: AnyArray) -> AnyArray:
    """Return int32 or int64 in the total order of f32 or f64.

    That is -NaN, -infinity, ..., -0, 0, ..., infinity, NaN. Source: IEEE 754-2019, 5.10.
    """
    bits = 8 * numbers.dtype.itemsize
    return in_total_order(bits_of(numbers, ElementType.parse(f"i{bits}")), bits)


def in_total_order(integers: AnyArray, bits: int) -> AnyArray:
    """Return signed integers in the order of the floats whose bits they are: see `total_order`."""
    return integers ^ ((integers >> (bits - 1)) & ((1 << (bits - 1)) - 1))


def _ranked(keys: AnyArray, count: int) -> AnyArray:
    """The positions of the greatest keys: each at the place that is the number of better ones."""
    indices = np.arange(keys.shape[1], dtype=np.int32)
    own, other = keys[:, :, None], keys[:, None, :]
    is_before = indices[None, :] < indices[:, None]
    is_better = (other > own) | ((other == own) & is_before)
    ranks = is_better.astype(np.int32).sum(axis=2, dtype=np.int32)
    is_there = ranks[:, None, :] == np.arange(count, dtype=np.int32)[:, None]
    return np.where(is_there, indices, np.int32(0)).sum(axis=2, dtype=np.int32)


def _are_greatest(keys: AnyArray, count: int) -> AnyArray:
    """True for the `count` greatest of the integers of each row; the first of equal ones count."""
    bits, dtype = 8 * keys.dtype.itemsize, keys.dtype
    # The least of the greatest keys, from its first bits on.
    least: AnyArray = np.full((keys.shape[0], 1), np.iinfo(dtype).min, dtype)
    for shift in range(bits - _DIGIT_BITS, -1, -_DIGIT_BITS):
        digits = np.arange(1, 1 << _DIGIT_BITS, dtype=np.uint64) << np.uint64(shift)
        steps = digits.astype(f"u{dtype.itemsize}").view(dtype)
        candidates = least + steps  # integers wrap
        reached = _count(keys[:, None, :] >= candidates[:, :, None])
        least = least + np.where(reached >= count, steps[:1], np.asarray(0, dtype)).sum(
            axis=1, keepdims=True, dtype=dtype
        )
    is_above, is_equal = keys > least, keys == least
    missing = count - _count(is_above)[:, None]
    return is_above | (is_equal & (_prefix_counts(is_equal) <= missing))


def _positions(mask: AnyArray, count: int) -> AnyArray:
    """The positions of the `count` true elements of each row: their blocks, then inside."""
    rows, length = mask.shape
    blocks = -(-length // _SEARCHED_BLOCK)
    fill = ((0, 0), (0, blocks * _SEARCHED_BLOCK - length))
    counts = np.pad(_prefix_counts(mask), fill, constant_values=count)
    in_blocks = counts.reshape((rows, blocks, _SEARCHED_BLOCK))
    before = np.arange(count, dtype=np.int32)[:, None]
    block = _count(in_blocks[:, None, :, -1] <= before)
    numbers = block + np.arange(rows, dtype=np.int32)[:, None] * np.int32(blocks)
    searched = take(in_blocks.reshape((-1, _SEARCHED_BLOCK)), numbers.reshape(-1), 0)
    inside = _count(searched.reshape((rows, count, _SEARCHED_BLOCK)) <= before)
    return block * np.int32(_SEARCHED_BLOCK) + inside


def _count(mask: AnyArray) -> AnyArray:
    """The number of true elements along the last axis, int32."""
    return mask.astype(np.int32).sum(axis=-1, dtype=np.int32)


def _prefix_counts(mask: AnyArray) -> AnyArray:
    """Inclusive prefix sums of the rows of a mask, int32."""
    return _prefix_sum(mask.astype(np.int32))


def _prefix_sum(numbers: AnyArray) -> AnyArray:
    """Inclusive prefix sums of rows of int32: of each block, plus those of the blocks' totals."""
    rows, length = numbers.shape
    size = min(_PREFIX_BLOCK, length)
    blocks = -(-length // size)
    padded = np.pad(numbers, ((0, 0), (0, blocks * size - length)))
    in_blocks = padded.reshape((rows, blocks, 1, size))
    prefix = (in_blocks * np.tri(size, dtype=np.int32)).sum(axis=3, dtype=np.int32)
    if blocks > 1:
        totals = _prefix_sum(prefix[:, :, -1])
        before = np.pad(totals[:, :-1], ((0, 0), (1, 0)))
        prefix = prefix + before[:, :, None]
    return prefix.reshape((rows, blocks * size))[:, :length]


def _one_by_one(keys: AnyArray, count: int) -> AnyArray:
    """The positions of the greatest keys, by a loop that takes the best one in each iteration."""
    length = keys.shape[1]
    indices = np.arange(length, dtype=np.int32)
    least = keys.dtype.type(-np.inf if keys.dtype.kind == "f" else np.iinfo(keys.dtype).min)

    def best_of(is_left: AnyArray | None) -> list[AnyArray]:
        best = reduce_rows(keys if is_left is None else np.where(is_left, keys, least), "max")
        is_best = keys == best[:, None]
        is_best = is_best if is_left is None else is_best & is_left
        return [reduce_rows(np.where(is_best, indices, np.int32(length)), "min"), best]

    def step(last: AnyArray, bound: AnyArray, _: AnyArray) -> list[AnyArray]:
        is_equal = keys == bound[:, None]
        return best_of((keys < bound[:, None]) | (is_equal & (indices > last[:, None])))

    start = best_of(None)
    ordered = start[0][None]
    if count > 1:
        _, more = over_time(step, start, [np.arange(count - 1, dtype=np.int32)])
        ordered = np.concatenate([ordered, more])
    return np.minimum(ordered, length - 1).transpose(1, 0)


def cumulative(
    value: AnyArray, axis: int, function: str, *, is_exclusive: bool, is_reversed: bool
) -> AnyArray:
    """Accumulate along an axis, over 1, 2, 4 and so on elements.

    Args:
        value: integers, which wrap, or floats.
        function: ``add`` or ``multiply``.
        is_exclusive: an element is not part of its own result.
    """
    length, one = value.shape[axis], np.ones((), value.dtype)
    along = np.arange(length).reshape([-1 if a == axis else 1 for a in range(value.ndim)])

    def shifted(value: AnyArray, by: int) -> AnyArray:
        inside = slice(by, None) if is_reversed else slice(0, length - by)
        widths = [(0, 0)] * value.ndim
        widths[axis] = (0, by) if is_reversed else (by, 0)
        part = value[(slice(None),) * axis + (inside,)]
        padded = np.pad(part, widths)
        if function == "add":
            return padded
        # IREE refuses to pad f64 with another number than 0.
        return np.where(along < length - by if is_reversed else along >= by, padded, one)

    if is_exclusive and length:
        value = shifted(value, 1)
    step = 1
    while step < length:
        other = shifted(value, step)
        value = value + other if function == "add" else value * other
        step *= 2
    return value
