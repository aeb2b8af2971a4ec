"""Operations of dynamic shape, compared with NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from devices import ON_DEVICES, run
from programs import convolution_of, one_operation
from subquant.errors import ExecutionError
from subquant.runtime import Device

QUANTIZED = "!quant.uniform<i8:f32, 0.5:3>"
ELEMENTS = {"f32": np.float32, "i8": np.int8, "ui8": np.uint8, QUANTIZED: np.int8}


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


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
    operands = f"?x?x{element}", element, *["2xi32"] * 3
    text = one_operation("stablehlo.dynamic_pad %0, %1, %2, %3, %4", operands, operands[0])
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


DYNAMIC_CONVOLUTION = one_operation(
    """"stablehlo.dynamic_conv"(%0, %1, %2) {
      batch_group_count = 1 : i64, feature_group_count = 1 : i64,
      dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>}""",
    ("1x5x5x2xui8", "3x3x2x4xui8", "2x2xi32"),
    "1x4x4x4xi32",
)


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


RESHAPE = "stablehlo.dynamic_reshape %0, %1"


@ON_DEVICES
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(
    ("source", "target"), [("?x?x2", "?x?"), ("?x3x?", "4x?"), ("2x3x2", "?x?")]
)
def test_reshapes(device: Device, device_name: str, element: str, source: str, target: str) -> None:
    x = np.arange(12).reshape(2, 3, 2).astype(ELEMENTS[element])
    text = one_operation(RESHAPE, (f"{source}x{element}", "2xi32"), f"{target}x{element}")
    np.testing.assert_array_equal(run(text, device, x, numbers(4, 3)), x.reshape(4, 3))


@ON_DEVICES
def test_a_reshape_to_another_number_of_elements(device: Device, device_name: str) -> None:
    text = one_operation(RESHAPE, ("?xf32", "2xi32"), "?x?xf32")
    with pytest.raises(ExecutionError, match="must have as many elements as the operand"):
        run(text, device, np.zeros(6, np.float32), numbers(4, 2))


@ON_DEVICES
@pytest.mark.parametrize("shape", list(itertools.product((1, 3), (1, 4))))
@pytest.mark.parametrize("element", ["f32", "ui8"])
def test_dimensions_that_expand_at_run_time(
    device: Device, device_name: str, shape: tuple[int, int], element: str
) -> None:
    x = (np.arange(12)[: shape[0] * shape[1]].reshape(shape) + 240).astype(ELEMENTS[element])
    broadcast = "stablehlo.dynamic_broadcast_in_dim %0, %1, dims = [0, 2]"
    text = one_operation(broadcast, (f"?x?x{element}", "3xi32"), f"?x?x?x{element}")
    actual = run(text, device, x, numbers(3, 2, 4))
    np.testing.assert_array_equal(actual, np.broadcast_to(x[:, None], (3, 2, 4)))


GATHER = one_operation(
    """"stablehlo.dynamic_gather"(%0, %1, %2) {dimension_numbers = #stablehlo.gather<
      offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0],
      index_vector_dim = 1>}""",
    ("5x4xf32", "3xi32", "2xi32"),
    "3x4xf32",
)


@ON_DEVICES
def test_gathers(device: Device, device_name: str) -> None:
    """A position beyond the end is clamped, as in `gather`."""
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    actual = run(GATHER, device, x, numbers(2, 9, 0), numbers(1, 4))
    np.testing.assert_array_equal(actual, x[[2, 4, 0]])


CONVOLUTION = one_operation(
    convolution_of("[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]", "pad = [[1, 1], [1, 1]]"),
    ("?x6x6x2x!quant.uniform<i8:f32, 0.5:-31>", "3x3x2x3x!quant.uniform<i8:f32, 0.5>"),
    "?x6x6x3x!quant.uniform<i32:f32, 0.25>",
)


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


SORT = """"stablehlo.sort"(%0) ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %1 = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  })"""


@ON_DEVICES
def test_a_sort_is_along_the_last_dimension(device: Device, device_name: str) -> None:
    x = np.array([[3, 1, 2, 0], [5, 7, 4, 6]], np.int32)
    text = one_operation(SORT, ("2x4xi32",), "2x4xi32")
    np.testing.assert_array_equal(run(text, device, x), np.sort(x))
