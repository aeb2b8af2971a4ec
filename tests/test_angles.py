"""Sine, cosine and tangent of f32 for all angles: f64's, with pi of 110 digits."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bare_iree import FIXED, compile_bare
from devices import compile_for
from subquant.numerics import trigonometry
from subquant.runtime import Device, Executable

Array = np.ndarray[Any, Any]
PI = Fraction(
    314159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211,
    10**95,
)
FUNCTIONS = {"sine": "sine", "cosine": "cosine", "tan": "tangent"}
UNITS = {"sine": 2.2, "cosine": 2.2, "tan": 4.2}
"""Errors in units in the last place, at most."""


def angles() -> Array:
    """Near multiples of pi/2, of all magnitudes, and the one that is nearest to a multiple."""
    rng = np.random.default_rng(0)
    multiples = (np.arange(-40, 41) * np.pi / 2).astype(np.float32)
    return np.concatenate(
        [
            multiples,
            np.nextafter(multiples, np.float32(99)),
            rng.uniform(-10, 10, 500).astype(np.float32),
            rng.uniform(-1e6, 1e6, 500).astype(np.float32),
            rng.integers(0x00800000, 0x7F800000, 500).astype(np.int32).view(np.float32),
            np.array([16367173 * 2.0**72, 0.0, -0.0, -3.4028235e38], np.float32),
        ]
    )


def exact(function: str, x: Array) -> Array:
    """The function in f64, of angles reduced by fractions."""
    results = []
    for angle in map(float, x):
        quarters = round(Fraction(angle) / (PI / 2))
        rest = float(Fraction(angle) - quarters * (PI / 2))
        sine, cosine = np.sin(rest), np.cos(rest)
        pairs = [(sine, cosine), (cosine, -sine), (-sine, -cosine), (-cosine, sine)][quarters % 4]
        results.append({"sine": pairs[0], "cosine": pairs[1], "tan": pairs[0] / pairs[1]}[function])
    return np.array(results)


def assert_close(function: str, actual: Array, x: Array) -> None:
    expected = exact(function, x)
    unit = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(actual.astype(np.float64) - expected) / unit) <= UNITS[function]


def text_of(function: str, size: int, element: str = "f32") -> str:
    type_ = f"tensor<{size}x{element}>"
    return f"""
func.func @main(%x: {type_}) -> {type_} {{
  %y = stablehlo.{function} %x : {type_}
  return %y : {type_}
}}"""


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_arrays(function: str) -> None:
    x = angles()
    compute = getattr(trigonometry, FUNCTIONS[function])
    assert_close(function, compute(x), x)
    with np.errstate(invalid="ignore"):
        assert np.isnan(compute(np.array([np.inf, -np.inf, np.nan], np.float32))).all()


@pytest.mark.parametrize("device_name", ["cpu", "vulkan", "vulkan_32bit"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.share(3)
def test_functions_of_programs(function: str, device: Device) -> None:
    x = np.append(angles(), np.float32(np.inf))
    actual = compile_for(text_of(function, x.size), device).main(x)
    assert np.isnan(actual[-1])
    assert_close(function, actual[:-1], x[:-1])


def test_tan_of_chlo(cpu: Device) -> None:
    x = angles()
    type_ = f"tensor<{x.size}xf32>"
    text = text_of("tan", x.size).replace("stablehlo.tan", "chlo.tan")
    text = text.replace(f": {type_}\n", f": {type_} -> {type_}\n", 1)
    actual = compile_for(text, cpu).main(x)
    assert_close("tan", actual, x)


def test_halves_are_computed_in_f32(cpu: Device) -> None:
    x = np.random.default_rng(0).uniform(-6e4, 6e4, 500).astype(np.float16)
    actual = compile_for(text_of("sine", x.size, "f16"), cpu).main(x)
    np.testing.assert_allclose(actual, exact("sine", x), rtol=2**-10, atol=0)


@pytest.mark.long
def test_angles_are_still_inaccurate(cpu: Device) -> None:
    x = np.full(4, 1e5, np.float32)
    actual = Executable(compile_bare(text_of("sine", 4)), cpu).main(x)
    error = np.abs(actual - exact("sine", x)).max()
    assert error > 1e-5, FIXED + "iree_workarounds/float_functions.py"
