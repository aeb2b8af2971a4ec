"""Int8 matrix products whose activations have computed zero points, by kernels, beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from devices import main_of
from instruction_sets import SOME
from programs import lowered_text

SHAPES = {
    "matrix": ((20, 64), 40),
    "row": ((1, 96), 70),
    "three axes": ((3, 7, 48), 33),
}


def weight_program(weight):
    """Operations of the weight ``%w``: a constant of i16, or one of 8 bits that is converted."""
    k, n = weight.shape
    w, narrow = f"tensor<{k}x{n}xi16>", f"tensor<{k}x{n}xi8>"
    if weight.max() > 127:
        return f"  %w = stablehlo.constant dense<{weight.tolist()}> : {w}"
    if weight.shape[0] == 96:
        return f"""  %wc = stablehlo.constant dense<{weight.tolist()}> : {narrow}
  %w = stablehlo.convert %wc : ({narrow}) -> {w}"""
    stored = (weight + 100).astype(np.uint8).view(np.int8)
    return f"""  %wc = stablehlo.constant dense<{stored.tolist()}> : {narrow}
  %ww = stablehlo.convert %wc : ({narrow}) -> {w}
  %wm = stablehlo.constant dense<255> : {w}
  %wu = stablehlo.and %ww, %wm : {w}
  %wz = stablehlo.constant dense<100> : {w}
  %w = stablehlo.subtract %wu, %wz : {w}"""


def program(shape, weight, zero_shape, *, is_signed):
    """``(x - z) * w`` in i16, summed in i32: x and z are the bits of 8-bit integers."""
    rank, (k, n) = len(shape), weight.shape
    x, w = "x".join(map(str, shape)), f"tensor<{k}x{n}xi16>"
    z = "x".join([*map(str, zero_shape), ""])
    y = "x".join(map(str, (*shape[:-1], n)))
    dims = [axis for axis in range(rank) if axis < len(zero_shape)]
    mask = (
        ""
        if is_signed
        else f"""
  %m = stablehlo.constant dense<255> : tensor<{x}xi16>
  %xm = stablehlo.and %xw, %m : tensor<{x}xi16>
  %d = stablehlo.constant dense<255> : tensor<{z}i16>
  %zm = stablehlo.and %zw, %d : tensor<{z}i16>"""
    )
    left, right = ("%xw", "%zw") if is_signed else ("%xm", "%zm")
    return f"""
func.func @main(%x: tensor<{x}xi8>, %z: tensor<{z}i8>) -> tensor<{y}xi32> {{
  %xw = stablehlo.convert %x : (tensor<{x}xi8>) -> tensor<{x}xi16>
  %zw = stablehlo.convert %z : (tensor<{z}i8>) -> tensor<{z}i16>{mask}
  %b = stablehlo.broadcast_in_dim {right}, dims = {dims} : (tensor<{z}i16>) -> tensor<{x}xi16>
  %s = stablehlo.subtract {left}, %b : tensor<{x}xi16>
{weight_program(weight)}
  %y = stablehlo.dot_general %s, %w, contracting_dims = [{rank - 1}] x [0]
    : (tensor<{x}xi16>, {w}) -> tensor<{y}xi32>
  return %y : tensor<{y}xi32>
}}"""


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize("zero", ["one", "rows", "one with axes"])
@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.share(12)
def test_sums_are_exact(case, zero, instructions):
    shape, n = SHAPES[case]
    rng = np.random.default_rng(0)
    is_signed = zero == "rows"
    dtype = np.int8 if is_signed else np.uint8
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = rng.integers(low, high + 1, shape).astype(dtype)
    # Weights less a zero point of their own, in some cases.
    weight = rng.integers(-100, 156 if case == "matrix" else 28, (shape[-1], n)).astype(np.int16)
    zero_shape = {"one": (), "rows": shape[:-1], "one with axes": (1,) * len(shape)}[zero]
    z = rng.integers(low, high + 1, zero_shape).astype(dtype)
    text = program(shape, weight, zero_shape, is_signed=is_signed)
    lowered = lowered_text(text, kernels=instructions)
    assert '"flow.dispatch"' in lowered
    assert "stablehlo.dot_general" not in lowered
    wide = z.reshape(zero_shape if zero == "one with axes" else (*zero_shape, 1))
    expected = (x.astype(np.int64) - wide) @ weight.astype(np.int64)
    actual = main_of(text, kernels=instructions)(x.view(np.int8), z.view(np.int8))
    np.testing.assert_array_equal(actual, expected)


def test_differences_that_wrap_stay_as_they_are():
    """``x - z`` of i16 with a zero point that is none of 8 bits."""
    rng = np.random.default_rng(0)
    x, weight = (rng.integers(-100, 28, shape) for shape in ((20, 64), (64, 40)))
    text = program((20, 64), weight, (), is_signed=True)
    text = text.replace("%z: tensor<i8>", "%zw: tensor<i16>")
    text = "\n".join(line for line in text.splitlines() if "%zw = " not in line)
    difference = x.astype(np.int16) - np.int16(32700)
    actual = main_of(text)(x.astype(np.int8), np.array(32700, np.int16))
    np.testing.assert_array_equal(actual, difference.astype(np.int64) @ weight)
