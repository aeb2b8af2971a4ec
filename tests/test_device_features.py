"""Casts, control flow, data movement and contractions on each device, against NumPy.

All functions of a module are compiled at once. ``MODULE`` uses f32 and integers of up to 32 bits,
so it runs on every device; ``WIDE`` adds f16 and runs on devices with 16-bit storage.
"""

from __future__ import annotations

import numpy as np
import pytest

import subquant
from devices import compile_for
from programs import same_bits
from subquant.errors import ExecutionError, UnsupportedError
from subquant.numerics.casts import dequantize, dequantize_blocks, quantize, quantize_blocks
from subquant.numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from subquant.runtime import Device, Executable, Function

F32 = ExpressedType.F32
I8 = StorageType(8)

RAGGED = "!quant.uniform<i8:f32:{0:3}, {1.0:1, 2.0:-2, 0.5:3}>"
TWO_AXES = (
    "!quant.uniform<i8:f32:{0:2, 1:3}, "
    "{{1.0:1, 2.0:2, 0.5:3}, {0.25, 3.0:-3, 1.5:4}, {0.75:5, 0.125, 4.0:-1}}>"
)
BLOCKS = "!quant.uniform<i8:f32:{0:2}, {{1.0:1}, {2.0}, {0.5:-3}, {0.75}}>"
PER_TENSOR = "!quant.uniform<i8:f32, 0.25:3>"
PER_AXIS = "!quant.uniform<i8:f32:1, {0.5:1, 0.25, 2.0:-2, 1.0}>"
OTHER = "!quant.uniform<i4:f32, 0.5>"

RAGGED_PARAMETERS = QuantizationParameters(
    I8, F32, (0,), (3,), np.array([1.0, 2.0, 0.5]), np.array([1, -2, 3]), "sub-channel"
)
TWO_AXES_PARAMETERS = QuantizationParameters(
    I8,
    F32,
    (0, 1),
    (2, 3),
    np.array([[1.0, 2.0, 0.5], [0.25, 3.0, 1.5], [0.75, 0.125, 4.0]]),
    np.array([[1, 2, 3], [0, -3, 4], [5, 0, -1]]),
)
BLOCKS_PARAMETERS = QuantizationParameters(
    I8, F32, (0,), (2,), np.array([[1.0], [2.0], [0.5], [0.75]]), np.array([[1], [0], [-3], [0]])
)
PER_TENSOR_PARAMETERS = QuantizationParameters(
    I8, F32, scales=np.array(0.25), zero_points=np.array(3)
)
PER_AXIS_PARAMETERS = QuantizationParameters(
    I8, F32, (1,), (1,), np.array([0.5, 0.25, 2.0, 1.0]), np.array([1, 0, -2, 0])
)
OTHER_PARAMETERS = QuantizationParameters(StorageType(4), F32, scales=np.array(0.5))


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


CAST_TABLE = {
    "ragged_static": ("7x", RAGGED, "subquant"),
    "ragged_dynamic": ("?x", RAGGED, "subquant"),
    "two_axes_static": ("5x7x", TWO_AXES, "subquant"),
    "two_axes_dynamic": ("?x?x", TWO_AXES, "subquant"),
    "two_axes_mixed": ("6x?x", TWO_AXES, "subquant"),
    "blocks_dynamic": ("?x?x", BLOCKS, "quant"),
    "per_axis_dynamic": ("?x?x", PER_AXIS, "quant"),
    "per_axis_unranked": ("*x", PER_AXIS, "quant"),
    "per_tensor_unranked": ("*x", PER_TENSOR, "quant"),
    "no_elements": ("0x4x", PER_TENSOR, "quant"),
    "rank_0": ("", PER_TENSOR, "quant"),
}

