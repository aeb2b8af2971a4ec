"""Pooling between kernels, in their layout: with the channels last.

Kernels read and write images as NHWC. ONNX and PyTorch have images as NCHW, so a call is between
transposes; IREE moves those through elementwise operations, and two of them cancel. It moves none
through a ``reduce_window``, and vectorizes one along the channels only if they are last. Before::

    %t = stablehlo.transpose %x, dims = [0, 3, 1, 2] : ... -> tensor<1x64x56x56xf32>
    %y = "stablehlo.reduce_window"(%t, %init) <{window_dimensions = array<i64: 1, 1, 2, 2>, ...}>
         : (tensor<1x64x56x56xf32>, tensor<f32>) -> tensor<1x64x28x28xf32>

After::

    %t = stablehlo.transpose %x, dims = [0, 3, 1, 2] : ... -> tensor<1x64x56x56xf32>
    %u = stablehlo.transpose %t, dims = [0, 2, 3, 1] : ... -> tensor<1x56x56x64xf32>
    %v = "stablehlo.reduce_window"(%u, %init) <{window_dimensions = array<i64: 1, 2, 2, 1>, ...}>
         : (tensor<1x56x56x64xf32>, tensor<f32>) -> tensor<1x28x28x64xf32>
    %y = stablehlo.transpose %v, dims = [0, 3, 1, 2] : ... -> tensor<1x64x28x28xf32>
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.windows import window_padding, window_steps
from ...emit import like
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import dense, integers, mlir_type, producer_of, tensor_type
from ...kernels.epilogue.matcher import OPERATIONS
from ...numerics.element_types import I64
from ..base import named

_TRANSPOSE, _PAD = "stablehlo.transpose", "stablehlo.pad"
_KEEPS_LAYOUT = (*OPERATIONS, _PAD, "stablehlo.divide")
"""Operations that IREE moves a transpose through."""
_STEPS = ("window_dimensions", "window_strides", "window_dilations", "base_dilations")
_MIN_CHANNELS = 8
"""With fewer channels IREE's windows of NHWC are not faster."""


def pool_channels_last(module: Operation) -> None:
    """Rewrite each ``reduce_window`` whose operand or result a kernel has in another layout."""
    for op in named(module, ["stablehlo.reduce_window"]):
        if len(op.operands) != 2 or not op.operands[0].type.has_static_shape:
            continue
        order = _layout(op)
        windows = window_steps(op, "window_dimensions", op.operands[0].type.rank)
        if order is None or windows[-1] == 1 or windows[order[-1]] > 1:
            continue
        if int(op.operands[0].type.shape[order[-1]]) < _MIN_CHANNELS:
            continue
        with ir.InsertionPoint(op), op.location:
            result = _transposed(op, order)
        op.results[0].replace_all_uses_with(result)
        op.erase()


def _layout(op: Operation) -> list[int] | None:
    """The order of the operand's axes in which a kernel has the operand or the result, or None."""
    pending, seen = [op.operands[0]], set[Value]()
    while pending:
        value = pending.pop()
        producer = producer_of(value)
        if producer is None or value in seen:
            continue
        seen.add(value)
        if producer.name == _TRANSPOSE:
            return [int(axis) for axis in np.argsort(_permutation(producer))]
        if producer.name in _KEEPS_LAYOUT:
            pending += [each for each in producer.operands if each.type.rank == value.type.rank]
    pending = [op.results[0]]
    while pending:
        for user in [use.owner.operation for use in pending.pop().uses]:
            if user.name == _TRANSPOSE:
                return _permutation(user)
            if user.name in _KEEPS_LAYOUT:
                pending.append(user.results[0])
    return None


def _permutation(op: Operation) -> list[int]:
    return [int(axis) for axis in op.attributes["permutation"]]


def _transposed(op: Operation, order: Sequence[int]) -> Value:
    """Emit the operation on an operand with its axes in another order; return its result."""
    operand, initial = op.operands
    rank = operand.type.rank
    attributes = {
        name: integers([window_steps(op, name, rank)[axis] for axis in order]) for name in _STEPS
    }
    attributes["padding"] = dense(window_padding(op, rank)[list(order)], mlir_type(I64))
    type_ = op.results[0].type
    result = tensor_type([int(type_.shape[axis]) for axis in order], type_.element_type)
    moved = emit_stablehlo.transpose(operand, order)
    pooled = like(op, [moved, initial], [result], attributes, take_bodies=True)
    return emit_stablehlo.transpose(pooled.results[0], [int(axis) for axis in np.argsort(order)])
