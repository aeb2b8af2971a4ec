"""Proof that an f32 requantization gives the exact result for every accumulator.

An epilogue maps an integer ``x``, an accumulator plus a constant, to ``f(x)``, which is the rounded
value of a line except near ties. A kernel estimates it in f32::

    line(x) = slope * x + offset + sign_offset * sign(x)
    real(x) = f32(f32(x) * f32_slope + f32_offset)     and f32(real(x) + f32_sign_offset * sign(x))

    f(x) = clamp(round(real(x)))           if |real(x) - round(real(x))| < 1/2 - e

where ``e`` is the `fallback_tolerance`.

**Every accumulator.** Only integers ``x`` with ``|line(x) - tie| < e`` may round differently, and
there are few: a result of 8 bits has 255 ties, with no more than ``2 e / slope + 1`` integers near
each. The proof lists them for each N, evaluates the operations on them exactly, and ``real(x)`` bit
by bit. If both agree on all of them, f32 is exact for that N, and the kernel needs no check.

Where they disagree, the search tries other floats for that N: a few slopes beside the nearest one,
and offsets with which all listed integers would be on the right sides of the ties. They move reals
by no more than the larger tolerance of the list allows, so the list covers them. Rounding half to
even within ``2**-20`` of a tie is no line, so some N remain; so do steps that are not much larger
than the error of f32.

The product of two f32 is exact in f64; its sum with the offset is rounded there before it is
rounded to f32. The check therefore evaluates both f64 neighbors of that sum: rounding is monotone,
so the kernel's result lies between theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...numerics.element_types import Array

_MAX_FALLBACK_TOLERANCE = 2.0**-7
"""Fallback tolerance of an estimate, at most: with more the exact operations would run often."""
_SLOPES_PER_SIDE = 2
"""Floats that are tried on each side of the nearest slope."""
_OFFSET_FRACTIONS = [
    np.array(sixteenths).reshape(-1, 1) / 16
    for sixteenths in ([8], [4, 12], [2, 6, 10, 14], [1, 3, 5, 7, 9, 11, 13, 15])
]
"""Fractions of the admissible interval at which offsets are tried, one batch at a time."""
_MAX_OFFSET_SHIFT = 2.0**-16
"""Shift of an offset, at most, in steps of the result."""
_MAX_INTEGERS_PER_TIE = 8
"""Integers near a tie, at most, for which there is a proof; else kernels check estimates."""
_MAX_LISTED_INTEGERS = 1 << 17
"""Integers near ties of all N, at most, for which there is a proof; more rarely have one."""
_MAX_UNPROVED_SHARE = 0.25
"""Share of N that the nearest slope leaves unproved, at most, for which other slopes are tried."""


@dataclass(frozen=True, eq=False)
class F32Requant:
    """A line, and the f32 numbers that estimate it.

    Arrays are grids: of size 1 along all axes but N.

    Attributes:
        slope, offset: the line, f64.
        sign_offset: added with the sign of ``x``, f64; None for 0.
        low, high: the clamp of results.
        min_x, max_x: the range of ``x``.
        fallback_tolerance: the distance from a tie within which estimates may be wrong.
        f32_slope, f32_offset: the estimate.
        is_exact: for each N, True if the estimate is proved exact for the whole range.
    """

    slope: Array
    offset: Array
    sign_offset: Array | None
    low: int
    high: int
    min_x: Array
    max_x: Array
    fallback_tolerance: float
    f32_slope: Array
    f32_offset: Array
    f32_sign_offset: Array | None
    is_exact: Array = field(default_factory=lambda: np.zeros(1, bool))

    @classmethod
    def of(
        cls,
        slope: Array,
        offset: Array,
        sign_offset: Array | None,
        clamp: tuple[int, int],
        x_range: tuple[Array, Array],
        fallback_tolerance: float,
    ) -> F32Requant | None:
        """Return the estimate with the nearest floats; None if it would often need the fallback.

        Args:
            slope, offset, sign_offset, fallback_tolerance: see the attributes.
            clamp: the least and the greatest result.
            x_range: the least and the greatest ``x``.
        """
        if not fallback_tolerance <= _MAX_FALLBACK_TOLERANCE:
            return None
        slope, offset = np.asarray(slope, np.float64), np.asarray(offset, np.float64)
        nearest = slope.astype(np.float32), offset.astype(np.float32)
        f32_sign_offset = None if sign_offset is None else sign_offset.astype(np.float32)
        return cls(
            slope,
            offset,
            sign_offset,
            *clamp,
            *x_range,
            fallback_tolerance,
            *nearest,
            f32_sign_offset,
        )

    @property
    def max_real(self) -> float:
        """An upper bound of the magnitude of reals."""
        bound = max(-int(self.min_x.min()), int(self.max_x.max()))
        return bound * float(self.slope.max()) + float(np.abs(self.offset).max()) + 1

    @property
    def reach(self) -> float:
        """The greatest distance of reals from the offset, where they are not clamped."""
        limits = self.low, self.high
        return 1 + max(float(np.abs(limit - self.offset).max()) for limit in limits)

    def proved(self, evaluate: Callable[[Array], Array]) -> F32Requant:
        """Return the estimate with floats that are proved exact, for each N that has them.

        `evaluate` maps integers ``x``, with an additional first axis, to their exact results.
        """
        listed = self._integers_near_ties()
        if listed is None:
            return self
        shape, x = listed
        n, grid = x.shape[1], (len(x), *shape)
        if x.size > _MAX_LISTED_INTEGERS:
            return self
        expected = np.asarray(evaluate(x.reshape(grid))).astype(np.int64).reshape(x.shape)
        sign_offset = self.f32_sign_offset
        sign_offset = np.zeros((), np.float32) if sign_offset is None else sign_offset
        nearest = [_flat(each, shape) for each in (self.f32_slope, self.f32_offset, sign_offset)]
        proved = [each.copy() for each in nearest]
        left = np.arange(n)
        for attempt in range(2 * _SLOPES_PER_SIDE + 1):
            if attempt and len(left) > _MAX_UNPROVED_SHARE * n:
                break
            slopes, toward = nearest[0][left], np.float32(np.inf if attempt % 2 else -np.inf)
            for _ in range((attempt + 1) // 2):
                slopes = np.nextafter(slopes, toward)
            start = [each[left] for each in nearest[1:]]
            intervals = self._offset_intervals(x[:, left], expected[:, left], slopes, *start)
            for fractions in (None, *_OFFSET_FRACTIONS):
                if not len(left):
                    break
                shifts = [np.zeros((1, 1))] * 2
                if fractions is not None:
                    shifts = [
                        np.clip(
                            low + fractions * (high - low), -_MAX_OFFSET_SHIFT, _MAX_OFFSET_SHIFT
                        )
                        for low, high in intervals
                    ]
                offsets, sign_offsets = self._shifted(start, *shifts)
                are_exact = self._are_exact(
                    x[:, left][:, None], expected[:, left][:, None], slopes, offsets, sign_offsets
                )
                is_exact = are_exact.any(0)
                choice = (are_exact.argmax(0), np.arange(len(left)))
                floats = slopes, offsets[choice], sign_offsets[choice]
                for target, each in zip(proved, floats, strict=True):
                    target[left[is_exact]] = each[is_exact]
                left, slopes = left[~is_exact], slopes[~is_exact]
                start = [each[~is_exact] for each in start]
                intervals = [(low[~is_exact], high[~is_exact]) for low, high in intervals]
        is_exact = np.ones(n, bool)
        is_exact[left] = False
        slopes, offsets, sign_offsets = (  # of size 1 if all are equal
            each[:1] if (each == each[0]).all() else each.reshape(shape) for each in proved
        )
        return replace(
            self,
            f32_slope=slopes,
            f32_offset=offsets,
            f32_sign_offset=None if self.f32_sign_offset is None else sign_offsets,
            is_exact=is_exact,
        )

    def _shifted(self, start: Sequence[Array], negative: Array, positive: Array) -> list[Array]:
        """Offsets and sign offsets that shift the reals of negative and of other ``x``.

        There is one row for each of `negative` and `positive`.
        """
        offsets, sign_offsets = (each.astype(np.float64) for each in start)
        if self.f32_sign_offset is None:
            shifted = (offsets + negative).astype(np.float32)
            return [shifted, np.broadcast_to(start[1], shifted.shape)]
        offsets, sign_offsets = (
            offsets + (negative + positive) / 2,
            sign_offsets + (positive - negative) / 2,
        )
        return [offsets.astype(np.float32), sign_offsets.astype(np.float32)]

    def _offset_intervals(
        self, x: Array, expected: Array, slopes: Array, offsets: Array, sign_offsets: Array
    ) -> list[tuple[Array, Array]]:
        """The least and greatest admissible shift of reals, for negative ``x`` and for others."""
        reals = x * slopes.astype(np.float64) + offsets
        reals = reals + np.where(x < 0, -sign_offsets, sign_offsets)
        least = np.where(expected > self.low, expected - 0.5 - reals, -_MAX_OFFSET_SHIFT)
        most = np.where(expected < self.high, expected + 0.5 - reals, _MAX_OFFSET_SHIFT)
        if self.f32_sign_offset is None:
            return [(least.max(0), most.min(0))] * 2
        return [
            (
                np.where(side, least, -_MAX_OFFSET_SHIFT).max(0),
                np.where(side, most, _MAX_OFFSET_SHIFT).min(0),
            )
            for side in (x < 0, x >= 0)
        ]

    def _integers_near_ties(self) -> tuple[tuple[int, ...], Array] | None:
        """The shape of a grid, and for each N the integers that may round differently.

        The list is equally long for each N; None if it is too long.
        """
        # The other floats differ from the line by this much more.
        tolerance = self.fallback_tolerance + self.reach * _SLOPES_PER_SIDE * 2.0**-23
        tolerance += _MAX_OFFSET_SHIFT + float(np.abs(self.offset).max()) * 2.0**-23
        radius = tolerance / self.slope + 2.0**-10  # more than the error of f64
        integers_per_tie = int(2 * radius.max()) + 1
        if integers_per_tie > _MAX_INTEGERS_PER_TIE:
            return None
        grids = self.slope, self.offset, radius, self.min_x, self.max_x
        shape = np.broadcast_shapes(*(each.shape for each in grids))
        slope, offset, radius, min_x, max_x = (_flat(each, shape) for each in grids)
        sign_offset = np.zeros(1) if self.sign_offset is None else _flat(self.sign_offset, shape)
        ties = np.arange(self.low + 1, self.high + 1).reshape(-1, 1) - 0.5
        integers, are_near = [], []
        signs = (0,) if self.sign_offset is None else (-1, 1)
        for half in (offset + sign * sign_offset for sign in signs):
            first = np.ceil((ties - half) / slope - radius)
            for index in range(integers_per_tie):
                x = first + index
                integers.append(np.clip(x, min_x, max_x).astype(np.int64))
                are_near.append(x <= (ties - half) / slope + radius)
        numbers, mask = np.concatenate(integers), np.concatenate(are_near)
        counts = mask.sum(0)
        # Shorter lists are filled with the N's first number.
        compacted = np.repeat(numbers[:1], max(1, int(counts.max(initial=0))), axis=0)
        columns, rows = np.nonzero(mask.T)
        positions = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        compacted[positions, columns] = numbers[rows, columns]
        return shape, compacted

    def _are_exact(
        self, x: Array, expected: Array, slopes: Array, offsets: Array, sign_offsets: Array
    ) -> Array:
        """True for each N whose estimates of all integers, on the first axis, are as expected."""
        are_exact = np.ones(offsets.shape, bool)
        reals = x.astype(np.float32).astype(np.float64) * slopes + offsets
        for toward in (-np.inf, np.inf):
            real = np.nextafter(reals, toward).astype(np.float32)
            if self.f32_sign_offset is not None:
                real = real + np.where(x < 0, -sign_offsets, sign_offsets)
            results = np.clip(np.rint(real), self.low, self.high)
            are_exact &= (results == expected).all(0)
        return are_exact


def _flat(grid: Array, shape: tuple[int, ...]) -> Array:
    """One number for each N."""
    return np.broadcast_to(grid, shape).reshape(-1)
