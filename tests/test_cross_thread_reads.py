"""Reductions and their consumers on Vulkan, without data races between threads.

See `subquant.transforms.iree_workarounds.cross_thread_reads`. A device that runs its threads one
after another computes most programs correctly by chance, so they run on SwiftShader too, and
executables are checked for races (`spirv`). Operands are small integers, so that sums are exact in
any order; expected numbers are NumPy's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import numpy as np
import pytest

import subquant
from bare_iree import FIXED, compile_bare, compile_without_barriers, without_barriers
from block_programs import tensor
from devices import ON_VULKAN, run
from programs import one_operation
from spirv import private_arrays
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.pipeline import parse_pipeline, run_pipeline
from subquant.compiler.reading import parse_text
from subquant.dialects import create_context
from subquant.runtime import Device, Executable
from subquant.transforms.iree_workarounds import cross_thread_reads
from together import Together

pytestmark = pytest.mark.vulkan


def normalized(shape: Sequence[int], axes: Sequence[int], before: str) -> str:
    """``y - sum(y)`` over some axes, of the argument or of its square."""
    remaining = [axis for axis in range(len(shape)) if axis not in axes]
    whole, reduced = tensor(shape, "f32"), tensor([shape[axis] for axis in remaining], "f32")
    return f"""
func.func @main(%x: {whole}) -> {whole} {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = {before} : {whole}
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = {list(axes)}
      : ({whole}, tensor<f32>) -> {reduced}
  %b = stablehlo.broadcast_in_dim %s, dims = {remaining} : ({reduced}) -> {whole}
  %r = stablehlo.subtract %y, %b : {whole}
  return %r : {whole}
}}"""


def small(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-9, 10, shape).astype(np.float32)


@ON_VULKAN
@pytest.mark.parametrize("before", ["stablehlo.multiply %x, %x", "stablehlo.negate %x"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((8, 2), [0]),
        ((33, 17), [0]),
        ((33, 17), [1]),
        ((3, 5, 7), [1]),
        ((3, 5, 7), [0, 2]),
        ((3, 5, 7), [1, 2]),
        ((2, 9, 10, 20), [0, 1, 2]),
    ],
)
@pytest.mark.share(20)
def test_sums_over_any_axes(
    device: Device, before: str, shape: tuple[int, ...], axes: list[int]
) -> None:
    x = small(*shape)
    y = x * x if "multiply" in before else -x
    expected = y - y.sum(tuple(axes), keepdims=True)
    np.testing.assert_array_equal(run(normalized(shape, axes, before), device, x), expected)


def test_column_reductions_are_still_wrong_without_barriers(vulkan_32bit: Device) -> None:
    text = normalized((8, 2), [0], "stablehlo.multiply %x, %x")
    options = CompileOptions(target="vulkan", vulkan_target="generic-32bit")
    lowered = compile_to_bytes(text, options, emit="mlir").decode()
    assert lowered.count("compute_barrier.start") == 2
    data = compile_bare(without_barriers(lowered), *options.flags)
    y = small(8, 2) ** 2
    actual = Executable(data, vulkan_32bit).main(small(8, 2))
    assert (actual != y - y.sum(0)).any(), FIXED + "cross_thread_reads.py, and its use"


AGAIN = "%again = stablehlo.multiply %x, %x : tensor<33x17xf32>\n  %s ="
TWICE = normalized((33, 17), [0], "stablehlo.multiply %x, %x").replace("%s =", AGAIN)
TWICE = TWICE.replace("subtract %y", "subtract %again")

CALLED = """
func.func private @sums(%x: tensor<33x17xf32>) -> tensor<17xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.multiply %x, %x : tensor<33x17xf32>
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<33x17xf32>, tensor<f32>) -> tensor<17xf32>
  return %s : tensor<17xf32>
}
func.func @main(%x: tensor<33x17xf32>) -> tensor<33x17xf32> {
  %y = stablehlo.multiply %x, %x : tensor<33x17xf32>
  %s = call @sums(%x) : (tensor<33x17xf32>) -> tensor<17xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<17xf32>) -> tensor<33x17xf32>
  %r = stablehlo.subtract %y, %b : tensor<33x17xf32>
  return %r : tensor<33x17xf32>
}
"""

WIDENED_TWICE = """
!q = !quant.uniform<i16:f32, 1.0:5>
!o = !quant.uniform<i32:f32, 1.0>
func.func @main(%x: tensor<5x4x4x5x!q>, %start: tensor<!q>) -> tensor<5x4x4x5xi32> {
  %s = stablehlo.reduce(%x init: %start) across dimensions = [1, 2]
      : (tensor<5x4x4x5x!q>, tensor<!q>) -> tensor<5x5x!o>
      reducer(%a: tensor<!o>, %b: tensor<!o>) {
    %c = stablehlo.add %a, %b : tensor<!o>
    stablehlo.return %c : tensor<!o>
  }
  %b = stablehlo.broadcast_in_dim %s, dims = [0, 3] : (tensor<5x5x!o>) -> tensor<5x4x4x5x!o>
  %w = stablehlo.uniform_quantize %x : (tensor<5x4x4x5x!q>) -> tensor<5x4x4x5x!o>
  %r = stablehlo.subtract %w, %b : tensor<5x4x4x5x!o>
  %i = quant.scast %r : tensor<5x4x4x5x!o> to tensor<5x4x4x5xi32>
  return %i : tensor<5x4x4x5xi32>
}
"""

SUMS_ALONG_THE_OTHER_AXIS = """
func.func @main(%x: tensor<13x13xf32>) -> tensor<13x13xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<13x13xf32>, tensor<f32>) -> tensor<13xf32>
  %k = stablehlo.reshape %s : (tensor<13xf32>) -> tensor<1x13xf32>
  %b = stablehlo.broadcast_in_dim %k, dims = [0, 1] : (tensor<1x13xf32>) -> tensor<13x13xf32>
  %r = stablehlo.subtract %x, %b : tensor<13x13xf32>
  return %r : tensor<13x13xf32>
}
"""

PRODUCTS = """
func.func @main(%a: tensor<13x13xf32>, %b: tensor<13x13xf32>) -> tensor<5x13x13xf32> {
  %m = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<13x13xf32>, tensor<13x13xf32>) -> tensor<13x13xf32>
  %r = stablehlo.broadcast_in_dim %m, dims = [1, 2] : (tensor<13x13xf32>) -> tensor<5x13x13xf32>
  %c = stablehlo.broadcast_in_dim %b, dims = [1, 2] : (tensor<13x13xf32>) -> tensor<5x13x13xf32>
  %d = stablehlo.subtract %r, %c : tensor<5x13x13xf32>
  return %d : tensor<5x13x13xf32>
}
"""

BATCH_NORM = """
func.func @main(%x: tensor<ROWSx13xf32>, %g: tensor<13xf32>, %h: tensor<13xf32>)
    -> tensor<ROWSx13xf32> {
  %0:3 = "stablehlo.batch_norm_training"(%x, %g, %h) {epsilon = 0.5 : f32, feature_index = 1 : i64}
      : (tensor<ROWSx13xf32>, tensor<13xf32>, tensor<13xf32>)
        -> (tensor<ROWSx13xf32>, tensor<13xf32>, tensor<13xf32>)
  return %0#0 : tensor<ROWSx13xf32>
}
"""


@pytest.mark.parametrize("device_name", ["cpu", "vulkan", "vulkan_32bit"])
@pytest.mark.parametrize("rows", ["6", "?"])
@pytest.mark.share(4)
def test_batch_norm_training(device: Device, rows: str) -> None:
    """Sums of 6 numbers below 400 in f32, one square root and quotient: within 1e-5."""
    x = small(6, 13)
    g, h = small(2, 13)
    target = "vulkan" if device.is_vulkan else "llvm-cpu"
    text = BATCH_NORM.replace("ROWS", rows)
    actual = subquant.compile(text, target=target, device=device).main(x, g, h)
    wide = x.astype(np.float64)
    expected = g * (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 0.5) + h
    np.testing.assert_allclose(actual, expected, atol=1e-5, rtol=1e-5)


SOFTMAX = """
func.func @main(%x: tensor<4x?xf32>) -> tensor<4x?xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %e = stablehlo.exponential %x : tensor<4x?xf32>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<4x?xf32>, tensor<f32>) -> tensor<4xf32>
  %n = stablehlo.get_dimension_size %x, dim = 1 : (tensor<4x?xf32>) -> tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<1xi32>
  %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %shape = stablehlo.concatenate %four, %n1, dim = 0
      : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %b = stablehlo.dynamic_broadcast_in_dim %s, %shape, dims = [0]
      : (tensor<4xf32>, tensor<2xi32>) -> tensor<4x?xf32>
  %r = stablehlo.divide %e, %b : tensor<4x?xf32>
  return %r : tensor<4x?xf32>
}
"""

UNSIGNED = "!q = !quant.uniform<u8:f32, 1.0>\n!o = !quant.uniform<i32:f32, 1.0>" + one_operation(
    "stablehlo.dot_general %0, %1, contracting_dims = [1] x [0]", ["1x64x!q", "64x2x!q"], "1x2x!o"
)


def square(x: np.ndarray) -> np.ndarray:
    return x * x - (x * x).sum(0)


def widened(x: np.ndarray, start: np.ndarray) -> np.ndarray:
    wide = x.astype(np.int64) - 5
    return wide - wide.sum((1, 2), keepdims=True)


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x.astype(np.float64))
    return exponentials / exponentials.sum(1, keepdims=True)


def bytes_from(seed: int, *shape: int, dtype: type = np.uint8) -> np.ndarray:
    low, high = (-999, 1000) if dtype is np.int16 else (0, 256)
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


PROGRAMS = {
    "equal computations, which IREE merges": (TWICE, [small(33, 17)], square),
    "a called function": (CALLED, [small(33, 17)], square),
    # As in a squeeze-and-excitation block: the sum and the product widen separately.
    "storage widened twice": (
        WIDENED_TWICE, [bytes_from(3, 5, 4, 4, 5, dtype=np.int16), np.int16(5)], widened,
    ),
    "row sums along the other axis": (
        SUMS_ALONG_THE_OTHER_AXIS, [small(13, 13)], lambda x: x - x.sum(1)[None],
    ),
    "a broadcast product": (
        PRODUCTS, list(small(2, 13, 13)), lambda a, b: np.broadcast_to(a @ b - b, (5, 13, 13)),
    ),
    "rows of dynamic length": (SOFTMAX, [small(4, 9)], softmax),
    # Storage that is shifted to signed is multiplied and summed: the first call shows a race.
    "products of unsigned storage": (
        UNSIGNED, [bytes_from(2, 1, 64), bytes_from(4, 64, 2)],
        lambda a, w: a.astype(np.int64) @ w.astype(np.int64),
    ),
}  # fmt: skip


@ON_VULKAN
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(device: Device, name: str) -> None:
    """Devices' exponentials are within 3 + 2 |x| units in the last place (Vulkan), so 1e-5."""
    text, arguments, expected = PROGRAMS[name]
    rtol = 1e-5 if text is SOFTMAX else 0
    np.testing.assert_allclose(run(text, device, *arguments), expected(*arguments), rtol=rtol)


