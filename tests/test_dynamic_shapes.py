"""Operations of dynamic shape, compared with NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from devices import ON_DEVICES, run
from subquant.errors import ExecutionError
from subquant.runtime import Device

QUANTIZED = "!quant.uniform<i8:f32, 0.5:3>"
ELEMENTS = {"f32": np.float32, "i8": np.int8, "ui8": np.uint8, QUANTIZED: np.int8}


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


PAD = """
func.func @main(%x: tensor<?x?xELEMENT>, %z: tensor<ELEMENT>, %low: tensor<2xi32>,
                %high: tensor<2xi32>, %between: tensor<2xi32>) -> tensor<?x?xELEMENT> {
  %0 = stablehlo.dynamic_pad %x, %z, %low, %high, %between
      : (tensor<?x?xELEMENT>, tensor<ELEMENT>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>)
        -> tensor<?x?xELEMENT>
  return %0 : tensor<?x?xELEMENT>
}
"""


@ON_DEVICES
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(
    ("low", "high", "between"),
    [((1, 0), (0, 2), (0, 0)), ((0, 3), (1, 0), (2, 1)), ((-1, 2), (1, -2), (1, 0))],
)
def test_pads(
    device: Device,
    device_name: str,
    element: str,
    low: tuple[int, int],
    high: tuple[int, int],
    between: tuple[int, int],
) -> None:
    x = np.arange(1, 13).reshape(3, 4).astype(ELEMENTS[element])
    z = np.array(77, ELEMENTS[element])
    text = PAD.replace("ELEMENT", element)
    actual = run(text, device, x, z, numbers(*low), numbers(*high), numbers(*between))
    shape = [
        before + after + n + (n - 1) * b
        for before, after, n, b in zip(low, high, x.shape, between, strict=True)
    ]
    expected = np.full(shape, z)
    for i, j in np.ndindex(*x.shape):
        index = low[0] + i * (between[0] + 1), low[1] + j * (between[1] + 1)
        if all(0 <= at < extent for at, extent in zip(index, shape, strict=True)):
            expected[index] = x[i, j]
    np.testing.assert_array_equal(actual, expected)


DYNAMIC_CONVOLUTION = """
func.func @main(%x: tensor<1x5x5x2xui8>, %w: tensor<3x3x2x4xui8>, %p: tensor<2x2xi32>)
    -> tensor<1x4x4x4xi32> {
  %0 = "stablehlo.dynamic_conv"(%x, %w, %p) {
      batch_group_count = 1 : i64, feature_group_count = 1 : i64,
      dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>}
      : (tensor<1x5x5x2xui8>, tensor<3x3x2x4xui8>, tensor<2x2xi32>) -> tensor<1x4x4x4xi32>
  return %0 : tensor<1x4x4x4xi32>
}
"""


@ON_DEVICES
def test_unsigned_images_are_padded(device: Device, device_name: str) -> None:
    random = np.random.default_rng(1)
    x = random.integers(128, 256, (1, 5, 5, 2), np.uint8)
    w = random.integers(128, 256, (3, 3, 2, 4), np.uint8)
    padded = np.pad(x.astype(np.int32), ((0, 0), (1, 0), (0, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    expected = np.einsum("nhwcij,ijco->nhwo", windows, w.astype(np.int32))
    actual = run(DYNAMIC_CONVOLUTION, device, x, w, np.array([[1, 0], [0, 1]], np.int32))
    np.testing.assert_array_equal(actual, expected)


RESHAPE = """
func.func @main(%x: tensor<SOURCExELEMENT>, %s: tensor<2xi32>) -> tensor<TARGETxELEMENT> {
  %0 = stablehlo.dynamic_reshape %x, %s
      : (tensor<SOURCExELEMENT>, tensor<2xi32>) -> tensor<TARGETxELEMENT>
  return %0 : tensor<TARGETxELEMENT>
}
"""


@ON_DEVICES
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(
    ("source", "target"), [("?x?x2", "?x?"), ("?x3x?", "4x?"), ("2x3x2", "?x?")]
)
def test_reshapes(device: Device, device_name: str, element: str, source: str, target: str) -> None:
    x = np.arange(12).reshape(2, 3, 2).astype(ELEMENTS[element])
    text = RESHAPE.replace("SOURCE", source).replace("TARGET", target).replace("ELEMENT", element)
    actual = run(text, device, x, numbers(4, 3))
    np.testing.assert_array_equal(actual, x.reshape(4, 3))


@ON_DEVICES
def test_a_reshape_to_another_number_of_elements(device: Device, device_name: str) -> None:
    text = RESHAPE.replace("SOURCE", "?").replace("TARGET", "?x?").replace("ELEMENT", "f32")
    with pytest.raises(ExecutionError, match="must have as many elements as the operand"):
        run(text, device, np.zeros(6, np.float32), numbers(4, 2))


BROADCAST = """
func.func @main(%x: tensor<?x?xf32>, %s: tensor<3xi32>) -> tensor<?x?x?xf32> {
  %0 = stablehlo.dynamic_broadcast_in_dim %x, %s, dims = [0, 2]
      : (tensor<?x?xf32>, tensor<3xi32>) -> tensor<?x?x?xf32>
  return %0 : tensor<?x?x?xf32>
}
"""


@ON_DEVICES
@pytest.mark.parametrize("shape", list(itertools.product((1, 3), (1, 4))))
def test_dimensions_that_expand_at_run_time(
    device: Device, device_name: str, shape: tuple[int, int]
) -> None:
    x = np.arange(12, dtype=np.float32)[: shape[0] * shape[1]].reshape(shape)
    actual = run(BROADCAST, device, x, numbers(3, 2, 4))
    np.testing.assert_array_equal(actual, np.broadcast_to(x[:, None], (3, 2, 4)))


GATHER = """
func.func @main(%x: tensor<5x4xf32>, %i: tensor<3xi32>, %s: tensor<2xi32>) -> tensor<3x4xf32> {
  %0 = "stablehlo.dynamic_gather"(%x, %i, %s) {dimension_numbers = #stablehlo.gather<
      offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>}
      : (tensor<5x4xf32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}
"""


@ON_DEVICES
def test_gathers(device: Device, device_name: str) -> None:
    """A position beyond the end is clamped, as in `gather`."""
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    actual = run(GATHER, device, x, numbers(2, 9, 0), numbers(1, 4))
    np.testing.assert_array_equal(actual, x[[2, 4, 0]])


CONVOLUTION = """
!x = !quant.uniform<i8:f32, 0.5:-31>
!w = !quant.uniform<i8:f32, 0.5>
!o = !quant.uniform<i32:f32, 0.25>
func.func @main(%x: tensor<?x6x6x2x!x>, %w: tensor<3x3x2x3x!w>) -> tensor<?x6x6x3x!o> {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<?x6x6x2x!x>, tensor<3x3x2x3x!w>) -> tensor<?x6x6x3x!o>
  return %0 : tensor<?x6x6x3x!o>
}
"""


@ON_DEVICES
def test_a_convolution_of_any_batch(device: Device, device_name: str) -> None:
    """The zero point pads; a quarter is the product of the scales."""
    generator = np.random.default_rng(1)
    x = generator.integers(-128, 128, (2, 6, 6, 2)).astype(np.int8)
    w = generator.integers(-128, 128, (3, 3, 2, 3)).astype(np.int8)
    padded = np.zeros((2, 8, 8, 2), np.int64)
    padded[:, 1:7, 1:7] = x.astype(np.int64) + 31
    expected = np.zeros((2, 6, 6, 3), np.int64)
    for i, j in np.ndindex(6, 6):
        window = padded[:, i : i + 3, j : j + 3]
        expected[:, i, j] = np.einsum("bhwc,hwco->bo", window, w.astype(np.int64))
    np.testing.assert_array_equal(run(CONVOLUTION, device, x, w), expected)


SORT = """
func.func @main(%x: tensor<2x4xi32>) -> tensor<2x4xi32> {
  %0 = "stablehlo.sort"(%x) ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %1 = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) : (tensor<2x4xi32>) -> tensor<2x4xi32>
  return %0 : tensor<2x4xi32>
}
"""


@ON_DEVICES
def test_a_sort_is_along_the_last_dimension(device: Device, device_name: str) -> None:
    x = np.array([[3, 1, 2, 0], [5, 7, 4, 6]], np.int32)
    np.testing.assert_array_equal(run(SORT, device, x), np.sort(x))
