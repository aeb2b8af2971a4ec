"""Formulas between kernels that are computed in their dispatches: NumPy's numbers, one dispatch."""

from __future__ import annotations

import re

import numpy as np
import pytest

from block_programs import arrays, program, reference
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.options import CompileOptions
from subquant.layouts import GgmlTensor
from subquant.layouts.ggml import BLOCK_TYPES
from subquant.models.configuration import Rotation
from subquant.models.transformer import Turns, gelu, rotate
from subquant.numerics.block_contraction import round_activations
from subquant.ops import linear, trace_function
from subquant.ops.others import silu
from subquant.runtime import Executable
from test_kernel_epilogues import here

HERE = here()


def weight(columns, depth, seed=0):
    """Random blocks of 8 bits."""
    kind, random = BLOCK_TYPES["Q8_0"], np.random.default_rng(seed)
    count = columns * depth // kind.size
    raw = random.integers(0, 256, count * kind.block.itemsize, np.uint8)
    raw.view(kind.block)["d"] = random.uniform(0.0002, 0.002, count)
    return GgmlTensor(raw, "Q8_0", (columns, depth))


def product(x, given):
    """In float64, of activations that are rounded to 8 bits."""
    return round_activations(x, [1, 32]).astype(np.float64) @ given.unpack().dequant().T


def compiled(function, *given, **options):
    """An executable of a function, and the text that IREE was given."""
    module, options = (
        trace_function(function, *given),
        CompileOptions(activations="int8", **options),
    )
    text = compile_to_bytes(module, options, emit="mlir").decode()
    return Executable(compile_to_bytes(module, options)).main, text


def calls(text):
    return re.findall(r'"flow\.dispatch".*?entry_points = \[@(\w+?)(?:_\d+)?::', text)


def near(found, expected, steps):
    """Within some roundings of f32 of the greatest of the numbers."""
    assert found.shape == expected.shape
    bound = steps * 2.0**-24 * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


def normed(x, scale):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) / np.float32(x.shape[-1]) + 1e-6) * scale


@pytest.mark.parametrize("instructions", HERE)
@pytest.mark.share(2)
def test_a_block_of_one_token_is_one_dispatch(instructions, cpu):
    """A norm, a gate, what is added to and a norm again, around three small products."""
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
    assert calls(text) == ["joined"]
    assert not re.findall(r"stablehlo\.(?:add|divide|multiply|reduce|sqrt|tanh)", text)
    y, one, two, inner, out, total = main(x, scale)
    reals = x.astype(np.float64)
    near(y, normed(reals, scale), 8)
    near(one, product(y, gate), 128)
    near(two, product(y, up), 128)
    near(inner, gelu(one.astype(np.float64)) * two, 64)
    near(out, product(inner, down), 160)
    near(total, reals + normed(out.astype(np.float64), scale), 8)


SHAPES = {
    "elements": lambda z: (z - 1) * z / (abs(z) + 2),
    "functions": lambda z: silu(np.tanh(z)) + np.exp(-z) + np.sqrt(z * z + 1),
    "a bound": lambda z: np.minimum(np.maximum(z, -0.5), 0.25),
    "rows": lambda z: z.reshape((8, 37)).sum(1),
    "planes": lambda z: z.reshape((2, 4, 37)).sum((1, 2)),
    "all": lambda z: z.sum((0, 1)),
    "a mean of rows": lambda z: z.reshape((4, 74)) - z.reshape((4, 74)).mean(1, keepdims=True),
    "columns of rows": lambda z: z.reshape((37, 8)) * z.reshape((37, 8)).sum(1)[:, None],
    "the last turned": lambda z: z.reshape((8, 37)) + np.flip(z.reshape((8, 37)), 1),
    "the first turned": lambda z: z.reshape((37, 8)) - np.flip(z.reshape((37, 8)), 0),
    "both turned": lambda z: np.flip(np.flip(z.reshape((37, 8)), 0), 1) * 2,
    "one element": lambda z: z[:, :1] * 2 + 1,
    "a zero": lambda z: z * 0.0,
    "another zero": lambda z: z * -0.0,
}


