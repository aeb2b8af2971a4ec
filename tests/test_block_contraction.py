"""StableHLO contractions with dequantized sub-channel weights: one loop nest over the blocks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devices import ON_DEVICES, main_of
from numpy_evaluation import evaluate
from programs import Cast, lowered_text, run_passes
from subquant.compiler.compilation import compile_to_bytes
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.dialects.block_contraction import activation_blocks, terms_of
from subquant.formats.irpa_writer import create_archive
from subquant.numerics.block_contraction import contract_blocks
from subquant.numerics.casts import dequantize, dequantize_blocks
from subquant.numerics.packed_integers import PLANE_BITS, pack_planes
from subquant.numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from subquant.runtime import Device, Executable
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


def tensor(shape: Sequence[Any], element: str) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"


def stored(shape: tuple[int, ...], storage: StorageType, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.integers(storage.minimum, storage.maximum + 1, shape)
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
    size = int(np.prod(shape))

    lowered = lowered_text(text)
    assert lowered.count("linalg.generic") >= 1
    assert '"reduction"' in lowered
    assert "stablehlo.dot" not in lowered
    assert "stablehlo.convolution" not in lowered
    for dims in re.findall(r"tensor<((?:\d+x)+)f32>", lowered):
        assert int(np.prod([int(n) for n in dims[:-1].split("x")])) != size, lowered


@pytest.mark.parametrize("case", DOTS)
@ON_DEVICES
@pytest.mark.share(2)
def test_dots(case: str, device: Device) -> None:
    text, x, q, check = dot_of(case)
    main = main_of(text, device)
    check_no_float_weight(text, DOTS[case][0][1])
    check(main(x, q), x)


def check_sum(got: Any, x: Any, w: Any, rule: str, unit: float = 2.0**-24) -> None:
    """Within the error of a sum of K products in any order: K * unit * sum |x| |w|."""
    x64, w64 = x.astype(np.float64), w.astype(np.float64)
    expected = np.einsum(rule, x64, w64)
    left, _, result = re.split(",|->", rule)
    count = math.prod(n for c, n in zip(left, x.shape, strict=True) if c not in result)
    bound = (count + 2) * unit * np.einsum(rule, abs(x64), abs(w64))
    assert got.shape == expected.shape
    assert (abs(got.astype(np.float64) - expected) <= bound).all()


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
@pytest.mark.share(2)
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
    np.testing.assert_array_equal(
        main(x, q, s), expected.transpose(["bf01".index(a) for a in layout])
    )


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
    got = main(x, q, s, z)
    check_sum(got, x, w, "mk,kn->mn")


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
    got = main_of(text, cpu)(x, q)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


# -- many rows ------------------------------------------------------------------------------------


@ON_DEVICES
@pytest.mark.parametrize("case", LARGE)
@pytest.mark.share(2)
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


# -- transposed weights ---------------------------------------------------------------------------


@pytest.mark.parametrize("on_left", [False, True])
def test_a_transposed_weight_is_read_as_it_is_stored(on_left: bool) -> None:
    params = parameters((6, 3, 8), {0: 3, 2: 4}, I8)
    out = "tensor<3x5xf32>" if on_left else "tensor<5x3xf32>"
    x_type, transposed = "tensor<5x6x8xf32>", "tensor<8x3x6xf32>"
    operation = f"""%t = stablehlo.transpose %w, dims = [2, 1, 0]
      : (tensor<6x3x8xf32>) -> {transposed}
  %y = stablehlo.dot_general """
    if on_left:
        operation += f"%t, %x, contracting_dims = [0, 2] x [2, 1] : ({transposed}, {x_type})"
    else:
        operation += f"%x, %t, contracting_dims = [1, 2] x [2, 0] : ({x_type}, {transposed})"
    text = cast_weight(params, (6, 3, 8), f"%x: {x_type}, ", operation, out)
    nest = nest_of(text)
    assert "stablehlo.transpose" not in str(nest)
    x = np.random.default_rng(2).standard_normal((5, 6, 8)).astype(np.float32)
    q = stored((6, 3, 8), I8)
    (got,) = evaluate(nest, "main", [x, q])
    expected = np.einsum("mkj,knj->mn", x.astype(np.float64), dequantize(q, params))
    np.testing.assert_allclose(got, expected.T if on_left else expected, rtol=1e-5, atol=1e-4)


# -- the loop nest, evaluated in NumPy ------------------------------------------------------------


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


def cases_on_devices(cases: Iterable[str], *vulkan_cases: str) -> pytest.MarkDecorator:
    """Every case on the CPU, and some on Vulkan."""
    on_vulkan = [pytest.param(case, "vulkan", marks=pytest.mark.vulkan) for case in vulkan_cases]
    pairs = [*((case, "cpu") for case in cases), *on_vulkan]
    return pytest.mark.parametrize(("case", "device_name"), pairs)


AFFINE = {
    "two batches": (
        "(b, m, n, k)", ("(b, m, k)", "(b, k, n)", "(n, b, m)"),
        (2, 3, 5, 8), (1, 4, 1), ("f32", "f32", "f16"),
    ),
    "scalar rows": (
        "(n, k, l)", ("(l, k)", "(k, n, l)", "(n)"), (6, 4, 6), (2, 3, 6), ("f32", "f16", "f32"),
    ),
    "half": ("(m, n, k)", ("(m, k)", "(n, k)", "(m, n)"), (2, 3, 16), (1, 8), ("f16",) * 3),
    "double": ("(m, n, k)", ("(k, m)", "(n, k)", "(n, m)"), (2, 4, 6), (2, 6), ("f64",) * 3),
    "window": (
        "(n, y, x, f, i, j, c)", ("(n, c, y * 2 + i, x + j * 3)", "(f, c, i, j)", "(n, f, y, x)"),
        (2, 2, 3, 4, 3, 2, 6), (2, 3, 1, 1), ("f32", "f32", "f32"),
    ),
}  # fmt: skip


PACKED = {
    "rows": (
        "(m, n, k)", ("(m, k)", "(n, k)", "(m, n)"), (3, 5, 32), (1, 16), ("f32", "f16", "f32"),
    ),
    "whole rows": (
        "(m, n, k)", ("(m, k)", "(n, k)", "(m, n)"), (3, 5, 24), (1, 24), ("f32", "f32", "f32"),
    ),
    "elements": ("(n, k)", ("(k)", "(n, k)", "(n)"), (3, 16), (1, 1), ("f32", "f32", "f32")),
    "columns": (
        "(m, n, k)", ("(k, m)", "(k, n)", "(m, n)"), (3, 16, 6), (3, 1), ("f32", "f32", "f16"),
    ),
    "columns in blocks": (
        "(b, m, n, k)", ("(m, b, k)", "(b, k, n)", "(n, m, b)"),
        (2, 3, 16, 6), (1, 2, 8), ("f32", "f32", "f32"),
    ),
    "features of a window": (
        "(n, y, f, i, c)", ("(n, y * 2 + i, c)", "(f, i, c)", "(n, f, y)"),
        (2, 3, 4, 3, 16), (2, 1, 8), ("f32", "f32", "f32"),
    ),
    "positions of a window": (
        "(y, f, c, i)", ("(y + i * 2, c)", "(f, c, i)", "(y, f)"),
        (5, 4, 6, 8), (2, 3, 1), ("f32", "f32", "f32"),
    ),
}  # fmt: skip
"""Their last axis of storage fills bytes whatever the integers' bits are."""


