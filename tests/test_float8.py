"""Arithmetic on 8-bit floats: results of ml_dtypes, for all codes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import subquant
from bare_iree import FIXED, compile_bare
from devices import ON_DEVICES, compile_for
from numpy_evaluation import Array
from subquant.errors import UnsupportedError
from subquant.runtime import Device, Executable

FORMATS = {
    "f8E3M4": ml_dtypes.float8_e3m4,
    "f8E4M3": ml_dtypes.float8_e4m3,
    "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
REALS = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
"""All bf16 as f32."""
CODES = np.arange(256, dtype=np.uint8)

DECODE = """
func.func @decode_NAME(%x: tensor<256xi8>) -> tensor<256xf16> {
  %0 = stablehlo.bitcast_convert %x : (tensor<256xi8>) -> tensor<256xNAME>
  %1 = stablehlo.convert %0 : (tensor<256xNAME>) -> tensor<256xf16>
  return %1 : tensor<256xf16>
}
"""
ENCODE = """
func.func @encode_NAME(%x: tensor<65536xf32>) -> tensor<65536xi8> {
  %0 = stablehlo.convert %x : (tensor<65536xf32>) -> tensor<65536xNAME>
  %1 = stablehlo.bitcast_convert %0 : (tensor<65536xNAME>) -> tensor<65536xi8>
  return %1 : tensor<65536xi8>
}
"""
ARITHMETIC = """
func.func @add(%x: tensor<16x16xi8>, %y: tensor<16x16xi8>) -> tensor<16x16xi8> {
  %a = stablehlo.bitcast_convert %x : (tensor<16x16xi8>) -> tensor<16x16xf8E4M3FN>
  %b = stablehlo.bitcast_convert %y : (tensor<16x16xi8>) -> tensor<16x16xf8E4M3FN>
  %c = stablehlo.add %a, %b : tensor<16x16xf8E4M3FN>
  %d = stablehlo.bitcast_convert %c : (tensor<16x16xf8E4M3FN>) -> tensor<16x16xi8>
  return %d : tensor<16x16xi8>
}
func.func @multiply(%x: tensor<16x16xf32>, %y: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %a = stablehlo.convert %x : (tensor<16x16xf32>) -> tensor<16x16xf8E5M2>
  %b = stablehlo.convert %y : (tensor<16x16xf32>) -> tensor<16x16xf8E5M2>
  %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<16x16xf8E5M2>, tensor<16x16xf8E5M2>) -> tensor<16x16xf32>
  return %c : tensor<16x16xf32>
}
"""


def assert_same_floats(actual: Array, expected: Array) -> None:
    """Compare codes as f32: NaN has several."""
    np.testing.assert_array_equal(actual.astype(np.float32), expected.astype(np.float32))


def test_conversions_are_those_of_ml_dtypes(cpu: Device) -> None:
    text = "".join((DECODE + ENCODE).replace("NAME", name) for name in FORMATS)
    executable = compile_for(text, cpu)
    for name, dtype in FORMATS.items():
        decoded = executable[f"decode_{name}"](CODES.view(np.int8))
        encoded = executable[f"encode_{name}"](REALS)
        with np.errstate(all="ignore"):
            assert_same_floats(decoded, CODES.view(dtype).astype(np.float16))
            assert_same_floats(np.asarray(encoded).view(dtype), REALS.astype(dtype))


@ON_DEVICES
def test_arithmetic_is_rounded_once(device: Device) -> None:
    executable = compile_for(ARITHMETIC, device)
    rng = np.random.default_rng(0)
    x, y = rng.permutation(CODES).reshape(16, 16), rng.permutation(CODES).reshape(16, 16)
    e4m3 = ml_dtypes.float8_e4m3fn
    actual = np.asarray(executable["add"](x.view(np.int8), y.view(np.int8))).view(e4m3)
    with np.errstate(all="ignore"):
        assert_same_floats(actual, x.view(e4m3) + y.view(e4m3))
    left, right = rng.standard_normal((2, 16, 16)).astype(np.float32)
    rounded = (each.astype(ml_dtypes.float8_e5m2).astype(np.float64) for each in (left, right))
    # Products of 3-bit mantissas are exact, and so are 16 of them in f32.
    np.testing.assert_array_equal(executable["multiply"](left, right), np.matmul(*rounded))


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [("f64", "f8E5M2", "rounds f64"), ("f32", "f8E8M0FNU", "rounds to f8E8M0FNU")],
)
def test_conversions_that_are_rounded_otherwise_are_refused(
    source: str, target: str, message: str
) -> None:
    text = f"""func.func @main(%x: tensor<4x{source}>) -> tensor<4xi8> {{
      %0 = stablehlo.convert %x : (tensor<4x{source}>) -> tensor<4x{target}>
      %1 = stablehlo.bitcast_convert %0 : (tensor<4x{target}>) -> tensor<4xi8>
      return %1 : tensor<4xi8>
    }}"""
    with pytest.raises(UnsupportedError, match=message):
        subquant.compile(text)


def test_iree_still_rounds_below_the_least_normal_to_zero(cpu: Device) -> None:
    text = ENCODE.replace("NAME", "f8E4M3FN")
    encoded = Executable(compile_bare(text), cpu)["encode_f8E4M3FN"](REALS)
    with np.errstate(all="ignore"):
        expected = REALS.astype(ml_dtypes.float8_e4m3fn).view(np.int8)
    is_finite = np.abs(REALS) < 448
    assert (encoded != expected)[is_finite].any(), FIXED + "float8_arithmetic.py"
