"""Nested reductions that IREE computes wrongly, and our workaround."""

from __future__ import annotations

import numpy as np
import pytest

from bare_iree import FIXED, compile_bare
from devices import ON_DEVICES, compile_for
from subquant.runtime import Device, Executable

NESTED_REDUCTIONS = """
func.func @main(%x: tensor<2x16x40xf32>)
    -> (tensor<2x16xf32>, tensor<f32>, tensor<2x40xf32>, tensor<2xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [2]
      : (tensor<2x16x40xf32>, tensor<f32>) -> tensor<2x16xf32>
  %0 = stablehlo.broadcast_in_dim %s, dims = [0, 1] : (tensor<2x16xf32>) -> tensor<2x16x40xf32>
  %1 = stablehlo.subtract %x, %0 : tensor<2x16x40xf32>
  %m = stablehlo.reduce(%1 init: %least) applies stablehlo.maximum across dimensions = [0, 1, 2]
      : (tensor<2x16x40xf32>, tensor<f32>) -> tensor<f32>
  %t = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<2x16x40xf32>, tensor<f32>) -> tensor<2x40xf32>
  %2 = stablehlo.broadcast_in_dim %t, dims = [0, 2] : (tensor<2x40xf32>) -> tensor<2x16x40xf32>
  %3 = stablehlo.subtract %x, %2 : tensor<2x16x40xf32>
  %u = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [1, 2]
      : (tensor<2x16x40xf32>, tensor<f32>) -> tensor<2xf32>
  return %s, %m, %t, %u : tensor<2x16xf32>, tensor<f32>, tensor<2x40xf32>, tensor<2xf32>
}
"""


def nested_reductions():
    """The input, and the results in f64."""
    x = np.random.default_rng(5).standard_normal((2, 16, 40)).astype(np.float32)
    s, t = x.sum(2, dtype=np.float64), x.sum(1, dtype=np.float64)
    return x, (s, (x - s[..., None]).max(), t, (x - t[:, None]).sum((1, 2)))


@ON_DEVICES
def test_nested_reductions(device: Device) -> None:
    x, expected = nested_reductions()
    for actual, each in zip(compile_for(NESTED_REDUCTIONS, device).main(x), expected, strict=True):
        np.testing.assert_allclose(actual, each, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_nested_reductions_are_still_wrong(cpu: Device) -> None:
    x, expected = nested_reductions()
    actual = Executable(compile_bare(NESTED_REDUCTIONS), cpu).main(x)
    assert max(np.abs(a - e).max() for a, e in zip(actual, expected, strict=True)) > 1, (
        FIXED + "iree_workarounds/nested_reductions.py"
    )