@cases_on_devices(AFFINE, "half", "window")
@pytest.mark.parametrize("parameters_there", ["", "z", "o", "zo"])
@pytest.mark.share(6)
def test_the_operation_beside_its_meaning(case: str, device: Device, parameters_there: str) -> None:
    """Any orders of axes, with zero points and offsets or without."""
    check_operation(AFFINE[case], device, parameters_there, StorageType.parse("u4"))


@cases_on_devices(PACKED, "rows", "columns")
@pytest.mark.parametrize("storage", ["u2", "i3", "i4", "u5", "i6", "u8<0:63>"])
@pytest.mark.share(6)
def test_planes_beside_their_meaning(case: str, device: Device, storage: str) -> None:
    """Integers in the bytes of planes, signed and unsigned."""
    type_ = StorageType.parse(storage)
    planes = PLANE_BITS[6 if type_.width == 8 else type_.width]
    there = "zo" if type_.width % 2 else ""
    check_operation(PACKED[case], device, there, type_, planes=planes)


@cases_on_devices((*PACKED, *AFFINE), "rows", "window")
@pytest.mark.share(3)
def test_activations_of_8_bits_beside_their_meaning(case: str, device: Device) -> None:
    """One scale for the elements that one scale of the weight multiplies."""
    type_ = StorageType.parse("u4")
    packed = case in PACKED
    planes = (4,) if packed else None
    check_operation((PACKED | AFFINE)[case], device, "o", type_, planes=planes, activations="int8")


