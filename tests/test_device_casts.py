"""Casts on each device, against NumPy: ragged blocks, dynamic shapes, scales as operands.

All functions of a module are compiled at once. ``MODULE`` uses f32 and integers of up to 32 bits,
so it runs on every device; ``WIDE`` adds f16 and runs on devices with 16-bit storage.
"""

from __future__ import annotations

import numpy as np
import pytest

from device_values import ALL_DEVICES, F32, I8, PER_TENSOR, PER_TENSOR_PARAMETERS, integers, values
from devices import compile_for
from programs import same_bits
from subquant.errors import ExecutionError
from subquant.numerics.casts import dequantize, dequantize_blocks, quantize, quantize_blocks
from subquant.numerics.parameters import QuantizationParameters, StorageType
from subquant.runtime import Executable, Function

RAGGED = "!quant.uniform<i8:f32:{0:3}, {1.0:1, 2.0:-2, 0.5:3}>"
TWO_AXES = (
    "!quant.uniform<i8:f32:{0:2, 1:3}, "
    "{{1.0:1, 2.0:2, 0.5:3}, {0.25, 3.0:-3, 1.5:4}, {0.75:5, 0.125, 4.0:-1}}>"
)
BLOCKS = "!quant.uniform<i8:f32:{0:2}, {{1.0:1}, {2.0}, {0.5:-3}, {0.75}}>"
PER_AXIS = "!quant.uniform<i8:f32:1, {0.5:1, 0.25, 2.0:-2, 1.0}>"
RAGGED_PARAMETERS = QuantizationParameters(
    I8, F32, (0,), (3,), np.array([1.0, 2.0, 0.5]), np.array([1, -2, 3]), "sub-channel"
)
TWO_AXES_SCALES = np.array([[1.0, 2.0, 0.5], [0.25, 3.0, 1.5], [0.75, 0.125, 4.0]])
TWO_AXES_ZERO_POINTS = np.array([[1, 2, 3], [0, -3, 4], [5, 0, -1]])
TWO_AXES_PARAMETERS = QuantizationParameters(
    I8, F32, (0, 1), (2, 3), TWO_AXES_SCALES, TWO_AXES_ZERO_POINTS
)
BLOCKS_PARAMETERS = QuantizationParameters(
    I8, F32, (0,), (2,), np.array([[1.0], [2.0], [0.5], [0.75]]), np.array([[1], [0], [-3], [0]])
)
PER_AXIS_PARAMETERS = QuantizationParameters(
    I8, F32, (1,), (1,), np.array([0.5, 0.25, 2.0, 1.0]), np.array([1, 0, -2, 0])
)


def casts(name: str, dims: str, type_: str, dialect: str) -> str:
    """Functions ``q_name`` and ``d_name``."""
    real, quantized = f"tensor<{dims}f32>", f"tensor<{dims}{type_}>"
    return f"""
func.func @q_{name}(%x: {real}) -> {quantized} {{
  %q = "{dialect}.qcast"(%x) : ({real}) -> {quantized}
  return %q : {quantized}
}}
func.func @d_{name}(%q: {quantized}) -> {real} {{
  %x = "{dialect}.dcast"(%q) : ({quantized}) -> {real}
  return %x : {real}
}}"""


