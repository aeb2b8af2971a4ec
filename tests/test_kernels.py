"""Kernels: the same integers whatever a CPU multiplies with, in every layout of weights.

What is compiled takes the weight as an argument, so that the compiler cannot compute with it. The
reference is written here, of float64 and whole integers; it knows nothing of tiles and planes.
"""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

import subquant
from block_programs import arrays, program, reference, with_constants
from devices import main_of
from instruction_sets import EVERY, HERE, SOME, case_of
from integer_programs import convolution, drawn, padded_convolution, product
from programs import LONG
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.pipeline import compile_pipeline
from subquant.errors import UsageError
from subquant.formats.irpa_writer import create_archive
from subquant.kernels.isa.registry import INSTRUCTION_SETS, fastest_instruction_set
from subquant.kernels.pack.packed_weight import PackedWeight, ScaleEncoding, Tiles
from subquant.numerics.element_types import F16, F32, U8
from subquant.runtime import Device
from together import Together

OF_WINDOWS = SOME if LONG else [*SOME, case_of("avx512vnni-amd")]
"""The kernels for AMD pipeline the epilogues of convolutions."""


def check(case, instructions, *, transposed=False, zeros=False, offsets=False, is_known=False):
    given = arrays(*case, zeros=zeros, offsets=offsets)
    text = program(*case, zeros=zeros, offsets=offsets, transposed=transposed)
    turned = [given[0], *(each.T.copy() for each in given[1:])] if transposed else given
    if is_known:
        text = with_constants(text, *turned[1:])
        turned = turned[:1]
    main = main_of(text, activations="int8", kernels=instructions)
    names = iter(given[3:])
    expected = reference(
        *given[:3],
        case[3],
        next(names) if zeros else None,
        next(names) if offsets else None,
    )
    found = main(*turned)
    # Each block adds a rounding of f32 or two; sums of few hundred blocks stay far below this.
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()


def text_of_main(text, **options):
    """What IREE is given of the function alone."""
    lowered = compile_to_bytes(text, CompileOptions(**options), emit="mlir").decode()
    return lowered[lowered.index("func.func @main(") :]


