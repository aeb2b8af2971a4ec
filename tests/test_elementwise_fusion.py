"""Elementwise operations between kernels, in one dispatch with them: NumPy's numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from block_programs import arrays, program, reference
from instruction_sets import EVERY
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.layouts import GgmlTensor
from subquant.layouts.ggml import BLOCK_TYPES
from subquant.models.rotary_embedding import Rotation
from subquant.models.transformer import RotaryTables, gelu, rotate
from subquant.numerics.block_contraction import round_activations
from subquant.ops import linear, trace_function
from subquant.ops.others import silu
from subquant.runtime import Executable


def weight(columns, depth, seed=0):
    """Random blocks of 8 bits."""
    kind, random = BLOCK_TYPES["Q8_0"], np.random.default_rng(seed)
    count = columns * depth // kind.size
    raw = random.integers(0, 256, count * kind.block.itemsize, np.uint8)
    raw.view(kind.block)["d"] = random.uniform(0.0002, 0.002, count)
    return GgmlTensor(raw, "Q8_0", (columns, depth))


def product(x, matrix):
    """The product in float64, with activations quantized to 8 bits."""
    return round_activations(x, [1, 32]).astype(np.float64) @ matrix.unpack().dequant().T


def compiled(function, *arguments, **options):
    """The entry of a compiled function, and its lowered MLIR."""
    module, options = (
        trace_function(function, *arguments),
        CompileOptions(activations="int8", **options),
    )
    text = compile_to_bytes(module, options, emit="mlir").decode()
    return Executable(compile_to_bytes(module, options)).main, text


def calls(text):
    return re.findall(r'"flow\.dispatch".*?entry_points = \[@(\w+?)(?:_\d+)?::', text)


def assert_close(result, expected, roundings):
    """Allow some f32 roundings of the greatest number."""
    assert result.shape == expected.shape
    bound = roundings * 2.0**-24 * np.abs(expected).max()
    np.testing.assert_allclose(result, expected, rtol=0, atol=bound)


def normed(x, scale):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) / np.float32(x.shape[-1]) + 1e-6) * scale


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.share(8)
def test_a_block_of_one_token_is_one_dispatch(instructions, cpu):
    """Norm, gate, residual addition and norm, around three small products."""
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 128)).astype(np.float32)
    scale = random.uniform(0.5, 2, 128).astype(np.float32)
    up, gate, down = weight(160, 128, 1), weight(160, 128, 2), weight(128, 160, 3)

    def function(x, scale):
        y = normed(x, scale)
        one, two = linear(y, gate), linear(y, up)
        inner = gelu(one) * two
        out = linear(inner, down)
        total = x + normed(out, scale)
        return y, one, two, inner, out, total

    main, text = compiled(function, x, scale, kernels=instructions)
    assert calls(text) == ["fused"]
    assert not re.findall(r"stablehlo\.(?:add|divide|multiply|reduce|sqrt|tanh)", text)
    y, one, two, inner, out, total = main(x, scale)
    reals = x.astype(np.float64)
    assert_close(y, normed(reals, scale), 8)
    assert_close(one, product(y, gate), 128)
    assert_close(two, product(y, up), 128)
    assert_close(inner, gelu(one.astype(np.float64)) * two, 64)
    assert_close(out, product(inner, down), 160)
    assert_close(total, reals + normed(out.astype(np.float64), scale), 8)


SHAPES = {
    "elements": lambda z: (z - 1) * z / (abs(z) + 2),
    "functions": lambda z: silu(np.tanh(z)) + np.exp(-z) + np.sqrt(z * z + 1),
    "a bound": lambda z: np.minimum(np.maximum(z, -0.5), 0.25),
    "rows": lambda z: z.reshape((8, 37)).sum(1),
    "planes": lambda z: z.reshape((2, 4, 37)).sum((1, 2)),
    "all": lambda z: z.sum((0, 1)),
    "a mean of rows": lambda z: z.reshape((4, 74)) - z.reshape((4, 74)).mean(1, keepdims=True),
    "scaled rows": lambda z: z.reshape((37, 8)) * z.reshape((37, 8)).sum(1)[:, None],
    "the last axis reversed": lambda z: z.reshape((8, 37)) + np.flip(z.reshape((8, 37)), 1),
    "the first axis reversed": lambda z: z.reshape((37, 8)) - np.flip(z.reshape((37, 8)), 0),
    "both axes reversed": lambda z: np.flip(np.flip(z.reshape((37, 8)), 0), 1) * 2,
    "a slice": lambda z: z[:, 8:40] * 2 - z[:, 9:41],
    "a row": lambda z: z.reshape((8, 37))[2] + np.flip(z, 1)[0, 5:42],
    "a slice reversed": lambda z: np.flip(z[:, 3:50], 1) * z[:, 1:48],
    "one element": lambda z: z[:, :1] * 2 + 1,
    "a zero": lambda z: z * 0.0,
    "another zero": lambda z: z * -0.0,
}


def test_each_shape(cpu):
    """Sizes are multiples of a vector or not."""
    x = np.random.default_rng(5).standard_normal((1, 64)).astype(np.float32)
    matrix = weight(296, 64)

    def function(x):
        z = linear(x, matrix)
        return z, *(function(z) for function in SHAPES.values())

    main, text = compiled(function, x)
    assert "fused" in calls(text)
    z, *results = main(x)
    assert_close(z, product(x, matrix), 64)
    for name, function, each in zip(SHAPES, SHAPES.values(), results, strict=True):
        expected = function(z.astype(np.float64))
        assert each.shape == expected.shape, name
        assert_close(each, expected, 300)
        np.testing.assert_array_equal(np.signbit(each[each == 0]), np.signbit(expected[each == 0]))


@pytest.mark.parametrize("pairs", ["halves", "neighbors"])
def test_rotations(pairs, cpu):
    """Keys become f16 too; some elements of a head are not rotated."""
    random = np.random.default_rng(7)
    x = random.standard_normal((1, 96)).astype(np.float32)
    angles = random.uniform(-3, 3, (1, 16))
    tables = RotaryTables(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    matrix = weight(4 * 48, 96)

    def rotated(z, *tables, size):
        rotation = Rotation(1e4, 32, 1.0, pairs)
        return rotate(z.reshape((1, 192 // size, size)), RotaryTables(*tables), rotation)

    def function(x, cosine, sine):
        z = linear(x, matrix)
        whole, some = (rotated(z, cosine, sine, size=size) for size in (32, 48))
        return z, whole, some, whole.astype(np.float16)

    main, text = compiled(function, x, *tables)
    assert set(calls(text)) == {"fused"}
    z, whole, some, half = main(x, *tables)
    for result, size in ((whole, 32), (some, 48)):
        assert_close(result, rotated(z.astype(np.float64), *tables, size=size), 8)
    expected = whole.astype(np.float16)
    is_subnormal = np.abs(expected) < np.finfo(np.float16).smallest_normal
    assert not half[is_subnormal & (half != expected)].any()  # a CPU without F16C flushes them
    np.testing.assert_array_equal(half[~is_subnormal], expected[~is_subnormal])


def test_activations_of_several_products_are_quantized_once(cpu):
    x = np.random.default_rng(9).standard_normal((16, 64)).astype(np.float32)
    first, second = weight(2048, 64), weight(1024, 64, 1)
    main, text = compiled(lambda x: (linear(x, first), linear(x, second)), x)
    assert sorted(calls(text)) == ["blockwise_gemm", "blockwise_gemm", "quantize_rows"]
    for result, matrix in zip(main(x), (first, second), strict=True):
        assert_close(result, product(x, matrix), 64)


def test_invariants_are_left_to_iree(cpu):
    """IREE computes them once, when the program is loaded."""
    x, q, scales = arrays(1, 64, 264, 32)
    scale = np.linspace(1, 2, 64, dtype=np.float32)
    type_ = "tensor<1x64xf32>"
    text = program(1, 64, 264, 32).replace("%x, %w", "%scaled, %w")
    text = text.replace(
        "%w =",
        f"""%k = stablehlo.constant dense<[{scale.tolist()}]> : {type_}
  %more = stablehlo.add %k, %k : {type_}
  %scaled = stablehlo.multiply %x, %more : {type_}
  %w =""",
    )
    options = CompileOptions(activations="int8")
    lowered = compile_to_bytes(text, options, emit="mlir").decode()
    assert "stablehlo.add" in lowered
    assert "stablehlo.multiply" not in lowered
    results = Executable(compile_to_bytes(text, options)).main(x, q, scales)
    assert_close(results, reference(x * (scale + scale), q, scales, 32), 64)


def test_a_long_expression_is_split(cpu):
    x = np.random.default_rng(9).standard_normal((1, 64)).astype(np.float32)
    matrix = weight(264, 64)

    def function(x):
        z = linear(x, matrix)
        total = z
        for _ in range(100):
            total = total * 0.5 + z
        return z, total

    main, text = compiled(function, x)
    assert calls(text) == ["fused"]
    z, total = main(x)
    assert_close(total, 2 * z.astype(np.float64), 64)  # a geometric sum


def test_rows_of_a_few_tokens_have_the_bits_of_one(cpu):
    """Norms, with the greatest width of one token; and a gate whose result has 8 times as many."""
    rng = np.random.default_rng(9)
    x, scale = rng.standard_normal((8, 8192)).astype(np.float32), np.ones(8192, np.float32)
    matrix, wide = weight(64, 8192), weight(8192, 64, 1)

    def function(x, scale):
        narrow = linear(normed(x, scale), matrix)
        return narrow, np.tanh(linear(narrow, wide)) * x

    single, _ = compiled(function, x[:1], scale)
    together, text = compiled(function, x, scale)
    assert {"sum", "elementwise"} <= set(calls(text))
    results = together(x, scale)
    for number in range(8):
        for result, row in zip(results, single(x[number : number + 1], scale), strict=True):
            np.testing.assert_array_equal(result[number], row[0])


def test_larger_m_and_other_programs_are_not_fused():
    matrix = weight(264, 64)

    def function(x, scale):
        return linear(normed(x, scale), matrix)

    scale = np.ones(64, np.float32)
    for rows, options in ((9, {}), (1, {"fuse_below_macs": 0})):
        x = np.ones((rows, 64), np.float32)
        module = trace_function(function, x, scale)
        choices = CompileOptions(activations="int8", **options)
        text = compile_to_bytes(module, choices, emit="mlir").decode()
        assert not {"sum", "elementwise"} & set(calls(text))
        assert ("stablehlo.divide" in text) == bool(options)  # more tokens have a kernel of rows


INT8_PROGRAM = """
func.func @main(%x: tensor<{rows}x64xi8>, %r: tensor<{rows}x96xf32>) -> ({types}) {{
  %w = stablehlo.constant dense<{weight}> : tensor<64x96xi8>
  %z = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
       : (tensor<{rows}x64xi8>, tensor<64x96xi8>) -> tensor<{rows}x96xi32>
  %f = stablehlo.convert %z : (tensor<{rows}x96xi32>) -> tensor<{rows}x96xf32>
  %c = stablehlo.constant dense<1000> : tensor<{rows}x96xi32>
  %n = stablehlo.constant dense<0.75> : tensor<{rows}x96xf32>
  %i = stablehlo.constant dense<-7> : tensor<{rows}x96xi8>
  %s = stablehlo.compare LT, %z, %c : (tensor<{rows}x96xi32>, tensor<{rows}x96xi32>)
       -> tensor<{rows}x96xi1>
  %t = stablehlo.negate %r : tensor<{rows}x96xf32>
  %q = stablehlo.select %s, %r, %t : tensor<{rows}x96xi1>, tensor<{rows}x96xf32>
  {body}
  return {results} : {types}
}}"""
"""An int8 product: accumulators as i32 and f32, constants, and an argument with their signs."""

TESTED = {
    "EQ": np.equal, "NE": np.not_equal, "GE": np.greater_equal, "GT": np.greater,
    "LE": np.less_equal, "LT": np.less,
}  # fmt: skip


def operations_on_accumulators():
    """Operations, their element types, and their functions in NumPy."""
    results = [
        ("stablehlo.abs %z : T<i32>", "i32", lambda z, f, q: abs(z)),
        ("stablehlo.add %z, %c : T<i32>", "i32", lambda z, f, q: z + 1000),
        ("stablehlo.subtract %c, %z : T<i32>", "i32", lambda z, f, q: 1000 - z),
        ("stablehlo.multiply %z, %c : T<i32>", "i32", lambda z, f, q: z * 1000),
        ("stablehlo.maximum %z, %c : T<i32>", "i32", lambda z, f, q: np.maximum(z, 1000)),
        ("stablehlo.minimum %z, %c : T<i32>", "i32", lambda z, f, q: np.minimum(z, 1000)),
        ("stablehlo.negate %z : T<i32>", "i32", lambda z, f, q: -z),
        ("stablehlo.and %z, %c : T<i32>", "i32", lambda z, f, q: z & 1000),
        ("stablehlo.or %z, %c : T<i32>", "i32", lambda z, f, q: z | 1000),
        ("stablehlo.xor %z, %c : T<i32>", "i32", lambda z, f, q: z ^ 1000),
        ("stablehlo.convert %z : (T<i32>) -> T<i8>", "i8", lambda z, f, q: z.astype(np.int8)),
        ("stablehlo.convert %q : (T<f32>) -> T<i32>", "i32", lambda z, f, q: np.trunc(q)),
        ("stablehlo.bitcast_convert %f : (T<f32>) -> T<i32>", "i32", lambda z, f, q: f.view("i4")),
        ("stablehlo.bitcast_convert %z : (T<i32>) -> T<f32>", "f32", lambda z, f, q: z.view("f4")),
        ("stablehlo.floor %q : T<f32>", "f32", lambda z, f, q: np.floor(q)),
        ("stablehlo.round_nearest_even %q : T<f32>", "f32", lambda z, f, q: np.rint(q)),
        ("stablehlo.divide %f, %n : T<f32>", "f32", lambda z, f, q: f / np.float32(0.75)),
    ]
    for direction, test in TESTED.items():
        compared = f"stablehlo.compare {direction}, "
        for operands, kind, of in (
            ("%z, %c", "SIGNED : (T<i32>, T<i32>)", lambda z, f, q, test=test: test(z, 1000)),
            ("%q, %n", "FLOAT : (T<f32>, T<f32>)", lambda z, f, q, test=test: test(q, 0.75)),
        ):
            results.append((f"{compared}{operands}, {kind} -> T<i1>", "i1", of))
    return results


def int8_program(rows=1):
    """The program, with selects on booleans, and the functions of its results."""
    operations, names, elements, functions = [], [], [], []
    for number, (line, element, function) in enumerate(operations_on_accumulators()):
        name, ending = f"%v{number}", ""
        if element == "i1":
            ending = f"\n  %t{number} = stablehlo.select {name}, %f, %q : T<i1>, T<f32>"
            names.append(f"%t{number}")
            functions.append(lambda z, f, q, function=function: np.where(function(z, f, q), f, q))
        else:
            names.append(name)
            functions.append(function)
        elements.append("f32" if element == "i1" else element)
        operations.append(f"{name} = {line}{ending}")
    operations += [
        "%low = stablehlo.constant dense<0x7F800000> : tensor<f32>",
        "%least = stablehlo.reduce(%f init: %low) applies stablehlo.minimum across "
        "dimensions = [1] : (T<f32>, tensor<f32>) -> tensor<ROWSxf32>",
        "%b = stablehlo.convert %z : (T<i32>) -> T<i8>",
        "%both = stablehlo.add %b, %i : T<i8>",
    ]
    functions += [lambda z, f, q: f.min(1), lambda z, f, q: (z - 7).astype(np.int8)]
    types = [f"tensor<{rows}x96x{each}>" for each in elements]
    types += [f"tensor<{rows}xf32>", f"tensor<{rows}x96xi8>"]
    body = re.sub(r"\bT<(\w+)>", rf"tensor<{rows}x96x\1>", "\n  ".join(operations))
    weight = np.random.default_rng(3).integers(-128, 128, (64, 96))
    text = INT8_PROGRAM.format(
        rows=rows,
        types=", ".join(types),
        weight=weight.tolist(),
        body=body.replace("ROWS", str(rows)),
        results=", ".join([*names, "%least", "%both"]),
    )
    return text, weight, functions


def test_integers_and_booleans(cpu):
    """Operations after an int8 product with M = 1 join its dispatch: NumPy's results to the bit.

    There are two dispatches: one has 32 arguments and results at most.
    """
    text, weight, functions = int8_program()
    lowered = compile_to_bytes(text, emit="mlir").decode()
    assert calls(lowered) == ["fused", "fused"]
    assert not re.findall(r"= stablehlo\.(?!constant|reshape|broadcast_in_dim)\w+", lowered)
    random = np.random.default_rng(4)
    x = random.integers(-128, 128, (1, 64)).astype(np.int8)
    r = (random.standard_normal((1, 96)) * 3).astype(np.float32)
    r[0, :6] = [0.75, 0.5, -0.5, -1e-40, 1e-40, 2.5]  # subnormals, which devices flush to 0
    z = (x.astype(np.int64) @ weight).astype(np.int32)
    results = Executable(compile_to_bytes(text)).main(x, r)
    for each, function in zip(results, functions, strict=True):
        expected = function(z, z.astype(np.float32), np.where(z < 1000, r, -r))
        is_exact = (expected == 0) | (abs(expected) > 1e-38)
        np.testing.assert_array_equal(each[is_exact], expected[is_exact])


def test_int8_products_with_larger_m_are_not_fused():
    text, _, _ = int8_program(rows=2)
    lowered = compile_to_bytes(text, emit="mlir").decode()
    assert len(calls(lowered)) == 1
    assert lowered.count("stablehlo.select") > 12
