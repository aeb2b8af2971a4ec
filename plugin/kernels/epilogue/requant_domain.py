"""Abstract interpretation of integer operations on ranges of accumulators.

A value is a monotone `Piece`, or a `_Remainder`, which depends on the low bits of another value:
the rounding direction of a half may depend on the remainder ``r`` of a value ``2**k q + r`` that is
shifted, ``q + c(r, q mod 2)``, as in rounding half to even. ``c`` changes only at the numbers that
``r`` is compared with, so a few evaluations give all its values, and behind the last one follows
``q + 1``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ...core._mlir import Operation, Value
from ...emit.operation import producer_named
from ...emit.stablehlo_semantics import ABSTRACT, COMPARISONS, comparison_direction
from ...numerics.element_types import BOOL, I8, Array, ElementType
from .requant_piece import NotMonotone, Piece, sum_direction

_ORDERINGS = ("LT", "LE", "GT", "GE")
_BOOLEAN_OPERATIONS: dict[str, Callable[..., Array]] = {
    "stablehlo.and": operator.and_,
    "stablehlo.not": lambda x: 1 - x,
    "stablehlo.or": operator.or_,
    "stablehlo.xor": operator.xor,
}
"""Operations on 0 and 1."""


class _SplitRange(Exception):
    """A value is one piece up to some accumulators and another one from there on.

    `first` is the first accumulator of the second piece, for each N.
    """

    def __init__(self, first: Array) -> None:
        super().__init__()
        self.first = first


@dataclass(frozen=True)
class _Remainder:
    """A function of a value's remainder by a power of two, and of its quotient's parity.

    Attributes:
        of, bits: the value, and the number of bits of the remainder.
        evaluate: called with parities, 1 for odd, and remainders, returns the function's values.
        thresholds: remainders at which the function may change.
        kind: the remainder itself, the parity itself, or a comparison of them.
    """

    of: Value
    bits: Array
    evaluate: Callable[[Array, Array], Array]
    thresholds: tuple[Array, ...] = ()
    kind: Literal["remainder", "parity", "comparison"] = "comparison"

    def plus_quotient(self, value: Piece) -> Piece:
        """The quotient plus this function."""
        last = _power_of_two(self.bits) - 1
        points = [0 * last, last, *(cut + n for cut in self.thresholds for n in (-1, 0, 1))]
        remainders = np.sort(np.clip(np.stack(np.broadcast_arrays(*points)), 0, last), axis=0)
        even, odd = (
            np.broadcast_to(self.evaluate(np.asarray(n), remainders), remainders.shape)
            for n in (0, 1)
        )
        for values, next_values in ((even, odd), (odd, even)):
            if (values[1:] < values[:-1]).any() or (values[-1] > 1 + next_values[0]).any():
                raise NotMonotone
        low, high = (
            (end >> self.bits) + self.evaluate((end >> self.bits) & 1, end & last)
            for end in (value.low, value.high)
        )
        # q + [r >= from] = floor((2**k q + r + 2**k - from) / 2**k)
        more = [np.where(f > f[0], last + 1 - remainders, 0).max(0) for f in (even, odd)]
        more = [each.astype(np.float64) for each in more]
        factor = 2.0 ** -self.bits.astype(np.float64)
        first = even[0].astype(np.float64)
        error = None
        if value.error is not None and (even[0] == odd[0]).all():
            error = (value.error + np.abs(more[0] - more[1]) / 2) * factor
        return replace(
            value,
            low=low,
            high=high,
            slope=value.slope * factor,
            offset=(value.offset + (more[0] + more[1]) / 2) * factor + first,
            size=value.size * factor + 1 + np.abs(first),
            error=error,
            step=value.step * factor,
            is_integer=False,
        )


_Values = Mapping[Value, "Piece | _Remainder"]

_FUNCTIONS: dict[str, Callable[..., Piece]] = {
    **ABSTRACT,
    **dict.fromkeys(("quant.scast", "subquant.scast"), lambda value: value),
}


class Analysis:
    """Abstract interpretation of operations on ranges of accumulators.

    Operations start from the value `accumulators`; `constants` are the other operands, grids.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        accumulators: Value,
        constants: Mapping[Value, Array],
        element_of: Callable[[Value], ElementType | None],
    ) -> None:
        self._operations, self._accumulators = operations, accumulators
        self._element_of = element_of
        self._constants = {v: Piece.constant(numbers) for v, numbers in constants.items()}

    def pieces(self, low: Array, high: Array, limit: int) -> list[tuple[Array, Array, Piece]]:
        """Return consecutive ranges, with the last result's piece on each.

        An N whose range is not split repeats its last accumulator.

        Args:
            low, high: the range of accumulators of each N.
            limit: the greatest number of ranges.

        Raises:
            NotMonotone: there is no proof, or there are more ranges.
        """
        if limit < 1:
            raise NotMonotone
        try:
            values = self._evaluate(low, high, len(self._operations))
            last = values[self._operations[-1].results[0]]
            if isinstance(last, _Remainder):
                raise NotMonotone
            return [(low, high, last)]
        except _SplitRange as split:
            first = split.first
        left = self.pieces(low, np.minimum(first - 1, high), limit - 1)
        return [*left, *self.pieces(np.minimum(first, high), high, limit - len(left))]

    def _evaluate(self, low: Array, high: Array, count: int) -> dict[Value, Piece | _Remainder]:
        """The values of the first operations on a range."""
        one, zero = np.ones(low.shape), np.zeros(low.shape)
        size = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
        values: dict[Value, Piece | _Remainder] = dict(self._constants)
        values[self._accumulators] = Piece(low, high, one.astype(int), one, zero, size, zero, one)
        for index, op in enumerate(self._operations[:count]):
            element = self._element_of(op.results[0])
            is_shift = op.name == "stablehlo.shift_right_arithmetic"
            if element is None or element.is_float or (is_shift and element.kind == "uint"):
                raise NotMonotone
            result = self._apply(op, values)
            if isinstance(result, _Remainder):
                values[op.results[0]] = result
                continue
            ends = np.array([result.low, result.high])
            if element != BOOL:
                # No value may wrap, except unsigned bytes that are stored as i8 at the end.
                limit = 1 << (element.bits - (element.kind == "int"))
                least = -limit if element.kind == "int" else 0
                may_be_unsigned = index + 1 == len(self._operations) and element == I8
                is_stored_byte = may_be_unsigned and ((ends >= 0) & (ends <= 255)).all()
                if not is_stored_byte and ((ends < least).any() or (ends >= limit).any()):
                    raise NotMonotone
            if element == BOOL or (is_shift and ((ends == -1) | (ends == 0)).all()):
                # one number up to some accumulator, and another one from there on
                if (result.low != result.high).any():
                    raise _SplitRange(self._first_difference(index, low, high))
                result = Piece.constant(result.low)
            values[op.results[0]] = result
        return values

    def _first_difference(self, index: int, low: Array, high: Array) -> Array:
        """The first accumulators at which a result differs from that at the lower ends."""

        def result_at(accumulators: Array) -> Array:
            op = self._operations[index]
            result = self._apply(op, self._evaluate(accumulators, accumulators, index))
            assert isinstance(result, Piece)  # it has numbers at the ends of the range
            return result.low

        at_low = result_at(low)
        same, other = low, high  # an N with one number only ends at its last accumulator
        while (other - same > 1).any():
            middle = (same + other) // 2
            is_same = result_at(middle) == at_low
            same, other = np.where(is_same, middle, same), np.where(is_same, other, middle)
        return np.where(result_at(high) == at_low, high + 1, other)

    def _apply(self, op: Operation, values: _Values) -> Piece | _Remainder:
        operands = [values[each] for each in op.operands]
        pieces = [each for each in operands if isinstance(each, Piece)]
        if len(pieces) < len(operands) or op.name == "stablehlo.and":
            return self._apply_to_remainder(op, operands, values)
        if op.name == "stablehlo.compare":
            (left, right), direction = pieces, comparison_direction(op)
            if direction not in _ORDERINGS:
                raise NotMonotone
            sum_direction(left, -right)  # the difference is monotone
            low, high = (
                np.asarray(COMPARISONS[direction](*pair)).astype(np.int64)
                for pair in ((left.low, right.low), (left.high, right.high))
            )
            rises = (low != high).astype(int)
            return replace(Piece.constant(low), high=high, direction=rises, error=None)
        if op.name == "stablehlo.select":
            condition, yes, no = pieces
            return yes.select(condition.low.astype(bool), no)
        if op.name == "subquant.saturate":
            [value] = pieces
            least, most = (Piece.constant(np.asarray(int(n))) for n in op.attributes["range"])
            return value.maximum(least).minimum(most)
        if op.name not in _FUNCTIONS:
            raise NotMonotone
        return _FUNCTIONS[op.name](*pieces)

    def _apply_to_remainder(
        self, op: Operation, operands: Sequence[Piece | _Remainder], values: _Values
    ) -> Piece | _Remainder:
        remainders = [each for each in operands if isinstance(each, _Remainder)]
        if not remainders:
            left, right = operands
            return _masked(op, left, right, values)
        first, element = remainders[0], self._element_of(op.operands[0])
        if any(each.of != first.of or (each.bits != first.bits).any() for each in remainders):
            raise NotMonotone
        if op.name == "stablehlo.convert" and first.kind == "comparison":
            return first
        is_single = len(remainders) == 1
        if op.name == "stablehlo.add" and first.kind == "comparison" and is_single:
            quotient = _shifted_value(op.operands[0 if operands[1] is first else 1], values)
            value = values[first.of]
            if quotient is None or quotient[0] != first.of or (quotient[1] != first.bits).any():
                raise NotMonotone
            assert isinstance(value, Piece)  # its quotient is one
            return first.plus_quotient(value)
        function = _remainder_function(op, remainders)
        thresholds = sum((each.thresholds for each in remainders), ())
        if op.name == "stablehlo.compare":
            thresholds += tuple(each.low for each in operands if isinstance(each, Piece))
        elif element != BOOL:
            raise NotMonotone
        sides = [
            each.evaluate if isinstance(each, _Remainder) else _constant_function(each)
            for each in operands
        ]
        return _Remainder(
            first.of,
            first.bits,
            lambda parity, remainder: function(*(side(parity, remainder) for side in sides)),
            thresholds,
        )


