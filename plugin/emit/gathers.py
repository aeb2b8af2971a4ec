"""Gathers of whole slices along one axis, such as look-ups of rows in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core._mlir import Operation, Value, stablehlo
from . import stablehlo as emit_stablehlo
from .operation import with_shape

__all__ = ["Taking"]


@dataclass(frozen=True)
class Taking:
    """A gather of whole slices along one axis.

    Attributes:
        axis: which one.
        offsets: where the other axes are in the result.
        shape: of the result.
        indices: the operand.
        index_axis: the axis of the indices that has components; their rank where none has.
    """

    axis: int
    offsets: list[int]
    shape: list[int]
    indices: Value
    index_axis: int

    @classmethod
    def of(cls, op: Operation) -> Taking | None:
        """Read a ``gather``, or None if it is another one."""
        numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
        table, result = op.operands[0].type, op.results[0].type
        collapsed, axes = list(numbers.collapsed_slice_dims), list(numbers.start_index_map)
        sizes = [int(n) for n in op.attributes["slice_sizes"]]
        if len(collapsed) != 1 or collapsed != axes or list(numbers.operand_batching_dims):
            return None
        if not table.has_static_shape or not result.has_static_shape:
            return None
        whole = [1 if n == axes[0] else int(extent) for n, extent in enumerate(table.shape)]
        if sizes != whole:
            return None
        return cls(
            axes[0],
            list(numbers.offset_dims),
            [int(n) for n in result.shape],
            op.operands[1],
            int(numbers.index_vector_dim),
        )

    @property
    def is_of_elements(self) -> bool:
        """True if elements of a table of one axis are taken, each by a number of its own."""
        return not self.offsets and self.index_axis == self.indices.type.rank

    def place(self, axis: int) -> int:
        """Where another axis of the table is in the result."""
        return self.offsets[axis - (axis > self.axis)]

    def spread(self, extents: Sequence[int], taken: Sequence[int]) -> list[int]:
        """Numbers for the axes of the result: of each axis of the table, and of those taken."""
        found = list(taken)
        for axis, extent in enumerate(extents):
            if axis != self.axis:
                found[self.place(axis)] = extent
        return found

    def take(self, table: Value) -> Value:
        """Take slices of a tensor with as many along the axis."""
        sizes = [1 if n == self.axis else int(extent) for n, extent in enumerate(table.type.shape)]
        result = with_shape(table.type, self.spread(sizes, self.shape))
        return emit_stablehlo.gather(
            table,
            self.indices,
            result,
            sizes,
            offsets=self.offsets,
            axis=self.axis,
            index_axis=self.index_axis,
        )
