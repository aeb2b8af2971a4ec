"""``broadcast_in_dim`` whose operand has its axes in another order than the result.

Symptom: elements are at wrong indices; three axes in a cycle, without an error if they have one
size (all targets).
Cause: IREE 3.13 rewrites a ``broadcast_in_dim`` that keeps the rank as a transposition by
``broadcast_dimensions``, which is the inverse permutation.
Test: `test_elements_are_still_at_wrong_indices` in tests/test_iree_limits_numbers.py.

The operand is transposed first, so that ``broadcast_dimensions`` are increasing.

Source: StableHLO specification, ``broadcast_in_dim``.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation
from ...emit import stablehlo
from ...emit.operation import attributes_of, integers
from ..base import NoMatch, Replacement


def order_broadcast(op: Operation) -> Replacement:
    """Transpose the operand of a broadcast whose axes are not in the order of the result's."""
    axes = [int(axis) for axis in op.attributes["broadcast_dimensions"]]
    order = sorted(range(len(axes)), key=axes.__getitem__)
    if order == list(range(len(axes))):
        return NoMatch("keeps the order of the axes")
    operand = stablehlo.transpose(op.operands[0], order)
    result = op.results[0].type
    if operand.type == result:
        return operand
    attributes = {**attributes_of(op), "broadcast_dimensions": integers(sorted(axes))}
    return emit.value(op.name, [operand], result, attributes)