def test_formulas_of_each_shape(cpu):
    """Of what a product gives, with extents that are whole vectors or not."""
    x = np.random.default_rng(5).standard_normal((1, 64)).astype(np.float32)
    given = weight(296, 64)

    def function(x):
        z = linear(x, given)
        return z, *(formula(z) for formula in SHAPES.values())

    main, text = compiled(function, x)
    assert "joined" in calls(text)
    z, *found = main(x)
    near(z, product(x, given), 64)
    for name, formula, each in zip(SHAPES, SHAPES.values(), found, strict=True):
        expected = formula(z.astype(np.float64))
        assert each.shape == expected.shape, name
        near(each, expected, 300)
        np.testing.assert_array_equal(np.signbit(each[each == 0]), np.signbit(expected[each == 0]))


@pytest.mark.parametrize("pairs", ["halves", "neighbors"])
def test_rotations(pairs, cpu):
    """Keys become f16 besides; some elements of a head are not turned."""
    random = np.random.default_rng(7)
    x = random.standard_normal((1, 96)).astype(np.float32)
    angles = random.uniform(-3, 3, (1, 16))
    turns = Turns(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    given = weight(4 * 48, 96)

    def rotated(z, *turns, size):
        rotation = Rotation(1e4, 32, 1.0, pairs)
        return rotate(z.reshape((1, 192 // size, size)), Turns(*turns), rotation)

    def function(x, cosine, sine):
        z = linear(x, given)
        whole, some = (rotated(z, cosine, sine, size=size) for size in (32, 48))
        return z, whole, some, whole.astype(np.float16)

    main, text = compiled(function, x, *turns)
    assert set(calls(text)) == {"joined"}
    z, whole, some, half = main(x, *turns)
    for found, size in ((whole, 32), (some, 48)):
        near(found, rotated(z.astype(np.float64), *turns, size=size), 8)
    np.testing.assert_array_equal(half, whole.astype(np.float16))


def test_activations_of_several_products_are_rounded_once(cpu):
    x = np.random.default_rng(9).standard_normal((16, 64)).astype(np.float32)
    first, second = weight(2048, 64), weight(1024, 64, 1)
    main, text = compiled(lambda x: (linear(x, first), linear(x, second)), x)
    assert sorted(calls(text)) == ["block_product", "block_product", "round_rows"]
    for found, given in zip(main(x), (first, second), strict=True):
        near(found, product(x, given), 64)


def test_what_is_known_is_left_to_iree(cpu):
    """It computes that once, when the program is loaded."""
    x, q, scales = arrays(1, 64, 264, 32)
    known = np.linspace(1, 2, 64, dtype=np.float32)
    type_ = "tensor<1x64xf32>"
    text = program(1, 64, 264, 32).replace("%x, %w", "%scaled, %w")
    text = text.replace(
        "%w =",
        f"""%k = stablehlo.constant dense<[{known.tolist()}]> : {type_}
  %more = stablehlo.add %k, %k : {type_}
  %scaled = stablehlo.multiply %x, %more : {type_}
  %w =""",
    )
    options = CompileOptions(activations="int8")
    lowered = compile_to_bytes(text, options, emit="mlir").decode()
    assert "stablehlo.add" in lowered
    assert "stablehlo.multiply" not in lowered
    found = Executable(compile_to_bytes(text, options)).main(x, q, scales)
    near(found, reference(x * (known + known), q, scales, 32), 64)


def test_a_long_formula_is_several(cpu):
    x = np.random.default_rng(9).standard_normal((1, 64)).astype(np.float32)
    given = weight(264, 64)

    def function(x):
        z = linear(x, given)
        total = z
        for _ in range(100):
            total = total * 0.5 + z
        return z, total

    main, text = compiled(function, x)
    assert calls(text) == ["joined"]
    z, total = main(x)
    near(total, 2 * z.astype(np.float64), 64)  # a geometric sum


def test_many_rows_and_other_programs_are_left_alone():
    given = weight(264, 64)

    def function(x, scale):
        return linear(normed(x, scale), given)

    scale = np.ones(64, np.float32)
    for rows, options in ((4, {}), (1, {"joined_products": 0})):
        x = np.ones((rows, 64), np.float32)
        module = trace_function(function, x, scale)
        choices = CompileOptions(activations="int8", **options)
        text = compile_to_bytes(module, choices, emit="mlir").decode()
        assert not {"sum", "formula"} & set(calls(text))
        assert "stablehlo.divide" in text
