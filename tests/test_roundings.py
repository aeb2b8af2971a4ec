"""Roundings of f32 to even are those of IEEE-754 in programs for CPUs, which round by additions."""

from __future__ import annotations

import numpy as np
import pytest

import subquant
from programs import one_operation
from subquant.runtime import Device

_SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.49999997, -0.49999997, 1e-40, -1e-40]
_NEAR_INTEGRAL = [
    sign * (2.0**23 + offset) for sign in (1, -1) for offset in (-1.5, -1, -0.5, 0, 1, 2**23, 1e30)
]
"""Numbers around the least one without a fraction."""


@pytest.mark.parametrize("target_cpu", ["host", "haswell", "generic"])
def test_results_have_the_bits_of_numpy(target_cpu: str) -> None:
    """Ties, signed zeros, infinities, NaN and numbers without fractions."""
    ties = np.arange(-8, 8, 0.25)
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=963) * 10.0 ** rng.integers(-3, 9, 963)
    x = np.concatenate([_SPECIAL, _NEAR_INTEGRAL, ties, drawn]).astype(np.float32)
    size = f"{len(x)}xf32"
    program = one_operation("stablehlo.round_nearest_even %0", [size], size)
    device = Device("llvm-cpu", threads=1)
    result = np.asarray(subquant.compile(program, target_cpu=target_cpu, device=device).main(x))
    expected = np.rint(x)
    is_nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(result), is_nan)
    np.testing.assert_array_equal(result[~is_nan].view(np.int32), expected[~is_nan].view(np.int32))


def test_products_are_rounded_before() -> None:
    """``x * y`` near a tie: one operation for product and addition would round elsewhere."""
    rng = np.random.default_rng(1)
    x = rng.uniform(1, 64, 1 << 14).astype(np.float32)
    y = ((np.rint(x * 3) + 0.5) / x).astype(np.float32)
    size = f"{len(x)}xf32"
    body = f"stablehlo.multiply %0, %1 : tensor<{size}>\n  %r = stablehlo.round_nearest_even %p"
    program = (
        f"func.func @main(%0: tensor<{size}>, %1: tensor<{size}>) -> tensor<{size}> {{\n"
        f"  %p = {body} : tensor<{size}>\n  return %r : tensor<{size}>\n}}"
    )
    exact = x.astype(np.float64) * y
    expected = np.rint(x * y)
    assert (expected != np.rint(exact)).any()  # the product's rounding matters here
    np.testing.assert_array_equal(np.asarray(subquant.compile(program).main(x, y)), expected)
