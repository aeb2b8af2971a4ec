"""Batches of int8 matrix products, such as those of attention: exact with every instruction set."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from block_programs import with_constants
from devices import main_of
from instruction_sets import EVERY
from integer_programs import drawn
from onnx_models import model, node, text_of
from programs import lowered_text


@dataclass(frozen=True)
class Batch:
    """The shapes, batch axes and contracted axes of both operands, and the sum as for einsum."""

    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    batching: str
    contracting: str
    einsum: str

    def operands(self) -> list[np.ndarray]:
        """Random integers of all values."""
        return [drawn(*shape, seed=seed) for seed, shape in enumerate(self.shapes)]

    def expected(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The sums, by NumPy."""
        return np.einsum(self.einsum, x.astype(np.int64), y.astype(np.int64))

    def text(self) -> str:
        """The program."""
        x, y = (f"tensor<{'x'.join(map(str, shape))}xi8>" for shape in self.shapes)
        shape = self.expected(*(np.zeros(each, np.int8) for each in self.shapes)).shape
        result = f"tensor<{'x'.join(map(str, shape))}xi32>"
        return (
            f"func.func @main(%x: {x}, %w: {y}) -> {result} {{\n"
            f"  %y = stablehlo.dot_general %x, %w, batching_dims = {self.batching}, "
            f"contracting_dims = {self.contracting} : ({x}, {y}) -> {result}\n"
            f"  return %y : {result}\n}}\n"
        )


BATCHES = {
    "scores": Batch(((6, 40, 64), (6, 48, 64)), "[0] x [0]", "[2] x [2]", "bmk,bnk->bmn"),
    "values": Batch(((6, 40, 48), (6, 48, 64)), "[0] x [0]", "[2] x [1]", "bmk,bkn->bmn"),
    "odd sizes": Batch(((3, 37, 19), (3, 50, 19)), "[0] x [0]", "[2] x [2]", "bmk,bnk->bmn"),
    "one batch": Batch(((1, 20, 130), (1, 130, 70)), "[0] x [0]", "[2] x [1]", "bmk,bkn->bmn"),
    "two batch axes and two of rows": Batch(
        ((2, 3, 5, 7, 32), (2, 3, 32, 24)),
        *("[0, 1] x [0, 1]", "[4] x [2]", "abmjk,abkn->abmjn"),
    ),
    "batch axes inside": Batch(
        ((33, 4, 36), (36, 4, 17)), "[1] x [1]", "[2] x [0]", "mbk,kbn->bmn"
    ),
    "batch axes in another order": Batch(
        ((2, 3, 40, 32), (3, 13, 32, 2)), "[1, 0] x [0, 3]", "[3] x [2]", "abmk,bnka->bamn"
    ),
}


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("case", BATCHES)
@pytest.mark.share(14)
def test_batches_are_exact(case, instructions):
    batch = BATCHES[case]
    x, y = batch.operands()
    actual = main_of(batch.text(), kernels=instructions)(x, y)
    np.testing.assert_array_equal(actual, batch.expected(x, y))


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("case", ["odd sizes", "batch axes in another order"])
@pytest.mark.share(4)
def test_batches_of_constant_weights_are_exact(case, instructions):
    batch = BATCHES[case]
    x, y = batch.operands()
    actual = main_of(with_constants(batch.text(), y), kernels=instructions)(x)
    np.testing.assert_array_equal(actual, batch.expected(x, y))


def test_batches_have_a_kernel() -> None:
    assert "stream.executable" in lowered_text(BATCHES["scores"].text(), kernels="avx2")


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("zero_points", [(0, 0), (3, 0), (0, -5), (-128, 127)])
@pytest.mark.parametrize("k", [30, 500])
@pytest.mark.share(8)
def test_quantized_batches(k: int, zero_points: tuple[int, int], instructions: str) -> None:
    """The kernel corrects the sums for the zero points of both operands, and requantizes them."""
    left, right = zero_points
    numbers = {"xs": 0.5, "ys": 0.25, "zs": 32.0}
    integers = {"xz": left, "yz": right, "zz": 7}
    constants = {name: np.array(value, np.float32) for name, value in numbers.items()}
    constants |= {name: np.array(value, np.int8) for name, value in integers.items()}
    product = node("QLinearMatMul", ["x", "xs", "xz", "y", "ys", "yz", "zs", "zz"], ["z"])
    inputs = {"x": ("INT8", (3, 40, k)), "y": ("INT8", (3, k, 33))}
    text = text_of(model([product], inputs, {"z": ("INT8", (3, 40, 33))}, constants))
    x, y = drawn(3, 40, k), drawn(3, k, 33, seed=1)
    accumulators = (x.astype(np.float64) - left) @ (y.astype(np.float64) - right)
    expected = np.clip(np.rint(accumulators * (0.5 * 0.25 / 32)) + 7, -128, 127)
    np.testing.assert_array_equal(main_of(text, kernels=instructions)(x, y), expected)


