"""Elementwise operators: arithmetic, comparisons, bits and mathematical functions, of every type.

Integers wrap, and are divided towards zero. Transcendental functions of f16 and bf16 are computed
in f32 and rounded once. Sums, products and bounds of quantized operands are in `elementwise`, which
leaves other operands to the formulas here.

Source: ONNX, "Operator Schemas", operator set 28.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import bits_of, convert, divide_truncated, erf, is_known, tanh
from ....numerics.element_types import F32, AnyArray, ElementType
from ..call import Call, Typed, importer

__all__ = ["added", "broadcast_shapes", "multiplied", "negated", "subtracted"]

_Function = Callable[[AnyArray], AnyArray]


def in_f32(function: _Function) -> _Function:
    """Return a function that computes f16 and bf16 in f32, and rounds the result."""

    def compute(value: AnyArray) -> AnyArray:
        dtype = np.dtype(value.dtype)
        if dtype.itemsize > 2:
            return function(value)
        return convert(function(convert(value, F32)), ElementType.of_dtype(dtype))

    return compute


def broadcast_shapes(call: Call, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that shapes broadcast to, as NumPy does."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise call.error(f"has operands of shapes {[list(s) for s in shapes]}") from None


def operands(call: Call, count: int | None = None) -> list[AnyArray]:
    """Return all inputs as arrays of one type, whose shapes broadcast."""
    indices = range(len(call.inputs) if count is None else count)
    types = {call.input(index).type for index in indices}
    if len(types) > 1:
        raise call.error(f"has operands of the types {', '.join(sorted(types))}")
    values = [call.array(index) for index in indices]
    broadcast_shapes(call, [tuple(value.shape) for value in values])
    return values


def _typed(call: Call, value: AnyArray) -> Typed:
    """Return a result of the type of the first input."""
    return Typed(call.input(0).type, value)


# -- arithmetic -----------------------------------------------------------------------------------


def added(call: Call) -> Typed:
    """``A + B``; integers wrap."""
    left, right = operands(call, 2)
    return _typed(call, left + right)


def subtracted(call: Call) -> Typed:
    """``A - B``; integers wrap."""
    left, right = operands(call, 2)
    return _typed(call, left - right)


def multiplied(call: Call) -> Typed:
    """``A * B``; integers wrap."""
    left, right = operands(call, 2)
    return _typed(call, left * right)


def negated(call: Call) -> Typed:
    """``-X``; integers wrap."""
    return _typed(call, -call.array(0))


@importer("Div")
def divide(call: Call) -> Typed:
    """``A / B``; the quotient of integers is cut towards zero."""
    left, right = operands(call, 2)
    if np.dtype(left.dtype).kind in "iu":
        return _typed(call, divide_truncated(left, right))
    return _typed(call, left / right)


@importer("Mod")
def modulo(call: Call) -> Typed:
    """The remainder with the sign of the divisor; with ``fmod`` that of the dividend."""
    left, right = operands(call, 2)
    has_sign_of_dividend = bool(call.attribute("fmod", 0))
    if np.dtype(left.dtype).kind in "iu":
        rest = left - divide_truncated(left, right) * right
    else:
        rest = in_f32_pair(np.fmod, left, right)
    if has_sign_of_dividend or np.dtype(left.dtype).kind == "u":
        return _typed(call, rest)
    zero = np.zeros((), left.dtype)
    is_moved = (rest != zero) & ((rest < zero) != (right < zero))
    return _typed(call, np.where(is_moved, rest + right, rest))


def in_f32_pair(
    function: Callable[[AnyArray, AnyArray], AnyArray], left: AnyArray, right: AnyArray
) -> AnyArray:
    """Compute a function of two floats, f16 and bf16 in f32."""
    dtype = np.dtype(left.dtype)
    if dtype.itemsize > 2:
        return function(left, right)
    wide = function(convert(left, F32), convert(right, F32))
    return convert(wide, ElementType.of_dtype(dtype))


@importer("Pow")
def power(call: Call) -> Typed:
    """``X ** Y`` of the type of ``X``: products where the exponents are integers."""
    base, exponent = call.array(0), call.array(1)
    broadcast_shapes(call, [tuple(base.shape), tuple(exponent.shape)])
    is_float = np.dtype(base.dtype).kind not in "iu"
    if is_known(exponent) and exponent.size:
        floats = np.asarray(exponent).astype(np.float64)
        if (floats == floats.flat[0]).all():
            number = float(floats.flat[0])
            shape = broadcast_shapes(call, [tuple(base.shape), tuple(exponent.shape)])
            if number in (1.0, 2.0, 3.0):
                product = functools.reduce(lambda x, y: x * y, [base] * int(number))
                return _typed(call, np.broadcast_to(product, shape))
            if number == 0.5 and is_float:
                return _typed(call, np.broadcast_to(in_f32(np.sqrt)(base), shape))
        if not is_float and (floats == np.trunc(floats)).all():
            exponent = floats.astype(np.int64)
    if is_float:
        element = ElementType.of_dtype(np.dtype(base.dtype))
        return _typed(call, in_f32_pair(np.power, base, convert(exponent, element)))
    if np.dtype(exponent.dtype).kind not in "iu":
        raise call.error(
            "raises integers to powers that are floats, which is not lowered; cast them to "
            "integers first",
            UnsupportedError,
        )
    return _typed(call, _integer_power(base, exponent))


def _integer_power(base: AnyArray, exponent: AnyArray) -> AnyArray:
    """Powers of integers by repeated squaring; those of negative exponents are cut."""
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


@importer("Sum")
def total(call: Call) -> Typed:
    """The sum of all inputs."""
    return _typed(call, functools.reduce(lambda x, y: x + y, operands(call)))


@importer("Mean")
def mean(call: Call) -> Typed:
    """The mean of all inputs."""
    values = operands(call)
    count = np.asarray(len(values), values[0].dtype)
    return _typed(call, functools.reduce(lambda x, y: x + y, values) / count)


@importer("Max", "Min")
def extreme(call: Call) -> Typed:
    """The greatest or least of all inputs; NaN if one of them is."""
    function = np.maximum if call.node.operator == "Max" else np.minimum
    return _typed(call, functools.reduce(function, operands(call)))


# -- comparisons, booleans and bits ---------------------------------------------------------------

_COMPARISONS = {
    "Equal": np.equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
    "Less": np.less, "LessOrEqual": np.less_equal,
}  # fmt: skip
_BITS = {
    "And": np.bitwise_and, "Or": np.bitwise_or, "Xor": np.bitwise_xor,
    "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
}  # fmt: skip


@importer(*_COMPARISONS)
def compare(call: Call) -> Typed:
    """A boolean for each element; comparisons with NaN are false."""
    left, right = operands(call, 2)
    if np.dtype(left.dtype) == np.bool_:
        left, right = left.astype(np.int8), right.astype(np.int8)
    return Typed("BOOL", _COMPARISONS[call.node.operator](left, right))


@importer(*_BITS)
def combine_bits(call: Call) -> Typed:
    """Operations on booleans, or on the bits of integers."""
    left, right = operands(call, 2)
    return _typed(call, _BITS[call.node.operator](left, right))


@importer("Not", "BitwiseNot")
def invert(call: Call) -> Typed:
    """Each bit inverted."""
    return _typed(call, np.invert(call.array(0)))


@importer("BitShift")
def shift(call: Call) -> Typed:
    """Integers shifted to the left or right; beyond their bits 0, or the sign."""
    value, amount = operands(call, 2)
    direction = call.attribute("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise call.error(f"has the direction {direction!r}, expected LEFT or RIGHT")
    dtype = np.dtype(value.dtype)
    last = np.asarray(dtype.itemsize * 8 - 1, dtype)
    inside = amount & last
    shifted, beyond = value << inside, np.zeros((), dtype)
    if direction == "RIGHT":
        shifted = value >> inside
        beyond = value >> np.broadcast_to(last, value.shape) if dtype.kind == "i" else beyond
    return _typed(call, np.where(amount == inside, shifted, beyond))


@importer("BitCast")
def bit_cast(call: Call) -> Typed:
    """The bits of elements, read as another type of the same width."""
    from ..quantization.quantize_linear import type_name

    type_ = type_name(call, call.integer("to"))
    value = call.array(0)
    from ..reading.model import ELEMENTS

    if type_ not in ELEMENTS or "8E" in type_ or "4" in type_.removesuffix("64"):
        raise call.error(f"to {type_} is not lowered", UnsupportedError)
    element = ElementType.parse(ELEMENTS[type_])
    source = ElementType.of_dtype(np.dtype(value.dtype))
    if element.bits != source.bits or element.bits == 1:
        raise call.error(f"from {call.input(0).type} to {type_} is not lowered", UnsupportedError)
    return Typed(type_, bits_of(value, element))


@importer("Where")
def where(call: Call) -> Typed:
    """``X`` where the condition holds, ``Y`` elsewhere."""
    condition, yes, no = (call.array(index) for index in range(3))
    if call.input(1).type != call.input(2).type:
        raise call.error(f"chooses between {call.input(1).type} and {call.input(2).type}")
    shape = broadcast_shapes(call, [tuple(each.shape) for each in (condition, yes, no)])
    if is_known(condition) and not (is_known(yes) and is_known(no)):
        condition = np.broadcast_to(condition, shape)
        if condition.all() or not condition.any():  # one of the sides
            return Typed(call.input(1).type, np.broadcast_to(yes if condition.all() else no, shape))
    result = np.where(condition, np.broadcast_to(yes, shape), np.broadcast_to(no, shape))
    return Typed(call.input(1).type, result)


@importer("IsNaN")
def is_nan(call: Call) -> Typed:
    """True for NaN."""
    value = call.array(0)
    return Typed("BOOL", value != value)


@importer("IsInf")
def is_infinite(call: Call) -> Typed:
    """True for infinities of the signs that the attributes name."""
    value = call.array(0)
    infinity = np.asarray(np.inf, value.dtype)
    result: AnyArray = np.zeros(value.shape, np.bool_)
    if call.attribute("detect_positive", 1):
        result = value == infinity
    if call.attribute("detect_negative", 1):
        result = (value == -infinity) | result
    return Typed("BOOL", result)


# -- functions ------------------------------------------------------------------------------------


def _absolute(value: AnyArray) -> AnyArray:
    return value if np.dtype(value.dtype).kind in "ub" else np.abs(value)


def _sign(value: AnyArray) -> AnyArray:
    """-1, 0 or 1; NaN of NaN."""
    one, zero = np.ones((), value.dtype), np.zeros((), value.dtype)
    positive = np.where(value > zero, one, zero)
    if np.dtype(value.dtype).kind == "u":
        return positive
    signs = np.where(value < zero, -one, positive)
    is_float = np.dtype(value.dtype).kind not in "iu"
    return np.where(value != value, value, signs) if is_float else signs


def _reciprocal(value: AnyArray) -> AnyArray:
    return np.ones((), value.dtype) / value


def _number(number: float, like: AnyArray) -> AnyArray:
    return np.asarray(number, like.dtype)


def _arctan(value: AnyArray) -> AnyArray:
    return np.arctan2(value, np.broadcast_to(_number(1, value), value.shape))


def _arcsin(x: AnyArray) -> AnyArray:
    """``atan2(x, sqrt((1 - x) * (1 + x)))``."""
    one = _number(1, x)
    return np.arctan2(x, np.sqrt((one - x) * (one + x)))


def _arccos(x: AnyArray) -> AnyArray:
    """``2 * atan2(sqrt(1 - x), sqrt(1 + x))``."""
    one = _number(1, x)
    return _number(2, x) * np.arctan2(np.sqrt(one - x), np.sqrt(one + x))


def _tan(x: AnyArray) -> AnyArray:
    return np.sin(x) / np.cos(x)


def _sinh(x: AnyArray) -> AnyArray:
    """``(t + t / (t + 1)) / 2`` of ``t = exp(|x|) - 1``, with the sign of ``x``."""
    one, half = _number(1, x), _number(0.5, x)
    t: AnyArray = np.expm1(np.abs(x))
    small = half * (t + t / (t + one))
    large = half * np.exp(np.abs(x))  # t / (t + 1) is NaN where t overflows
    magnitude = np.where(np.abs(x) < _number(20, x), small, large)
    return np.where(x < _number(0, x), -magnitude, magnitude)


def _cosh(x: AnyArray) -> AnyArray:
    half = _number(0.5, x)
    rising, falling = half * np.exp(x), half * np.exp(-x)
    return rising + falling


def _arcsinh(x: AnyArray) -> AnyArray:
    """``log1p(|x| + x**2 / (1 + sqrt(x**2 + 1)))``, with the sign of ``x``."""
    one = _number(1, x)
    magnitude: AnyArray = np.abs(x)
    is_large = magnitude > _number(1e9, x)
    inside: AnyArray = np.where(is_large, one, magnitude)
    square = inside * inside
    small = np.log1p(inside + square / (one + np.sqrt(square + one)))
    large = np.log(np.where(is_large, magnitude, one)) + _number(math.log(2), x)
    result = np.where(is_large, large, small)
    return np.where(x < _number(0, x), -result, result)


def _arccosh(x: AnyArray) -> AnyArray:
    """``log1p(t + sqrt(2 * t + t**2))`` of ``t = x - 1``."""
    t = x - _number(1, x)
    is_large = t > _number(1e9, x)
    inside = np.where(is_large, _number(1, x), t)
    small = np.log1p(inside + np.sqrt(_number(2, x) * inside + inside * inside))
    large = np.log(np.where(is_large, x, _number(1, x))) + _number(math.log(2), x)
    return np.where(is_large, large, small)


def _arctanh(x: AnyArray) -> AnyArray:
    return _number(0.5, x) * (np.log1p(x) - np.log1p(-x))


_FUNCTIONS: dict[str, _Function] = {
    "Abs": _absolute,
    "Acos": in_f32(_arccos),
    "Acosh": in_f32(_arccosh),
    "Asin": in_f32(_arcsin),
    "Asinh": in_f32(_arcsinh),
    "Atan": in_f32(_arctan),
    "Atanh": in_f32(_arctanh),
    "Ceil": in_f32(np.ceil),
    "Cos": in_f32(np.cos),
    "Cosh": in_f32(_cosh),
    "Erf": in_f32(erf),
    "Exp": in_f32(np.exp),
    "Floor": in_f32(np.floor),
    "Log": in_f32(np.log),
    "Reciprocal": in_f32(_reciprocal),
    "Round": in_f32(np.rint),
    "Sign": _sign,
    "Sin": in_f32(np.sin),
    "Sinh": in_f32(_sinh),
    "Sqrt": in_f32(np.sqrt),
    "Tan": in_f32(_tan),
    "Tanh": in_f32(tanh),
}
"""Functions of one operand, by the names of operators."""


@importer(*_FUNCTIONS)
def function_of_one(call: Call) -> Typed:
    """A function of each element."""
    value = call.array(0)
    if call.node.operator == "Erf" and np.dtype(value.dtype).kind in "iu":
        raise call.error(f"of {call.input(0).type} is not lowered", UnsupportedError)
    return _typed(call, _FUNCTIONS[call.node.operator](value))
