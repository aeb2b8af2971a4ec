"""Sums and what is made of them, on Vulkan, where each is computed by threads of its own.

The reasons are in `subquant.transforms.iree.thread_positions`. On a device whose threads run one
after another most of these are right by chance, so they run on SwiftShader too. Operands are small
integers, so that every order of a sum gives the same; expected numbers are NumPy's.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

import numpy as np
import pytest

import subquant
from devices import run
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.iree import compiler_path
from subquant.compiler.options import CompileOptions
from subquant.runtime import Device, Executable

pytestmark = pytest.mark.vulkan

ON_DEVICES = pytest.mark.parametrize("device_name", ["vulkan", "vulkan_32bit"])


def tensor(shape: Sequence[int]) -> str:
    return "tensor<" + "".join(f"{extent}x" for extent in shape) + "f32>"


def normalized(shape: Sequence[int], axes: Sequence[int], before: str) -> str:
    """``y - sum(y)`` over some axes, of the argument or of its square."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    whole, sums = tensor(shape), tensor([shape[axis] for axis in kept])
    return f"""
func.func @main(%x: {whole}) -> {whole} {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = {before} : {whole}
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = {list(axes)}
      : ({whole}, tensor<f32>) -> {sums}
  %b = stablehlo.broadcast_in_dim %s, dims = {kept} : ({sums}) -> {whole}
  %r = stablehlo.subtract %y, %b : {whole}
  return %r : {whole}
}}"""


def small(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-9, 10, shape).astype(np.float32)


@ON_DEVICES
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
def test_sums_over_any_axes(
    device: Device, device_name: str, before: str, shape: tuple[int, ...], axes: list[int]
) -> None:
    x = small(*shape)
    y = x * x if "multiply" in before else -x
    expected = y - y.sum(tuple(axes), keepdims=True)
    np.testing.assert_array_equal(run(normalized(shape, axes, before), device, x), expected)


def test_column_sums_are_still_wrong_without_barriers(vulkan_32bit: Device) -> None:
    text = normalized((8, 2), [0], "stablehlo.multiply %x, %x")
    options = CompileOptions(target="vulkan", vulkan_target="generic-32bit")
    text = compile_to_bytes(text, options, emit="mlir").decode()
    barriers = re.findall(r'(%\w+) = "util.optimization_barrier"\((%\w+)\)', text)
    assert len(barriers) == 2
    for after, before in barriers:
        text = re.sub(rf'{after} = "util.optimization_barrier".*', "", text)
        text = re.sub(rf"{after}\b", before, text)
    command = [compiler_path(), "-", "-o", "-", *options.flags]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    found = Executable(done.stdout, vulkan_32bit).main(small(8, 2))
    y = small(8, 2) ** 2
    assert (found != y - y.sum(0)).any(), (
        "IREE is fixed: remove transforms/iree/thread_positions.py, and its use"
    )


TWICE = """
func.func @main(%x: tensor<33x17xf32>) -> tensor<33x17xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.multiply %x, %x : tensor<33x17xf32>
  %again = stablehlo.multiply %x, %x : tensor<33x17xf32>
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<33x17xf32>, tensor<f32>) -> tensor<17xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<17xf32>) -> tensor<33x17xf32>
  %r = stablehlo.subtract %again, %b : tensor<33x17xf32>
  return %r : tensor<33x17xf32>
}
"""


@ON_DEVICES
def test_what_is_computed_twice_is_one_for_iree(device: Device, device_name: str) -> None:
    y = small(33, 17) ** 2
    np.testing.assert_array_equal(run(TWICE, device, small(33, 17)), y - y.sum(0))


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


@ON_DEVICES
def test_sums_of_a_function_that_is_called(device: Device, device_name: str) -> None:
    y = small(33, 17) ** 2
    np.testing.assert_array_equal(run(CALLED, device, small(33, 17)), y - y.sum(0))


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


@ON_DEVICES
def test_storage_that_is_widened_twice(device: Device, device_name: str) -> None:
    """As a squeeze-and-excitation block does: the sum and the product widen on their own."""
    x = np.random.default_rng(3).integers(-999, 1000, (5, 4, 4, 5)).astype(np.int16)
    wide = x.astype(np.int64) - 5
    found = run(WIDENED_TWICE, device, x, np.int16(5))
    np.testing.assert_array_equal(found, wide - wide.sum((1, 2), keepdims=True))


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


@ON_DEVICES
def test_row_sums_along_the_other_axis(device: Device, device_name: str) -> None:
    x = small(13, 13)
    found = run(SUMS_ALONG_THE_OTHER_AXIS, device, x)
    np.testing.assert_array_equal(found, x - x.sum(1)[None])


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


@ON_DEVICES
def test_a_product_that_is_broadcast(device: Device, device_name: str) -> None:
    a, b = small(2, 13, 13)
    expected = np.broadcast_to(a @ b - b, (5, 13, 13))
    np.testing.assert_array_equal(run(PRODUCTS, device, a, b), expected)


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
def test_batch_norm_training(device: Device, device_name: str, rows: str) -> None:
    """Sums of 6 numbers below 400 in f32, one square root and quotient: within 1e-5."""
    x = small(6, 13)
    g, h = small(2, 13)
    target = "vulkan" if device.is_vulkan else "llvm-cpu"
    text = BATCH_NORM.replace("ROWS", rows)
    found = subquant.compile(text, target=target, device=device).main(x, g, h)
    wide = x.astype(np.float64)
    expected = g * (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 0.5) + h
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)


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


@ON_DEVICES
def test_rows_of_any_length(device: Device, device_name: str) -> None:
    """Devices' exponentials are within 3 + 2 |x| units in the last place (Vulkan), so 1e-5."""
    x = small(4, 9)
    exponentials = np.exp(x.astype(np.float64))
    expected = exponentials / exponentials.sum(1, keepdims=True)
    np.testing.assert_allclose(run(SOFTMAX, device, x), expected, rtol=1e-5)


UNSIGNED = """
!q = !quant.uniform<u8:f32, 1.0>
!o = !quant.uniform<i32:f32, 1.0>
func.func @main(%a: tensor<1x64x!q>, %w: tensor<64x2x!q>) -> tensor<1x2x!o> {
  %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
      : (tensor<1x64x!q>, tensor<64x2x!q>) -> tensor<1x2x!o>
  return %0 : tensor<1x2x!o>
}
"""


@ON_DEVICES
def test_products_of_unsigned_storage(device: Device, device_name: str) -> None:
    """Storage that is shifted to signed is multiplied and summed: the first call shows it."""
    generator = np.random.default_rng(2)
    a, w = (generator.integers(0, 256, s).astype(np.uint8) for s in ((1, 64), (64, 2)))
    expected = a.astype(np.int64) @ w.astype(np.int64)
    np.testing.assert_array_equal(run(UNSIGNED, device, a, w), expected)
