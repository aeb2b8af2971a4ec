"""Handlers of operators that move rows of a bounded tensor, or change their number.

Source: ONNX, "Operator Schemas", operator set 28.
"""

from __future__ import annotations

import math

import numpy as np

from ....numerics.array_functions import convert, divide_truncated, is_known, take
from ....numerics.element_types import I32, I64, AnyArray
from ..call import Operand
from ..movement.shapes import WITHOUT_END
from .bounded_node import BoundedNode, handles
from .bounded_tensor import DYNAMIC_SIZE_ADVICE, BoundedTensor, ShapeValue, is_valid_row
from .selections import compressed, coordinates_of, is_non_zero


@handles("NonZero")
def _non_zero(node: BoundedNode) -> list[Operand]:
    tensor = node.tensors[0]
    mask = is_non_zero(node.call.floats(tensor.value)) & tensor.is_valid_row()
    return [coordinates_of(mask)]


@handles("Compress")
def _compressed(node: BoundedNode) -> list[Operand] | None:
    """Select valid rows where the condition is true; None without axis, or for computed slices."""
    tensor, condition = node.tensors.get(0), node.tensors.get(1)
    call = node.with_arrays()
    mask = call.array(1).reshape(-1)
    if tensor is not None and "axis" not in node.call.node.attributes:
        return None
    if tensor is not None and node.axis(0) != tensor.axis:
        if not is_known(mask) or condition is not None:
            return None
        return node.compute_rows(call, tensor.axis, tensor.count)
    for each in (tensor, condition):
        if each is not None:
            mask = mask & is_valid_row(mask.shape, 0, each.count)
    return [compressed(call, mask)]


@handles("Shape")
def _shape(node: BoundedNode) -> list[Operand]:
    """The dimension sizes, with the count for the data-dependent one."""
    tensor = node.tensors[0]
    end = node.call.attribute("end")
    axes = list(range(len(tensor.shape)))[node.call.attribute("start", 0) : end]
    node.call.optional(0)
    known = [None if axis == tensor.axis else tensor.shape[axis] for axis in axes]
    count = convert(tensor.count, I64).reshape((1,))
    sizes = [count if n is None else np.array([n], np.int64) for n in known]
    value = np.concatenate(sizes) if sizes else np.zeros(0, np.int64)
    return [Operand("INT64", ShapeValue.of_shape(value, known, tensor))]


@handles("Size")
def _size(node: BoundedNode) -> list[Operand]:
    """The number of elements of the valid rows."""
    tensor = node.tensors[0]
    row_size = math.prod(n for axis, n in enumerate(tensor.shape) if axis != tensor.axis)
    return [Operand("INT64", convert(tensor.count, I64) * np.int64(row_size))]


