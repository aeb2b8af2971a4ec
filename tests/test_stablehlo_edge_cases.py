"""Edge cases of quantized StableHLO: empty reductions, windows that fit nowhere, dynamic shapes.

Expected numbers are computed from expressed values, with NumPy and exact fractions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from devices import ON_DEVICES, compile_for, run
from programs import one_operation
from stablehlo_forms import PART_OF_ROWS, scatter
from subquant.errors import UnsupportedError
from subquant.interpreter.interpreted_module import InterpretedModule
from subquant.runtime import Device


def real(stored: np.ndarray, scale: float, zero_point: int) -> np.ndarray:
    """The exact reals, as fractions."""
    differences = stored.astype(np.int64) - zero_point
    flat = [int(d) * Fraction(float(np.float32(scale))) for d in differences.reshape(-1)]
    return np.array(flat, object).reshape(stored.shape)


def quantized(
    reals: np.ndarray, scale: float, zero_point: int, low: int = -128, high: int = 127
) -> list[int]:
    """Storage values nearest to the reals, flat."""
    exact = Fraction(float(np.float32(scale)))
    return [min(max(round(r / exact + zero_point), low), high) for r in reals.reshape(-1)]


# -- contractions ---------------------------------------------------------------------------------


@ON_DEVICES
@pytest.mark.parametrize("width", [8, 32])
@pytest.mark.parametrize("scale", ["1.0e-09", "1.0e+09"])
@pytest.mark.share(6)
def test_a_sum_of_no_products_is_the_zero_point(
    device: Device, device_name: str, width: int, scale: str
) -> None:
    operands = [f"{shape}x!quant.uniform<i{width}:f32, 0.5>" for shape in ("2x0", "0x3")]
    result = f"2x3x!quant.uniform<i8:f32, {scale}:5>"
    dot = "stablehlo.dot_general %0, %1, contracting_dims = [1] x [0]"
    text = one_operation(dot, operands, result)
    dtype = np.dtype(f"i{width // 8}")
    actual = run(text, device, np.zeros((2, 0), dtype), np.zeros((0, 3), dtype))
    np.testing.assert_array_equal(actual, np.full((2, 3), 5))


def correlate(
    x: np.ndarray, kernel: np.ndarray, padding: Sequence[Sequence[int]], dilation: Sequence[int]
) -> np.ndarray:
    """A convolution of ``[0, 1]`` by ``[0, 1]`` with left dilation, as its definition says."""
    spread = np.full([(n - 1) * s + 1 for n, s in zip(x.shape, dilation, strict=True)], Fraction(0))
    spread[:: dilation[0], :: dilation[1]] = x
    spread = np.pad(spread, np.maximum(padding, 0))
    for axis, (low, high) in enumerate(padding):
        inside = range(max(-low, 0), spread.shape[axis] + min(high, 0))
        spread = spread.take(inside, axis)
    counts = [max(n - k + 1, 0) for n, k in zip(spread.shape, kernel.shape, strict=True)]
    result = np.full(counts, Fraction(0))
    for i, j in np.ndindex(*counts):
        result[i, j] = (spread[i : i + kernel.shape[0], j : j + kernel.shape[1]] * kernel).sum()
    return result


@ON_DEVICES
@pytest.mark.parametrize("zero_point", [0, 3])
@pytest.mark.parametrize(
    ("padding", "dilation"),
    [
        ([[-3, 0], [0, 0]], [1, 1]),  # cuts more than there is
        ([[0, 0], [0, -9]], [1, 2]),
        ([[-2, 0], [0, 0]], [1, 1]),  # cuts everything
        ([[1, 0], [0, -1]], [2, 3]),
        ([[0, -2], [2, 1]], [2, 3]),  # one position along a window, and more than it reads
    ],
)
def test_padding_that_cuts(
    device: Device, device_name: str, padding: list[list[int]], dilation: list[int], zero_point: int
) -> None:
    window = Window(padding, dilation, zero_point)
    assert run(window.text(), device, *window.arguments).reshape(-1).tolist() == window.expected


@pytest.mark.long
@pytest.mark.parametrize("sizes", [(2, 2), (1, 1)])
@pytest.mark.parametrize("dilation", [[1, 1], [2, 2], [2, 1], [1, 3]])
@pytest.mark.share(6)
def test_every_padding_interpreted(dilation: list[int], sizes: tuple[int, int]) -> None:
    ends = ([0, 0], [1, 0], [0, -1], [-1, 0], [-1, -1], [2, -1])
    windows = [Window([*two], dilation, 3, sizes) for two in itertools.product(ends, ends)]
    windows = [each for each in windows if each.expected]  # the interpreter takes no empty tensors
    assert len(windows) >= 18
    text = "".join(window.text(f"f{number}") for number, window in enumerate(windows))
    module = InterpretedModule(text)
    for number, window in enumerate(windows):
        (actual,) = module[f"f{number}"].invoke(window.arguments)
        assert actual.reshape(-1).tolist() == window.expected, window.operation


class Window:
    """A convolution, the types of its operands and its result, arguments, and its result, flat."""

    def __init__(
        self,
        padding: list[list[int]],
        dilation: list[int],
        zero_point: int,
        sizes: tuple[int, int] = (2, 2),
    ) -> None:
        rng = np.random.default_rng(1)
        x = rng.integers(-128, 127, (2, 4), np.int8, endpoint=True)
        kernel = rng.integers(-128, 127, sizes, np.int8, endpoint=True)
        expected = correlate(real(x, 0.5, zero_point), real(kernel, 0.25, 0), padding, dilation)
        self.types = [
            f"1x2x4x1x!quant.uniform<i8:f32, 0.5:{zero_point}>",
            f"{sizes[0]}x{sizes[1]}x1x1x!quant.uniform<i8:f32, 0.25>",
            f"1x{expected.shape[0]}x{expected.shape[1]}x1x!quant.uniform<i8:f32, 32.0:-4>",
        ]
        self.operation = f"""stablehlo.convolution(%0, %1)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {{pad = {padding}, lhs_dilate = {dilation}}}
      {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}"""
        self.arguments = [x.reshape(1, 2, 4, 1), kernel.reshape(*sizes, 1, 1)]
        self.expected = quantized(expected, 32.0, -4)

    def text(self, name: str = "main") -> str:
        return one_operation(self.operation, self.types[:2], self.types[2], name=name)


@ON_DEVICES
@pytest.mark.parametrize(
    ("padding", "counts"), [([[0, 0], [0, 0]], (1, 1)), ([[-6, 0], [0, 0]], (0, 1))]
)
def test_blocks_in_windows_that_leave_much_unread(
    device: Device, device_name: str, padding: list[list[int]], counts: tuple[int, int]
) -> None:
    weight = "tensor<2x3x2x1x!quant.uniform<i8:f32:{2:1}, {{{{0.5}, {0.25}}}}>>"
    result = f"tensor<1x{counts[0]}x{counts[1]}x1xf32>"
    text = f"""
