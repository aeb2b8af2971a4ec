"""What operations on integers make of a sum, as a staircase: which step it is on, floats tell.

Programs of other runtimes round sums to 8 bits by operations on integers: a product in 64 bits, a
shift or two, halves away from zero, a clamp. Each does so in its own way. Of a sum ``s`` all that
is a function ``f`` that never falls, and but for ties it is that of a line, or of two that meet
with a jump, as halves that are rounded away from zero twice are::

    p(s) = slope * s + offset                       f(s) = clamp(round(p(s)))

Both are looked at, so that nobody has to know whose operations they are.

**It never falls.** For a range of sums, of each value what it is at both ends is known, and whether
it rises or falls between them: a sum of values that rise does, as their products with a number,
shifts, and the lesser of two. (What is at both ends in the range of its type is there between them,
and nothing wraps.) A comparison of such has one answer up to some sum and the other one from there
on, and so has a sign that is shifted out: there the range is parted, and the values at the new ends
must not fall either. Which way a half goes may be asked of the rest ``r`` of a value ``2**k q + r``
that is shifted: ``q + c(r, q mod 2)``, as where halves go to even integers. ``c`` changes only
where ``r`` is compared with numbers, so all its values are known, and behind the last ``q`` is one
more.

**It is that of the line.** With ``e`` from 0 on, and for each step ``k`` between the least result
and the greatest, this is computed by the operations themselves::

    f(s) >= k    for the least s with p(s) > k - 1/2 + e
    f(s) < k     for the greatest s with p(s) < k - 1/2 - e

As neither ``f`` nor ``p`` falls, that is so for all sums beyond: what is farther than ``e`` from a
tie is rounded as ``p`` is. Of most programs nothing has to be computed for that: which of their
steps may be off the line, and by how much, is summed up on the way (`_known_apart`).

The line is that of the operations. ``floor((floor(y) + n) / m) = floor((y + n) / m)`` for integers
``n`` and ``m > 0``, so a chain of shifts is one floor, of what is there without it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...emit.stablehlo_semantics import ABSTRACT, COMPARISONS, comparison_direction
from ...numerics.element_types import BOOL, I8, Array, ElementType

__all__ = ["MonotoneRequant", "monotone_requant"]

_MOST_PARTS = 8
_APART = (2.0**-20, 2.0**-19, 2.0**-16, 2.0**-12, 2.0**-10)
"""Distances of ties that are tried: a second rounding that is not understood moves them."""
_AT_ONCE = 1 << 16
"""Sums that are looked at together: more take more memory, and no less time."""
_NO_JUMP = 2.0**-20
_GREATEST = 127
"""Of bytes with a sign."""
_INEXACT = 2.0**-16
"""More than floats of 64 bits are off where sums are computed from steps: one further is taken."""
_INEXACT_PARTS = 2.0**-46
_ORDERINGS = ("LT", "LE", "GT", "GE")
_OF_TRUTHS: dict[str, Callable[..., Array]] = {
    "stablehlo.and": operator.and_,
    "stablehlo.not": lambda given: 1 - given,
    "stablehlo.or": operator.or_,
    "stablehlo.xor": operator.xor,
}
"""Of 0 and 1."""


@dataclass(frozen=True)
class MonotoneRequant:
    """What a sum ``s`` becomes: ``clamp(round(slope * x + offset + jump * sign(x)))``.

    Attributes:
        added: ``x = s + added``, integers.
        slope, offset: f64.
        jump: f64; the sign of 0 is 1.
        low, high: of the clamp.
        bounds: the greatest magnitudes of sums.
        apart: what is nearer to a tie may be rounded otherwise.

    Arrays are grids: of one element along all axes but that of columns.
    """

    added: Array
    slope: Array
    offset: Array
    jump: Array
    low: int
    high: int
    bounds: Array
    apart: float = 0.0


def monotone_requant(
    operations: Sequence[Operation],
    sums: Value,
    known: Mapping[Value, Array],
    bounds: Array,
    element: Callable[[Value], ElementType | None],
    exact: Callable[[Array], Array],
) -> MonotoneRequant | None:
    """What operations make of a sum; None if that is not known to be a staircase.

    Args:
        operations: of integers, element by element; the last one's result is of 8 bits.
        sums: what they begin with.
        known: numbers of other operands, grids as of `MonotoneRequant`.
        bounds: the greatest magnitudes of the sums of each column, a grid.
        element: called with a value, returns how its elements are read.
        exact: called with sums, of a further first axis, returns what becomes of them.

    Bytes that are nowhere negative may be held as signed ones: 255 as -1.
    """
    try:
        parts = _Chain(operations, sums, known, element).parts(-bounds, bounds, _MOST_PARTS)
    except _Unknown:
        return None
    found = _line(parts, bounds)
    apart = None if found is None else _known_apart(parts, found)
    if found is not None and apart is not None:
        return replace(found, apart=apart)

    def as_steps(sums: Array) -> Array:
        steps = np.asarray(exact(sums)).astype(np.int64)
        return steps if found is None or found.low < 0 else steps & 255

    for apart in _APART:
        if found is not None and _is_of_line(found, apart, as_steps):
            return replace(found, apart=apart)
    return None


# -- operations -----------------------------------------------------------------------------------


class _Unknown(Exception):
    """Nothing is known of a value."""


class _Parted(Exception):
    """A value has one form up to some sums, and another from them on.

    Args:
        first: the first sums of the other form, for each column.
    """

    def __init__(self, first: Array) -> None:
        super().__init__()
        self.first = first


@dataclass(frozen=True)
class _Part:
    """A value, for sums of a range.

    Attributes:
        low, high: what it is at the ends, integers of 64 bits, or Python's where those are too few.
        rises: 1, -1 where it falls, 0 where it is a number.
        slope, offset: it is ``floor(slope * s + offset)``, about.
        size: a bound on all that is added to and taken from one another there, at the ends.
        off: without what was cut by bounds, it is ``floor(y)`` of a ``y`` that is so near to that
            line; None if that is not known.
        step: that ``y`` is a multiple of this power of two.
        is_whole: nothing was cut off: it is that without the floor.
        is_cut: it is the lesser or the greater of two, or comes from such.
    """

    low: Array
    high: Array
    rises: Array
    slope: Array
    offset: Array
    size: Array
    off: Array | None
    step: Array
    is_whole: bool = True
    is_cut: bool = False

    @staticmethod
    def number(numbers: Array) -> _Part:
        whole = np.asarray(numbers)
        whole = whole.astype(np.int64) if whole.dtype != object else whole
        zero, real = np.zeros(whole.shape), whole.astype(np.float64)
        return _Part(whole, whole, zero.astype(int), zero, real, np.abs(real), zero, zero + 1)

    @property
    def is_number(self) -> bool:
        return not self.rises.any()

    def __neg__(self) -> _Part:
        # -floor(y) = floor(1 - step - y)
        more = 0 if self.is_whole else 1
        return replace(
            self,
            low=_exactly(operator.mul, self.low, _MINUS),
            high=_exactly(operator.mul, self.high, _MINUS),
            rises=-self.rises,
            slope=-self.slope,
            offset=more - self.offset,
            size=self.size + more,
            off=None if self.off is None else self.off + more * self.step,
        )

    def __add__(self, other: _Part) -> _Part:
        off = None
        # What is cut is one number beyond some sum, and so is what follows from it and numbers.
        is_alone = not (self.is_cut or other.is_cut) or self.is_number or other.is_number
        if self.off is not None and other.off is not None and is_alone:
            off = self.off + other.off if self.is_whole or other.is_whole else None
        return _Part(
            _exactly(operator.add, self.low, other.low),
            _exactly(operator.add, self.high, other.high),
            _together(self, other),
            self.slope + other.slope,
            self.offset + other.offset,
            self.size + other.size,
            off,
            np.minimum(self.step, other.step),
            self.is_whole and other.is_whole,
            self.is_cut or other.is_cut,
        )

    def __mul__(self, other: _Part) -> _Part:
        value, number = _with_number(self, other)
        by = number.astype(np.float64)
        off = None
        if value.off is not None and (value.is_whole or (number == 1).all()):
            off = value.off * np.abs(by)
        return replace(
            value,
            low=_exactly(operator.mul, value.low, number),
            high=_exactly(operator.mul, value.high, number),
            rises=value.rises * np.sign(by).astype(int),
            slope=value.slope * by,
            offset=value.offset * by,
            size=value.size * np.abs(by),
            off=off,
        )

    def __lshift__(self, count: _Part) -> _Part:
        raise _Unknown  # requantizations shift to the right

    def __rshift__(self, count: _Part) -> _Part:
        if not count.is_number or not ((count.low >= 0) & (count.low < 64)).all():
            raise _Unknown
        by = 2.0 ** -count.low.astype(np.float64)
        return replace(
            self,
            low=self.low >> count.low,
            high=self.high >> count.low,
            slope=self.slope * by,
            offset=self.offset * by,
            size=self.size * by,
            off=None if self.off is None else self.off * by,
            step=self.step * by,
            is_whole=self.is_whole and not count.low.any(),
        )

    def maximum(self, other: _Part) -> _Part:
        """The greater of two; see `_bounded`."""
        return self._bounded(other, np.maximum)

    def minimum(self, other: _Part) -> _Part:
        """The lesser of two; see `_bounded`."""
        return self._bounded(other, np.minimum)

    def _bounded(self, other: _Part, choose: Callable[..., Any]) -> _Part:
        """The lesser or the greater of two, of which one is a number: the line is the other's."""
        value, number = _with_number(self, other)
        low, high = choose(value.low, number), choose(value.high, number)
        return replace(value, low=low, high=high, is_cut=True)

    def chosen(self, condition: Array, other: _Part) -> _Part:
        def choose(yes: Array, no: Array) -> Array:
            return np.where(condition, yes, no)

        off = None
        if self.off is not None and other.off is not None:
            off = choose(self.off, other.off)
        return _Part(
            choose(self.low, other.low),
            choose(self.high, other.high),
            choose(self.rises, other.rises),
            choose(self.slope, other.slope),
            choose(self.offset, other.offset),
            choose(self.size, other.size),
            off,
            choose(self.step, other.step),
            self.is_whole and other.is_whole,
            self.is_cut or other.is_cut,
        )