def _masked(
    op: Operation, left: Piece | _Remainder, right: Piece | _Remainder, values: _Values
) -> _Remainder:
    """The remainder of a value, or its quotient's parity, which ``and`` gives."""
    if not isinstance(right, Piece) or not right.is_constant or isinstance(left, _Remainder):
        raise NotMonotone
    shifted, mask = _shifted_value(op.operands[0], values), right.low
    if shifted is not None and (mask == 1).all():
        return _Remainder(*shifted, lambda parity, remainder: parity, (), "parity")
    bits = np.vectorize(lambda n: int(n).bit_length(), otypes=[np.int64])(mask)
    if not ((mask > 0) & (_power_of_two(bits) - 1 == mask)).all():
        raise NotMonotone
    return _Remainder(op.operands[0], bits, lambda parity, remainder: remainder, (), "remainder")


def _remainder_function(op: Operation, remainders: Sequence[_Remainder]) -> Callable[..., Array]:
    """The function of a comparison, or of an operation on booleans."""
    kinds = [each.kind for each in remainders]
    if op.name == "stablehlo.compare" and len(kinds) == 1 and "comparison" not in kinds:
        compare = COMPARISONS[comparison_direction(op)]
        return lambda *sides: np.asarray(compare(*sides)).astype(np.int64)
    if op.name in _BOOLEAN_OPERATIONS and {*kinds} == {"comparison"}:
        return _BOOLEAN_OPERATIONS[op.name]
    raise NotMonotone


def _constant_function(piece: Piece) -> Callable[[Array, Array], Array]:
    if not piece.is_constant:
        raise NotMonotone
    return lambda parity, remainder: piece.low


def _shifted_value(value: Value, values: _Values) -> tuple[Value, Array] | None:
    """The value and the count of a right shift that computes a value; None for no shift."""
    op = producer_named(value, "stablehlo.shift_right_arithmetic")
    if op is None:
        return None
    count = values.get(op.operands[1])
    if not isinstance(count, Piece) or not count.is_constant or not (count.low > 0).all():
        return None
    return op.operands[0], count.low


def _power_of_two(exponent: Array) -> Array:
    """``2**exponent``."""
    one = np.asarray(1) if exponent.max(initial=0) < 62 else np.asarray(1, object)
    return np.asarray(one << exponent)
