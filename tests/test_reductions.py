"""Reductions with a wider body on devices, against NumPy: exact, integers and floats.

Sums of floats here are of integers below 2**24, so that every order of a float32 sum is exact. One
module holds all programs; each is called with arguments. Quantized reductions are compared where
their lowering is tested; here, as text, in ``tests/filecheck/canonicalize-reductions``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from devices import compile_for
from stablehlo_forms import PART_OF_ROWS, reduction, scatter, select_and_scatter
from subquant.runtime import Executable

ROWS = "dimensions = array<i64: 1>"
WINDOW = (
    "window_dimensions = array<i64: 2, 3>, window_strides = array<i64: 1, 2>, "
    "padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>"
)
SHAPES = (4, 9), (3, 5)
LONG_ROWS = (4, 300), (4,)
PLAIN = {
    "sum_i8": ("stablehlo.reduce", ("i8", "i32", "i32"), ROWS, LONG_ROWS),
    "back_i8": ("subquant.reduce", ("i8", "i32", "i8"), ROWS, LONG_ROWS),
    "min_i16": ("subquant.reduce", ("i16", "i32", "i16"), ROWS, LONG_ROWS, "minimum"),
    "sum_f16": ("stablehlo.reduce", ("f16", "f32", "f32"), ROWS, ((4, 5000), (4,))),
    "back_f16": ("subquant.reduce", ("f16", "f32", "f16"), ROWS, ((4, 5000), (4,))),
    "dynamic": ("subquant.reduce", ("i8", "i32", "i8"), ROWS, ("??", "?")),
    "narrow": ("subquant.reduce", ("i32", "i8", "i32"), ROWS, LONG_ROWS),
    "window_i8": ("stablehlo.reduce_window", ("i8", "i32", "i32"), WINDOW, SHAPES),
    "window_f16": ("subquant.reduce_window", ("f16", "f32", "f16"), WINDOW, SHAPES),
    "window_max": ("subquant.reduce_window", ("i8", "i32", "i8"), WINDOW, SHAPES, "maximum"),
}

ARGMAX = """
func.func @argmax(%x: tensor<4x50xf16>, %i: tensor<f16>) -> (tensor<4xf32>, tensor<4xi32>) {
  %n = stablehlo.iota dim = 1 : tensor<4x50xi32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = "stablehlo.reduce"(%x, %n, %i, %zero) ({
  ^bb0(%a: tensor<f32>, %c: tensor<i32>, %b: tensor<f32>, %d: tensor<i32>):
    %ge = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %v = stablehlo.select %ge, %a, %b : tensor<i1>, tensor<f32>
    %m = stablehlo.select %ge, %c, %d : tensor<i1>, tensor<i32>
    stablehlo.return %v, %m : tensor<f32>, tensor<i32>
  }) {dimensions = array<i64: 1>}
    : (tensor<4x50xf16>, tensor<4x50xi32>, tensor<f16>, tensor<i32>)
      -> (tensor<4xf32>, tensor<4xi32>)
  return %0#0, %0#1 : tensor<4xf32>, tensor<4xi32>
}
"""
UNSIGNED = """
func.func @sum_ui8(%s: tensor<4x300xi8>, %j: tensor<i8>) -> tensor<4xi32> {
  %x = stablehlo.bitcast_convert %s : (tensor<4x300xi8>) -> tensor<4x300xui8>
  %i = stablehlo.bitcast_convert %j : (tensor<i8>) -> tensor<ui8>
  %0 = "stablehlo.reduce"(%x, %i) ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %s0 = stablehlo.add %a, %b : tensor<i32>
    stablehlo.return %s0 : tensor<i32>
  }) {dimensions = array<i64: 1>} : (tensor<4x300xui8>, tensor<ui8>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}