@dataclass(frozen=True)
class _Rest:
    """What is computed from the rest of a value by a power of two, and whether the quotient is odd.

    Attributes:
        of, count: the value, and how many bits the rest has.
        at: called with 1 for an odd quotient, or 0, and rests, returns what it is.
        cuts: rests from which on it may be another one.
        kind: it is the rest; or whether the quotient is odd; or found by comparing these.
    """

    of: Value
    count: Array
    at: Callable[[Array, Array], Array]
    cuts: tuple[Array, ...] = ()
    kind: Literal["rest", "odd", "found"] = "found"

    def added(self, value: _Part) -> _Part:
        """The quotient and this.

        Args:
            value: what it is the rest of.
        """
        last = _power(self.count) - 1
        places = [0 * last, last, *(cut + n for cut in self.cuts for n in (-1, 0, 1))]
        rests = np.sort(np.clip(np.stack(np.broadcast_arrays(*places)), 0, last), axis=0)
        even, odd = (np.broadcast_to(self.at(np.asarray(n), rests), rests.shape) for n in (0, 1))
        for found, next_ in ((even, odd), (odd, even)):
            if (found[1:] < found[:-1]).any() or (found[-1] > 1 + next_[0]).any():
                raise _Unknown  # it falls
        low, high = (
            (end >> self.count) + self.at((end >> self.count) & 1, end & last)
            for end in (value.low, value.high)
        )
        # q + [r >= from] = floor((2**k q + r + 2**k - from) / 2**k)
        more = [np.where(f > f[0], last + 1 - rests, 0).max(0) for f in (even, odd)]
        more = [each.astype(np.float64) for each in more]
        by = 2.0 ** -self.count.astype(np.float64)
        first = even[0].astype(np.float64)
        off = None
        if value.off is not None and (even[0] == odd[0]).all():
            off = (value.off + np.abs(more[0] - more[1]) / 2) * by
        return replace(
            value,
            low=low,
            high=high,
            slope=value.slope * by,
            offset=(value.offset + (more[0] + more[1]) / 2) * by + first,
            size=value.size * by + 1 + np.abs(first),
            off=off,
            step=value.step * by,
            is_whole=False,
        )


