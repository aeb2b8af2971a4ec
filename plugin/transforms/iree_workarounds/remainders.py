"""Exact remainders of floats.

Symptom: of f32, wrong results where the quotient is large or nearly an integer; a number for a
divisor of 0, NaN for an infinite one (Vulkan). f64 is refused on CPUs, and wrong on Vulkan where
the quotient is large.
Cause: IREE 3.13 computes ``x - trunc(x / y) * y`` in the type of ``x``.
Test: `test_remainders_are_still_inexact` in tests/test_special_values.py.

A remainder is exact in its type, whatever the quotient. Of f32, and of narrower floats converted to
it, two steps subtract a multiple of the divisor that is exact: they do for quotients up to 2**21. A
loop, bit by bit, does the rest, and all of f64.

Source: StableHLO specification, ``remainder``: operation from IEEE-754.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...emit import ArrayLike
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import create
from ...emit.real_functions import signed_bits, with_sign
from ...numerics.array_functions import bits_of, convert
from ...numerics.element_types import F32, F64
from ..base import NoMatch, Replacement

_MANTISSA_BITS = {F32: 23, F64: 52}
_QUOTIENT_BITS, _DIVISOR_BITS = 11, 12
"""Bits of a quotient and of a divisor whose product, of 23 bits, is exact in f32."""
_MAX_DIVIDEND, _MAX_QUOTIENT = 2.0**126, 2.0**100
"""Steps leave more to the loop: the product might be infinite."""


def expand_remainder(op: Operation) -> Replacement:
    """Rewrite ``stablehlo.remainder`` of floats, for all operands."""
    if not isinstance(element_type(op.results[0].type), ir.FloatType):
        return NoMatch("is not of floats")
    dividend, divisor = (emit.tensor(value) for value in op.operands)
    if dividend.element in _MANTISSA_BITS:
        return _remainder(dividend, divisor).value
    return convert(
        _remainder(convert(dividend, F32), convert(divisor, F32)), dividend.element
    ).value


def _remainder(dividend: ArrayLike, divisor: ArrayLike) -> ArrayLike:
    """NaN by 0 and of an infinity, the dividend by an infinity; with the sign of the dividend."""
    size, by = np.abs(dividend), np.abs(divisor)
    has_none = (divisor == 0.0) | (size == np.inf) | (dividend != dividend)
    has_none = has_none | (divisor != divisor)
    is_whole = size < by
    by = np.where(has_none | is_whole, 1.0, by)
    rest = np.where(has_none | is_whole, 0.0, size)
    if dividend.element == F32:
        rest = _nearest_rest(_nearest_rest(rest, by), by)
    magnitude = _bit_by_bit(np.abs(rest), by)
    is_below = (rest < 0.0) & (magnitude != 0.0)
    magnitude = np.where(is_below, by - magnitude, magnitude)
    signed = with_sign(magnitude, dividend)
    return np.where(has_none, np.nan, np.where(is_whole, dividend, signed))


def _nearest_rest(dividend: ArrayLike, divisor: ArrayLike) -> ArrayLike:
    """``dividend - q * divisor``, exact, where ``q`` is the quotient rounded to an integer.

    A quotient above 2**11 is rounded to 11 bits instead: its rest is smaller by 2**11. The product
    of ``q`` and either part of the divisor is exact. So are both differences: each is a multiple of
    the unit in the last place of ``divisor``, times the power of two in ``q``, and less than 2**24
    of them.
    """
    quotient = dividend / divisor
    rounded = _rounded_to(quotient, _QUOTIENT_BITS)
    rounded = np.where(np.abs(quotient) < 1 << _QUOTIENT_BITS, np.rint(quotient), rounded)
    is_finite = (np.abs(dividend) < _MAX_DIVIDEND) & (np.abs(quotient) < _MAX_QUOTIENT)
    rounded = np.where(is_finite, rounded, 0.0)
    head = _rounded_to(divisor, _DIVISOR_BITS)
    return (dividend - rounded * head) - rounded * (divisor - head)


def _rounded_to(x: ArrayLike, count: int) -> ArrayLike:
    """An f32 rounded to a number of bits."""
    dropped = _MANTISSA_BITS[F32] + 1 - count
    bits = signed_bits(x) + (1 << (dropped - 1))
    return bits_of(bits & -(1 << dropped), F32)


def _bit_by_bit(dividend: ArrayLike, divisor: ArrayLike) -> ArrayLike:
    """The remainder of numbers that are not negative: a loop subtracts multiples of the divisor.

    With ``t`` the divisor times the power of two for which ``t <= r < 2 t``, ``r - t`` is exact
    (Sterbenz), and has fewer bits before the divisor's last one.
    """
    element = dividend.element
    values = dividend.value, divisor.value
    types = [value.type for value in values]
    mantissa = (1 << _MANTISSA_BITS[element]) - 1

    def traced(arguments: Sequence[Value]) -> Iterator[ArrayLike]:
        return (emit.tensor(value, element) for value in arguments)

    def is_unfinished(*arguments: Value) -> list[Value]:
        remainder, by = traced(arguments)
        axes = range(len(types[0].shape))
        return [emit_stablehlo.reduce((remainder >= by).value, axes, "or")]

    def subtract(*arguments: Value) -> list[Value]:
        remainder, by = traced(arguments)
        exponent = signed_bits(remainder) & ~mantissa
        multiple = bits_of(exponent | (signed_bits(by) & mantissa), element)
        multiple = np.where(multiple > remainder, multiple * 0.5, multiple)
        return [np.where(remainder >= by, remainder - multiple, remainder).value, by.value]

    loop = create("stablehlo.while", values, types, regions=2)
    for region, function in zip(loop.regions, (is_unfinished, subtract), strict=True):
        emit_stablehlo.fill_body(region, types, function)
    return next(traced(loop.results))
