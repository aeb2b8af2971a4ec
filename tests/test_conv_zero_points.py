"""Convolutions of bytes whose zero points are subtracted from weights: two of i8 are their sum."""

from __future__ import annotations

import numpy as np
import pytest

from devices import main_of
from instruction_sets import EVERY, HERE
from integer_programs import convolved
from onnx_models import computed, model, node, text_of
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.runtime import Device

WINDOWS = {
    # images x height x width x channels, window, padding, strides, groups
    "several lines": ((1, 14, 19, 16), (3, 3, 16, 24), (1, 1), (1, 1), 1),
    "single positions": ((2, 9, 8, 32), (1, 1, 32, 20), (0, 0), (1, 1), 1),
    "steps": ((2, 13, 11, 5), (3, 2, 5, 33), (1, 0), (2, 2), 1),
    "groups": ((1, 9, 9, 24), (3, 3, 12, 32), (0, 1), (1, 1), 2),
    "channels apart": ((1, 16, 12, 32), (3, 3, 1, 32), (1, 1), (1, 1), 32),
}


def program(x_shape, w, padding, strides, groups, outside):
    """Bytes as i16, padded with a number, and a constant weight of i16, in i32."""
    images, height, width, channels = x_shape
    taps = w.shape[:2]
    padded_size = [height + 2 * padding[0], width + 2 * padding[1]]
    counts = [
        (n - tap) // step + 1 for n, tap, step in zip(padded_size, taps, strides, strict=True)
    ]
    types = [
        f"tensor<{'x'.join(map(str, shape))}"
        for shape in (
            x_shape,
            (images, *padded_size, channels),
            w.shape,
            (images, *counts, w.shape[3]),
        )
    ]
    x, padded, weight, result = types
    elements = w.astype("<i2").tobytes().hex()
    return f"""
func.func @main(%x: {x}xi8>) -> {result}xi32> {{
  %0 = stablehlo.convert %x : ({x}xi8>) -> {x}xi16>
  %mask = stablehlo.constant dense<255> : {x}xi16>
  %1 = stablehlo.and %0, %mask : {x}xi16>
  %outside = stablehlo.constant dense<{outside}> : tensor<i16>
  %2 = stablehlo.pad %1, %outside, low = [0, {padding[0]}, {padding[1]}, 0],
      high = [0, {padding[0]}, {padding[1]}, 0], interior = [0, 0, 0, 0]
      : ({x}xi16>, tensor<i16>) -> {padded}xi16>
  %w = stablehlo.constant dense<"0x{elements}"> : {weight}xi16>
  %3 = stablehlo.convolution(%2, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {{stride = [{strides[0]}, {strides[1]}]}}
      {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}}
      : ({padded}xi16>, {weight}xi16>) -> {result}xi32>
  return %3 : {result}xi32>
}}"""


def check(case, low, high, instructions, outside=131):
    """Returns how often a kernel is called."""
    x_shape, w_shape, padding, strides, groups = WINDOWS[case]
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, x_shape).astype(np.uint8)
    w = rng.integers(low, high + 1, w_shape).astype(np.int16)
    w.reshape(-1)[:2] = low, high
    text = program(x_shape, w, padding, strides, groups, outside)
    main = main_of(text, kernels=instructions)
    sides = [(0, 0), *((n, n) for n in padding), (0, 0)]
    padded = np.pad(x.astype(np.int64), sides, constant_values=outside)
    groups_ = zip(np.split(padded, groups, axis=3), np.split(w, groups, axis=3), strict=True)
    expected = np.concatenate([convolved(a, b, strides, (1, 1)) for a, b in groups_], axis=3)
    np.testing.assert_array_equal(main(x.view(np.int8)), expected)
    lowered = compile_to_bytes(text, CompileOptions(kernels=instructions), emit="mlir").decode()
    return lowered.count('"flow.dispatch"')


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("case", [case for case in WINDOWS if case != "channels apart"])
@pytest.mark.share(14)
def test_a_weight_is_the_sum_of_two(case, instructions):
    assert check(case, -120, 135, instructions)


@pytest.mark.parametrize(("low", "high"), [(-255, 0), (-1, 254), (-128, 127)])
def test_the_extremes(low, high):
    assert check("several lines", low, high, HERE[0])


@pytest.mark.parametrize("outside", [0, 255])
def test_what_is_around_is_any_byte(outside):
    assert check("several lines", -200, 55, HERE[0], outside)


def test_what_no_kernel_takes_is_right():
    assert not check("channels apart", -120, 135, HERE[0])
    assert not check("several lines", 0, 255, HERE[0])
    assert not check("several lines", -255, 255, HERE[0])
    assert not check("several lines", -120, 135, HERE[0], outside=256)


COMPUTED = [*((case, kind) for case in WINDOWS for kind in ("uint8", "int8"))]
COMPUTED += [("one axis", "uint8")]


@pytest.mark.device
@pytest.mark.parametrize(("case", "kind"), COMPUTED)
@pytest.mark.share(4)
def test_computed_zero_points_are_subtracted_after_the_sum(
    case: str, kind: str, cpu: Device
) -> None:
    """Images of ONNX's ConvInteger as quantize_dynamic writes them: 8-bit kernels take them."""
    x_shape, w_shape, padding, strides, groups = WINDOWS.get(
        case, ((2, 1, 30, 16), (1, 5, 16, 40), (0, 2), (1, 2), 1)
    )
    rng, info = np.random.default_rng(1), np.iinfo(kind)
    x = rng.integers(info.min, info.max + 1, x_shape).astype(kind)
    w = rng.integers(-128, 128, w_shape).astype(np.int8)
    first = 3 if case == "one axis" else 2
    images, kernels = np.moveaxis(x, 3, 1), w.transpose(3, 2, 0, 1)
    if case == "one axis":
        images, kernels = images[:, :, 0], kernels[:, :, 0]
    attributes = {"strides": strides[first - 2 :], "pads": 2 * padding[first - 2 :]}
    nodes = [node("ConvInteger", ["x", "w", "z"], ["y"], group=groups, **attributes)]
    ends = {"x": (kind.upper(), images.shape), "z": (kind.upper(), ())}
    proto = model(nodes, ends, {"y": ("INT32", None)}, {"w": kernels})
    for zero in (info.min, 7, info.max):
        sides = [(0, 0), *((n, n) for n in padding), (0, 0)]
        padded = np.pad(x.astype(np.int64) - zero, sides)
        pairs = zip(np.split(padded, groups, axis=3), np.split(w, groups, axis=3), strict=True)
        expected = np.concatenate([convolved(a, b, strides, (1, 1)) for a, b in pairs], axis=3)
        expected = np.moveaxis(expected, 3, 1)
        [result] = computed(proto, cpu, images, np.array(zero, kind))
        np.testing.assert_array_equal(result.reshape(expected.shape), expected)
    text = compile_to_bytes(text_of(proto), emit="mlir").decode()
    assert "int8_conv" in text or "amx_gemm" in text or "depthwise_conv" in text