_MINUS = np.asarray(-1)
_MOST = 1 << 62


def _with_number(left: _Part, right: _Part) -> tuple[_Part, Array]:
    """A value and a number, of two of which one is a number."""
    if left.is_number:
        left, right = right, left
    if not right.is_number:
        raise _Unknown
    return left, right.low


def _together(left: _Part, right: _Part) -> Array:
    rises: Array = left.rises + right.rises
    if (left.rises * right.rises < 0).any():
        raise _Unknown
    return np.sign(rises)


def _exactly(function: Callable[[Any, Any], Any], left: Array, right: Array) -> Array:
    """A sum or a product, of Python's integers where those of 64 bits may be too few."""
    greatest = [max(abs(int(each.min())), abs(int(each.max()))) for each in (left, right)]
    if function(*greatest) >= _MOST:
        left, right = left.astype(object), right.astype(object)
    return np.asarray(function(left, right))


def _power(count: Array) -> Array:
    """``2**count``."""
    one = np.asarray(1) if count.max(initial=0) < 62 else np.asarray(1, object)
    return np.asarray(one << count)


class _Chain:
    """The operations, for sums of a range."""

    def __init__(
        self,
        operations: Sequence[Operation],
        sums: Value,
        known: Mapping[Value, Array],
        element: Callable[[Value], ElementType | None],
    ) -> None:
        self._operations, self._sums, self._element = operations, sums, element
        self._known = {value: _Part.number(numbers) for value, numbers in known.items()}

    def parts(self, low: Array, high: Array, most: int) -> list[tuple[Array, Array, _Part]]:
        """Ranges that follow one another, with what the last operation gives in each.

        A column whose range is not parted has its last sum once more.

        Raises:
            _Unknown: that is not known, or there are more than `most`.
        """
        if most < 1:
            raise _Unknown
        try:
            values = self._values(low, high, len(self._operations))
            last = values[self._operations[-1].results[0]]
            if isinstance(last, _Rest):
                raise _Unknown
            return [(low, high, last)]
        except _Parted as parted:
            first = parted.first
        before = self.parts(low, np.minimum(first - 1, high), most - 1)
        return [*before, *self.parts(np.minimum(first, high), high, most - len(before))]

    def _values(self, low: Array, high: Array, count: int) -> dict[Value, _Part | _Rest]:
        """What the first operations give."""
        one, zero = np.ones(low.shape), np.zeros(low.shape)
        size = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
        values: dict[Value, _Part | _Rest] = dict(self._known)
        values[self._sums] = _Part(low, high, one.astype(int), one, zero, size, zero, one)
        for number, op in enumerate(self._operations[:count]):
            element = self._element(op.results[0])
            is_sign = op.name == "stablehlo.shift_right_arithmetic"
            if element is None or element.is_float or (is_sign and element.kind == "uint"):
                raise _Unknown
            found = self._apply(op, values)
            if isinstance(found, _Rest):
                values[op.results[0]] = found
                continue
            ends = np.array([found.low, found.high])
            if element != BOOL:
                reach = 1 << (element.bits - (element.kind == "int"))
                least = -reach if element.kind == "int" else 0
                is_byte = element == I8 and number + 1 == len(self._operations)
                is_wrapped = is_byte and ((ends >= 0) & (ends <= 255)).all()
                if not is_wrapped and ((ends < least).any() or (ends >= reach).any()):
                    raise _Unknown
            if element == BOOL or (is_sign and ((ends == -1) | (ends == 0)).all()):
                # one number up to some sum, and another from there on
                if (found.low != found.high).any():
                    raise _Parted(self._first_that_differs(number, low, high))
                found = _Part.number(found.low)
            values[op.results[0]] = found
        return values

    def _first_that_differs(self, number: int, low: Array, high: Array) -> Array:
        """The first sums at which an operation does not give what it gives at the lower ends."""

        def at(sums: Array) -> Array:
            op = self._operations[number]
            found = self._apply(op, self._values(sums, sums, number))
            assert isinstance(found, _Part)  # it has numbers at the ends of the range
            return found.low

        begin = at(low)
        same, other = low, high  # columns that have one number only end at their last sum
        while (other - same > 1).any():
            middle = (same + other) // 2
            is_same = at(middle) == begin
            same, other = np.where(is_same, middle, same), np.where(is_same, other, middle)
        return np.where(at(high) == begin, high + 1, other)

    def _apply(self, op: Operation, values: Mapping[Value, _Part | _Rest]) -> _Part | _Rest:
        given = [values[each] for each in op.operands]
        parts = [each for each in given if isinstance(each, _Part)]
        if len(parts) < len(given) or op.name == "stablehlo.and":
            return self._apply_to_rest(op, given, values)
        if op.name == "stablehlo.compare":
            return _compared(op, *parts)
        if op.name == "stablehlo.select":
            condition, yes, no = parts
            return yes.chosen(condition.low.astype(bool), no)
        if op.name == "subquant.saturate":
            [value] = parts
            low, high = (_Part.number(np.asarray(int(n))) for n in op.attributes["range"])
            return value.maximum(low).minimum(high)
        if op.name not in _RULES:
            raise _Unknown
        return _RULES[op.name](*parts)

    def _apply_to_rest(
        self,
        op: Operation,
        given: Sequence[_Part | _Rest],
        values: Mapping[Value, _Part | _Rest],
    ) -> _Part | _Rest:
        rests = [each for each in given if isinstance(each, _Rest)]
        if not rests:
            left, right = given
            return self._rest(op, left, right, values)
        rest, element = rests[0], self._element(op.operands[0])
        if any(each.of != rest.of or (each.count != rest.count).any() for each in rests):
            raise _Unknown
        if op.name == "stablehlo.convert" and rest.kind == "found":
            return rest
        if op.name == "stablehlo.add" and rest.kind == "found" and len(rests) == 1:
            of = _quotient(op.operands[0 if given[1] is rest else 1], values)
            value = values[rest.of]
            if of is None or of[0] != rest.of or (of[1] != rest.count).any():
                raise _Unknown
            assert isinstance(value, _Part)  # its quotient is one
            return rest.added(value)
        function, cuts = self._of_rests(op, given), sum((each.cuts for each in rests), ())
        if op.name == "stablehlo.compare":
            cuts += tuple(each.low for each in given if isinstance(each, _Part))
        elif element != BOOL:
            raise _Unknown
        at = [each.at if isinstance(each, _Rest) else _always(each) for each in given]
        return _Rest(rest.of, rest.count, lambda *place: function(*(f(*place) for f in at)), cuts)

    @staticmethod
    def _of_rests(op: Operation, given: Sequence[_Part | _Rest]) -> Callable[..., Array]:
        """What a comparison, or an operation on truth values, computes."""
        kinds = [each.kind for each in given if isinstance(each, _Rest)]
        if op.name == "stablehlo.compare" and len(kinds) == 1 and "found" not in kinds:
            compare = COMPARISONS[comparison_direction(op)]
            return lambda *sides: np.asarray(compare(*sides)).astype(np.int64)
        elif op.name in _OF_TRUTHS and {*kinds} == {"found"}:
            return _OF_TRUTHS[op.name]
        raise _Unknown

    @staticmethod
    def _rest(
        op: Operation,
        left: _Part | _Rest,
        right: _Part | _Rest,
        values: Mapping[Value, _Part | _Rest],
    ) -> _Rest:
        """The rest of a value, or whether its quotient is odd, which ``and`` gives."""
        if not isinstance(right, _Part) or not right.is_number or isinstance(left, _Rest):
            raise _Unknown
        of, mask = _quotient(op.operands[0], values), right.low
        if of is not None and (mask == 1).all():
            return _Rest(*of, lambda odd, rest: odd, (), "odd")
        count = np.vectorize(lambda n: int(n).bit_length(), otypes=[np.int64])(mask)
        if not ((mask > 0) & (_power(count) - 1 == mask)).all():
            raise _Unknown
        return _Rest(op.operands[0], count, lambda odd, rest: rest, (), "rest")


