"""Convolutions whose windows share no element, beside float64 NumPy."""

from __future__ import annotations

import numpy as np

from devices import ON_DEVICES, run
from subquant.runtime import Device

_PROGRAM = """
func.func @main(%x: tensor<2x3x12xf32>, %k: tensor<5x3x4xf32>,
                %y: tensor<2x3x4x9xf32>, %l: tensor<5x3x2x3xf32>)
    -> (tensor<2x5x3xf32>, tensor<2x5x2x3xf32>) {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0],
    window = {stride = [4]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<2x3x12xf32>, tensor<5x3x4xf32>) -> tensor<2x5x3xf32>
  %1 = stablehlo.convolution(%y, %l) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
    window = {stride = [2, 3]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<2x3x4x9xf32>, tensor<5x3x2x3xf32>) -> tensor<2x5x2x3xf32>
  return %0, %1 : tensor<2x5x3xf32>, tensor<2x5x2x3xf32>
}
"""


@ON_DEVICES
def test_patches_of_one_and_two_axes(device: Device) -> None:
    """A window of each patch is multiplied by the kernel; results are off by rounding only."""
    rng = np.random.default_rng(0)
    x, k, y, m = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((2, 3, 12), (5, 3, 4), (2, 3, 4, 9), (5, 3, 2, 3))
    )
    one, two = run(_PROGRAM, device, x, k, y, m)
    patches = x.reshape(2, 3, 3, 4).astype(np.float64)
    expected_one = np.einsum("bfnw,ofw->bon", patches, k.astype(np.float64))
    patches = y.reshape(2, 3, 2, 2, 3, 3).astype(np.float64)
    expected_two = np.einsum("bfnwmv,ofwv->bonm", patches, m.astype(np.float64))
    np.testing.assert_allclose(one, expected_one, atol=1e-5)
    np.testing.assert_allclose(two, expected_two, atol=1e-5)