QUANTIZED_ROWS = """
func.func @main(%x: tensor<ROWSxCOLUMNSxf32>) -> (tensor<ROWSxCOLUMNSxi8>, tensor<ROWSxf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %a = stablehlo.abs %x : tensor<ROWSxCOLUMNSxf32>
  %m = stablehlo.reduce(%a init: %zero) applies stablehlo.maximum across dimensions = [1]
      : (tensor<ROWSxCOLUMNSxf32>, tensor<f32>) -> tensor<ROWSxf32>
  %b = stablehlo.broadcast_in_dim %m, dims = [0]
      : (tensor<ROWSxf32>) -> tensor<ROWSxCOLUMNSxf32>
  %d = stablehlo.subtract %b, %x : tensor<ROWSxCOLUMNSxf32>
  %q = stablehlo.convert %d : (tensor<ROWSxCOLUMNSxf32>) -> tensor<ROWSxCOLUMNSxi8>
  return %q, %m : tensor<ROWSxCOLUMNSxi8>, tensor<ROWSxf32>
}
"""
ROWS = [(1, 8), (4, 16), (7, 5), (8, 7), (8, 64), (9, 64), (16, 40), (32, 32), (256, 8)]


def quantized_rows(rows: int, columns: int) -> str:
    return QUANTIZED_ROWS.replace("ROWS", f"{rows}").replace("COLUMNS", f"{columns}")


