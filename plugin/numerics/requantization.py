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

The integer part is above digit ``f - 1``. That digit decides the rounding: half is ``2**(L - 1)``,
and the digits below it separate a tie from more than half.

Overflow. With ``D = sum_k max |d_k| < 2**B``, ``|v[i]| <= D * 2**L < 2**(B + L)``: digits of
``L = W - 1 - B`` bits fit words of ``W`` bits.

Ties. A scale of 0.1 is not a float, so an exact tie of the reals that a program was written for is
a near tie of its scales: ``9 * 0.1 / 0.6`` is 1.5 less 4e-8. A sum within ``2**-20`` of a tie
counts as a tie, as in f32, where that quotient is 1.5. The sum is raised by that tolerance ``e``,
and a fraction in ``[half, half + 2 e)`` is a tie.

Exactness. The multipliers' own error moves the sum by less than ``2**-30`` of a step, by the choice
of ``f``; so every tie is detected, and a sum farther than ``2**-20`` from a tie is rounded like
the exact rational sum.

Sources: StableHLO specification, ``uniform_quantize`` and "dequantize_op_quantize": the zero point
is added before rounding, so it decides which neighbour of a tie is even. ONNX adds it after
rounding (QuantizeLinear).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..core.option_fields import FixedPointRounding, RequantizationForm
from .array_functions import both, convert, is_known, is_zero
from .element_types import I32, I64, AnyArray, Array, ElementType
from .fixed_point import apply_scale, multiplier_and_shift, shift_right
from .parameters import StorageType

_FRACTION_BITS = 30
"""The bits of a fraction of a step that are computed, beyond those of the integers."""
TIE_BITS = 20
"""Tie tolerance: a sum within ``2**-20`` steps of the result of a tie counts as a tie, to even.

Scales such as 0.1 are no floats: an exact tie of the intended scales is a near tie of the stored.
"""
_WORST_NARROW_DIGITS = 3
"""Up to this number, digits of i32 are cheaper than one of i64."""


@dataclass(frozen=True)
class Requantization:
    """Rounding of sums of scaled integers.

    Args:
        kind: ``exact`` by the digits above, or ``fixed-point`` by one multiplication a term.
        rounding: of the fixed-point shift, one of `subquant.numerics.fixed_point.ROUNDINGS`.
    """

    kind: RequantizationForm = "exact"
    rounding: FixedPointRounding = "half-up"


EXACT = Requantization()


@dataclass(frozen=True, eq=False)
class Term:
    """One scaled integer.

    Args:
        value: signed integers.
        bound: the greatest magnitude that `value` can have.
        multiplier: positive or negative rationals, an object array of shape () or with one
            dimension for each axis (1 where one block spans the axis).
    """

    value: AnyArray
    bound: int
    multiplier: Array

    def __post_init__(self) -> None:
        # Arithmetic on an object array of shape () gives a bare number.
        object.__setattr__(self, "multiplier", np.asarray(self.multiplier, object))


@dataclass(frozen=True)
class Rounded:
    """Rounded sum before saturation: integers, and their greatest magnitude if it is known."""

    value: AnyArray
    bound: int | None = None


def requantize(
    terms: Sequence[Term],
    zero_points: Array,
    storage: StorageType,
    requantization: Requantization = EXACT,
    *,
    zero_points_after_rounding: bool = False,
) -> Rounded:
    """Round a sum of scaled integers, and add the zero points; saturation is the caller's.

    Args:
        terms: at least one; values of one integer type, or that can be extended to one.
        zero_points: the result's, an integer array shaped like a term's multiplier.
        storage: the result's storage type: sums far outside its range need not be exact.
        requantization: exact, or fixed-point. Integers of more than 32 bits are requantized
            exactly in both: a fixed-point product would leave 64 bits. In fixed-point sums, terms
            with a multiplier of 1 are added as they are (a bias is rescaled to its accumulator).
        zero_points_after_rounding: ``round_half_even(sum) + z`` instead of
            ``round_half_even(sum + z)``; they differ at ties, for odd ``z``.
    """
    positive = [_positive(term) for term in terms]
    whole = [term for term in positive if _is_identity(term)]
    if len(positive) == 1 and whole:
        bound = positive[0].bound + (int(np.abs(zero_points).max()) if zero_points.size else 0)
        value = _widened(positive[0].value, I64 if bound >= 1 << 31 else I32)
        return Rounded(_add_zero_points(value, zero_points), bound)
    if requantization.kind == "fixed-point":
        scaled = [term for term in positive if term not in whole]
        if scaled and _bound(scaled) < 1 << 32 and _bound(positive) < 1 << 40:
            value = _fixed_point(scaled, requantization.rounding)
            for term in whole:
                value = value + convert(term.value, I64)
            return Rounded(_add_zero_points(value, zero_points))
    split = [part for term in positive for part in _split(term)]
    digits = _Digits.plan(split, zero_points, storage)
    if zero_points_after_rounding:
        rounded = digits.rounded(split, np.zeros_like(zero_points))
        return Rounded(_add_zero_points(rounded, zero_points))
    return Rounded(digits.rounded(split, zero_points))


