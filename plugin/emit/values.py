"""Values of a program that is being written, with Python's operators and NumPy's functions.

A formula over arrays, ``np.where(v < 0, -v, v) + half >> s``, runs on an `Emitted` as it runs on
NumPy's arrays, and writes the operations that compute it. What is known (numbers and arrays) is
computed by NumPy when the program is written, and enters it as a constant.

A value has a *form*, which says what operations are written: `Scalars` for one element in the body
of a loop (``arith``, ``math``), or `Tensors` for all elements of a shape (StableHLO), where arrays
differ from block to block. The operands of one operation have one form and one element type; a
truth value in arithmetic counts as 0 or 1, as in NumPy.

Integers are signless in MLIR. `Emitted.element` says how they are read: extension, shifts to the
right and comparisons follow it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from .._mlir import ir
from ..numerics.array_functions import Symbolic, convert
from ..numerics.element_types import BOOL, I32, I64, ElementType
from . import operation, stablehlo
from .operation import element_of, mlir_type, with_element

__all__ = ["Emitted", "Form", "Scalars", "Tensors", "scalar", "tensor"]


class Form(ABC):
    """What operations formulas are written as, at the insertion point that is current then."""

    def __init__(self) -> None:
        self._constants: dict[tuple[ElementType, str], Any] = {}

    def emitted(self, value: Any, element: ElementType | None = None) -> Emitted:
        """A value of this form for formulas; signed where `element` does not say otherwise."""
        return Emitted(self, value, element or element_of(value.type))

    def known(self, number: Any, element: ElementType) -> Emitted:
        """A constant: a number, or an array in forms that have several elements."""
        array = np.asarray(number)
        if array.size != 1:
            return Emitted(self, self._grid(array, element), element)
        item = array.reshape(-1)[0]
        item = float(item) if element.is_float else int(item)
        key = (element, repr(item))
        if key not in self._constants:
            self._constants[key] = self._constant(item, element)
        return Emitted(self, self._constants[key], element)

    @abstractmethod
    def apply(self, name: str, element: ElementType, operands: Sequence[Any]) -> Any:
        """Write one of NumPy's functions of operands of one element type, which it keeps."""

    @abstractmethod
    def compare(self, name: str, element: ElementType, left: Any, right: Any) -> Any:
        """Write a comparison of values of an element type."""

    @abstractmethod
    def select(self, condition: Any, yes: Any, no: Any) -> Any:
        """Write a choice between two values."""

    @abstractmethod
    def convert(self, value: Any, source: ElementType, target: ElementType) -> Any:
        """Write a conversion between element types that differ in MLIR."""

    @abstractmethod
    def bits_of(self, value: Any, target: ElementType) -> Any:
        """Write a reading of the bits as another type of the same width."""

    @abstractmethod
    def _constant(self, number: float | int, element: ElementType) -> Any: ...

    @abstractmethod
    def _grid(self, numbers: npt.NDArray[Any], element: ElementType) -> Any: ...


# -- values ---------------------------------------------------------------------------------------

_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_BINARY = (
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "left_shift",
    "right_shift",
)
_UNARY = ("absolute", "floor", "rint", "sqrt")