RAGGED_CAST = (RAGGED, "subquant", RAGGED_PARAMETERS)
TWO_AXES_CAST = (TWO_AXES, "subquant", TWO_AXES_PARAMETERS)
PER_AXIS_CAST = (PER_AXIS, "quant", PER_AXIS_PARAMETERS)
PER_TENSOR_CAST = (PER_TENSOR, "quant", PER_TENSOR_PARAMETERS)
CAST_TABLE: dict[str, tuple[str, str, str, QuantizationParameters, list[tuple[int, ...]]]] = {
    "ragged_static": ("7x", *RAGGED_CAST, [(7,)]),
    "ragged_dynamic": ("?x", *RAGGED_CAST, [(7,), (8,), (9,)]),
    "two_axes_static": ("5x7x", *TWO_AXES_CAST, [(5, 7)]),
    "two_axes_dynamic": ("?x?x", *TWO_AXES_CAST, [(5, 7), (6, 9), (5, 8), (6, 7)]),
    "two_axes_mixed": ("6x?x", *TWO_AXES_CAST, [(6, 7), (6, 9)]),
    "blocks_dynamic": ("?x?x", BLOCKS, "quant", BLOCKS_PARAMETERS, [(8, 1), (8, 13)]),
    "per_axis_dynamic": ("?x?x", *PER_AXIS_CAST, [(1, 4), (9, 4)]),
    "per_axis_unranked": ("*x", *PER_AXIS_CAST, [(1, 4), (9, 4), (3, 4, 5), (2, 4, 3, 2)]),
    "per_tensor_unranked": ("*x", *PER_TENSOR_CAST, [(), (1,), (7,), (3, 5), (2, 3, 4, 5)]),
    "no_elements": ("0x4x", *PER_TENSOR_CAST, [(0, 4)]),
    "rank_0": ("", *PER_TENSOR_CAST, [()]),
}
"""Dimensions, quantized type, dialect, parameters, and shapes that fit."""


def operand_op(
    name: str, op: str, types: tuple[str, ...], result: str, blocks: str, quantized: str
) -> str:
    arguments = ", ".join(f"%a{n}: {type_}" for n, type_ in enumerate(types))
    names = ", ".join(f"%a{n}" for n in range(len(types)))
    segments = f"operandSegmentSizes = array<i32: 1, 1, {len(types) - 2}, 0>, "
    return f"""
func.func @{name}({arguments}) -> {result} {{
  %r = "subquant.{op}"({names}) {{block_sizes = array<i64: {blocks}>,
      {segments if op == "dequantize" else ""}quantized_type = {quantized}}}
      : ({", ".join(types)}) -> {result}
  return %r : {result}
}}"""


def pair(name: str, shape: str, scales: str, zeros: str, blocks: str, types: str) -> str:
    """Functions ``q_name`` and ``d_name``; ``types`` are those of ``!quant.any``."""
    real = f"tensor<{shape}xf32>"
    stored = f"tensor<{shape}x{'i4' if types.startswith('i4') else 'i8'}>"
    operands = tuple(f"tensor<{each}>" for each in (scales, zeros) if each)
    any_type = f"!quant.any<{types}>"
    return operand_op(
        f"q_{name}", "quantize", (real, *operands), stored, blocks, any_type
    ) + operand_op(f"d_{name}", "dequantize", (stored, *operands), real, blocks, any_type)


def dequantized(result: str, q: str, scales: str, types: tuple[str, str, str], spec: str) -> str:
    """A ``subquant.dequantize`` without zero points; ``spec`` is its block sizes and storage."""
    blocks, storage = spec.split(" of ")
    stored, scale, real = types
    return f"""  %{result} = "subquant.dequantize"(%{q}, %{scales}) {{
      block_sizes = array<i64: {blocks}>, operandSegmentSizes = array<i32: 1, 1, 0, 0>,
      quantized_type = !quant.any<{storage}:f32>}}
      : (tensor<{stored}>, tensor<{scale}>) -> tensor<{real}>
"""


def super_blocks(name: str, arguments: str, *levels: str) -> str:
    """A function of 6 x 64 weights whose scales are dequantized themselves."""
    weights = dequantized("x", "w", "scales", ("6x64xi4", "6x4xf32", "6x64xf32"), "1, 16 of i4")
    return f"""
func.func @{name}(%w: tensor<6x64xi4>, {arguments}) -> tensor<6x64xf32> {{
{"".join(levels)}{weights}  return %x : tensor<6x64xf32>
}}
"""


