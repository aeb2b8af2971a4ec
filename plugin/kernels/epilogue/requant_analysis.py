"""Proof that integer operations on an accumulator are a monotone requantization.

Programs of other runtimes round accumulators to 8 bits by integer operations, each in its own way:
a product in 64 bits, one shift or two, rounding half away from zero, a clamp. The result is a
monotone function ``f`` of the accumulator ``s``. Except near ties it equals a rounded line, or two
lines that meet with a jump, as double rounding half away from zero gives::

    p(s) = slope * s + offset                       f(s) = clamp(round(p(s)))

The proof has two steps and does not depend on the program's origin.

**f is monotone.** On a range of accumulators the analysis tracks each value at both ends, and
whether it rises or falls between them (`subquant.kernels.epilogue.requant_piece`). Sums of rising
values rise, and so do their products with a number, shifts, and minima. Values at both ends are in
the range of their type, so values between are, and nothing wraps. A comparison of monotone values
has one result up to some accumulator and the other from there on, and so does a shifted-out sign:
the range is split there, and the values at the new ends must not fall either.

**f follows the line.** For an ``e >= 0`` and each step ``k`` between the least and the greatest
result, the operations themselves are evaluated::

    f(s) >= k    for the least s with p(s) > k - 1/2 + e
    f(s) < k     for the greatest s with p(s) < k - 1/2 - e

``f`` and ``p`` are monotone, so both hold for all accumulators beyond: away from ties by more than
``e``, ``f`` rounds as ``p`` does. For most programs nothing has to be evaluated: the analysis also
bounds the distance of each value from the line (`_proved_tolerance`).

The line is that of the operations. ``floor((floor(y) + n) / m) = floor((y + n) / m)`` for integers
``n`` and ``m > 0``, so a chain of shifts is one floor.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Operation, Value
from ...numerics.element_types import Array, ElementType
from .requant_domain import Analysis
from .requant_piece import NotMonotone, Piece

_MAX_PIECES = 8
"""Ranges of accumulators with one form each, at most; with more, no `MonotoneRequant` is found."""
_FALLBACK_TOLERANCES = (2.0**-20, 2.0**-19, 2.0**-16, 2.0**-12, 2.0**-10)
"""Values of ``e`` that are tried: a second rounding moves ties."""
_MAX_ACCUMULATORS_PER_EVALUATION = 1 << 16
"""Accumulators that are evaluated at a time; more need memory and are not faster."""
_MIN_JUMP = 2.0**-20
"""Difference of the offsets of two lines, in steps of the result, at least; less counts as none."""
_MAX_I8 = 127
"""The greatest i8: results are signed or unsigned bytes."""
_F64_ERROR = 2.0**-16
"""An upper bound of the f64 error of an accumulator that is computed from a step."""
_RELATIVE_F64_ERROR = 2.0**-46
"""An upper bound of the f64 error of a value, relative to the greatest magnitude of its terms."""

Pieces = Sequence[tuple[Array, Array, Piece]]
"""Consecutive ranges of accumulators: the first and the last one of each N, and the piece."""


@dataclass(frozen=True)
class MonotoneRequant:
    """A function ``clamp(round(slope * x + offset + sign_offset * sign(x)))`` of accumulators.

    Arrays are grids: of size 1 along all axes but N.

    Attributes:
        added: ``x = accumulator + added``, integers.
        slope, offset: f64.
        sign_offset: f64; the sign of 0 is 1.
        bounds: the greatest magnitudes of accumulators.
        fallback_tolerance: the distance from a tie within which results may be the neighbor's.
    """

    added: Array
    slope: Array
    offset: Array
    sign_offset: Array
    low: int
    high: int
    bounds: Array
    fallback_tolerance: float = 0.0


def monotone_requant(
    operations: Sequence[Operation],
    accumulators: Value,
    constants: Mapping[Value, Array],
    bounds: Array,
    element_of: Callable[[Value], ElementType | None],
    evaluate: Callable[[Array], Array],
) -> MonotoneRequant | None:
    """Return the monotone requantization that operations compute; None if there is no proof.

    Args:
        operations: elementwise operations on integers; the last result has 8 bits.
        accumulators: the value that they start from.
        constants: the other operands, as grids of `MonotoneRequant`.
        bounds: the greatest magnitude of the accumulators of each N, a grid.
        evaluate: maps accumulators, with an additional first axis, to their exact results.

    Unsigned bytes may be stored as signed bytes: 255 as -1.
    """
    analysis = Analysis(operations, accumulators, constants, element_of)
    try:
        pieces = analysis.pieces(-bounds, bounds, _MAX_PIECES)
    except NotMonotone:
        return None
    line = _fitted_line(pieces, bounds)
    if line is None:
        return None
    proved = _proved_tolerance(pieces, line)
    if proved is not None:
        return replace(line, fallback_tolerance=proved)

    def steps_of(accumulators: Array) -> Array:
        steps = np.asarray(evaluate(accumulators)).astype(np.int64)
        return steps if line.low < 0 else steps & 255

    for tolerance in _FALLBACK_TOLERANCES:
        if _follows_line(line, tolerance, steps_of):
            return replace(line, fallback_tolerance=tolerance)
    return None


def _fitted_line(pieces: Pieces, bounds: Array) -> MonotoneRequant | None:
    """The line through the widest piece; None if the pieces are not proved to rise."""
    low, high = pieces[0][2].low.min(), pieces[-1][2].high.max()
    rises = all((piece.direction >= 0).all() for _, _, piece in pieces)
    for (_, _, piece), (_, _, following) in itertools.pairwise(pieces):
        rises = rises and bool((piece.high <= following.low).all())
    widths = np.array([last - first for first, last, _ in pieces]).astype(np.float64)
    slopes, offsets = (
        np.array([np.broadcast_to(each, widths.shape[1:]) for each in arrays])
        for arrays in ([p.slope for _, _, p in pieces], [p.offset for _, _, p in pieces])
    )
    firsts = np.array([first for first, _, _ in pieces])

    def pick(table: Array, indices: Array) -> Array:
        picked: Array = np.take_along_axis(table, indices[None], 0)[0]
        return picked

    widest = widths.argmax(0)
    slope, offset = pick(slopes, widest), pick(offsets, widest)
    if not rises or low == high or not (slope > 0).all():
        return None
    if low < 0 and high > _MAX_I8:
        return None  # one piece has signed bytes and another has unsigned bytes
    # The second line starts at the first piece of some width whose offset differs most.
    difference = np.where(widths > 0, np.abs(offsets - offset), 0)
    other = difference.argmax(0)
    if difference.max() > _MIN_JUMP:
        second = np.maximum(widest, other)
        added = -pick(firsts, second)
        left, right = pick(offsets, np.minimum(widest, other)), pick(offsets, second)
        if (left > right).any():
            return None
    else:
        added = np.rint((offset - (float(low) + float(high)) / 2) / slope).astype(object)
        left = right = offset
    zero = -added.astype(np.float64) * slope
    middle = zero + (left + right) / 2 - 0.5  # floor(y) = round(y - 1/2)
    return MonotoneRequant(added, slope, middle, (right - left) / 2, int(low), int(high), bounds)


def _proved_tolerance(pieces: Pieces, line: MonotoneRequant) -> float | None:
    """The fallback tolerance that follows from the analysis alone; None if there is none.

    Where no bound clips it, each piece is ``floor(y)``, and f64 gives ``y`` up to `Piece.error` and
    one part in ``2**46``: each operation misses one in ``2**53`` of its terms. A clipped piece is
    one number from an end to some accumulator, and its unclipped value is beyond that number; so if
    the line agrees at the end, it agrees up to that accumulator.
    """
    error, ends = 0.0, []
    for first, last, piece in pieces:
        if piece.error is None:
            return None
        bound = piece.error + piece.size * _RELATIVE_F64_ERROR
        signs = []
        for accumulators, value in ((first, piece.low), (last, piece.high)):
            x = accumulators + line.added.astype(np.float64)
            signs.append(x < 0)
            real = line.slope * x + line.offset
            real = real + np.where(x < 0, -line.sign_offset, line.sign_offset)
            middle = real + 0.5  # round(y) = floor(y + 1/2)
            distance = np.abs(middle - (piece.slope * accumulators + piece.offset))
            error = max(error, float((bound + distance).max()))
            ends.append((middle, value))
        if ((signs[0] != signs[1]) & (line.sign_offset != 0)).any():
            return None
    tolerance = next((each for each in _FALLBACK_TOLERANCES if error <= each), None)
    if tolerance is None:
        return None
    for middle, value in ends:
        least, most = (
            np.clip(np.floor(middle + each), line.low, line.high)
            for each in (-tolerance, tolerance)
        )
        if not ((least <= value) & (value <= most)).all():
            return None
    return tolerance


def _follows_line(
    line: MonotoneRequant, tolerance: float, steps_of: Callable[[Array], Array]
) -> bool:
    """True if accumulators farther than the tolerance from a tie round as the line does."""
    bounds = line.bounds

    def least_accumulator(limit: Array, margin: float) -> Array:
        """The least accumulator at which the line reaches a limit, or a neighbor of it."""
        positive = np.ceil((limit - line.offset - line.sign_offset) / line.slope + margin)
        negative = np.ceil((limit - line.offset + line.sign_offset) / line.slope + margin)
        x = np.where(negative < 0, negative, np.maximum(positive, 0))
        accumulators: Array = x - line.added.astype(np.float64)
        return accumulators

    all_steps = np.arange(line.low + 1, line.high + 1).reshape(-1, *(1,) * line.slope.ndim)
    count = max(1, _MAX_ACCUMULATORS_PER_EVALUATION // line.slope.size)
    for first in range(0, len(all_steps), count):
        steps = all_steps[first : first + count]
        above = least_accumulator(steps - 0.5 + tolerance, -_F64_ERROR)
        below = least_accumulator(steps - 0.5 - tolerance, _F64_ERROR) - 1
        inside = [np.clip(each, -bounds, bounds).astype(np.int64) for each in (above, below)]
        up, down = (steps_of(each) for each in inside)
        is_up = (up >= steps) | (above > bounds)
        is_down = (down < steps) | (below < -bounds)
        if not (is_up.all() and is_down.all()):
            return False
    return True
