"""Exact requantization: a sum of scaled integers, rounded once, in integers only.

The value to store is ``clamp(round_half_even(sum_k d_k * M_k + z), minimum, maximum)``: integers
``d_k`` (differences of storage values and zero points, accumulators), real multipliers ``M_k``
(ratios of scales) and the result's zero point ``z``. Every StableHLO operation that is linear in
its operands is of this form: a change of parameters has one term with ``M = s / s'``, a
contraction one with ``M = s1 * s2 / s3``, an addition two.

Derivation. The multipliers are fixed-point numbers ``m_k = round(M_k * 2**F)``, written in digits
of ``L`` bits: ``m_k = sum_i m_k[i] * 2**(i * L)`` and ``F = f * L``, so that the first ``f`` digits
are the fraction. From the lowest digit up::

    v[i] = sum_k d_k * m_k[i] + carry;    carry = v[i] >> L;    digit[i] = v[i] & (2**L - 1)

The integer part is what is above digit ``f - 1``, and that digit decides the rounding: half is
``2**(L - 1)``, and the digits below it tell a tie from more than half.

Overflow. With ``D = sum_k max |d_k| < 2**B``, ``|v[i]| <= D * 2**L < 2**(B + L)``: digits of
``L = W - 1 - B`` bits fit words of ``W`` bits.

Ties. A scale of 0.1 is not a float, so an exact tie of the reals that a program was written for is
a near tie of its scales: ``9 * 0.1 / 0.6`` is 1.5 less 4e-8. What is within ``2**-20`` of a tie
counts as one, as in f32, where that quotient is 1.5. The sum is raised by that tolerance ``e``, and
a fraction in ``[half, half + 2 e)`` is a tie.

Exactness. The multipliers' own error moves the sum by less than ``2**-30`` of a step, by the choice
of ``f``; so every tie is found, and what is farther than ``2**-20`` from a tie is rounded as the
exact rational sum is.

Sources: StableHLO specification, ``uniform_quantize`` and "dequantize_op_quantize"; the zero point
is added before rounding, so it decides which neighbour of a tie is even.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from .._mlir import ir
from ..dialects.quant import element_type, storage_mlir_type
from ..numerics.element_types import Array
from ..numerics.fixed_point import FixedPointRounding, multiplier_and_shift
from ..numerics.parameters import StorageType
from .base import Builder

__all__ = [
    "EXACT",
    "TIE_BITS",
    "Requantization",
    "Term",
    "requantize",
    "resize",
    "saturate",
    "spread_blocks",
]

_FRACTION_BITS = 30  # of a step, beyond the bits of the integers
TIE_BITS = 20
"""What is nearer to a tie than ``2**-20`` of a step is one."""
_WORST_NARROW_DIGITS = 3  # i32 digits that are still cheaper than one of i64
_EQ, _SLE, _SGE = 0, 3, 5  # arith.cmpi predicates


@dataclass(frozen=True)
class Requantization:
    """How sums of scaled integers are rounded.

    Args:
        is_exact: by the digits above; else by one fixed-point multiplication a term.
        rounding: of the fixed-point shift, one of `subquant.numerics.fixed_point.ROUNDINGS`.
        leaves: what is left as an operation for a later pass: ``requantize`` all of it, as
            ``subquant.requantize``, ``saturate`` only the end, as ``subquant.saturate``.
    """

    is_exact: bool = True
    rounding: FixedPointRounding = "half-up"
    leaves: Literal["nothing", "saturate", "requantize"] = "nothing"


EXACT = Requantization()


@dataclass(frozen=True)
class Term:
    """One scaled integer.

    Args:
        value: signed integers (a value that the builder's operations take).
        bound: the greatest magnitude that `value` can have.
        multiplier: positive or negative rationals, an object array of shape () or with one
            dimension for each axis (1 where one block spans the axis).
    """

    value: Any
    bound: int
    multiplier: Array

    def __post_init__(self) -> None:
        # Arithmetic on an object array of shape () gives a bare number.
        object.__setattr__(self, "multiplier", np.asarray(self.multiplier, object))


def spread_blocks(grid: Array, shape: Sequence[int]) -> Array:
    """Give every index of an axis the number of its block.

    Args:
        grid: one number a block; on each axis the number of blocks divides the extent, or it is 1.
        shape: the extents, all known.

    Returns:
        The grid with the whole extent on each axis of several blocks.
    """
    for axis, (count, extent) in enumerate(zip(grid.shape, shape, strict=True)):
        if count > 1:
            grid = np.repeat(grid, extent // count, axis=axis)
    return grid


def saturate(b: Builder, value: Any, storage: StorageType, bound: int | None = None) -> Any:
    """Clamp a wide integer to a storage range and narrow it to the storage type.

    Args:
        b: the builder.
        value: a signed integer wider than the storage range.
        storage: the storage type.
        bound: the greatest magnitude of `value`; a clamp that cannot act is left out.
    """
    type_ = value.type
    if bound is None or bound > storage.maximum:
        value = b.op("arith.minsi", [value, b.constant(storage.maximum, type_)], type_)
    if bound is None or -bound < storage.minimum:
        value = b.op("arith.maxsi", [value, b.constant(storage.minimum, type_)], type_)
    return resize(b, value, storage_mlir_type(storage))


def resize(b: Builder, value: Any, type_: ir.Type) -> Any:
    """Sign-extend or truncate an integer to an element type."""
    found, wanted = element_type(value.type).width, type_.width
    if found == wanted:
        return value
    return b.op("arith.extsi" if found < wanted else "arith.trunci", [value], type_)


def requantize(
    b: Any,
    terms: Sequence[Term],
    zero_points: Array,
    storage: StorageType,
    requantization: Requantization = EXACT,
) -> Any:
    """Emit the requantization of a sum of scaled integers.

    Args:
        b: a builder with `grid`.
        terms: at least one.
        zero_points: the result's, an integer array of the form of a term's multiplier.
        storage: the result's storage type.
        requantization: exact, or fixed-point. Integers of more than 32 bits are requantized
            exactly in both: a fixed-point product would leave 64 bits. In fixed-point sums, terms
            with a multiplier of 1 are added as they are (a bias is rescaled to its accumulator).

    Returns:
        Values of the storage type, in its range.
    """
    value, bound = _rounded(b, terms, zero_points, storage, requantization)
    if requantization.leaves == "saturate":
        return _leave_saturation(b, value, storage, bound)
    return saturate(b, value, storage, bound)


def _rounded(
    b: Any,
    terms: Sequence[Term],
    zero_points: Array,
    storage: StorageType,
    requantization: Requantization,
) -> tuple[Any, int | None]:
    """What is to be saturated, and a bound on it if one is known."""
    positive = [_positive(b, term) for term in terms]
    whole = [term for term in positive if _is_identity(term)]
    if len(positive) == 1 and whole:
        return _with_zero_points(b, positive[0], zero_points)
    if not requantization.is_exact:
        scaled = [term for term in positive if term not in whole]
        if scaled and _bound(scaled) < 1 << 32 and _bound(positive) < 1 << 40:
            value = _fixed_point(b, scaled, requantization.rounding)
            for term in whole:
                value = b.op("arith.addi", [value, _at_least(b, term.value, b.i64)], b.i64)
            return _add_zero_points(b, value, zero_points), None
    split = [part for term in positive for part in _split(b, term)]
    digits = _Digits.plan(split, zero_points, storage)
    return digits.emit(b, split, zero_points), None


def _bound(terms: Sequence[Term]) -> int:
    return sum(term.bound for term in terms)


def _with_zero_points(b: Any, term: Term, zero_points: Array) -> tuple[Any, int]:
    offset = int(np.abs(zero_points).max()) if zero_points.size else 0
    wide = b.i64 if term.bound + offset >= 1 << 31 else b.i32
    value = _add_zero_points(b, _at_least(b, term.value, wide), zero_points)
    return value, term.bound + offset


def _leave_saturation(b: Any, value: Any, storage: StorageType, bound: int | None) -> Any:
    type_ = storage_mlir_type(storage)
    if bound is not None and storage.minimum <= -bound and bound <= storage.maximum:
        return resize(b, value, type_)
    attribute = ir.DenseI64ArrayAttr.get([storage.minimum, storage.maximum])
    return b.op("subquant.saturate", [value], type_, {"range": attribute})


def _fixed_point(b: Any, terms: Sequence[Term], rounding: FixedPointRounding) -> Any:
    """One multiplication a term; several terms have the shift of the greatest multiplier."""
    from .fixed_point_arithmetic import emit_scale, emit_shift  # it resizes with this module

    if len(terms) == 1:
        (term,) = terms
        multiplier, shift = multiplier_and_shift(term.multiplier)
        return emit_scale(b, term.value, multiplier, shift, rounding)
    greatest = terms[0].multiplier
    for term in terms[1:]:
        greatest = np.maximum(greatest, term.multiplier)
    _, shift = multiplier_and_shift(greatest)
    unit = np.array([1 << int(s) for s in shift.reshape(-1)], object).reshape(shift.shape)
    total = None
    for term in terms:
        exact = np.asarray(term.multiplier * unit, object)
        capped = [min(round(m), (1 << 31) - 1) for m in exact.reshape(-1)]
        digits = np.array(capped, np.int64).reshape(exact.shape)
        value = _at_least(b, term.value, b.i64)
        product = b.op("arith.muli", [value, b.grid(digits, b.i64)], b.i64)
        total = product if total is None else b.op("arith.addi", [total, product], b.i64)
    return emit_shift(b, total, shift, rounding)


def _reach(storage: StorageType) -> int:
    return max(abs(storage.minimum), abs(storage.maximum))


def _positive(b: Any, term: Term) -> Term:
    """A term with multipliers that are not negative (the signs go to the integers)."""
    signs = np.array([m < 0 for m in term.multiplier.reshape(-1)])
    if not signs.any():
        return term
    if not signs.all():
        raise ValueError("multipliers of one term must have one sign")
    zero = b.constant(0, term.value.type)
    value = b.op("arith.subi", [zero, term.value], term.value.type)
    return Term(value, term.bound, -term.multiplier)


def _is_identity(term: Term) -> bool:
    """True where multiplying cannot change what the integer rounds to.

    ``|d * M - d| < 1/2`` for every ``d`` that can occur, so ``d`` is the nearest integer.
    """
    distance = max((abs(m - 1) for m in term.multiplier.reshape(-1)), default=Fraction(0))
    return bool(distance * term.bound < Fraction(1, 2))


def _split(b: Any, term: Term) -> list[Term]:
    """Split integers of more than 32 bits: ``d = high * 2**31 + low``."""
    if term.bound < 1 << 32:
        return [term]
    type_ = term.value.type
    high = b.op("arith.shrsi", [term.value, b.constant(31, type_)], type_)
    low = b.op("arith.andi", [term.value, b.constant((1 << 31) - 1, type_)], type_)
    upper = Term(high, (term.bound >> 31) + 1, term.multiplier * Fraction(1 << 31))
    return [*_split(b, upper), Term(low, (1 << 31) - 1, term.multiplier)]


@dataclass(frozen=True)
class _Digits:
    """How the numbers are cut: word width, bits of a digit, digits of the fraction."""

    words: int
    bits: int
    fraction: int
    total: int
    multipliers: tuple[Array, ...]  # integers, for each term

    @staticmethod
    def plan(terms: Sequence[Term], zero_points: Array, storage: StorageType) -> _Digits:
        """Choose the narrowest words that need few digits."""
        bound = max(sum(term.bound for term in terms), 1)  # 0 for a sum of nothing
        reach = _reach(storage) + (int(np.abs(zero_points).max()) if zero_points.size else 0)
        if reach < 1 << 28 and bound < 1 << 26:
            narrow = _Digits._cut(terms, bound, 32)
            if narrow.total <= _WORST_NARROW_DIGITS:
                return narrow
        return _Digits._cut(terms, bound, 64)

    @staticmethod
    def _cut(terms: Sequence[Term], bound: int, width: int) -> _Digits:
        bits = width - 1 - bound.bit_length()
        fraction = -(-(bound.bit_length() + _FRACTION_BITS) // bits)
        unit = 1 << (fraction * bits)
        multipliers = []
        for term in terms:
            rounded = [round(m * unit) for m in term.multiplier.reshape(-1)]
            multipliers.append(np.array(rounded, object).reshape(term.multiplier.shape))
        greatest = max((int(m) for array in multipliers for m in array.reshape(-1)), default=0)
        total = max(fraction, -(-greatest.bit_length() // bits))
        return _Digits(width, bits, fraction, total, tuple(multipliers))

    def emit(self, b: Any, terms: Sequence[Term], zero_points: Array) -> Any:
        """The sum plus the zero points, rounded; far outside every storage range only large."""
        word = b.i64 if self.words == 64 else b.i32
        values = [resize(b, term.value, word) for term in terms]
        mask = (1 << self.bits) - 1
        # The tolerance is counted in digit `noise`: below it everything is noise.
        noise, tolerance = 0, 1 << (self.fraction * self.bits - TIE_BITS)
        while 2 * tolerance - 1 > mask and noise < self.fraction - 1:
            noise, tolerance = noise + 1, -(-tolerance >> self.bits)
        carry: Any = None
        digits: list[Any] = []  # None where every value is 0
        for index in range(self.total):
            sum_ = carry
            for value, multiplier in zip(values, self.multipliers, strict=True):
                sum_ = self._accumulate(b, sum_, value, multiplier, index, mask, word)
            if index == noise:
                sum_ = self._plus(b, sum_, b.constant(tolerance, word), word)
            digits.append(sum_)
            if sum_ is not None:
                carry = b.op("arith.shrsi", [sum_, b.constant(self.bits, word)], word)
        integer = self._integer_part(b, digits, carry, mask, word)
        number = _add_zero_points(b, integer, zero_points)
        if digits[self.fraction - 1] is None:
            return number
        up = self._rounds_up(b, digits, number, noise, tolerance, mask, word)
        one, zero = b.constant(1, word), b.constant(0, word)
        step = b.op("arith.select", [up, one, zero], word)
        return b.op("arith.addi", [number, step], word)

    def _accumulate(
        self, b: Any, sum_: Any, value: Any, multiplier: Array, number: int, mask: int, word: Any
    ) -> Any:
        digits = np.array(
            [(int(m) >> (number * self.bits)) & mask for m in multiplier.reshape(-1)], np.int64
        ).reshape(multiplier.shape)
        if not digits.any():
            return sum_
        if (digits == 1).all():
            return self._plus(b, sum_, value, word)
        product = b.op("arith.muli", [value, b.grid(digits, word)], word)
        return self._plus(b, sum_, product, word)

    @staticmethod
    def _plus(b: Any, sum_: Any, value: Any, word: Any) -> Any:
        return value if sum_ is None else b.op("arith.addi", [sum_, value], word)

    def _integer_part(self, b: Any, digits: list[Any], carry: Any, mask: int, word: Any) -> Any:
        """What is above the fraction; far outside every storage range it is only large."""
        whole = digits[self.fraction :]
        if not whole:
            return b.constant(0, word) if carry is None else carry
        integer = whole[-1]
        limit = 1 << (self.words - 2 - self.bits)
        for sum_ in reversed(whole[:-1]):
            integer = b.op("arith.minsi", [integer, b.constant(limit, word)], word)
            integer = b.op("arith.maxsi", [integer, b.constant(-limit, word)], word)
            integer = b.op("arith.shli", [integer, b.constant(self.bits, word)], word)
            if sum_ is None:
                continue
            digit = b.op("arith.andi", [sum_, b.constant(mask, word)], word)
            integer = b.op("arith.addi", [integer, digit], word)
        # Room for the zero point and the rounding step.
        limit = 1 << (self.words - 3)
        integer = b.op("arith.minsi", [integer, b.constant(limit, word)], word)
        return b.op("arith.maxsi", [integer, b.constant(-limit, word)], word)

    def _rounds_up(
        self, b: Any, digits: list[Any], number: Any, noise: int, tolerance: int, mask: int,
        word: Any,
    ) -> Any:  # fmt: skip
        """At least half, and not a tie whose lower neighbour is even."""
        half, last = 1 << (self.bits - 1), self.fraction - 1

        def digit(index: int) -> Any:
            return b.op("arith.andi", [digits[index], b.constant(mask, word)], word)

        top = digit(last)
        at_least_half = b.compare(_SGE, top, b.constant(half, word))
        limit = half + (2 * tolerance - 1 if noise == last else 0)
        tie = b.compare(_SLE, top, b.constant(limit, word))
        for index in range(noise, last):
            if digits[index] is None:
                continue
            allowed = b.constant(2 * tolerance - 1 if index == noise else 0, word)
            below = b.compare(_SLE, digit(index), allowed)
            tie = b.op("arith.andi", [tie, below], b.i1)
        parity = b.op("arith.andi", [number, b.constant(1, word)], word)
        even = b.compare(_EQ, parity, b.constant(0, word))
        stays = b.op("arith.andi", [tie, even], b.i1)
        goes = b.op("arith.xori", [stays, b.constant(1, b.i1)], b.i1)
        return b.op("arith.andi", [at_least_half, goes], b.i1)


def _at_least(b: Any, value: Any, type_: Any) -> Any:
    return value if element_type(value.type).width >= type_.width else resize(b, value, type_)


def _add_zero_points(b: Any, value: Any, zero_points: Array) -> Any:
    if not zero_points.any():
        return value
    zero = b.grid(zero_points, element_type(value.type))
    return b.op("arith.addi", [value, zero], value.type)
