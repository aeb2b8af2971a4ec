"""Shapes computed from the number of valid rows of a bounded tensor.

A `ShapeValue` is a vector of integers of which some are counts of rows: an array of the program,
and codes. A code is a constant element, or a number below `COUNT_CODE_LIMIT` for a count. Operators
that move elements move the codes too, so a tensor of that shape has a data-dependent size. Every
other operator takes the array, which has no padding::

    Shape(x: 8 x ? x 4)         -> [8, count, 4]
    Gather(that, [1])           -> [count]
    Concat(that, [1, 4])        -> [count, 1, 4]
    Expand(y: 1 x 4, that)      -> ? x 1 x 4

Source: ONNX, "Operator Schemas", operator set 28.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ....numerics.element_types import AnyArray, Array
from ..call import Call, Operand
from .bounded_node import BoundedNode, Compute
from .bounded_tensor import COUNT_CODE_LIMIT, BoundedTensor, ShapeValue

_MOVING: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("Cast", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze"), (0,)
    ),
    "Where": (1, 2),
}
"""The inputs that an operator moves, by operator; Concat moves all."""


def compute_shape_values(call: Call, compute: Compute) -> list[Operand]:
    """Compute a node that takes shapes with counts; `compute` takes arrays and bounded tensors."""
    shapes = call.values_of(ShapeValue)
    number, consumer = _CONSUMERS.get(call.node.operator, (0, None))
    results = None
    if consumer is not None and set(shapes) == {number}:
        count = _only_count(shapes[number])
        results = None if count is None else consumer(BoundedNode(call, compute), *count)
    if results is None:
        results = _moved(call, compute, shapes)
    if results is None and call.node.operator == "Equal":
        results = _compared(call, shapes)
    return results or compute(call.with_values({n: each.array for n, each in shapes.items()}))


def _moved(call: Call, compute: Compute, shapes: Mapping[int, ShapeValue]) -> list[Operand] | None:
    """Move elements and codes; None for casts but to INT64, computed parts, other operators."""
    moving = _MOVING.get(call.node.operator, ())
    if call.node.operator == "Concat":
        moving = tuple(range(len(call.inputs)))
    is_narrowed = call.node.operator == "Cast" and call.node.attributes.get("to") != 7  # INT64
    if not set(shapes) <= set(moving) or is_narrowed:
        return None
    coded = call.with_values({n: each.codes for n, each in shapes.items()})
    if not all(each is None or each.is_constant for each in coded.inputs):
        return None
    counts = {code: pair for each in shapes.values() for code, pair in each.counts.items()}
    arrays = compute(call.with_values({n: each.array for n, each in shapes.items()}))
    return [
        Operand(array.type, ShapeValue.of(array.value, np.asarray(codes.value), counts))
        for array, codes in zip(arrays, compute(coded), strict=True)
    ]


def _compared(call: Call, shapes: Mapping[int, ShapeValue]) -> list[Operand] | None:
    """Compare counts with negative numbers for equality; None for others, which are unknown."""
    operands = [call.input(index) for index in (0, 1)]
    codes = [
        shapes[index].codes if index in shapes else np.asarray(operand.value)
        for index, operand in enumerate(operands)
        if index in shapes or operand.is_constant
    ]
    if len(codes) < 2:
        return None
    left, right = np.broadcast_arrays(*codes)
    is_count = [each < COUNT_CODE_LIMIT for each in (left, right)]
    is_unknown = (is_count[0] & (is_count[1] | (right >= 0))) | (is_count[1] & (left >= 0))
    return None if is_unknown.any() else [Operand("BOOL", left == right)]


def _only_count(shape: ShapeValue) -> tuple[int, AnyArray, Array] | None:
    """The index of the only count, the count, and the shape with its bound; None for several."""
    codes = shape.codes.reshape(-1)
    indices = np.flatnonzero(codes < COUNT_CODE_LIMIT)
    if len(indices) != 1:
        return None
    count, bound = shape.counts[int(codes[indices[0]])]
    bounds = np.where(codes < COUNT_CODE_LIMIT, bound, codes).reshape(shape.codes.shape)
    return int(indices[0]), count, bounds


_Consumer = Callable[[BoundedNode, int, AnyArray, Array], "list[Operand] | None"]
"""The function takes a node, and the index of the count, the count and the shape with its bound."""


def _constant(node: BoundedNode, index: int, count: AnyArray, bounds: Array) -> list[Operand]:
    return node.compute_rows(node.call.with_values({0: bounds}), index, count)


def _expanded(
    node: BoundedNode, index: int, count: AnyArray, bounds: Array
) -> list[Operand] | None:
    """Expand a tensor with one element along the rows, or with the same rows."""
    operand, value = node.call.input(0), node.call.input(0).value
    rank = max(len(operand.shape), bounds.size)
    axis = rank - bounds.size + index
    own = axis - (rank - len(operand.shape))
    if isinstance(value, BoundedTensor):
        if value.count is not count or value.axis != own:
            return None
        value = value.value
    elif own >= 0 and operand.shape[own] != 1:
        return None
    return node.compute_rows(node.call.with_values({0: value, 1: bounds}), axis, count)


def _reshaped(
    node: BoundedNode, index: int, count: AnyArray, bounds: Array
) -> list[Operand] | None:
    """Reshape a tensor with the same rows, with as many elements in front of them."""
    value = node.call.input(0).value
    if not isinstance(value, BoundedTensor) or value.count is not count:
        return None
    (result,) = node.compute(node.call.with_values({0: value.value, 1: bounds}))
    before = math.prod(value.shape[: value.axis])
    if math.prod(result.shape[:index]) != before or result.shape[index] != value.shape[value.axis]:
        return None
    return [node.operand(result, index, count)]


def _range(node: BoundedNode, index: int, count: AnyArray, bounds: Array) -> list[Operand] | None:
    """Number the rows from 0 to the count in steps of 1."""
    if node.constant(0) != [0] or node.constant(2) != [1]:
        return None
    return node.compute_rows(node.call.with_values({1: bounds}), 0, count)


_CONSUMERS: dict[str, tuple[int, _Consumer]] = {
    "ConstantOfShape": (0, _constant),
    "Expand": (1, _expanded),
    "Range": (1, _range),
    "Reshape": (1, _reshaped),
}
"""The input that is a shape, and the function that computes the operator."""
