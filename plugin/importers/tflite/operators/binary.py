"""Importers of elementwise operators: arithmetic, logic, comparisons, selections.

Sources: LiteRT, ``add.cc``, ``sub.cc``, ``mul.cc``, ``div.cc``, ``reference/integer_ops/add.h``,
``mul.h``, ``reference/div.h``, ``squared_difference.cc``, ``pow.cc``, ``floor_div.cc``,
``floor_mod.cc``, ``add_n.cc``, ``atan2.cc``, ``bitwise_xor.cc``, ``right_shift.cc``,
``maximum_minimum.cc``, ``comparisons.cc``, ``logical.cc``, ``select.cc``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, divide_truncated
from ....numerics.element_types import I32, I64, AnyArray, ElementType
from ....numerics.fixed_point import divide_by_power, high_product
from ..arithmetic.fixed_point_functions import leading_zeros, reciprocal
from ..arithmetic.requantization import (
    checked_log2,
    multiplier_and_exponent,
    rescale,
    rounding_right_shift,
)
from ..call import Call, importer


def _unquantized_operands(call: Call) -> tuple[AnyArray, AnyArray]:
    """Return the values of two operands, checked to have no scale."""
    left, right = call.alike(0, 1)
    if left.is_quantized:
        raise call.error(f"does not support {left.tensor} with a scale", UnsupportedError)
    return left.value, right.value


def _power(x: AnyArray, y: AnyArray) -> AnyArray:
    """Return a power, for non-negative exponents of integers; LiteRT refuses negative ones."""
    if x.dtype.kind not in "biu":
        return np.power(x, y)
    # From exponent 32 on, only bases of -1, 0 and 1 matter: exponents 30 and 31 give the same.
    exponent = np.where(y < 32, np.maximum(y, 0), (y & 1) + 30)
    result: AnyArray = np.where((exponent & 1) != 0, x, x.dtype.type(1))
    for bit in range(1, 5):
        x = x * x
        result = np.where((exponent >> bit & 1) != 0, result * x, result)
    return result


def _floor_div(x: AnyArray, y: AnyArray) -> AnyArray:
    if x.dtype.kind not in "biu":
        return np.floor(x / y)
    quotient = divide_truncated(np.where(y < 0, -x, x), np.abs(y))
    rest = x - quotient * y
    return np.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)


def _floor_mod(x: AnyArray, y: AnyArray) -> AnyArray:
    """Return the remainder of `_floor_div`, with the sign of the divisor."""
    if x.dtype.kind not in "biu":
        rest = np.fmod(x, y)
    else:
        rest = x - divide_truncated(np.where(y < 0, -x, x), np.abs(y)) * y
    return np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


_UNQUANTIZED: dict[str, Callable[[AnyArray, AnyArray], AnyArray]] = {
    "ATAN2": np.arctan2,
    "BITWISE_XOR": operator.xor,
    "FLOOR_DIV": _floor_div,
    "FLOOR_MOD": _floor_mod,
    "POW": _power,
    "RIGHT_SHIFT": lambda x, y: x >> np.minimum(np.maximum(y, 0), x.dtype.itemsize * 8 - 1),
    "STABLEHLO_ADD": operator.add,
    "STABLEHLO_MAXIMUM": np.maximum,
    "STABLEHLO_MINIMUM": np.minimum,
    "STABLEHLO_MULTIPLY": operator.mul,
}


@importer(*_UNQUANTIZED)
def unquantized_function(call: Call) -> AnyArray:
    """Import operators of unquantized operands.

    The shift of RIGHT_SHIFT is clamped to 0 and the bits of the type minus 1.
    """
    return _UNQUANTIZED[call.operator.name](*_unquantized_operands(call))


_OF_STORAGE: dict[str, Callable[..., AnyArray]] = {
    "LOGICAL_AND": operator.and_,
    "LOGICAL_NOT": operator.invert,
    "LOGICAL_OR": operator.or_,
    "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum,
}


@importer(*_OF_STORAGE)
def storage_function(call: Call) -> AnyArray:
    """Import logical operators, MAXIMUM and MINIMUM; LiteRT assumes equal scales."""
    operands = call.alike(*range(len(call.inputs)))
    return _OF_STORAGE[call.operator.name](*(operand.value for operand in operands))


def _rescaled_operands(
    call: Call, bits: int, unit: np.float64, element: ElementType = I32
) -> list[AnyArray]:
    """Return both operands with more bits, in units of `unit`."""
    return [
        rescale(
            convert(call.centered(operand), element) << bits,
            np.float64(call.per_tensor(operand.tensor).scale) / unit,
        )
        for operand in (call.input(0), call.input(1))
    ]


@importer("ADD", "SUB")
def add(call: Call) -> AnyArray:
    """Import ADD and SUB.

    Quantized operands are rescaled to half the greater scale with 20 (or 15) more bits, and the
    result is rounded a second time.
    """
    left, right = call.alike(0, 1)
    is_sum = call.operator.name == "ADD"
    if not left.is_quantized:
        total = left.value + right.value if is_sum else left.value - right.value
        return call.activated(total)
    scales = [call.per_tensor(operand.tensor).scale for operand in (left, right)]
    target = call.per_tensor(call.output)
    is_int16 = call.output.type == "INT16"
    exponents = [checked_log2(scale) for scale in (*scales, target.scale)]
    if is_int16 and getattr(call.options, "pot_scale_int16", True) and None not in exponents:
        return _add_powers_of_two(call, [e for e in exponents if e is not None])
    bits = 15 if is_int16 else 20
    twice = np.float64(np.float32(2) * max(scales))
    terms = _rescaled_operands(call, bits, twice, I64)
    total = terms[0] + terms[1] if is_sum else terms[0] - terms[1]
    factor = twice / (np.float64(1 << bits) * np.float64(target.scale))
    return call.to_storage(rescale(total, factor))


def _add_powers_of_two(call: Call, exponents: Sequence[int]) -> AnyArray:
    """Add int16 operands whose scales are powers of two: one is shifted to the result's scale."""
    shifts = [exponents[2] - exponent for exponent in exponents[:2]]
    if 0 not in shifts or min(shifts) < 0:
        raise call.error(
            f"has the scales 2**{exponents[0]} and 2**{exponents[1]} for a result of "
            f"2**{exponents[2]}; expected one of them to be that, and none to be greater"
        )
    for operand in (call.input(0), call.input(1)):
        call.symmetric_scale(operand)  # refuses a zero point
    if call.per_tensor(call.output).zero_point:
        raise call.error(f"needs a zero point of 0 of {call.output}", UnsupportedError)
    x, y = (
        rounding_right_shift(convert(call.input(index).value, I32), shift)
        for index, shift in enumerate(shifts)
    )
    return call.to_storage(x + y if call.operator.name == "ADD" else x - y)


