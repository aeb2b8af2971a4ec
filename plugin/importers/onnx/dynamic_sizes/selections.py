"""Operators that select elements: NonZero, Compress, NonMaxSuppression.

The results are bounded tensors, unless the operands are constant.

Sources: ONNX, NonZero 13, Compress 28, NonMaxSuppression 11; ONNX Runtime,
``non_max_suppression_helper.h``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....numerics.array_functions import (
    bits_of,
    convert,
    divide_truncated,
    is_known,
    put_slice,
    repeat_while,
    rounded_product,
    take,
)
from ....numerics.element_types import I32, I64, AnyArray, ElementType
from ....numerics.ordering import reduce_rows
from ..call import Call, Operand, importer
from ..movement.shapes import moved
from .bounded_tensor import bounded, true_positions


@importer("NonZero")
def non_zero(call: Call) -> Operand:
    """NonZero-13: ``X``: the coordinates of the elements that are not 0, one column for each."""
    return coordinates_of(is_non_zero(call.array(0)))


def is_non_zero(value: AnyArray) -> AnyArray:
    """Return True where an element is not 0; subnormal floats, which devices flush, are not."""
    dtype = np.dtype(value.dtype)
    if dtype == np.bool_:
        return value
    if dtype.kind in "iu":
        return value != np.zeros((), dtype)
    bits = 8 * dtype.itemsize
    magnitude = bits_of(value, ElementType.parse(f"i{bits}")) & ((1 << (bits - 1)) - 1)
    return magnitude != np.zeros((), f"int{bits}")


def coordinates_of(mask: AnyArray) -> Operand:
    """Return the coordinates of true elements; ONNX Runtime counts a scalar as one axis."""
    shape = tuple(mask.shape) or (1,)
    if not math.prod(shape):
        return Operand("INT64", np.zeros((len(shape), 0), np.int64))
    positions, count = true_positions(mask.reshape(-1))
    rows = [convert(each, I64) for each in _unraveled(positions, shape)]
    return Operand("INT64", bounded(np.stack(rows), 1, count))


def _unraveled(positions: AnyArray, shape: Sequence[int]) -> list[AnyArray]:
    """Return the coordinate along each axis of positions in a flattened tensor, i32."""
    coordinates = []
    for size in reversed(shape[1:]):
        outer = divide_truncated(positions, np.full((), size, np.int32))
        coordinates.append(positions - outer * np.int32(size))
        positions = outer
    return [positions, *reversed(coordinates)]


@importer("Compress")
def compress(call: Call) -> Operand:
    """Compress-28: ``input, condition``: the slices along an axis where the condition is true."""
    return compressed(call, call.array(1).reshape(-1))


def compressed(call: Call, condition: AnyArray) -> Operand:
    """Return the slices of input 0 where a condition of one axis is true."""
    shape = call.input(0).shape
    axis = call.optional_axis("axis", len(shape))
    size = math.prod(shape) if axis is None else shape[axis]
    if condition.shape[0] > size:
        if not is_known(condition) or condition[size:].any():
            along = "the flattened input" if axis is None else f"the axis {axis}"
            raise call.unsupported(
                f"has a condition of {condition.shape[0]} elements for {size} along {along}"
            )
        condition = condition[:size]
    if not size:
        return moved(call, lambda value: value.reshape(-1) if axis is None else value)
    if not condition.shape[0]:
        condition = np.zeros(size, np.bool_)
    positions, count = true_positions(condition)
    if axis is None:
        selected = moved(call, lambda value: take(value.reshape(-1), positions, 0))
    else:
        selected = moved(call, lambda value: take(value, positions, axis))
    return Operand(selected.type, bounded(selected.value, axis or 0, count))


@importer("NonMaxSuppression")
def non_max_suppression(call: Call) -> Operand:
    """NonMaxSuppression-11: ``boxes`` ``[B, N, 4]``, ``scores`` ``[B, C, N]``.

    The result has batch, class and box of each selection. In each step, the best remaining box is
    selected for each batch and class, and the boxes that overlap it are suppressed. Among equal
    scores the first is the best.
    """
    boxes, scores = call.array(0), call.array(1)
    is_center = call.attribute("center_point_box", 0) == 1
    if (
        boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[2] != 4
        or (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2])
    ):  # fmt: skip
        raise call.error(
            f"has boxes of shape {list(boxes.shape)} and scores of shape {list(scores.shape)}, "
            "expected [batches, boxes, 4] and [batches, classes, boxes]"
        )
    limit, overlap, least_score = (_scalar(call, index) for index in (2, 3, 4))
    batches, classes, size = scores.shape
    limit = np.zeros((), np.int64) if limit is None else limit
    steps = np.minimum(np.maximum(limit, np.int64(0)), np.int64(size))
    bound = int(steps) if is_known(steps) else size
    if not batches * classes * bound:
        return Operand("INT64", np.zeros((0, 3), np.int64))
    overlap = np.zeros((), np.float32) if overlap is None else overlap
    if is_known(overlap) and not 0 <= overlap <= 1:
        raise call.error(f"has the iou_threshold {overlap}, expected 0 to 1")
    is_remaining = np.ones((batches * classes, size), np.bool_)
    rows = scores.reshape((batches * classes, size))
    if least_score is not None:
        is_remaining = rows > least_score
    chosen = _suppressed(call, _sides(boxes, is_center), rows, is_remaining, overlap, steps, bound)
    columns = chosen.transpose(1, 0).reshape(-1)  # batch, class, order of selection
    positions, count = true_positions(columns < np.int32(size))
    batch, class_, _ = _unraveled(positions, (batches, classes, bound))
    box = np.minimum(take(columns, positions, 0), np.int32(size - 1))
    result = np.stack([batch, class_, box], axis=1)
    return Operand("INT64", bounded(convert(result, I64), 0, count))


def _scalar(call: Call, index: int) -> AnyArray:
    """Return an optional input of one element, None if it is absent or has none."""
    operand = call.optional(index)
    return None if operand is None or 0 in operand.shape else call.scalar(index)


def _sides(boxes: AnyArray, is_center: bool) -> list[AnyArray]:
    """Return the least and greatest x and y of each box, ``[B, N]``."""
    first, second, third, fourth = (boxes[:, :, n] for n in range(4))
    if not is_center:  # two corners, y before x
        return [
            np.minimum(second, fourth), np.maximum(second, fourth),
            np.minimum(first, third), np.maximum(first, third),
        ]  # fmt: skip
    half_width, half_height = third * np.float32(0.5), fourth * np.float32(0.5)
    return [first - half_width, first + half_width, second - half_height, second + half_height]


def _suppressed(
    call: Call,
    sides: Sequence[AnyArray],
    scores: AnyArray,
    is_remaining: AnyArray,
    overlap: AnyArray,
    steps: AnyArray,
    bound: int,
) -> AnyArray:
    """Return the selected boxes in order, i32 ``[bound, B * C]``; N where no box remained.

    Args:
        sides: the result of `_sides`.
        scores: ``[B * C, N]``.
        is_remaining: true for boxes that can be selected; has the shape of `scores`.
        overlap: the ratio of intersection and union above which a box is suppressed.
        steps: the greatest number of selections.
        bound: an upper bound of `steps`.
    """
    count, size = scores.shape
    batches = sides[0].shape[0]
    classes = count // batches
    numbers = np.arange(size, dtype=np.int32)
    starts = np.repeat(np.arange(batches, dtype=np.int32) * np.int32(size), classes)
    all_sides = [np.repeat(side, classes, 0) for side in sides]
    lowest = np.asarray(-np.inf, scores.dtype)

    def continues(index: AnyArray, is_any: AnyArray, *_: AnyArray) -> AnyArray:
        return (index < steps) & is_any

    def best_of(is_remaining: AnyArray) -> AnyArray:
        masked = np.where(is_remaining, scores, lowest)
        is_best = is_remaining & (masked == reduce_rows(masked, "max")[:, None])
        return reduce_rows(np.where(is_best, numbers, np.int32(size)), "min")

    def body(
        index: AnyArray, _: AnyArray, is_remaining: AnyArray, chosen: AnyArray
    ) -> list[AnyArray]:
        best = best_of(is_remaining)
        position = starts + np.minimum(best, np.int32(size - 1))
        own = [take(side.reshape(-1), position, 0)[:, None] for side in sides]
        is_suppressed = _overlap(all_sides, own, overlap) | (numbers == best[:, None])
        row = [index.reshape(()), np.zeros((), np.int32)]
        is_any = convert(best < np.int32(size), I32).max() > np.int32(0)
        following = [index + np.int32(1), is_any, is_remaining & ~is_suppressed]
        return [*following, put_slice(chosen, best[None], row)]

    steps = convert(steps, I32)
    if bound == 1:  # IREE's compiler crashes on a loop of one iteration at most (IREE 3.13)
        return np.where(steps > np.int32(0), best_of(is_remaining), np.int32(size))[None]
    nothing = np.full((bound, count), size, np.int32)
    start = [np.zeros((), np.int32), np.ones((), np.bool_), is_remaining, nothing]
    if not is_known(scores) or not is_known(sides[0]):
        start = [call.lifted(each) for each in start]
    return repeat_while(continues, body, start)[3]


def _overlap(sides: Sequence[AnyArray], own: Sequence[AnyArray], overlap: AnyArray) -> AnyArray:
    """Return True where intersection over union of boxes with one box is above a ratio.

    The arithmetic is f32, rounded after each operation in the order of ONNX Runtime.
    """
    left, right = np.maximum(sides[0], own[0]), np.minimum(sides[1], own[1])
    top, bottom = np.maximum(sides[2], own[2]), np.minimum(sides[3], own[3])
    common = rounded_product(right - left, bottom - top)
    areas = [rounded_product(x1 - x0, y1 - y0) for x0, x1, y0, y1 in (sides, own)]
    union = areas[0] + areas[1] - common
    zero = np.zeros((), np.float32)
    is_valid = (right > left) & (bottom > top) & (common > zero) & (union > zero)
    is_valid = is_valid & (areas[0] > zero) & (areas[1] > zero)
    ratio = common / np.where(union > zero, union, np.ones((), np.float32))
    return is_valid & (ratio > overlap)