MODULE = "\n".join(casts(name, *row[:3]) for name, row in CAST_TABLE.items()) + (
    pair("no_zero_points", "4x64", "4x2xf32", "", "1, 32", "i4:f32")
    + pair("i4_zero_points", "3x10", "2x3xf32", "2x3xi4", "2, 4", "i8<-100:100>:f32")
    + pair("unsigned", "4x8", "4x2xf32", "4x2xi8", "1, 4", "u8:f32")
    + pair("u4_zero_points", "4x8", "4x2xf32", "4x2xi4", "1, 4", "u8:f32")
    + pair("dynamic", "?x?", "?x?xf32", "?x?xi8", "2, 3", "i8:f32")
    + super_blocks(
        "two_levels",
        "%s: tensor<6x4xi6>, %t: tensor<6x1xf32>",
        dequantized("scales", "s", "t", ("6x4xi6", "6x1xf32", "6x4xf32"), "1, 4 of u6"),
    )
    + super_blocks(
        "three_levels",
        "%s: tensor<6x4xi6>, %t: tensor<6x2xi8>, %u: tensor<3x1xf32>",
        dequantized("super", "t", "u", ("6x2xi8", "3x1xf32", "6x2xf32"), "2, 2 of u8"),
        dequantized("scales", "s", "super", ("6x4xi6", "6x2xf32", "6x4xf32"), "1, 2 of u6"),
    )
)
WIDE = (
    pair("f16_scales", "4x64", "4x2xf16", "4x2xi4", "1, 32", "i8:f32")
    + pair("bf16_scales", "4x9", "2x3xbf16", "", "2, 4", "i8:f32")
    + super_blocks(
        "super_blocks",
        "%s: tensor<6x4xi6>, %t: tensor<6x1xf16>",
        dequantized("scales", "s", "t", ("6x4xi6", "6x1xf16", "6x4xf32"), "1, 4 of u6"),
    )
)


@pytest.fixture(scope="module", params=ALL_DEVICES)
def executable(request: pytest.FixtureRequest) -> Executable:
    return compile_for(MODULE, request.getfixturevalue(request.param))


@pytest.fixture(scope="module", params=ALL_DEVICES[:2])
def wide(request: pytest.FixtureRequest) -> Executable:
    return compile_for(WIDE, request.getfixturevalue(request.param))


@pytest.mark.parametrize("name", CAST_TABLE)
@pytest.mark.share(34)
def test_casts_of_shapes_that_fit(executable: Executable, name: str) -> None:
    *_, parameters, shapes = CAST_TABLE[name]
    for shape in shapes:
        reals, stored = values(shape), integers(shape)
        got = executable[f"q_{name}"](reals)
        np.testing.assert_array_equal(got, quantize(reals, parameters), strict=True)
        assert same_bits(executable[f"d_{name}"](stored), dequantize(stored, parameters)), shape


@pytest.mark.long
def test_a_ragged_cast_equals_a_loop(executable: Executable) -> None:
    reals = values((5, 7))
    scales, zeros = TWO_AXES_PARAMETERS.scales, TWO_AXES_PARAMETERS.zero_points
    expected = np.zeros((5, 7), np.int8)
    for i, j in np.ndindex(5, 7):
        block = i // 2, j // 3
        real = np.float32(reals[i, j] / scales[block]) + np.float32(zeros[block])
        expected[i, j] = round(max(-128.0, min(127.0, float(real))))
    np.testing.assert_array_equal(executable.q_two_axes_static(reals), expected)
    np.testing.assert_array_equal(executable.q_two_axes_dynamic(reals), expected)