def check_operation(
    form: Any,
    device: Device,
    parameters_there: str,
    storage: StorageType,
    *,
    planes: tuple[int, ...] | None = None,
    activations: str | None = None,
) -> None:
    """Run one operation, compiled, beside `contract_blocks`."""
    loops, results, extents, blocks, types = form
    maps = [f"affine_map<{loops} -> {result}>" for result in results]
    with create_context():
        indices = [terms_of(ir.Attribute.parse(map_).value) or [] for map_ in maps]
    shapes = [
        [1 + sum((extents[loop] - 1) * factor for loop, factor in axis) for axis in axes]
        for axes in indices
    ]
    grid = [n // b for n, b in zip(shapes[1], blocks, strict=True)]
    real, scale, offset = types
    rng = np.random.default_rng(11)
    q = rng.integers(storage.minimum, storage.maximum + 1, shapes[1])
    word = f"i{storage.width}"
    arguments: dict[str, tuple[str, np.ndarray]] = {
        "x": (tensor(tuple(shapes[0]), real), rng.standard_normal(shapes[0])),
        "q": (tensor(tuple(shapes[1]), word), q),
        "s": (tensor(tuple(grid), scale), rng.uniform(0.1, 1, grid)),
    }
    if "z" in parameters_there:
        z = rng.integers(storage.minimum, storage.maximum + 1, grid)
        arguments["z"] = (tensor(tuple(grid), word), z)
    if "o" in parameters_there:
        arguments["o"] = (tensor(tuple(grid), offset), rng.standard_normal(grid))
    if planes is not None:
        low, *high = pack_planes(q.astype(np.int8), planes)
        for name, plane in zip("qh", (low, *high), strict=False):
            arguments[name] = (tensor(plane.shape, "i8"), plane.view(np.int8))
    dtypes = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
    arrays = {
        name: value.astype(dtypes.get(re.findall(r"[fi]\d+", type_)[-1], np.int8))
        for name, (type_, value) in arguments.items()
    }
    there = [int(name in arguments) for name in "xqszoh"]
    signature = [type_ for type_, _ in arguments.values()]
    out = tensor(tuple(shapes[2]), real)
    more = f"plane_bits = array<i64: {', '.join(map(str, planes))}>, " if planes else ""
    more += f'activation_type = "{activations}", ' if activations else ""
    parameters = ", ".join(f"%{name}: {type_}" for name, (type_, _) in arguments.items())
    text = f"""
func.func @main({parameters}) -> {out} {{
  %y = "subquant.block_contraction"({", ".join(f"%{name}" for name in arguments)})
      {{block_sizes = array<i64: {", ".join(map(str, blocks))}>,
       indexing_maps = [{", ".join(maps)}], {more}
       operandSegmentSizes = array<i32: {", ".join(map(str, there))}>,
       quantized_type = !quant.any<{storage}:{real}>}} : ({", ".join(signature)}) -> {out}
  return %y : {out}
}}
"""
    got = main_of(text, device)(*arrays.values())
    expressed = ExpressedType(real)
    z, o = (arguments[n][1] if n in arguments else None for n in "zo")
    o = arrays.get("o")
    accumulators = None
    if activations is not None:
        result_loops = {loop for axis in indices[2] for loop, _ in axis}
        summed = set(range(len(extents))) - result_loops
        accumulators = activation_blocks(indices, summed, blocks, shapes[1])
    expected = contract_blocks(
        arrays["x"], q, arrays["s"], indices, extents, blocks, expressed, z, o, accumulators
    )
    assert got.shape == expected.shape
    # The order of a sum, products and sums of the weight fused or not, and the result's rounding.
    reals = dequantize_blocks(q, arrays["s"], z, blocks, expressed, o)
    bound = np.abs(arrays["x"]).max() * (np.abs(reals).max() + 20) * np.prod(extents)
    unit = {"f16": 2.0**-11, "f32": 2.0**-24, "f64": 2.0**-53}[real]
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=bound * unit)


