"""Reductions of rows and the elementwise operations around them, as one kernel: NumPy's numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from devices import main_of
from integer_programs import drawn
from onnx_models import model, node, text_of
from programs import LONG
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.numerics.convolutions import contract
from subquant.ops import trace_function
from subquant.runtime import Executable


def softmax(x):
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def normalized(x):
    mean = x.sum(-1, keepdims=True) / np.float32(x.shape[-1])
    variance = ((x - mean) * (x - mean)).sum(-1, keepdims=True) / np.float32(x.shape[-1])
    return (x - mean) / np.sqrt(variance + np.float32(1e-5))


def layer(x, weight):
    """Two normalizations: the second one depends on the first one by a product, too."""
    rows = normalized(x)
    return normalized(contract(rows, weight, ((2,), (0,)), dtype=x.dtype) + rows)


def extrema(x):
    """The bounds of a tensor, as dynamic quantization computes them."""
    bounded = np.tanh(x)
    return bounded, bounded.max((0, 1, 2)), bounded.min((0, 1, 2))


def rounded(x):
    """Rows divided by their scales, and the scales, as hybrid layers of LiteRT compute them."""
    greatest = np.abs(x).max(-1, keepdims=True)
    is_zero = greatest == np.float32(0)  # which three selections read
    divisor = np.where(is_zero, np.float32(1), greatest)
    factor = np.where(is_zero, np.float32(0), np.float32(127) / divisor)
    scales = np.where(is_zero, np.float32(1), divisor / np.float32(127))
    return x * factor, np.tanh(np.flip(scales, (1,)))  # not a member: of another row


def program(x, mask, scale, weight):
    """Results of rows, some with results that other operations read."""
    centered = x - x.sum(-1, keepdims=True) / np.float32(x.shape[-1])
    totals = np.exp(centered).sum(-1, keepdims=True)
    np.tanh(centered.max(-1, keepdims=True))  # which nobody reads
    bounded = np.tanh(x)  # a group that reads the totals, and ends before theirs
    least, energy = (bounded + totals).min(-1), (bounded * bounded).sum(-1)
    return (
        np.tanh(centered),
        least,
        energy,
        softmax(x * np.float32(0.25) + mask),
        normalized(x * scale + np.float32(1)) * scale,
        layer(x, weight),
        centered,
        np.exp(centered) / np.flip(totals, (0,)),  # of another row
        np.flip(x, (2,)) / (x.max(-1, keepdims=True) - x.min(-1, keepdims=True)),
        (centered * centered).sum(-1),
        np.tanh(totals),
        *extrema(x),
        *rounded(np.tanh(mask) * np.tanh(x) + scale),
    )


def test_a_softmax_alone_is_a_kernel(cpu):
    x = np.random.default_rng(0).standard_normal((7, 50)).astype(np.float32)
    module = trace_function(softmax, x)
    assert "@row_program" in compile_to_bytes(module, CompileOptions(), emit="mlir").decode()
    np.testing.assert_allclose(main_of(str(module))(x), softmax(x.astype(np.float64)), rtol=1e-6)


def test_rows_of_vectors_and_a_rest(cpu):
    for columns in (36, 100):
        rng = np.random.default_rng(columns)
        x, mask, scale, weight = (
            rng.standard_normal(shape).astype(np.float32)
            for shape in ((3, 16, columns), (3, 1, columns), (columns,), (columns, columns))
        )
        mask[:, :, -2:] = -np.inf
        x[1, 2, 0] = np.inf
        constant = weight / np.float32(8)

        def function(x, mask, scale, constant=constant):
            return program(x, mask, scale, constant)

        module = trace_function(function, x, mask, scale)
        text = compile_to_bytes(module, emit="mlir").decode()
        # The maximum beside a minimum, and the bounds: those of rows, or of a tensor that is small.
        assert text.count("stablehlo.reduce(") == 3
        results = Executable(compile_to_bytes(module, CompileOptions()), cpu).main(x, mask, scale)
        with np.errstate(invalid="ignore"):
            expected = program(x.astype(np.float64), mask, scale, constant)
        for number, (result, target) in enumerate(zip(results, expected, strict=True)):
            bound = 64 * 2.0**-24 * np.nanmax(np.abs(target[np.isfinite(target)]))
            np.testing.assert_allclose(
                result, target, rtol=64 * 2.0**-24, atol=bound, err_msg=str(number)
            )


def random_program(rng, x, weight):
    """Results of drawn operations of elements and of rows, each on earlier values."""
    elements, numbers = [x, x * np.float32(0.5)], [x.sum(-1, keepdims=True)]
    masks = [numbers[0] > np.float32(0)]

    def drawn(values):
        return values[rng.integers(len(values))]

    half = x.shape[2] // 2
    to_elements = (
        lambda a, n: a + drawn(elements),
        lambda a, n: a - n,
        lambda a, n: np.tanh(a * n),
        lambda a, n: contract(np.tanh(a), weight, ((2,), (0,)), dtype=x.dtype),
        lambda a, n: np.flip(a, (int(rng.integers(3)),)) + drawn(elements),
        lambda a, n: np.tanh(a[:, :, :half]).sum(-1, keepdims=True) + drawn(elements),
        lambda a, n: np.tanh(a).max((0, 1, 2)) + drawn(elements),
        lambda a, n: np.where(drawn(masks), a, n),
    )
    to_numbers = (
        lambda a, n: np.tanh(a).sum(-1, keepdims=True),
        lambda a, n: a.max(-1, keepdims=True),
        lambda a, n: np.tanh(n) + drawn(numbers),
        lambda a, n: np.where(drawn(masks), n, drawn(numbers)),
    )
    for _ in range(14):
        masks += [drawn(numbers) > drawn(numbers)] * (rng.random() < 0.2)
        group, functions = ((elements, to_elements), (numbers, to_numbers))[rng.integers(2)]
        group.append(drawn(functions)(drawn(elements), drawn(numbers)))
    results = elements[-1], *(each for each in (*elements, *numbers) if rng.random() < 0.2)
    return tuple(np.tanh(each) for each in results)


def test_groups_of_random_programs_are_in_order():
    """Groups that depend on each other stay apart, and calls follow the values that they read."""
    x = np.ones((2, 16, 40), np.float32)
    weight = np.ones((40, 40), np.float32)
    for seed in range(200 if LONG else 12):

        def function(x, seed=seed):
            return random_program(np.random.default_rng(seed), x, weight)

        compile_to_bytes(trace_function(function, x), emit="mlir")


def quantized_layer(columns):
    """Softmax and LayerNormalization of dequantized bytes, whose results are quantized."""
    casts = {
        "x": ("x", "xs", "xz", "xf"),
        "r": ("r", "rs", "rz", "rf"),
        "s": ("sf", "ss", "sz", "s"),
        "l": ("lf", "ls", "lz", "l"),
    }
    names = {"x": "DequantizeLinear", "r": "DequantizeLinear", "s": "QuantizeLinear"}
    nodes = [
        node(names["x"], list(casts["x"][:3]), ["xf"]),
        node(names["r"], list(casts["r"][:3]), ["rf"]),
        node("Softmax", ["xf"], ["sf"], axis=-1),
        node(names["s"], list(casts["s"][:3]), ["s"]),
        node("Add", ["xf", "rf"], ["af"]),
        node("LayerNormalization", ["af", "gamma"], ["lf"], axis=-1),
        node(names["s"], list(casts["l"][:3]), ["l"]),
    ]
    rng = np.random.default_rng(columns)
    constants = {"gamma": rng.standard_normal(columns).astype(np.float32)}
    for name, scale, zero in (("x", 0.21, 114), ("r", 0.07, 200), ("s", 0.004, 0), ("l", 0.03, 99)):
        constants[f"{name}s"], constants[f"{name}z"] = np.float32(scale), np.uint8(zero)
    shape = (2, 16, columns)
    inputs = {"x": ("UINT8", shape), "r": ("UINT8", shape)}
    # The product gives the program a kernel, beside which rows are fused.
    constants |= {"w": drawn(columns, 16), "ws": np.float32(0.5), "wz": np.int8(0)}
    constants |= {"ys": np.float32(4), "yz": np.uint8(128)}
    product = ["l", "ls", "lz", "w", "ws", "wz", "ys", "yz"]
    nodes.append(node("QLinearMatMul", product, ["y"]))
    outputs = {"s": ("UINT8", shape), "l": ("UINT8", shape), "y": ("UINT8", (*shape[:2], 16))}
    return text_of(model(nodes, inputs, outputs, constants)), constants


@pytest.mark.parametrize("columns", [100, 48, 17, 3])
@pytest.mark.share(2)
def test_quantized_rows(columns, cpu):
    """The kernel of rows reads bytes and writes bytes."""
    text, constants = quantized_layer(columns)
    lowered = compile_to_bytes(text.encode(), emit="mlir").decode()
    main = lowered[lowered.rindex("func.func @main") :]
    assert "f32" not in "".join(re.findall(r"-> .*", main))
    rng = np.random.default_rng(0)
    x, r = (rng.integers(0, 256, (2, 16, columns)).astype(np.uint8) for _ in range(2))
    x[0, 0] = 255
    probabilities, norms, _ = main_of(text)(x, r)

    def dequantized(integers, name):
        return (integers.astype(np.float64) - constants[f"{name}z"]) * constants[f"{name}s"]

    def check(actual, reals, name):
        steps = reals / np.float64(constants[f"{name}s"]) + constants[f"{name}z"]
        is_tie = np.abs(steps - np.floor(steps) - 0.5) < 1e-3
        expected = np.clip(np.rint(steps), 0, 255)
        np.testing.assert_array_equal(actual[~is_tie], expected[~is_tie])

    real = dequantized(x, "x")
    check(probabilities, softmax(real), "s")
    check(norms, normalized(real + dequantized(r, "r")) * constants["gamma"], "l")