func.func @main(%x: tensor<1x5x5x2xf32>, %q: {weight}) -> {result} {{
  %w = quant.dcast %q : {weight} to tensor<2x3x2x1xf32>
  %r = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {{stride = [4, 4], pad = {padding}}}
      {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
      : (tensor<1x5x5x2xf32>, tensor<2x3x2x1xf32>) -> {result}
  return %r : {result}
}}
"""
    rng = np.random.default_rng(2)
    x = rng.integers(-8, 8, (1, 5, 5, 2)).astype(np.float32)
    q = rng.integers(-128, 127, (2, 3, 2, 1), np.int8, endpoint=True)
    # Products and sums are exact in f32.
    total = (x[0, :2, :3] * q[..., 0] * np.array([0.5, 0.25])).sum()
    actual = run(text, device, x, q)
    np.testing.assert_array_equal(actual, np.full((1, *counts, 1), total, np.float32))


# -- places in tensors ----------------------------------------------------------------------------

U8 = "!quant.uniform<u8:f32, 0.25:130>"
I8 = "!quant.uniform<i8:f32, 0.5:3>"
ROWS = (np.arange(12) * 20).astype(np.uint8).reshape(3, 4)


def gather(shape: str, indices: str, result: str, before: str = "") -> str:
    x, i, r = f"tensor<{shape}x{U8}>", f"tensor<{indices}>", f"tensor<{result}x{U8}>"
    return f"""
func.func @main(%x: {x}, %i: {i}) -> {r} {{
  {before}
  %r = "stablehlo.gather"(%x, {"%j" if before else "%i"}) {{slice_sizes = array<i64: 1, 1>,
      dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1],
          start_index_map = [0, 1], index_vector_dim = 1>}} : ({x}, {i}) -> {r}
  return %r : {r}
}}
"""


OWN_CLAMP = """
  %l = stablehlo.constant dense<-100> : tensor<i32>
  %h = stablehlo.constant dense<100> : tensor<i32>
  %j = stablehlo.clamp %l, %i, %h : (tensor<i32>, tensor<3x2xi32>, tensor<i32>) -> tensor<3x2xi32>