# -- packed storage -------------------------------------------------------------------------------


@ON_DEVICES
@pytest.mark.parametrize("depth", [32, 24, 33])
@pytest.mark.parametrize("quantized", ["i2", "u3", "i4", "u4", "i5", "u6"])
@pytest.mark.share(6)
def test_weights_of_few_bits_are_packed(quantized: str, depth: int, device: Device) -> None:
    """Arguments whose rows fill bytes; the runtime packs them."""
    word = f"i{quantized[1:]}"
    text = f"""
func.func @main(%x: tensor<3x{depth}xf32>, %q: tensor<8x{depth}x{word}>, %s: tensor<8x1xf32>)
    -> tensor<3x8xf32> {{
  %w = "subquant.dequantize"(%q, %s) {{block_sizes = array<i64: 1, {depth}>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<{quantized}:f32>}}
      : (tensor<8x{depth}x{word}>, tensor<8x1xf32>) -> tensor<8x{depth}xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<3x{depth}xf32>, tensor<8x{depth}xf32>) -> tensor<3x8xf32>
  return %y : tensor<3x8xf32>
}}
"""
    function = main_of(text, device)
    arguments = function.signature.inputs[1]
    storage = StorageType.parse(quantized)
    bits = PLANE_BITS[storage.width]
    pinned = device.has_8bit_storage and depth != 33
    assert arguments.plane_bits == (bits if pinned else None)
    size = 8 * depth * storage.width // 8
    packed = f"{8}x{size // 8}" if len(bits) == 1 else size
    assert arguments.abi == ((f"tensor<{packed}xi8>",) if pinned else arguments.abi)
    low, count = storage.minimum, 2**storage.width
    q = (np.arange(8 * depth) * 7 % count + low).reshape((8, depth)).astype(np.int8)
    rng = np.random.default_rng(8)
    x, s = rng.standard_normal((3, depth)).astype(np.float32), rng.uniform(0.1, 1, (8, 1))
    s = s.astype(np.float32)
    check_sum(function(x, q, s), x, q * s, "mk,nk->mn")


@ON_DEVICES
@pytest.mark.parametrize("quantized", ["i2", "i3", "u4", "i5", "u6"])
@pytest.mark.share(2)
def test_packed_arguments_that_no_contraction_reads(quantized: str, device: Device) -> None:
    """Every integer that there is, written out again."""
    storage = StorageType.parse(quantized)
    text = f"""
!q = !quant.uniform<{quantized}:f32:0, {{1.0, 0.5:1, 2.0}}>
func.func @main(%q: tensor<3x80x!q>) -> tensor<3x80xf32> {{
  %y = quant.dcast %q : tensor<3x80x!q> to tensor<3x80xf32>
  return %y : tensor<3x80xf32>
}}
"""
    function = main_of(text, device)
    assert (function.signature.inputs[0].plane_bits is not None) == device.has_8bit_storage
    values = np.arange(240).reshape((3, 80)) * 7 % (2**storage.width) + storage.minimum
    expected = (values - np.array([[0], [1], [0]])) * np.array([[1.0], [0.5], [2.0]])
    np.testing.assert_array_equal(function(values.astype(np.int8)), expected)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6])