def _bound(terms: Sequence[Term]) -> int:
    return sum(term.bound for term in terms)


def _fixed_point(terms: Sequence[Term], rounding: FixedPointRounding) -> AnyArray:
    """One multiplication a term; several terms have the shift of the greatest multiplier."""
    if len(terms) == 1:
        (term,) = terms
        multiplier, shift = multiplier_and_shift(term.multiplier)
        return apply_scale(term.value, multiplier, shift, rounding)
    greatest = terms[0].multiplier
    for term in terms[1:]:
        greatest = np.maximum(greatest, term.multiplier)
    _, shift = multiplier_and_shift(greatest)
    unit = np.array([1 << int(s) for s in shift.reshape(-1)], object).reshape(shift.shape)
    total: AnyArray = None
    for term in terms:
        exact = np.asarray(term.multiplier * unit, object)
        capped = [min(round(m), (1 << 31) - 1) for m in exact.reshape(-1)]
        digits = np.array(capped, np.int64).reshape(exact.shape)
        product = convert(term.value, I64) * digits
        total = product if total is None else total + product
    return shift_right(total, shift, rounding)


def _positive(term: Term) -> Term:
    """A term with multipliers that are not negative (the signs go to the integers)."""
    signs = np.array([m.numerator < 0 for m in term.multiplier.reshape(-1)])
    if not signs.any():
        return term
    if not signs.all():
        raise ValueError("multipliers of one term must have one sign")
    return Term(-term.value, term.bound, -term.multiplier)


def _is_identity(term: Term) -> bool:
    """Return True if multiplying cannot change the rounded integer.

    ``|d * M - d| < 1/2`` for every ``d`` that can occur, so ``d`` is the nearest integer.
    """
    return all(2 * term.bound * abs(m - 1) < 1 for m in term.multiplier.reshape(-1))


def _split(term: Term) -> list[Term]:
    """Split integers of more than 32 bits: ``d = high * 2**31 + low``."""
    if term.bound < 1 << 32:
        return [term]
    high, low = term.value >> 31, term.value & ((1 << 31) - 1)
    upper = Term(high, (term.bound >> 31) + 1, term.multiplier * Fraction(1 << 31))
    return [*_split(upper), Term(low, (1 << 31) - 1, term.multiplier)]


def _nearest(number: Fraction, unit: int) -> int:
    """``round(number * unit)``, in a fifth of the time that `Fraction` takes."""
    whole, rest = divmod(number.numerator * unit, number.denominator)
    twice = 2 * rest - number.denominator
    return whole + int(twice > 0 or (twice == 0 and whole % 2 == 1))