@pytest.mark.parametrize("instructions", ["avx2", "avx512vnni"])
def test_a_kernel_requantizes_a_batch_with_two_zero_points(instructions: str) -> None:
    constants = {name: np.array(0.5, np.float32) for name in ("xs", "ys", "zs")}
    constants |= {name: np.array(3, np.int8) for name in ("xz", "yz", "zz")}
    product = node("QLinearMatMul", ["x", "xs", "xz", "y", "ys", "yz", "zs", "zz"], ["z"])
    inputs = {"x": ("INT8", (3, 40, 30)), "y": ("INT8", (3, 30, 33))}
    text = text_of(model([product], inputs, {"z": ("INT8", (3, 40, 33))}, constants))
    assert "-> tensor<3x40x33xi32>" not in lowered_text(text, kernels=instructions)


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.share(5)
def test_added_rows_and_columns_may_wrap(instructions: str) -> None:
    """Arguments of any size are added to sums, which are shifted and saturated."""
    text = """
func.func @main(%x: tensor<3x30x32xi8>, %w: tensor<3x32x24xi8>, %r: tensor<3x30xi32>,
                %c: tensor<3x24xi32>) -> tensor<3x30x24xi8> {
  %acc = stablehlo.dot_general %x, %w, batching_dims = [0] x [0], contracting_dims = [2] x [1]
      : (tensor<3x30x32xi8>, tensor<3x32x24xi8>) -> tensor<3x30x24xi32>
  %two = stablehlo.constant dense<2> : tensor<3x30x24xi32>
  %rows = stablehlo.broadcast_in_dim %r, dims = [0, 1] : (tensor<3x30xi32>) -> tensor<3x30x24xi32>
  %twice = stablehlo.multiply %rows, %two : tensor<3x30x24xi32>
  %cols = stablehlo.broadcast_in_dim %c, dims = [0, 2] : (tensor<3x24xi32>) -> tensor<3x30x24xi32>
  %0 = stablehlo.subtract %acc, %twice : tensor<3x30x24xi32>
  %1 = stablehlo.add %cols, %0 : tensor<3x30x24xi32>
  %bits = stablehlo.constant dense<24> : tensor<3x30x24xi32>
  %2 = stablehlo.shift_right_arithmetic %1, %bits : tensor<3x30x24xi32>
  %3 = stablehlo.convert %2 : (tensor<3x30x24xi32>) -> tensor<3x30x24xi8>
  return %3 : tensor<3x30x24xi8>
}
"""
    rng = np.random.default_rng(0)
    x, w = drawn(3, 30, 32), drawn(3, 32, 24, seed=1)
    rows, columns = (rng.integers(-(2**31), 2**31, (3, n), np.int32) for n in (30, 24))
    assert "-> tensor<3x30x24xi32>" not in lowered_text(text, kernels="avx2")
    totals = x.astype(np.int64) @ w - 2 * rows.astype(np.int64)[..., None] + columns[:, None]
    expected = (totals.astype(np.int32) >> 24).astype(np.int8)
    actual = main_of(text, kernels=instructions)(x, w, rows, columns)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("types", [("UINT8", "UINT8"), ("INT8", "UINT8")])
@pytest.mark.parametrize("batches", [(), (3,), (2, 3)])
def test_computed_zero_points(types: tuple[str, str], batches: tuple[int, ...]) -> None:
    """Zero points that are arguments, of one operand or both."""
    shapes = (*batches, 40, 30), (*batches, 30, 37)
    product = node("MatMulInteger", ["x", "y", "xz", "yz"], ["z"])
    left, right = types
    inputs = {"x": (left, shapes[0]), "y": (right, shapes[1]), "xz": (left, ()), "yz": (right, ())}
    result = {"z": ("INT32", (*batches, 40, 37))}
    text = text_of(model([product], inputs, result, {}))
    assert "stream.executable" in lowered_text(text, kernels="avx2")
    x, y = (
        drawn(*shape, seed=seed).view(np.dtype(name.lower()))
        for seed, (shape, name) in enumerate(zip(shapes, types, strict=True))
    )
    main = main_of(text)
    for xz, yz in itertools.product((0, 100), (0, 127)):
        zeros = np.array(xz, x.dtype), np.array(yz, y.dtype)
        expected = (x.astype(np.int64) - xz) @ (y.astype(np.int64) - yz)
        np.testing.assert_array_equal(main(x, y, *zeros), expected)


def test_padded_rows_of_a_product() -> None:
    """A pad of rows is no padding of a convolution."""
    text = """
func.func @main(%x: tensor<2x15x64xi8>, %w: tensor<64x64xi8>) -> tensor<2x19x64xi32> {
  %z = stablehlo.constant dense<3> : tensor<i8>
  %p = stablehlo.pad %x, %z, low = [0, 2, 0], high = [0, 2, 0], interior = [0, 0, 0]
      : (tensor<2x15x64xi8>, tensor<i8>) -> tensor<2x19x64xi8>
  %y = stablehlo.dot_general %p, %w, contracting_dims = [2] x [0]
      : (tensor<2x19x64xi8>, tensor<64x64xi8>) -> tensor<2x19x64xi32>
  return %y : tensor<2x19x64xi32>
}
"""
    x, w = drawn(2, 15, 64), drawn(64, 64, seed=1)
    padded = np.pad(x, [(0, 0), (2, 2), (0, 0)], constant_values=3)
    expected = padded.astype(np.int64) @ w.astype(np.int64)
    np.testing.assert_array_equal(main_of(text)(x, w), expected)
