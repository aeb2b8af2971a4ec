"""Reshapes between a contraction and the elementwise operations after it, moved behind these.

A kernel computes elementwise operations that follow a contraction directly. Programs flatten the
rows of a matrix product, and restore their axes in between::

    %y = stablehlo.reshape %product : (tensor<128x64xf32>) -> tensor<1x128x64xf32>
    %z = stablehlo.multiply %y, %splat : tensor<1x128x64xf32>

After::

    %z = stablehlo.multiply %product, %splat : tensor<128x64xf32>
    %y = stablehlo.reshape %z : (tensor<128x64xf32>) -> tensor<1x128x64xf32>
"""

from __future__ import annotations

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...emit import like
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import only_user, splat
from ...emit.parameters import ModuleGlobals
from ...kernels.epilogue.matcher import OPERATIONS, constant_grid

_RESHAPE = "stablehlo.reshape"


def sink_reshapes(product: Value, module_globals: ModuleGlobals) -> None:
    """Move reshapes behind the elementwise operations that read a result of a contraction.

    Operations are passed as long as each result has one reader, whose other operands are constants
    that are equal in all rows.
    """
    value = product
    while (op := only_user(value)) is not None:
        if op.name in OPERATIONS:
            value = op.results[0]
            continue
        follower = only_user(op.results[0]) if op.name == _RESHAPE else None
        if follower is None or len(follower.results) != 1:
            return
        result = _swap(value, op, follower, module_globals)
        if result is None:
            return
        value = result


def _swap(
    value: Value, reshape: Operation, follower: Operation, module_globals: ModuleGlobals
) -> Value | None:
    """Compute `follower` ahead of `reshape`, and return its result; None if it cannot be."""
    reshaped, result = reshape.results[0], follower.results[0]
    is_elementwise = follower.name in OPERATIONS or follower.name == _RESHAPE
    if not is_elementwise or not reshaped.type.has_static_shape:
        return None
    with ir.InsertionPoint(follower), follower.location:
        if follower.name == _RESHAPE:
            merged = like(reshape, [value], [result.type]).results[0]
            result.replace_all_uses_with(merged)
            follower.erase()
            reshape.erase()
            return value
        operands = []
        for operand in follower.operands:
            moved = value if operand == reshaped else _as_row(operand, reshape, module_globals)
            if moved is None:
                return None
            operands.append(moved)
        type_ = ir.RankedTensorType.get(value.type.shape, result.type.element_type)
        moved = like(follower, operands, [type_]).results[0]
        result.replace_all_uses_with(like(reshape, [moved], [result.type]).results[0])
        follower.erase()
        reshape.erase()
    return moved


def _as_row(operand: Value, reshape: Operation, module_globals: ModuleGlobals) -> Value | None:
    """A constant operand in the shape ahead of a reshape; None if it differs between rows."""
    shape = [int(size) for size in reshape.operands[0].type.shape]
    reshaped = [int(size) for size in reshape.results[0].type.shape]
    if not operand.type.rank:
        return operand
    grid = constant_grid(operand, reshaped, len(reshaped) - 1, module_globals)
    if grid is None or (grid.size > 1 and shape[-1:] != reshaped[-1:]):
        return None
    type_ = ir.RankedTensorType.get(shape, operand.type.element_type)
    if grid.size == 1:
        return emit_stablehlo.constant_of(splat(np.asarray(grid).item(), type_))
    row = emit_stablehlo.constant(grid.reshape(-1), operand.type.element_type)
    return emit_stablehlo.broadcast(row, type_, [len(shape) - 1])