"""
CONSTANT = "%j = stablehlo.constant dense<[[-5, 3], [1, 99], [70, -4]]> : tensor<3x2xi32>"


@ON_DEVICES
@pytest.mark.parametrize(
    ("shape", "indices", "before", "positions"),
    [
        ("3x4", "3x2xi32", "", [[-5, 3], [1, 99], [70, -4]]),
        ("3x4", "3x2xi32", OWN_CLAMP, [[-5000, 3], [1, 9999], [7000, -4]]),
        ("3x4", "3x2xi32", CONSTANT, [[0, 0], [0, 0], [0, 0]]),
        ("3x4", "3x2xi64", "", [[-(2**40), 3], [1, 2**40], [70, -4]]),
        ("3x4", "3x2xi8", "", [[-128, 3], [1, 127], [70, -4]]),
        ("3x4", "3x2xui8", "", [[0, 3], [1, 255], [250, 0]]),
        ("3x4", "3x2xui32", "", [[0, 3], [1, 2**32 - 1], [2**31, 0]]),
        ("?x?", "?x2xi32", "", [[-5, 3], [1, 99], [70, -4]]),
    ],
)
@pytest.mark.share(6)
def test_gathers_are_clamped(
    device: Device,
    device_name: str,
    shape: str,
    indices: str,
    before: str,
    positions: list[list[int]],
) -> None:
    element = indices.rpartition("x")[2]
    if device.is_vulkan and element[0] == "u":
        pytest.skip("IREE refuses conversions of unsigned integers in loops")
    if device.is_vulkan and shape[0] == "?":
        pytest.skip("IREE refuses extents in the middle of these loops")
    dtype = np.dtype(element.replace("i", "int"))
    text = gather(shape, indices, indices[0], before)
    actual = run(text, device, ROWS, np.array(positions, dtype))
    np.testing.assert_array_equal(actual, [ROWS[0, 3], ROWS[1, 3], ROWS[2, 0]])


@ON_DEVICES
def test_rows_of_a_dynamic_table(device: Device, device_name: str) -> None:
    operation = """"stablehlo.gather"(%0, %1) {slice_sizes = array<i64: 1, 4>,
      dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
          start_index_map = [0], index_vector_dim = 1>}"""
    text = one_operation(operation, [f"?x4x{U8}", "4xi32"], f"4x4x{U8}")
    actual = run(text, device, ROWS, np.array([-(2**31), 1, 3, 2**31 - 1], np.int32))
    np.testing.assert_array_equal(actual, ROWS[[0, 1, 2, 2]])


@ON_DEVICES
@pytest.mark.parametrize(
    ("element", "positions"),
    [
        ("i32", [1, -1, 3, 1]),
        ("i8", [1, -128, 127, 1]),
        ("i64", [1, -(2**40), 2**40, 1]),
        ("ui8", [1, 255, 128, 1]),
        ("i32", []),
    ],
)
def test_updates_outside_are_left_out(
    device: Device, device_name: str, element: str, positions: list[int]
) -> None:
    count = len(positions)
    x = np.array([[3, 4, 5, 6], [100, -100, 0, 3], [7, 7, 7, 7]], np.int8)
    u = np.arange(16, dtype=np.int8).reshape(4, 4)[:count]
    expected = x.astype(int)
    for row, index in zip(u, positions, strict=True):
        if 0 <= index < 3:
            expected[index] += row.astype(int) - 3
    expected = np.clip(expected, -128, 127)
    rows = np.array(positions, element.replace("i", "int"))[:, None]
    text = scatter(((3, 4), (count, 1), (count, 4)), PART_OF_ROWS, I8, element)
    np.testing.assert_array_equal(run(text, device, x, rows, u), expected)


@ON_DEVICES
@pytest.mark.parametrize("element", ["i8", "i16", "i32"])
def test_slices_with_narrow_starts(device: Device, device_name: str, element: str) -> None:
    x, part = f"3x4x{U8}", f"2x2x{U8}"
    slice_, update = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"
    text = one_operation(f"{slice_} %0, %1, %2, sizes = [2, 2]", [x, element, element], part)
    text += one_operation(f"{update} %0, %1, %2, %3", [x, part, element, element], x, name="update")
    low, high = (np.array(n, f"i{int(element[1:]) // 8}") for n in (-100, 100))
    executable = compile_for(text, device)
    np.testing.assert_array_equal(executable.main(ROWS, high, low), ROWS[1:3, 0:2])
    expected = ROWS.copy()
    expected[0:2, 2:4] = 7
    actual = executable.update(ROWS, np.full((2, 2), 7, np.uint8), low, high)
    np.testing.assert_array_equal(actual, expected)


@ON_DEVICES
@pytest.mark.parametrize("dimension", [1, -1])
def test_stable_sorts(device: Device, device_name: str, dimension: int) -> None:
    element = U8
    rows = f"tensor<2x9x{element}>"
    text = f"""