def test_packed_parameters(bits: int, cpu: Device, tmp_path: Path) -> None:
    """A global of narrow integers; the file has the bytes of its planes."""
    text = f"""
"util.global"() {{sym_name = "w", sym_visibility = "private", type = tensor<8x32xi{bits}>,
    initial_value = #flow.parameter.named<"model"::"w"> : tensor<8x32xi{bits}>}} : () -> ()
func.func @main(%x: tensor<3x32xf32>, %s: tensor<8x2xf32>) -> tensor<3x8xf32> {{
  %q = "util.global.load"() {{global = @w}} : () -> tensor<8x32xi{bits}>
  %w = "subquant.dequantize"(%q, %s) {{block_sizes = array<i64: 1, 16>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i{bits}:f32>}}
      : (tensor<8x32xi{bits}>, tensor<8x2xf32>) -> tensor<8x32xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<3x32xf32>, tensor<8x32xf32>) -> tensor<3x8xf32>
  return %y : tensor<3x8xf32>
}}
"""
    rng = np.random.default_rng(13)
    q = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (8, 32)).astype(np.int8)
    planes = pack_planes(q, PLANE_BITS[bits])
    packed = np.concatenate([plane.reshape(-1) for plane in planes])
    assert packed.size == q.size * bits // 8
    path = tmp_path / "w.irpa"
    with create_archive(path) as writer:
        writer.add_tensor("w", packed)
    executable = compile_to_bytes(text)
    x, s = rng.standard_normal((3, 32)).astype(np.float32), rng.uniform(0.1, 1, (8, 2))
    s = s.astype(np.float32)
    actual = Executable(executable, cpu, parameters={"model": path}).main(x, s)
    check_sum(actual, x, q * np.repeat(s, 16, 1), "mk,nk->mn")


def test_constants_of_4_bits_are_two_to_a_byte(cpu: Device) -> None:
    q = np.random.default_rng(9).integers(-8, 8, (256, 512)).astype(np.int8)
    text = f"""
func.func @main(%x: tensor<512xf32>, %s: tensor<256x16xf32>) -> tensor<256xf32> {{
  %q = stablehlo.constant dense<{q.tolist()}> : tensor<256x512xi4>
  %w = "subquant.dequantize"(%q, %s) {{block_sizes = array<i64: 1, 32>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i4:f32>}}
      : (tensor<256x512xi4>, tensor<256x16xf32>) -> tensor<256x512xf32>
  %y = stablehlo.dot_general %w, %x, contracting_dims = [1] x [0]
      : (tensor<256x512xf32>, tensor<512xf32>) -> tensor<256xf32>
  return %y : tensor<256xf32>
}}
"""
    executable = compile_to_bytes(text)
    assert len(executable) < q.size  # with the program
    rng = np.random.default_rng(10)
    x = rng.standard_normal(512).astype(np.float32)
    s = rng.uniform(0.1, 1, (256, 16)).astype(np.float32)
    actual = Executable(executable, cpu).main(x, s)
    check_sum(actual, x, q * np.repeat(s, 32, 1), "k,nk->n")


@pytest.mark.parametrize(
    ("left", "weight", "blocks", "scales", "reason"),
    [
        ("4x7", "7x2", "4, 1", "2x2", "has a ragged last block"),
        ("4x?", "8x2", "4, 1", "2x2", "has blocks along a dimension that is dynamic in the other"),
        ("4x8", "?x2", "4, 1", "2x2", "has a weight of a dynamic shape"),
    ],
)
def test_why_a_contraction_is_left_alone(
    left: str, weight: str, blocks: str, scales: str, reason: str
) -> None:
    text = f"""
func.func @main(%x: tensor<{left}xf32>, %q: tensor<{weight}xi8>, %s: tensor<{scales}xf32>)
    -> tensor<4x2xf32> {{
  %w = "subquant.dequantize"(%q, %s) {{block_sizes = array<i64: {blocks}>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>}}
      : (tensor<{weight}xi8>, tensor<{scales}xf32>) -> tensor<{weight}xf32>
  %y = stablehlo.dot %x, %w : (tensor<{left}xf32>, tensor<{weight}xf32>) -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}}
"""
    _, (remark,) = run_passes(text, "fuse-block-contractions{explain=true}")
    assert remark.place is not None
    assert remark.place.line == 7
    assert f"is left alone: {reason}" in remark.message


