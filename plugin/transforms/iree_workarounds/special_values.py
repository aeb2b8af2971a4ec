"""Float functions at special values: 0, infinities, NaN and subnormals.

Symptom: wrong results of

* ``atan2``: NaN for two zeros or two infinities, one sign for zeros of either sign; f64 is refused,
* ``power``: NaN for an exponent of 0, or a negative base,
* ``cbrt``: NaN for an infinity,
* ``remainder``: a number for a divisor of 0, NaN for an infinite one (Vulkan); f64 is refused on
  CPUs, and wrong for great quotients on Vulkan,
* ``ceil`` and ``floor``: 0 for a subnormal, as the devices flush it.

Cause: IREE 3.13 expands these functions to formulas for ordinary operands.
Test: none; tests/test_special_values.py covers it.

The operation is kept for ordinary operands; special cases are selected before and after it. Signs
are read from bits, so that -0 has one. A value that a device flushes to zero counts as zero, except
in ``ceil`` and ``floor``.

Source: StableHLO specification ("atan2", "power", ... operation from IEEE-754); IEEE 754-2019, 9.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...emit import ArrayLike
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import create
from ...emit.real_functions import angle_of, ceil, floor
from ...numerics.array_functions import bits_of
from ...numerics.element_types import ElementType
from ..base import NoMatch, Replacement

ARCTANGENTS = ("math.atan", "math.atan2")
"""Operations of `expand_arctangent`."""
_ORDINARY = "ordinary_operands"
"""Attribute of an operation that has ordinary operands only."""
_F64, _MANTISSA = ElementType.parse("f64"), 52
"""The element type, and the bits of its mantissa."""


def expand_special(op: Operation) -> Replacement:
    """Rewrite an operation of `SPECIAL` for all operands."""
    if not isinstance(element_type(op.results[0].type), ir.FloatType):
        return NoMatch("is not of floats")
    if _ORDINARY in op.attributes:
        return NoMatch("has ordinary operands")
    result = SPECIAL[op.name](*(emit.tensor(value) for value in op.operands))
    return result.value


def expand_arctangent(op: Operation) -> Replacement:
    """Rewrite ``math.atan`` and ``math.atan2`` of f64, of tensors and in bodies of loops."""
    if not isinstance(element_type(op.results[0].type), ir.F64Type):
        return NoMatch("is not of f64")
    operands = [emit.tensor_or_scalar(value) for value in op.operands]
    y = operands[0]
    x = operands[1] if len(operands) > 1 else y.form.known(1.0, y.element)
    return _atan2(y, x).value


def _ordinary(name: str, *operands: ArrayLike) -> ArrayLike:
    """The operation itself, on ordinary operands."""
    values = [operand.value for operand in operands]
    first = operands[0]
    attributes = {_ORDINARY: ir.UnitAttr.get()}
    created = emit.value(f"stablehlo.{name}", values, values[0].type, attributes)
    return first.form.emitted(created, first.element)


def _signed_bits(x: ArrayLike) -> ArrayLike:
    return bits_of(x, ElementType.parse(f"i{x.element.bits}"))


def _with_sign(magnitude: ArrayLike, sign: ArrayLike) -> ArrayLike:
    """A nonnegative number, negated where the sign bit of another is set."""
    return np.where(_signed_bits(sign) < 0, -magnitude, magnitude)


def _atan2(y: ArrayLike, x: ArrayLike) -> ArrayLike:
    """``|atan2|`` on the axis, on the diagonals or elsewhere, with the sign of ``y``."""
    is_left = _signed_bits(x) < 0
    on_axis, diagonal = y == 0.0, (np.abs(y) == np.inf) & (np.abs(x) == np.inf)
    ordinary_x = np.where(on_axis | diagonal, 1.0, x)
    ordinary_y = np.where(on_axis | diagonal, 1.0, y)
    if y.element == _F64:
        angle = angle_of(ordinary_y, ordinary_x, is_left)
    else:
        angle = np.abs(_ordinary("atan2", ordinary_y, ordinary_x))
    pi, quarter = (x.form.known(math.pi / divisor, x.element) for divisor in (1, 4))
    angle = np.where(on_axis, np.where(is_left, pi, 0.0), angle)
    angle = np.where(diagonal, np.where(is_left, 3.0 * quarter, quarter), angle)
    is_nan = (y != y) | (x != x)
    return np.where(is_nan, np.nan, _with_sign(angle, y))


def _power(base: ArrayLike, exponent: ArrayLike) -> ArrayLike:
    """``|base| ** exponent``; of a negative base negative for odd exponents, NaN for fractions."""
    size = np.abs(base)
    is_special = (exponent == 0.0) | (size == 1.0) | (size == 0.0) | (size == np.inf)
    is_special = is_special | (np.abs(exponent) == np.inf)
    magnitude = _ordinary("power", np.where(is_special, 1.0, size), exponent)
    grows = (size > 1.0) & (exponent > 0.0) | (size < 1.0) & (exponent < 0.0)
    infinite = base.form.known(np.inf, base.element)
    limit = np.where(size == 1.0, 1.0, np.where(grows, infinite, 0.0))
    limit = np.where((base != base) | (exponent != exponent) & (size != 1.0), np.nan, limit)
    magnitude = np.where(is_special, limit, magnitude)
    half = exponent * 0.5
    is_integer = np.rint(exponent) == exponent
    is_odd = is_integer & (np.rint(half) != half) & (np.abs(exponent) != np.inf)
    signed = np.where(is_odd, _with_sign(magnitude, base), magnitude)
    has_none = (base < 0.0) & (size != np.inf) & ~is_integer
    signed = np.where(has_none, np.nan, signed)
    is_one = (exponent == 0.0) | (base == 1.0)
    return np.where(is_one, 1.0, signed)


def _cbrt(x: ArrayLike) -> ArrayLike:
    """An infinity is its own root."""
    is_infinite = np.abs(x) == np.inf
    return np.where(is_infinite, x, _ordinary("cbrt", np.where(is_infinite, 1.0, x)))


def _remainder(dividend: ArrayLike, divisor: ArrayLike) -> ArrayLike:
    """NaN by 0 and of an infinity, the dividend by an infinity; with the sign of the dividend."""
    has_none = (divisor == 0.0) | (np.abs(dividend) == np.inf) | (dividend != dividend)
    has_none = has_none | (divisor != divisor)
    is_whole = np.abs(divisor) == np.inf
    ordinary_dividend = np.where(has_none, 1.0, np.abs(dividend))
    ordinary_divisor = np.where(has_none | is_whole, 1.0, np.abs(divisor))
    if dividend.element == _F64:
        magnitude = _long_division(ordinary_dividend, ordinary_divisor)
    else:
        magnitude = np.abs(_ordinary("remainder", ordinary_dividend, ordinary_divisor))
    ordinary = _with_sign(magnitude, dividend)
    return np.where(has_none, np.nan, np.where(is_whole, dividend, ordinary))


def _long_division(dividend: ArrayLike, divisor: ArrayLike) -> ArrayLike:
    """The exact remainder of positive numbers: a loop subtracts multiples of the divisor.

    With ``t`` the divisor times the power of two for which ``t <= r < 2 t``, ``r - t`` is exact
    (Sterbenz), and has fewer bits before the divisor's last one.
    """
    values = dividend.value, divisor.value
    types = [value.type for value in values]
    mantissa = (1 << _MANTISSA) - 1

    def traced(arguments: Sequence[Value]) -> Iterator[ArrayLike]:
        return (emit.tensor(value, _F64) for value in arguments)

    def is_unfinished(*arguments: Value) -> list[Value]:
        remainder, by = traced(arguments)
        axes = range(len(types[0].shape))
        return [emit_stablehlo.reduce((remainder >= by).value, axes, "or")]

    def subtract(*arguments: Value) -> list[Value]:
        remainder, by = traced(arguments)
        exponent = _signed_bits(remainder) & ~mantissa
        multiple = bits_of(exponent | (_signed_bits(by) & mantissa), _F64)
        multiple = np.where(multiple > remainder, multiple * 0.5, multiple)
        return [np.where(remainder >= by, remainder - multiple, remainder).value, by.value]

    loop = create("stablehlo.while", values, types, regions=2)
    for region, function in zip(loop.regions, (is_unfinished, subtract), strict=True):
        emit_stablehlo.fill_body(region, types, function)
    return next(traced(loop.results))


SPECIAL: dict[str, Callable[..., ArrayLike]] = {
    "stablehlo.atan2": _atan2,
    "stablehlo.cbrt": _cbrt,
    "stablehlo.ceil": lambda x: ceil(x, lambda each: _ordinary("ceil", each)),
    "stablehlo.floor": lambda x: floor(x, lambda each: _ordinary("floor", each)),
    "stablehlo.power": _power,
    "stablehlo.remainder": _remainder,
}
"""Expansions for all operands, by operation name."""