"""
MOMENTS = """
func.func @sums(%x: tensor<4x50xi8>, %y: tensor<4x50xf16>, %i: tensor<i8>, %j: tensor<f16>)
    -> (tensor<4xi8>, tensor<4xf16>) {
  %0:2 = "subquant.reduce_2"(%x, %y, %i, %j) ({
  ^bb0(%a: tensor<i32>, %c: tensor<f32>, %b: tensor<i32>, %d: tensor<f32>):
    %v = stablehlo.add %a, %b : tensor<i32>
    %m = stablehlo.maximum %c, %d : tensor<f32>
    stablehlo.return %v, %m : tensor<i32>, tensor<f32>
  }) {dimensions = array<i64: 1>}
    : (tensor<4x50xi8>, tensor<4x50xf16>, tensor<i8>, tensor<f16>) -> (tensor<4xi8>, tensor<4xf16>)
  return %0#0, %0#1 : tensor<4xi8>, tensor<4xf16>
}
"""


OVERLAPPING = (
    "window_dimensions = array<i64: 2, 3>, window_strides = array<i64: 2, 1>, "
    "padding = dense<[[1, 1], [1, 1]]> : tensor<2x2xi64>"
)
"""Windows with padding; the first of equal elements is selected."""
SELECTIONS = {
    "select_i8": ("stablehlo.select_and_scatter", ("i8", "i32", "i32")),
    "select_f16": ("subquant.select_and_scatter", ("f16", "f32", "f16")),
    "select_merged": ("subquant.select_and_scatter", ("f32", "f16", "f32")),
}
SCATTERED = (6, 3), (8, 1), (8, 3)
"""Rows of updates are added to rows of the input; rows may repeat."""
PROGRAM = "".join([
    *(reduction(*arguments, name=name) for name, arguments in PLAIN.items()),
    ARGMAX, UNSIGNED, MOMENTS,
    scatter(SCATTERED, PART_OF_ROWS, "i8", total="i32", name="scatter_i8"),
    scatter(SCATTERED, PART_OF_ROWS, "f16", total="f32", name="scatter_f16"),
    *(select_and_scatter(*arguments, OVERLAPPING, ((4, 8), (3, 8)), name)
      for name, arguments in SELECTIONS.items()),
])  # fmt: skip


@pytest.fixture(scope="module", params=["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def program(request: Any) -> Executable:
    return compile_for(PROGRAM, request.getfixturevalue(request.param))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def windows(x: np.ndarray, init: Any, compute: Callable[[np.ndarray], Any]) -> np.ndarray:
    """Apply `compute` to the windows that ``WINDOW`` describes."""
    padded = np.pad(x, ((0, 0), (1, 1)), constant_values=init)
    view = np.lib.stride_tricks.sliding_window_view(padded, (2, 3))[:, ::2]
    return np.array([[compute(view[i, j]) for j in range(5)] for i in range(3)])


def selected(x: np.ndarray, y: np.ndarray, init: Any, dtype: Any) -> np.ndarray:
    """``select_and_scatter`` by its definition: a loop over windows, and over their elements."""
    result = np.full(x.shape, init, dtype)
    for window in np.ndindex(*y.shape):
        best = None
        for offset in np.ndindex(2, 3):
            at = (window[0] * 2 + offset[0] - 1, window[1] + offset[1] - 1)
            inside = 0 <= at[0] < x.shape[0] and 0 <= at[1] < x.shape[1]
            if inside and (best is None or not x[best] >= x[at]):
                best = at
        result[best] += y[window].astype(dtype)
    return result


def equal(got: Any, expected: Any, dtype: Any) -> None:
    np.testing.assert_array_equal(got, np.asarray(expected).astype(dtype), strict=True)


def test_sums_of_integers_do_not_wrap(program: Executable, rng: np.random.Generator) -> None:
    x = rng.integers(90, 128, (4, 300)).astype(np.int8)
    expected = x.sum(1, dtype=np.int32) - 5
    assert expected.min() > 20_000
    equal(program.sum_i8(x, np.int8(-5)), expected, np.int32)


def test_unsigned_integers_are_extended_with_zeros(
    program: Executable, rng: np.random.Generator
) -> None:
    x = rng.integers(128, 256, (4, 300)).astype(np.uint8)
    got = program.sum_ui8(x.view(np.int8), np.uint8(200).view(np.int8))
    equal(got, x.sum(1, dtype=np.int32) + 200, np.int32)


def test_results_of_the_inputs_type(program: Executable, rng: np.random.Generator) -> None:
    """The sum fits i8 only at the end: the first half goes up to 15,000, the second back."""
    x = np.full((4, 300), 100, np.int8)
    x[:, 150:] = -100
    x[:, 0] = [100, 101, 37, -28]
    equal(program.back_i8(x, np.int8(3)), [3, 4, -60, -125], np.int8)
    equal(program.dynamic(x, np.int8(3)), [3, 4, -60, -125], np.int8)
    equal(program.dynamic(x[:2, :1], np.int8(-100)), [0, 1], np.int8)
    shorts = rng.integers(-(2**15), 2**15, (4, 300)).astype(np.int16)
    equal(program.min_i16(shorts, np.int16(2**15 - 1)), shorts.min(1), np.int16)


def test_sums_of_halves_keep_their_bits(program: Executable) -> None:
    """A float16 sum of ones ends at 2048, where the next number is 2050."""
    x = np.ones((4, 5000), np.float16)
    x[1] = 0.125
    x[2, ::2] = -1
    equal(program.sum_f16(x, np.float16(1)), [5001, 626, 1, 5001], np.float32)
    equal(program.back_f16(x, np.float16(1)), [5001, 626, 1, 5001], np.float16)


def test_a_narrower_body(program: Executable, rng: np.random.Generator) -> None:
    """The RFC does not ask for a wider one; sums stay inside of i8 here."""
    x = rng.integers(-1, 2, (4, 300)).astype(np.int32)
    x[:, 1::2] = -x[:, ::2]
    equal(program.narrow(x, np.int32(9)), [9] * 4, np.int32)


def test_several_tensors(program: Executable, rng: np.random.Generator) -> None:
    x = rng.permutation(200).reshape(4, 50).astype(np.float16)
    values, numbers = program.argmax(x, np.float16(-1))
    equal(values, x.max(1), np.float32)
    equal(numbers, x.argmax(1), np.int32)
    y = np.where(np.arange(50) % 2, -127, 127) * np.ones((4, 1), int)
    y[:, :10] = 2
    total, greatest = program.sums(y.astype(np.int8), x, np.int8(1), np.float16(100))
    equal(total, y.sum(1) + 1, np.int8)
    equal(greatest, np.maximum(x.max(1), 100), np.float16)


def test_windows(program: Executable, rng: np.random.Generator) -> None:
    x = rng.integers(-128, 128, (4, 9)).astype(np.int8)
    init = np.int8(-3)
    wide = windows(x.astype(np.int32), -3, lambda window: window.sum() - 3)
    equal(program.window_i8(x, np.int8(0)), windows(x.astype(int), 0, np.sum), np.int32)
    assert abs(wide).max() > 127
    equal(program.window_max(x, init), windows(x, init, lambda w: max(w.max(), init)), np.int8)
    halves = rng.integers(-300, 300, (4, 9)).astype(np.float16)
    equal(program.window_f16(halves, np.float16(0)), windows(halves, 0, np.sum), np.float16)


def test_scatters_add_repeated_rows(program: Executable, rng: np.random.Generator) -> None:
    rows = np.array([0, 2, 2, 2, 5, 5, 0, 2], np.int32)
    for name, narrow, wide in (
        ("scatter_i8", np.int8, np.int32),
        ("scatter_f16", np.float16, np.float32),
    ):
        x = rng.integers(-128, 128, (6, 3)).astype(narrow)
        updates = rng.integers(100, 128, (8, 3)).astype(narrow)
        expected = x.astype(wide)
        np.add.at(expected, rows, updates.astype(wide))
        equal(program[name](x, rows[:, None], updates), expected, wide)


@pytest.mark.parametrize("bounds", [(-128, 128), (-9, -5), (0, 3)], ids=str)
def test_select_and_scatter(
    program: Executable, rng: np.random.Generator, bounds: tuple[int, int]
) -> None:
    """Windows overlap, elements are equal in the last bounds, and all negative in the second."""
    for _ in range(3):
        x = rng.integers(*bounds, (4, 8)).astype(np.int8)
        y = rng.integers(-128, 128, (3, 8)).astype(np.int8)
        for init in (np.int8(0), np.int8(3)):
            equal(program.select_i8(x, y, init), selected(x, y, init, np.int32), np.int32)
        halves = (x.astype(np.float16), y.astype(np.float16), np.float16(2))
        equal(program.select_f16(*halves), selected(*halves, np.float32), np.float16)


def test_elements_are_selected_before_they_are_converted(
    program: Executable, rng: np.random.Generator
) -> None:
    """In the accumulator's type, float16, four consecutive elements of the operand are one."""
    x = (rng.permutation(32).reshape(4, 8) + 4096).astype(np.float32)
    y = rng.integers(-9, 10, (3, 8)).astype(np.float32)
    expected = selected(x, y, 0, np.float16)
    assert (selected(x.astype(np.float16), y, 0, np.float16) != expected).any()
    equal(program.select_merged(x, y, np.float32(0)), expected, np.float32)
