"""Int8 kernels: convolutions and matrix products of i8, exact with every instruction set."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

import subquant
from block_programs import with_constants
from devices import main_of
from instruction_sets import EVERY, HERE, SOME, case_of
from integer_programs import convolution, drawn, padded_convolution, product
from programs import LONG, PRODUCT, lowered_text, one_operation
from subquant.kernels.isa.registry import INSTRUCTION_SETS
from subquant.runtime import Device
from test_kernels_blockwise import text_of_main
from together import Together

CONV_INSTRUCTIONS = SOME if LONG else [*SOME, case_of("avx512vnni-amd")]
"""The kernels for AMD pipeline the epilogues of convolutions."""


CONVOLUTIONS = {
    "3x3": ((1, 12, 13, 16), (3, 3, 16, 32), {}),
    "1x1": ((2, 7, 9, 32), (1, 1, 32, 24), {}),
    "strides and padding": ((1, 15, 15, 8), (3, 3, 8, 16), {"strides": (2, 2), "padding": (1, 1)}),
    "ragged channels": ((1, 20, 11, 3), (5, 4, 3, 19), {"strides": (2, 1)}),
    "dilated": ((2, 14, 12, 4), (3, 2, 4, 40), {"dilations": (2, 3), "padding": (2, 0)}),
    "strided pixels": ((1, 17, 9, 20), (1, 1, 20, 70), {"strides": (3, 2)}),
    "few columns": ((2, 9, 11, 140), (1, 1, 140, 13), {"strides": (1, 2)}),
    "one pixel": ((1, 4, 4, 40), (4, 4, 40, 100), {}),
    "one column of pixels": ((2, 30, 1, 16), (5, 1, 16, 24), {"padding": (2, 0)}),
    "images": ((3, 9, 6, 12), (3, 3, 12, 17), {"strides": (2, 1), "padding": (0, 1)}),
    "ragged channels and padding": ((2, 9, 8, 67), (3, 3, 67, 9), {"padding": (1, 2)}),
    "shared": ((2, 24, 30, 32), (3, 3, 32, 48), {"padding": (1, 1)}),
    "deep": ((1, 6, 7, 200), (3, 3, 200, 24), {"padding": (0, 1)}),
    "shared, strided": ((1, 39, 33, 48), (3, 2, 48, 40), {"strides": (2, 3), "padding": (1, 2)}),
}


@pytest.mark.parametrize("instructions", CONV_INSTRUCTIONS)
@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.share(28)
def test_convolutions_are_exact(case, instructions):
    x_shape, w_shape, options = CONVOLUTIONS[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, expected = convolution(x, w, **options)
    actual = main_of(text, kernels=instructions)(x, w)
    np.testing.assert_array_equal(actual, expected)


PADDED = {
    # N x H x W x C, KH x KW x C x OC, padding (low, high), strides, kinds of initial accumulators
    "strides": ((2, 16, 20, 64), (3, 3, 64, 64), ((1, 0), (1, 1)), (2, 2), 2),
    "both sides": ((2, 9, 11, 16), (3, 3, 16, 20), ((1, 1), (1, 1)), (1, 1), 4),
    "several rows": ((1, 5, 8, 8), (5, 5, 8, 16), ((2, 2), (2, 2)), (1, 1), 9),
    "one row": ((1, 1, 60, 16), (3, 3, 16, 24), ((1, 1), (0, 0)), (1, 1), 4),
    "padded channels": ((1, 12, 9, 15), (3, 2, 15, 33), ((2, 1), (0, 1)), (2, 1), 6),
    "no tap inside": ((1, 4, 8, 16), (3, 3, 16, 16), ((3, 0), (1, 1)), (1, 1), 1),
}


@pytest.mark.parametrize("instructions", CONV_INSTRUCTIONS)
@pytest.mark.parametrize("case", PADDED)
@pytest.mark.share(18)
def test_convolutions_with_padding_are_exact(case, instructions):
    x_shape, w_shape, padding, strides, _ = PADDED[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, expected = padded_convolution(x, w, padding, -7, strides)
    result = main_of(with_constants(text, w), kernels=instructions)(x)
    np.testing.assert_array_equal(result, expected)


CPUS = {
    "avx512vnni-amd": "znver4",
    "avx512vnni": "icelake-server",
    "avxvnni": "alderlake",
    "avx2": "haswell",
    "portable": "x86-64-v2",
}
"""A CPU with the vector instructions of each set; AMX and NEON have tests of their own."""


def test_every_instruction_set_has_a_cpu() -> None:
    assert CPUS.keys() == INSTRUCTION_SETS.keys() - {"amx", "neon-dotprod"}


@pytest.mark.parametrize("instructions", CPUS)
@pytest.mark.parametrize("case", PADDED)
@pytest.mark.share(4)
def test_taps_in_the_padding_are_skipped(case, instructions):
    """Initial accumulators contain the products of skipped taps, for each kind of output row."""
    x_shape, w_shape, padding, strides, kinds = PADDED[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, _ = padded_convolution(x, w, padding, -7, strides)
    options = {"kernels": instructions, "target_cpu": CPUS[instructions]}
    lowered = lowered_text(with_constants(text, w), **options)
    columns = INSTRUCTION_SETS[instructions]
    vectors = columns.vectors_per_tile(w_shape[-1], columns.max_vectors_int8)
    width = vectors * columns.lanes
    rows = kinds * -(-w_shape[-1] // width)
    assert f"memref<{rows}x{width}xi32" in lowered


@pytest.mark.parametrize(
    ("instructions", "strides", "columns", "is_inside"),
    [
        ("avx512vnni", (2, 2), 48, True),
        ("avx512vnni", (1, 1), 48, True),
        ("avx512vnni", None, 48, False),
        ("avx2", (2, 2), 48, True),
        ("avx2", (1, 1), 128, True),
        ("avx2", (1, 1), 144, False),
        ("avx2", None, 48, False),
    ],
)
def test_kernel_converts_activations_that_it_reads_few_times(
    instructions, strides, columns, is_inside
):
    """Other activations are converted before: for 3x3 taps, or for nine tiles."""
    shape, options = ((1, 1), {"strides": strides}) if strides else ((3, 3), {})
    text, _ = convolution(drawn(1, 60, 60, 64), drawn(*shape, 64, columns, seed=1), **options)
    lowered = lowered_text(text, kernels=instructions, target_cpu=CPUS[instructions])
    written = re.search(r"stablehlo\.(xor|convert) .*tensor<1x60x60x64x|pad_copy", lowered)
    assert (written is None) == is_inside


@pytest.mark.parametrize(
    ("columns", "missing", "is_inside"), [(64, 0, True), (640, 0, False), (64, 1, False)]
)
def test_kernel_pads_image_rows(columns, missing, is_inside):
    """A copy is made for many tiles, and for channels that do not fill k-packs."""
    channels = 64 - missing
    x, w = drawn(1, 30, 30, channels), drawn(3, 3, channels, columns, seed=1)
    text, _ = convolution(x, w, padding=(1, 1))
    lowered = lowered_text(text, kernels="avx512vnni", target_cpu="icelake-server")
    assert "int8_conv" in lowered
    assert ("pad_copy" in lowered) != is_inside


@pytest.mark.long
@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.share(14)
def test_extreme_accumulators_are_exact(instructions):
    text, _ = convolution(drawn(1, 6, 7, 37), drawn(3, 3, 37, 20), padding=(1, 1))
    both = Together({"windows": text, "rows": product(18, 4098, 24)}, kernels=instructions)
    windows, rows = (both.function(name, Device("llvm-cpu")) for name in ("windows", "rows"))
    for left, right in itertools.product((-128, 127), repeat=2):
        x, w = np.full((1, 6, 7, 37), left, np.int8), np.full((3, 3, 37, 20), right, np.int8)
        np.testing.assert_array_equal(windows(x, w), convolution(x, w, padding=(1, 1))[1])
        x, w = np.full((18, 4098), left, np.int8), np.full((4098, 24), right, np.int8)
        np.testing.assert_array_equal(rows(x, w), np.full((18, 24), 4098 * left * right))


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(16, 128, 64), (37, 130, 50), (64, 7, 100)])
@pytest.mark.share(14)
def test_matrices_are_exact(rows, depth, columns, instructions):
    x, w = drawn(rows, depth), drawn(columns, depth, seed=1)
    main = main_of(product(rows, depth, columns, transposed=True), kernels=instructions)
    np.testing.assert_array_equal(main(x, w), x.astype(np.int32) @ w.T.astype(np.int32))


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.share(14)
def test_gemv_with_a_constant_weight_is_exact(rows, instructions):
    """All products have the greatest magnitude, of either sign."""
    w = np.full((640, 72), -128, np.int8)
    main = main_of(product(rows, 640, 72, constant=w), kernels=instructions)
    for value in (-128, 127):
        x = np.full((rows, 640), value, np.int8)
        expected = np.full((rows, 72), 640 * -128 * value, np.int32)
        np.testing.assert_array_equal(main(x), expected)


IMAGE = drawn(1, 40, 40, 64)


WEIGHT_PANELS = {
    "whole": (product(370, 130, 48), 65),
    "whole, of a convolution": (convolution(IMAGE, drawn(3, 3, 64, 64), padding=(1, 1)), 288),
    "four panels of 640": (product(1100, 1280, 32), 160),
    "eight panels": (product(2000, 2560, 16), 160),
    "five panels": (product(1100, 1020, 40), 102),
    "strides": (convolution(drawn(1, 70, 70, 1280), drawn(1, 1, 1280, 16), strides=(2, 2)), 160),
    "images": (convolution(IMAGE, drawn(3, 3, 64, 32), padding=(1, 1)), None),
    "few rows": (product(31, 1280, 32), None),
    "no divisor": (product(1100, 1282, 32), None),
    "large K": (convolution(drawn(1, 40, 40, 96), drawn(3, 3, 96, 32), padding=(1, 1)), None),
}


@pytest.mark.long
@pytest.mark.parametrize("case", WEIGHT_PANELS)
def test_weight_panels_are_widened_for_many_pixels(case):
    """Into panels of a number of k-packs, 16 columns wide; other weights are not copied."""
    if "avx2" not in HERE:
        pytest.skip("this CPU has no AVX2")
    source, words = WEIGHT_PANELS[case]
    text = source if isinstance(source, str) else source[0]
    options = {"kernels": "avx2", "target_cpu": "haswell"}
    lowered = lowered_text(text, **options)
    panels = re.findall(r"memref\.alloca\(.* : memref<1x(\d+)x32xi16>", lowered)
    assert {*panels} == (set() if words is None else {str(words)})
    main = main_of(text, **options)
    shapes = [each.shape for each in main.signature.inputs]
    left, right = drawn(*shapes[0]), drawn(*shapes[1], seed=1)
    for x, w in ((left, right), (np.full_like(left, -128), np.full_like(right, -128))):
        actual = main(x, w)
        if isinstance(source, str):
            expected = x.astype(np.int32) @ w.astype(np.int32)
        else:
            window = {"strides": (2, 2)} if case == "strides" else {"padding": (1, 1)}
            expected = convolution(x, w, **window)[1]
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("rows", "depth", "portable"), [(24, 96, 1), (160, 1024, 2)])
@pytest.mark.share(4)
def test_quantized_programs_call_kernels(rows, depth, portable):
    """Zero points are corrected outside of the kernel, which multiplies storage.

    Portable kernels convert the activations of many rows in another dispatch.
    """
    types = [
        f"{rows}x{depth}x!quant.uniform<i8:f32, 0.02:3>", f"{depth}x40x!quant.uniform<i8:f32, 0.01>"
    ]  # fmt: skip
    text = one_operation(PRODUCT, types, f"{rows}x40x!quant.uniform<i8:f32, 0.5:-5>")
    x, w = drawn(rows, depth), drawn(depth, 40, seed=1)
    accumulators = (x.astype(np.float64) - 3) @ w.astype(np.float64)
    scale = float(np.float32(0.02)) * float(np.float32(0.01)) / 0.5
    expected = np.clip(np.rint(accumulators * scale - 5), -128, 127)
    for kernels in (*HERE, "none"):
        calls = text_of_main(text, kernels=kernels).count('"flow.dispatch"')
        assert calls == {"portable": portable, "none": 0}.get(kernels, 1)
        actual = subquant.compile(text, kernels=kernels).main(x, w)
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize(("depth", "columns"), [(128, 70), (130, 50)])
@pytest.mark.share(6)
def test_dynamic_m_is_exact(depth, columns, instructions):
    w = drawn(depth, columns, seed=1)
    text = f"""
