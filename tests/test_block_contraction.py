"""StableHLO contractions with dequantized sub-channel weights: one loop nest over the blocks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from block_programs import check_sum, tensor
from devices import ON_DEVICES, main_of
from numpy_evaluation import evaluate
from programs import Cast, lowered_text, run_passes
from subquant.core._mlir import ir
from subquant.numerics.casts import dequantize
from subquant.numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from subquant.runtime import Device
from subquant.transforms.base import walk


def parameters(
    shape: tuple[int, ...],
    blocks: dict[int, int],
    storage: StorageType,
    *,
    expressed: ExpressedType = ExpressedType.F32,
    seed: int = 0,
) -> QuantizationParameters:
    rng = np.random.default_rng(seed)
    grid = tuple(-(-n // blocks[a]) if a in blocks else 1 for a, n in enumerate(shape))
    low, high = storage.minimum, storage.maximum
    zero_points = rng.integers(max(low, -50), min(high, 50) + 1, grid)
    return QuantizationParameters(
        storage,
        expressed,
        tuple(blocks),
        tuple(blocks.values()),
        rng.uniform(0.01, 0.1, grid),
        zero_points,
        "sub-channel",
    )


def stored(shape: tuple[int, ...], storage: StorageType, seed: int = 1) -> np.ndarray:
    values = np.random.default_rng(seed).integers(storage.minimum, storage.maximum + 1, shape)
    return values.astype(storage.dtype)


I4, U4, I8, U8 = StorageType(4), StorageType(4, False), StorageType(8), StorageType(8, False)
# The operands' shapes and indices, the weight's blocks and its storage.
DOTS = {
    "contracted": (((5, 64), (64, 24)), "mk,kn->mn", {0: 32}, I4),
    "contracted, unsigned": (((5, 64), (64, 24)), "mk,kn->mn", {0: 16, 1: 1}, U4),
    "rows are outputs": (((5, 64), (24, 64)), "mk,nk->mn", {0: 1, 1: 32}, I8),
    "both axes": (((5, 64), (24, 64)), "mk,nk->mn", {0: 8, 1: 16}, U8),
    "outputs only": (((5, 64), (64, 24)), "mk,kn->mn", {1: 6}, I4),
    "matrix and vector": (((64,), (24, 64)), "k,nk->n", {0: 1, 1: 32}, I4),
    "batches": (((3, 5, 32), (3, 32, 7)), "bmk,bkn->bmn", {0: 1, 1: 8}, I8),
    "two contracted": (((5, 8, 6), (6, 8, 9)), "mkl,lkn->mn", {0: 3, 1: 4}, I4),
}

LARGE = {
    "many rows": (((4, 256), (256, 256)), "mk,kn->mn", {0: 32}, I4),
    "many rows, outputs": (((6, 256), (256, 256)), "mk,nk->mn", {0: 1, 1: 32}, U4),
    "two planes": (((5, 256), (256, 256)), "mk,kn->mn", {0: 16, 1: 8}, StorageType(5)),
    "large batches": (((2, 5, 128), (2, 128, 256)), "bmk,bkn->bmn", {0: 1, 1: 8}, I8),
    "two large contracted": (((4, 8, 32), (32, 8, 256)), "mkl,lkn->mn", {0: 8, 1: 4}, U8),
}
"""Weights whose reals are computed once, for many rows."""


def cast_weight(
    params: QuantizationParameters, shape: tuple[int, ...], x: str, operation: str, out: str
) -> str:
    """A function of `x` and the storage %s, in which `operation` reads the weight's reals, %w."""
    stored, quantized = tensor(shape, f"i{params.storage.width}"), tensor(shape, "!w")
    return f"""
!w = {Cast(params, shape).mlir_type()}
func.func @main({x}%s: {stored}) -> {out} {{
  %q = quant.scast %s : {stored} to {quantized}
  %w = quant.dcast %q : {quantized} to {tensor(shape, params.expressed.value)}
  {operation} -> {out}
  return %y : {out}
}}
"""


