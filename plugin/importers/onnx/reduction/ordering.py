"""Operators that order elements or accumulate along an axis: TopK, ArgMax, CumSum, CumProd.

Equal elements have the order of their indices, as in ONNX Runtime. Keys are signed
integers or floats, so that one comparison serves every type.

Sources: ONNX, TopK 24, ArgMax 13, ArgMin 13, CumSum 14, CumProd 26.
"""

from __future__ import annotations

import math

import numpy as np

from ....numerics.array_functions import convert
from ....numerics.element_types import I64, AnyArray
from ....numerics.ordering import cumulative, greatest_first, ordered_keys, take_in_rows
from ..call import Call, Operand, importer
from ..elementwise.float_operands import along_axis


def _reversed(keys: AnyArray) -> AnyArray:
    """Return keys in the opposite order; integers cannot overflow."""
    return -keys if keys.dtype.kind == "f" else ~keys


@importer("TopK")
def top_k(call: Call) -> list[Operand]:
    """TopK-24: the K greatest or least elements along an axis, and their indices."""
    operand, value = call.input(0), call.array(0)
    shape, count = value.shape, int(call.constant_scalar(1))
    axis = call.axis("axis", len(shape), -1)
    is_largest = bool(call.attribute("largest", 1))
    call.attribute("sorted", 1)  # any order is right where it is 0
    if not 0 <= count <= shape[axis]:
        raise call.error(f"takes {count} of {shape[axis]} elements")
    last = [a for a in range(len(shape)) if a != axis] + [axis]
    moved = value.transpose(*last)
    result_shape = (*moved.shape[:-1], count)
    if not math.prod(result_shape):
        empty = tuple(count if a == axis else n for a, n in enumerate(shape))
        return [
            Operand(operand.type, np.zeros(empty, value.dtype)),
            Operand("INT64", np.zeros(empty, np.int64)),
        ]
    rows = moved.reshape((-1, shape[axis]))
    keys = ordered_keys(rows) if is_largest else _reversed(ordered_keys(rows))
    if keys.dtype.kind == "f":
        keys = np.where(keys == keys, keys, np.asarray(-np.inf, keys.dtype))
    positions = greatest_first(keys, count)
    best = take_in_rows(rows, positions)
    back = np.argsort(last).tolist()
    return [
        Operand(operand.type, best.reshape(result_shape).transpose(*back)),
        Operand("INT64", convert(positions, I64).reshape(result_shape).transpose(*back)),
    ]


@importer("ArgMax", "ArgMin")
def arg_extremum(call: Call) -> Operand:
    """ArgMax-13, ArgMin-13: the first or last index of the extremum; NaN is one."""
    value = call.array(0)
    axis = call.axis("axis", value.ndim, 0)
    size = value.shape[axis]
    is_last, keeps = call.attribute("select_last_index", 0), call.attribute("keepdims", 1)
    if not size:
        raise call.error("has no elements along its axis")
    keys = ordered_keys(value)
    if call.node.operator == "ArgMin":
        keys = _reversed(keys)
    is_best = keys == keys.max(axis=axis, keepdims=True)
    if keys.dtype.kind == "f":
        is_best = is_best | (keys != keys)
    positions = along_axis(np.arange(size, dtype=np.int32), axis, value.ndim)
    if is_last:
        chosen = np.where(is_best, positions, np.int32(-1))
        index = chosen.max(axis=axis, keepdims=bool(keeps))
    else:
        chosen = np.where(is_best, positions, np.int32(size - 1))
        index = chosen.min(axis=axis, keepdims=bool(keeps))
    return Operand("INT64", convert(index, I64))


@importer("CumSum", "CumProd")
def cumulative_operator(call: Call) -> Operand:
    """CumProd-26, CumSum-14: sums or products of the elements up to each position."""
    value = call.array(0)
    axis = call.checked_axis(int(call.constant_scalar(1)), value.ndim)
    result = cumulative(
        value,
        axis,
        "add" if call.node.operator == "CumSum" else "multiply",
        is_exclusive=bool(call.attribute("exclusive", 0)),
        is_reversed=bool(call.attribute("reverse", 0)),
    )
    return call.typed(result)
