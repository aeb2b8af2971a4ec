"""``dynamic_broadcast_in_dim`` as a loop nest with the sizes that the shape was made of.

Symptom: IREE refuses an operand axis that may or may not have one element that is repeated, and the
operation itself where loops are written before IREE reads the program (all targets).
Cause: the shape is a tensor of ``index``, which must not cross a dispatch in IREE 3.13.
``tensor.dim`` of the values that the shape was made of may.
Test: none; `test_dimensions_that_expand_at_run_time` in tests/test_dynamic_shapes.py covers it.

An axis of unknown expansion is read at ``min(index, size - 1)``::

    %0 = tensor.dim %x, 0
    %1 = linalg.generic (i, j) {
      tensor.extract %x[min(i, %0 - 1)]
    }
"""

from __future__ import annotations

import numpy as np

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.dense import array_of_dense
from ...emit import linalg
from ...emit.operation import INDEX
from ..base import producer_of
from .unsigned_integers import bits_as, signless


def expand_dynamic_broadcast(op: Operation) -> Value:
    """Rewrite a broadcast as a loop nest, of the bits of unsigned integers."""
    operand, shape = op.operands
    operand = bits_as(operand, signless(operand.type))
    source, target = operand.type, signless(op.results[0].type)
    rank = len(target.shape)
    sizes = [
        entry_of_shape(shape, axis) if target.is_dynamic_dim(axis) else int(target.shape[axis])
        for axis in range(rank)
    ]
    output = linalg.empty(sizes, target.element_type, target.encoding)
    axes = [int(axis) for axis in op.attributes["broadcast_dimensions"]]
    repeated = _axes_of(op, "known_expanding_dimensions")
    repeated |= {axis for axis, size in enumerate(source.shape) if int(size) == 1}
    whole = _axes_of(op, "known_nonexpanding_dimensions")
    whole |= {axis for axis in range(source.rank) if not source.is_dynamic_dim(axis)}
    if repeated | whole >= set(range(source.rank)):
        positions = [
            ir.AffineExpr.get_constant(0) if number in repeated else ir.AffineExpr.get_dim(axis)
            for number, axis in enumerate(axes)
        ]
        result = linalg.generic(
            [operand],
            output,
            [ir.AffineMap.get(rank, 0, positions), linalg.identity_map(rank)],
            lambda element, _: element,
        )
    else:
        ends = [emit.scalar(linalg.dim(operand, number)) - 1 for number in range(source.rank)]

        def element(_: Value) -> Value:
            indices = [emit.scalar(linalg.loop_index(axis)) for axis in axes]
            return linalg.extract(
                operand,
                [np.minimum(index, end).value for index, end in zip(indices, ends, strict=True)],
            )

        result = linalg.generic([], output, [linalg.identity_map(rank)], element)
    return bits_as(result, op.results[0].type)


def _axes_of(op: Operation, attribute: str) -> set[int]:
    """The axes of the operand that an optional attribute lists."""
    return {int(axis) for axis in op.attributes[attribute]} if attribute in op.attributes else set()


def entry_of_shape(shape: Value, axis: int) -> Value:
    """One entry of a shape tensor as an index, traced through the ops that made the tensor."""
    tensor, position = shape, axis
    while (owner := producer_of(tensor)) is not None:
        if owner.name == "stablehlo.concatenate":
            for operand in owner.operands:
                size = int(operand.type.shape[0])
                if position < size:
                    tensor = operand
                    break
                position -= size
        elif owner.name == "stablehlo.reshape" and tensor.type.shape == [1]:
            tensor = owner.operands[0]
        elif owner.name == "stablehlo.get_dimension_size":
            return linalg.dim(owner.operands[0], int(owner.attributes["dimension"].value))
        elif owner.name == "stablehlo.constant":
            numbers = array_of_dense(owner.attributes["value"]).reshape(-1)
            return linalg.constant_index(int(numbers[position]))
        else:
            break
    rank = len(tensor.type.shape)  # of one element, if it is not 1
    indices = [linalg.constant_index(position if rank == 1 else 0) for _ in range(rank)]
    return emit.scalar(linalg.extract(tensor, indices)).convert(INDEX).value