def dot_of(
    case: str, expressed: ExpressedType = ExpressedType.F32, dynamic: bool = False
) -> tuple[str, np.ndarray, np.ndarray, Callable[..., None]]:
    """A program, its arguments, and the check of its results."""
    shapes, rule, blocks, storage = (DOTS | LARGE)[case]
    params = parameters(shapes[1], blocks, storage, expressed=expressed)
    indices = re.split(",|->", rule)
    sizes: dict[str, Any] = dict(zip(indices[0] + indices[1], shapes[0] + shapes[1], strict=True))
    if dynamic:
        sizes[rule[0]] = "?"
    left, right, out = (tensor([sizes[c] for c in each], expressed.value) for each in indices)
    shared = [c for c in indices[1] if c in indices[0]]
    batch, contracted = (
        " x ".join(
            str([each.index(c) for c in shared if (c in indices[2]) == is_batch])
            for each in indices[:2]
        )
        for is_batch in (True, False)
    )
    operation = f"""%y = stablehlo.dot_general %x, %w,
      batching_dims = {batch}, contracting_dims = {contracted} : ({left}, {right})"""
    text = cast_weight(params, shapes[1], f"%x: {left}, ", operation, out)
    x = np.random.default_rng(2).standard_normal(shapes[0]).astype(expressed.dtype)
    q = stored(shapes[1], storage)
    check = partial(check_sum, w=dequantize(q, params), rule=rule)
    return text, x, q.astype(np.int8) if storage.width == 8 else q, check


def check_no_float_weight(text: str, shape: tuple[int, ...]) -> None:
    """One loop nest holds the whole contraction, and no float tensor has the weight's size."""
    size = math.prod(shape)
    lowered = lowered_text(text)
    assert "linalg.generic" in lowered
    assert '"reduction"' in lowered
    assert "stablehlo.dot" not in lowered
    assert "stablehlo.convolution" not in lowered
    for dims in re.findall(r"tensor<((?:\d+x)+)f32>", lowered):
        assert math.prod(map(int, dims[:-1].split("x"))) != size, lowered


@pytest.mark.parametrize("case", DOTS)
@ON_DEVICES
@pytest.mark.share(4)
def test_dots(case: str, device: Device) -> None:
    text, x, q, check = dot_of(case)
    main = main_of(text, device)
    check_no_float_weight(text, DOTS[case][0][1])
    check(main(x, q), x)


def test_a_dynamic_batch(cpu: Device) -> None:
    text, _, q, check = dot_of("contracted", dynamic=True)
    main = main_of(text, cpu)
    check_no_float_weight(text, DOTS["contracted"][0][1])
    for rows in (1, 7):
        x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
        check(main(x, q), x)


@pytest.mark.parametrize("expressed", [ExpressedType.F16, ExpressedType.BF16, ExpressedType.F64])
def test_other_expressed_types(expressed: ExpressedType, cpu: Device) -> None:
    text, x, q, check = dot_of("contracted", expressed)
    # Products and sums are f32 or f64; the result is rounded once to the expressed type.
    unit = {"f16": 2.0**-11, "bf16": 2.0**-8, "f64": 2.0**-53}[expressed.value]
    check(main_of(text, cpu)(x, q), x, unit=unit)


WINDOWS = [
    ((9, 7), (3, 2), (2, 1), ((1, 1), (2, 0)), (1, 2)),
    ((4, 6), (2, 2), (3, 3), ((1, 1), (0, 0)), (2, 1)),  # one position, two positions
    ((3, 5), (2, 3), (2, 4), ((0, 0), (0, 0)), (1, 1)),  # and elements after the window
    ((5, 8), (1, 2), (9, 5), ((-1, 3), (1, -1)), (3, 3)),
    ((3, 5), (1, 2), (1, 1), ((-4, 0), (0, 0)), (1, 1)),  # cuts more than there is
    ((3, 1), (1, 1), (1, 1), ((-4, 3), (0, 0)), (1, 1)),  # and then reads zeros alone
]
"""Extents, kernel, stride, padding and dilation of the two axes of space."""


