"""Quotients of f32 on Vulkan are those of IEEE 754, on devices that divide nearly right only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import subquant
from programs import lowered_text, one_operation
from subquant.numerics import casts
from subquant.numerics.parameters import ExpressedType, StorageType
from subquant.runtime import Device

COUNT = 1 << 14
PROGRAM = one_operation("stablehlo.divide %0, %1", [f"{COUNT}xf32"] * 2, f"{COUNT}xf32")
BY_SOME = """
func.func @main(%x: tensor<?x8xf32>, %s: tensor<f32>) -> tensor<?x8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %half = stablehlo.constant dense<0.7> : tensor<f32>
  %scale = stablehlo.divide %s, %half : tensor<f32>
  %sums = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<?x8xf32>, tensor<f32>) -> tensor<?xf32>
  %extent = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x8xf32>) -> tensor<i32>
  %one = stablehlo.reshape %extent : (tensor<i32>) -> tensor<1xi32>
  %eight = stablehlo.constant dense<8> : tensor<1xi32>
  %shape = stablehlo.concatenate %one, %eight, dim = 0
      : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %wide = stablehlo.dynamic_broadcast_in_dim %sums, %shape, dims = [0]
      : (tensor<?xf32>, tensor<2xi32>) -> tensor<?x8xf32>
  %share = stablehlo.divide %x, %wide : tensor<?x8xf32>
  %scales = stablehlo.dynamic_broadcast_in_dim %scale, %shape, dims = []
      : (tensor<f32>, tensor<2xi32>) -> tensor<?x8xf32>
  %y = stablehlo.divide %share, %scales : tensor<?x8xf32>
  return %y : tensor<?x8xf32>
}"""


@pytest.fixture(params=["vulkan", "vulkan_32bit"])
def any_vulkan(request: pytest.FixtureRequest) -> Device:
    """Devices with 8-bit storage, and without."""
    actual: Device = request.getfixturevalue(request.param)
    return actual


def drawn(seed: int) -> npt.NDArray[np.float32]:
    """Floats of many magnitudes and both signs, whose quotients are normal numbers."""
    rng = np.random.default_rng(seed)
    magnitudes = rng.uniform(1, 2, COUNT) * 2.0 ** rng.integers(-60, 60, COUNT)
    return (magnitudes * rng.choice([-1, 1], COUNT)).astype(np.float32)


@pytest.mark.parametrize("units", [-2, -1, 1, 2])
def test_a_device_may_be_off_by_two_units(units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The formula in NumPy, with an inexact division instead of the target's."""

    def nearly(value: npt.NDArray[np.float32], divisor: npt.NDArray[np.float32]) -> Any:
        return ((value / divisor).view(np.int32) + np.int32(units)).view(np.float32)

    monkeypatch.setattr(casts, "_quotient_of_target", nearly)
    cast = casts.Cast(StorageType(32, True), ExpressedType.F32, division="exact")
    x, y = drawn(3), drawn(4)
    assert (nearly(x, y) != x / y).all()
    np.testing.assert_array_equal(cast._quotient(x, y), x / y)


@pytest.mark.vulkan
def test_quotients_are_the_nearest_floats(any_vulkan: Device) -> None:
    x, y = drawn(0), drawn(1)
    x[:8], y[:8] = [0, -0.0, np.inf, -np.inf, np.nan, 3, 1, 0], [2, 2, 2, 2, 2, np.inf, 0, 0]
    actual = subquant.compile(PROGRAM, target="vulkan", device=any_vulkan).main(x, y)
    with np.errstate(all="ignore"):
        expected = x / y
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual[:4]), np.signbit(expected[:4]))


@pytest.mark.vulkan
def test_scalars_and_extents_that_are_known_at_run_time(any_vulkan: Device) -> None:
    x = np.abs(drawn(2)[:48]).reshape(6, 8)
    main = subquant.compile(BY_SOME, target="vulkan", device=any_vulkan).main
    for rows in (6, 1):
        totals = main(x[:rows], np.float32(0.3)) * (np.float32(0.3) / np.float32(0.7))
        np.testing.assert_allclose(totals.sum(1), np.ones(rows), rtol=1e-5)


