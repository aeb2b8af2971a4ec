"""Traced values: values of a program under construction, with operators and NumPy functions.

A formula over arrays, ``np.where(v < 0, -v, v) + half >> s``, runs on a `TracedValue` as it runs on
NumPy's arrays, and writes the operations that compute it. Numbers and arrays are
computed by NumPy when the program is written, and become constants.

A value has a *form*, which chooses the operations: `Scalars` for one element in the body
of a loop (``arith``, ``math``), or `Tensors` for all elements of a shape (StableHLO), where arrays
differ from block to block. The operands of one operation have one form and one element type; a
truth value in arithmetic counts as 0 or 1, as in NumPy.

Integers are signless in MLIR. `TracedValue.element` has the sign: extension, right shifts and
comparisons follow it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..core._mlir import ir
from ..errors import UnsupportedError
from ..numerics.array_functions import Symbolic
from ..numerics.element_types import BOOL, I64, ElementType
from . import operation
from .operation import INDEX, element_of, mlir_type

ArrayLike: TypeAlias = Any
"""A `TracedValue` in formulas; the annotations of NumPy's functions do not allow it."""


class Form(ABC):
    """Choice of the operations of formulas, written at the current insertion point."""

    def __init__(self) -> None:
        self._constants: dict[tuple[ElementType, str], Any] = {}

    def emitted(
        self, value: Any, element: ElementType | None = None, like: ElementType | None = None
    ) -> ArrayLike:
        """A value of this form for formulas; signed where `element` does not say otherwise."""
        return TracedValue(self, value, element or element_of(value.type), like)

    def known(self, number: Any, element: ElementType) -> ArrayLike:
        """A constant: a number, or an array in forms that have several elements.

        Raises:
            TypeError: a number with a fraction among integers.
            OverflowError: an integer that `element` has no bits for.
        """
        return self.emitted(self._written(number, element), element)

    def _written(self, number: Any, element: ElementType) -> Any:
        if not isinstance(number, (int, float)):
            array = np.asarray(number)
            if array.size != 1:
                if not element.is_float:
                    _check_integers(array, element)
                return self._grid(array, element)
            number = array.item()
        key = (element, repr(number))
        constant = self._constants.get(key)
        if constant is None:
            if not element.is_float:
                _check_integer(number, element)
            item = float(number) if element.is_float else int(number)
            constant = self._constants[key] = self._constant(item, element)
        return constant

    def operand(self, value: Any, element: ElementType) -> Any:
        """The operand of an operation on values of an element type that a value is."""
        if not isinstance(value, TracedValue):
            return self._written(value, element)
        if value.element is element:
            return value.value
        if value.element == BOOL:
            one, zero = self.known(1, element), self.known(0, element)
            return self.select(value.value, one.value, zero.value)
        raise TypeError(f"operands of one element type are needed, got {value.element}, {element}")

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