def convolution_of(
    window: Any, blocks: dict[int, int], features: int
) -> tuple[str, np.ndarray, np.ndarray, Callable[[Any], None]]:
    """A program, its arguments, and the check of its result."""
    extents, kernel, stride, padding, dilation = window
    shape = (*kernel, features, 6)
    params = parameters(shape, blocks, I8, seed=4)
    counts = [
        max(n + low + high - (k - 1) * d - 1 + s, 0) // s
        for n, (low, high), k, d, s in zip(extents, padding, kernel, dilation, stride, strict=True)
    ]
    x_type, out = tensor((2, *extents, features), "f32"), tensor((2, *counts, 6), "f32")
    operation = f"""%y = stablehlo.convolution(%x, %w)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {{stride = {list(stride)}, pad = {[list(p) for p in padding]},
                rhs_dilate = {list(dilation)}}}
      {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
      : ({x_type}, {tensor(shape, "f32")})"""
    x = np.random.default_rng(5).standard_normal((2, *extents, features)).astype(np.float32)
    q = stored(shape, I8)
    w = dequantize(q, params).astype(np.float64)
    spread = [(max(low, 0), max(high, 0)) for low, high in padding]
    padded = np.pad(x.astype(np.float64), ((0, 0), *spread, (0, 0)))
    padded = padded[:, max(-padding[0][0], 0) :, max(-padding[1][0], 0) :]
    expected, total = np.zeros((2, *counts, 6)), np.zeros((2, *counts, 6))
    for i, j, row, column in np.ndindex(*kernel, *counts):
        elements = padded[
            :, row * stride[0] + i * dilation[0], column * stride[1] + j * dilation[1]
        ]
        expected[:, row, column] += elements @ w[i, j]
        total[:, row, column] += abs(elements) @ abs(w[i, j])

    def check(got: Any) -> None:
        assert got.shape == expected.shape
        assert (abs(got - expected) <= 50 * 2.0**-24 * total).all()

    return cast_weight(params, shape, f"%x: {x_type}, ", operation, out), x, q, check


@ON_DEVICES
@pytest.mark.parametrize("blocks", [{2: 4, 3: 1}, {2: 8}, {3: 3}, {0: 1, 2: 2}])
@pytest.mark.share(4)
def test_convolutions(blocks: dict[int, int], device: Device) -> None:
    text, x, q, check = convolution_of(WINDOWS[0], blocks, 8)
    main = main_of(text, device)
    check_no_float_weight(text, (3, 2, 8, 6))
    check(main(x, q))


@ON_DEVICES
@pytest.mark.parametrize("layout", ["bf01", "fb01", "b01f", "0bf1"])
def test_features_before_positions(layout: str, device: Device) -> None:
    """Small integers, so that every order of a sum gives the same."""
    result = tensor(tuple({"b": 2, "f": 6, "0": 7, "1": 6}[axis] for axis in layout), "f32")
    text = f"""
func.func @main(%x: tensor<2x8x9x7xf32>, %q: tensor<6x8x3x2xi8>, %s: tensor<6x2x1x1xf32>)
    -> {result} {{
  %w = "subquant.dequantize"(%q, %s) {{block_sizes = array<i64: 1, 4, 3, 2>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>}}
      : (tensor<6x8x3x2xi8>, tensor<6x2x1x1xf32>) -> tensor<6x8x3x2xf32>
  %y = stablehlo.convolution(%x, %w)
      dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[{", ".join(layout)}], window = {{}}
      {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
      : (tensor<2x8x9x7xf32>, tensor<6x8x3x2xf32>) -> {result}
  return %y : {result}
}}
"""
    main = main_of(text, device)
    check_no_float_weight(text, (6, 8, 3, 2))
    rng = np.random.default_rng(11)
    x = rng.integers(-4, 5, (2, 8, 9, 7)).astype(np.float32)
    q = rng.integers(-4, 5, (6, 8, 3, 2)).astype(np.int8)
    s = rng.integers(1, 4, (6, 2, 1, 1)).astype(np.float32)
    w = q * np.repeat(s, 4, 1)
    expected = np.zeros((2, 6, 7, 6))
    for i, j in np.ndindex(3, 2):
        expected += np.einsum("bchw,oc->bohw", x[:, :, i : i + 7, j : j + 6], w[:, :, i, j])
    expected = expected.transpose(["bf01".index(axis) for axis in layout])
    np.testing.assert_array_equal(main(x, q, s), expected)