func.func @main(%x: {rows}, %y: tensor<2x9xi32>) -> ({rows}, tensor<2x9xi32>) {{
  %r:2 = "stablehlo.sort"(%x, %y) ({{
  ^bb0(%a: tensor<{element}>, %b: tensor<{element}>, %c: tensor<i32>, %d: tensor<i32>):
    %p = stablehlo.compare GT, %a, %b : (tensor<{element}>, tensor<{element}>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }}) {{dimension = {dimension} : i64, is_stable = true}}
      : ({rows}, tensor<2x9xi32>) -> ({rows}, tensor<2x9xi32>)
  return %r#0, %r#1 : {rows}, tensor<2x9xi32>
}}
"""
    x = np.random.default_rng(3).integers(126, 130, (2, 9)).astype(np.uint8)
    y = np.arange(18, dtype=np.int32).reshape(2, 9)
    values, numbers = compile_for(text, device).main(x, y)
    order = np.argsort(-x.astype(int), axis=1, kind="stable")
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))
    np.testing.assert_array_equal(numbers, np.take_along_axis(y, order, 1))


# -- the interpreter ------------------------------------------------------------------------------

ADD = """
!t = tensor<?x!quant.uniform<i8:f32, 0.5>>
func.func @main(%x: tensor<4x!quant.uniform<i8:f32, 0.5>>, %y: !t) -> !t {
  %r = stablehlo.add %x, %y
      : (tensor<4x!quant.uniform<i8:f32, 0.5>>, !t) -> !t
  return %r : !t
}
func.func @negate(%x: !t) -> !t {
  %r = stablehlo.negate %x : !t
  return %r : !t
}
"""
PARTITION = one_operation('"stablehlo.partition_id"()', [], "ui32")


def test_the_interpreter_ends_its_own_process_only() -> None:
    module = InterpretedModule(PARTITION)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="interpreter ended its process"):
            module["main"].invoke([])
    (actual,) = InterpretedModule(ADD)["negate"].invoke([np.array([1, -128], np.int8)])
    assert actual.tolist() == [-1, 127]


# -- functions by table ---------------------------------------------------------------------------


def reduced(x: Fraction, exponent_bits: int, mantissa_bits: int) -> Fraction | None:
    """A real in a narrower float format: subnormals are 0, None is an infinity."""
    unit = Fraction(1, 1 << 60)
    while abs(x) >= unit * (2 << mantissa_bits):
        unit *= 2
    bias = (1 << (exponent_bits - 1)) - 1
    nearest = round(x / unit) * unit
    if abs(nearest) < Fraction(2) ** (1 - bias):
        return Fraction(0)
    greatest = (2 - Fraction(1, 1 << mantissa_bits)) * Fraction(2) ** bias
    return None if abs(nearest) > greatest else nearest


@pytest.mark.parametrize("name", ["cosine", "sine", "tan"])
def test_angles_of_many_turns(name: str) -> None:
    """Equal to libm, which reduces by pi of any precision; the products are exact in f64."""
    x = np.array([0, 1, -7, 10**3, -(10**6), 10**9, 2**31 - 1, -(2**31)], np.int32)
    x_type, y_type = (
        "8x!quant.uniform<i32:f32, 0.75:5>",
        "8x!quant.uniform<i32:f32, 0.000244140625:3>",
    )
    text = one_operation(f"stablehlo.{name} %0", [x_type], y_type)
    (actual,) = InterpretedModule(text)["main"].invoke([x])
    function = {"cosine": math.cos, "sine": math.sin, "tan": math.tan}[name]
    reals = [function((int(d) - 5) * 0.75) for d in x]
    assert np.ptp(reals) > 1
    np.testing.assert_array_equal(actual, np.rint(np.array(reals) * 4096 + 3))


def reduced_bytes(scale: float, exponent: int, mantissa: int) -> tuple[np.ndarray, np.ndarray]:
    """All bytes of a scale, and what `reduce_precision` makes of them."""
    type_ = f"256x!quant.uniform<i8:f32, {scale}:-3>"
    bits = f"{{exponent_bits = {exponent} : i32, mantissa_bits = {mantissa} : i32}}"
    text = one_operation(f'"stablehlo.reduce_precision"(%0) {bits}', [type_], type_)
    x = np.arange(-128, 128).astype(np.int8)
    return x, InterpretedModule(text)["main"].invoke([x])[0]


@pytest.mark.parametrize("scale", [0.5, 0.0625, 0.001953125])
@pytest.mark.parametrize(("exponent_bits", "mantissa_bits"), [(3, 2), (4, 0), (2, 3), (5, 10)])
def test_reduced_precision_has_its_range(
    exponent_bits: int, mantissa_bits: int, scale: float
) -> None:
    x, actual = reduced_bytes(scale, exponent_bits, mantissa_bits)
    expected = []
    for value in real(x, scale, -3):
        result = reduced(value, exponent_bits, mantissa_bits)
        infinity = 127 if value > 0 else -128
        expected += [infinity] if result is None else quantized(np.array([result]), scale, -3)
    assert actual.tolist() == expected


@pytest.mark.parametrize(
    ("exponent_bits", "mantissa_bits"), [(2**31 - 1, 52), (11, 2**31 - 1), (64, 2000)]
)
def test_more_precision_than_there_is_changes_nothing(
    exponent_bits: int, mantissa_bits: int
) -> None:
    x, actual = reduced_bytes(0.5, exponent_bits, mantissa_bits)
    assert (actual == x).all()


UNSIGNED = """
func.func @main(%a: tensor<4xELEMENT>, %b: tensor<4xELEMENT>)
    -> (tensor<4xELEMENT>, tensor<4xELEMENT>, tensor<4xELEMENT>, tensor<4xf32>) {
  %sum = stablehlo.add %a, %b : tensor<4xELEMENT>
  %quotient = stablehlo.divide %a, %b : tensor<4xELEMENT>
  %greater = stablehlo.maximum %a, %b : tensor<4xELEMENT>
  %real = stablehlo.convert %a : (tensor<4xELEMENT>) -> tensor<4xf32>
  return %sum, %quotient, %greater, %real
      : tensor<4xELEMENT>, tensor<4xELEMENT>, tensor<4xELEMENT>, tensor<4xf32>
}
"""


@ON_DEVICES
@pytest.mark.parametrize("element", ["ui8", "ui16", "ui32"])
def test_unsigned_integers(device: Device, device_name: str, element: str) -> None:
    dtype = np.dtype(element.replace("ui", "uint"))
    a, b = np.array([1, 2, 250, 255], dtype), np.array([1, 200, 3, 5], dtype)
    actual = run(UNSIGNED.replace("ELEMENT", element), device, a, b)
    expected = (a + b, a // b, np.maximum(a, b), a.astype(np.float32))
    for got, target in zip(actual, expected, strict=True):
        assert got.dtype == target.dtype
        np.testing.assert_array_equal(got, target)