CONTROL_FLOW = f"""
!q = tensor<4x{PER_TENSOR}>
!r = tensor<4xf32>
func.func private @step(%q: !q) -> !q {{
  %x = quant.dcast %q : !q to !r
  %h = arith.constant dense<1.25> : !r
  %y = arith.addf %x, %h : !r
  %n = quant.qcast %y : !r to !q
  return %n : !q
}}
func.func private @pick(%q: !q, %s: {PER_TENSOR}) -> ({PER_TENSOR}, !q) {{
  %c = arith.constant 1 : index
  %e = tensor.extract %q[%c] : !q
  %n = tensor.insert %s into %q[%c] : !q
  return %e, %n : {PER_TENSOR}, !q
}}
func.func @call(%q: !q) -> !q {{
  %a = func.call @step(%q) : (!q) -> !q
  %b = func.call @step(%a) : (!q) -> !q
  return %b : !q
}}
func.func @call_scalar(%q: !q, %s: {PER_TENSOR}) -> ({PER_TENSOR}, !q) {{
  %e, %n = func.call @pick(%q, %s) : (!q, {PER_TENSOR}) -> ({PER_TENSOR}, !q)
  return %e, %n : {PER_TENSOR}, !q
}}
func.func @loop(%q: !q, %n: index) -> !q {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%a = %q) -> (!q) {{
    %b = func.call @step(%a) : (!q) -> !q
    scf.yield %b : !q
  }}
  return %r : !q
}}
func.func @choose(%c: i1, %a: !q, %b: !q) -> !q {{
  %r = scf.if %c -> (!q) {{
    %s = func.call @step(%a) : (!q) -> !q
    scf.yield %s : !q
  }} else {{
    scf.yield %b : !q
  }}
  return %r : !q
}}
func.func @while(%q: !q, %bound: f32) -> !q {{
  %c0 = arith.constant 0 : index
  %r = scf.while (%a = %q) : (!q) -> !q {{
    %x = quant.dcast %a : !q to !r
    %e = tensor.extract %x[%c0] : !r
    %more = arith.cmpf olt, %e, %bound : f32
    scf.condition(%more) %a : !q
  }} do {{
  ^bb0(%a: !q):
    %b = func.call @step(%a) : (!q) -> !q
    scf.yield %b : !q
  }}
  return %r : !q
}}
func.func @branch(%c: i1, %a: !q, %b: !q) -> !q {{
  cf.cond_br %c, ^one(%a : !q), ^two(%b, %a : !q, !q)
^one(%x: !q):
  %s = func.call @step(%x) : (!q) -> !q
  cf.br ^end(%s : !q)
^two(%y: !q, %z: !q):
  cf.br ^end(%y : !q)
^end(%r: !q):
  return %r : !q
}}
func.func @select(%c: i1, %a: !q, %b: !q) -> !q {{
  %r = arith.select %c, %a, %b : !q
  return %r : !q
}}
"""

SCALARS = f"""
func.func @scalar(%x: f32) -> {PER_TENSOR} {{
  %q = quant.qcast %x : f32 to {PER_TENSOR}
  return %q : {PER_TENSOR}
}}
func.func @scalar_back(%q: {PER_TENSOR}) -> f32 {{
  %x = quant.dcast %q : {PER_TENSOR} to f32
  return %x : f32
}}
func.func @requantize_in_body(%x: tensor<3x5xi8>) -> tensor<3x5xi4> {{
  %e = tensor.empty() : tensor<3x5xi4>
  %r = linalg.generic {{
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}}
      ins(%x : tensor<3x5xi8>) outs(%e : tensor<3x5xi4>) {{
  ^bb0(%a: i8, %o: i4):
    %q = quant.scast %a : i8 to {PER_TENSOR}
    %f = quant.dcast %q : {PER_TENSOR} to f32
    %n = quant.qcast %f : f32 to {OTHER}
    %s = quant.scast %n : {OTHER} to i4
    linalg.yield %s : i4
  }} -> tensor<3x5xi4>
  return %r : tensor<3x5xi4>
}}
"""