@ON_DEVICES
@pytest.mark.parametrize("loops", ["m, n, k", "n, m, k", "k, n, m", "n, k, m"])
def test_loops_in_any_order(loops: str, device: Device) -> None:
    maps = [f"affine_map<({loops}) -> ({axes})>" for axes in ("m, k", "k, n", "m, n")]
    text = f"""
func.func @main(%x: tensor<4x4xf32>, %q: tensor<4x4xi8>, %s: tensor<2x4xf32>) -> tensor<4x4xf32> {{
  %y = "subquant.block_contraction"(%x, %q, %s) {{block_sizes = array<i64: 2, 1>,
      indexing_maps = [{", ".join(maps)}], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>,
      quantized_type = !quant.any<i8:f32>}}
      : (tensor<4x4xf32>, tensor<4x4xi8>, tensor<2x4xf32>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}}
"""
    rng = np.random.default_rng(12)
    x, q = rng.integers(1, 5, (2, 4, 4))
    s = rng.integers(1, 4, (2, 4)).astype(np.float32)
    got = main_of(text, device)(x.astype(np.float32), q.astype(np.int8), s)
    np.testing.assert_array_equal(got, x @ (q * np.repeat(s, 2, 0)))


def test_scales_as_operands(cpu: Device) -> None:
    text = """
func.func @main(%x: tensor<3x64xf32>, %q: tensor<64x8xi4>, %s: tensor<2x8xf16>, %z: tensor<2x8xi4>)
    -> tensor<3x8xf32> {
  %w = "subquant.dequantize"(%q, %s, %z)
      {block_sizes = array<i64: 32, 1>,
      operandSegmentSizes = array<i32: 1, 1, 1, 0>,
      quantized_type = !quant.any<i4<-8:7>:f32>}
      : (tensor<64x8xi4>, tensor<2x8xf16>, tensor<2x8xi4>) -> tensor<64x8xf32>
  %y = "stablehlo.dot"(%x, %w) : (tensor<3x64xf32>, tensor<64x8xf32>) -> tensor<3x8xf32>
  return %y : tensor<3x8xf32>
}
"""
    main = main_of(text, cpu)
    check_no_float_weight(text, (64, 8))
    rng = np.random.default_rng(6)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    q, z = rng.integers(-8, 8, (64, 8)).astype(np.int8), rng.integers(-8, 8, (2, 8)).astype(np.int8)
    s = rng.uniform(0.01, 0.1, (2, 8)).astype(np.float16)
    w = (q - np.repeat(z, 32, 0).astype(np.int32)) * np.repeat(s, 32, 0).astype(np.float64)
    check_sum(main(x, q, s, z), x, w, "mk,kn->mn")


def test_what_is_not_recognised_is_still_right(cpu: Device) -> None:
    """Groups are left to the lowering of the cast."""
    params = parameters((1, 4, 8), {1: 2}, I8)
    operation = """%y = stablehlo.convolution(%x, %w)
      dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 2 : i64}
      : (tensor<1x5x8xf32>, tensor<1x4x8xf32>)"""
    x_argument = "%x: tensor<1x5x8xf32>, "
    text = cast_weight(params, (1, 4, 8), x_argument, operation, "tensor<1x5x8xf32>")
    x = np.random.default_rng(7).standard_normal((1, 5, 8)).astype(np.float32)
    q = stored((1, 4, 8), I8)
    w = dequantize(q, params)[0].astype(np.float64)
    expected = np.concatenate([x[0, :, :4] @ w[:, :4], x[0, :, 4:] @ w[:, 4:]], 1)[None]
    np.testing.assert_allclose(main_of(text, cpu)(x, q), expected, rtol=1e-5, atol=1e-4)


@ON_DEVICES
@pytest.mark.parametrize("case", LARGE)
@pytest.mark.share(4)
def test_many_rows_are_multiplied_by_reals_computed_once(case: str, device: Device) -> None:
    text, x, q, check = dot_of(case)
    target = "vulkan" if device.is_vulkan else "llvm-cpu"
    main = main_of(text, device, kernels="none")
    lowered = lowered_text(text, target, kernels="none")
    assert tensor(LARGE[case][0][1], "f32") in lowered
    if target == "llvm-cpu":  # elsewhere some are loops of their own
        assert lowered.count("stablehlo.dot_general") == 1
    check(main(x, q), x)


