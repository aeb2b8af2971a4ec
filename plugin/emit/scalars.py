"""Scalars: formulas of one element in the body of a loop, as ``arith`` and ``math`` operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from ..numerics.element_types import BOOL, ElementType
from . import operation
from .operation import INDEX, mlir_type
from .values import ArrayLike, ByBlock

_SCALAR_OPERATIONS = {
    ("add", "int"): "arith.addi",
    ("add", "float"): "arith.addf",
    ("subtract", "int"): "arith.subi",
    ("subtract", "float"): "arith.subf",
    ("multiply", "int"): "arith.muli",
    ("multiply", "float"): "arith.mulf",
    ("divide", "float"): "arith.divf",
    ("fmod", "float"): "arith.remf",
    ("power", "float"): "math.powf",
    ("maximum", "float"): "arith.maximumf",
    ("maximum", "int"): "arith.maxsi",
    ("maximum", "uint"): "arith.maxui",
    ("minimum", "float"): "arith.minimumf",
    ("minimum", "int"): "arith.minsi",
    ("minimum", "uint"): "arith.minui",
    ("bitwise_and", "int"): "arith.andi",
    ("bitwise_or", "int"): "arith.ori",
    ("bitwise_xor", "int"): "arith.xori",
    ("left_shift", "int"): "arith.shli",
    ("right_shift", "int"): "arith.shrsi",
    ("right_shift", "uint"): "arith.shrui",
    ("absolute", "float"): "math.absf",
    ("arctan2", "float"): "math.atan2",
    ("ceil", "float"): "math.ceil",
    ("cos", "float"): "math.cos",
    ("exp", "float"): "math.exp",
    ("expm1", "float"): "math.expm1",
    ("floor", "float"): "math.floor",
    ("log", "float"): "math.log",
    ("log1p", "float"): "math.log1p",
    ("negative", "float"): "arith.negf",
    ("rint", "float"): "math.roundeven",
    ("sin", "float"): "math.sin",
    ("sqrt", "float"): "math.sqrt",
    ("tanh", "float"): "math.tanh",
}
_SIGNED = {"equal": 0, "not_equal": 1, "less": 2, "less_equal": 3, "greater": 4, "greater_equal": 5}
"""Predicates of ``arith.cmpi`` for signed integers."""
_UNSIGNED = {**_SIGNED, "less": 6, "less_equal": 7, "greater": 8, "greater_equal": 9}
"""Predicates of ``arith.cmpi`` for unsigned integers."""
_ORDERED = {
    "equal": 1, "greater": 2, "greater_equal": 3, "less": 4, "less_equal": 5,
    "not_equal": 13,
}  # fmt: skip
"""Predicates of ``arith.cmpf``, false for NaN except ``not_equal``."""
_UNORDERED = 14
"""The predicate ``uno`` of ``arith.cmpf`` in MLIR: true if an operand is NaN."""


class Scalars(ByBlock):
    """One element, in the body of a loop: ``arith`` and ``math`` operations."""

    def type(self, element: ElementType) -> Any:
        """The type of a value of this form."""
        return mlir_type(element)

    def apply(self, name: str, element: ElementType, operands: Sequence[Any]) -> Any:
        """Write an operation of ``arith`` or ``math``."""
        if name == "invert":
            ones = self.known(1 if element == BOOL else -1, element)
            return operation.value("arith.xori", [*operands, ones.value], operands[0].type)
        if name == "absolute" and not element.is_float:
            negated = (-self.emitted(operands[0], element)).value
            return operation.value("arith.maxsi", [operands[0], negated], operands[0].type)
        mnemonic = _SCALAR_OPERATIONS.get((name, element.kind)) or _SCALAR_OPERATIONS[name, "int"]
        return operation.value(mnemonic, operands, operands[0].type)

    def compare(self, name: str, element: ElementType, left: Any, right: Any) -> Any:
        """Write ``arith.cmpi`` or ``arith.cmpf``."""
        if element.is_float:
            number = _UNORDERED if name == "not_equal" and left == right else _ORDERED[name]
            operation_name = "arith.cmpf"
        else:
            number = (_SIGNED if element.kind == "int" else _UNSIGNED)[name]
            operation_name = "arith.cmpi"
        attributes = {"predicate": operation.integer(number)}
        return operation.value(operation_name, [left, right], self.type(BOOL), attributes)

    def select(self, condition: Any, yes: Any, no: Any) -> Any:
        """Write ``arith.select``."""
        return operation.value("arith.select", [condition, yes, no], yes.type)

    def convert(self, value: Any, source: ElementType, target: ElementType) -> Any:
        """Write an extension, a truncation, or a conversion between integers and floats."""
        unsigned = source.kind in ("uint", "bool")
        if INDEX in (source, target):
            name = "arith.index_cast"
        elif source.is_float and target.is_float:
            name = "arith.extf" if target.bits > source.bits else "arith.truncf"
        elif source.is_float:
            name = "arith.fptoui" if target.kind == "uint" else "arith.fptosi"
        elif target.is_float:
            name = "arith.uitofp" if unsigned else "arith.sitofp"
        elif target.bits < source.bits:
            name = "arith.trunci"
        else:
            name = "arith.extui" if unsigned else "arith.extsi"
        return operation.value(name, [value], self.type(target))

    def bits_of(self, value: Any, target: ElementType) -> Any:
        """Write ``arith.bitcast``."""
        return operation.value("arith.bitcast", [value], self.type(target))

    def _constant(self, number: float | int, element: ElementType) -> Any:
        type_ = mlir_type(element)
        return operation.constant(operation.number_of(type_, number))

    def _grid(self, numbers: npt.NDArray[Any], element: ElementType) -> Any:
        raise TypeError(f"one number is needed in the body of a loop, got {numbers.size}")


# -- tensors --------------------------------------------------------------------------------------


def scalar(value: Any, element: ElementType | None = None) -> ArrayLike:
    """A scalar for formulas in the body of a loop; signed unless `element` says otherwise."""
    return operation.cached_with_constants(Scalars).emitted(value, element)