RAGGED_TEXT = "7 to 9 at run time (3 blocks of 3, the last may be shorter)"
SHORTER_TEXT = "5 to 6 at run time (3 blocks of 2, the last may be shorter)"
RANK_TEXT = "rank must be at least 2 at run time, for the quantized dimension 1"
MISFITS = [
    *(("ragged_dynamic", (n,), f"dimension 0 must be {RAGGED_TEXT}") for n in (6, 10, 0)),
    ("two_axes_dynamic", (4, 7), f"dimension 0 must be {SHORTER_TEXT}"),
    ("two_axes_dynamic", (5, 10), f"dimension 1 must be {RAGGED_TEXT}"),
    ("two_axes_mixed", (6, 6), f"dimension 1 must be {RAGGED_TEXT}"),
    ("per_axis_unranked", (2, 3), "dimension 1 must be 4 at run time (4 blocks of 1)"),
    ("per_axis_unranked", (4,), RANK_TEXT),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "shape", "message"), MISFITS, ids=str)
def test_casts_of_shapes_that_do_not_fit(
    executable: Executable, name: str, shape: tuple[int, ...], message: str
) -> None:
    dialect = CAST_TABLE[name][2]
    statements = MODULE.split("\n")
    for prefix, kind, zeros in (
        ("q", "qcast", np.zeros(shape, np.float32)),
        ("d", "dcast", np.zeros(shape, np.int8)),
    ):
        line = next(n for n, text in enumerate(statements, 2) if f"@{prefix}_{name}(" in text)
        with pytest.raises(ExecutionError) as caught:
            executable[f"{prefix}_{name}"](zeros)
        assert caught.value.message == (
            f"function '{prefix}_{name}' stopped: '{dialect}.{kind}' op at -:{line}:8: {message}"
        )


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("blocks_dynamic", (7, 3), "dimension 0 of argument 0 must be 8 at run time"),
        ("blocks_dynamic", (16, 3), "dimension 0 of argument 0 must be 8 at run time"),
        ("per_axis_dynamic", (4, 5), "dimension 1 of argument 0 must be 4 at run time"),
    ],
    ids=str,
)
def test_sizes_with_one_valid_value(
    executable: Executable, name: str, shape: tuple[int, ...], message: str
) -> None:
    """IREE infers a static size, and checks it at the argument."""
    for prefix, dtype in (("q", np.float32), ("d", np.int8)):
        with pytest.raises(ExecutionError, match=message):
            executable[f"{prefix}_{name}"](np.zeros(shape, dtype))