QUANTIZED = Together({f"{rows}x{columns}": quantized_rows(rows, columns) for rows, columns in ROWS})


@ON_VULKAN
@pytest.mark.parametrize(("rows", "columns"), ROWS)
def test_rows_and_what_they_are_scaled_by(device: Device, rows: int, columns: int) -> None:
    x = small(rows, columns)
    greatest = np.abs(x).max(1)
    actual, scales = QUANTIZED.function(f"{rows}x{columns}", device)(x)
    np.testing.assert_array_equal(actual, greatest[:, None] - x)
    np.testing.assert_array_equal(scales, greatest)


def test_rows_with_two_results_are_still_refused_without_barriers() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        compile_without_barriers(quantized_rows(8, 64))
    assert b"failed to legalize operation 'arith.constant'" in caught.value.stderr, (
        FIXED + "has_several_results from iree_workarounds/multi_result_dispatches.py"
    )


RESIDUAL_NORM = """
func.func @main(%x: tensor<16x640xf32>, %y: tensor<16x640xf32>)
    -> (tensor<16x640xf32>, tensor<16x640xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.add %x, %y : tensor<16x640xf32>
  %square = stablehlo.multiply %h, %h : tensor<16x640xf32>
  %sum = stablehlo.reduce(%square init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<16x640xf32>, tensor<f32>) -> tensor<16xf32>
  %root = stablehlo.rsqrt %sum : tensor<16xf32>
  %rows = stablehlo.broadcast_in_dim %root, dims = [0] : (tensor<16xf32>) -> tensor<16x640xf32>
  %normal = stablehlo.multiply %h, %rows : tensor<16x640xf32>
  return %h, %normal : tensor<16x640xf32>, tensor<16x640xf32>
}"""


def test_rows_that_are_read_twice_take_no_private_memory() -> None:
    """NVIDIA's driver refuses shaders with the private memory that IREE gives them."""
    assert private_arrays(compile_to_bytes(RESIDUAL_NORM, CompileOptions("vulkan"))) == 0
    assert private_arrays(compile_without_barriers(RESIDUAL_NORM)) > 0


def test_a_chain_is_not_walked_for_each_of_its_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time grows with the square of the length of the chain."""
    chain = [f"%v{n + 1} = stablehlo.add %v{n}, %x : tensor<4xf32>" for n in range(200)]
    body = "\n  ".join(["%v0 = stablehlo.negate %x : tensor<4xf32>", *chain])
    text = f"""func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  {body}
  return %v200 : tensor<4xf32>
}}"""
    module = parse_text(text, create_context())
    walks: list[object] = []
    monkeypatch.setattr(cross_thread_reads, "is_separate", lambda *values: walks.append(values))
    run_pipeline(module, parse_pipeline("isolate-contraction-operands"))
    assert not walks
