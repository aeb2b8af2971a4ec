"""Blockwise kernels: all instruction sets and weight layouts compute the same numbers.

Most weights are arguments, so that the compiler cannot compute with them. The reference computes in
float64 and integers of the whole weight, without tiles or bit planes.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import subquant
from block_programs import (
    arrays,
    exact_product,
    named,
    program,
    quantized_scales_program,
    reference,
    with_constants,
)
from devices import main_of
from instruction_sets import EVERY, SOME
from programs import lowered_text
from subquant.formats.irpa_writer import create_archive


def check(case, instructions, *, transposed=False, is_known=False, **parameters):
    tensors = arrays(*case, **parameters)
    text = program(*case, **parameters, transposed=transposed)
    oriented = [tensors[0], *(each.T.copy() for each in tensors[1:])] if transposed else tensors
    if is_known:
        text = with_constants(text, *oriented[1:])
        oriented = oriented[:1]
    main = main_of(text, activations="int8", kernels=instructions)
    expected = reference(block=case[3], **named(tensors, **parameters))
    actual = main(*oriented)
    # Each block adds a rounding of f32 or two; sums of few hundred blocks stay far below this.
    assert np.abs(actual - expected).max() <= 2e-6 * np.abs(expected).max()


def text_of_main(text, **options):
    """Return the lowered function `main`, without kernels."""
    lowered = lowered_text(text, **options)
    return lowered[lowered.index("func.func @main(") :]


CASES = [
    (1, 256, 128, 32),
    (1, 256, 230, 32),  # tiles that are read side by side, and remaining ones
    (2, 512, 150, 128),
    (3, 512, 64, 32, "u4"),
    (13, 256, 100, 64),  # ragged M and N, a block of two steps
    (37, 256, 100, 64),  # five workgroups quantize rows, the last one fewer
    (6, 512, 48, 16),  # two blocks a step
    (7, 1024, 40, 1024),  # K is one block
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
@pytest.mark.share(28)
def test_blockwise_gemm_is_exact(case, is_known, instructions):
    check(case, instructions, is_known=is_known)


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize(("zeros", "offsets"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("storage", ["i4", "u5"])
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.share(16)
def test_zero_points_and_offsets(storage, zeros, offsets, is_known, instructions):
    case = (5, 256, 80, 32, storage)
    check(case, instructions, zeros=zeros, offsets=offsets, transposed=True, is_known=is_known)


GEMM_CASES = [
    (37, 1312, 100, 32),  # a shorter panel, a remaining tile and row
    (70, 640, 72, 64, "u5"),  # more rows than accumulators in memory
    (40, 1024, 40, 16, "i6"),
    (64, 768, 33, 32, "u2"),
    (48, 2048, 40, 2048),  # a block longer than a panel
    (35, 512, 64, 32, "u8"),  # nothing to unpack
]


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize(("zeros", "offsets"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("case", GEMM_CASES, ids=str)
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.share(36)
def test_gemm_with_unpacked_panels(case, zeros, offsets, is_known, instructions):
    check(case, instructions, zeros=zeros, offsets=offsets, is_known=is_known)


def test_panels_are_unpacked_for_many_rows_only():
    for case, is_unpacked in [
        ((64, 512, 64, 32), True),
        (("?", 512, 64, 32), True),
        ((8, 512, 64, 32), False),
        ((64, 512, 64, 32, "u8"), False),
        ((64, 2048, 64, 2048), False),
    ]:
        options = {"activations": "int8", "kernels": "avx2", "target_cpu": "haswell"}
        text = lowered_text(program(*case), **options)
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
@pytest.mark.share(4)
def test_f32_activations(case, zeros, offsets, instructions):
    parameters = {"zeros": zeros, "offsets": offsets}
    inputs, of_arguments = arrays(*case, **parameters), program(*case, **parameters)
    text = with_constants(of_arguments, *inputs[1:])
    # Only constant weights: IREE's loops compute with an argument.
    assert "@blockwise_gemm" not in text_of_main(of_arguments)
    assert "@blockwise_gemm" in text_of_main(text, kernels=instructions)
    expected, magnitude = exact_product(block=case[3], **named(inputs, **parameters))
    actual = main_of(text, kernels=instructions)(inputs[0])
    # Each multiplication and addition rounds by half a unit in the last place.
    assert (np.abs(actual - expected) <= 2.0**-24 * (case[1] + 3) * magnitude).all()


@pytest.mark.long
@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("storage", ["u2", "u3", "u4", "u5", "u6", "u8", "i8"])
@pytest.mark.parametrize("rows", [3, 36])
@pytest.mark.share(50)
def test_extreme_products_do_not_saturate(storage, rows, instructions):
    """All products have the greatest magnitude; the sums of a block are exact in f32."""
    depth, columns, block = 512, 32, 128
    bits, signed = int(storage[1:]), storage[0] == "i"
    extreme = -(1 << (bits - 1)) if signed else (1 << bits) - 1
    x = np.full((rows, depth), 127, np.float32)
    q = np.full((depth, columns), extreme, np.int8 if signed else np.uint8)
    scales = np.ones((depth // block, columns), np.float32)
    text = program(rows, depth, columns, block, storage)
    main = main_of(text, activations="int8", kernels=instructions)
    for tensors in (x, -x):
        expected = np.full((rows, columns), float(tensors[0, 0]) * extreme * depth)
        np.testing.assert_allclose(main(tensors, q, scales), expected, rtol=3e-7)


@pytest.mark.parametrize("instructions", SOME)
def test_activations_are_quantized_to_nearest_even(instructions):
    """A block with an element that is not finite has the integers 0, and its scale gives NaN."""
    block, depth = 64, 256
    steps = np.arange(-63, 64, 0.5, dtype=np.float32)
    large = np.resize([1e-45, -1e-38, 0, 3e38, 1, -3e38], depth).astype(np.float32)
    x = np.tile(np.float32(127), (5, depth))
    x[0, : len(steps)] = steps
    x[0, ::block] = 127  # the scale is 1
    x[1:3] = -x[0], large
    x[3:, 5] = math.nan, -math.inf
    # The weight is the identity: the result is integers times scales.
    q, scales = np.eye(depth, dtype=np.int8), np.ones((depth // block, depth), np.float32)
    text = with_constants(program(5, depth, depth, block, "i4"), q, scales)
    actual = main_of(text, activations="int8", kernels=instructions)(x)
    np.testing.assert_array_equal(actual[:2], np.rint(x[:2]))
    assert (np.abs(actual[2] - large) <= large.max() / 127 / 2).all()
    assert np.isnan(actual[3:]).all()


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize(("inner", "transposed"), [("u6", True), ("i8", False), ("u8", True)])
@pytest.mark.parametrize(
    ("block", "blocks", "is_known"),
    [(32, (8, 8), False), (32, (8, 8), True), (32, (4, 8), True), (16, (16, 32), True)],
)
@pytest.mark.parametrize("rows", [4, 35])
@pytest.mark.share(84)
def test_quantized_scales_and_offsets(
    block, blocks, is_known, inner, transposed, rows, instructions
):
    """Integers times an f16 for several blocks, as GGUF's K-quants have them."""
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
    of_rows = block * blocks[0]  # activations share the scale of a superblock
    expected = reference(x, q, scales, block, offsets=offsets, activation_block=of_rows)
    text = quantized_scales_program(
        *(rows, depth, columns, block, blocks, inner), transposed=transposed
    )
    stored = codes.astype(np.int8 if inner[0] == "i" else np.uint8)
    tensors = [q, *stored, *outer]
    tensors = [each.T.copy() for each in tensors] if transposed else tensors
    if is_known:
        text, tensors = with_constants(text, *tensors), []
    actual = main_of(text, activations="int8", kernels=instructions)(x, *tensors)
    assert np.abs(actual - expected).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.share(8)
