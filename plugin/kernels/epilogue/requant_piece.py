"""Monotone pieces of integer functions: the elements of the requantization analysis' domain.

On a range of accumulators ``s`` a `Piece` describes a value by its numbers at both ends, its
direction, and a line ``floor(slope * s + offset)`` with an error bound.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...numerics.element_types import Array

_MINUS_ONE = np.asarray(-1)
_MAX_I64_MAGNITUDE = 1 << 62
"""Above this magnitude Python integers replace int64, which might overflow."""


class NotMonotone(Exception):
    """A value is not proved to be monotone."""


@dataclass(frozen=True)
class Piece:
    """A monotone value on a range of accumulators.

    Attributes:
        low, high: its numbers at the ends, int64, or Python integers where those overflow.
        direction: 1 for a rising value, -1 for a falling one, 0 for a constant.
        slope, offset: it is about ``floor(slope * s + offset)``.
        size: a bound of the magnitudes of all terms at the ends.
        error: where no bound clips it, it is ``floor(y)`` with ``y`` within this distance of the
            line; None if there is no bound.
        step: ``y`` is a multiple of this power of two.
        is_integer: ``y`` is an integer: no shift has dropped bits.
        is_clipped: it is a minimum or a maximum, or computed from one.
    """

    low: Array
    high: Array
    direction: Array
    slope: Array
    offset: Array
    size: Array
    error: Array | None
    step: Array
    is_integer: bool = True
    is_clipped: bool = False

    @staticmethod
    def constant(numbers: Array) -> Piece:
        """The piece of a constant."""
        integers = np.asarray(numbers)
        integers = integers.astype(np.int64) if integers.dtype != object else integers
        zero, real = np.zeros(integers.shape), integers.astype(np.float64)
        direction = zero.astype(int)
        return Piece(integers, integers, direction, zero, real, np.abs(real), zero, zero + 1)

    @property
    def is_constant(self) -> bool:
        """True for a number that does not depend on the accumulators."""
        return not self.direction.any()

    def __neg__(self) -> Piece:
        # -floor(y) = floor(1 - step - y)
        one = 0 if self.is_integer else 1
        return replace(
            self,
            low=_exact(operator.mul, self.low, _MINUS_ONE),
            high=_exact(operator.mul, self.high, _MINUS_ONE),
            direction=-self.direction,
            slope=-self.slope,
            offset=one - self.offset,
            size=self.size + one,
            error=None if self.error is None else self.error + one * self.step,
        )

    def __add__(self, other: Piece) -> Piece:
        error = None
        # A clipped piece is constant beyond some accumulator, and stays so with constants added.
        is_unclipped = not (self.is_clipped or other.is_clipped)
        is_unclipped = is_unclipped or self.is_constant or other.is_constant
        if self.error is not None and other.error is not None and is_unclipped:
            error = self.error + other.error if self.is_integer or other.is_integer else None
        return Piece(
            _exact(operator.add, self.low, other.low),
            _exact(operator.add, self.high, other.high),
            sum_direction(self, other),
            self.slope + other.slope,
            self.offset + other.offset,
            self.size + other.size,
            error,
            np.minimum(self.step, other.step),
            self.is_integer and other.is_integer,
            self.is_clipped or other.is_clipped,
        )

    def __mul__(self, other: Piece) -> Piece:
        value, number = _with_constant(self, other)
        factor = number.astype(np.float64)
        error = None
        if value.error is not None and (value.is_integer or (number == 1).all()):
            error = value.error * np.abs(factor)
        return replace(
            value,
            low=_exact(operator.mul, value.low, number),
            high=_exact(operator.mul, value.high, number),
            direction=value.direction * np.sign(factor).astype(int),
            slope=value.slope * factor,
            offset=value.offset * factor,
            size=value.size * np.abs(factor),
            error=error,
        )

    def __lshift__(self, count: Piece) -> Piece:
        raise NotMonotone  # requantizations shift to the right

    def __rshift__(self, count: Piece) -> Piece:
        if not count.is_constant or not ((count.low >= 0) & (count.low < 64)).all():
            raise NotMonotone
        factor = 2.0 ** -count.low.astype(np.float64)
        return replace(
            self,
            low=self.low >> count.low,
            high=self.high >> count.low,
            slope=self.slope * factor,
            offset=self.offset * factor,
            size=self.size * factor,
            error=None if self.error is None else self.error * factor,
            step=self.step * factor,
            is_integer=self.is_integer and not count.low.any(),
        )

    def maximum(self, other: Piece) -> Piece:
        """The greater of a value and a constant, with the value's line."""
        return self._clipped(other, np.maximum)

    def minimum(self, other: Piece) -> Piece:
        """The lesser of a value and a constant, with the value's line."""
        return self._clipped(other, np.minimum)

    def _clipped(self, other: Piece, clip: Callable[..., Any]) -> Piece:
        value, number = _with_constant(self, other)
        return replace(
            value, low=clip(value.low, number), high=clip(value.high, number), is_clipped=True
        )

    def select(self, condition: Array, other: Piece) -> Piece:
        """This piece where a condition holds for N, else another one."""

        def choose(yes: Array, no: Array) -> Array:
            return np.where(condition, yes, no)

        error = None
        if self.error is not None and other.error is not None:
            error = choose(self.error, other.error)
        return Piece(
            choose(self.low, other.low),
            choose(self.high, other.high),
            choose(self.direction, other.direction),
            choose(self.slope, other.slope),
            choose(self.offset, other.offset),
            choose(self.size, other.size),
            error,
            choose(self.step, other.step),
            self.is_integer and other.is_integer,
            self.is_clipped or other.is_clipped,
        )


def _with_constant(left: Piece, right: Piece) -> tuple[Piece, Array]:
    """A value and a number, of two operands of which one is constant."""
    if left.is_constant:
        left, right = right, left
    if not right.is_constant:
        raise NotMonotone
    return left, right.low


def sum_direction(left: Piece, right: Piece) -> Array:
    """The direction of a sum; refuses a rising and a falling value."""
    direction: Array = left.direction + right.direction
    if (left.direction * right.direction < 0).any():
        raise NotMonotone
    return np.sign(direction)


def _exact(function: Callable[[Any, Any], Any], left: Array, right: Array) -> Array:
    """A sum or a product, of Python integers where int64 might overflow."""
    greatest = [max(abs(int(each.min())), abs(int(each.max()))) for each in (left, right)]
    if function(*greatest) >= _MAX_I64_MAGNITUDE:
        left, right = left.astype(object), right.astype(object)
    return np.asarray(function(left, right))
