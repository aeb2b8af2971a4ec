"""Shapes that are computed from a count: of Reshape, Expand, ConstantOfShape and Range.

`ShapeValue` (in `bounded`) is a vector of integers of which some are counts of rows: an array of
the program, and codes, which are the known elements and a number below `COUNT_CODE_LIMIT` for each
count. Operators that move elements move the codes, too, so that a tensor of such a shape is one
with a counted axis. Every other operator takes the array, which is right: it has no padding. ::

    Shape(x: 8 x ? x 4)         -> [8, count, 4]
    Gather(that, [1])           -> [count]
    Concat(that, [1, 4])        -> [count, 1, 4]
    Expand(y: 1 x 4, that)      -> ? x 1 x 4

Source: ONNX, "Operator Schemas", operator set 28.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ....numerics.element_types import AnyArray, Array
from ..call import Call, Operand
from .bounded_tensor import COUNT_CODE_LIMIT, BoundedTensor, ShapeValue

__all__ = ["compute_shape_values", "has_shape_values"]

_MOVING: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("Cast", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze"), (0,)
    ),
    "Where": (1, 2),
}
"""Operators that move elements, and the inputs that they move; Concat moves all."""

Compute = Callable[[Call], list[Operand]]


def has_shape_values(call: Call) -> bool:
    """Return True if an input of a node is a shape that is computed from a count."""
    return any(each is not None and isinstance(each.value, ShapeValue) for each in call.inputs)


def compute_shape_values(call: Call, compute: Compute) -> list[Operand]:
    """Compute a node that takes shapes with counts.

    Args:
        call: the node, in the form of the newest operator set.
        compute: computes a node of arrays and tensors with a counted axis.
    """
    extents = {
        index: each.value
        for index, each in enumerate(call.inputs)
        if each is not None and isinstance(each.value, ShapeValue)
    }
    consumer = _CONSUMERS.get(call.node.operator)
    results = None if consumer is None else consumer(call, compute, extents)
    if results is None:
        results = _moved(call, compute, extents)
    if results is None and call.node.operator == "Equal":
        results = _compared(call, extents)
    return results or compute(_with(call, {n: each.array for n, each in extents.items()}))


def _with(call: Call, values: Mapping[int, AnyArray]) -> Call:
    """Return a node with other values of some inputs."""
    inputs = list(call.inputs)
    for index, value in values.items():
        operand = call.input(index)
        inputs[index] = Operand(operand.name, operand.type, value)
    return replace(call, inputs=inputs)


def _moved(call: Call, compute: Compute, extents: Mapping[int, ShapeValue]) -> list[Operand] | None:
    """Compute an operator that moves elements, on the array and on the codes."""
    moving = _MOVING.get(call.node.operator, ())
    if call.node.operator == "Concat":
        moving = tuple(range(len(call.inputs)))
    is_narrowed = call.node.operator == "Cast" and call.node.attributes.get("to") != 7  # INT64
    if not set(extents) <= set(moving) or is_narrowed:
        return None
    coded = _with(call, {n: each.codes for n, each in extents.items()})
    if not all(each is None or each.is_constant for each in coded.inputs):
        return None
    counts = {code: pair for each in extents.values() for code, pair in each.counts.items()}
    arrays = compute(_with(call, {n: each.array for n, each in extents.items()}))
    return [
        Operand("", array.type, ShapeValue.of(array.value, np.asarray(codes.value), counts))
        for array, codes in zip(arrays, compute(coded), strict=True)
    ]


def _compared(call: Call, extents: Mapping[int, ShapeValue]) -> list[Operand] | None:
    """Compare with negative numbers, which no count is: exporters ask for -1."""
    operands = [call.input(index) for index in (0, 1)]
    codes = [
        extents[index].codes if index in extents else np.asarray(operand.value)
        for index, operand in enumerate(operands)
        if index in extents or operand.is_constant
    ]
    if len(codes) < 2:
        return None
    left, right = np.broadcast_arrays(*codes)
    is_count = [each < COUNT_CODE_LIMIT for each in (left, right)]
    is_unknown = (is_count[0] & (is_count[1] | (right >= 0))) | (is_count[1] & (left >= 0))
    if is_unknown.any():
        return None
    return [Operand("", "BOOL", left == right)]


# -- tensors of these shapes ----------------------------------------------------------------------

_Consumer = Callable[[Call, Compute, Mapping[int, ShapeValue]], "list[Operand] | None"]


def _only_count(extents: ShapeValue) -> tuple[int, AnyArray, Array] | None:
    """Return where the only count is, the count, and the extents with its bound."""
    codes = extents.codes.reshape(-1)
    places = np.flatnonzero(codes < COUNT_CODE_LIMIT)
    if len(places) != 1:
        return None
    count, bound = extents.counts[int(codes[places[0]])]
    bounds = np.where(codes < COUNT_CODE_LIMIT, bound, codes).reshape(extents.codes.shape)
    return int(places[0]), count, bounds


def _constant(call: Call, compute: Compute, extents: Mapping[int, ShapeValue]) -> Any:
    only = _only_count(extents[0])
    if only is None:
        return None
    place, count, bounds = only
    return [_counted(each, place, count) for each in compute(_with(call, {0: bounds}))]


def _counted(operand: Operand, axis: int, count: AnyArray) -> Operand:
    return Operand("", operand.type, BoundedTensor(operand.value, axis, count))


def _expanded(call: Call, compute: Compute, extents: Mapping[int, ShapeValue]) -> Any:
    """A tensor with one element along the counted axis, or with the same rows."""
    only = _only_count(extents[1]) if set(extents) == {1} else None
    if only is None:
        return None
    place, count, bounds = only
    operand, value = call.input(0), call.input(0).value
    rank = max(len(operand.shape), bounds.size)
    axis = rank - bounds.size + place
    own = axis - (rank - len(operand.shape))
    if isinstance(value, BoundedTensor):
        if value.count is not count or value.axis != own:
            return None
        value = value.value
    elif own >= 0 and operand.shape[own] != 1:
        return None
    return [_counted(each, axis, count) for each in compute(_with(call, {0: value, 1: bounds}))]


def _reshaped(call: Call, compute: Compute, extents: Mapping[int, ShapeValue]) -> Any:
    """A tensor with the same rows, which stay an axis behind as many elements."""
    only = _only_count(extents[1]) if set(extents) == {1} else None
    value = call.input(0).value
    if only is None or not isinstance(value, BoundedTensor) or value.count is not only[1]:
        return None
    place, count, bounds = only
    (result,) = compute(_with(call, {0: value.value, 1: bounds}))
    before = math.prod(value.shape[: value.axis])
    if math.prod(result.shape[:place]) != before or result.shape[place] != value.shape[value.axis]:
        return None
    return [_counted(result, place, count)]


def _range(call: Call, compute: Compute, extents: Mapping[int, ShapeValue]) -> Any:
    """The numbers of the rows: from 0 to the count in steps of 1."""
    only = _only_count(extents[1]) if set(extents) == {1} else None
    start, delta = call.input(0), call.input(2)
    if only is None or not start.is_constant or not delta.is_constant:
        return None
    if np.any(np.asarray(start.value) != 0) or np.any(np.asarray(delta.value) != 1):
        return None
    return [_counted(each, 0, only[1]) for each in compute(_with(call, {1: only[2]}))]


_CONSUMERS: dict[str, _Consumer] = {
    "ConstantOfShape": _constant,
    "Expand": _expanded,
    "Range": _range,
    "Reshape": _reshaped,
}
