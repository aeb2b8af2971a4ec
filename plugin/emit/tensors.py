"""Tensors: formulas of all elements of a shape, as StableHLO operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core._mlir import ir
from ..numerics.array_functions import convert
from ..numerics.element_types import BOOL, I32, I64, ElementType
from . import operation, stablehlo
from .operation import mlir_type, with_element
from .values import OPERATIONS, ArrayLike, Form, TracedValue, scalar


class Tensors(Form):
    """All elements of a shape: StableHLO operations.

    Args:
        like: a ranked tensor whose shape (and encoding) the values have. Where that is dynamic,
            constants are broadcast to it.
    """

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.like = like
        self.shape = [int(size) for size in like.type.shape]
        self._sizes: Any = None

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """True if no size is dynamic."""
        return bool(self.like.type.has_static_shape)

    def type(self, element: ElementType | ir.Type) -> ir.RankedTensorType:
        """The tensor type of this shape with an element type."""
        type_ = mlir_type(element) if isinstance(element, ElementType) else element
        return with_element(self.like.type, type_)

    def broadcast(self, value: Any, axes: Sequence[int] = ()) -> Any:
        """Broadcast a tensor to this shape; its dimension ``i`` becomes axis ``axes[i]``."""
        type_ = self.type(value.type.element_type)
        if self.is_static or value.type == type_:
            return stablehlo.broadcast(value, type_, axes)
        if self._sizes is None:
            self._sizes = stablehlo.dim_sizes(self.like)
        return stablehlo.broadcast(value, type_, axes, self._sizes)

    def look_up(
        self, table: npt.NDArray[Any], index: TracedValue, element: ElementType
    ) -> ArrayLike:
        """The entries of a table at the positions `index`, which are inside it."""
        constant = stablehlo.constant(table, mlir_type(element))
        return self.emitted(stablehlo.take(constant, index.value), element)

    def apply(self, name: str, element: ElementType, operands: Sequence[Any]) -> Any:
        """Write an operation of StableHLO."""
        mnemonic, is_unsigned = OPERATIONS[name], element.kind == "uint"
        if is_unsigned and name == "right_shift":
            mnemonic = "shift_right_logical"
        is_ordered = is_unsigned and name in ("maximum", "minimum")
        sides = [self._shifted(value, element) for value in operands] if is_ordered else operands
        result = operation.value(f"stablehlo.{mnemonic}", sides, self.type(element))
        return self._shifted(result, element) if is_ordered else result

    def compare(self, name: str, element: ElementType, left: Any, right: Any) -> Any:
        """Write ``stablehlo.compare``."""
        kind = {"bool": "UNSIGNED", "float": "FLOAT"}.get(element.kind, "SIGNED")
        if element.kind == "uint" and name not in ("equal", "not_equal"):
            left, right = self._shifted(left, element), self._shifted(right, element)
        return stablehlo.compare(_DIRECTIONS[name], kind, left, right, self.type(BOOL))

    def _shifted(self, value: Any, element: ElementType) -> Any:
        """Unsigned integers less half of their range, or back: signed ones of the same order."""
        half = self.known(1 << (element.bits - 1), element)
        return operation.value("stablehlo.xor", [value, half.value], self.type(element))

    def select(self, condition: Any, yes: Any, no: Any) -> Any:
        """Write ``stablehlo.select``."""
        return operation.value("stablehlo.select", [condition, yes, no], yes.type)

    def convert(self, value: Any, source: ElementType, target: ElementType) -> Any:
        """Write ``stablehlo.convert``, which reads signless integers as signed.

        An unsigned integer is extended with its sign, and the copies of that are masked; to a float
        it goes by a wider integer, and one of 64 bits by its half. A float of half of an unsigned
        type's range or more becomes an integer less that half, whose highest bit is then set.
        """
        if source.kind == "uint" and target.is_float:
            if source.bits == I64.bits:
                return self._convert_u64(self.emitted(value, source), target).value
            wide = self.emitted(value, source).convert(I32 if source.bits < I32.bits else I64)
            return self.convert(wide.value, wide.element, target)
        if source.is_float and target.kind == "uint":
            if target.bits in (I32.bits, I64.bits):
                return self._convert_unsigned(self.emitted(value, source), target).value
            wide = self.emitted(value, source).convert(I32 if target.bits < I32.bits else I64)
            return self.convert(wide.value, wide.element, target)
        converted = operation.value("stablehlo.convert", [value], self.type(target))
        if source.kind == "uint" and target.bits > source.bits:
            return (self.emitted(converted, target) & ((1 << source.bits) - 1)).value
        return converted

    def _convert_u64(self, value: Any, target: ElementType) -> Any:
        """Convert the half of a large integer, whose last bit is set if the half is not exact.

        So it is rounded as the integer is: both are as near to the same two floats.
        """
        is_large = value >= 1 << 63
        half = np.where(is_large, (value >> 1) | (value & 1), value)
        real = self.emitted(self.convert(half.value, I64, target), target)
        return np.where(is_large, real + real, real)

    @staticmethod
    def _convert_unsigned(value: Any, target: ElementType) -> Any:
        half = 1 << (target.bits - 1)
        large = value >= float(half)
        signed = I32 if target.bits == I32.bits else I64
        integer = convert(np.where(large, value - float(half), value), signed)
        return np.where(large, integer ^ -half, integer)

    def bits_of(self, value: Any, target: ElementType) -> Any:
        """Write ``stablehlo.bitcast_convert``."""
        return operation.value("stablehlo.bitcast_convert", [value], self.type(target))

    def _constant(self, number: float | int, element: ElementType) -> Any:
        type_ = mlir_type(element)
        whole = self.type(type_) if self.is_static else operation.tensor_type([], type_)
        constant = stablehlo.constant_of(operation.splat(number, whole))
        return constant if self.is_static else self.broadcast(constant)

    def _grid(self, numbers: npt.NDArray[Any], element: ElementType) -> Any:
        """An array with one dimension for each axis: 1, or the size where numbers differ."""
        axes = [axis for axis, size in enumerate(numbers.shape) if size != 1]
        vector = numbers.reshape([numbers.shape[axis] for axis in axes])
        return self.broadcast(stablehlo.constant(vector, mlir_type(element)), axes)


_DIRECTIONS = {
    "equal": "EQ", "not_equal": "NE", "less": "LT", "less_equal": "LE", "greater": "GT",
    "greater_equal": "GE",
}  # fmt: skip


# -- making values --------------------------------------------------------------------------------


def tensor(value: Any, element: ElementType | None = None) -> ArrayLike:
    """A ranked tensor for formulas on all its elements; signed unless `element` says otherwise."""
    return Tensors(value).emitted(value, element)


def tensor_or_scalar(value: Any, element: ElementType | None = None) -> ArrayLike:
    """A ranked tensor, or a scalar in the body of a loop, for formulas."""
    return (tensor if isinstance(value.type, ir.ShapedType) else scalar)(value, element)
