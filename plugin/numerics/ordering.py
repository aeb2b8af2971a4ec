"""The greatest elements along an axis, and accumulations along an axis."""

from __future__ import annotations

import numpy as np

from .array_functions import over_time
from .element_types import AnyArray

_MAX_RANKED_ELEMENTS = 1024
"""Elements of which all n**2 pairs are compared, at most.

Of more elements, a loop takes the best one in each iteration.
"""


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
    length = keys.shape[1]
    indices = np.arange(length, dtype=np.int32)
    if length <= _MAX_RANKED_ELEMENTS:
        # Each position at the place that is the number of better ones.
        own, other = keys[:, :, None], keys[:, None, :]
        is_before = indices[None, :] < indices[:, None]
        is_better = (other > own) | ((other == own) & is_before)
        ranks = is_better.astype(np.int32).sum(axis=2, dtype=np.int32)
        is_there = ranks[:, None, :] == np.arange(count, dtype=np.int32)[:, None]
        return np.where(is_there, indices, np.int32(0)).sum(axis=2, dtype=np.int32)
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
