"""Proofs of f32 requantizations, against the exact function of every integer of a range.

The kernel's f32 arithmetic is repeated here in fractions that are rounded to f32.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from subquant.kernels.epilogue.f32_requant_check import F32Requant

LOW, HIGH = -128, 127


def f32(number):
    """The nearest float of a fraction, ties to even."""
    nearest = np.float32(float(number))
    choices = [nearest, *(np.nextafter(nearest, np.float32(side)) for side in (-np.inf, np.inf))]

    def rank(each):
        is_odd = int(each.view(np.int32)) & 1
        return abs(Fraction(float(each)) - number), is_odd

    return min(choices, key=rank)


def real(x, slope, offset, sign_offset):
    """The estimate of a kernel."""
    product = Fraction(float(np.float32(x))) * Fraction(float(slope))
    estimate = f32(product + Fraction(float(offset)))
    if sign_offset is not None:
        estimate = estimate + (sign_offset if x >= 0 else -sign_offset)
    return estimate


def rounded(numbers):
    return np.clip(np.rint(numbers), LOW, HIGH).astype(np.int64)


def line(slope, offset, sign_offset, bound, fallback_tolerance):
    """A requantization with the nearest floats."""
    sign_offset = None if sign_offset is None else np.array(sign_offset)
    x_range = np.array(-bound), np.array(bound)
    clamp = LOW, HIGH
    requant = F32Requant.of(
        np.array(slope), np.array(offset), sign_offset, clamp, x_range, fallback_tolerance
    )
    assert requant is not None
    return requant


def check(requant, exact, n, step=1):
    """Check the estimates of all integers for each proved N; return which are proved."""
    is_exact = np.broadcast_to(requant.is_exact, [n])
    slopes = np.broadcast_to(requant.f32_slope, [n])
    offsets = np.broadcast_to(requant.f32_offset, [n])
    sign_offsets = [None] * n
    if requant.f32_sign_offset is not None:
        sign_offsets = np.broadcast_to(requant.f32_sign_offset, [n])
    x = np.arange(int(requant.min_x.min()), int(requant.max_x.max()) + 1, step)
    expected = exact(x.reshape(-1, 1))
    for each in np.flatnonzero(is_exact):
        floats = slopes[each], offsets[each], sign_offsets[each]
        reals = x * float(floats[0]) + float(floats[1])
        if floats[2] is not None:
            reals = reals + np.where(x < 0, -floats[2], floats[2]).astype(float)
        results = rounded(reals)  # f64 rounds as f32 does, except near ties
        for index in np.flatnonzero(np.abs(reals - np.floor(reals) - 0.5) < 2.0**-14):
            results[index] = rounded(real(int(x[index]), *floats))
        assert (results == expected[:, each]).all()
    return is_exact


@pytest.mark.parametrize("seed", range(2))
def test_half_to_even_near_ties(seed):
    rng = np.random.default_rng(seed)
    slope = rng.uniform(0.001, 0.02, 12)
    slope[:2] = 1 / 128, 3 / 512  # has ties

    def exact(x):
        number = x * slope - 5
        is_tie = np.abs(number - np.floor(number) - 0.5) < 2.0**-20
        return rounded(np.where(is_tie, 2 * np.rint(number / 2), number))

    nearest = line(slope, np.full(1, -5.0), None, 1 << 17, 1e-4)
    is_exact = check(nearest.proved(exact), exact, len(slope))
    assert is_exact[:2].all()
    assert is_exact.sum() > len(slope) // 2


def test_one_line_for_all_n():
    slope = np.array(0.0123)

    def exact(x):
        return rounded(x * slope + 3)

    requant = line(slope, np.array(3.0), None, 1 << 13, 1e-4).proved(exact)
    assert check(requant, exact, 1).all()


def test_an_n_without_a_line_is_not_proved():
    slope = np.full(2, 1 / 128)

    def exact(x):
        number = x * slope
        results = rounded(number)
        is_tie = np.abs(number - np.floor(number)) == 0.5
        results[:, 1] = np.where(is_tie, 2 * np.floor(number / 2) + 1, results)[:, 1]  # half to odd
        return np.clip(results, LOW, HIGH)

    is_exact = check(line(slope, np.zeros(1), None, 1 << 13, 1e-4).proved(exact), exact, 2)
    assert is_exact.tolist() == [True, False]


def test_double_rounding_half_away_from_zero():
    """The first rounding is to multiples of 1/256."""
    rng = np.random.default_rng(5)
    multiplier = rng.integers(1 << 30, 1 << 31, 10)

    def exact(x):
        product = np.abs(x).astype(np.int64) * multiplier
        steps = (product + (1 << 30)) >> 31
        return rounded(np.sign(x) * ((steps + 128) >> 8))

    slope = multiplier / 2.0**39
    # The first rounding is off by 1/512 on average.
    sign_offset = np.full(1, 2.0**-9)
    requant = line(slope, np.zeros(1), sign_offset, 1 << 17, 1e-4).proved(exact)
    assert check(requant, exact, len(slope)).sum() > 7


def test_a_long_list_of_integers_is_not_evaluated():
    slope = np.full(2048, 1e-4)

    def exact(x):
        raise AssertionError

    assert not line(slope, np.zeros(1), None, 1 << 24, 1e-4).proved(exact).is_exact.any()


def test_coarse_estimates_are_refused():
    x_range, one = (np.array(-1), np.array(1)), np.ones(1)
    assert F32Requant.of(one, one, None, (LOW, HIGH), x_range, 2.0**-6) is None
    assert F32Requant.of(one, one, None, (LOW, HIGH), x_range, float("nan")) is None