@importer("MUL")
def multiply(call: Call) -> AnyArray:
    """Import MUL: the product of centered storage, rescaled."""
    left, right = call.alike(0, 1)
    if not left.is_quantized:
        return call.activated(left.value * right.value)
    x, y, z = (call.per_tensor(t) for t in (left.tensor, right.tensor, call.output))
    factor = np.float64(x.scale * y.scale / z.scale)
    return call.to_storage(rescale(call.centered(left) * call.centered(right), factor))


@importer("DIV")
def divide(call: Call) -> AnyArray:
    """Import DIV: unquantized integers are divided toward zero, storage by a 31-bit reciprocal.

    The dividend is first shifted to 31 bits, and the quotient is rescaled and shifted back. LiteRT
    refuses divisors of 0 at run time; here they count as 1.
    """
    left, right = call.alike(0, 1)
    if left.is_float:
        return call.activated(left.value / right.value)
    if left.tensor.quantization is None:
        divisor = right.value
        dividend = np.where(divisor < 0, -left.value, left.value)
        return call.activated(divide_truncated(dividend, np.abs(divisor)))
    x, y, z = (call.per_tensor(t) for t in (left.tensor, right.tensor, call.output))
    divisor = convert(call.centered(right), I64)
    dividend = convert(call.centered(left), I64)
    dividend = np.where(divisor < 0, -dividend, dividend)
    inverse, shift = reciprocal(np.maximum(np.abs(divisor), 1))
    magnitude = np.where(dividend < 0, ~dividend, dividend)
    headroom = leading_zeros(magnitude) - 1
    quotient = high_product(dividend << headroom, inverse)
    multiplier, exponent = multiplier_and_exponent(np.float64(x.scale / (y.scale * z.scale)))
    total = high_product(quotient, np.int64(multiplier))
    right_shift = shift + headroom - int(exponent)
    shifted = divide_by_power(total, np.minimum(np.maximum(right_shift, 0), 31))
    is_lost = right_shift > 31
    shifted = np.where(is_lost, 0, shifted << np.minimum(np.maximum(-right_shift, 0), 31))
    limit = np.int64(1 << 20)  # beyond every storage value
    return call.to_storage(convert(np.minimum(np.maximum(shifted, -limit), limit), I32))


