"""Products and reductions of f16 and bf16 are rounded once, on every target."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from devices import ON_DEVICES, run
from programs import PRODUCT, convolution_of, one_operation
from subquant.runtime import Device

DTYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
HALF_UNITS = {"f16": 2.0**-11, "bf16": 2.0**-8}
"""Relative bounds of one rounding."""

ELEMENTS = pytest.mark.parametrize("element", ["f16", "bf16"])


def drawn(element: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape).astype(DTYPES[element]) for shape in shapes]


def as_reals(result: np.ndarray, element: str) -> np.ndarray:
    return np.asarray(result).view(DTYPES[element]).astype(np.float64)


def check_one_rounding(got: np.ndarray, exact: np.ndarray, absolute: np.ndarray, element: str):
    """Sums of f32 are off by the sum of the absolute values times 2**-18, for 512 of them."""
    bound = np.abs(exact) * HALF_UNITS[element] + absolute * 2.0**-18
    assert (np.abs(got - exact) <= bound).all()


@ON_DEVICES
@ELEMENTS
@pytest.mark.parametrize("shape", [(4, 16, 32), (4, 512, 32), (1, 64, 5)], ids=str)
def test_a_product_is_rounded_once(
    shape: tuple[int, int, int], element: str, device: Device
) -> None:
    rows, depth, columns = shape
    x, w = drawn(element, (rows, depth), (depth, columns))
    types = [f"{rows}x{depth}x{element}", f"{depth}x{columns}x{element}"]
    text = one_operation(PRODUCT, types, f"{rows}x{columns}x{element}")
    a, b = x.astype(np.float64), w.astype(np.float64)
    got = as_reals(run(text, device, x, w), element)
    check_one_rounding(got, a @ b, np.abs(a) @ np.abs(b), element)


@ON_DEVICES
@ELEMENTS
@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.share(8)
def test_a_convolution_is_rounded_once(groups: int, element: str, device: Device) -> None:
    x, w = drawn(element, (1, 6, 6, 8), (3, 3, 8 // groups, 8))
    types = [f"1x6x6x8x{element}", f"1x4x4x8x{element}"]
    data = w.tobytes().hex().upper()
    text = f"""
func.func @main(%0: tensor<{types[0]}>) -> tensor<{types[1]}> {{
  %1 = stablehlo.constant dense<"0x{data}"> : tensor<3x3x{8 // groups}x8x{element}>
  %y = {convolution_of("[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]", groups=groups)}
      : (tensor<{types[0]}>, tensor<3x3x{8 // groups}x8x{element}>) -> tensor<{types[1]}>
  return %y : tensor<{types[1]}>
}}"""
    a, b = x.astype(np.float64), w.astype(np.float64)
    if groups > 1:  # one input channel for each output channel
        b = b * np.eye(8)[None, None]
    windows = np.lib.stride_tricks.sliding_window_view(a, (3, 3), axis=(1, 2))
    exact, absolute = (
        np.einsum("bhwcij,ijco->bhwo", *factors)
        for factors in ((windows, b), (np.abs(windows), np.abs(b)))
    )
    check_one_rounding(as_reals(run(text, device, x), element), exact, absolute, element)


@ON_DEVICES
@ELEMENTS
@pytest.mark.parametrize("name", ["add", "maximum"])
def test_a_reduction_is_rounded_once(name: str, element: str, device: Device) -> None:
    (x,) = drawn(element, (4, 500))
    start = 0.0 if name == "add" else -9.0
    text = f"""
func.func @main(%x: tensor<4x500x{element}>) -> tensor<4x{element}> {{
  %start = stablehlo.constant dense<{start}> : tensor<{element}>
  %y = stablehlo.reduce(%x init: %start) applies stablehlo.{name} across dimensions = [1]
      : (tensor<4x500x{element}>, tensor<{element}>) -> tensor<4x{element}>
  return %y : tensor<4x{element}>
}}"""
    a = x.astype(np.float64)
    exact = a.sum(axis=1) if name == "add" else a.max(axis=1)
    got = as_reals(run(text, device, x), element)
    check_one_rounding(got, exact, np.abs(a).sum(axis=1), element)


@ON_DEVICES
@ELEMENTS
@pytest.mark.parametrize("shape", [(2, 2, 4, 4), (4, 8, 16, 32), (3, 5, 7, 9)], ids=str)
def test_attention_with_quantized_keys(
    shape: tuple[int, int, int, int], element: str, device: Device
) -> None:
    """Queries, scores, exponentials and shares are rounded: within 8 roundings."""
    heads, rows, keys, width = shape
    stored = f"!quant.uniform<i8:{element}:0, {{{', '.join(['0.03125'] * heads)}}}>"
    queries = f"tensor<{heads}x{rows}x{width}x{element}>"
    cache, reals = (f"tensor<{heads}x{keys}x{width}x{kind}>" for kind in (stored, element))
    scores, row_sums = (
        f"tensor<{heads}x{rows}x{keys}x{element}>",
        f"tensor<{heads}x{rows}x{element}>",
    )
    text = f"""
func.func @main(%q: {queries}, %k: {cache}, %v: {cache}) -> {queries} {{
  %kd = stablehlo.uniform_dequantize %k : ({cache}) -> {reals}
  %vd = stablehlo.uniform_dequantize %v : ({cache}) -> {reals}
  %s = stablehlo.dot_general %q, %kd, batching_dims = [0] x [0], contracting_dims = [2] x [2]
      : ({queries}, {reals}) -> {scores}
  %low = stablehlo.constant dense<-1.0e4> : tensor<{element}>
  %zero = stablehlo.constant dense<0.0> : tensor<{element}>
  %m = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [2]
      : ({scores}, tensor<{element}>) -> {row_sums}
  %mb = stablehlo.broadcast_in_dim %m, dims = [0, 1] : ({row_sums}) -> {scores}
  %d = stablehlo.subtract %s, %mb : {scores}
  %e = stablehlo.exponential %d : {scores}
  %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2]
      : ({scores}, tensor<{element}>) -> {row_sums}
  %tb = stablehlo.broadcast_in_dim %t, dims = [0, 1] : ({row_sums}) -> {scores}
  %p = stablehlo.divide %e, %tb : {scores}
  %o = stablehlo.dot_general %p, %vd, batching_dims = [0] x [0], contracting_dims = [2] x [1]
      : ({scores}, {reals}) -> {queries}
  return %o : {queries}
}}"""
    (q,) = drawn(element, (heads, rows, width))
    q = (q.astype(np.float64) / width).astype(DTYPES[element])
    k, v = np.random.default_rng(2).integers(-128, 128, (2, heads, keys, width)).astype(np.int8)
    scored = np.einsum("hrw,hkw->hrk", q.astype(np.float64), k / 32)
    weights = np.exp(scored - scored.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    expected = np.einsum("hrk,hkw->hrw", weights, v / 32)
    got = as_reals(run(text, device, q, k, v), element)
    np.testing.assert_allclose(got, expected, atol=8 * HALF_UNITS[element] * np.abs(v / 32).max())