def test_devices_that_divide_right_divide_once() -> None:
    """A CPU's quotient is a division; on Vulkan integers correct it, but of f64."""
    lowered = lowered_text(PROGRAM)
    assert "stablehlo.divide" in lowered
    assert "bitcast_convert" not in lowered
    assert "bitcast_convert" in lowered_text(PROGRAM, "vulkan")
    assert "bitcast_convert" not in lowered_text(PROGRAM.replace("f32", "f64"), "vulkan")


@pytest.mark.parametrize("element", ["f32", "f16"])
def test_a_quantization_has_one_exact_quotient(element: str) -> None:
    result = f"64x!quant.uniform<i8:{element}, 0.3:3>"
    text = one_operation("stablehlo.uniform_quantize %0", (f"64x{element}",), result)
    # The bits of the dividend, and those of the quotient; the divisor's are known.
    assert lowered_text(text, "vulkan").count("bitcast") == 2


INTEGERS = """
!q = !quant.uniform<i8:f32, 0.3:3>
func.func @main(%x: tensor<1024xf32>) -> (tensor<1024x!q>, tensor<1024xf32>) {
  %0 = stablehlo.uniform_quantize %x : (tensor<1024xf32>) -> tensor<1024x!q>
  %1 = stablehlo.add %0, %0 : tensor<1024x!q>
  %2 = stablehlo.uniform_dequantize %1 : (tensor<1024x!q>) -> tensor<1024xf32>
  %3 = stablehlo.divide %2, %x : tensor<1024xf32>
  return %1, %3 : tensor<1024x!q>, tensor<1024xf32>
}"""


def test_an_exact_quotient_is_no_float_between_integers(any_vulkan: Device) -> None:
    """Exact quotients of reals and of dequantized integers equal the host's."""
    x = np.random.default_rng(4).uniform(-20, 20, 1024).astype(np.float32)
    main = subquant.compile(INTEGERS, target="vulkan", device=any_vulkan, integer_only=True).main
    stored = np.clip(np.rint(x / np.float32(0.3) + np.float32(3)), -128, 127).astype(np.int64) - 3
    total = np.clip(2 * stored, -131, 124)
    got, ratio = main(x)
    np.testing.assert_array_equal(got, total + 3)
    np.testing.assert_array_equal(ratio, (total * np.float32(0.3)).astype(np.float32) / x)


def test_quotients_in_loops_are_exact(any_vulkan: Device) -> None:
    """A quotient in a ``linalg.generic``, and one of the cast that becomes a loop."""
    text = """
!q = !quant.uniform<i8:f32, 0.3:3>
func.func @main(%x: tensor<1024xf32>, %y: tensor<1024xf32>)
    -> (tensor<1024xf32>, tensor<1024x!q>) {
  %e = tensor.empty() : tensor<1024xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>,
                                        affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x, %y : tensor<1024xf32>, tensor<1024xf32>) outs(%e : tensor<1024xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %d = arith.divf %a, %b : f32
    linalg.yield %d : f32
  } -> tensor<1024xf32>
  %q = quant.qcast %x : tensor<1024xf32> to tensor<1024x!q>
  return %r, %q : tensor<1024xf32>, tensor<1024x!q>
}"""
    x, y = drawn(5)[:1024], drawn(6)[:1024]
    x[::2] = np.random.default_rng(7).integers(-400, 400, 512) * np.float32(0.15)  # ties
    x[x == 0] = 1
    ratio, stored = subquant.compile(text, target="vulkan", device=any_vulkan).main(x, y)
    np.testing.assert_array_equal(ratio, x / y)
    reals = x / np.float32(0.3) + np.float32(3)
    np.testing.assert_array_equal(stored, np.rint(np.clip(reals, -128, 127)))