CASES = [
    (1, 256, 128, 32),
    (1, 256, 230, 32),  # tiles that are read side by side, and some that are over
    (2, 512, 150, 128),
    (3, 512, 64, 32, "u4"),
    (13, 256, 100, 64),  # ragged rows and columns, a block of two steps
    (37, 256, 100, 64),  # rows are rounded by five workgroups, the last of which has fewer
    (6, 512, 48, 16),  # two blocks a step
    (7, 1024, 40, 1024),  # one block a column
    (2, 1024, 40, 128, "i3"),
    (5, 512, 72, 32, "u5"),
    (4, 512, 64, 16, "i6"),
    (4, 512, 64, 32, "u2"),
    (5, 256, 96, 32, "i8"),
    (3, 512, 65, 64, "u8"),
]


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.share(12)
def test_sums_are_those_of_the_integers(case, is_known, instructions):
    check(case, instructions, is_known=is_known)


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize(("zeros", "offsets"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("storage", ["i4", "u5"])
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.share(8)
def test_zero_points_and_offsets(storage, zeros, offsets, is_known, instructions):
    case = (5, 256, 80, 32, storage)
    check(case, instructions, zeros=zeros, offsets=offsets, transposed=True, is_known=is_known)


MANY = [
    (37, 1312, 100, 32),  # a shorter panel, a tile and a row that are over
    (70, 640, 72, 64, "u5"),  # rows whose sums are in memory after those of others
    (40, 1024, 40, 16, "i6"),
    (64, 768, 33, 32, "u2"),
    (48, 2048, 40, 2048),  # a block that is longer than a panel
    (35, 512, 64, 32, "u8"),  # nothing to unpack
]


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize(("zeros", "offsets"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("case", MANY, ids=str)
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.share(8)
def test_many_rows_meet_a_weight_that_is_unpacked(case, zeros, offsets, is_known, instructions):
    check(case, instructions, zeros=zeros, offsets=offsets, is_known=is_known)


def test_a_weight_is_unpacked_where_that_pays():
    for case, is_unpacked in [
        ((64, 512, 64, 32), True),
        (("?", 512, 64, 32), True),
        ((8, 512, 64, 32), False),
        ((64, 512, 64, 32, "u8"), False),
        ((64, 2048, 64, 2048), False),
    ]:
        options = CompileOptions(activations="int8", kernels="avx2", target_cpu="haswell")
        text = compile_to_bytes(program(*case), options, emit="mlir").decode()
        assert ("memref.alloca" in text) == is_unpacked


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize(
    ("case", "zeros", "offsets"),
    [
        ((1, 256, 230, 32), False, False),
        ((9, 512, 40, 128, "u4"), True, False),
        ((5, 512, 72, 16, "i6"), False, True),
        ((3, 512, 65, 64, "u8"), True, True),
    ],
    ids=str,
)
@pytest.mark.share(2)
def test_activations_that_stay_floats(case, zeros, offsets, instructions):
    x, q, scales, *more = arrays(*case, zeros=zeros, offsets=offsets)
    text = program(*case, zeros=zeros, offsets=offsets)
    of_arguments = text
    given = dict(re.findall(r"%([qszo]): tensor<(\S+?)>[,)]", text))
    for (name, type_), array in zip(given.items(), [q, scales, *more], strict=True):
        held = (array.astype(np.float32) if type_.endswith("f32") else array).tolist()
        text = re.sub(rf", %{name}: tensor<{type_}>", "", text, count=1)
        constant = f"  %{name} = arith.constant dense<{held}> : tensor<{type_}>\n"
        text = text.replace("  %w =", f"{constant}  %w =", 1)
    main = main_of(text, kernels=instructions)
    # The weight is a constant: one that is an argument at each call is left to IREE's loops.
    assert "@block_product" not in text_of_main(of_arguments)
    assert "@block_product" in text_of_main(text, kernels=instructions)
    block, names = case[3], iter(more)
    real = q.astype(np.float64)
    if zeros:
        real = real - np.repeat(next(names).astype(np.float64), block, 0)
    real = real * np.repeat(scales.astype(np.float64), block, 0)
    if offsets:
        real = real + np.repeat(next(names).astype(np.float64), block, 0)
    found = main(x)
    # Each product and each sum rounds once: as many times as there are, half a last place each.
    bound = 2.0**-24 * (x.shape[1] + 3) * (np.abs(x).astype(np.float64) @ np.abs(real))
    assert (np.abs(found - x.astype(np.float64) @ real) <= bound).all()


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("storage", ["u2", "u3", "u4", "u5", "u6", "u8", "i8"])
@pytest.mark.parametrize("rows", [3, 36])
@pytest.mark.share(9)
def test_nothing_saturates_at_the_extremes(storage, rows, instructions):
    """All products have the greatest magnitude: the sums of a block are whole numbers in f32."""
    depth, columns, block = 512, 32, 128
    bits, signed = int(storage[1:]), storage[0] == "i"
    extreme = -(1 << (bits - 1)) if signed else (1 << bits) - 1
    x = np.full((rows, depth), 127, np.float32)
    q = np.full((depth, columns), extreme, np.int8 if signed else np.uint8)
    scales = np.ones((depth // block, columns), np.float32)
    text = program(rows, depth, columns, block, storage)
    main = main_of(text, activations="int8", kernels=instructions)
    for given in (x, -x):
        expected = np.full((rows, columns), float(given[0, 0]) * extreme * depth)
        np.testing.assert_allclose(main(given, q, scales), expected, rtol=3e-7)


@pytest.mark.parametrize("instructions", SOME)
def test_activations_are_rounded_to_even(instructions):
    """Those of a block with what is not finite are 0, which its scale makes no number."""
    block, depth = 64, 256
    steps = np.arange(-63, 64, 0.5, dtype=np.float32)
    large = np.resize([1e-45, -1e-38, 0, 3e38, 1, -3e38], depth).astype(np.float32)
    x = np.tile(np.float32(127), (5, depth))
    x[0, : len(steps)] = steps
    x[0, ::block] = 127  # the scale is 1
    x[1:3] = -x[0], large
    x[3:, 5] = math.nan, -math.inf
    # A column for each position: integers times scales are what comes out.
    q, scales = np.eye(depth, dtype=np.int8), np.ones((depth // block, depth), np.float32)
    text = with_constants(program(5, depth, depth, block, "i4"), q, scales)
    found = main_of(text, activations="int8", kernels=instructions)(x)
    np.testing.assert_array_equal(found[:2], np.rint(x[:2]))
    assert (np.abs(found[2] - large) <= large.max() / 127 / 2).all()
    assert np.isnan(found[3:]).all()


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize(("inner", "transposed"), [("u6", True), ("i8", False), ("u8", True)])
@pytest.mark.parametrize(
    ("block", "blocks", "is_known"),
    [(32, (8, 8), False), (32, (8, 8), True), (32, (4, 8), True), (16, (16, 32), True)],
)
@pytest.mark.parametrize("rows", [4, 35])
@pytest.mark.share(16)
def test_scales_that_are_quantized(block, blocks, is_known, inner, transposed, rows, instructions):
    """As K-quants of GGUF have them: integers times an f16 for every eight blocks, or others."""
    depth, columns = 512, 40
    random, bits = np.random.default_rng(0), int(inner[1:])
    low = -(1 << (bits - 1)) if inner[0] == "i" else 0
    x = random.standard_normal((rows, depth)).astype(np.float32)
    q = random.integers(0, 16, (depth, columns)).astype(np.uint8)
    codes = random.integers(low, low + (1 << bits), (2, depth // block, columns))
    outer = [
        random.uniform(0.5, 2, (depth // block // n, columns)).astype(np.float16) for n in blocks
    ]
    scales, offsets = (
        each * np.repeat(of_several, n, 0).astype(np.float64)
        for each, of_several, n in zip(codes, outer, blocks, strict=True)
    )
    expected = reference(x, q, scales, block, offsets=offsets)

    def shaped(*extents):
        return "x".join(map(str, extents[::-1] if transposed else extents))

    def sizes(size):
        return ", ".join(map(str, (1, size) if transposed else (size, 1)))

    w, s, *ds = (shaped(depth // n, columns) for n in (1, block, *(block * n for n in blocks)))
    kinds = [
        f"""{{block_sizes = array<i64: {sizes(n)}>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<{inner}:f32>}}
      : (tensor<{s}xi{bits}>, tensor<{d}xf16>) -> tensor<{s}xf32>"""
        for n, d in zip(blocks, ds, strict=True)
    ]
    text = f"""
func.func @main(%x: tensor<{rows}x{depth}xf32>, %q: tensor<{w}xi4>,
                %s: tensor<{s}xi{bits}>, %o: tensor<{s}xi{bits}>,
                %sd: tensor<{ds[0]}xf16>, %od: tensor<{ds[1]}xf16>)
    -> tensor<{rows}x{columns}xf32> {{
  %scales = "subquant.dequantize"(%s, %sd) {kinds[0]}
  %offsets = "subquant.dequantize"(%o, %od) {kinds[1]}
  %w = "subquant.dequantize"(%q, %scales, %offsets) {{block_sizes = array<i64: {sizes(block)}>,
      operandSegmentSizes = array<i32: 1, 1, 0, 1>, quantized_type = !quant.any<u4:f32>}}
      : (tensor<{w}xi4>, tensor<{s}xf32>, tensor<{s}xf32>) -> tensor<{w}xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [{int(transposed)}]
      : (tensor<{rows}x{depth}xf32>, tensor<{w}xf32>) -> tensor<{rows}x{columns}xf32>
  return %y : tensor<{rows}x{columns}xf32>
}}"""
    stored = codes.astype(np.int8 if inner[0] == "i" else np.uint8)
    given = [q, *stored, *outer]
    given = [each.T.copy() for each in given] if transposed else given
    if is_known:
        text, given = with_constants(text, *given), []
    found = main_of(text, activations="int8", kernels=instructions)(x, *given)
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.share(2)
def test_rows_that_are_known_at_run_time(instructions):
    text = program("?", 256, 96, 32)
    main = main_of(text, activations="int8", kernels=instructions)
    for rows in (0, 1, 5, 6, 14, 45, 100):
        given = arrays(rows, 256, 96, 32, seed=rows)
        expected = reference(*given, 32)
        found = main(*given)
        assert found.shape == (rows, 96)
        np.testing.assert_allclose(found, expected, atol=1e-4)


# -- integers -------------------------------------------------------------------------------------


WINDOWS = {
    "3x3": ((1, 12, 13, 16), (3, 3, 16, 32), {}),
    "1x1": ((2, 7, 9, 32), (1, 1, 32, 24), {}),
    "steps and padding": ((1, 15, 15, 8), (3, 3, 8, 16), {"strides": (2, 2), "padding": (1, 1)}),
    "ragged channels": ((1, 20, 11, 3), (5, 4, 3, 19), {"strides": (2, 1)}),
    "apart": ((2, 14, 12, 4), (3, 2, 4, 40), {"dilations": (2, 3), "padding": (2, 0)}),
    "steps of one position": ((1, 17, 9, 20), (1, 1, 20, 70), {"strides": (3, 2)}),
    "few columns": ((2, 9, 11, 140), (1, 1, 140, 13), {"strides": (1, 2)}),
    "one window": ((1, 4, 4, 40), (4, 4, 40, 100), {}),
    "images": ((3, 9, 6, 12), (3, 3, 12, 17), {"strides": (2, 1), "padding": (0, 1)}),
    "ragged channels and padding": ((2, 9, 8, 67), (3, 3, 67, 9), {"padding": (1, 2)}),
    "shared": ((2, 24, 30, 32), (3, 3, 32, 48), {"padding": (1, 1)}),
    "deep": ((1, 6, 7, 200), (3, 3, 200, 24), {"padding": (0, 1)}),
    "shared, with steps": ((1, 39, 33, 48), (3, 2, 48, 40), {"strides": (2, 3), "padding": (1, 2)}),
}


@pytest.mark.parametrize("instructions", OF_WINDOWS)
@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.share(6)
def test_convolutions_are_exact(case, instructions):
    x_shape, w_shape, options = WINDOWS[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, expected = convolution(x, w, **options)
    found = main_of(text, kernels=instructions)(x, w)
    np.testing.assert_array_equal(found, expected)


LEFT_OUT = {
    # images x height x width x channels, window, padding (before and after), strides, how many
    # numbers sums begin with
    "steps": ((2, 16, 20, 64), (3, 3, 64, 64), ((1, 0), (1, 1)), (2, 2), 2),
    "both sides": ((2, 9, 11, 16), (3, 3, 16, 20), ((1, 1), (1, 1)), (1, 1), 4),
    "several lines": ((1, 5, 8, 8), (5, 5, 8, 16), ((2, 2), (2, 2)), (1, 1), 9),
    "few lines": ((1, 1, 60, 16), (3, 3, 16, 24), ((1, 1), (0, 0)), (1, 1), 4),
    "channels that are missing": ((1, 12, 9, 15), (3, 2, 15, 33), ((2, 1), (0, 1)), (2, 1), 6),
    "nothing inside": ((1, 4, 8, 16), (3, 3, 16, 16), ((3, 0), (1, 1)), (1, 1), 1),
}


@pytest.mark.parametrize("instructions", OF_WINDOWS)
@pytest.mark.parametrize("case", LEFT_OUT)
@pytest.mark.share(3)
def test_convolutions_with_padding_are_exact(case, instructions):
    x_shape, w_shape, padding, strides, _ = LEFT_OUT[case]
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
"""A CPU that has the vector instructions. The kernels of AMX have a file of tests of their own."""


@pytest.mark.parametrize("instructions", CPUS)
@pytest.mark.parametrize("case", LEFT_OUT)
@pytest.mark.share(2)
def test_lines_of_taps_around_pictures_are_left_out(case, instructions):
    """The accumulators of output pixels begin with the sums of the taps that lie in the padding."""
    x_shape, w_shape, padding, strides, begins = LEFT_OUT[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, _ = padded_convolution(x, w, padding, -7, strides)
    options = CompileOptions(kernels=instructions, target_cpu=CPUS[instructions])
    lowered = compile_to_bytes(with_constants(text, w), options, emit="mlir").decode()
    columns = INSTRUCTION_SETS[instructions]
    parts = columns.vectors_per_tile(w_shape[-1], columns.max_vectors_int8)
    width = parts * columns.lanes
    rows = begins * -(-w_shape[-1] // width)
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
def test_activations_that_are_read_few_times_become_factors_in_the_kernel(
    instructions, strides, columns, is_inside
):
    """Others are written as factors before: of three by three positions, or for nine tiles."""
    shape, options = ((1, 1), {"strides": strides}) if strides else ((3, 3), {})
    text, _ = convolution(drawn(1, 60, 60, 64), drawn(*shape, 64, columns, seed=1), **options)
    cpu = {"avx512vnni": "icelake-server", "avx2": "haswell"}[instructions]
    options = CompileOptions(kernels=instructions, target_cpu=cpu)
    lowered = compile_to_bytes(text, options, emit="mlir").decode()
    written = re.search(r"stablehlo\.(xor|convert) .*tensor<1x60x60x64x|padded_pictures", lowered)
    assert (written is None) == is_inside


@pytest.mark.parametrize(
    ("columns", "missing", "is_inside"), [(64, 0, True), (640, 0, False), (64, 1, False)]
)
def test_what_is_around_pictures_is_written_by_the_kernel(columns, missing, is_inside):
    """Not for each of many tiles, and not with channels that are missing."""
    channels = 64 - missing
    x, w = drawn(1, 30, 30, channels), drawn(3, 3, channels, columns, seed=1)
    text, _ = convolution(x, w, padding=(1, 1))
    options = CompileOptions(kernels="avx512vnni", target_cpu="icelake-server")
    lowered = compile_to_bytes(text, options, emit="mlir").decode()
    assert "integer_product" in lowered
    assert ("padded_pictures" in lowered) != is_inside


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.share(3)
def test_sums_of_extremes_are_exact(instructions):
    text, _ = convolution(drawn(1, 6, 7, 37), drawn(3, 3, 37, 20), padding=(1, 1))
    both = Together({"windows": text, "rows": product(18, 4098, 24)}, kernels=instructions)
    windows, rows = (both.function(name, Device("llvm-cpu")) for name in ("windows", "rows"))
    for left, right in itertools.product((-128, 127), repeat=2):
        x, w = np.full((1, 6, 7, 37), left, np.int8), np.full((3, 3, 37, 20), right, np.int8)
        np.testing.assert_array_equal(windows(x, w), convolution(x, w, padding=(1, 1))[1])
        x, w = np.full((18, 4098), left, np.int8), np.full((4098, 24), right, np.int8)
        np.testing.assert_array_equal(rows(x, w), np.full((18, 24), 4098 * left * right))


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        (program(1, 256, 4096, 32), "block_product"),
        (program(1, 4096, 8192, 32), "block_product"),
        (program(1, 4096, 5000, 32), "block_product"),
        (program(256, 256, 64, 32), "round_rows"),
        (product(512, 1024, 1024), "integer_product"),
    ],
    ids=["few", "many", "ragged", "rows", "matrix"],
)
def test_two_threads_share_what_is_left(text, kernel):
    """A thread takes a workgroup, or eight where there are eight for each (IREE 3.13)."""
    options = CompileOptions(activations="int8", kernels="avx2", target_cpu="haswell")
    lowered = compile_to_bytes(text, options, emit="mlir").decode()
    counts = re.findall(r'"stream.return"\(%c(\d+)(?:_\d+)?, .*\n.*@(\w+), sym_name', lowered)
    workgroups = next(int(count) for count, name in counts if name == kernel)
    taken = 8 if workgroups >= 2 * 8 else 1
    assert taken / workgroups <= 1 / 8


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(16, 128, 64), (37, 130, 50), (64, 7, 100)])
@pytest.mark.share(5)
def test_matrices_are_exact(rows, depth, columns, instructions):
    x, w = drawn(rows, depth), drawn(columns, depth, seed=1)
    main = main_of(product(rows, depth, columns, transposed=True), kernels=instructions)
    np.testing.assert_array_equal(main(x, w), x.astype(np.int32) @ w.T.astype(np.int32))


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.share(3)
def test_few_rows_meet_a_constant(rows, instructions):
    """All products have the greatest magnitude, of either sign."""
    w = np.full((640, 72), -128, np.int8)
    main = main_of(product(rows, 640, 72, constant=w), kernels=instructions)
    for value in (-128, 127):
        x = np.full((rows, 640), value, np.int8)
        expected = np.full((rows, 72), 640 * -128 * value, np.int32)
        np.testing.assert_array_equal(main(x), expected)


PICTURE = drawn(1, 40, 40, 64)
WIDENED = {
    "whole": (product(370, 130, 48), 65),
    "whole, of windows": (convolution(PICTURE, drawn(3, 3, 64, 64), padding=(1, 1)), 288),
    "four panels of 640": (product(1100, 1280, 32), 160),
    "eight panels": (product(1500, 2560, 16), 160),
    "five panels": (product(1100, 1020, 40), 102),
    "steps": (convolution(drawn(1, 70, 70, 1280), drawn(1, 1, 1280, 16), strides=(2, 2)), 160),
    "pictures": (convolution(PICTURE, drawn(3, 3, 64, 32), padding=(1, 1)), None),
    "few rows": (product(31, 1280, 32), None),
    "no divisor": (product(1100, 1282, 32), None),
    "deep windows": (convolution(drawn(1, 40, 40, 96), drawn(3, 3, 96, 32), padding=(1, 1)), None),
}


@pytest.mark.parametrize("case", WIDENED)
def test_a_weight_is_widened_for_many_windows(case):
    """Into panels of so many words, 16 columns wide; other weights are read as they are."""
    if "avx2" not in HERE:
        pytest.skip("this CPU has no AVX2")
    given, words = WIDENED[case]
    text = given if isinstance(given, str) else given[0]
    options = {"kernels": "avx2", "target_cpu": "haswell"}
    lowered = compile_to_bytes(text, CompileOptions(**options), emit="mlir").decode()
    panels = re.findall(r"memref\.alloca\(.* : memref<1x(\d+)x32xi16>", lowered)
    assert {*panels} == (set() if words is None else {str(words)})
    main = main_of(text, **options)
    shapes = [each.shape for each in main.signature.inputs]
    left, right = drawn(*shapes[0]), drawn(*shapes[1], seed=1)
    for x, w in ((left, right), (np.full_like(left, -128), np.full_like(right, -128))):
        found = main(x, w)
        if isinstance(given, str):
            expected = x.astype(np.int32) @ w.astype(np.int32)
        else:
            window = {"strides": (2, 2)} if case == "steps" else {"padding": (1, 1)}
            expected = convolution(x, w, **window)[1]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("rows", "depth", "portable"), [(24, 96, 1), (160, 1024, 2)])
def test_quantized_programs_call_kernels(rows, depth, portable):
    """A zero point outside of the kernel, which multiplies storage.

    Args:
        rows, depth: of the activations.
        portable: dispatches where factors are words, which a kernel writes before for many rows.
    """
    text = f"""
!x = !quant.uniform<i8:f32, 0.02:3>
!w = !quant.uniform<i8:f32, 0.01>
!y = !quant.uniform<i8:f32, 0.5:-5>
func.func @main(%x: tensor<{rows}x{depth}x!x>, %w: tensor<{depth}x40x!w>)
    -> tensor<{rows}x40x!y> {{
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<{rows}x{depth}x!x>, tensor<{depth}x40x!w>) -> tensor<{rows}x40x!y>
  return %y : tensor<{rows}x40x!y>
}}"""
    x, w = drawn(rows, depth), drawn(depth, 40, seed=1)
    sums = (x.astype(np.float64) - 3) @ w.astype(np.float64)
    scale = float(np.float32(0.02)) * float(np.float32(0.01)) / 0.5
    expected = np.clip(np.rint(sums * scale - 5), -128, 127)
    for kernels in (*HERE, "none"):
        calls = text_of_main(text, kernels=kernels).count('"flow.dispatch"')
        assert calls == {"portable": portable, "none": 0}.get(kernels, 1)
        found = subquant.compile(text, kernels=kernels).main(x, w)
        np.testing.assert_array_equal(found, expected)


# -- programs -------------------------------------------------------------------------------------


def test_constants_are_laid_out_when_the_program_is_compiled():
    case = (2, 256, 64, 32)
    x, q, scales = arrays(*case)
    values = ", ".join("[" + ", ".join(map(str, row)) + "]" for row in q.tolist())
    of_blocks = ", ".join("[" + ", ".join(map(repr, row)) + "]" for row in scales.tolist())
    text = program(*case).replace(", %q: tensor<256x64xi4>, %s: tensor<8x64xf32>", "")
    text = text.replace(
        "  %w =",
        f"  %q = arith.constant dense<[{values}]> : tensor<256x64xi4>\n"
        f"  %s = arith.constant dense<[{of_blocks}]> : tensor<8x64xf32>\n  %w =",
    )
    options = CompileOptions(activations="int8", kernels="portable")
    lowered = compile_to_bytes(text, options, emit="mlir").decode()
    calls = lowered[lowered.index("func.func @main") :]
    assert "flow.dispatch" in calls
    # Of 8 tiles of 8 columns 8 steps of 128 bytes, with a scale of f32 for each column.
    assert f"tensor<8x{8 * (128 + 8 * 4)}xi8>" in calls
    assert "stablehlo.transpose" not in calls
    found = subquant.compile(text, activations="int8").main(x)
    np.testing.assert_allclose(found, reference(x, q, scales, 32), atol=1e-3)


def test_equal_contractions_are_one_executable():
    case = (2, 256, 64, 32)
    text = program(*case)
    again = re.search(r"  %w = .*?(?=  return)", text, re.DOTALL).group()
    again = again.replace("%w", "%w2").replace("%y", "%y2").replace("%x", "%y3")
    text = text.replace(
        "  return %y",
        "  %y3 = stablehlo.concatenate %y, %y, %y, %y, dim = 1 : (tensor<2x64xf32>, "
        "tensor<2x64xf32>, tensor<2x64xf32>, tensor<2x64xf32>) -> tensor<2x256xf32>\n"
        + again
        + "  return %y2",
    )
    lowered = compile_to_bytes(
        text, CompileOptions(activations="int8", fuse_below_macs=0), emit="mlir"
    ).decode()
    assert lowered.count('"flow.dispatch"') == 4
    assert lowered.count('"stream.executable"') == 2


ASSEMBLY = {
    "avx512vnni-amd": ("znver4", "vpdpbusd", "zmm"),
    "avx512vnni": ("icelake-server", "vpdpbusd", "zmm"),
    "avxvnni": ("alderlake", "vpdpbusd", "ymm"),
    "avx2": ("haswell", "vpmaddubsw", "ymm"),
    "portable": ("znver3", "vpmaddwd", "ymm"),  # LLVM finds that the factors have few bits
}


@pytest.mark.parametrize("instructions", ASSEMBLY)
def test_instructions_are_what_was_asked_for(instructions, tmp_path):
    cpu, wanted, register = ASSEMBLY[instructions]
    flag = f"--iree-hal-dump-executable-intermediates-to={tmp_path}"
    options = CompileOptions(
        activations="int8", kernels=instructions, target_cpu=cpu, iree_flags=(flag,)
    )
    compile_to_bytes(program(4, 256, 64, 32), options)
    [file] = tmp_path.glob("*.s")
    text = file.read_text()
    found = [line for line in text.splitlines() if wanted in line and register in line]
    assert len(found) >= 8  # the groups of a step
    assert ("prefetcht0" in text) == (not instructions.endswith("-amd"))


def test_two_tiles_share_the_activations_that_are_read(tmp_path):
    flag = f"--iree-hal-dump-executable-intermediates-to={tmp_path}"
    for rows, is_shared in (8, True), (4, False):  # many, and few
        options = CompileOptions(
            activations="int8",
            kernels="avx2",
            target_cpu="haswell",
            iree_flags=(f"{flag}/{rows}",),
        )
        compile_to_bytes(program(rows, 256, 96, 32), options)
        [file] = (tmp_path / str(rows)).glob("*.s")
        products, read = map(file.read_text().count, ["vpmaddubsw", "vpbroadcastd"])
        assert (read < 0.75 * products) == is_shared


def test_a_weight_that_the_second_cache_has_is_not_asked_for(tmp_path):
    for columns, is_asked_for in (64, False), (1024, True):  # 32 KiB, and 512
        w = np.full((512, columns), 3, np.int8)
        flag = f"--iree-hal-dump-executable-intermediates-to={tmp_path}/{columns}"
        options = CompileOptions(
            kernels="avx512vnni", target_cpu="icelake-server", iree_flags=(flag,)
        )
        compile_to_bytes(product(1, 512, columns, constant=w), options)
        [file] = (tmp_path / str(columns)).glob("*.s")
        assert ("prefetcht0" in file.read_text()) == is_asked_for


def test_kernels_for_amd_are_chosen_by_what_only_amd_has():
    vectors = ["avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vnni"]
    assert fastest_instruction_set([*vectors, "sse4a"]).name == "avx512vnni-amd"
    assert fastest_instruction_set(["avx2", "sse4a"]).name == "avx2"
    for cpu, name in [("znver4", "avx512vnni-amd"), ("znver3", "avx2"), ("haswell", "avx2")]:
        passes = compile_pipeline(CompileOptions(activations="int8", target_cpu=cpu))
        [chosen] = [each for each in passes if each.name == "select-kernels"]
        assert chosen.instructions == name


def test_code_for_any_cpu_calls_no_library_to_multiply_and_add(tmp_path):
    flag = f"--iree-hal-dump-executable-intermediates-to={tmp_path}"
    options = CompileOptions(activations="int8", target_cpu="generic", iree_flags=(flag,))
    compile_to_bytes(program(4, 256, 64, 32), options)
    [file] = tmp_path.glob("*.s")
    text = file.read_text()
    assert "mulps" in text
    assert not re.search(r"\bcallq?\s+fmaf", text)


def test_code_for_arm_has_dot_products(tmp_path):
    flags = (
        "--iree-llvmcpu-target-triple=aarch64-linux-gnu",
        "--iree-llvmcpu-target-cpu=cortex-a76",
        f"--iree-hal-dump-executable-intermediates-to={tmp_path}",
    )
    options = CompileOptions(activations="int8", iree_flags=flags)
    compile_to_bytes(program(4, 256, 64, 32, "i8"), options)
    [file] = tmp_path.glob("*.s")
    assert len(re.findall(r"\bsdot\b", file.read_text())) >= 8


def test_the_fastest_instructions_are_chosen():
    assert (
        fastest_instruction_set(
            ["avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vnni"]
        ).name
        == "avx512vnni"
    )
    assert fastest_instruction_set(["avx2", "avxvnni"]).name == "avxvnni"
    assert fastest_instruction_set(["avx2", "fma"]).name == "avx2"
    assert fastest_instruction_set(["neon", "dotprod"]).name == "neon-dotprod"
    assert fastest_instruction_set([]).name == "portable"


def test_instructions_that_a_cpu_does_not_have_are_refused():
    options = CompileOptions(activations="int8", kernels="avx512vnni", target_cpu="znver3")
    needed = "avx512bw, avx512dq, avx512f, avx512vnni"
    with pytest.raises(UsageError, match=f"need {needed}, which the CPU 'znver3' does not have"):
        compile_to_bytes(program(4, 256, 64, 32), options)


# -- tiles ----------------------------------------------------------------------------------------


def in_order(tiles):
    """The vectors of a step as a product reads them first: their numbers, parts and planes."""
    every = [
        (vector, part, plane)
        for plane, count in enumerate(tiles.plane_vectors)
        for vector in range(count)
        for part in range(tiles.vectors)
    ]
    return sorted(every)


@pytest.mark.parametrize(
    ("bits", "block", "parts"), [*itertools.product([2, 3, 4, 5, 6, 8], [16, 32, 128], [1, 2])]
)
def test_every_integer_is_where_the_layout_says(bits, block, parts):
    tiles = Tiles(bits, block, n=20, k=256, lanes=8, vectors=parts)
    random = np.random.default_rng(bits * block + parts)
    integers = random.integers(0, 1 << bits, (20, 256)).astype(np.uint8)
    packed = tiles.pack(integers)
    assert packed.shape == (tiles.count, tiles.steps, tiles.step_bytes)
    assert packed.nbytes == tiles.count * tiles.nr * 256 * bits // 8
    for column, k in random.integers((0, 0), (20, 256), (100, 2)):
        tile, lane = divmod(column, tiles.nr)
        part, lane = divmod(lane, tiles.lanes)
        step, place = divmod(k, tiles.k_per_step)
        found, low = 0, 0
        vectors = in_order(tiles)
        for plane, (bits, count) in enumerate(
            zip(tiles.plane_bits, tiles.plane_vectors, strict=True)
        ):
            field, vector = divmod(place // 4, count)
            first = vectors.index((vector, part, plane))
            byte = packed[tile, step, (first * tiles.lanes + lane) * 4 + place % 4]
            found |= (int(byte) >> (bits * field) & ((1 << bits) - 1)) << low
            low += bits
        assert found == integers[column, k]


@pytest.mark.parametrize("block", [8, 32, 128])
@pytest.mark.parametrize("outer", [(1, 1), (4, 4), (2, 4), (64, 8)])
def test_what_blocks_have_is_where_the_layout_says(block, outer):
    """A turn after another, and before the first what several blocks have; nothing between."""
    tiles = Tiles(4, block, n=20, k=64 * block, lanes=8, vectors=2)
    kinds = [ScaleEncoding(U8, F16, n) if n > 1 else ScaleEncoding(F32) for n in outer]
    stored = PackedWeight(tiles, kinds[0], None, kinds[1], is_planar=False)
    random = np.random.default_rng(block)
    integers = random.integers(0, 16, (20, tiles.k)).astype(np.uint8)
    given, counts = [], []
    for element, several in [*kinds[0].fields, (U8, 1), *kinds[1].fields]:
        of_columns = random.integers(0, 256, (20, 64 // several)).astype(element.dtype)
        given.append(of_columns)
        counts.append(several)
    fields = [tiles.pack_block_parameters(each, n) for each, n in zip(given, counts, strict=True)]
    packed = stored.pack(integers, fields)
    turn = max(block, tiles.k_per_step)
    unit = max(turn, block * max(counts))
    steps = tiles.pack(integers).reshape((2, tiles.k // turn, -1))
    for tile in range(2):
        expected = b""
        for start in range(0, tiles.k, unit):
            for field, several in zip(fields, counts, strict=True):
                if several > 1:
                    size = block * several
                    expected += field[tile, start // size : (start + unit) // size].tobytes()
            for place in range(start, start + unit, turn):
                expected += steps[tile, place // turn].tobytes()
                for number in range(place // block, (place + turn) // block):
                    for field, several in zip(fields, counts, strict=True):
                        expected += field[tile, number].tobytes() if several == 1 else b""
        assert packed[tile].tobytes() == expected


# -- batch dimensions -----------------------------------------------------------------------------


def batched(rows, batches, depth, columns, block, storage="i4"):
    """A product of rows of each batch with the weight of that; rows may be "?"."""
    x, q = f"{batches}x{rows}x{depth}xf32", f"{batches}x{columns}x{depth}x{storage}"
    s, y = f"{batches}x{columns}x{depth // block}xf32", f"{batches}x{rows}x{columns}xf32"
    return f"""
func.func @main(%x: tensor<{x}>, %q: tensor<{q}>, %s: tensor<{s}>, %o: tensor<{s}>)
    -> tensor<{y}> {{
  %w = "subquant.dequantize"(%q, %s, %o) {{block_sizes = array<i64: 1, 1, {block}>,
      operandSegmentSizes = array<i32: 1, 1, 0, 1>, quantized_type = !quant.any<{storage}:f32>}}
      : (tensor<{q}>, tensor<{s}>, tensor<{s}>) -> tensor<{batches}x{columns}x{depth}xf32>
  %y = stablehlo.dot_general %x, %w, batching_dims = [0] x [0], contracting_dims = [2] x [2]
      : (tensor<{x}>, tensor<{batches}x{columns}x{depth}xf32>) -> tensor<{y}>
  return %y : tensor<{y}>
}}"""


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize(
    ("case", "is_dynamic"),
    [
        ((1, 3, 256, 230, 32), False),
        ((13, 2, 256, 100, 64), True),
        ((5, 20, 128, 24, 16), False),
        ((9, 2, 256, 40, 32, "i5"), True),
        ((37, 2, 640, 100, 32), False),
        ((37, 2, 640, 100, 32, "i5"), True),
    ],
    ids=str,
)
@pytest.mark.share(4)
def test_batches_have_weights_of_their_own(case, is_dynamic, instructions):
    rows, batches, depth, columns, block, *storage = case
    text = batched("?" if is_dynamic else rows, *case[1:])
    options = {"activations": "int8", "kernels": instructions, "fuse_below_macs": 0}
    main = main_of(text, **options)
    assert text_of_main(text, **options).count('"flow.dispatch"') == 2
    each = [
        arrays(rows, depth, columns, block, *storage, offsets=True, seed=seed)
        for seed in range(batches)
    ]
    expected = np.stack([reference(x, q, s, block, None, o) for x, q, s, o in each])
    turned = [[x, *(part.T for part in weight)] for x, *weight in each]
    found = main(*(np.stack(parts) for parts in zip(*turned, strict=True)))
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()


def test_batches_of_reals_meet_parameters_of_their_own(tmp_path):
    """The batch is the middle axis of the activations, and the last of the result."""
    rows, batches, depth, columns, block = 3, 4, 256, 40, 32
    random = np.random.default_rng(3)
    x = random.standard_normal((rows, batches, depth)).astype(np.float32)
    q = random.integers(-128, 128, (columns, batches, depth)).astype(np.int8)
    s = random.uniform(0.5, 2, (columns, batches, depth // block)).astype(np.float32)
    types = (
        f"tensor<{columns}x{batches}x{depth}xi8>",
        f"tensor<{columns}x{batches}x{depth // block}xf32>",
    )
    globals_ = "".join(
        f'"util.global"() {{sym_name = "{name}", sym_visibility = "private", type = {type_}, '
        f'initial_value = #flow.parameter.named<"model"::"{name}"> : {type_}}} : () -> ()\n'
        for name, type_ in zip("qs", types, strict=True)
    )
    text = f"""
{globals_}
func.func @main(%x: tensor<{rows}x{batches}x{depth}xf32>)
    -> tensor<{rows}x{columns}x{batches}xf32> {{
  %q = "util.global.load"() {{global = @q}} : () -> {types[0]}
  %s = "util.global.load"() {{global = @s}} : () -> {types[1]}
  %w = "subquant.dequantize"(%q, %s) {{block_sizes = array<i64: 1, 1, {block}>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>}}
      : ({types[0]}, {types[1]}) -> tensor<{columns}x{batches}x{depth}xf32>
  %y = stablehlo.dot_general %x, %w, batching_dims = [1] x [1], contracting_dims = [2] x [2]
      : (tensor<{rows}x{batches}x{depth}xf32>, tensor<{columns}x{batches}x{depth}xf32>)
      -> tensor<{batches}x{rows}x{columns}xf32>
  %t = stablehlo.transpose %y, dims = [1, 2, 0]
      : (tensor<{batches}x{rows}x{columns}xf32>) -> tensor<{rows}x{columns}x{batches}xf32>
  return %t : tensor<{rows}x{columns}x{batches}xf32>
}}"""
    assert text_of_main(text).count('"flow.dispatch"') == 1
    with create_archive(tmp_path / "x.irpa") as archive:
        archive.add_tensor("q", q)
        archive.add_tensor("s", s)
    real = q * np.repeat(s.astype(np.float64), block, 2)
    expected = np.einsum("mbk,nbk->mnb", x.astype(np.float64), real)
    bound = 2.0**-24 * (depth + 3) * np.einsum("mbk,nbk->mnb", np.abs(x), np.abs(real))
    parameters = {"model": tmp_path / "x.irpa"}
    plain = subquant.compile(text, parameters=parameters).main(x)
    laid_out = subquant.compile(text, weights=parameters, archive=tmp_path / "y.irpa").main(x)
    for found in (plain, laid_out):
        assert (np.abs(found - expected) <= bound).all()


# -- rows that are counted at run time ------------------------------------------------------------


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize(("depth", "columns"), [(128, 70), (130, 50)])
@pytest.mark.share(3)
def test_matrices_of_any_rows_are_exact(depth, columns, instructions):
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


def test_quantized_matrices_of_any_rows():
    """Zero points are corrected beside the kernel, and sums are requantized after it."""
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
