"""Contraction, bias and activation before one quantize become quantized operations."""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np
import pytest

from programs import LONG, run_passes
from subquant.compiler.reading import parse_text
from subquant.dialects import create_context
from subquant.dialects.quant import is_quantized
from subquant.interpreter.interpreted_module import InterpretedModule
from subquant.runtime import Device
from subquant.transforms.base import walk
from together import Together

X, W = "!quant.uniform<i8:f32, 0.05:3>", "!quant.uniform<i8:f32:1, {0.02, 0.01, 0.04}>"
Y = "!quant.uniform<i8:f32, 0.07:-20>"
SAME = "!quant.uniform<i32:f32:0, {0.001, 0.0005, 0.002}>"
OTHER = "!quant.uniform<i32:f32, 0.0123:5>"
ROWS, DEPTH, COLUMNS = 4, 16, 3

BIASES = {
    "none": ("", ""),
    "constant": (
        "",
        "%c = stablehlo.constant dense<[0.3, -0.7, 1.1]> : tensor<3xf32>\n"
        "  %b = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<3xf32>) -> tensor<4x3xf32>",
    ),
    "of the product scale": (
        f", %q: tensor<3x{SAME}>",
        f"%c = quant.dcast %q : tensor<3x{SAME}> to tensor<3xf32>\n"
        "  %b = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<3xf32>) -> tensor<4x3xf32>",
    ),
    "of another scale": (
        f", %q: tensor<3x{OTHER}>",
        f"%c = quant.dcast %q : tensor<3x{OTHER}> to tensor<3xf32>\n"
        "  %b = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<3xf32>) -> tensor<4x3xf32>",
    ),
    "whole": (
        f", %q: tensor<4x3x{OTHER}>",
        f"%b = stablehlo.uniform_dequantize %q : (tensor<4x3x{OTHER}>) -> tensor<4x3xf32>",
    ),
}
ACTIVATIONS = {
    "none": "",
    "relu": "%z = stablehlo.constant dense<0.0> : tensor<4x3xf32>\n"
    "  %a = stablehlo.maximum %z, {sum} : tensor<4x3xf32>",
    "relu6": "%lo = stablehlo.constant dense<0.0> : tensor<f32>\n"
    "  %hi = stablehlo.constant dense<6.0> : tensor<f32>\n"
    "  %a = stablehlo.clamp %lo, {sum}, %hi : (tensor<f32>, tensor<4x3xf32>, tensor<f32>) -> "
    "tensor<4x3xf32>",
    "relu and minimum": "%z = stablehlo.constant dense<0.0> : tensor<4x3xf32>\n"
    "  %m = stablehlo.maximum {sum}, %z : tensor<4x3xf32>\n"
    "  %t = stablehlo.constant dense<4.0> : tensor<4x3xf32>\n"
    "  %a = stablehlo.minimum %m, %t : tensor<4x3xf32>",
}
LIMITS = {
    "none": (-np.inf, np.inf),
    "relu": (0, np.inf),
    "relu6": (0, 6),
    "relu and minimum": (0, 4),
}


def program(bias: str, activation: str) -> str:
    """A dot of dequantized values, a bias, an activation, a quantize."""
    argument, statements = BIASES[bias]
    total = "%d"
    if bias != "none":
        statements += f"\n  %s = stablehlo.add {total}, %b : tensor<4x3xf32>"
        total = "%s"
    result = total if activation == "none" else "%a"
    return f"""
func.func @main(%x: tensor<4x16x{X}>, %w: tensor<16x3x{W}>{argument}) -> tensor<4x3x{Y}> {{
  %0 = quant.dcast %x : tensor<4x16x{X}> to tensor<4x16xf32>
  %1 = stablehlo.uniform_dequantize %w : (tensor<16x3x{W}>) -> tensor<16x3xf32>
  %d = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0]
      : (tensor<4x16xf32>, tensor<16x3xf32>) -> tensor<4x3xf32>
  {statements}
  {ACTIVATIONS[activation].format(sum=total)}
  %r = quant.qcast {result} : tensor<4x3xf32> to tensor<4x3x{Y}>
  return %r : tensor<4x3x{Y}>
}}
"""


def fused(text: str, options: str = "") -> str:
    return str(run_passes(text, f"legalize-qdq-to-quantized-op{options}")[0])


def float_operations(text: str) -> list[str]:
    """The computing operations that are left on reals, by name."""
    moves = ("constant", "broadcast_in_dim", "uniform_quantize")
    module = parse_text(text, create_context())  # lives as long as its operations are looked at
    return [
        op.name
        for op in walk(module.operation)
        if op.name.startswith("stablehlo.")
        and not op.name.endswith(moves)
        and not any(is_quantized(value.type) for value in (*op.operands, *op.results))
    ]


def scale(number: float) -> Fraction:
    return Fraction(float(np.float32(number)))


def nearest(real: Fraction, low: int, high: int) -> int:
    return min(max(round(real), low), high)


