"""Emits the arithmetic of `Builder` on whole tensors, as StableHLO operations.

The formulas of `arithmetic` and `requantization` are written once, in terms of scalar ``arith``
and ``math`` operations. A `TensorBuilder` has a shape, and gives every such operation that shape:
``arith.addi`` of two i32 becomes ``stablehlo.add`` of two ``tensor<4x?xi32>``. Constants become
splat constants; where the shape is dynamic they are broadcast to that of a value which has it.

Integers are signless and stand for signed values, as StableHLO reads them; unsigned extension is a
sign extension and a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._mlir import ir
from ..dialects.dense import dense_of_array
from ..dialects.quant import element_type
from ..numerics.element_types import Array
from .base import Builder

__all__ = ["TensorBuilder"]

_RENAMED = {
    "arith.addf": "add",
    "arith.addi": "add",
    "arith.andi": "and",
    "arith.bitcast": "bitcast_convert",
    "arith.divf": "divide",
    "arith.divsi": "divide",
    "arith.extf": "convert",
    "arith.extsi": "convert",
    "arith.fptosi": "convert",
    "arith.maxsi": "maximum",
    "arith.minsi": "minimum",
    "arith.mulf": "multiply",
    "arith.muli": "multiply",
    "arith.ori": "or",
    "arith.select": "select",
    "arith.shli": "shift_left",
    "arith.shrsi": "shift_right_arithmetic",
    "arith.shrui": "shift_right_logical",
    "arith.sitofp": "convert",
    "arith.subf": "subtract",
    "arith.subi": "subtract",
    "arith.truncf": "convert",
    "arith.trunci": "convert",
    "arith.xori": "xor",
    "math.roundeven": "round_nearest_even",
}
_INTEGER_PREDICATES = {0: "EQ", 1: "NE", 2: "LT", 3: "LE", 4: "GT", 5: "GE"}
_FLOAT_PREDICATES = {1: "EQ", 2: "GT", 3: "GE", 4: "LT", 5: "LE", 6: "NE", 14: "NE"}
_UNO = 14


class TensorBuilder(Builder):
    """A builder of StableHLO operations of one shape.

    Args:
        like: a ranked tensor whose shape (and encoding) the values have.
    """

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.like = like
        self.shape = [int(extent) for extent in like.type.shape]
        self.rank = len(self.shape)
        self._encoding = like.type.encoding
        self._constants: dict[Any, Any] = {}
        self._extents: Any = None

    # -- types ------------------------------------------------------------------------------------

    def type(self, element: ir.Type) -> ir.RankedTensorType:
        """The tensor type of this shape with an element type."""
        return ir.RankedTensorType.get(self.shape, element, self._encoding)

    @property
    def is_static(self) -> bool:
        """True if no extent is dynamic."""
        return bool(self.like.type.has_static_shape)

    # -- operations -------------------------------------------------------------------------------

    def op(
        self,
        name: str,
        operands: Sequence[Any],
        result: ir.Type | None = None,
        attributes: dict[str, ir.Attribute] | None = None,
    ) -> Any:
        """Create an operation; `result` may be an element type, which then gets the shape."""
        if result is not None and not isinstance(result, ir.ShapedType):
            result = self.type(result)
        if name == "arith.extui":
            return self._extend_unsigned(operands[0], result)
        if name == "arith.fptoui":
            return self._convert_unsigned(operands[0])
        renamed = _RENAMED.get(name)
        if renamed is None:
            return super().op(name, operands, result, attributes)
        return super().op(f"stablehlo.{renamed}", operands, result, attributes)

    def constant(self, value: float | int, type_: ir.Type) -> Any:
        """A constant of this shape (integers are given as signed)."""
        element = element_type(type_)
        key = (element, float(value) if isinstance(value, float) else int(value), str(value))
        if key not in self._constants:
            if isinstance(element, ir.IntegerType):
                attribute: ir.Attribute = ir.IntegerAttr.get(element, int(value))
            else:
                attribute = ir.FloatAttr.get(element, float(value))
            shape = self.shape if self.is_static else []
            encoding = self._encoding if self.is_static else None
            type_ = ir.RankedTensorType.get(shape, element, encoding)
            dense = ir.DenseElementsAttr.get_splat(type_, attribute)
            constant = self.dense(dense)
            self._constants[key] = constant if self.is_static else self.broadcast(constant, [])
        return self._constants[key]

    def dense(self, attribute: Any) -> Any:
        """Create a ``stablehlo.constant`` from a dense attribute, of the attribute's shape."""
        return super().op("stablehlo.constant", [], attribute.type, {"value": attribute})

    def grid(self, values: Array, element: ir.Type) -> Any:
        """A constant that differs from block to block.

        Args:
            values: numbers of shape () or with one dimension for each axis: 1 where one block
                spans the axis, else its extent.
            element: the element type.
        """
        values = np.asarray(values)
        if values.size == 1:
            item = values.reshape(-1)[0]
            is_integer = isinstance(element, ir.IntegerType)
            return self.constant(int(item) if is_integer else float(item), element)
        axes = [axis for axis, extent in enumerate(values.shape) if extent != 1]
        vector = self.dense(
            dense_of_array(values.reshape([values.shape[a] for a in axes]), element)
        )
        return self.broadcast(vector, axes)

    def broadcast(self, value: Any, axes: Sequence[int]) -> Any:
        """Broadcast a tensor to this shape; its dimension ``i`` becomes axis ``axes[i]``."""
        type_ = self.type(value.type.element_type)
        if value.type == type_ and list(axes) == list(range(self.rank)):
            return value
        attributes = {"broadcast_dimensions": ir.DenseI64ArrayAttr.get(list(axes))}
        if self.is_static:
            return super().op("stablehlo.broadcast_in_dim", [value], type_, attributes)
        operands = [value, self.extents()]
        return super().op("stablehlo.dynamic_broadcast_in_dim", operands, type_, attributes)

    def extents(self) -> Any:
        """The shape as a tensor of i32, one entry for each axis."""
        if self._extents is None:
            self._extents = extents_of(self, self.like)
        return self._extents

    def look_up(self, table: Array, index: Any, element: ir.Type) -> Any:
        """The entries of a table at the positions `index`, a tensor of this shape."""
        constant = self.dense(dense_of_array(table, element))
        numbers = (
            "#stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], "
            f"index_vector_dim = {self.rank}>"
        )
        attributes = {
            "dimension_numbers": ir.Attribute.parse(numbers),
            "slice_sizes": ir.DenseI64ArrayAttr.get([1]),
            "indices_are_sorted": ir.BoolAttr.get(False),
        }
        return super().op("stablehlo.gather", [constant, index], self.type(element), attributes)

    def compare(self, predicate: int, left: Any, right: Any) -> Any:
        """Compare signed integers, with the number of the ``arith.cmpi`` predicate."""
        return self._compare(_INTEGER_PREDICATES[predicate], "SIGNED", left, right)

    def compare_float(self, predicate: int, left: Any, right: Any) -> Any:
        """Compare floats, with the number of the ``arith.cmpf`` predicate."""
        assert predicate != _UNO or left == right  # "uno" is asked of one value only
        return self._compare(_FLOAT_PREDICATES[predicate], "FLOAT", left, right)

    def _compare(self, direction: str, kind: str, left: Any, right: Any) -> Any:
        attributes = {
            "comparison_direction": ir.Attribute.parse(
                f"#stablehlo<comparison_direction {direction}>"
            ),
            "compare_type": ir.Attribute.parse(f"#stablehlo<comparison_type {kind}>"),
        }
        return super().op("stablehlo.compare", [left, right], self.type(self.i1), attributes)

    def _extend_unsigned(self, value: Any, result: Any) -> Any:
        width = element_type(value.type).width
        wide = super().op("stablehlo.convert", [value], result)
        return self.op("arith.andi", [wide, self.constant((1 << width) - 1, result)], result)

    def _convert_unsigned(self, value: Any) -> Any:
        """Convert a float in ``[0, 2**32)`` to the bits of a 32-bit integer."""
        float_type = value.type
        half = self.constant(float(1 << 31), float_type)
        large = self.compare_float(3, value, half)
        reduced = self.op("arith.subf", [value, half], float_type)
        small = self.op("arith.select", [large, reduced, value], float_type)
        integer = self.op("arith.fptosi", [small], self.i32)
        flipped = self.op("arith.xori", [integer, self.constant(-(1 << 31), self.i32)], self.i32)
        return self.op("arith.select", [large, flipped, integer], self.i32)


def extents_of(b: Builder, value: Any) -> Any:
    """The shape of a ranked tensor as a tensor of i32, one entry for each axis."""
    rank = len(value.type.shape)
    one = ir.RankedTensorType.get([1], b.i32)
    if value.type.has_static_shape or not rank:
        numbers = np.array([int(extent) for extent in value.type.shape], np.int32)
        attribute = dense_of_array(numbers, b.i32)
        return Builder.op(b, "stablehlo.constant", [], attribute.type, {"value": attribute})
    parts = []
    for axis in range(rank):
        dimension = {"dimension": ir.IntegerAttr.get(b.i64, axis)}
        scalar = ir.RankedTensorType.get([], b.i32)
        size = Builder.op(b, "stablehlo.get_dimension_size", [value], scalar, dimension)
        parts.append(Builder.op(b, "stablehlo.reshape", [size], one))
    vector = ir.RankedTensorType.get([rank], b.i32)
    zero = {"dimension": ir.IntegerAttr.get(b.i64, 0)}
    return Builder.op(b, "stablehlo.concatenate", parts, vector, zero)