def written_out(
    x: np.ndarray, weight: np.ndarray, shape: tuple[int, ...], extents: tuple[int, ...], at: Any
) -> np.ndarray:
    """The sum of products, index by index; `at` says where the loops' indices are in each."""
    result = np.zeros(shape)
    for index in np.ndindex(*extents):
        here, there, where = at(*index)
        result[where] += x[here] * weight[there]
    return result


def test_the_meaning_in_numpy_is_a_sum_of_products() -> None:
    """Small integers and powers of two: every sum is exact, in whatever order."""
    generator, f32 = np.random.default_rng(5), ExpressedType.F32
    stored = generator.integers(-8, 8, (3, 6))
    scales, zero_points = (
        2.0 ** generator.integers(-2, 3, (3, 3)),
        generator.integers(-2, 3, (3, 3)),
    )
    offsets = generator.integers(-3, 4, (3, 3)).astype(np.float32)
    blocks = [np.repeat(grid, 2, axis=1) for grid in (scales, zero_points, offsets)]
    weight = (stored - blocks[1]) * blocks[0] + blocks[2]
    m, n, k = 0, 1, 2
    dot = [[[(m, 1)], [(k, 1)]], [[(n, 1)], [(k, 1)]], [[(m, 1)], [(n, 1)]]]
    x = generator.integers(-4, 5, (4, 6)).astype(np.float32)
    np.testing.assert_array_equal(
        contract_blocks(x, stored, scales, dot, (4, 3, 6), (1, 2), f32, zero_points, offsets),
        written_out(x, weight, (4, 3), (4, 3, 6), lambda m, n, k: ((m, k), (n, k), (m, n))),
    )
    # A window of three taps, three apart, that moves by two: [batch, position, feature].
    b, o, f, w, c = range(5)
    window = [
        [[(b, 1)], [(o, 2), (w, 3)], [(c, 1)]],
        [[(w, 1)], [(c, 1)], [(f, 1)]],
        [[(b, 1)], [(o, 1)], [(f, 1)]],
    ]
    kernel = generator.integers(-8, 8, (3, 4, 5))
    grid = 2.0 ** generator.integers(-2, 3, (3, 2, 5))
    x = generator.integers(-4, 5, (2, 13, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        contract_blocks(x, kernel, grid, window, (2, 4, 5, 3, 4), (1, 2, 1), f32),
        written_out(
            x,
            kernel * np.repeat(grid, 2, axis=1),
            (2, 4, 5),
            (2, 4, 5, 3, 4),
            lambda b, o, f, w, c: ((b, 2 * o + 3 * w, c), (w, c, f), (b, o, f)),
        ),
    )


def test_a_vector_times_a_weight() -> None:
    """``stablehlo.dot`` contracts the last axis of the left operand, whatever its rank."""
    weight = "tensor<4x3x!quant.uniform<i8:f32:{0:2,1:1}, {{0.5,1.0,2.0},{0.25,4.0,8.0}}>>"
    text = f"""
func.func @main(%x: tensor<4xf32>, %q: {weight}) -> tensor<3xf32> {{
  %w = quant.dcast %q : {weight} to tensor<4x3xf32>
  %y = "stablehlo.dot"(%x, %w) : (tensor<4xf32>, tensor<4x3xf32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}}
"""
    module, _ = run_passes(text, "fuse-block-contractions")
    (fused,) = [op for op in walk(module.operation) if op.name == "subquant.block_contraction"]
    maps = [str(attribute.value) for attribute in fused.attributes["indexing_maps"]]
    assert maps == ["(d0, d1) -> (d1)", "(d0, d1) -> (d1, d0)", "(d0, d1) -> (d0)"]
