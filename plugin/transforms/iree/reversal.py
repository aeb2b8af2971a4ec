"""Reversals as gathers of decreasing positions.

IREE refuses ``reverse`` of narrow integers: it becomes a loop over a decreasing map, which its
verifier takes for out of bounds.

Source: StableHLO specification, ``reverse``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import emit
from ..._mlir import Operation, Rewriter, Value, ir
from ...emit import stablehlo
from ...emit.operation import integers, is_dynamic
from ..base import NoMatch

__all__ = ["expand_reverse", "reversed_along"]


def expand_reverse(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Write a ``reverse`` as gathers."""
    axes = [int(axis) for axis in op.attributes["dimensions"]]
    operand = op.operands[0]
    if any(operand.type.is_dynamic_dim(axis) for axis in axes):
        return NoMatch("reverses a dynamic dimension")
    rewriter.replace_op(op, [reversed_along(operand, axes)])
    return None


def reversed_along(operand: Value, axes: Sequence[int]) -> Value:
    """Reverse the order along static axes; nothing is written for those of one element.

    With another axis that is dynamic it is a ``reverse``: slices of a gather are static.
    """
    shape = [int(extent) for extent in operand.type.shape]
    for number, axis in enumerate(axes):
        if shape[axis] < 2:
            continue
        others = [other for other in range(len(shape)) if other != axis]
        if any(is_dynamic(shape[other]) for other in others):
            attributes = {"dimensions": integers(axes[number:])}
            return emit.value("stablehlo.reverse", [operand], operand.type, attributes)
        positions = np.arange(shape[axis], dtype=np.int32)[::-1]
        operand = stablehlo.gather(
            operand,
            stablehlo.constant(positions, ir.IntegerType.get_signless(32)),
            operand.type,
            [1 if other == axis else extent for other, extent in enumerate(shape)],
            offsets=others,
            axis=axis,
            index_axis=1,
        )
    return operand