@importer("SQUARED_DIFFERENCE")
def squared_difference(call: Call) -> AnyArray:
    """Import SQUARED_DIFFERENCE; int8 operands get twice the greater scale with 7 more bits."""
    left, right = call.alike(0, 1)
    if not left.is_quantized:
        difference = left.value - right.value
        return difference * difference
    if left.tensor.type != "INT8":
        raise call.unsupported_type(left)
    scales = [call.per_tensor(operand.tensor).scale for operand in (left, right)]
    twice = np.float64(np.float32(2) * max(scales))
    x, y = _rescaled_operands(call, 7, twice)
    factor = twice * twice / (np.float64(1 << 14) * np.float64(call.per_tensor(call.output).scale))
    return call.to_storage(rescale((x - y) * (x - y), factor))


@importer("ADD_N")
def add_n(call: Call) -> AnyArray:
    """Import ADD_N: the sum of all operands."""
    total = _unquantized_operands(call)[0]
    for operand in call.alike(*range(len(call.inputs)))[1:]:
        total = total + operand.value
    return total


_COMPARISONS: dict[str, Callable[[AnyArray, AnyArray], AnyArray]] = {
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
}


@importer(*_COMPARISONS)
def compare(call: Call) -> AnyArray:
    """Import comparisons; quantized operands are rounded to units of ``2**-8``.

    LiteRT assumes equal scales when it orders 16-bit operands. It rescales only by factors below 1.
    """
    left, right = call.alike(0, 1, has_result=False)
    function = _COMPARISONS[call.operator.name]
    if left.tensor.type == "BOOL":
        return function(convert(left.value, I32), convert(right.value, I32))
    is_order = call.operator.name not in ("EQUAL", "NOT_EQUAL")
    if not left.is_quantized or (left.tensor.type == "INT16" and is_order):
        return function(left.value, right.value)
    scales = [np.float64(call.per_tensor(operand.tensor).scale) for operand in (left, right)]
    if max(scales) >= 1:
        raise call.error(
            f"has operands of the scales {scales[0]:g} and {scales[1]:g}, which LiteRT compares "
            "only if both are below 1",
            UnsupportedError,
        )
    return function(*_rescaled_operands(call, 8, np.float64(1)))


@importer("SELECT", "SELECT_V2")
def select(call: Call) -> AnyArray:
    """Import SELECT and SELECT_V2; a one-dimensional condition of SELECT selects rows."""
    condition, x, y = (call.input(index).value for index in range(3))
    if call.input(0).tensor.type != "BOOL":
        raise call.unsupported_type(call.input(0))
    if call.operator.name == "SELECT" and condition.ndim == 1 and x.ndim > 1:
        condition = condition.reshape((-1, *(1,) * (x.ndim - 1)))
    return np.where(condition, x, y)