def _always(given: _Part) -> Callable[[Array, Array], Array]:
    if not given.is_number:
        raise _Unknown
    return lambda odd, rest: given.low


def _quotient(value: Value, values: Mapping[Value, _Part | _Rest]) -> tuple[Value, Array] | None:
    """What is shifted to the right to give a value, and by how much."""
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    if op is None or op.name != "stablehlo.shift_right_arithmetic":
        return None
    count = values.get(op.operands[1])
    if not isinstance(count, _Part) or not count.is_number or not (count.low > 0).all():
        return None
    return op.operands[0], count.low


def _compared(op: Operation, left: _Part, right: _Part) -> _Part:
    direction = comparison_direction(op)
    if direction not in _ORDERINGS:
        raise _Unknown
    compare = COMPARISONS[direction]
    _together(left, -right)  # the difference has one direction
    low, high = (
        np.asarray(compare(*pair)).astype(np.int64)
        for pair in ((left.low, right.low), (left.high, right.high))
    )
    return replace(_Part.number(low), high=high, rises=(low != high).astype(int), off=None)


_RULES: dict[str, Callable[..., _Part]] = {
    **ABSTRACT,
    **dict.fromkeys(("quant.scast", "subquant.scast"), lambda value: value),
}


# -- the line -------------------------------------------------------------------------------------