func.func @main(%x: tensor<?x{depth}xi8>) -> tensor<?x{columns}xi32> {{
  %w = stablehlo.constant dense<{w.tolist()}> : tensor<{depth}x{columns}xi8>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<?x{depth}xi8>, tensor<{depth}x{columns}xi8>) -> tensor<?x{columns}xi32>
  return %y : tensor<?x{columns}xi32>
}}"""
    main = main_of(text, kernels=instructions)
    assert "flow.dispatch" in text_of_main(text, kernels=instructions)
    for rows in (1, 3, 37, 0):
        x = drawn(rows + 1, depth)[:rows]
        np.testing.assert_array_equal(main(x), x.astype(np.int32) @ w.astype(np.int32))


def test_quantized_products_with_dynamic_m():
    """Zero points are corrected outside of the kernel, and accumulators requantized after it."""
    w = drawn(96, 64, seed=1)
    text = f"""
!x = !quant.uniform<i8:f32, 0.02:3>
!w = !quant.uniform<i8:f32, 0.01>
!y = !quant.uniform<i8:f32, 0.5:-5>
func.func @main(%x: tensor<?x96x!x>) -> tensor<?x64x!y> {{
  %q = stablehlo.constant dense<{w.tolist()}> : tensor<96x64xi8>
  %w = "quant.scast"(%q) : (tensor<96x64xi8>) -> tensor<96x64x!w>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<?x96x!x>, tensor<96x64x!w>) -> tensor<?x64x!y>
  return %y : tensor<?x64x!y>
}}"""
    assert "flow.dispatch" in text_of_main(text)
    function = subquant.compile(text).main
    for rows in (1, 24):
        x = drawn(rows, 96)
        real = (x.astype(np.float64) - 3) @ w.astype(np.float64) * (0.02 * 0.01)
        expected = np.clip(np.rint(real / 0.5 - 5), -128, 127)
        np.testing.assert_array_equal(function(x), expected)
