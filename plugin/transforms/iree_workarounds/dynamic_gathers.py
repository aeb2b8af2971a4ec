"""``gather`` of dynamic shapes, as a loop nest that reads each element of the result.

IREE 3.13 refuses a ``gather`` whose index vectors are an axis of one element beside dynamic ones:
it makes a reshape of them. It reads out of bounds where an index says so. The loop nest clamps::

    %r = "stablehlo.gather"(%w, %i) {dimension_numbers = #stablehlo.gather<
        offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
        slice_sizes = array<i64: 1, 16>} : (tensor<12x16xf32>, tensor<?x1xi32>) -> tensor<?x16xf32>

becomes ::

    %r = linalg.generic (a, b) {
      %start = tensor.extract %i[a, 0]
      %clamped = min(max(%start, 0), 11)
      %element = tensor.extract %w[%clamped, b]
    }

Source: StableHLO specification, ``gather``.
"""

from __future__ import annotations

import numpy as np

from ... import emit
from ...core._mlir import Operation, Rewriter, Value
from ...core._mlir import stablehlo as bindings
from ...emit import Formula, linalg
from ...emit.operation import INDEX
from ..base import NoMatch
from .dynamic_contractions import extent_of
from .index_bounds import as_signed
from .unsigned_integers import bits_as, signless

__all__ = ["expand_gather"]


def expand_gather(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Write a ``gather`` of a dynamic shape as a loop nest."""
    if all(value.type.has_static_shape for value in (*op.operands, *op.results)):
        return NoMatch("has a static shape")
    numbers = bindings.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    operand = bits_as(op.operands[0], signless(op.operands[0].type))
    indices = as_signed(op.operands[1])
    target = signless(op.results[0].type)
    sizes = [int(size) for size in op.attributes["slice_sizes"]]
    offset_dims, mapped = list(numbers.offset_dims), list(numbers.start_index_map)
    batching = list(numbers.operand_batching_dims)
    vector = int(numbers.index_vector_dim)
    batch_dims = [axis for axis in range(target.rank) if axis not in offset_dims]
    index_axes = [axis for axis in range(indices.type.rank) if axis != vector]
    whole = [
        axis
        for axis in range(operand.type.rank)
        if axis not in numbers.collapsed_slice_dims and axis not in batching
    ]
    extents: list[linalg.Extent] = [0] * target.rank
    for dim, axis in zip(offset_dims, whole, strict=True):
        extents[dim] = sizes[axis]
    for dim, axis in zip(batch_dims, index_axes, strict=True):
        extents[dim] = extent_of((indices, axis), (op.results[0], dim))
    lasts = [
        emit.scalar(linalg.dim(operand, axis), INDEX) - sizes[axis]
        for axis in range(operand.type.rank)
    ]

    def element(_: Value) -> Value:
        of_batch = [linalg.loop_index(dim) for dim in batch_dims]
        positions: list[Formula] = [0] * operand.type.rank
        for component, axis in enumerate(mapped):
            index = list(of_batch)
            if vector < indices.type.rank:
                index.insert(vector, linalg.constant_index(component))
            start = emit.scalar(linalg.extract(indices, index)).convert(INDEX)
            positions[axis] = np.maximum(np.minimum(start, lasts[axis]), 0)
        for axis, other in zip(batching, numbers.start_indices_batching_dims, strict=True):
            positions[axis] = emit.scalar(of_batch[index_axes.index(other)], INDEX)
        for dim, axis in zip(offset_dims, whole, strict=True):
            positions[axis] = emit.scalar(linalg.loop_index(dim), INDEX) + positions[axis]
        return linalg.extract(
            operand,
            [
                linalg.constant_index(each) if isinstance(each, int) else each.value
                for each in positions
            ],
        )

    output = linalg.empty(extents, target.element_type, target.encoding)
    gathered = linalg.generic([], output, [linalg.identity_map(target.rank)], element)
    rewriter.replace_op(op, [bits_as(linalg.cast(gathered, target), op.results[0].type)])
    return None