def _line(parts: Sequence[tuple[Array, Array, _Part]], bounds: Array) -> MonotoneRequant | None:
    """The line of some parts; None if it is not known to rise."""
    low, high = parts[0][2].low.min(), parts[-1][2].high.max()
    rise = all((part.rises >= 0).all() for _, _, part in parts)
    for (_, _, before), (_, _, after) in itertools.pairwise(parts):
        rise = rise and bool((before.high <= after.low).all())
    widths = np.array([last - first for first, last, _ in parts]).astype(np.float64)
    slopes, offsets = (
        np.array([np.broadcast_to(getattr(part, name), widths.shape[1:]) for _, _, part in parts])
        for name in ("slope", "offset")
    )
    firsts = np.array([first for first, _, _ in parts])

    def pick(table: Array, places: Array) -> Array:
        found: Array = np.take_along_axis(table, places[None], 0)[0]
        return found

    widest = widths.argmax(0)
    slope, offset = pick(slopes, widest), pick(offsets, widest)
    if not rise or low == high or not (slope > 0).all():
        return None  # not known to, that is; or there are no steps
    if low < 0 and high > _GREATEST:
        return None  # one part has bytes with a sign, and another one such without
    # The second line begins with the first part of some width whose offset differs most.
    apart = np.where(widths > 0, np.abs(offsets - offset), 0)
    other = apart.argmax(0)
    if apart.max() > _NO_JUMP:
        begin = np.maximum(widest, other)
        added = -pick(firsts, begin)
        left, right = pick(offsets, np.minimum(widest, other)), pick(offsets, begin)
        if (left > right).any():
            return None
    else:
        added = np.rint((offset - (float(low) + float(high)) / 2) / slope).astype(object)
        left = right = offset
    zero = -added.astype(np.float64) * slope
    middle = zero + (left + right) / 2 - 0.5  # floor(y) = round(y - 1/2)
    return MonotoneRequant(added, slope, middle, (right - left) / 2, int(low), int(high), bounds)