def expected(bias: str, limits: tuple[float, float], arrays: list[np.ndarray]) -> np.ndarray:
    """Rationals, rounded where the fused program has a type: the i32 of the sum, then i8."""
    x, w = (array.astype(int) for array in arrays[:2])
    accumulators = (x - 3) @ w
    out = scale(0.07)
    low, high = (
        nearest(Fraction(limit) / out - 20, -128, 127) if np.isfinite(limit) else round(limit_)
        for limit, limit_ in zip(limits, (-128, 127), strict=True)
    )
    result = np.empty(accumulators.shape, np.int8)
    for row, column in np.ndindex(*accumulators.shape):
        product = Fraction(float(np.float32(scale(0.05) * scale((0.02, 0.01, 0.04)[column]))))
        total = Fraction(int(accumulators[row, column]))
        if bias == "none":  # one rounding: the product is not rounded to f32 on the way
            product = scale(0.05) * scale((0.02, 0.01, 0.04)[column])
        elif bias == "constant":
            total += round(scale((0.3, -0.7, 1.1)[column]) / product)
        elif bias == "of the product scale":
            total += int(arrays[2][column])
        else:
            stored = int(
                arrays[2][column] if bias == "of another scale" else arrays[2][row, column]
            )
            total = Fraction(round(total + (stored - 5) * scale(0.0123) / product))
        step = nearest(total * product / out - 20, -128, 127)
        result[row, column] = min(max(step, low), high)
    return result


COMPILED = {
    (bias, activation)
    for number, bias in enumerate(BIASES)
    for activation in (ACTIVATIONS if LONG else [[*ACTIVATIONS][number % len(ACTIVATIONS)]])
}
"""In the short suite each bias, and each activation, in one program; all are interpreted."""


@functools.cache
def fused_sequences() -> Together:
    programs = {", ".join(pair): fused(program(*pair)) for pair in sorted(COMPILED)}
    return Together(programs, integer_only=True)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_sequences_fuse(bias: str, activation: str, cpu: Device) -> None:
    text = program(bias, activation)
    result = fused(text)
    assert not float_operations(result), result
    generator = np.random.default_rng(11)
    arrays = [
        generator.integers(-30, 37, (ROWS, DEPTH)).astype(np.int8),
        generator.integers(-60, 61, (DEPTH, COLUMNS)).astype(np.int8),
    ]
    if BIASES[bias][0]:
        shape = (4, 3) if bias == "whole" else 3
        arrays.append(generator.integers(-200, 201, shape).astype(np.int32))
    target = expected(bias, LIMITS[activation], arrays)
    (interpreted,) = InterpretedModule(result)["main"].invoke(arrays)
    np.testing.assert_array_equal(interpreted, target)
    if (bias, activation) in COMPILED:
        compiled = fused_sequences().function(f"{bias}, {activation}", cpu)
        np.testing.assert_array_equal(compiled(*arrays), target)
    # The float program's sums are rounded to f32, and its bias is not: a step away at most.
    (as_written,) = InterpretedModule(text)["main"].invoke(arrays)
    assert np.abs(as_written.astype(int) - target).max() <= 1
    assert len(set(target.reshape(-1).tolist())) >= 3


def test_sequences_are_left_alone_on_request() -> None:
    text = program("constant", "relu")
    assert "stablehlo.add" in float_operations(fused(text, "{sequences=false}"))


def test_a_sum_of_dequantized_values_with_an_activation_fuses() -> None:
    text = f"""
func.func @main(%x: tensor<4x{X}>, %y: tensor<4x{X}>) -> tensor<4x{Y}> {{
  %0 = quant.dcast %x : tensor<4x{X}> to tensor<4xf32>
  %1 = quant.dcast %y : tensor<4x{X}> to tensor<4xf32>
  %2 = stablehlo.add %0, %1 : tensor<4xf32>
  %z = stablehlo.constant dense<0.0> : tensor<4xf32>
  %3 = stablehlo.maximum %2, %z : tensor<4xf32>
  %r = quant.qcast %3 : tensor<4xf32> to tensor<4x{Y}>
  return %r : tensor<4x{Y}>
}}
"""
    result = fused(text)
    assert not float_operations(result)
    values = [np.array([100, -128, 20, 3], np.int8), np.array([-5, -128, -60, 3], np.int8)]
    (expected,) = InterpretedModule(text)["main"].invoke(values)
    (actual,) = InterpretedModule(result)["main"].invoke(values)
    np.testing.assert_array_equal(actual, expected)


LEFT_ALONE = {
    "the sum has another use": ("-> tensor<4x3x$Y> {", "-> (tensor<4x3x$Y>, tensor<4x3xf32>) {"),
    "the weights have a zero point": ("{0.02, 0.01, 0.04}", "{0.02:1, 0.01:2, 0.04:3}"),
    "the scales' product is no normal f32": ("{0.02, 0.01, 0.04}", "{2.0e-38, 0.01, 0.04}"),
    "the bias is computed": ("%c = stablehlo.constant dense<[0.3, -0.7, 1.1]> : tensor<3xf32>",
                             '%c = "test.make"() : () -> tensor<3xf32>'),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_what_is_left_alone(case: str) -> None:
    """The module does not change: no cast is left over."""
    before, after = (part.replace("$Y", Y) for part in LEFT_ALONE[case])
    text = program("constant", "relu")
    assert before in text
    text = text.replace(before, after)
    if case == "the sum has another use":
        text = text.replace(f"return %r : tensor<4x3x{Y}>", f"return %r, %s : tensor<4x3x{Y}>, tensor<4x3xf32>")  # noqa: E501  # fmt: skip
    context = create_context()
    context.allow_unregistered_dialects = True
    unchanged = str(parse_text(text, context))
    assert str(run_passes(text, "legalize-qdq-to-quantized-op", context)[0]) == unchanged
