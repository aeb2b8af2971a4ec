"""Floats that tell what sums are rounded to, and whether they tell it of every sum.

What follows a contraction makes of an integer ``x``, a sum and what is added to it, the result
``f(x)``, which is that of a line but near to ties. A kernel asks a float::

    line(x) = slope * x + offset + jump * sign(x)
    real(x) = f32(f32(x) * factor + offset)         and f32(real(x) + jump * sign(x)) with a jump

    f(x) = clamp(round(real(x)))                    if |real(x) - round(real(x))| < 1/2 - near

**Every sum.** Only integers ``x`` with ``|line(x) - tie| < near`` may be rounded otherwise, and
there are few of them: a result of 8 bits has 255 ties, beside each of which are no more than
``2 near / slope + 1`` integers. They are listed, in each column; what they become is computed by
the operations themselves, and ``real(x)``, to the bit. If both agree for all of them, floats tell
each sum, and nothing has to be asked.

Where they do not, other floats are tried in that column: a few factors beside the nearest one, and
offsets, and jumps, with which all integers that are listed would be on their sides of the ties.
They move reals by no more than ``near`` is made larger for, so the integers that are listed are
enough for them, too. What is rounded to even numbers within ``2**-20`` of a tie is that of no line,
so some columns are left; and where a step is not much more than what floats are off.

A product of two f32 is exact in f64; its sum with the offset is rounded there before it is rounded
to f32. So both neighbours of that sum are looked at: what is computed lies between what follows
from these, as rounding never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...numerics.element_types import Array

__all__ = ["Line"]

_MOST_NEAR = 2.0**-7
"""The distance from a half up to which floats are worth asking."""
_FACTORS = 2
"""How many are tried on both sides of the nearest one."""
_OFFSETS = [
    np.array(numbers).reshape(-1, 1) / 16
    for numbers in ([8], [4, 12], [2, 6, 10, 14], [1, 3, 5, 7, 9, 11, 13, 15])
]
"""Where they are tried between the least and the greatest one, some at once."""
_MOVED = 2.0**-16
"""By which offsets are moved at most."""
_MOST_BESIDE = 8
"""Integers beside a tie that are listed at most."""
_MOST_LISTED = 1 << 17
"""Integers that are listed at most, of all columns: of more, some are rarely told."""
_MOST_LEFT = 0.25
"""Columns that the nearest factor may leave, at most, for others to be tried."""


@dataclass(frozen=True, eq=False)
class Line:
    """A line, and the floats that are asked for it.

    Arrays are grids: of one element along all axes but that of columns.

    Attributes:
        slope, offset: f64.
        jump: f64, added with the sign of ``x``; None for nothing.
        low, high: between which results are clamped.
        least, most: integers between which ``x`` is.
        near: the distance from a half up to which they do not tell.
        factors, offsets: f32.
        jumps: f32; None for nothing.
        told: whether floats tell all; true for some columns only, if it is known.
    """

    slope: Array
    offset: Array
    jump: Array | None
    low: int
    high: int
    least: Array
    most: Array
    near: float
    factors: Array
    offsets: Array
    jumps: Array | None
    told: Array = field(default_factory=lambda: np.zeros(1, bool))

    @classmethod
    def of(
        cls,
        slope: Array,
        offset: Array,
        jump: Array | None,
        limits: tuple[int, int],
        between: tuple[Array, Array],
        near: float,
    ) -> Line | None:
        """The nearest floats; None where they are not worth asking.

        Args:
            slope, offset, jump, near: as of the attributes.
            limits: between which results are clamped.
            between: integers between which ``x`` is.
        """
        if not near <= _MOST_NEAR:
            return None
        slope, offset = np.asarray(slope, np.float64), np.asarray(offset, np.float64)
        floats = slope.astype(np.float32), offset.astype(np.float32)
        jumps = None if jump is None else jump.astype(np.float32)
        return cls(slope, offset, jump, *limits, *between, near, *floats, jumps)

    @property
    def greatest(self) -> float:
        """More than the magnitude of the reals."""
        bound = max(-int(self.least.min()), int(self.most.max()))
        return bound * float(self.slope.max()) + float(np.abs(self.offset).max()) + 1

    @property
    def reach(self) -> float:
        """How far from the offset the reals are, where they are not clamped."""
        limits = self.low, self.high
        return 1 + max(float(np.abs(limit - self.offset).max()) for limit in limits)

    def certain(self, exact: Callable[[Array], Array]) -> Line:
        """The same with floats that tell each sum, if such are found.

        Args:
            exact: called with integers ``x``, of a further first axis, returns what becomes of
                them.
        """
        places = self._places()
        if places is None:
            return self
        shape, x = places
        columns, grid = x.shape[1], (len(x), *shape)
        if x.size > _MOST_LISTED:
            return self
        wanted = np.asarray(exact(x.reshape(grid))).astype(np.int64).reshape(x.shape)
        nearest = [_flat(each, shape) for each in (self.factors, self.offsets, self._jumps)]
        found = [each.copy() for each in nearest]
        left = np.arange(columns)
        for number in range(2 * _FACTORS + 1):
            if number and len(left) > _MOST_LEFT * columns:
                break
            tried = _next(nearest[0][left], (number + 1) // 2 * (1 if number % 2 else -1))
            first = [each[left] for each in nearest[1:]]
            room = self._room(x[:, left], wanted[:, left], tried, *first)
            for parts in (None, *_OFFSETS):
                if not len(left):
                    break
                moved = [np.zeros((1, 1))] * 2
                if parts is not None:
                    moved = [
                        np.clip(low + parts * (high - low), -_MOVED, _MOVED) for low, high in room
                    ]
                offsets, jumps = self._moved(first, *moved)
                here, then = x[:, left][:, None], wanted[:, left][:, None]
                are_told = self._is_told(here, then, tried, offsets, jumps)
                told, part = are_told.any(0), (are_told.argmax(0), np.arange(len(left)))
                floats = tried, offsets[part], jumps[part]
                for kept, each in zip(found, floats, strict=True):
                    kept[left[told]] = each[told]
                left, tried, first = left[~told], tried[~told], [each[~told] for each in first]
                room = [(low[~told], high[~told]) for low, high in room]
        is_told = np.ones(columns, bool)
        is_told[left] = False
        factors, offsets, jumps = (_one(each.reshape(shape)) for each in found)
        return replace(
            self,
            factors=factors,
            offsets=offsets,
            jumps=None if self.jumps is None else jumps,
            told=is_told,
        )

    @property
    def _jumps(self) -> Array:
        return np.zeros((), np.float32) if self.jumps is None else self.jumps

    def _moved(self, first: Sequence[Array], below: Array, above: Array) -> list[Array]:
        """Offsets and jumps with which reals are moved, those below 0 and those from there on.

        There is a row of them for each of `below` and `above`.
        """
        offsets, jumps = (each.astype(np.float64) for each in first)
        if self.jumps is None:
            moved = (offsets + below).astype(np.float32)
            return [moved, np.broadcast_to(first[1], moved.shape)]
        offsets, jumps = offsets + (below + above) / 2, jumps + (above - below) / 2
        return [offsets.astype(np.float32), jumps.astype(np.float32)]

    def _room(
        self, x: Array, wanted: Array, factors: Array, offsets: Array, jumps: Array
    ) -> list[tuple[Array, Array]]:
        """By how much reals may be moved, below 0 and from there on: at least, and at most."""
        reals = x * factors.astype(np.float64) + offsets + np.where(x < 0, -jumps, jumps)
        least = np.where(wanted > self.low, wanted - 0.5 - reals, -_MOVED)
        most = np.where(wanted < self.high, wanted + 0.5 - reals, _MOVED)
        if self.jumps is None:
            return [(least.max(0), most.min(0))] * 2
        return [
            (np.where(side, least, -_MOVED).max(0), np.where(side, most, _MOVED).min(0))
            for side in (x < 0, x >= 0)
        ]

    def _places(self) -> tuple[tuple[int, ...], Array] | None:
        """The shape of a grid, and of its columns integers that may be rounded otherwise.

        There are as many for each; None if that is too many.
        """
        # Floats that are tried differ from the line by so much more.
        near = self.near + self.reach * _FACTORS * 2.0**-23
        near += _MOVED + float(np.abs(self.offset).max()) * 2.0**-23
        around = near / self.slope + 2.0**-10  # f64 is less off
        beside = int(2 * around.max()) + 1
        if beside > _MOST_BESIDE:
            return None
        grids = self.slope, self.offset, around, self.least, self.most
        shape = np.broadcast_shapes(*(each.shape for each in grids))
        slope, offset, around, least, most = (_flat(each, shape) for each in grids)
        jump = np.zeros(1) if self.jump is None else _flat(self.jump, shape)
        ties = np.arange(self.low + 1, self.high + 1).reshape(-1, 1) - 0.5
        found, are_near = [], []
        for moved in (offset,) if self.jump is None else (offset - jump, offset + jump):
            first = np.ceil((ties - moved) / slope - around)
            for number in range(beside):
                x = first + number
                found.append(np.clip(x, least, most).astype(np.int64))
                are_near.append(x <= (ties - moved) / slope + around)
        return shape, _packed(np.concatenate(found), np.concatenate(are_near))

    def _is_told(
        self, x: Array, wanted: Array, factors: Array, offsets: Array, jumps: Array
    ) -> Array:
        """True for the columns of which floats tell all these integers, on the first axis."""
        is_told = np.ones(offsets.shape, bool)
        sums = x.astype(np.float32).astype(np.float64) * factors + offsets
        for toward in (-np.inf, np.inf):
            real = np.nextafter(sums, toward).astype(np.float32)
            if self.jumps is not None:
                real = real + np.where(x < 0, -jumps, jumps)
            found = np.clip(np.rint(real), self.low, self.high)
            is_told &= (found == wanted).all(0)
        return is_told


def _next(floats: Array, count: int) -> Array:
    """The floats that are so many further up, or down."""
    for _ in range(abs(count)):
        floats = np.nextafter(floats, np.float32(np.copysign(np.inf, count)))
    return floats


def _flat(grid: Array, shape: tuple[int, ...]) -> Array:
    """A number for each column."""
    return np.broadcast_to(grid, shape).reshape(-1)


def _packed(numbers: Array, are_taken: Array) -> Array:
    """The numbers of each column that are taken, and others where there are less than of others."""
    counts = are_taken.sum(0)
    made = np.repeat(numbers[:1], max(1, int(counts.max(initial=0))), axis=0)
    columns, rows = np.nonzero(are_taken.T)
    made[np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts), columns] = numbers[
        rows, columns
    ]
    return made


def _one(numbers: Array) -> Array:
    """Numbers, or the one that they all are."""
    return numbers.reshape(-1)[:1] if (numbers == numbers.reshape(-1)[0]).all() else numbers
