"""Functions of f32 at zeros, infinities, NaN and subnormals, as IEEE 754 says (NumPy in f64).

Devices flush subnormals, so operands that are none are compared, but for ``ceil`` and ``floor``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bare_iree import FIXED, compile_bare
from devices import ON_DEVICES, run
from programs import one_operation
from subquant.runtime import Device, Executable
from together import Together

POINTS = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2, -2, 2.5, -2.5, 3, -3, 1e-10, -1e-10,
     100, -100, 1e6, -1e6],
    np.float32,
)  # fmt: skip
FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "atan2": np.arctan2,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "exponential_minus_one": np.expm1,
    "floor": np.floor,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "power": np.power,
    "remainder": np.fmod,
    "round_nearest_even": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sign": lambda x: np.where(np.isnan(x) | (x == 0), x, np.sign(x)),
    "sqrt": np.sqrt,
    "tanh": np.tanh,
}
BINARY = ("atan2", "power", "remainder")


def points(name: str) -> list[np.ndarray]:
    """Every point, or every pair of points."""
    if name not in BINARY:
        return [POINTS]
    left, right = np.meshgrid(POINTS, POINTS)
    return [left.reshape(-1), right.reshape(-1)]


def program(name: str) -> str:
    operands = [f"{operand.size}xf32" for operand in points(name)]
    names = ", ".join(f"%{n}" for n in range(len(operands)))
    return one_operation(f'"stablehlo.{name}"({names})', operands, operands[0])


PROGRAMS = Together({name: program(name) for name in FUNCTIONS})


@ON_DEVICES
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(device: Device, device_name: str, name: str) -> None:
    """Finite results within 1e-4 (Vulkan's own bounds are wider), others exactly, with signs."""
    operands = points(name)
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[name](*(operand.astype(np.float64) for operand in operands))
        expected = expected.astype(np.float32)
    actual = PROGRAMS.function(name, device)(*operands)
    is_normal = ~(np.abs(expected) < np.finfo(np.float32).tiny) | (expected == 0)
    is_near_zero = (expected == 0) | ~is_normal
    np.testing.assert_array_equal(np.isnan(actual)[is_normal], np.isnan(expected)[is_normal])
    exact = is_normal & (np.isinf(expected) | np.isinf(actual))
    np.testing.assert_array_equal(actual[exact], expected[exact])
    zeros = is_normal & is_near_zero & (actual == 0)
    np.testing.assert_array_equal(np.signbit(actual[zeros]), np.signbit(expected[zeros]))
    finite = is_normal & np.isfinite(expected)
    np.testing.assert_allclose(actual[finite], expected[finite], rtol=1e-4, atol=1e-6)


REMAINDERS = {
    each: one_operation('"stablehlo.remainder"(%0, %1)', [f"?x2x{each}"] * 2, f"?x2x{each}")
    for each in ("f16", "f32", "f64")
}


def dividends_and_divisors(element: str) -> tuple[np.ndarray, np.ndarray]:
    """Quotients of all sizes, multiples of the divisor and their neighbors, and `POINTS`."""
    rng = np.random.default_rng(0)
    dtype = np.dtype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[element])
    most = {"f16": 10, "f32": 90, "f64": 1000}[element]
    x, y = (rng.standard_normal((800, 2)) for _ in range(2))
    x[:200] *= 2.0 ** rng.integers(-10, min(60, most), (200, 2))
    x[200:400] *= 2.0 ** rng.integers(-most, most, (200, 2))
    y[200:400] *= 2.0 ** rng.integers(-most, most, (200, 2))
    with np.errstate(over="ignore"):
        x, y = x.astype(dtype), y.astype(dtype)
        points = POINTS.astype(dtype)
    x[400:] = np.rint(x[400:] * 1000).astype(dtype) * y[400:]
    x[600:] = np.nextafter(x[600:], dtype.type(0))
    left, right = np.meshgrid(points, points)
    x = np.concatenate([x, left.reshape(-1, 1).repeat(2, 1)])
    y = np.concatenate([y, right.reshape(-1, 1).repeat(2, 1)])
    return x, y


@ON_DEVICES
@pytest.mark.parametrize("element", REMAINDERS)
def test_remainders(device: Device, device_name: str, element: str) -> None:
    """To the bit, also where the quotient has 2,000 bits."""
    x, y = dividends_and_divisors(element)
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    actual = run(REMAINDERS[element], device, x, y)
    is_normal = ~(np.abs(expected) < np.finfo(expected.dtype).tiny) | (expected == 0)
    is_normal &= (np.abs(y) >= np.finfo(y.dtype).tiny) | (y == 0) | np.isnan(y)
    assert is_normal.mean() > 0.9
    np.testing.assert_array_equal(actual[is_normal], expected[is_normal])
    is_number = is_normal & ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual)[is_number], np.signbit(expected)[is_number])


