"""Programs that IREE 3.13 gets wrong on all targets or on llvm-cpu; see test_iree_limits.py."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import subquant
from bare_iree import FIXED, compile_bare
from devices import ON_DEVICES, compile_for, run
from programs import PRODUCT, convolution_of, one_operation
from stablehlo_forms import region
from subquant.compiler.iree_driver import host_features
from subquant.errors import ExecutionError
from subquant.runtime import Device, Executable

FUSED = """
func.func @main(%a: tensor<1024xf32>, %b: tensor<1024xf32>, %c: tensor<1024xf32>)
    -> tensor<1024xf32> {
  %p = arith.mulf %a, %b : tensor<1024xf32>
  %s = arith.addf %p, %c : tensor<1024xf32>
  return %s : tensor<1024xf32>
}
"""


@pytest.mark.long
@pytest.mark.skipif(
    host_features() is not None and host_features().isdisjoint(("fma", "neon")),
    reason="this CPU has no fused multiply-add",
)
def test_llvm_cpu_still_fuses_a_product_and_a_sum(cpu: Device) -> None:
    a, b, c = np.random.default_rng(3).standard_normal((3, 1024)).astype(np.float32)
    got = compile_for(FUSED, cpu).main(a, b, c)
    assert (got != a * b + c).any(), FIXED + "the known limit about a * b + c"
    np.testing.assert_allclose(got, a * b + c, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_runtimes_still_flush_subnormals(cpu: Device) -> None:
    tiny = np.full(1024, 1e-40, np.float32)
    got = compile_for(FUSED, cpu).main(tiny, np.ones_like(tiny), np.zeros_like(tiny))
    assert not got.any(), FIXED + "the check of subnormal scales"


# Dynamic quantization: a scale of the largest magnitude, integers, and their expressed values.
BF16_QUANTIZATION = """
func.func @main(%x: tensor<64x8xbf16>)
    -> (tensor<64xbf16>, tensor<64x8xi8>, tensor<64x8xbf16>) {
  %zero = stablehlo.constant dense<0.0> : tensor<bf16>
  %steps = stablehlo.constant dense<120.0> : tensor<64xbf16>
  %magnitude = stablehlo.abs %x : tensor<64x8xbf16>
  %most = stablehlo.reduce(%magnitude init: %zero) applies stablehlo.maximum
    across dimensions = [1] : (tensor<64x8xbf16>, tensor<bf16>) -> tensor<64xbf16>
  %scale = stablehlo.divide %most, %steps : tensor<64xbf16>
  %scales = stablehlo.broadcast_in_dim %scale, dims = [0]
    : (tensor<64xbf16>) -> tensor<64x8xbf16>
  %scaled = stablehlo.divide %x, %scales : tensor<64x8xbf16>
  %rounded = stablehlo.round_nearest_even %scaled : tensor<64x8xbf16>
  %integers = stablehlo.convert %rounded : (tensor<64x8xbf16>) -> tensor<64x8xi8>
  %expressed = stablehlo.multiply %rounded, %scales : tensor<64x8xbf16>
  return %scale, %integers, %expressed : tensor<64xbf16>, tensor<64x8xi8>, tensor<64x8xbf16>
}
"""


def quantized_bf16(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """The results of `BF16_QUANTIZATION`; ml_dtypes rounds the result of each operation."""
    scale = np.abs(x).max(1) / np.asarray(120, x.dtype)
    rounded = np.round(x / scale[:, None])
    return scale, rounded.astype(np.int8), rounded * scale[:, None]


def equals_bf16_quantization(results: Any, x: np.ndarray) -> bool:
    expected = quantized_bf16(x)
    return all(
        np.asarray(result).view(want.dtype).tobytes() == want.tobytes()
        for result, want in zip(results, expected, strict=True)
    )


@ON_DEVICES
def test_quantization_in_bf16_rounds_each_operation(device: Device) -> None:
    x = np.random.default_rng(4).standard_normal((64, 8)).astype(ml_dtypes.bfloat16)
    assert equals_bf16_quantization(run(BF16_QUANTIZATION, device, x), x)


@pytest.mark.long
def test_roundings_to_bf16_are_still_omitted(cpu: Device) -> None:
    x = np.random.default_rng(4).standard_normal((64, 8)).astype(ml_dtypes.bfloat16)
    compiled = Executable(compile_bare(BF16_QUANTIZATION), cpu).main(x)
    assert not equals_bf16_quantization(compiled, x), FIXED + "bf16_quantization.py"


CHECKED = """
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %d = tensor.dim %x, %c0 : tensor<?xf32>
  %ok = arith.cmpi eq, %d, %c4 : index
  cf.assert %ok, "must be 4"
  %y = arith.addf %x, %x : tensor<?xf32>
  return %y : tensor<?xf32>
}
"""


def test_assertions_are_kept_by_our_flags_only(cpu: Device) -> None:
    five = np.ones(5, np.float32)
    with pytest.raises(ExecutionError, match="must be 4"):
        compile_for(CHECKED, cpu).main(five)
    assert Executable(compile_bare(CHECKED), cpu).main(five).size == 5, (
        FIXED + "--iree-opt-strip-assertions=false"
    )


DOUBLE = """
func.func @main(%x: tensor<4xf64>) -> tensor<4xf64> {
  %y = arith.addf %x, %x : tensor<4xf64>
  return %y : tensor<4xf64>
}
"""


def test_f64_is_kept_by_our_flags_only(cpu: Device) -> None:
    x = np.full(4, 0.1)
    np.testing.assert_array_equal(compile_for(DOUBLE, cpu).main(x), x + x)
    signature = Executable(compile_bare(DOUBLE), cpu).main.signature
    assert signature is not None
    assert signature.inputs[0].element == "f32", FIXED + "--iree-input-demote-f64-to-f32=false"


HALF = "func.func @main(%x: f16) -> f16 {\n  return %x : f16\n}"


def test_f16_scalars_need_a_box(cpu: Device) -> None:
    assert compile_for(HALF, cpu).main(np.float16(1.5)) == np.float16(1.5)
    plain = Executable(compile_bare(HALF), cpu)
    assert plain.main(np.float16(1.5)) == 0, FIXED + "the pass box-half-scalars"


UNSIGNED_MULTIPLICANDS = """
func.func @booleans(%x: tensor<3x5xf32>, %y: tensor<3x5xf32>, %w: tensor<5x4xi8>)
    -> tensor<3x4xi32> {
  %t = stablehlo.compare LT, %x, %y : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xi1>
  %f = stablehlo.convert %t : (tensor<3x5xi1>) -> tensor<3x5xi8>
  %r = stablehlo.dot_general %f, %w, contracting_dims = [1] x [0]
      : (tensor<3x5xi8>, tensor<5x4xi8>) -> tensor<3x4xi32>
  return %r : tensor<3x4xi32>
}
func.func @floats(%x: tensor<3x5xf32>, %w: tensor<?x4xui8>) -> tensor<3x4xf32> {
  %f = stablehlo.convert %w : (tensor<?x4xui8>) -> tensor<?x4xf32>
  %r = stablehlo.dot %x, %f : (tensor<3x5xf32>, tensor<?x4xf32>) -> tensor<3x4xf32>
  return %r : tensor<3x4xf32>
}
func.func @batches(%x: tensor<2x3x5xui16>, %w: tensor<2x5x4xi64>) -> tensor<2x3x4xi64> {
  %i = stablehlo.convert %x : (tensor<2x3x5xui16>) -> tensor<2x3x5xi32>
  %f = stablehlo.convert %i : (tensor<2x3x5xi32>) -> tensor<2x3x5xi64>
  %r = stablehlo.dot_general %f, %w, batching_dims = [0] x [0], contracting_dims = [2] x [1]
      : (tensor<2x3x5xi64>, tensor<2x5x4xi64>) -> tensor<2x3x4xi64>
  return %r : tensor<2x3x4xi64>
}
func.func @windows(%x: tensor<1x7x5xui8>, %w: tensor<1x5x4xui8>) -> tensor<1x7x4xui32> {
  %f = stablehlo.convert %x : (tensor<1x7x5xui8>) -> tensor<1x7x5xui32>
  %g = stablehlo.convert %w : (tensor<1x5x4xui8>) -> tensor<1x5x4xui32>
  %r = stablehlo.convolution(%f, %g) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x7x5xui32>, tensor<1x5x4xui32>) -> tensor<1x7x4xui32>
  return %r : tensor<1x7x4xui32>
}
"""
UNSIGNED_MULTIPLICANDS += one_operation(PRODUCT, ["3x5xui8", "5x4xui8"], "3x4xi32", name="direct")
for name, groups, types, result in (
    ("depthwise", 4, ["1x7x4xui8", "3x1x4xui8"], "1x5x4xui32"),
    ("groups", 2, ["1x7x6xui16", "1x3x4xui16"], "1x7x4xui32"),
):
    convolution = convolution_of("[b, 0, f]x[0, i, o]->[b, 0, f]", groups=groups)
    UNSIGNED_MULTIPLICANDS += one_operation(convolution, types, result, name=name)


def unsigned_multiplicands() -> dict[str, tuple[list[np.ndarray], np.ndarray]]:
    """Arguments and results of each function."""
    random = np.random.default_rng(0)
    x, y = random.integers(-9, 10, (2, 3, 5)).astype(np.float32)
    w = random.integers(-128, 128, (5, 4)).astype(np.int8)
    bytes_ = random.integers(128, 256, (5, 4)).astype(np.uint8)
    words = random.integers(1 << 15, 1 << 16, (2, 3, 5)).astype(np.uint16)
    wide = random.integers(-(1 << 40), 1 << 40, (2, 5, 4))
    line = random.integers(0, 256, (1, 7, 5)).astype(np.uint8)
    indices, taps = line[..., :4].copy(), bytes_[:3, None].copy()
    deep = sum(indices[:, i : i + 5].astype(np.int64) * taps[i, 0] for i in range(3))
    channels = random.integers(1 << 12, 1 << 14, (1, 7, 6)).astype(np.uint16)
    weight = random.integers(1 << 15, 1 << 16, (1, 3, 4)).astype(np.uint16)
    halves = [channels[..., n : n + 3].astype(np.int64) for n in (0, 3)]
    sides = [half @ weight[0, :, n : n + 2] for half, n in zip(halves, (0, 2), strict=True)]
    return {
        "direct": ([line[0, :3], bytes_], line[0, :3].astype(np.int64) @ bytes_.astype(np.int64)),
        "depthwise": ([indices, taps], deep),
        "groups": ([channels, weight], np.concatenate(sides, 2) % (1 << 32)),
        "booleans": ([x, y, w], (x < y).astype(np.int64) @ w.astype(np.int64)),
        "floats": ([x, bytes_], x.astype(np.float64) @ bytes_),
        "batches": ([words, wide], words.astype(np.int64) @ wide),
        "windows": ([line, bytes_[None]], line.astype(np.int64) @ bytes_.astype(np.int64)),
    }


@ON_DEVICES
def test_unsigned_multiplicands_are_widened(device: Device, device_name: str) -> None:
    executable = compile_for(UNSIGNED_MULTIPLICANDS, device)
    for name, (arguments, expected) in unsigned_multiplicands().items():
        np.testing.assert_array_equal(executable[name](*arguments), expected, err_msg=name)


@pytest.mark.long
def test_multiplicands_are_still_read_as_signed(cpu: Device) -> None:
    arguments, expected = unsigned_multiplicands()["booleans"]
    text = UNSIGNED_MULTIPLICANDS.partition("func.func @floats")[0]
    actual = Executable(compile_bare(text), cpu)["booleans"](*arguments)
    np.testing.assert_array_equal(actual, -expected, err_msg=FIXED + "unsigned_multiplicands.py")


NEIGHBORS = """
func.func @main(%x: tensor<?x2x?xi8>) -> (tensor<?xi32>, tensor<?x2x?xi8>) {
  %z = stablehlo.constant dense<0> : tensor<i32>
  %n = stablehlo.negate %x : tensor<?x2x?xi8>
  %w = stablehlo.convert %n : (tensor<?x2x?xi8>) -> tensor<?x2x?xi32>
  %s = stablehlo.reduce(%w init: %z) applies stablehlo.add across dimensions = [1, 2]
      : (tensor<?x2x?xi32>, tensor<i32>) -> tensor<?xi32>
  return %s, %n : tensor<?xi32>, tensor<?x2x?xi8>
}
"""


@pytest.mark.long
def test_neighboring_axes_still_get_the_size_of_another(cpu: Device) -> None:
    x = np.arange(1, 13, dtype=np.int8).reshape(2, 2, 3)
    _, right = subquant.compile(NEIGHBORS).main(x)
    np.testing.assert_array_equal(right, -x)
    _, bare = Executable(compile_bare(NEIGHBORS), cpu)["main"](x)
    wrong = (np.asarray(bare) != -x).any()
    assert wrong, FIXED + "iree_workarounds/dynamic_reductions.py, and the known limit"


PAD = "stablehlo.pad %{}, %z, low = [{}], high = [{}], interior = [{}]"


MISPLACED = {
    "broadcast_axes": (
        one_operation(
            "stablehlo.broadcast_in_dim %0, dims = [1, 2, 0]", ["2x2x2xi32"], "2x2x2xi32"
        ),
        np.arange(8, dtype=np.int32).reshape(2, 2, 2),
        lambda x: x.transpose(2, 0, 1),
    ),
    "interior_pads": (
        f"""