@handles("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshaped(node: BoundedNode) -> list[Operand] | None:
    """Reshape where the rows stay an axis, else refuse; None if only the shape is bounded."""
    tensor = node.tensors.get(0)
    if tensor is None:
        return None
    before, axis = tensor.shape, _reshaped_axis(node, tensor)
    if axis is None:
        sizes = ", ".join("?" if a == tensor.axis else str(n) for a, n in enumerate(before))
        raise node.call.unsupported(
            f"gives [{sizes}] another shape, in which the data-dependent dimension must stay; have "
            f"-1 for it in a constant shape, and list the axes of Squeeze: {DYNAMIC_SIZE_ADVICE}"
        )
    (result,) = node.compute(node.with_arrays())
    shape = result.shape
    if shape[axis] != before[tensor.axis] or math.prod(shape[:axis]) != math.prod(
        before[: tensor.axis]
    ):
        raise node.refusal()
    return [node.operand(result, axis, tensor.count)]


def _reshaped_axis(node: BoundedNode, tensor: BoundedTensor) -> int | None:
    """The result's axis of the rows; None where they merge or split, or sizes are computed."""
    operator, rank, stated = node.call.node.operator, len(tensor.shape), node.constant(1)
    row_count = tensor.shape[tensor.axis]
    if operator == "Flatten":
        axis = node.attribute("axis", 1)
        axis = axis + rank if axis < 0 else axis
        if tensor.axis < axis:
            return 0 if math.prod(tensor.shape[:axis]) == row_count else None
        return 1 if math.prod(tensor.shape[axis:]) == row_count else None
    if stated is None:  # Squeeze without axes removes an axis of one row, too
        return None
    if operator == "Squeeze":
        removed = {axis % rank for axis in stated}
        is_removed = tensor.axis in removed
        return None if is_removed else tensor.axis - sum(axis < tensor.axis for axis in removed)
    if operator == "Unsqueeze":
        added = {axis % (rank + len(stated)) for axis in stated}
        free = [axis for axis in range(rank + len(stated)) if axis not in added]
        return free[tensor.axis]
    copies_size = tensor.axis < len(stated) and not stated[tensor.axis]
    if copies_size and not node.attribute("allowzero", 0):
        return tensor.axis
    return stated.index(-1) if -1 in stated else None


@handles("Slice")
def _sliced(node: BoundedNode) -> list[Operand] | None:
    """Slice rows in any direction, by a formula; None for computed starts, ends, axes, steps."""
    tensor = node.tensors.get(0)
    starts, ends, axes, steps = (node.constant(index) for index in (1, 2, 3, 4))
    if tensor is None or len(node.tensors) > 1 or starts is None or ends is None:
        return None
    if (axes is None and node.has(3)) or (steps is None and node.has(4)):
        return None
    rank = len(tensor.shape)
    axes = list(range(len(starts))) if axes is None else [axis % rank for axis in axes]
    steps = [1] * len(starts) if steps is None else steps
    if tensor.axis not in axes:
        return node.compute_rows(node.with_arrays(), tensor.axis, tensor.count)
    index = axes.index(tensor.axis)
    rows, count = _slice_rows(node, tensor, starts[index], ends[index], steps[index])
    inputs = [Operand(node.call.input(0).type, rows)]
    for listed in (starts, ends, axes, steps):
        static = np.array([each for n, each in enumerate(listed) if n != index], np.int64)
        inputs.append(Operand("INT64", static))
    node.read_all()
    results = node.call.apply("Slice", inputs) if len(axes) > 1 else inputs[:1]
    return [node.operand(each, tensor.axis, count) for each in results]


def _slice_rows(
    node: BoundedNode, tensor: BoundedTensor, start: int, end: int, step: int
) -> tuple[AnyArray, AnyArray]:
    """Return the rows that Python's slice takes of the valid rows, and their number."""
    bound = tensor.shape[tensor.axis]
    zero, one = np.zeros((), np.int32), np.ones((), np.int32)
    if not step or (step < 0 and end in WITHOUT_END):
        raise node.refusal()
    step = max(min(step, bound), -bound) or 1
    limit, first = (tensor.count, zero) if step > 0 else (tensor.count - one, -one)

    def clamped(number: int, least: AnyArray) -> AnyArray:
        row = np.asarray(max(min(number, bound), -bound - 1), np.int32)
        row = row if number >= 0 else tensor.count + row
        return np.minimum(np.maximum(row, least), limit)

    first_row, stop = clamped(start, zero), clamped(end, first)
    distance = stop - first_row if step > 0 else first_row - stop
    size = np.full((), abs(step), np.int32)
    count = divide_truncated(np.maximum(distance, zero) + size - one, size)
    most = bound
    if step > 0 and start >= 0:
        most = max(min(end, bound) if end >= 0 else bound, start) - start
    elif step > 0:
        most = min(-start, bound)
    most = max(-(-most // abs(step)), 0)
    count = node.call.graph.shared(("slice", start, end, step), [tensor.count], lambda: count)
    rows = first_row + np.arange(most, dtype=np.int32) * np.int32(step)
    rows = np.minimum(np.maximum(rows, zero), np.int32(max(bound - 1, 0)))
    return take(node.call.floats(tensor.value), rows, tensor.axis), count


@handles("Concat")
def _concatenated(node: BoundedNode) -> list[Operand] | None:
    """Along the rows, the valid rows of one tensor after the other."""
    call = node.with_arrays()
    operands = [call.input(index) for index in range(len(call.inputs))]
    axis = call.axis("axis", len(operands[0].shape), 0)
    row_axes = set(node.axes.values())
    if row_axes != {axis}:
        is_along_other = len(row_axes) == 1 and axis not in row_axes
        if not is_along_other or len(node.tensors) != len(operands) or not node.has_one_count:
            raise node.refusal()
        return node.compute_rows(call, row_axes.pop(), node.tensors[0].count)
    (whole,) = node.compute(call)
    bound = whole.shape[axis]
    order = np.arange(bound, dtype=np.int32)
    source: AnyArray = np.zeros(bound, np.int32)
    start, base = np.zeros((), np.int32), 0
    sizes = [operand.shape[axis] for operand in operands]
    for index, size in enumerate(sizes):
        source = np.where(order >= start, order - start + np.int32(base), source)
        tensor = node.tensors.get(index)
        start = start + (np.int32(size) if tensor is None else tensor.count)
        base += size
    rows = take(call.floats(whole.value), np.minimum(source, np.int32(bound - 1)), axis)
    static = tuple(n for index, n in enumerate(sizes) if index not in node.tensors)
    counts = [each.count for each in node.tensors.values()]
    key = ("concatenation", *node.tensors, *static)
    count = call.graph.shared(key, counts, lambda: start)
    return [node.operand(Operand(whole.type, rows), axis, count)]


@handles("Gather")
def _gathered(node: BoundedNode) -> list[Operand] | None:
    """Gather valid rows, a call fails at others; None along other axes, in bodies, of no rows."""
    tensor, index_tensor = node.tensors.get(0), node.tensors.get(1)
    if tensor is None or node.axis(0) != tensor.axis or node.call.is_inner:
        return None
    if not tensor.shape[tensor.axis]:
        return None
    indices = convert(node.with_arrays().array(1), I32)
    is_inside = (indices >= -tensor.count) & (indices < tensor.count)
    if index_tensor is not None:
        is_inside = is_inside | ~index_tensor.is_valid_row()
    if math.prod(indices.shape):
        node.call.graph.check(
            convert(is_inside, I32).min() > np.int32(0), f"{node.call.node} takes other rows"
        )
    indices = np.where(indices < np.int32(0), indices + tensor.count, indices)
    last = np.int32(tensor.shape[tensor.axis] - 1)
    indices = np.minimum(np.maximum(indices, np.int32(0)), last)
    call = node.with_arrays({1: convert(indices, I64)})
    if index_tensor is None:
        return node.compute(call)
    return node.compute_rows(call, tensor.axis + index_tensor.axis, index_tensor.count)


@handles("ScatterND")
def _scattered(node: BoundedNode) -> list[Operand] | None:
    """Scatter updates of valid rows; None for bounded data, unlike counts, rows of components."""
    indices, updates = node.tensors.get(1), node.tensors.get(2)
    if set(node.tensors) != {1, 2} or indices is None or updates is None:
        return None
    has_same_rows = node.has_one_count and indices.axis == updates.axis
    if not has_same_rows or indices.axis == len(indices.shape) - 1 or not node.shape(0):
        return None
    call = node.with_arrays()
    data, positions = call.array(0), convert(call.array(1), I64)
    size = int(data.shape[0])
    sizes = np.array(data.shape)[: positions.shape[-1]]
    positions = np.where(positions < np.int64(0), positions + sizes, positions)
    outside = np.where(np.arange(positions.shape[-1]) == 0, np.int64(size), np.int64(0))
    positions = np.where(indices.is_valid_row(), positions, outside)
    extra_row = np.zeros((1, *data.shape[1:]), data.dtype)
    whole = np.concatenate([data, extra_row], axis=0)
    (result,) = node.compute(node.with_arrays({0: whole, 1: positions}))
    return [Operand(result.type, node.call.floats(result.value)[:size])]
