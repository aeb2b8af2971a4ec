"""Gathers of whole slices along one axis, such as look-ups of rows in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core._mlir import Operation, Value, stablehlo
from . import stablehlo as emit_stablehlo
from .operation import with_shape


@dataclass(frozen=True)
class AxisGather:
    """A gather of whole slices along one axis.

    Attributes:
        offsets: where the other axes are in the result.
        index_axis: the axis of the indices that has components; their rank where none has.
    """

    axis: int
    offsets: list[int]
    shape: list[int]
    indices: Value
    index_axis: int

    @classmethod
    def of(cls, op: Operation) -> AxisGather | None:
        """Read a ``gather``, or None if it is another one."""
        numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
        table, result = op.operands[0].type, op.results[0].type
        collapsed, axes = list(numbers.collapsed_slice_dims), list(numbers.start_index_map)
        sizes = [int(n) for n in op.attributes["slice_sizes"]]
        if len(collapsed) != 1 or collapsed != axes or list(numbers.operand_batching_dims):
            return None
        if not table.has_static_shape or not result.has_static_shape:
            return None
        whole = [1 if n == axes[0] else int(size) for n, size in enumerate(table.shape)]
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

    def result_axis(self, axis: int) -> int:
        """Return the axis of the result for an axis of the table that is not gathered."""
        return self.offsets[axis - (axis > self.axis)]

    def spread(self, of_table: Sequence[int], of_result: Sequence[int]) -> list[int]:
        """Return `of_result` with the numbers of the table's other axes replaced."""
        numbers = list(of_result)
        for axis, number in enumerate(of_table):
            if axis != self.axis:
                numbers[self.result_axis(axis)] = number
        return numbers

    def take(self, table: Value) -> Value:
        """Take slices of a tensor with as many along the axis."""
        sizes = [1 if n == self.axis else int(size) for n, size in enumerate(table.type.shape)]
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