MOVES = f"""
func.func @slice(%q: tensor<4x6x{PER_TENSOR}>) -> tensor<2x3x{PER_TENSOR}> {{
  %r = tensor.extract_slice %q[1, 1] [2, 3] [1, 2]
      : tensor<4x6x{PER_TENSOR}> to tensor<2x3x{PER_TENSOR}>
  return %r : tensor<2x3x{PER_TENSOR}>
}}
func.func @insert(%p: tensor<2x3x{PER_TENSOR}>, %q: tensor<4x6x{PER_TENSOR}>)
    -> tensor<4x6x{PER_TENSOR}> {{
  %r = tensor.insert_slice %p into %q[1, 2] [2, 3] [1, 1]
      : tensor<2x3x{PER_TENSOR}> into tensor<4x6x{PER_TENSOR}>
  return %r : tensor<4x6x{PER_TENSOR}>
}}
func.func @reshape(%q: tensor<4x6x{OTHER}>) -> tensor<2x12x{OTHER}> {{
  %a = tensor.collapse_shape %q [[0, 1]] : tensor<4x6x{OTHER}> into tensor<24x{OTHER}>
  %b = tensor.expand_shape %a [[0, 1]] output_shape [2, 12]
      : tensor<24x{OTHER}> into tensor<2x12x{OTHER}>
  return %b : tensor<2x12x{OTHER}>
}}
func.func @concat(%p: tensor<2x3x{OTHER}>, %q: tensor<2x4x{OTHER}>) -> tensor<2x7x{OTHER}> {{
  %r = tensor.concat dim(1) %p, %q
      : (tensor<2x3x{OTHER}>, tensor<2x4x{OTHER}>) -> tensor<2x7x{OTHER}>
  return %r : tensor<2x7x{OTHER}>
}}
func.func @moved_then_dequantized(%q: tensor<?x6x{PER_TENSOR}>, %n: index) -> tensor<?x6xf32> {{
  %s = tensor.extract_slice %q[1, 0] [%n, 6] [1, 1]
      : tensor<?x6x{PER_TENSOR}> to tensor<?x6x{PER_TENSOR}>
  %x = quant.dcast %s : tensor<?x6x{PER_TENSOR}> to tensor<?x6xf32>
  return %x : tensor<?x6xf32>
}}
"""


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