def scale_grid(shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    return np.exp2(np.random.default_rng(sum(shape)).uniform(-3, 2, shape)).astype(dtype)


def check_pair(
    executable: Executable,
    name: str,
    shape: tuple[int, ...],
    blocks: tuple[int, ...],
    storage: StorageType,
    scales: np.ndarray,
    zero_points: np.ndarray | None = None,
) -> None:
    operands = (scales,) if zero_points is None else (scales, zero_points)
    reals = values(shape, 50.0)
    expected = quantize_blocks(reals, scales, zero_points, blocks, storage, F32)
    got = executable[f"q_{name}"](reals, *operands)
    assert got.dtype == np.int8  # the program's type is a signless i8: bits, not values
    np.testing.assert_array_equal(got.astype(np.int64) & 255, expected.astype(np.int64) & 255)
    stored = integers(shape, storage.minimum, storage.maximum).astype(storage.dtype)
    real = dequantize_blocks(stored, scales, zero_points, blocks, F32)
    assert same_bits(executable[f"d_{name}"](stored, *operands), real)


UNSIGNED = np.array([[0, 255], [128, 127], [3, 200], [254, 1]], np.uint8)
NARROW = np.array([[0, 15], [8, 7], [3, 12], [14, 1]], np.uint8)
NARROW_I8 = StorageType(8, True, -100, 100)
STATIC_OPERANDS = {
    "no_zero_points": ((4, 64), (1, 32), StorageType(4), (4, 2), None),
    "i4_zero_points": ((3, 10), (2, 4), NARROW_I8, (2, 3), integers((2, 3), -8, 7)),
    "unsigned": ((4, 8), (1, 4), StorageType(8, False), (4, 2), UNSIGNED),
    "u4_zero_points": ((4, 8), (1, 4), StorageType(8, False), (4, 2), NARROW),
}


@pytest.mark.parametrize("name", STATIC_OPERANDS)
def test_static_operands(executable: Executable, name: str) -> None:
    shape, blocks, storage, grid, zeros = STATIC_OPERANDS[name]
    check_pair(executable, name, shape, blocks, storage, scale_grid(grid), zeros)


@pytest.mark.parametrize("shape", [(4, 9), (3, 7), (1, 1), (8, 3)], ids=str)
def test_dynamic_operands(executable: Executable, shape: tuple[int, ...]) -> None:
    grid = (-(-shape[0] // 2), -(-shape[1] // 3))
    check_pair(executable, "dynamic", shape, (2, 3), I8, scale_grid(grid), integers(grid, -20, 20))


@pytest.mark.parametrize(
    ("scales", "zeros", "message"),
    [
        ((2, 4), (2, 3), "scales must have one entry for each block of 3 along dimension 1"),
        ((3, 3), (2, 3), "scales must have one entry for each block of 2 along dimension 0"),
        ((2, 3), (1, 3), "zero points must have one entry for each block of 2 along dimension 0"),
        ((2, 3), (2, 2), "zero points must have one entry for each block of 3 along dimension 1"),
    ],
    ids=str,
)
def test_dynamic_operands_of_wrong_shapes(
    executable: Executable, scales: tuple[int, ...], zeros: tuple[int, ...], message: str
) -> None:
    for name, operand in (
        ("quantize", np.zeros((4, 9), np.float32)),
        ("dequantize", np.zeros((4, 9), np.int8)),
    ):
        with pytest.raises(ExecutionError) as caught:
            executable[f"{name[0]}_dynamic"](
                operand, np.ones(scales, np.float32), np.zeros(zeros, np.int8)
            )
        text = caught.value.message
        assert f"stopped: 'subquant.{name}' op at -:" in text
        assert text.endswith(f": {message} at run time")


def super_block_inputs() -> tuple[np.ndarray, np.ndarray]:
    return integers((6, 64), -8, 7), integers((6, 4), 0, 63)


def check_two_levels(function: Function, dtype: type) -> None:
    weights, sub_scales = super_block_inputs()
    top = scale_grid((6, 1), dtype)
    scales = dequantize_blocks(sub_scales, top, None, (1, 4), F32)
    expected = dequantize_blocks(weights, scales, None, (1, 16), F32)
    assert same_bits(function(weights, sub_scales, top), expected)
    for i, j in ((0, 0), (3, 17), (5, 63)):
        scale = np.float32(sub_scales[i, j // 16]) * np.float32(top[i, 0])
        assert expected[i, j] == np.float32(weights[i, j]) * scale


def test_super_blocks_of_two_levels(executable: Executable) -> None:
    check_two_levels(executable.two_levels, np.float32)


def test_f16_super_scales(wide: Executable) -> None:
    check_two_levels(wide.super_blocks, np.float16)


def test_super_blocks_of_three_levels(executable: Executable) -> None:
    weights, sub_scales = super_block_inputs()
    middle, top = integers((6, 2), 0, 255), scale_grid((3, 1))
    super_scales = dequantize_blocks(middle, top, None, (2, 2), F32)
    scales = dequantize_blocks(sub_scales, super_scales, None, (1, 2), F32)
    expected = dequantize_blocks(weights, scales, None, (1, 16), F32)
    assert same_bits(executable.three_levels(weights, sub_scales, middle, top), expected)


def test_f16_scales_of_f32(wide: Executable) -> None:
    scales, zeros = scale_grid((4, 2), np.float16), integers((4, 2), -8, 7)
    scales[0, 0] = np.float16(6e-8)  # subnormal in f16, normal in f32
    check_pair(wide, "f16_scales", (4, 64), (1, 32), I8, scales, zeros)


def test_bf16_scales_of_f32(wide: Executable) -> None:
    from ml_dtypes import bfloat16

    check_pair(wide, "bf16_scales", (4, 9), (2, 4), I8, scale_grid((2, 3)).astype(bfloat16))
