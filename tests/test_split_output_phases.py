"""Transposed convolutions of floats, by phases of their outputs, beside NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from devices import main_of
from onnx_models import model, node, text_of
from programs import lowered_text


def program(x, w, strides, padding, *, is_pad):
    """A convolution of an image ``N x H x W x C`` with zeros between its pixels.

    The zeros are those of a ``pad``, or of the convolution.
    """
    dilated = [(size - 1) * step + 1 for size, step in zip(x.shape[1:3], strides, strict=True)]
    sizes = [
        size + sum(pair) - taps + 1
        for size, pair, taps in zip(dilated, padding, w.shape[:2], strict=True)
    ]
    y = f"tensor<{x.shape[0]}x{sizes[0]}x{sizes[1]}x{w.shape[3]}xf32>"
    image, weight = (f"tensor<{'x'.join(map(str, each.shape))}xf32>" for each in (x, w))
    pads = ", ".join(str(list(pair)) for pair in padding)
    window, operand, source, before = f"pad = [{pads}]", "%x", image, ""
    if is_pad:
        low, high = ([0, *(pair[end] for pair in padding), 0] for end in (0, 1))
        full = [size + sum(pair) for size, pair in zip(dilated, padding, strict=True)]
        middle = f"tensor<{x.shape[0]}x{dilated[0]}x{dilated[1]}x{x.shape[3]}xf32>"
        between = [0, *(step - 1 for step in strides), 0]
        source = f"tensor<{x.shape[0]}x{full[0]}x{full[1]}x{x.shape[3]}xf32>"
        before = f"""
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %d = stablehlo.pad %x, %z, low = {[0] * 4}, high = {[0] * 4}, interior = {between}
    : ({image}, tensor<f32>) -> {middle}
  %p = stablehlo.pad %d, %z, low = {low}, high = {high}, interior = {[0] * 4}
    : ({middle}, tensor<f32>) -> {source}"""
        window, operand = "", "%p"
    else:
        window += f", lhs_dilate = {list(strides)}"
    return f"""
func.func @main(%x: {image}) -> {y} {{
  %w = stablehlo.constant dense<"0x{w.tobytes().hex().upper()}"> : {weight}{before}
  %y = stablehlo.convolution({operand}, %w)
    dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{{window}}}
    {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : ({source}, {weight}) -> {y}
  return %y : {y}
}}"""


def convolved(x, w, strides, padding):
    """The convolution of the image with its zeros, in float64."""
    dilated = [(size - 1) * step + 1 for size, step in zip(x.shape[1:3], strides, strict=True)]
    image = np.zeros((x.shape[0], *dilated, x.shape[3]))
    image[:, :: strides[0], :: strides[1]] = x
    image = np.pad(image, [(0, 0), *padding, (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(image, w.shape[:2], (1, 2))
    return np.einsum("nhwcij,ijco->nhwo", windows, w.astype(np.float64))


CASES = {
    "2x2": ((1, 8, 9, 16), (2, 2, 16, 3), (2, 2), [(1, 1), (1, 1)]),
    "3x3": ((2, 5, 6, 8), (3, 3, 8, 20), (2, 2), [(1, 2), (2, 1)]),
    "4x3, steps 3 and 1": ((1, 5, 7, 8), (4, 3, 8, 5), (3, 1), [(3, 0), (1, 1)]),
    "fewer taps than steps": ((1, 6, 6, 32), (2, 1, 32, 4), (3, 4), [(1, 3), (0, 2)]),
    "last rows are dropped": ((1, 6, 7, 16), (2, 2, 16, 8), (2, 2), [(1, 0), (0, 0)]),
}


@pytest.mark.parametrize("is_pad", [True, False], ids=["pad", "dilation"])
@pytest.mark.parametrize("case", CASES)
def test_sums_are_exact(case, is_pad):
    x_shape, w_shape, strides, padding = CASES[case]
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in (x_shape, w_shape))
    w[w == 0] = 5
    x[0, 3, 2, 1] = np.inf  # outputs that do not read it stay finite
    text = program(x, w, strides, padding, is_pad=is_pad)
    lowered = lowered_text(text)
    assert '"flow.dispatch"' in lowered
    assert "stablehlo.convolution" not in lowered
    np.testing.assert_array_equal(main_of(text)(x), convolved(x, w, strides, padding))


def test_onnx_transposed_convolutions_have_phases():
    x, w = np.ones((1, 4, 5, 6), np.float32), np.ones((4, 3, 2, 2), np.float32)
    y = np.ones((1, 3, 10, 12), np.float32)
    nodes = [node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])]
    file = model(nodes, {"x": x}, {"y": y}, {"w": w}).SerializeToString()
    assert "stablehlo.pad" not in lowered_text(file)


def test_dequantized_weights_have_phases() -> None:
    """A weight of 8-bit integers between casts is a constant, also where its taps are reversed."""
    rng = np.random.default_rng(1)
    constants = {"w": rng.integers(-9, 10, (8, 16, 2, 2)).astype(np.int8)}
    constants |= {"s": np.array(0.5, np.float32), "z": np.array(0, np.int8)}
    nodes = [
        node("DequantizeLinear", ["w", "s", "z"], ["v"]),
        node("ConvTranspose", ["x", "v"], ["y"], strides=[2, 2]),
    ]
    x = rng.integers(-9, 10, (1, 8, 5, 7)).astype(np.float32)
    products = np.einsum("ncyx,coij->noyixj", x, constants["w"] * 0.5)
    expected = products.reshape(1, 16, 10, 14)
    text = text_of(model(nodes, {"x": x}, {"y": expected.astype(np.float32)}, constants))
    assert "stablehlo.convolution" not in lowered_text(text, kernels="avx2")
    np.testing.assert_array_equal(main_of(text)(x), expected)