@dataclass(frozen=True)
class _Digits:
    """Digits of the sum: word width, bits of a digit, digits of the fraction."""

    word: ElementType
    bits: int
    fraction: int
    total: int
    multipliers: tuple[Array, ...]  # integers, for each term

    @staticmethod
    def plan(terms: Sequence[Term], zero_points: Array, storage: StorageType) -> _Digits:
        """Choose the narrowest words that need few digits."""
        bound = max(_bound(terms), 1)  # 0 for a sum of nothing
        reach = max(abs(storage.minimum), abs(storage.maximum))
        reach += int(np.abs(zero_points).max()) if zero_points.size else 0
        is_narrow = reach < 1 << 28 and bound < 1 << 26
        if is_narrow and _Digits._fraction_of(bound, I32)[1] <= _WORST_NARROW_DIGITS:
            narrow = _Digits._cut(terms, bound, I32)
            if narrow.total <= _WORST_NARROW_DIGITS:
                return narrow
        return _Digits._cut(terms, bound, I64)

    @staticmethod
    def _fraction_of(bound: int, word: ElementType) -> tuple[int, int]:
        """The bits of a digit, and the digits of the fraction."""
        bits = word.bits - 1 - bound.bit_length()
        return bits, -(-(bound.bit_length() + _FRACTION_BITS) // bits)

    @staticmethod
    def _cut(terms: Sequence[Term], bound: int, word: ElementType) -> _Digits:
        bits, fraction = _Digits._fraction_of(bound, word)
        unit = 1 << (fraction * bits)
        multipliers = []
        for term in terms:
            rounded = [_nearest(m, unit) for m in term.multiplier.reshape(-1)]
            multipliers.append(np.array(rounded, object).reshape(term.multiplier.shape))
        greatest = max((int(m) for array in multipliers for m in array.reshape(-1)), default=0)
        total = max(fraction, -(-greatest.bit_length() // bits))
        return _Digits(word, bits, fraction, total, tuple(multipliers))

    @property
    def _mask(self) -> int:
        return (1 << self.bits) - 1

    def rounded(self, terms: Sequence[Term], zero_points: Array) -> AnyArray:
        """Return the rounded sum plus zero points; far outside storage ranges a large number."""
        values = [convert(term.value, self.word) for term in terms]
        # The tolerance is counted in digit `noise`: below it everything is noise.
        noise, tolerance = 0, 1 << (self.fraction * self.bits - TIE_BITS)
        while 2 * tolerance - 1 > self._mask and noise < self.fraction - 1:
            noise, tolerance = noise + 1, -(-tolerance >> self.bits)
        carry: AnyArray = None
        digits_of_sum: list[AnyArray] = []  # None where every value is 0
        for index in range(self.total):
            sum_ = carry
            for value, multiplier in zip(values, self.multipliers, strict=True):
                sum_ = _plus(sum_, self._product(value, multiplier, index))
            if index == noise:
                sum_ = tolerance if sum_ is None else sum_ + tolerance
            digits_of_sum.append(sum_)
            if sum_ is not None:
                carry = sum_ >> self.bits
                if is_zero(carry):  # of the tolerance alone
                    carry = None
        number = _add_zero_points(self._integer_part(digits_of_sum, carry, values[0]), zero_points)
        if digits_of_sum[self.fraction - 1] is None:
            return number
        up = self._rounds_up(digits_of_sum, number, noise, tolerance)
        return number if is_zero(up) else number + up

    def _product(self, value: AnyArray, multiplier: Array, index: int) -> AnyArray:
        """An integer times one digit of its multipliers; None for a digit of 0."""
        digits = np.array(
            [(int(m) >> (index * self.bits)) & self._mask for m in multiplier.reshape(-1)], np.int64
        ).reshape(multiplier.shape)
        if not digits.any():
            return None
        return value if (digits == 1).all() else value * digits.astype(self.word.dtype)

    def _integer_part(
        self, digits_of_sum: list[AnyArray], carry: AnyArray, like: AnyArray
    ) -> AnyArray:
        """Return the integer part; far outside every storage range it is only large."""
        whole = digits_of_sum[self.fraction :]
        if not whole:
            return np.zeros_like(like) if carry is None else carry
        integer = whole[-1]
        limit = 1 << (self.word.bits - 2 - self.bits)
        for sum_ in reversed(whole[:-1]):
            integer = np.maximum(np.minimum(integer, limit), -limit) << self.bits
            if sum_ is not None:
                integer = integer + (sum_ & self._mask)
        # Room for the zero point and the rounding step.
        limit = 1 << (self.word.bits - 3)
        return np.maximum(np.minimum(integer, limit), -limit)

    def _rounds_up(
        self, digits_of_sum: list[AnyArray], number: AnyArray, noise: int, tolerance: int
    ) -> AnyArray:
        """Return where a fraction rounds up: from half on, except a tie above an even integer."""
        half, last = 1 << (self.bits - 1), self.fraction - 1
        top = digits_of_sum[last] & self._mask
        tie = top <= half + (2 * tolerance - 1 if noise == last else 0)
        for index in range(noise, last):
            if digits_of_sum[index] is not None:
                allowed = 2 * tolerance - 1 if index == noise else 0
                tie = both(tie, (digits_of_sum[index] & self._mask) <= allowed)
        if is_zero(top >= half):  # the tolerance alone
            return False
        even = (number & 1) == 0
        return (top >= half) & ~both(tie, even)


def _plus(sum_: AnyArray, value: AnyArray) -> AnyArray:
    if sum_ is None or value is None:
        return value if sum_ is None else sum_
    return sum_ + value


def _widened(value: AnyArray, element: ElementType) -> AnyArray:
    """Return integers extended to `element`; those of as many bits are unchanged."""
    bits = value.dtype.itemsize * 8 if is_known(value) else value.element.bits
    return value if bits >= element.bits else convert(value, element)


def _add_zero_points(value: AnyArray, zero_points: Array) -> AnyArray:
    return value + zero_points if zero_points.any() else value
