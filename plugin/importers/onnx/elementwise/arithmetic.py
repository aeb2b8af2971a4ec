"""Elementwise operators on any type: arithmetic, comparisons, booleans and bits.

Integers wrap, and division truncates towards zero. `quantization.elementwise` has the
operators that stay integers for quantized operands: sums, products and bounds.

Source: ONNX, "Operator Schemas", operator set 28.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import numpy as np

from ....numerics.array_functions import bits_of, convert, divide_truncated, is_known
from ....numerics.element_types import AnyArray, ElementType
from ..call import Call, Operand, importer
from ..reading.model import ELEMENTS
from .float_operands import in_f32


def broadcast_shapes(call: Call, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that shapes broadcast to, as NumPy does."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise call.error(f"has operands of shapes {[list(s) for s in shapes]}") from None


def operands(call: Call, count: int | None = None) -> list[AnyArray]:
    """Return inputs as arrays whose shapes broadcast; their schemas give them one type."""
    values = [call.array(index) for index in range(len(call.inputs) if count is None else count)]
    broadcast_shapes(call, [tuple(value.shape) for value in values])
    return values


@importer("Div")
def divide(call: Call) -> Operand:
    """Div-14: ``A / B``; integer division truncates towards zero."""
    left, right = operands(call, 2)
    is_integer = np.dtype(left.dtype).kind in "iu"
    return call.typed(divide_truncated(left, right) if is_integer else left / right)


@importer("Mod")
def modulo(call: Call) -> Operand:
    """Mod-28: ``A mod B`` with the sign of the divisor; with ``fmod`` that of the dividend."""
    left, right = operands(call, 2)
    has_sign_of_dividend = bool(call.attribute("fmod", 0))
    if np.dtype(left.dtype).kind in "iu":
        remainder = left - divide_truncated(left, right) * right
    else:
        remainder = in_f32(np.fmod)(left, right)
    if has_sign_of_dividend or np.dtype(left.dtype).kind == "u":
        return call.typed(remainder)
    zero = np.zeros((), left.dtype)
    has_other_sign = (remainder != zero) & ((remainder < zero) != (right < zero))
    return call.typed(np.where(has_other_sign, remainder + right, remainder))


@importer("Pow")
def power(call: Call) -> Operand:
    """Pow-15: ``X ** Y`` of the type of ``X``; products where the exponents are integers."""
    base, exponent = call.array(0), call.array(1)
    shape = broadcast_shapes(call, [tuple(base.shape), tuple(exponent.shape)])
    is_float = np.dtype(base.dtype).kind not in "iu"
    if is_known(exponent) and exponent.size:
        floats = np.asarray(exponent).astype(np.float64)
        if (floats == floats.flat[0]).all():
            number = float(floats.flat[0])
            if number in (1.0, 2.0, 3.0):
                product = functools.reduce(lambda x, y: x * y, [base] * int(number))
                return call.typed(np.broadcast_to(product, shape))
            if number == 0.5 and is_float:
                return call.typed(np.broadcast_to(in_f32(np.sqrt)(base), shape))
        if not is_float and (floats == np.trunc(floats)).all():
            exponent = floats.astype(np.int64)
    if is_float:
        element = ElementType.of_dtype(np.dtype(base.dtype))
        return call.typed(in_f32(np.power)(base, convert(exponent, element)))
    if np.dtype(exponent.dtype).kind not in "iu":
        raise call.unsupported(
            "raises integers to powers that are floats, which is not lowered; cast them to "
            "integers first"
        )
    return call.typed(_integer_power(base, exponent))


def _integer_power(base: AnyArray, exponent: AnyArray) -> AnyArray:
    """Compute integer powers by repeated squaring; those of negative exponents are truncated."""
    dtype = np.dtype(base.dtype)
    shape = np.broadcast_shapes(tuple(base.shape), tuple(exponent.shape))
    base, exponent = (np.broadcast_to(side, shape) for side in (base, exponent))
    one, zero = np.ones((), dtype), np.zeros((), dtype)
    bits = np.dtype(exponent.dtype).itemsize * 8 - (np.dtype(exponent.dtype).kind == "i")
    if is_known(exponent) and exponent.size:
        bits = int(max(int(np.max(exponent)), 0)).bit_length()
    result, square = np.broadcast_to(one, shape), base
    for bit in range(min(bits, 62)):
        is_set = ((exponent >> bit) & 1) != 0
        result = np.where(is_set, result * square, result)
        square = square * square
    if np.dtype(exponent.dtype).kind == "u":
        return result
    is_odd = (exponent & 1) != 0
    of_units = np.where(base == one, one, zero)
    if dtype.kind == "i":
        minus = np.asarray(-1, dtype)
        of_units = np.where(base == minus, np.where(is_odd, minus, one), of_units)
    return np.where(exponent < 0, of_units, result)


@importer("Mean", "Sum")
def total(call: Call) -> Operand:
    """Mean-13, Sum-13: ``data_0 + data_1 + ...``, for Mean divided by their number."""
    values = operands(call)
    result = functools.reduce(operator.add, values)
    if call.node.operator == "Mean":
        result = result / np.asarray(len(values), result.dtype)
    return call.typed(result)


@importer("Max", "Min")
def extreme(call: Call) -> Operand:
    """Max-13, Min-13: the greatest or least of all inputs; NaN if one of them is."""
    function = np.maximum if call.node.operator == "Max" else np.minimum
    return call.typed(functools.reduce(function, operands(call)))


_COMPARISONS = {
    "Equal": np.equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
    "Less": np.less, "LessOrEqual": np.less_equal,
}  # fmt: skip
_BITS = {
    "And": np.bitwise_and, "Or": np.bitwise_or, "Xor": np.bitwise_xor,
    "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
}  # fmt: skip


@importer(*_COMPARISONS)
def compare(call: Call) -> Operand:
    """Equal-19, Greater-13, GreaterOrEqual-16, Less-13, LessOrEqual-16.

    Comparisons of each element; those with NaN are false.
    """
    left, right = operands(call, 2)
    if np.dtype(left.dtype) == np.bool_:
        left, right = left.astype(np.int8), right.astype(np.int8)
    return Operand("BOOL", _COMPARISONS[call.node.operator](left, right))


@importer(*_BITS)
def combine_bits(call: Call) -> Operand:
    """And-7, BitwiseAnd-18, BitwiseOr-18, BitwiseXor-18, Or-7, Xor-7.

    Operations on booleans, or on the bits of integers.
    """
    left, right = operands(call, 2)
    return call.typed(_BITS[call.node.operator](left, right))


@importer("Not", "BitwiseNot")
def invert(call: Call) -> Operand:
    """BitwiseNot-18, Not-1: each bit inverted."""
    return call.typed(np.invert(call.array(0)))


@importer("BitShift")
def shift(call: Call) -> Operand:
    """BitShift-28: integers shifted left or right; beyond their bits they are 0, or the sign."""
    value, amount = operands(call, 2)
    dtype = np.dtype(value.dtype)
    last = np.asarray(dtype.itemsize * 8 - 1, dtype)
    inside = amount & last
    shifted, beyond = value << inside, np.zeros((), dtype)
    if call.attribute("direction") == "RIGHT":
        shifted = value >> inside
        beyond = value >> np.broadcast_to(last, value.shape) if dtype.kind == "i" else beyond
    return call.typed(np.where(amount == inside, shifted, beyond))


@importer("BitCast")
def bit_cast(call: Call) -> Operand:
    """BitCast-26: the bits of elements, read as another type of the same width."""
    type_ = call.element_type_name(call.integer("to"))
    value = call.array(0)
    if type_ not in ELEMENTS or "8E" in type_ or "4" in type_.removesuffix("64"):
        raise call.unsupported(f"to {type_} is not lowered")
    element = ElementType.parse(ELEMENTS[type_])
    source = ElementType.of_dtype(np.dtype(value.dtype))
    if element.bits != source.bits or element.bits == 1:
        raise call.unsupported(f"from {call.input(0).type} to {type_} is not lowered")
    return Operand(type_, bits_of(value, element))


@importer("Where")
def where(call: Call) -> Operand:
    """ONNX Where-16: ``X`` where the condition holds, ``Y`` elsewhere."""
    condition, yes, no = operands(call, 3)
    shape = np.broadcast_shapes(condition.shape, yes.shape, no.shape)
    type_ = call.input(1).type
    if is_known(condition) and not (is_known(yes) and is_known(no)):
        condition = np.broadcast_to(condition, shape)
        if condition.all() or not condition.any():  # one of the sides
            return Operand(type_, np.broadcast_to(yes if condition.all() else no, shape))
    result = np.where(condition, np.broadcast_to(yes, shape), np.broadcast_to(no, shape))
    return Operand(type_, result)


@importer("IsNaN")
def is_nan(call: Call) -> Operand:
    """IsNaN-20: true for NaN."""
    value = call.array(0)
    return Operand("BOOL", value != value)


@importer("IsInf")
def is_infinite(call: Call) -> Operand:
    """IsInf-20: true for infinities of the signs that the attributes name."""
    value = call.array(0)
    infinity = np.asarray(np.inf, value.dtype)
    result: AnyArray = np.zeros(value.shape, np.bool_)
    if call.attribute("detect_positive", 1):
        result = value == infinity
    if call.attribute("detect_negative", 1):
        result = (value == -infinity) | result
    return Operand("BOOL", result)
