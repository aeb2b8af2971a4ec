"""Attributes of StableHLO's windows, dots and sorts, with the defaults of absent ones; bodies."""

from __future__ import annotations

import numpy as np

from ..core._mlir import Operation, stablehlo
from ..numerics.element_types import Array

Axes = tuple[list[int], list[int]]
"""Axes of the left and of the right operand."""
Loops = tuple[list[int], list[int], list[int]]
"""The loop that indexes each axis of the left operand, of the right one, and of the result."""


def dot_axes(op: Operation) -> tuple[Axes, Axes]:
    """The contracted axes and the batch axes of a ``dot`` or ``dot_general``."""
    if op.name == "stablehlo.dot":
        return ([len(op.operands[0].type.shape) - 1], [0]), ([], [])
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    return (
        (list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)),
        (list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)),
    )


def free_axes(op: Operation) -> tuple[list[int], list[int]]:
    """The axes of both operands of a ``dot`` or ``dot_general`` that only one of them has."""
    contracted, batch = dot_axes(op)
    left, right = (
        [axis for axis in range(value.type.rank) if axis not in (*own, *shared)]
        for value, own, shared in zip(op.operands, contracted, batch, strict=True)
    )
    return left, right


def dot_loops(op: Operation) -> tuple[Loops, int]:
    """The loops of a ``dot`` or ``dot_general``, and their number.

    They are the result's axes, then the contracted ones in their order.
    """
    contracted, batch = dot_axes(op)
    ranks = [value.type.rank for value in op.operands]
    free = free_axes(op)
    result_rank = len(batch[0]) + len(free[0]) + len(free[1])
    sides = []
    for side, rank in enumerate(ranks):
        first = len(batch[0]) + (len(free[0]) if side else 0)
        loop_of = {axis: position for position, axis in enumerate(batch[side])}
        loop_of |= {axis: first + position for position, axis in enumerate(free[side])}
        loop_of |= {axis: result_rank + position for position, axis in enumerate(contracted[side])}
        sides.append([loop_of[axis] for axis in range(rank)])
    return (sides[0], sides[1], list(range(result_rank))), result_rank + len(contracted[0])


def window_steps(op: Operation, name: str, count: int) -> list[int]:
    """Strides or dilations along `count` spatial dimensions; 1 where they are left out."""
    if name not in op.attributes:
        return [1] * count
    return [int(step) for step in op.attributes[name]]


def window_padding(op: Operation, count: int) -> Array:
    """A convolution's padding: (low, high) for each of `count` spatial dimensions."""
    padding = np.zeros((count, 2), np.int64)
    if "padding" in op.attributes:
        padding += np.array(op.attributes["padding"]).reshape(-1, 2)
    return padding


def sorted_axis(op: Operation) -> int:
    """The axis of a ``sort``, from the first one; 0 for a scalar."""
    written = int(op.attributes["dimension"].value) if "dimension" in op.attributes else -1
    return written % max(int(op.operands[0].type.rank), 1)


def has_reversal(op: Operation) -> bool:
    """True for a convolution that reads its kernel backwards along an axis."""
    name = "window_reversal"
    return name in op.attributes and any(op.attributes[name])


def reducing_operation(op: Operation) -> str | None:
    """The name of the operation that a reduction's body applies to its two arguments.

    None for a body of several operations.
    """
    body = op.regions[0].blocks[0]
    operations = [each.operation for each in body.operations]
    if len(operations) != 2:
        return None
    first, returned = operations
    is_returned = list(returned.operands) == list(first.results)
    return first.name if is_returned and set(first.operands) == set(body.arguments) else None


def pad_amounts(op: Operation) -> tuple[Array, Array, Array]:
    """The low, high and interior padding of each axis of a ``pad``."""
    low, high, interior = (
        np.array(op.attributes[name], np.int64)
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    return low, high, interior


def edge_padding(extent: int, before: int, after: int) -> tuple[int, int]:
    """The padding of an axis, which cuts at most all there is: then no window fits."""
    return (0, -extent) if extent + before + after <= 0 else (before, after)
