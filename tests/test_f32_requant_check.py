"""Floats that tell every sum: beside the exact function, for every integer of a range.

What a kernel computes is written here once more, with fractions that are rounded to f32.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from subquant.kernels.epilogue.f32_requant_check import F32Requant

LOW, HIGH = -128, 127


def f32(number):
    """The nearest float of a fraction, whose ties go to even ones."""
    near = np.float32(float(number))
    around = [np.nextafter(near, np.float32(side)) for side in (-np.inf, np.inf)]
    choices = [near, *around]

    def rank(each):
        is_odd = int(each.view(np.int32)) & 1
        return abs(Fraction(float(each)) - number), is_odd

    return min(choices, key=rank)


def real(x, factor, offset, jump):
    """As kernels compute it."""
    product = Fraction(float(np.float32(x))) * Fraction(float(factor))
    found = f32(product + Fraction(float(offset)))
    if jump is not None:
        found = found + (jump if x >= 0 else -jump)
    return found


def rounded(numbers):
    return np.clip(np.rint(numbers), LOW, HIGH).astype(np.int64)


def line(slope, offset, jump, bound, near):
    """A line of columns."""
    jump = None if jump is None else np.array(jump)
    between = np.array(-bound), np.array(bound)
    found = F32Requant.of(np.array(slope), np.array(offset), jump, (LOW, HIGH), between, near)
    assert found is not None
    return found


def check(found, exact, columns, step=1):
    """Each sum of the columns that are told, by the floats that were found."""
    told = np.broadcast_to(found.is_exact, [columns])
    factors, offsets = (
        np.broadcast_to(each, [columns]) for each in (found.f32_slope, found.f32_offset)
    )
    jumps = (
        None if found.f32_sign_offset is None else np.broadcast_to(found.f32_sign_offset, [columns])
    )
    x = np.arange(int(found.min_x.min()), int(found.max_x.max()) + 1, step)
    wanted = exact(x.reshape(-1, 1))
    for column in np.flatnonzero(told):
        # All but those near to a tie are rounded alike by f64, too.
        line_there = x * float(factors[column]) + float(offsets[column])
        if jumps is not None:
            line_there = line_there + np.where(x < 0, -jumps[column], jumps[column]).astype(float)
        made = rounded(line_there)
        for place in np.flatnonzero(np.abs(line_there - np.floor(line_there) - 0.5) < 2.0**-14):
            jump = None if jumps is None else jumps[column]
            made[place] = rounded(real(int(x[place]), factors[column], offsets[column], jump))
        assert (made == wanted[:, column]).all()
    return told


@pytest.mark.parametrize("seed", range(2))
def test_ties_near_which_even_numbers_are_taken(seed):
    rng = np.random.default_rng(seed)
    slope = rng.uniform(0.001, 0.02, 12)
    slope[:2] = 1 / 128, 3 / 512  # has ties

    def exact(x):
        number = x * slope - 5
        near = np.abs(number - np.floor(number) - 0.5) < 2.0**-20
        return rounded(np.where(near, 2 * np.rint(number / 2), number))

    nearest = line(slope, np.full(1, -5.0), None, 1 << 17, 1e-4)
    told = check(nearest.proved(exact), exact, len(slope))
    assert told[:2].all()
    assert told.sum() > len(slope) // 2


def test_one_line_of_all_columns():
    slope = np.array(0.0123)
    found = line(slope, np.array(3.0), None, 1 << 13, 1e-4).proved(lambda x: rounded(x * slope + 3))
    assert check(found, lambda x: rounded(x * slope + 3), 1).all()


def test_columns_that_no_line_is_are_not_told():
    slope = np.full(2, 1 / 128)

    def exact(x):
        number = x * slope
        found = rounded(number)
        is_tie = np.abs(number - np.floor(number)) == 0.5
        found[:, 1] = np.where(is_tie, 2 * np.floor(number / 2) + 1, found)[:, 1]  # odd ones
        return np.clip(found, LOW, HIGH)

    told = check(line(slope, np.zeros(1), None, 1 << 13, 1e-4).proved(exact), exact, 2)
    assert told.tolist() == [True, False]


def test_halves_that_are_rounded_away_from_zero_twice():
    """First to steps of 1/256, then to integers."""
    rng = np.random.default_rng(5)
    multiplier = rng.integers(1 << 30, 1 << 31, 10)

    def exact(x):
        product = np.abs(x).astype(np.int64) * multiplier
        steps = (product + (1 << 30)) >> 31
        return rounded(np.sign(x) * ((steps + 128) >> 8))

    slope = multiplier / 2.0**39
    # An integer of steps is 1/512 from the next one, in the middle.
    jump = np.full(1, 2.0**-9)
    found = line(slope, np.zeros(1), jump, 1 << 17, 1e-4).proved(exact)
    assert check(found, exact, len(slope)).sum() > 7


def test_many_columns_of_small_steps_are_not_looked_at():
    slope = np.full(2048, 1e-4)

    def exact(x):
        raise AssertionError

    assert not line(slope, np.zeros(1), None, 1 << 24, 1e-4).proved(exact).is_exact.any()


def test_where_a_float_is_not_worth_asking():
    between = np.array(-1), np.array(1)
    one = np.ones(1)
    assert F32Requant.of(one, one, None, (LOW, HIGH), between, 2.0**-6) is None
    assert F32Requant.of(one, one, None, (LOW, HIGH), between, float("nan")) is None
