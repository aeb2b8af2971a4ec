"""Emission of operations on cooperative matrices (``VK_KHR_cooperative_matrix``).

The threads of a subgroup hold the elements of a matrix together, and run each operation together.
Factors are f16, accumulators f32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..core._mlir import Value, ir
from ..numerics.element_types import F16, F32, ElementType
from .operation import computed_once, constant, create, index_type, mlir_type, value
from .values import ArrayLike

ELEMENTWISE = "subquant.elementwise"
"""The attribute of a cast that stands for an elementwise operation, with the operation's name.

The bindings' MLIR prints ``gpu.subgroup_mma_elementwise`` in a form that IREE's MLIR does not
parse: `subquant.iree_hooks.cooperative_matrices` replaces the casts.
"""

_Role = Literal["AOp", "BOp", "COp"]


@dataclass(frozen=True)
class Matrix:
    """A matrix in the registers of a subgroup, for formulas and as a loop-carried value."""

    value: Value
    element: ElementType

    @property
    def form(self) -> Matrix:
        """The matrix, which makes others of its kind."""
        return self

    def emitted(self, value_: Value, element: ElementType) -> Matrix:
        """A matrix with another value."""
        return Matrix(value_, element)

    def __add__(self, other: Matrix) -> Matrix:
        return self._elementwise("addf", other)

    def __mul__(self, other: Matrix) -> Matrix:
        return self._elementwise("mulf", other)

    def _elementwise(self, name: str, other: Matrix) -> Matrix:
        operands, type_ = [self.value, other.value], self.value.type
        attributes = {ELEMENTWISE: ir.StringAttr.get(name)}
        name = "builtin.unrealized_conversion_cast"
        return Matrix(value(name, operands, type_, attributes), self.element)


@computed_once
def _matrix_type(side: int, element: ElementType, role: _Role) -> ir.Type:
    return ir.Type.parse(f'!gpu.mma_matrix<{side}x{side}x{mlir_type(element)}, "{role}">')


def zero_matrix(side: int) -> Matrix:
    """An accumulator of zeros."""
    zero = constant(ir.FloatAttr.get(mlir_type(F32), 0.0))
    type_ = _matrix_type(side, F32, "COp")
    return Matrix(value("gpu.subgroup_mma_constant_matrix", [zero], type_), F32)


def load_matrix(
    side: int,
    role: _Role,
    memory: Value,
    start: ArrayLike,
    stride: int,
    *,
    is_transposed: bool = False,
) -> Matrix:
    """Load a factor (``AOp``, ``BOp``) or an accumulator (``COp``).

    Args:
        memory: a memref with one axis, whose elements may be vectors.
        start: the index of the first element.
        stride: the distance of rows, or of columns if they are contiguous (`is_transposed`), in
            elements of the memref; with 0 all of them are equal.
    """
    element = F32 if role == "COp" else F16
    attributes: dict[str, Any] = {"leadDimension": ir.IntegerAttr.get(index_type(), stride)}
    if is_transposed:
        attributes["transpose"] = ir.UnitAttr.get()
    type_ = _matrix_type(side, element, role)
    name = "gpu.subgroup_mma_load_matrix"
    return Matrix(value(name, [memory, start.value], type_, attributes), element)


def store_matrix(matrix: Matrix, memory: Value, start: ArrayLike, stride: int) -> None:
    """Store an accumulator, with `stride` elements from row to row."""
    attributes = {"leadDimension": ir.IntegerAttr.get(index_type(), stride)}
    operands = [matrix.value, memory, start.value]
    create("gpu.subgroup_mma_store_matrix", operands, attributes=attributes)


def multiply_add(left: Matrix, right: Matrix, addend: Matrix) -> Matrix:
    """``left @ right + addend``; products are exact, sums are of f32 in any order."""
    operands = [left.value, right.value, addend.value]
    return Matrix(value("gpu.subgroup_mma_compute", operands, addend.value.type), F32)
