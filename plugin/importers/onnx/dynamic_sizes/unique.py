"""Unique: the distinct elements or slices of a tensor, as a bounded tensor.

All pairs are compared. An element is the first of its kind if no element before it is equal. Its
rank among the distinct elements is the number of first elements that are less, or that are earlier
if the order is kept.

Source: ONNX, Unique 11.
"""

from __future__ import annotations

import math

import numpy as np

from ....numerics.array_functions import convert, is_known, take
from ....numerics.element_types import I32, I64, AnyArray, Array
from ....numerics.ordering import cumulative, ordered_keys
from ..call import Call, Operand, importer
from .bounded_tensor import bounded

_MAX_PAIRS = 1 << 24
"""Comparisons of elements, ``count**2 * width``, for a tensor that the program computes.

With more, time and memory of a call grow with their number; with fewer, more models are refused.
Constants have no limit.
"""


@importer("Unique")
def unique(call: Call) -> list[Operand]:
    """Unique-28: distinct elements, their first indices, the rank of each element, their counts."""
    operand, value = call.input(0), call.array(0)
    shape = operand.shape
    axis = call.optional_axis("axis", len(shape))
    is_sorted = bool(call.attribute("sorted", 1))
    if is_known(value):
        return _of_constant(operand.type, value, axis, is_sorted=is_sorted)
    rows = value.reshape((-1, 1)) if axis is None else _slices(value, axis)
    count, width = rows.shape
    if not count * width:
        raise call.unsupported("has no elements")
    if count * count * width > _MAX_PAIRS:
        raise call.unsupported(
            f"compares {count} elements or slices of {width} with one another, more than "
            f"{_MAX_PAIRS} comparisons; compute it after the call, or of fewer elements"
        )
    is_first, is_equal, rank = _ranks(ordered_keys(rows), is_sorted=is_sorted)
    order = np.arange(count, dtype=np.int32)
    is_at = is_first & (rank == order[:, None])  # [rank, element]
    first = np.where(is_at, order, np.int32(0)).sum(axis=1, dtype=np.int32)
    number = convert(is_first, I32).sum(dtype=np.int32)
    alike = convert(is_equal, I32).sum(axis=1, dtype=np.int32)
    distinct = take(value.reshape(-1) if axis is None else value, first, axis or 0)
    numbers = take(alike, first, 0)
    return [
        Operand(operand.type, bounded(distinct, axis or 0, number)),
        Operand("INT64", bounded(convert(first, I64), 0, number)),
        Operand("INT64", convert(rank, I64)),
        Operand("INT64", bounded(convert(numbers, I64), 0, number)),
    ]


def _of_constant(type_: str, value: Array, axis: int | None, *, is_sorted: bool) -> list[Operand]:
    """Return the results for elements that are known."""
    distinct, first, rank, numbers = np.unique(value, True, True, True, axis=axis)
    rank = rank.reshape(-1)
    if not is_sorted:
        order = np.argsort(first)
        distinct = np.take(distinct, order, axis or 0)
        first, numbers, rank = first[order], numbers[order], np.argsort(order)[rank]
    integers = [Operand("INT64", each.astype(np.int64)) for each in (first, rank, numbers)]
    return [Operand(type_, distinct), *integers]


def _slices(value: AnyArray, axis: int) -> AnyArray:
    """Return the slices along an axis as rows."""
    order = [axis, *(a for a in range(len(value.shape)) if a != axis)]
    rest = math.prod(n for a, n in enumerate(value.shape) if a != axis)
    return value.transpose(order).reshape((value.shape[axis], rest))


def _ranks(keys: AnyArray, *, is_sorted: bool) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Compare rows with one another.

    Args:
        keys: of elements, ``[rows, n]``, in the order of the elements.
        is_sorted: by their elements, the first ones first; else in the order of the first ones.

    Returns:
        Whether a row is the first of its kind, whether two rows are equal, and the rank of each
        row among the distinct ones, i32.
    """
    count, width = keys.shape
    own, other = keys[:, None, :], keys[None, :, :]
    same = convert(own == other, I32)
    is_equal = same.min(axis=2) > np.int32(0)
    order = np.arange(count, dtype=np.int32)
    first = np.where(is_equal, order, np.int32(count)).min(axis=1)
    first = np.minimum(first, order)  # NaN equals nothing
    is_first = first == order
    if not is_sorted:
        before = cumulative(convert(is_first, I32), 0, "add", is_exclusive=True, is_reversed=False)
        return is_first, is_equal, take(before, first, 0)
    is_less = other < own
    if width > 1:  # where all elements before are equal
        before = cumulative(same, 2, "multiply", is_exclusive=True, is_reversed=False)
        is_less = is_less & (before > np.int32(0))
    is_less = convert(is_less, I32).max(axis=2) > np.int32(0)  # [row, a row that is less]
    rank = convert(is_less & is_first, I32).sum(axis=1, dtype=np.int32)
    return is_first, is_equal, rank