SUBNORMAL = """
func.func @main(%x: tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>) {
  %c = stablehlo.ceil %x : tensor<6xf32>
  %f = stablehlo.floor %x : tensor<6xf32>
  return %c, %f : tensor<6xf32>, tensor<6xf32>
}
"""


@ON_DEVICES
def test_subnormals_are_no_integers(device: Device, device_name: str) -> None:
    tiny = np.finfo(np.float32).smallest_subnormal
    x = np.array([tiny, -tiny, 1e-40, -1e-40, 0.0, -0.0], np.float32)
    up, down = run(SUBNORMAL, device, x)
    np.testing.assert_array_equal(up, [1, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(down, [0, -1, 0, -1, 0, 0])


Y, X, ANGLE = (
    f"4x!quant.uniform<i16:f32, {each}>" for each in ("0.761:102", "0.125:-566", "0.5:-27")
)
QUANTIZED = one_operation('"stablehlo.atan2"(%0, %1)', [Y, X], ANGLE)


@pytest.mark.long
@ON_DEVICES
def test_quantized_operands_that_stand_for_zero(device: Device, device_name: str) -> None:
    """Angles 0, pi, pi / 2 and 0, half a unit each: 0, 6, 3 and 0 steps from the zero point."""
    y, x = np.array([102, 102, 103, 102], np.int16), np.array([-566, -567, -566, 0], np.int16)
    np.testing.assert_array_equal(run(QUANTIZED, device, y, x), [-27, -21, -24, -27])


_EXTREMES = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.4375, 0.6875, 1.1875, 2.4375]
)


def _arguments() -> tuple[np.ndarray, np.ndarray]:
    """Pairs of all magnitudes, and of all extremes."""
    rng = np.random.default_rng(0)
    y, x = (rng.standard_normal(600) * 10.0 ** rng.integers(-150, 150, 600) for _ in range(2))
    y[:300], x[:300] = rng.standard_normal((2, 300))
    left, right = np.meshgrid(_EXTREMES, _EXTREMES)
    return np.concatenate([y, left.reshape(-1)]), np.concatenate([x, right.reshape(-1)])


_COUNT = _arguments()[0].size
_TYPE = f"tensor<{_COUNT}xf64>"
ARCTANGENTS = Together(
    {
        "stablehlo": f"""
func.func @main(%y: {_TYPE}, %x: {_TYPE}) -> ({_TYPE}, {_TYPE}) {{
  %one = stablehlo.constant dense<1.0> : {_TYPE}
  %r = stablehlo.atan2 %y, %x : {_TYPE}
  %s = stablehlo.atan2 %y, %one : {_TYPE}
  return %r, %s : {_TYPE}, {_TYPE}
}}""",
        "math": f"""
func.func @main(%y: {_TYPE}, %x: {_TYPE}) -> ({_TYPE}, {_TYPE}) {{
  %e = tensor.empty() : {_TYPE}
  %r:2 = linalg.generic {{
      indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>,
                       affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]}}
      ins(%y, %x : {_TYPE}, {_TYPE}) outs(%e, %e : {_TYPE}, {_TYPE}) {{
  ^bb0(%a: f64, %b: f64, %c: f64, %d: f64):
    %p = math.atan2 %a, %b : f64
    %q = math.atan %a : f64
    linalg.yield %p, %q : f64, f64
  }} -> ({_TYPE}, {_TYPE})
  return %r#0, %r#1 : {_TYPE}, {_TYPE}
}}""",
    }
)


@ON_DEVICES
@pytest.mark.parametrize("name", ["stablehlo", "math"])
def test_arctangents_of_f64(device: Device, device_name: str, name: str) -> None:
    """Within two units in the last place of the C library, with its signs."""
    y, x = _arguments()
    for actual, expected in zip(
        ARCTANGENTS.function(name, device)(y, x), (np.arctan2(y, x), np.arctan(y)), strict=True
    ):
        result = np.asarray(actual)
        np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
        is_normal = np.abs(expected) >= np.finfo(np.float64).tiny  # devices flush subnormals
        error = np.abs(result - expected)[is_normal]
        assert (error <= 2 * np.spacing(np.abs(expected[is_normal]))).all()
        is_number = ~np.isnan(expected)
        np.testing.assert_array_equal(
            np.signbit(result[is_number]), np.signbit(expected[is_number])
        )


@pytest.mark.long
@pytest.mark.vulkan
@pytest.mark.parametrize("device_name", ["vulkan"])
def test_remainders_are_still_inexact(device: Device) -> None:
    x, y = (each[:400].copy() for each in dividends_and_divisors("f32"))
    text = one_operation('"stablehlo.remainder"(%0, %1)', ["400x2xf32"] * 2, "400x2xf32")
    actual = Executable(compile_bare(text, "--iree-hal-target-device=vulkan"), device).main(x, y)
    assert not np.array_equal(actual, np.fmod(x, y)), FIXED + "iree_workarounds/remainders.py"