func.func @main(%x: tensor<2x2xi32>) -> tensor<2x4xi32> {{
  %z = stablehlo.constant dense<0> : tensor<i32>
  %d = {PAD.format("x", "0, 0", "0, 0", "0, 1")}
      : (tensor<2x2xi32>, tensor<i32>) -> tensor<2x3xi32>
  %r = {PAD.format("d", "0, 1", "0, 0", "0, 0")}
      : (tensor<2x3xi32>, tensor<i32>) -> tensor<2x4xi32>
  return %r : tensor<2x4xi32>
}}
""",
        np.array([[1, 2], [3, 4]], np.int32),
        lambda x: np.array([[0, a, 0, b] for a, b in x]),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MISPLACED)
def test_elements_are_still_at_wrong_indices(cpu: Device, name: str) -> None:
    text, x, function = MISPLACED[name]
    np.testing.assert_array_equal(subquant.compile(text).main(x), function(x))
    got = Executable(compile_bare(text), cpu)["main"](x)
    assert (np.asarray(got) != function(x)).any(), FIXED + f"iree_workarounds/{name}.py"


PARTIAL_READS = {
    "reduce_window": f"""
      %1 = "stablehlo.reduce_window"(%0, %zero) ({region("add", "f32")}) {{
        window_dimensions = array<i64: 1, 1, 1, 1>, window_strides = array<i64: 1, 2, 2, 1>
      }} : (tensor<1x9x9x4xf32>, tensor<f32>) -> tensor<1x5x5x4xf32>""",
    "depthwise convolution": """
      %1 = stablehlo.convolution(%0, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {stride = [2, 2]} {batch_group_count = 1 : i64, feature_group_count = 4 : i64}
        : (tensor<1x9x9x4xf32>, tensor<1x1x1x4xf32>) -> tensor<1x5x5x4xf32>""",
    "tosa": """
      %1 = tosa.max_pool2d %0 {
        kernel = array<i64: 1, 1>, stride = array<i64: 2, 2>, pad = array<i64: 0, 0, 0, 0>
      } : (tensor<1x9x9x4xf32>) -> tensor<1x5x5x4xf32>""",
    "linalg": """
      %e = tensor.empty() : tensor<1x5x5x4xf32>
      %1 = linalg.generic {
        indexing_maps = [affine_map<(b, i, j, c) -> (b, i * 2, j * 2, c)>,
                         affine_map<(b, i, j, c) -> (b, i, j, c)>],
        iterator_types = ["parallel", "parallel", "parallel", "parallel"]
      } ins(%0 : tensor<1x9x9x4xf32>) outs(%e : tensor<1x5x5x4xf32>) {
      ^bb0(%a: f32, %o: f32):
        linalg.yield %a : f32
      } -> tensor<1x5x5x4xf32>""",
}


def partial_read(name: str) -> str:
    """Return a program that reads a part of an operand, and all of it elsewhere."""
    return f"""
    func.func @main(%x: tensor<1x9x9x4xf32>, %w: tensor<1x1x1x4xf32>)
        -> (tensor<1x5x5x4xf32>, tensor<1x9x9x4xf32>) {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.abs %x : tensor<1x9x9x4xf32>
      {PARTIAL_READS[name]}
      %2 = stablehlo.negate %0 : tensor<1x9x9x4xf32>
      return %1, %2 : tensor<1x5x5x4xf32>, tensor<1x9x9x4xf32>
    }}
    """


def partial_arguments() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(9).standard_normal((1, 9, 9, 4)).astype(np.float32)
    return x, np.ones((1, 1, 1, 4), np.float32)


@ON_DEVICES
@pytest.mark.parametrize("name", PARTIAL_READS)
def test_an_operand_that_is_read_in_part_is_written_whole(name: str, device: Device) -> None:
    x, w = partial_arguments()
    part, whole = compile_for(partial_read(name), device).main(x, w)
    np.testing.assert_array_equal(part, np.abs(x)[:, ::2, ::2])
    np.testing.assert_array_equal(whole, -np.abs(x))


@pytest.mark.long
def test_an_operand_that_is_read_in_part_is_still_written_in_part(cpu: Device) -> None:
    x, w = partial_arguments()
    _, whole = Executable(compile_bare(partial_read("reduce_window")), cpu).main(x, w)
    assert (np.asarray(whole) != -np.abs(x)).any(), (
        FIXED + "iree_workarounds/partial_reads.py, and the entry in docs/limits.md"
    )


GATHER = """
func.func @main(%x: tensor<3x4xf32>) -> (tensor<2x4xf32>, tensor<3x4xf32>) {
  %i = stablehlo.constant dense<0> : tensor<2xi32>
  %0 = stablehlo.abs %x : tensor<3x4xf32>
  %1 = "stablehlo.gather"(%0, %i) <{
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
                                          start_index_map = [0], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 4>
  }> : (tensor<3x4xf32>, tensor<2xi32>) -> tensor<2x4xf32>
  %2 = stablehlo.negate %0 : tensor<3x4xf32>
  return %1, %2 : tensor<2x4xf32>, tensor<3x4xf32>
}
"""


@ON_DEVICES
def test_an_operand_of_a_gather_at_one_position_is_written_whole(device: Device) -> None:
    x = np.random.default_rng(10).standard_normal((3, 4)).astype(np.float32)
    part, whole = compile_for(GATHER, device).main(x)
    np.testing.assert_array_equal(part, np.abs(x)[[0, 0]])
    np.testing.assert_array_equal(whole, -np.abs(x))


DILATIONS = {
    "pad": """
      %1 = stablehlo.pad %0, %zero, low = [0, 0], high = [0, 0], interior = [1, 1]
        : (tensor<5x6xf32>, tensor<f32>) -> tensor<9x11xf32>""",
    "reduce_window": f"""
      %1 = "stablehlo.reduce_window"(%0, %zero) ({region("add", "f32")}) {{
        window_dimensions = array<i64: 1, 1>, base_dilations = array<i64: 2, 2>
      }} : (tensor<5x6xf32>, tensor<f32>) -> tensor<9x11xf32>""",
    "convolution": """
      %image = stablehlo.reshape %0 : (tensor<5x6xf32>) -> tensor<1x5x6x1xf32>
      %w = stablehlo.constant dense<1.0> : tensor<1x1x1x1xf32>
      %r = stablehlo.convolution(%image, %w)
        dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {lhs_dilate = [2, 2]}
        {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
        : (tensor<1x5x6x1xf32>, tensor<1x1x1x1xf32>) -> tensor<1x9x11x1xf32>
      %1 = stablehlo.reshape %r : (tensor<1x9x11x1xf32>) -> tensor<9x11xf32>""",
}


def padded_and_dilated(name: str) -> str:
    """Return a program that dilates a padded tensor."""
    return f"""
    func.func @main(%x: tensor<3x4xf32>) -> tensor<9x11xf32> {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.pad %x, %zero, low = [1, 1], high = [1, 1], interior = [0, 0]
        : (tensor<3x4xf32>, tensor<f32>) -> tensor<5x6xf32>
      {DILATIONS[name]}
      return %1 : tensor<9x11xf32>
    }}
    """


def dilated() -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    expected = np.zeros((9, 11), np.float32)
    expected[::2, ::2] = np.pad(x, 1)
    return x, expected


@ON_DEVICES
@pytest.mark.parametrize("name", DILATIONS)
def test_a_padded_operand_is_dilated(name: str, device: Device) -> None:
    x, expected = dilated()
    got = compile_for(padded_and_dilated(name), device).main(x)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.long
def test_a_padded_operand_is_still_dilated_wrongly(cpu: Device) -> None:
    x, expected = dilated()
    got = Executable(compile_bare(padded_and_dilated("pad")), cpu).main(x)
    assert (np.asarray(got) != expected).any(), (
        FIXED + "the operand's barrier in iree_workarounds/interior_pads.py"
    )


HIDDEN_CONSTANTS = """
func.func @main(%x: tensor<33x20xi32>) -> (tensor<33x20xi32>, tensor<33x20xi8>) {
  %not = stablehlo.not %x : tensor<33x20xi32>
  %ones = stablehlo.xor %not, %x : tensor<33x20xi32>
  %c = stablehlo.constant dense<[7, 6, 5, 4, 3, 2, 1, 1, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1, 12, 14]>
      : tensor<20xi32>
  %row = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<20xi32>) -> tensor<33x20xi32>
  %words = stablehlo.add %row, %ones : tensor<33x20xi32>
  %bytes = stablehlo.convert %words : (tensor<33x20xi32>) -> tensor<33x20xi8>
  %index = stablehlo.convert %bytes : (tensor<33x20xi8>) -> tensor<33x20xi32>
  %table = stablehlo.constant dense<[9, 8, 7, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6]>
      : tensor<16xi8>
  %read = "stablehlo.gather"(%table, %index) <{dimension_numbers = #stablehlo.gather<
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>,
      slice_sizes = array<i64: 1>}> : (tensor<16xi8>, tensor<33x20xi32>) -> tensor<33x20xi8>
  return %words, %read : tensor<33x20xi32>, tensor<33x20xi8>
}
"""


@ON_DEVICES
def test_results_of_hidden_constants(device: Device) -> None:
    x = np.random.default_rng(0).integers(-(2**31), 2**31, (33, 20), dtype=np.int32)
    words, read = compile_for(HIDDEN_CONSTANTS, device).main(x)
    row = np.array([7, 6, 5, 4, 3, 2, 1, 1, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1, 12, 14], np.int32) - 1
    np.testing.assert_array_equal(words, np.broadcast_to(row, (33, 20)))
    np.testing.assert_array_equal(read, np.broadcast_to(9 - row, (33, 20)))


@pytest.mark.long
def test_iree_still_copies_the_first_result_of_a_constant_dispatch(cpu: Device) -> None:
    words, read = Executable(compile_bare(HIDDEN_CONSTANTS), cpu).main(np.zeros((33, 20), np.int32))
    assert (read != 9 - words).any(), FIXED + "iree_hooks/constant_dispatches.py"


DILATED_GROUPS = """
func.func @main(%x: tensor<1x9x4xf32>, %w: tensor<3x2x4xf32>) -> tensor<1x5x4xf32> {
  %0 = stablehlo.convolution(%x, %w)
      dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {rhs_dilate = [2]}
      {batch_group_count = 1 : i64, feature_group_count = 2 : i64}
      : (tensor<1x9x4xf32>, tensor<3x2x4xf32>) -> tensor<1x5x4xf32>
  return %0 : tensor<1x5x4xf32>
}
"""


@pytest.mark.long
def test_pixels_between_dilated_taps_are_still_multiplied_by_zeros(cpu: Device) -> None:
    x = np.ones((1, 9, 4), np.float32)
    x[0, 1] = np.inf
    actual = compile_for(DILATED_GROUPS, cpu).main(x, np.ones((3, 2, 4), np.float32))
    assert np.isnan(actual[0, 0]).all(), FIXED + "the entry of dilated groups in docs/limits.md"
    np.testing.assert_array_equal(actual[0, 1:, 0], [np.inf, 6, 6, 6])
