"""TOSA on IREE: every form of rescale, variables, and types that say more than the integers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import subquant
from devices import compile_for
from programs import LONG
from subquant.errors import SignatureError, UsageError
from subquant.runtime import Device
from subquant.runtime.streaming import stream
from tosa_rescales import Mode, check_modes, constant, program, rescale

# Multipliers and shifts: ties, factors above 1, below 2**-31, and both sides of a shift of 31.
SCALES_32 = [(1 << 30, 30), (1 << 30, 31), (1 << 30, 32), (1518500250, 33), ((1 << 31) - 1, 2)]
SCALES_32 += [(3 << 28, 46), (1, 62), (20000, 40), (0, 31)]
SCALES_16 = [(1 << 14, 14), (1 << 14, 15), (23170, 17), (32767, 2), (3 << 12, 20), (1, 31), (0, 40)]


def rescale_modes() -> list[Mode]:
    kinds = [
        # types, signedness and zero points of the input and the output
        (("i8", "i8"), (False, False), (3, -5)),
        (("i8", "i8"), (True, False), (200, 7)),
        (("i8", "i8"), (False, True), (-128, 128)),
        (("i8", "i16"), (False, False), (0, 0)),
        (("i8", "i32"), (False, False), (9, 0)),
        (("i16", "i8"), (False, False), (0, -1)),
        (("i16", "i16"), (True, False), (32768, 0)),
        (("i32", "i8"), (False, False), (0, -128)),
        (("i32", "i8"), (False, True), (0, 255)),
        (("i32", "i16"), (False, False), (0, 0)),
        (("i32", "i32"), (False, False), (0, 0)),
        (("i48", "i8"), (False, False), (0, 4)),
        (("i48", "i32"), (False, False), (0, 0)),
    ]
    roundings = [
        (True, "SINGLE_ROUND"), (True, "INEXACT_ROUND"), (True, "DOUBLE_ROUND"),
        (False, "SINGLE_ROUND"), (False, "INEXACT_ROUND"),
    ]  # fmt: skip
    return [
        Mode(
            *types, *map(list, zip(*(SCALES_32 if scale32 else SCALES_16), strict=True)),
            zero_points, rounding=rounding, scale32=scale32, unsigned=unsigned,
        )
        for (types, unsigned, zero_points), (scale32, rounding) in itertools.product(
            kinds, roundings
        )
        if not (types[0] == "i48" and scale32)
    ]  # fmt: skip


def inputs_of(mode: Mode) -> np.ndarray:
    """All bits of i8; of wider types the extremes, the values around 0, and random ones."""
    width = mode.width(0)
    if width == 8:
        column = np.arange(-128, 128)
    else:
        edge = 1 << (width - 1)
        few = np.concatenate([np.arange(-edge, 8 - edge), np.arange(edge - 8, edge)])
        drawn = np.random.default_rng(width).integers(-edge, edge, 120)
        small = np.random.default_rng(width + 1).integers(-3000, 3000, 120)
        column = np.concatenate([few, np.arange(-4, 4), drawn, small])
    array = np.repeat(column[:, None], len(mode.shifts), 1)
    return array.astype({8: np.int8, 16: np.int16, 32: np.int32, 48: np.int64}[width])


@pytest.mark.parametrize("device_name", ["cpu", "vulkan", "vulkan_32bit"])
def test_every_form_of_rescale(device: Device, device_name: str) -> None:
    modes = rescale_modes()[:: 1 if LONG else 3 if device.is_vulkan else 2]
    functions = [program([mode], ("?", len(mode.shifts)), f"f{n}") for n, mode in enumerate(modes)]
    executable = compile_for("\n".join(functions), device)
    for number, mode in enumerate(modes):
        x = inputs_of(mode)
        check_modes([mode], x, [executable[f"f{number}"](x)])


COUNTER = """
tosa.variable @count = dense<[10, -3]> : tensor<2xi32>
tosa.variable @last : tensor<2xi4>
func.func @add(%x: tensor<2xi32>) -> tensor<2xi32> {
  %0 = tosa.variable_read @count : tensor<2xi32>
  %1 = tosa.add %0, %x : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
  tosa.variable_write @count, %1 : tensor<2xi32>
  return %0 : tensor<2xi32>
}
func.func @swap(%x: tensor<2xi4>) -> tensor<2xi4> {
  %0 = tosa.variable_read @last : tensor<2xi4>
  tosa.variable_write @last, %x : tensor<2xi4>
  return %0 : tensor<2xi4>
}
func.func @total() -> tensor<2xi32> {
  %0 = tosa.variable_read @count : tensor<2xi32>
  return %0 : tensor<2xi32>
}
"""


@pytest.mark.parametrize("device_name", ["cpu", "vulkan", "vulkan_32bit"])
def test_variables_keep_their_values(device: Device, device_name: str) -> None:
    executable = compile_for(COUNTER, device)
    steps = np.array([[1, 2], [3, 4], [-5, 6], [7, -8]], np.int32)
    before = np.array([10, -3]) + np.vstack([np.zeros((1, 2), np.int32), steps.cumsum(0)[:-1]])
    np.testing.assert_array_equal(stream(executable.add, [steps])[0], before)
    np.testing.assert_array_equal(executable.total(), np.array([10, -3]) + steps.sum(0))
    first = executable.swap(np.array([-8, 7], np.int8))
    second = executable.swap(np.array([1, 2], np.int8))
    np.testing.assert_array_equal([first, second], [[0, 0], [-8, 7]])
    repeated = compile_for(COUNTER, device)  # a loaded executable has its own variables
    np.testing.assert_array_equal(repeated.total(), [10, -3])


def test_streams_that_do_not_fit(cpu: Device) -> None:
    executable = subquant.compile(COUNTER, device=cpu)
    with pytest.raises(UsageError, match=r"one more axis than its argument.*tensor<2xi32>.*\(2,\)"):
        stream(executable.add, [np.zeros(2, np.int32)])
    with pytest.raises(UsageError, match="at least one slice"):
        stream(executable.add, [np.zeros((0, 2), np.int32)])
    with pytest.raises(SignatureError, match="takes 1 argument, got 2"):
        stream(executable.add, [np.zeros((3, 2), np.int32)] * 2)
    with pytest.raises(SignatureError, match=r"^error: step 0 of 3: argument 0"):
        stream(executable.add, [np.zeros((3, 5), np.int32)])


WIDE: Any = {"channels": 2, "zero_types": ("i32", "i8")}
QUANTIZED = f"""
!q = !quant.uniform<i8:f32, 0.5:3>
!u = !quant.uniform<u8:f32, 0.25:128>
!w = !quant.uniform<i8<-127:127>:f32:0, {{0.5, 0.25}}>
!n = !quant.uniform<i8<-127:127>:f32, 0.0625>
tosa.variable @state : tensor<1x4x4x3x!q>
func.func @main(%a: tensor<1x4x4x3x!q>, %w: tensor<2x1x1x3x!w>, %b: tensor<2xi32>)
    -> (tensor<1x2x2x2x!u>, tensor<1x4x4x3xf32>, tensor<1x4x4x3x!q>, tensor<1x4x4x2x!n>) {{
  {constant("z", [0], "i8")} {constant("z3", [3], "i8")} {constant("z128", [128 - 256], "i8")}
  {constant("z32", [0], "i32")} {constant("m", [1 << 30] * 2, "i32")}
  {constant("m1", [1 << 30], "i32")} {constant("s", [31, 32], "i8")}
  {constant("s1", [29], "i8")} {constant("s2", [28, 29], "i8")}
  %acc = tosa.conv2d %a, %w, %b, %z3, %z {{acc_type = i32, dilation = array<i64: 1, 1>,
    pad = array<i64: 0, 0, 0, 0>, stride = array<i64: 1, 1>}}
    : (tensor<1x4x4x3x!q>, tensor<2x1x1x3x!w>, tensor<2xi32>, tensor<1xi8>, tensor<1xi8>)
    -> tensor<1x4x4x2xi32>
  %r = {rescale("%acc, %m, %s, %z32, %z3", "1x4x4x2xi32", "1x4x4x2x!q", **WIDE)}
  %n = {rescale("%acc, %m, %s2, %z32, %z", "1x4x4x2xi32", "1x4x4x2x!n", **WIDE)}
  %p = tosa.max_pool2d %r {{kernel = array<i64: 2, 2>, pad = array<i64: 0, 0, 0, 0>,
    stride = array<i64: 2, 2>}} : (tensor<1x4x4x2x!q>) -> tensor<1x2x2x2x!q>
  %u = {rescale("%p, %m1, %s1, %z3, %z128", "1x2x2x2x!q", "1x2x2x2x!u", unsigned=(False, True))}
  %f = quant.dcast %a : tensor<1x4x4x3x!q> to tensor<1x4x4x3xf32>
  %before = tosa.variable_read @state : tensor<1x4x4x3x!q>
  tosa.variable_write @state, %a : tensor<1x4x4x3x!q>
  return %u, %f, %before, %n
    : tensor<1x2x2x2x!u>, tensor<1x4x4x3xf32>, tensor<1x4x4x3x!q>, tensor<1x4x4x2x!n>
}}
"""


ROUNDED = """
!q = !quant.uniform<i8:f32, 0.5:3>
func.func @beside(%x: tensor<4xf32>) -> tensor<4xf32> {
  %q = quant.qcast %x : tensor<4xf32> to tensor<4x!q>
  %r = quant.dcast %q : tensor<4x!q> to tensor<4xf32>
  return %r : tensor<4xf32>
}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %q = quant.qcast %x : tensor<4xf32> to tensor<4x!q>
  %r = quant.dcast %q : tensor<4x!q> to tensor<4xf32>
  %zero = "tosa.const"() <{values = dense<0.0> : tensor<1xf32>}> : () -> tensor<1xf32>
  %y = tosa.negate %r, %zero, %zero : (tensor<4xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


def test_values_that_are_rounded_stay_rounded(cpu: Device) -> None:
    """Upstream's passes for TOSA take a value that is quantized and dequantized for itself."""
    executable = subquant.compile(ROUNDED, device=cpu)
    x = np.array([0.3, -1.2, 70.0, -70.0], np.float32)
    rounded = np.array([0.5, -1.0, 62.0, -65.5], np.float32)
    np.testing.assert_array_equal(executable.beside(x), rounded)
    np.testing.assert_array_equal(executable.main(x), -rounded)


@pytest.mark.parametrize("device_name", ["cpu", "vulkan"])
def test_quantized_types_in_tosa(device: Device, device_name: str) -> None:
    """Reals in, reals out: each value is what its type says, narrow ranges included."""
    executable = compile_for(QUANTIZED, device)
    rng = np.random.default_rng(0)
    a = rng.normal(0, 3, (1, 4, 4, 3)).astype(np.float32)
    w = rng.normal(0, 3, (2, 1, 1, 3)).astype(np.float32)
    b = np.array([4, -5], np.int32)
    u, f, before, narrow = executable.main(a, w, b, quantized_io=True)
    stored = np.clip(np.rint(a / 0.5) + 3, -128, 127) - 3
    weights = np.clip(np.rint(w / np.array([0.5, 0.25]).reshape(2, 1, 1, 1)), -127, 127)[:, 0, 0]
    real = np.einsum("nhwc,oc->nhwo", stored * 0.5, weights * [[0.5], [0.25]]) + b * [0.25, 0.125]
    rounded = np.clip(np.floor(real / 0.5 + 0.5) + 3, -128, 127) - 3
    pooled = rounded.reshape(1, 2, 2, 2, 2, 2).max((2, 4))
    np.testing.assert_array_equal(u, np.clip(pooled * 2 + 128, 0, 255) * 0.25 - 32)
    np.testing.assert_array_equal(f, stored * 0.5)
    np.testing.assert_array_equal(before, np.zeros_like(a))  # no initial value: the zero point
    finest = np.clip(np.floor(real / 0.0625 + 0.5), -127, 127)
    assert (finest == -127).any()
    np.testing.assert_array_equal(narrow, finest * 0.0625)
    np.testing.assert_array_equal(executable.main(a, w, b, quantized_io=True)[2], stored * 0.5)


PADS = [(0, 0, 0, 0), (1, 2, 0, 3), (-1, -1, -1, 0), (-1, 2, 1, -1)]
TRANSPOSED = [
    # elements of input, weight and result; strides; kernel; padding of the output; zero points
    *(
        ("i8", "i8", "i32", strides, kernel, pads, zero_points)
        for (strides, kernel), pads, zero_points in itertools.product(
            [((1, 1), (2, 3)), ((2, 2), (2, 2)), ((3, 2), (3, 4)), ((2, 3), (5, 2))],
            PADS,
            [(0, 0), (5, -3)],
        )
    ),
    ("i8", "i8", "i32", (4, 3), (2, 2), (0, 0, 0, 0), (5, -3)),
    ("i16", "i8", "i48", (2, 2), (3, 2), (-1, 2, 1, 0), (0, 0)),
    ("i8", "i4", "i32", (2, 2), (3, 2), (-1, 2, 1, 0), (5, 0)),
    ("f32", "f32", "f32", (2, 2), (3, 2), (-1, 2, 1, 0), (0, 0)),
]


def transposed_function(name: str, case: tuple, batch: str) -> str:
    source, filter_, target, strides, (kh, kw), pads, zero_points = case
    h, w = (
        (size - 1) * stride + sum(ends) + kernel
        for size, stride, ends, kernel in zip(
            (3, 4), strides, (pads[:2], pads[2:]), (kh, kw), strict=True
        )
    )
    x, k, b, y = (
        f"tensor<{batch}x3x4x2x{source}>", f"tensor<3x{kh}x{kw}x2x{filter_}>",
        f"tensor<3x{target}>", f"tensor<{batch}x{h}x{w}x3x{target}>",
    )  # fmt: skip
    numbers = map(float, zero_points) if source == "f32" else zero_points
    constants = map(constant, ("xz", "wz"), ([number] for number in numbers), (source, filter_))
    return f"""
  func.func @{name}(%x: {x}, %w: {k}, %b: {b}) -> {y} {{
    {" ".join(constants)}
    %y = tosa.transpose_conv2d %x, %w, %b, %xz, %wz {{acc_type = {target},
      out_pad = array<i64: {str(pads)[1:-1]}>, stride = array<i64: {str(strides)[1:-1]}>}}
      : ({x}, {k}, {b}, tensor<1x{source}>, tensor<1x{filter_}>) -> {y}
    return %y : {y}
  }}"""


def transposed(
    x: np.ndarray, w: np.ndarray, b: np.ndarray, strides: Sequence[int], pads: Sequence[int]
) -> np.ndarray:
    """TOSA's pseudo-code: each input pixel adds to the output pixels of a kernel's extent."""
    (sy, sx), (top, bottom, left, right) = strides, pads
    (n, ih, iw, _), (features, kh, kw, _) = x.shape, w.shape
    oh, ow = (ih - 1) * sy + top + bottom + kh, (iw - 1) * sx + left + right + kw
    y = np.zeros((n, oh, ow, features)) + b
    for iy, ix, ky, kx in np.ndindex(ih, iw, kh, kw):
        oy, ox = iy * sy + top + ky, ix * sx + left + kx
        if 0 <= oy < oh and 0 <= ox < ow:
            y[:, oy, ox] += x[:, iy, ix] @ w[:, ky, kx].T
    return y


@pytest.mark.parametrize("device_name", ["cpu", "vulkan"])
def test_transposed_convolutions(device: Device, device_name: str) -> None:
    """Strides, padding of both signs, zero points; the sums are exact but for f32."""
    cases = TRANSPOSED[:: 1 if LONG else 6]
    text = "".join(
        transposed_function(f"f{n}", case, "?" if n % 2 else "2") for n, case in enumerate(cases)
    )
    executable = compile_for(text, device)
    arrays = {"i4": np.int8, "i8": np.int8, "i16": np.int16, "f32": np.float32}
    rng = np.random.default_rng(0)
    for number, case in enumerate(cases):
        lowest = -8 if case[1] == "i4" else -128
        x = rng.integers(-128, 128, (2, 3, 4, 2)).astype(arrays[case[0]])
        w = rng.integers(lowest, -lowest, (3, *case[4], 2)).astype(arrays[case[1]])
        b = rng.integers(-9999, 9999, 3).astype(
            {"i32": np.int32, "i48": np.int64, "f32": np.float32}[case[2]]
        )
        result = executable[f"f{number}"](x, w, b)
        differences = (each.astype(np.float64) - z for each, z in zip((x, w), case[6], strict=True))
        expected = transposed(*differences, b, case[3], case[5])
        np.testing.assert_array_equal(result, expected, err_msg=str(case))