@pytest.mark.parametrize("reason", ["few rows", "integers", "dynamic"])
def test_where_rows_are_few_or_unknown_the_nest_stays(reason: str) -> None:
    text, *_ = dot_of("many rows", dynamic=reason == "dynamic")
    if reason == "few rows":
        text = text.replace("tensor<4x", "tensor<3x")
    activations = "int8" if reason == "integers" else "float"
    lowered = lowered_text(text, activations=activations, kernels="none")
    assert "stablehlo.dot" not in lowered
    assert '"reduction", "reduction"' in lowered


@pytest.mark.parametrize("on_left", [False, True])
def test_a_transposed_weight_is_read_as_it_is_stored(on_left: bool) -> None:
    params = parameters((6, 3, 8), {0: 3, 2: 4}, I8)
    x_type, transposed = "tensor<5x6x8xf32>", "tensor<8x3x6xf32>"
    out, dot = (
        ("3x5", f"%t, %x, contracting_dims = [0, 2] x [2, 1] : ({transposed}, {x_type})")
        if on_left
        else ("5x3", f"%x, %t, contracting_dims = [1, 2] x [2, 0] : ({x_type}, {transposed})")
    )
    operation = f"""%t = stablehlo.transpose %w, dims = [2, 1, 0]
      : (tensor<6x3x8xf32>) -> {transposed}
  %y = stablehlo.dot_general {dot}"""
    text = cast_weight(params, (6, 3, 8), f"%x: {x_type}, ", operation, f"tensor<{out}xf32>")
    nest = nest_of(text)
    assert "stablehlo.transpose" not in str(nest)
    x = np.random.default_rng(2).standard_normal((5, 6, 8)).astype(np.float32)
    q = stored((6, 3, 8), I8)
    (got,) = evaluate(nest, "main", [x, q])
    expected = np.einsum("mkj,knj->mn", x.astype(np.float64), dequantize(q, params))
    np.testing.assert_allclose(got, expected.T if on_left else expected, rtol=1e-5, atol=1e-4)


NEST_PASSES = "fuse-block-contractions,lower-block-contractions,lower-quant-casts"


def nest_of(text: str) -> ir.Module:
    module, _ = run_passes(text, NEST_PASSES)
    assert "stablehlo.dot" not in str(module)
    assert "stablehlo.convolution" not in str(module)
    return module


@pytest.mark.parametrize("case", DOTS)
def test_loop_nests_of_dots(case: str) -> None:
    text, x, q, check = dot_of(case)
    (got,) = evaluate(nest_of(text), "main", [x, q])
    check(got, x)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("blocks", [{2: 4}, {3: 3}, {2: 2, 3: 1}])
def test_loop_nests_of_convolutions(window: Any, blocks: dict[int, int]) -> None:
    """The rest after the only window of an axis is cut: IREE refuses it."""
    text, x, q, check = convolution_of(window, blocks, 4)
    module = nest_of(text)
    (got,) = evaluate(module, "main", [x, q])
    check(got)
    (nest,) = [op for op in walk(module.operation) if op.name == "linalg.generic"]
    for axis, (extent, step) in enumerate(zip(window[1], window[4], strict=True), 1):
        if got.shape[axis] == 1:
            assert nest.operands[0].type.shape[axis] == (extent - 1) * step + 1


def test_a_weight_times_itself() -> None:
    """Its cast goes once, when both operands have been replaced."""
    params = parameters((4, 4), {0: 2}, I8)
    operation = """%y = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0]
      : (tensor<4x4xf32>, tensor<4x4xf32>)"""
    text = cast_weight(params, (4, 4), "", operation, "tensor<4x4xf32>")
    q = stored((4, 4), I8)
    w = dequantize(q, params)
    check_sum(evaluate(nest_of(text), "main", [q])[0], w, w, "mk,kn->mn")


def test_a_weight_of_a_dynamic_shape_keeps_its_cast() -> None:
    text = """
!w = !quant.uniform<i8:f32:{1:2}, {{0.5, 0.25:3}}>
func.func @main(%x: tensor<3x?xf32>, %w: tensor<?x4x!w>) -> tensor<3x4xf32> {
  %r = quant.dcast %w : tensor<?x4x!w> to tensor<?x4xf32>
  %y = stablehlo.dot_general %x, %r, contracting_dims = [1] x [0]
      : (tensor<3x?xf32>, tensor<?x4xf32>) -> tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}
"""
    module, _ = run_passes(text, NEST_PASSES)
    assert "stablehlo.dot_general" in str(module)