def _known_apart(
    parts: Sequence[tuple[Array, Array, _Part]], stairs: MonotoneRequant
) -> float | None:
    """How far from a tie sums are rounded as the line is, if what computes them is known to be.

    Without what is cut by bounds each part is ``floor(y)``, and floats of 64 bits know ``y`` to
    `off` and one part in ``2**46``: of each operation they miss one in ``2**53`` of what it adds.
    What is cut is one number from an end of the part to some sum, and what would be there without
    is beyond that number; so if the line is at that number at the end, it is so up to that sum.
    """
    off, ends = 0.0, []
    for first, last, part in parts:
        if part.off is None:
            return None
        known = part.off + part.size * _INEXACT_PARTS
        signs = []
        for sums, value in ((first, part.low), (last, part.high)):
            x = sums + stairs.added.astype(np.float64)
            signs.append(x < 0)
            line = stairs.slope * x + stairs.offset + np.where(x < 0, -stairs.jump, stairs.jump)
            middle = line + 0.5  # round(y) = floor(y + 1/2)
            apart_there = np.abs(middle - (part.slope * sums + part.offset))
            off = max(off, float((known + apart_there).max()))
            ends.append((middle, value))
        if ((signs[0] != signs[1]) & (stairs.jump != 0)).any():
            return None
    apart = next((each for each in _APART if off <= each), None)
    if apart is None:
        return None
    for middle, value in ends:
        least, most = (
            np.clip(np.floor(middle + each), stairs.low, stairs.high) for each in (-apart, apart)
        )
        if not ((least <= value) & (value <= most)).all():
            return None
    return apart