def test_dynamic_m(instructions):
    text = program("?", 256, 96, 32)
    main = main_of(text, activations="int8", kernels=instructions)
    for rows in (0, 1, 5, 6, 14, 45, 100):
        tensors = arrays(rows, 256, 96, 32, seed=rows)
        expected = reference(*tensors, 32)
        actual = main(*tensors)
        assert actual.shape == (rows, 96)
        np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_constant_weights_are_packed_by_the_compiler():
    case = (2, 256, 64, 32)
    x, q, scales = arrays(*case)
    text = with_constants(program(*case), q, scales)
    calls = text_of_main(text, activations="int8", kernels="portable")
    assert "flow.dispatch" in calls
    # 8 tiles of 8 steps: 128 bytes of integers, and an f32 scale for each of 8 columns.
    assert f"tensor<8x{8 * (128 + 8 * 4)}xi8>" in calls
    assert "stablehlo.transpose" not in calls
    actual = subquant.compile(text, activations="int8").main(x)
    np.testing.assert_allclose(actual, reference(x, q, scales, 32), atol=1e-3)


def test_equal_contractions_share_an_executable():
    case = (2, 256, 64, 32)
    text = program(*case)
    second = re.search(r"  %w = .*?(?=  return)", text, re.DOTALL).group()
    second = second.replace("%w", "%w2").replace("%y", "%y2").replace("%x", "%y3")
    text = text.replace(
        "  return %y",
        "  %y3 = stablehlo.concatenate %y, %y, %y, %y, dim = 1 : (tensor<2x64xf32>, "
        "tensor<2x64xf32>, tensor<2x64xf32>, tensor<2x64xf32>) -> tensor<2x256xf32>\n"
        + second
        + "  return %y2",
    )
    lowered = lowered_text(text, activations="int8", fuse_below_macs=0)
    assert lowered.count('"flow.dispatch"') == 8  # four, and four in the clone for packed weights
    assert lowered.count('"stream.executable"') == 2


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


@pytest.mark.long
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
@pytest.mark.share(24)
def test_batched_weights(case, is_dynamic, instructions):
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
    oriented = [[x, *(part.T for part in weight)] for x, *weight in each]
    actual = main(*map(np.stack, zip(*oriented, strict=True)))
    assert np.abs(actual - expected).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.long
def test_batched_parameters_with_f32_activations(tmp_path):
    """The batch is the middle axis of the activations, and the last of the result."""
    rows, batches, depth, columns, block = 3, 4, 256, 40, 32
    random = np.random.default_rng(3)
    x = random.standard_normal((rows, batches, depth)).astype(np.float32)
    q = random.integers(-128, 128, (columns, batches, depth)).astype(np.int8)
    s = random.uniform(0.5, 2, (columns, batches, depth // block)).astype(np.float32)
    blocks = depth // block
    types = [f"tensor<{columns}x{batches}x{end}>" for end in (f"{depth}xi8", f"{blocks}xf32")]
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
    for actual in (plain, laid_out):
        assert (np.abs(actual - expected) <= bound).all()
