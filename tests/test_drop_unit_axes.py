"""Convolutions along one axis that are written as those of images, beside NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from devices import main_of
from programs import lowered_text

CHANNELS, N, LENGTH, TAPS = 16, 24, 30, 3


def program(element, wide, *, is_row, has_pad):
    """``x [1, C, L]`` convolved with images of one row or one column, and a clamp of the sums."""
    accumulator = "f32" if wide == "f32" else "i32"
    outputs = LENGTH + 2 * has_pad - TAPS + 1
    at = 2 if is_row else 3

    def with_one(*sizes):
        return "x".join(map(str, (*sizes[:2], *((1, sizes[2]) if at == 2 else (sizes[2], 1)))))

    x, image = f"1x{CHANNELS}x{LENGTH}", with_one(1, CHANNELS, LENGTH)
    padded, w = with_one(1, CHANNELS, LENGTH + 2 * has_pad), with_one(N, CHANNELS, TAPS)
    y, y_image = f"1x{N}x{outputs}", with_one(1, N, outputs)
    widths = [0, 0, 0, 1] if is_row else [0, 0, 1, 0]
    zero = "0.0" if wide == "f32" else "0"
    convert = (
        ""
        if element == wide
        else f"""
  %w0 = stablehlo.convert %x : (tensor<{x}x{element}>) -> tensor<{x}x{wide}>
  %three = stablehlo.constant dense<3> : tensor<{x}x{wide}>
  %w1 = stablehlo.subtract %w0, %three : tensor<{x}x{wide}>"""
    )
    pad = (
        ""
        if not has_pad
        else f"""
  %fill = stablehlo.constant dense<{zero}> : tensor<{wide}>
  %p = stablehlo.pad %i, %fill, low = {widths}, high = {widths}, interior = [0, 0, 0, 0]
    : (tensor<{image}x{wide}>, tensor<{wide}>) -> tensor<{padded}x{wide}>"""
    )
    source, operand = "%x" if element == wide else "%w1", "%p" if has_pad else "%i"
    return f"""
func.func @main(%x: tensor<{x}x{element}>) -> tensor<{y}x{accumulator}> {{{convert}
  %i = stablehlo.reshape {source} : (tensor<{x}x{wide}>) -> tensor<{image}x{wide}>{pad}
  %w = stablehlo.constant dense<WEIGHT> : tensor<{w}x{wide}>
  %c = stablehlo.convolution({operand}, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
    window = {{}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : (tensor<{padded}x{wide}>, tensor<{w}x{wide}>) -> tensor<{y_image}x{accumulator}>
  %r = stablehlo.reshape %c : (tensor<{y_image}x{accumulator}>) -> tensor<{y}x{accumulator}>
  %z = stablehlo.constant dense<{zero}> : tensor<{y}x{accumulator}>
  %m = stablehlo.maximum %r, %z : tensor<{y}x{accumulator}>
  return %m : tensor<{y}x{accumulator}>
}}"""


@pytest.mark.parametrize("has_pad", [False, True], ids=["no pad", "pad"])
@pytest.mark.parametrize("is_row", [True, False], ids=["row", "column"])
@pytest.mark.parametrize("types", [("f32", "f32"), ("i8", "i16")], ids=["f32", "i8"])
@pytest.mark.share(6)
def test_sums_are_exact_and_the_clamp_is_fused(types, is_row, has_pad):
    rng = np.random.default_rng(0)
    dtype = np.float32 if types[0] == "f32" else np.int8
    x = rng.integers(-9, 10, (1, CHANNELS, LENGTH)).astype(dtype)
    weight = rng.integers(-9, 10, (N, CHANNELS, TAPS))
    shaped = weight[:, :, None] if is_row else weight[..., None]
    numbers = shaped.astype(dtype).tolist()
    text = program(*types, is_row=is_row, has_pad=has_pad).replace("WEIGHT", str(numbers))
    lowered = lowered_text(text)
    assert '"flow.dispatch"' in lowered
    assert "stablehlo.convolution" not in lowered
    assert "stablehlo.maximum" not in lowered
    centered = x.astype(np.float64) - (3 if types[0] == "i8" else 0)
    padded = np.pad(centered, [(0, 0), (0, 0), (int(has_pad),) * 2])
    windows = np.lib.stride_tricks.sliding_window_view(padded, TAPS, 2)
    expected = np.maximum(np.einsum("ncli,oci->nol", windows, weight), 0)
    np.testing.assert_array_equal(main_of(text)(x), expected)