OPERANDS = (
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

DOTS = [(1, 1, 1), (7, 7, 7), (1, 256, 64), (64, 64, 64)]


def dot(m: int, k: int, n: int) -> str:
    """Quantized operands to storage, an integer matmul; and the same dequantized, in f32."""
    a, b, c = f"tensor<{m}x{k}x", f"tensor<{k}x{n}x", f"tensor<{m}x{n}x"
    left = "!quant.uniform<i8:f32, 0.25>"
    zeros = f"""  %z = arith.constant 0 : i32
  %e = tensor.empty() : {c}i32>
  %f = linalg.fill ins(%z : i32) outs(%e : {c}i32>) -> {c}i32>"""
    return f"""
func.func @dot_{m}_{k}_{n}(%a: {a}{left}>, %b: {b}{left}>) -> {c}i32> {{
  %x = quant.scast %a : {a}{left}> to {a}i8>
  %y = quant.scast %b : {b}{left}> to {b}i8>
{zeros}
  %r = linalg.matmul ins(%x, %y : {a}i8>, {b}i8>) outs(%f : {c}i32>) -> {c}i32>
  return %r : {c}i32>
}}
func.func @transposed_{m}_{k}_{n}(%a: {a}{left}>, %b: tensor<{n}x{k}x{OTHER}>) -> {c}i32> {{
  %x = quant.scast %a : {a}{left}> to {a}i8>
  %y = quant.scast %b : tensor<{n}x{k}x{OTHER}> to tensor<{n}x{k}xi4>
{zeros}
  %r = linalg.generic {{indexing_maps = [affine_map<(m, n, k) -> (m, k)>,
      affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%x, %y : {a}i8>, tensor<{n}x{k}xi4>) outs(%f : {c}i32>) {{
  ^bb0(%p: i8, %q: i4, %o: i32):
    %u = arith.extsi %p : i8 to i32
    %v = arith.extsi %q : i4 to i32
    %w = arith.muli %u, %v : i32
    %s = arith.addi %o, %w : i32
    linalg.yield %s : i32
  }} -> {c}i32>
  return %r : {c}i32>
}}
func.func @real_{m}_{k}_{n}(%a: {a}{PER_TENSOR}>, %b: {b}f32>) -> {c}f32> {{
  %x = quant.dcast %a : {a}{PER_TENSOR}> to {a}f32>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : {c}f32>
  %f = linalg.fill ins(%z : f32) outs(%e : {c}f32>) -> {c}f32>
  %r = linalg.matmul ins(%x, %b : {a}f32>, {b}f32>) outs(%f : {c}f32>) -> {c}f32>
  return %r : {c}f32>
}}"""


MODULE = "\n".join(
    [
        CONTROL_FLOW,
        SCALARS,
        MOVES,
        OPERANDS,
        *(casts(name, *row) for name, row in CAST_TABLE.items()),
        *(dot(*sizes) for sizes in DOTS),
    ]
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

ALL_DEVICES = [
    "cpu",
    pytest.param("vulkan", marks=pytest.mark.vulkan),
    pytest.param("vulkan_32bit", marks=pytest.mark.vulkan),
]


def load(text: str, request: pytest.FixtureRequest) -> Executable:
    device: Device = request.getfixturevalue(request.param)
    return compile_for(text, device)


@pytest.fixture(scope="module", params=ALL_DEVICES)
def executable(request: pytest.FixtureRequest) -> Executable:
    return load(MODULE, request)


@pytest.fixture(scope="module", params=ALL_DEVICES[:2])
def wide(request: pytest.FixtureRequest) -> Executable:
    return load(WIDE, request)


def values(shape: tuple[int, ...], span: float = 300.0) -> np.ndarray:
    """Floats, half of them multiples of 1/8, so that there are ties."""
    rng = np.random.default_rng(sum(shape))
    x = rng.uniform(-span, span, shape)
    return np.where(rng.random(shape) < 0.5, np.rint(x * 8) / 8, x).astype(np.float32)


def integers(shape: tuple[int, ...], low: int = -128, high: int = 127) -> np.ndarray:
    rng = np.random.default_rng(sum(shape) + 1)
    dtype = np.int8 if low < 0 else np.uint8
    return rng.integers(low, high, shape, endpoint=True).astype(dtype)


# -- casts ----------------------------------------------------------------------------------------

FITTING = [
    ("ragged_static", RAGGED_PARAMETERS, [(7,)]),
    ("ragged_dynamic", RAGGED_PARAMETERS, [(7,), (8,), (9,)]),
    ("two_axes_static", TWO_AXES_PARAMETERS, [(5, 7)]),
    ("two_axes_dynamic", TWO_AXES_PARAMETERS, [(5, 7), (6, 9), (5, 8), (6, 7)]),
    ("two_axes_mixed", TWO_AXES_PARAMETERS, [(6, 7), (6, 9)]),
    ("blocks_dynamic", BLOCKS_PARAMETERS, [(8, 1), (8, 13)]),
    ("per_axis_dynamic", PER_AXIS_PARAMETERS, [(1, 4), (9, 4)]),
    ("per_axis_unranked", PER_AXIS_PARAMETERS, [(1, 4), (9, 4), (3, 4, 5), (2, 4, 3, 2)]),
    ("per_tensor_unranked", PER_TENSOR_PARAMETERS, [(), (1,), (7,), (3, 5), (2, 3, 4, 5)]),
    ("no_elements", PER_TENSOR_PARAMETERS, [(0, 4)]),
    ("rank_0", PER_TENSOR_PARAMETERS, [()]),
]


@pytest.mark.parametrize(("name", "parameters", "shapes"), FITTING, ids=[row[0] for row in FITTING])
def test_casts_of_shapes_that_fit(
    executable: Executable,
    name: str,
    parameters: QuantizationParameters,
    shapes: list[tuple[int, ...]],
) -> None:
    for shape in shapes:
        reals, stored = values(shape), integers(shape)
        got = executable[f"q_{name}"](reals)
        np.testing.assert_array_equal(got, quantize(reals, parameters), strict=True)
        assert same_bits(executable[f"d_{name}"](stored), dequantize(stored, parameters)), shape


def test_a_ragged_cast_equals_a_loop(executable: Executable) -> None:
    reals = values((5, 7))
    scales, zeros = TWO_AXES_PARAMETERS.scales, TWO_AXES_PARAMETERS.zero_points
    expected = np.zeros((5, 7), np.int8)
    for i in range(5):
        for j in range(7):
            block = i // 2, j // 3
            real = np.float32(reals[i, j] / scales[block]) + np.float32(zeros[block])
            expected[i, j] = round(max(-128.0, min(127.0, float(real))))
    np.testing.assert_array_equal(executable.q_two_axes_static(reals), expected)
    np.testing.assert_array_equal(executable.q_two_axes_dynamic(reals), expected)


RAGGED_TEXT = "7 to 9 at run time (3 blocks of 3, the last may be shorter)"
MISFITS = [
    ("ragged_dynamic", (6,), f"dimension 0 must be {RAGGED_TEXT}"),
    ("ragged_dynamic", (10,), f"dimension 0 must be {RAGGED_TEXT}"),
    ("ragged_dynamic", (0,), f"dimension 0 must be {RAGGED_TEXT}"),
    (
        "two_axes_dynamic",
        (4, 7),
        "dimension 0 must be 5 to 6 at run time (3 blocks of 2, the last may be shorter)",
    ),
    ("two_axes_dynamic", (5, 10), f"dimension 1 must be {RAGGED_TEXT}"),
    ("two_axes_mixed", (6, 6), f"dimension 1 must be {RAGGED_TEXT}"),
    ("per_axis_unranked", (2, 3), "dimension 1 must be 4 at run time (4 blocks of 1)"),
    (
        "per_axis_unranked",
        (4,),
        "rank must be at least 2 at run time, for the quantized dimension 1",
    ),
]


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


# -- scales and zero points as operands -----------------------------------------------------------


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
STATIC_OPERANDS = {
    "no_zero_points": ((4, 64), (1, 32), StorageType(4), (4, 2), None),
    "i4_zero_points": (
        (3, 10),
        (2, 4),
        StorageType(8, True, -100, 100),
        (2, 3),
        integers((2, 3), -8, 7),
    ),
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
    zeros = integers(grid, -20, 20)
    check_pair(executable, "dynamic", shape, (2, 3), I8, scale_grid(grid), zeros)


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


# -- control flow ---------------------------------------------------------------------------------


def stepped(stored: np.ndarray, times: int) -> np.ndarray:
    for _ in range(times):
        real = dequantize(stored, PER_TENSOR_PARAMETERS) + np.float32(1.25)
        stored = quantize(real, PER_TENSOR_PARAMETERS)
    return stored


FIRST = np.array([-128, -3, 0, 125], np.int8)
SECOND = np.array([1, 2, 3, 4], np.int8)


def test_calls_of_private_functions(executable: Executable) -> None:
    np.testing.assert_array_equal(executable.call(FIRST), stepped(FIRST, 2), strict=True)
    assert set(executable.functions).isdisjoint({"step", "pick"})


def test_calls_with_quantized_scalars(executable: Executable) -> None:
    element, tensor = executable.call_scalar(FIRST, -77)
    assert (element, element.dtype, element.shape) == (-3, np.int8, ())
    np.testing.assert_array_equal(tensor, np.array([-128, -77, 0, 125], np.int8), strict=True)


@pytest.mark.parametrize("times", [0, 1, 3, 60])
def test_a_loop_carries_quantized_values(executable: Executable, times: int) -> None:
    np.testing.assert_array_equal(executable.loop(FIRST, times), stepped(FIRST, times), strict=True)


@pytest.mark.parametrize("name", ["choose", "branch"])
def test_branches_on_quantized_values(executable: Executable, name: str) -> None:
    function = executable[name]
    np.testing.assert_array_equal(function(True, FIRST, SECOND), stepped(FIRST, 1), strict=True)
    np.testing.assert_array_equal(function(False, FIRST, SECOND), SECOND, strict=True)


def test_select_of_quantized_values(executable: Executable) -> None:
    np.testing.assert_array_equal(executable.select(True, FIRST, SECOND), FIRST, strict=True)
    np.testing.assert_array_equal(executable.select(False, FIRST, SECOND), SECOND, strict=True)


def test_while_on_quantized_values(executable: Executable) -> None:
    times = 0
    while dequantize(stepped(SECOND, times), PER_TENSOR_PARAMETERS)[0] < 7.0:
        times += 1
    assert times > 3
    np.testing.assert_array_equal(executable["while"](SECOND, 7.0), stepped(SECOND, times))


# -- scalars and loop bodies ----------------------------------------------------------------------


def test_quantized_scalars(executable: Executable) -> None:
    for real in (0.0, 0.125, -0.125, 1e9, -1e9, float("nan"), float("inf")):
        expected = quantize(np.float32(real), PER_TENSOR_PARAMETERS)
        assert executable.scalar(real) == expected, real
    for stored in (-128, 0, 127):
        assert executable.scalar_back(stored) == np.float32((stored - 3) * 0.25)


def test_casts_of_scalars_in_a_loop_body(executable: Executable) -> None:
    stored = integers((3, 5))
    real = dequantize(stored, PER_TENSOR_PARAMETERS)
    expected = quantize(real, OTHER_PARAMETERS)
    np.testing.assert_array_equal(executable.requantize_in_body(stored), expected, strict=True)


# -- data movement --------------------------------------------------------------------------------


def test_slices_of_quantized_tensors(executable: Executable) -> None:
    tensor, part = integers((4, 6)), integers((2, 3))
    np.testing.assert_array_equal(executable.slice(tensor), tensor[1:3, 1:7:2], strict=True)
    expected = tensor.copy()
    expected[1:3, 2:5] = part
    np.testing.assert_array_equal(executable.insert(part, tensor), expected, strict=True)


def test_reshapes_and_concatenations_of_i4(executable: Executable) -> None:
    tensor = integers((4, 6), -8, 7)
    np.testing.assert_array_equal(executable.reshape(tensor), tensor.reshape(2, 12), strict=True)
    left, right = integers((2, 3), -8, 7), integers((2, 4), -8, 7)
    expected = np.concatenate([left, right], 1)
    np.testing.assert_array_equal(executable.concat(left, right), expected, strict=True)


def test_a_dynamic_slice_is_dequantized(executable: Executable) -> None:
    tensor = integers((9, 6))
    for count in (1, 5, 8):
        expected = dequantize(tensor[1 : 1 + count], PER_TENSOR_PARAMETERS)
        assert same_bits(executable.moved_then_dequantized(tensor, count), expected)


# -- contractions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "k", "n"), DOTS)
def test_integer_contractions_are_exact(executable: Executable, m: int, k: int, n: int) -> None:
    left, right = integers((m, k)), integers((k, n))
    left[0, 0], right[0, 0] = -128, -128
    expected = (left.astype(np.int64) @ right.astype(np.int64)).astype(np.int32)
    np.testing.assert_array_equal(
        executable[f"dot_{m}_{k}_{n}"](left, right), expected, strict=True
    )
    weights = integers((n, k), -8, 7)
    expected = (left.astype(np.int64) @ weights.T.astype(np.int64)).astype(np.int32)
    got = executable[f"transposed_{m}_{k}_{n}"](left, weights)
    np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize(("m", "k", "n"), DOTS)
def test_a_dequantized_contraction(executable: Executable, m: int, k: int, n: int) -> None:
    """Within ``(k + 1) * 2**-24 * sum |a| |b|``: for a sum of f32 products in any order.

    ``|fl(sum) - sum| <= k u / (1 - k u) * sum |a_i b_i|`` with ``u = 2**-24`` (Higham, 3.1); the
    bound has k + 1 in place of k, which covers the denominator.
    """
    stored, right = integers((m, k)), values((k, n), 1.0)
    left = dequantize(stored, PER_TENSOR_PARAMETERS).astype(np.float64)
    exact = left @ right.astype(np.float64)
    bound = (k + 1) * 2.0**-24 * (np.abs(left) @ np.abs(right).astype(np.float64))
    got = executable[f"real_{m}_{k}_{n}"](stored, right)
    assert (np.abs(got - exact) <= bound).all()


# -- refusals -------------------------------------------------------------------------------------


def test_an_operation_that_computes_with_quantized_values_is_refused() -> None:
    type_ = f"tensor<4x{PER_TENSOR}>"
    text = f"func.func @f(%q: {type_}) -> {type_} {{\n" + (
        f'  %r = "test.neg"(%q) : ({type_}) -> {type_}\n  return %r : {type_}\n}}'
    )
    with pytest.raises(UnsupportedError, match="computes with quantized values") as caught:
        subquant.compile(text)
    assert (caught.value.place.line, caught.value.op_name) == (2, "test.neg")
