"""Handlers of operators that combine rows of a bounded tensor: reductions, Softmax, TopK, Div.

The padding gets a number that changes no result, such as the neutral element of a reduction.

Source: ONNX, "Operator Schemas", operator set 28.
"""

from __future__ import annotations

import math

import numpy as np

from ....numerics.element_types import AnyArray, DType
from ..call import Operand
from .bounded_node import BoundedNode, handles
from .bounded_operators import elementwise

_NEUTRAL = {"ReduceL1": 0, "ReduceL2": 0, "ReduceProd": 1, "ReduceSum": 0, "ReduceSumSquare": 0}
"""The neutral elements of reductions, by operator."""


@handles("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
         "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")  # fmt: skip
def _reduced(node: BoundedNode) -> list[Operand] | None:
    """Reduce valid rows or other axes; None for computed axes, or without a neutral element."""
    tensor, axes = node.tensors.get(0), node.constant(1)
    if tensor is None or len(node.tensors) > 1 or (axes is None and node.has(1)):
        return None
    rank, operator = len(tensor.shape), node.call.node.operator
    is_identity = not axes and bool(node.attribute("noop_with_empty_axes", 0))
    reduced = {axis % rank for axis in axes or (() if is_identity else range(rank))}
    if tensor.axis not in reduced:
        keeps = node.attribute("keepdims", 1)
        removed = 0 if keeps else sum(axis < tensor.axis for axis in reduced)
        return node.compute_rows(node.with_arrays(), tensor.axis - removed, tensor.count)
    if operator == "ReduceMean" and tensor.dtype in (np.float32, np.float64):
        call = node.with_padding(np.zeros((), tensor.dtype))
        (total,) = call.apply("ReduceSum", call.inputs, **node.call.node.attributes)
        node.read_all()
        static = math.prod(tensor.shape[axis] for axis in reduced if axis != tensor.axis)
        number = np.maximum(tensor.count, np.int32(1)) * np.int32(static)  # of no rows: 0
        return [Operand(total.type, total.value / number.astype(tensor.dtype))]
    dtype = np.dtype(tensor.dtype)
    if operator in _NEUTRAL:
        return node.compute(node.with_padding(np.asarray(_NEUTRAL[operator], dtype)))
    if operator not in ("ReduceMax", "ReduceMin") or dtype.kind not in "iuf":
        return None
    last = _last_element(dtype, is_greatest_first=operator == "ReduceMax")
    return node.compute(node.with_padding(last))


def _last_element(dtype: DType, *, is_greatest_first: bool) -> AnyArray:
    """Return the least element of a type, or the greatest one where the least is first."""
    if dtype.kind == "f":
        return np.asarray(-math.inf if is_greatest_first else math.inf, dtype)
    info = np.iinfo(dtype)
    return np.asarray(info.min if is_greatest_first else info.max, dtype)


@handles("CumSum", "LogSoftmax", "Softmax")
def _along_rows(node: BoundedNode) -> list[Operand] | None:
    """Pad rows with minus infinity, or 0 for CumSum; None for computed or other axes.

    A rule decides about other axes.
    """
    tensor, is_sum = node.tensors.get(0), node.call.node.operator == "CumSum"
    axes = node.constant(1) if is_sum else [node.axis(-1)]
    if tensor is None or not axes or axes[0] % len(tensor.shape) != tensor.axis:
        return None
    lowest = _last_element(tensor.dtype, is_greatest_first=True)
    call = node.with_padding(np.zeros((), tensor.dtype) if is_sum else lowest)
    return node.compute_rows(call, tensor.axis, tensor.count)


@handles("TopK", "ArgMax", "ArgMin")
def _greatest(node: BoundedNode) -> list[Operand] | None:
    """Take the first valid rows; None along others, for booleans, last indices, bodies, computed K.

    A call fails that has fewer rows than are taken.
    """
    tensor, operator = node.tensors.get(0), node.call.node.operator
    if tensor is None or len(node.tensors) > 1 or tensor.dtype.kind not in "iuf":
        return None
    number = node.constant(1) if operator == "TopK" else [1]
    is_last = bool(node.attribute("select_last_index", 0))
    if node.axis(-1 if operator == "TopK" else 0) != tensor.axis or not number or is_last:
        return None
    is_greatest_first = operator == "ArgMax" or (
        operator == "TopK" and bool(node.attribute("largest", 1))
    )
    if node.call.is_inner:
        return None
    node.call.graph.check(
        tensor.count >= np.int32(number[0]), f"{node.call.node} takes {number[0]} of fewer rows"
    )
    last = _last_element(tensor.dtype, is_greatest_first=is_greatest_first)
    return node.compute(node.with_padding(last))


@handles("Div", "Mod")
def _divided(node: BoundedNode) -> list[Operand] | None:
    """Divide integers by 1 in the padding, as 0 ends a program; None for floats, unlike counts."""
    tensor = node.tensors.get(1)
    if tensor is None or tensor.dtype.kind not in "iu":
        return None
    axis = elementwise(node)
    if axis is None or not node.has_one_count:
        return None
    divisor = np.where(tensor.is_valid_row(), tensor.value, np.ones((), tensor.dtype))
    return node.compute_rows(node.with_arrays({1: divisor}), axis, tensor.count)
