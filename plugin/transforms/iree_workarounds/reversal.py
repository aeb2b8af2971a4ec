"""Reversals as gathers of decreasing positions, and of dynamic shapes as loop nests.

IREE refuses ``reverse`` of narrow integers: it becomes a loop over a decreasing map, which its
verifier takes for out of bounds.

Source: StableHLO specification, ``reverse``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import emit
from ...core._mlir import Operation, Rewriter, Value, ir
from ...emit import linalg, stablehlo
from ...emit.operation import INDEX
from .dynamic_contractions import extent_of
from .unsigned_integers import bits_as, signless

__all__ = ["expand_reverse", "reversed_along"]


def expand_reverse(op: Operation, rewriter: Rewriter) -> None:
    """Write a ``reverse`` as gathers."""
    axes = [int(axis) for axis in op.attributes["dimensions"]]
    operand = op.operands[0]
    rewriter.replace_op(op, [reversed_along(operand, axes)])


def reversed_along(operand: Value, axes: Sequence[int]) -> Value:
    """Reverse the order along axes; nothing is written for static ones of one element."""
    if not operand.type.has_static_shape:
        return _read_backward(operand, axes)
    shape = [int(extent) for extent in operand.type.shape]
    for axis in axes:
        if shape[axis] < 2:
            continue
        others = [other for other in range(len(shape)) if other != axis]
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


def _read_backward(operand: Value, axes: Sequence[int]) -> Value:
    """The reversal of a dynamic shape: a loop nest that reads axes from their ends."""
    source = bits_as(operand, signless(operand.type))
    rank = source.type.rank
    extents = [extent_of((source, axis)) for axis in range(rank)]
    lasts = {axis: emit.scalar(linalg.dim(source, axis), INDEX) - 1 for axis in axes}

    def element(_: Value) -> Value:
        positions = [emit.scalar(linalg.loop_index(axis), INDEX) for axis in range(rank)]
        for axis, last in lasts.items():
            positions[axis] = last - positions[axis]
        return linalg.extract(source, [position.value for position in positions])

    output = linalg.empty(extents, source.type.element_type, source.type.encoding)
    backward = linalg.generic([], output, [linalg.identity_map(rank)], element)
    return bits_as(backward, operand.type)
