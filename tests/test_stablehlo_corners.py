"""Corners of quantized StableHLO: sums of nothing, windows that fit nowhere, dynamic shapes.

Expected numbers are computed here, from the reals, with NumPy and exact fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

import subquant
from subquant.errors import UnsupportedError
from subquant.interpreter import InterpretedModule
from subquant.runtime import Device

ON_DEVICES = pytest.mark.parametrize(
    "device_name", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]
)


@pytest.fixture
def device(device_name: str, request: pytest.FixtureRequest) -> Device:
    found: Device = request.getfixturevalue(device_name)
    return found


def run(text: str, device: Device, *arguments: np.ndarray) -> np.ndarray:
    target = "vulkan" if device.is_vulkan else "llvm-cpu"
    result: np.ndarray = subquant.compile(text, target=target, device=device).main(*arguments)
    return result


def real(stored: np.ndarray, scale: float, zero_point: int) -> np.ndarray:
    """The exact reals, as fractions."""
    differences = stored.astype(np.int64) - zero_point
    flat = [int(d) * Fraction(float(np.float32(scale))) for d in differences.reshape(-1)]
    return np.array(flat, object).reshape(stored.shape)


def quantized(
    reals: np.ndarray, scale: float, zero_point: int, low: int = -128, high: int = 127
) -> list[int]:
    """Storage values nearest to the reals, flat."""
    exact = Fraction(float(np.float32(scale)))
    return [min(max(round(r / exact + zero_point), low), high) for r in reals.reshape(-1)]


# -- contractions ---------------------------------------------------------------------------------


@ON_DEVICES
@pytest.mark.parametrize("width", [8, 32])
@pytest.mark.parametrize("scale", ["1.0e-09", "1.0e+09"])
def test_a_sum_of_no_products_is_the_zero_point(
    device: Device, device_name: str, width: int, scale: str
) -> None:
    x, y = (f"tensor<{shape}x!quant.uniform<i{width}:f32, 0.5>>" for shape in ("2x0", "0x3"))
    z = f"tensor<2x3x!quant.uniform<i8:f32, {scale}:5>>"
    text = f"""
func.func @main(%x: {x}, %y: {y}) -> {z} {{
  %r = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({x}, {y}) -> {z}
  return %r : {z}
}}
"""
    dtype = np.dtype(f"i{width // 8}")
    found = run(text, device, np.zeros((2, 0), dtype), np.zeros((0, 3), dtype))
    np.testing.assert_array_equal(found, np.full((2, 3), 5))


def correlate(
    x: np.ndarray, kernel: np.ndarray, padding: Sequence[Sequence[int]], dilation: Sequence[int]
) -> np.ndarray:
    """A convolution of ``[0, 1]`` by ``[0, 1]`` with left dilation, as its definition says."""
    extents = [(n - 1) * step + 1 for n, step in zip(x.shape, dilation, strict=True)]
    counts = [
        max(n + sum(ends) - k + 1, 0)
        for n, ends, k in zip(extents, padding, kernel.shape, strict=True)
    ]
    result = np.full(counts, Fraction(0), object)
    for index in np.ndindex(*counts):
        for offset in np.ndindex(*kernel.shape):
            place = [i + o - low for i, o, (low, _) in zip(index, offset, padding, strict=True)]
            inside = all(
                0 <= p < n and p % step == 0
                for p, n, step in zip(place, extents, dilation, strict=True)
            )
            if inside:
                at = tuple(p // step for p, step in zip(place, dilation, strict=True))
                result[index] += x[at] * kernel[offset]
    return result


@ON_DEVICES
@pytest.mark.parametrize("zero_point", [0, 3])
@pytest.mark.parametrize(
    ("padding", "dilation"),
    [
        ([[-3, 0], [0, 0]], [1, 1]),  # cuts more than there is
        ([[0, 0], [0, -9]], [1, 2]),
        ([[-2, 0], [0, 0]], [1, 1]),  # cuts everything
        ([[1, 0], [0, -1]], [2, 3]),
        ([[0, -2], [2, 1]], [2, 3]),  # one position along a window, and more than it reads
    ],
)
def test_padding_that_cuts(
    device: Device,
    device_name: str,
    padding: list[list[int]],
    dilation: list[int],
    zero_point: int,
) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 127, (2, 4), np.int8, endpoint=True)
    kernel = rng.integers(-128, 127, (2, 2), np.int8, endpoint=True)
    expected = correlate(real(x, 0.5, zero_point), real(kernel, 0.25, 0), padding, dilation)
    types = [
        f"tensor<1x2x4x1x!quant.uniform<i8:f32, 0.5:{zero_point}>>",
        "tensor<2x2x1x1x!quant.uniform<i8:f32, 0.25>>",
        f"tensor<1x{expected.shape[0]}x{expected.shape[1]}x1x!quant.uniform<i8:f32, 32.0:-4>>",
    ]
    text = f"""
func.func @main(%x: {types[0]}, %k: {types[1]}) -> {types[2]} {{
  %r = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {{pad = {padding}, lhs_dilate = {dilation}}}
      {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
      : ({types[0]}, {types[1]}) -> {types[2]}
  return %r : {types[2]}
}}
"""
    found = run(text, device, x.reshape(1, 2, 4, 1), kernel.reshape(2, 2, 1, 1))
    assert found.reshape(-1).tolist() == quantized(expected, 32.0, -4)


# -- the interpreter ------------------------------------------------------------------------------

ADD = """
!t = tensor<?x!quant.uniform<i8:f32, 0.5>>
func.func @main(%x: tensor<4x!quant.uniform<i8:f32, 0.5>>, %y: !t) -> !t {
  %r = stablehlo.add %x, %y
      : (tensor<4x!quant.uniform<i8:f32, 0.5>>, !t) -> !t
  return %r : !t
}
func.func @negate(%x: !t) -> !t {
  %r = stablehlo.negate %x : !t
  return %r : !t
}
"""
PARTITION = """
func.func @main() -> tensor<ui32> {
  %r = stablehlo.partition_id : tensor<ui32>
  return %r : tensor<ui32>
}
"""


def test_the_interpreter_ends_its_own_process_only() -> None:
    module = InterpretedModule(PARTITION)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="interpreter ended its process"):
            module["main"].invoke([])
    (found,) = InterpretedModule(ADD)["negate"].invoke([np.array([1, -128], np.int8)])
    assert found.tolist() == [-1, 127]