class Emitted(Symbolic, NDArrayOperatorsMixin):
    """A value of a program, as formulas see it.

    Args:
        form: what operations are written.
        value: the value of the program.
        element: how its elements are read.
        like: for a truth value, the element type of what was compared: that of numbers that are
            chosen by it.
    """

    __slots__ = ("element", "form", "like", "value")

    def __init__(
        self, form: Form, value: Any, element: ElementType, like: ElementType | None = None
    ) -> None:
        self.form = form
        self.value = value
        self.element = element
        self.like = like

    def __bool__(self) -> bool:
        raise TypeError("a value of a program that is being written is neither true nor false")

    def convert(self, element: ElementType) -> Emitted:
        """Convert the elements; see `subquant.numerics.array_functions.convert`."""
        if element.kind == self.element.kind and element.bits == self.element.bits:
            return Emitted(self.form, self.value, element)
        if element.is_integer and self.element.is_integer and element.bits == self.element.bits:
            return Emitted(self.form, self.value, element)
        return Emitted(self.form, self.form.convert(self.value, self.element, element), element)

    def bits_of(self, element: ElementType) -> Emitted:
        """The bits, read as another type; see `subquant.numerics.array_functions.bits_of`."""
        if element.is_integer and self.element.is_integer:
            return Emitted(self.form, self.value, element)
        return Emitted(self.form, self.form.bits_of(self.value, element), element)

    def astype(self, dtype: npt.DTypeLike) -> Emitted:
        """As NumPy's."""
        return self.convert(ElementType.of_dtype(np.dtype(dtype)))

    def _operand(self, other: Any, element: ElementType) -> Any:
        """Another operand of this form, of an element type."""
        if not isinstance(other, Emitted):
            return self.form.known(other, element).value
        if other.element == element:
            return other.value
        if other.element == BOOL:
            one, zero = self.form.known(1, element), self.form.known(0, element)
            return self.form.select(other.value, one.value, zero.value)
        raise TypeError(f"operands of one element type are needed, got {other.element}, {element}")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Elementwise functions."""
        name = "divide" if ufunc.__name__ == "true_divide" else ufunc.__name__
        if method != "__call__" or options:
            raise TypeError(f"np.{name} with these options cannot be written")
        form, element = _common(inputs)
        if name == "negative":
            return form.known(0, element) - self
        if name == "invert":
            return self ^ (1 if element == BOOL else -1)
        operands = [self._operand(value, element) for value in inputs]
        if name in _COMPARISONS:
            return Emitted(form, form.compare(name, element, *operands), BOOL, element)
        if name in (_UNARY if len(inputs) == 1 else _BINARY):
            return Emitted(form, form.apply(name, element, operands), element)
        raise TypeError(f"np.{name} cannot be written")

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """``np.where`` and ``np.clip``."""
        if function.__name__ == "where" and len(args) == 3:
            return _where(*args)
        if function.__name__ == "clip" and len(args) == 3:
            return np.minimum(np.maximum(args[0], args[1]), args[2])
        raise TypeError(f"np.{function.__name__} cannot be written")


def _common(inputs: Sequence[Any]) -> tuple[Form, ElementType]:
    """The form of values, and the element type that they have together."""
    values = [value for value in inputs if isinstance(value, Emitted)]
    wide = [value for value in values if value.element != BOOL]
    if wide:
        return wide[0].form, wide[0].element
    numbers = [value for value in inputs if not isinstance(value, Emitted)]
    # A truth value and a number that is none: what was compared says which integers are meant.
    counts = any(np.asarray(number).dtype.kind not in "b" for number in numbers)
    first = values[0]
    return first.form, (first.like or I64) if counts else BOOL


def _where(condition: Any, yes: Any, no: Any) -> Any:
    if not isinstance(condition, Emitted):
        if np.all(condition):
            return yes
        if not np.any(condition):
            return no
    known_branches = not isinstance(yes, Emitted) and not isinstance(no, Emitted)
    if known_branches:
        form, element = condition.form, condition.like or I64
        if np.asarray(yes).dtype.kind == "b":
            element = BOOL
    else:
        form, element = _common([v for v in (yes, no) if isinstance(v, Emitted)])
    first = condition if isinstance(condition, Emitted) else form.known(condition, BOOL)
    operands = [first._operand(value, element) for value in (yes, no)]
    return Emitted(form, form.select(first.value, *operands), element)


# -- scalars --------------------------------------------------------------------------------------

_SCALAR_OPERATIONS = {
    ("add", "int"): "arith.addi",
    ("add", "float"): "arith.addf",
    ("subtract", "int"): "arith.subi",
    ("subtract", "float"): "arith.subf",
    ("multiply", "int"): "arith.muli",
    ("multiply", "float"): "arith.mulf",
    ("divide", "float"): "arith.divf",
    ("maximum", "int"): "arith.maxsi",
    ("maximum", "uint"): "arith.maxui",
    ("minimum", "int"): "arith.minsi",
    ("minimum", "uint"): "arith.minui",
    ("bitwise_and", "int"): "arith.andi",
    ("bitwise_or", "int"): "arith.ori",
    ("bitwise_xor", "int"): "arith.xori",
    ("left_shift", "int"): "arith.shli",
    ("right_shift", "int"): "arith.shrsi",
    ("right_shift", "uint"): "arith.shrui",
    ("absolute", "float"): "math.absf",
    ("floor", "float"): "math.floor",
    ("rint", "float"): "math.roundeven",
    ("sqrt", "float"): "math.sqrt",
}
_SIGNED = {"equal": 0, "not_equal": 1, "less": 2, "less_equal": 3, "greater": 4, "greater_equal": 5}
_UNSIGNED = {**_SIGNED, "less": 6, "less_equal": 7, "greater": 8, "greater_equal": 9}
_ORDERED = {
    "equal": 1, "greater": 2, "greater_equal": 3, "less": 4, "less_equal": 5,
    "not_equal": 13,
}  # fmt: skip
"""Of ``arith.cmpf``: false for NaN, but for ``not_equal``."""
_UNORDERED = 14  # true for NaN only


class Scalars(Form):
    """One element, in the body of a loop: ``arith`` and ``math`` operations."""

    def apply(self, name: str, element: ElementType, operands: Sequence[Any]) -> Any:
        """Write an operation of ``arith`` or ``math``."""
        kind = "int" if element.kind == "bool" else element.kind
        found = _SCALAR_OPERATIONS.get((name, kind))
        if found is None and kind == "uint":
            found = _SCALAR_OPERATIONS.get((name, "int"))
        if found is None and name == "absolute":
            negated = (-self.emitted(operands[0], element)).value
            return operation.value("arith.maxsi", [operands[0], negated], operands[0].type)
        if found is None:
            raise TypeError(f"np.{name} of {element} cannot be written as a scalar operation")
        return operation.value(found, operands, operands[0].type)

    def compare(self, name: str, element: ElementType, left: Any, right: Any) -> Any:
        """Write ``arith.cmpi`` or ``arith.cmpf``."""
        if element.is_float:
            number = _UNORDERED if name == "not_equal" and left == right else _ORDERED[name]
            operation_name = "arith.cmpf"
        else:
            number = (_UNSIGNED if element.kind == "uint" else _SIGNED)[name]
            operation_name = "arith.cmpi"
        attributes = {"predicate": operation.integer(number)}
        return operation.value(operation_name, [left, right], mlir_type(BOOL), attributes)

    def select(self, condition: Any, yes: Any, no: Any) -> Any:
        """Write ``arith.select``."""
        return operation.value("arith.select", [condition, yes, no], yes.type)

    def convert(self, value: Any, source: ElementType, target: ElementType) -> Any:
        """Write an extension, a truncation, or a conversion between integers and floats."""
        unsigned = source.kind in ("uint", "bool")
        if source.is_float and target.is_float:
            name = "arith.extf" if target.bits > source.bits else "arith.truncf"
        elif source.is_float:
            name = "arith.fptoui" if target.kind == "uint" else "arith.fptosi"
        elif target.is_float:
            name = "arith.uitofp" if unsigned else "arith.sitofp"
        elif target.bits < source.bits:
            name = "arith.trunci"
        else:
            name = "arith.extui" if unsigned else "arith.extsi"
        return operation.value(name, [value], mlir_type(target))

    def bits_of(self, value: Any, target: ElementType) -> Any:
        """Write ``arith.bitcast``."""
        return operation.value("arith.bitcast", [value], mlir_type(target))

    def _constant(self, number: float | int, element: ElementType) -> Any:
        type_ = mlir_type(element)
        attribute = operation.number_of(type_, number)
        return operation.value("arith.constant", [], type_, {"value": attribute})

    def _grid(self, numbers: npt.NDArray[Any], element: ElementType) -> Any:
        raise TypeError(f"one number is needed in the body of a loop, got {numbers.size}")


# -- tensors --------------------------------------------------------------------------------------

_TENSOR_OPERATIONS = {
    "absolute": "abs",
    "add": "add",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "divide": "divide",
    "floor": "floor",
    "left_shift": "shift_left",
    "maximum": "maximum",
    "minimum": "minimum",
    "multiply": "multiply",
    "right_shift": "shift_right_arithmetic",
    "rint": "round_nearest_even",
    "sqrt": "sqrt",
    "subtract": "subtract",
}


class Tensors(Form):
    """All elements of a shape: StableHLO operations.

    Args:
        like: a ranked tensor whose shape (and encoding) the values have. Where that is dynamic,
            constants are broadcast to it.
    """

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.like = like
        self.shape = [int(extent) for extent in like.type.shape]
        self._extents: Any = None

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """True if no extent is dynamic."""
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
        if self._extents is None:
            self._extents = stablehlo.extents(self.like)
        return stablehlo.broadcast(value, type_, axes, self._extents)

    def look_up(self, table: npt.NDArray[Any], index: Emitted, element: ElementType) -> Emitted:
        """The entries of a table at the positions `index`, which are inside it."""
        constant = stablehlo.constant(table, mlir_type(element))
        return self.emitted(stablehlo.take(constant, index.value), element)

    def apply(self, name: str, element: ElementType, operands: Sequence[Any]) -> Any:
        """Write an operation of StableHLO."""
        found = _TENSOR_OPERATIONS[name]
        if name == "right_shift" and element.kind == "uint":
            found = "shift_right_logical"
        if element.kind == "uint" and name in ("divide", "maximum", "minimum"):
            raise TypeError(f"np.{name} of unsigned integers cannot be written in StableHLO")
        return operation.value(f"stablehlo.{found}", operands, self.type(element))

    def compare(self, name: str, element: ElementType, left: Any, right: Any) -> Any:
        """Write ``stablehlo.compare``."""
        if element.kind == "uint" and name not in ("equal", "not_equal"):
            raise TypeError("unsigned integers cannot be compared in StableHLO")
        kind = "FLOAT" if element.is_float else "SIGNED"
        return stablehlo.compare(_DIRECTIONS[name], kind, left, right, self.type(BOOL))

    def select(self, condition: Any, yes: Any, no: Any) -> Any:
        """Write ``stablehlo.select``."""
        return operation.value("stablehlo.select", [condition, yes, no], yes.type)

    def convert(self, value: Any, source: ElementType, target: ElementType) -> Any:
        """Write ``stablehlo.convert``, which reads signless integers as signed.

        An unsigned integer is extended with its sign, and the copies of that are masked; a float
        of 2**31 or more becomes an unsigned integer less 2**31, whose highest bit is then set.
        """
        if source.is_float and target.kind == "uint" and target.bits == 32:
            return self._convert_unsigned(self.emitted(value, source)).value
        wide = operation.value("stablehlo.convert", [value], self.type(target))
        if source.kind == "uint" and target.bits > source.bits:
            return (self.emitted(wide, target) & ((1 << source.bits) - 1)).value
        return wide

    @staticmethod
    def _convert_unsigned(value: Any) -> Any:
        half = 2.0**31
        large = value >= half
        integer = convert(np.where(large, value - half, value), I32)
        return np.where(large, integer ^ -(1 << 31), integer)

    def bits_of(self, value: Any, target: ElementType) -> Any:
        """Write ``stablehlo.bitcast_convert``."""
        return operation.value("stablehlo.bitcast_convert", [value], self.type(target))

    def _constant(self, number: float | int, element: ElementType) -> Any:
        type_ = mlir_type(element)
        whole = self.type(type_) if self.is_static else operation.tensor_type([], type_)
        constant = stablehlo.constant_of(operation.splat(number, whole))
        return constant if self.is_static else self.broadcast(constant)

    def _grid(self, numbers: npt.NDArray[Any], element: ElementType) -> Any:
        """An array with one dimension for each axis: 1, or the extent where numbers differ."""
        axes = [axis for axis, extent in enumerate(numbers.shape) if extent != 1]
        vector = numbers.reshape([numbers.shape[axis] for axis in axes])
        return self.broadcast(stablehlo.constant(vector, mlir_type(element)), axes)


_DIRECTIONS = {
    "equal": "EQ", "not_equal": "NE", "less": "LT", "less_equal": "LE", "greater": "GT",
    "greater_equal": "GE",
}  # fmt: skip


# -- making values --------------------------------------------------------------------------------


def tensor(value: Any, element: ElementType | None = None) -> Emitted:
    """A ranked tensor for formulas on all its elements; signed unless `element` says otherwise."""
    return Tensors(value).emitted(value, element)


def scalar(value: Any, element: ElementType | None = None) -> Emitted:
    """A scalar for formulas in the body of a loop; signed unless `element` says otherwise."""
    return Scalars().emitted(value, element)
