"""``reverse`` as gathers of decreasing positions; of dynamic shapes, as a loop nest.

Symptom: IREE refuses ``reverse`` of narrow integers (all targets).
Cause: IREE 3.13 emits a loop over a decreasing indexing map; its verifier reports the map as out of
bounds.
Test: ``reverse`` has none of its own; the forms are in tests/test_stablehlo_rare_forms.py and
`test_reversals` in tests/test_dynamic_data_movement.py.

Before::

    %r = stablehlo.reverse %x, dims = [1] : tensor<3x4xi4>

After::

    %i = stablehlo.constant dense<[3, 2, 1, 0]> : tensor<4xi32>
    %r = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [0], ...>}

Source: StableHLO specification, ``reverse``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...emit import linalg, stablehlo
from .loop_nests import dim_size, elements_nest, index_scalar, is_static
from .unsigned_integers import bits_as, signless


def expand_reverse(op: Operation) -> Value:
    """Rewrite a ``reverse`` as gathers."""
    axes = [int(axis) for axis in op.attributes["dimensions"]]
    return reversed_along(op.operands[0], axes)


def reversed_along(operand: Value, axes: Sequence[int]) -> Value:
    """Reverse the order along axes; static axes of one element are skipped."""
    if not is_static(operand):
        return _read_backward(operand, axes)
    shape = [int(size) for size in operand.type.shape]
    for axis in axes:
        if shape[axis] < 2:
            continue
        positions = np.arange(shape[axis], dtype=np.int32)[::-1]
        operand = stablehlo.gather(
            operand,
            stablehlo.constant(positions, ir.IntegerType.get_signless(32)),
            operand.type,
            [1 if other == axis else size for other, size in enumerate(shape)],
            offsets=[other for other in range(len(shape)) if other != axis],
            axis=axis,
            index_axis=1,
        )
    return operand


def _read_backward(operand: Value, axes: Sequence[int]) -> Value:
    """The reversal of a dynamic shape: a loop nest that reads axes from their ends."""
    source = bits_as(operand, signless(operand.type))
    rank = source.type.rank
    sizes = [dim_size((source, axis)) for axis in range(rank)]
    lasts = {axis: index_scalar(linalg.dim(source, axis)) - 1 for axis in axes}

    def element() -> Value:
        positions = [index_scalar(linalg.loop_index(axis)) for axis in range(rank)]
        for axis, last in lasts.items():
            positions[axis] = last - positions[axis]
        return linalg.extract(source, [position.value for position in positions])

    return bits_as(elements_nest(sizes, source.type, element), operand.type)
