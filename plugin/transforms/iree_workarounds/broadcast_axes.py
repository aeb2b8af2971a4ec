"""Broadcasts that keep the order of the operand's axes.

IREE takes a ``broadcast_in_dim`` of as many axes for a transposition by ``broadcast_dimensions``,
and that is the inverse one: three axes in a cycle go to the wrong places, without an error where
they are of one extent. Here the operand is transposed before.

Source: StableHLO specification, ``broadcast_in_dim``.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Rewriter
from ...emit import stablehlo
from ...emit.operation import attributes_of, integers
from ..base import NoMatch

__all__ = ["order_broadcast"]


def order_broadcast(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Transpose the operand of a broadcast whose axes are not in the order of the result's."""
    axes = [int(axis) for axis in op.attributes["broadcast_dimensions"]]
    order = sorted(range(len(axes)), key=axes.__getitem__)
    if order == list(range(len(axes))):
        return NoMatch("keeps the order of the axes")
    operand = stablehlo.transpose(op.operands[0], order)
    result = op.results[0].type
    places = sorted(axes)
    if operand.type == result:
        rewriter.replace_op(op, [operand])
        return None
    attributes = {**attributes_of(op), "broadcast_dimensions": integers(places)}
    rewriter.replace_op(op, [emit.value(op.name, [operand], result, attributes)])
    return None
