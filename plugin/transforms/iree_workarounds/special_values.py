"""Float functions at special values: 0, infinities, NaN and subnormals.

Symptom: wrong results of

* ``atan2``: NaN for two zeros or two infinities, one sign for zeros of either sign; f64 is refused,
  f32 has errors of 40 units in the last place,
* ``power``: NaN for an exponent of 0, or a negative base; f32 has errors of 50 units,
* ``cbrt``: NaN for an infinity,
* ``ceil`` and ``floor``: 0 for a subnormal, as the devices flush it.

Cause: IREE 3.13 expands these functions to formulas for ordinary operands.
Tests: tests/test_special_values.py covers it; `test_powers_are_still_inaccurate` in
tests/test_exponentials.py.

The operation is kept for ordinary operands; special cases are selected before and after it. Signs
are read from bits, so that -0 has one. A value that a device flushes to zero counts as zero, except
in ``ceil`` and ``floor``. Powers and angles of f16 and bf16 are computed in f32.

Source: StableHLO specification ("atan2", "power", ... operation from IEEE-754); IEEE 754-2019, 9.2.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable

import numpy as np

from ... import emit
from ...core._mlir import Operation, ir
from ...dialects.dense import array_of_dense, splat_attribute
from ...dialects.quant import element_type
from ...emit import ArrayLike
from ...emit.real_functions import angle_of, ceil, floor, signed_bits, with_sign
from ...numerics.array_functions import convert
from ...numerics.element_types import F32, F64
from ...numerics.exponentials import power
from ..base import NoMatch, Replacement

ARCTANGENTS = ("chlo.atan", "math.atan", "math.atan2")
"""Operations of `expand_arctangent`."""
_ORDINARY = "ordinary_operands"
"""Attribute of an operation that has ordinary operands only."""


def expand_special(op: Operation) -> Replacement:
    """Rewrite an operation of `SPECIAL` for all operands."""
    if not isinstance(element_type(op.results[0].type), ir.FloatType):
        return NoMatch("is not of floats")
    if _ORDINARY in op.attributes:
        return NoMatch("has ordinary operands")
    result = SPECIAL[op.name](*(emit.tensor(value) for value in op.operands))
    return result.value


def expand_arctangent(op: Operation) -> Replacement:
    """Rewrite ``atan``, and ``math.atan2``, of tensors and in bodies of loops."""
    type_ = op.results[0].type
    if not isinstance(element_type(type_), ir.FloatType) or isinstance(type_, ir.VectorType):
        return NoMatch("is not of floats, or is of vectors")
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


def _atan2(y: ArrayLike, x: ArrayLike) -> ArrayLike:
    """``|atan2|`` on the axis, on the diagonals or elsewhere, with the sign of ``y``."""
    if y.element not in (F32, F64):
        return convert(_atan2(convert(y, F32), convert(x, F32)), y.element)
    is_left = signed_bits(x) < 0
    on_axis, diagonal = y == 0.0, (np.abs(y) == np.inf) & (np.abs(x) == np.inf)
    ordinary_x = np.where(on_axis | diagonal, 1.0, x)
    ordinary_y = np.where(on_axis | diagonal, 1.0, y)
    angle = angle_of(ordinary_y, ordinary_x, is_left)
    pi, quarter = (x.form.known(math.pi / divisor, x.element) for divisor in (1, 4))
    angle = np.where(on_axis, np.where(is_left, pi, 0.0), angle)
    angle = np.where(diagonal, np.where(is_left, 3.0 * quarter, quarter), angle)
    is_nan = (y != y) | (x != x)
    return np.where(is_nan, np.nan, with_sign(angle, y))


def _power(base: ArrayLike, exponent: ArrayLike) -> ArrayLike:
    """``base**exponent``; by products, a quotient or a root for a few constant exponents."""
    attribute = splat_attribute(exponent.value)
    has_number = attribute is not None and math.prod(attribute.type.shape)
    number = array_of_dense(attribute).flat[0] if has_number else None
    if number in (1.0, 2.0, 3.0):
        return functools.reduce(operator.mul, [base] * int(number))
    if number == -1.0:
        return 1.0 / base
    if number == 0.5:
        # The power of -0 is 0, and that of a negative infinity is infinite.
        return np.where(base == -np.inf, np.inf, np.sqrt(base + 0.0))
    if base.element not in (F32, F64):
        return convert(_power_of_any(convert(base, F32), convert(exponent, F32)), base.element)
    return _power_of_any(base, exponent)


def _power_of_any(base: ArrayLike, exponent: ArrayLike) -> ArrayLike:
    """``|base|**exponent``; of a negative base negative for odd exponents, NaN for fractions."""
    size = np.abs(base)
    is_special = (exponent == 0.0) | (size == 1.0) | (size == 0.0) | (size == np.inf)
    is_special = is_special | (np.abs(exponent) == np.inf) | (base != base)
    ordinary = np.where(is_special, 1.0, size)
    if base.element == F32:
        magnitude = power(ordinary, exponent)
    else:
        magnitude = _ordinary("power", ordinary, exponent)
    grows = (size > 1.0) & (exponent > 0.0) | (size < 1.0) & (exponent < 0.0)
    infinite = base.form.known(np.inf, base.element)
    limit = np.where(size == 1.0, 1.0, np.where(grows, infinite, 0.0))
    limit = np.where((base != base) | (exponent != exponent) & (size != 1.0), np.nan, limit)
    magnitude = np.where(is_special, limit, magnitude)
    half = exponent * 0.5
    is_integer = np.rint(exponent) == exponent
    is_odd = is_integer & (np.rint(half) != half) & (np.abs(exponent) != np.inf)
    signed = np.where(is_odd, with_sign(magnitude, base), magnitude)
    has_none = (base < 0.0) & (size != np.inf) & ~is_integer
    signed = np.where(has_none, np.nan, signed)
    is_one = (exponent == 0.0) | (base == 1.0)
    return np.where(is_one, 1.0, signed)


def _cbrt(x: ArrayLike) -> ArrayLike:
    """An infinity is its own root."""
    is_infinite = np.abs(x) == np.inf
    return np.where(is_infinite, x, _ordinary("cbrt", np.where(is_infinite, 1.0, x)))


SPECIAL: dict[str, Callable[..., ArrayLike]] = {
    "stablehlo.atan2": _atan2,
    "stablehlo.cbrt": _cbrt,
    "stablehlo.ceil": lambda x: ceil(x, lambda each: _ordinary("ceil", each)),
    "stablehlo.floor": lambda x: floor(x, lambda each: _ordinary("floor", each)),
    "stablehlo.power": _power,
}
"""Expansions for all operands, by operation name."""