_COMPARISONS = frozenset(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
OPERATIONS = {
    "absolute": "abs",
    "add": "add",
    "arctan2": "atan2",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "ceil": "ceil",
    "cos": "cosine",
    "divide": "divide",
    "exp": "exponential",
    "expm1": "exponential_minus_one",
    "floor": "floor",
    "fmod": "remainder",
    "invert": "not",
    "left_shift": "shift_left",
    "log": "log",
    "log1p": "log_plus_one",
    "maximum": "maximum",
    "minimum": "minimum",
    "multiply": "multiply",
    "negative": "negate",
    "power": "power",
    "right_shift": "shift_right_arithmetic",
    "rint": "round_nearest_even",
    "sin": "sine",
    "sqrt": "sqrt",
    "subtract": "subtract",
    "tanh": "tanh",
}
"""NumPy's functions that formulas may use, and the operations of StableHLO that they are."""
_OF_INTEGERS = frozenset((
    "absolute", "add", "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift",
    "maximum", "minimum", "multiply", "negative", "right_shift", "subtract",
))  # fmt: skip
"""Functions of integers too; the others are of floats."""
_OF_TRUTH = {
    "absolute": "absolute",
    "add": "bitwise_or",
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "invert": "invert",
    "maximum": "bitwise_or",
    "minimum": "bitwise_and",
    "multiply": "bitwise_and",
}
"""NumPy's functions of booleans, and the functions of bits that they equal."""


class TracedValue(Symbolic, NDArrayOperatorsMixin):
    """Value of a program in a formula.

    Args:
        element: its element type, with the sign.
        like: for a boolean, the element type of the compared values, which numbers selected by the
            boolean get.
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

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        raise TypeError("a value of a program that is being written has no elements yet")

    def convert(self, element: ElementType) -> Any:
        """Convert the elements; see `subquant.numerics.array_functions.convert`."""
        if element == self.element:
            return self
        integers = element.is_integer and self.element.is_integer
        if integers and element.bits == self.element.bits and INDEX not in (element, self.element):
            return self.form.emitted(self.value, element)
        if element == BOOL:
            return self != 0
        return self.form.emitted(self.form.convert(self.value, self.element, element), element)

    def bits_of(self, element: ElementType) -> Any:
        """The bits, read as another type; see `subquant.numerics.array_functions.bits_of`."""
        if element.is_integer and self.element.is_integer:
            return self.form.emitted(self.value, element)
        return self.form.emitted(self.form.bits_of(self.value, element), element)

    def astype(self, dtype: npt.DTypeLike) -> Any:
        """Return the values in a dtype."""
        return self.convert(ElementType.of_dtype(np.dtype(dtype)))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Elementwise functions."""
        name = "divide" if ufunc.__name__ == "true_divide" else ufunc.__name__
        if method != "__call__" or options:
            raise UnsupportedError(f"np.{name} with these options cannot be written as operations")
        form, element = _common(inputs)
        if name in _COMPARISONS:
            operands = [form.operand(value, element) for value in inputs]
            return form.emitted(form.compare(name, element, *operands), BOOL, element)
        if name not in OPERATIONS:
            raise UnsupportedError(f"np.{name} cannot be written as operations")
        written = _OF_TRUTH.get(name, "") if element == BOOL else name
        if not written or (name not in _OF_INTEGERS and not element.is_float):
            raise UnsupportedError(f"np.{name} of {element} cannot be written as operations")
        if name == "absolute" and element.kind in ("bool", "uint"):
            return self
        if name == "negative" and not element.is_float:
            written, inputs = "subtract", (0, self)
        operands = [form.operand(value, element) for value in inputs]
        return form.emitted(form.apply(written, element, operands), element)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """``np.where``, ``np.clip`` and ``np.zeros_like``."""
        if function.__name__ == "where" and len(args) == 3:
            return _where(*args)
        if function.__name__ == "clip" and len(args) == 3:
            return np.minimum(np.maximum(args[0], args[1]), args[2])
        if function.__name__ == "zeros_like":
            return self.form.known(0, self.element)
        raise UnsupportedError(f"np.{function.__name__} cannot be written as operations")


def _common(inputs: Sequence[Any]) -> tuple[Form, ElementType]:
    """The form of values, and the element type that they have together."""
    for value in inputs:
        if isinstance(value, TracedValue) and value.element != BOOL:
            return value.form, value.element
    numbers = [value for value in inputs if not isinstance(value, TracedValue)]
    # A boolean and a number: the type of the comparison decides the integer type.
    counts = any(np.asarray(number).dtype.kind not in "b" for number in numbers)
    first = next(value for value in inputs if isinstance(value, TracedValue))
    return first.form, (first.like or I64) if counts else BOOL


def _where(condition: Any, yes: Any, no: Any) -> Any:
    if not isinstance(condition, TracedValue):
        if np.all(condition):
            return yes
        if not np.any(condition):
            return no
    if isinstance(yes, TracedValue) or isinstance(no, TracedValue):
        form, element = _common((yes, no))
    else:
        form, element = condition.form, condition.like or I64
        if np.asarray(yes).dtype.kind == "b":
            element = BOOL
    first = condition if isinstance(condition, TracedValue) else form.known(condition, BOOL)
    operands = [form.operand(value, element) for value in (yes, no)]
    return form.emitted(form.select(first.value, *operands), element)


def _check_integers(numbers: npt.NDArray[Any], element: ElementType) -> None:
    if numbers.size:
        if numbers.dtype.kind not in "biuO" and (numbers != np.rint(numbers)).any():
            raise TypeError(f"integers are needed among values of {element}, got {numbers}")
        for number in (numbers.min(), numbers.max()):
            _check_integer(number.item(), element)


def _check_integer(number: float | int, element: ElementType) -> None:
    if isinstance(number, float) and not number.is_integer():
        raise TypeError(f"integers are needed among values of {element}, got {number}")
    if not -(1 << (element.bits - 1)) <= number < 1 << element.bits:
        raise OverflowError(f"no bits of {element} stand for the number {number}")


# -- scalars --------------------------------------------------------------------------------------


class ByBlock(Form):
    """A form whose constants are of one block: they need not dominate another one."""

    _block: ir.Block | None = None

    def _written(self, number: Any, element: ElementType) -> Any:
        block = operation.constants_block()
        if self._block is None or (block is not self._block and block != self._block):
            self._constants.clear()
            self._block = block
        return super()._written(number, element)


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
    ("negative", "float"): "arith.negf",
    ("rint", "float"): "math.roundeven",
    **{
        (name, "float"): f"math.{name}"
        for name in ("ceil", "cos", "exp", "expm1", "floor", "log", "log1p", "sin", "sqrt", "tanh")
    },
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


def scalar(value: Any, element: ElementType | None = None) -> ArrayLike:
    """A scalar for formulas in the body of a loop; signed unless `element` says otherwise."""
    return operation.cached_with_constants(Scalars).emitted(value, element)