def _is_of_line(stairs: MonotoneRequant, apart: float, exact: Callable[[Array], Array]) -> bool:
    """True if sums that are farther than that from a tie are rounded as the line is."""
    steps = np.arange(stairs.low + 1, stairs.high + 1).reshape(-1, *(1,) * stairs.slope.ndim)
    count = max(1, _AT_ONCE // stairs.slope.size)
    return all(
        _is_at_steps(stairs, steps[at : at + count], apart, exact)
        for at in range(0, len(steps), count)
    )


def _is_at_steps(
    stairs: MonotoneRequant, steps: Array, apart: float, exact: Callable[[Array], Array]
) -> bool:
    bounds = stairs.bounds

    def first_from(limit: Array, moved: float) -> Array:
        """The least sum for which the line is not below a limit, or one beside it."""
        positive = np.ceil((limit - stairs.offset - stairs.jump) / stairs.slope + moved)
        negative = np.ceil((limit - stairs.offset + stairs.jump) / stairs.slope + moved)
        x = np.where(negative < 0, negative, np.maximum(positive, 0))
        found: Array = x - stairs.added.astype(np.float64)
        return found

    above = first_from(steps - 0.5 + apart, -_INEXACT)
    below = first_from(steps - 0.5 - apart, _INEXACT) - 1
    at = [np.clip(each, -bounds, bounds).astype(np.int64) for each in (above, below)]
    up, down = (exact(each) for each in at)
    is_up = (up >= steps) | (above > bounds)
    is_down = (down < steps) | (below < -bounds)
    return bool(is_up.all() and is_down.all())
