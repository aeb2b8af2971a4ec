"""``gather`` of dynamic shapes as a loop nest that reads each element of the result.

Symptom: IREE refuses index vectors of one component beside dynamic axes, and reads out of bounds
for an index out of bounds (all targets).
Cause: IREE 3.13 reshapes the index vectors, and refuses reshapes of dynamic shapes.
Test: `test_forms_that_are_still_refused` in tests/test_iree_limits.py.

Before::

    %r = "stablehlo.gather"(%w, %i) {dimension_numbers = #stablehlo.gather<
        offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
        slice_sizes = array<i64: 1, 16>} : (tensor<12x16xf32>, tensor<?x1xi32>) -> tensor<?x16xf32>

After::

    %r = linalg.generic (a, b) {
      %start = tensor.extract %i[a, 0]
      %clamped = min(max(%start, 0), 11)
      %element = tensor.extract %w[%clamped, b]
    }

Source: StableHLO specification, ``gather``.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Value
from ...core._mlir import stablehlo as bindings
from ...emit import ArrayLike, linalg
from ...emit.operation import INDEX
from ..base import NoMatch, Replacement
from .index_bounds import as_signed
from .loop_nests import clamped_start, dim_size, elements_nest, index_scalar, is_static
from .unsigned_integers import bits_as, signless


def expand_gather(op: Operation) -> Replacement:
    """Rewrite a ``gather`` of a dynamic shape as a loop nest."""
    if is_static(*op.operands, *op.results):
        return NoMatch("has a static shape")
    numbers = bindings.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    operand = bits_as(op.operands[0], signless(op.operands[0].type))
    indices = as_signed(op.operands[1])
    target, rank = signless(op.results[0].type), operand.type.rank
    slice_sizes = [int(size) for size in op.attributes["slice_sizes"]]
    offset_dims, batching = list(numbers.offset_dims), list(numbers.operand_batching_dims)
    vector = int(numbers.index_vector_dim)
    batch_dims = [axis for axis in range(target.rank) if axis not in offset_dims]
    index_axes = [axis for axis in range(indices.type.rank) if axis != vector]
    collapsed = {*numbers.collapsed_slice_dims, *batching}
    offset_axes = [axis for axis in range(rank) if axis not in collapsed]
    sizes: list[linalg.DimSize] = [0] * target.rank
    for dim, axis in zip(offset_dims, offset_axes, strict=True):
        sizes[dim] = slice_sizes[axis]
    for dim, axis in zip(batch_dims, index_axes, strict=True):
        sizes[dim] = dim_size((indices, axis), (op.results[0], dim))
    limits = [index_scalar(linalg.dim(operand, axis)) - slice_sizes[axis] for axis in range(rank)]

    def element() -> Value:
        batch_indices = [linalg.loop_index(dim) for dim in batch_dims]
        positions: list[ArrayLike] = [0] * rank
        for component, axis in enumerate(numbers.start_index_map):
            index = list(batch_indices)
            if vector < indices.type.rank:
                index.insert(vector, linalg.constant_index(component))
            start = emit.scalar(linalg.extract(indices, index)).convert(INDEX)
            positions[axis] = clamped_start(start, limits[axis])
        for axis, index_axis in zip(batching, numbers.start_indices_batching_dims, strict=True):
            positions[axis] = index_scalar(batch_indices[index_axes.index(index_axis)])
        for dim, axis in zip(offset_dims, offset_axes, strict=True):
            positions[axis] = index_scalar(linalg.loop_index(dim)) + positions[axis]
        return linalg.extract(
            operand,
            [linalg.constant_index(p) if isinstance(p, int) else p.value for p in positions],
        )

    gathered = linalg.cast(elements_nest(sizes, target, element), target)
    return bits_as(gathered, op.results[0].type)
