"""Matmul and convolution step by step: accumulation, zero points, bias, requantization, clamp."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import subquant
from devices import ON_DEVICES
from programs import LONG, PRODUCT, one_operation
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.pipeline import compile_pipeline, parse_pipeline, run_pipeline
from subquant.compiler.reading import parse_text
from subquant.conformance.program import Program
from subquant.conformance.suite import programs
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.dialects.grids import exact, exact_product
from subquant.dialects.quant import element_type
from subquant.errors import UnsupportedError
from subquant.interpreter.interpreted_module import InterpretedModule
from subquant.numerics.fixed_point import apply_scale, multiplier_and_shift
from subquant.runtime import Device
from subquant.transforms.base import walk
from together import Together

CONTRACTIONS = ("convolution", "dot_general", "dynamic_conv")
STEPS = (
    "legalize-quant-to-math",
    "correct-zero-points",
    "lower-requantization",
    "lower-saturation",
)


@functools.cache
def shared_context() -> ir.Context:
    """One context for the hundreds of modules that are only looked at."""
    return create_context()


def lower(text: str, passes: str) -> ir.Module:
    module = parse_text(text, shared_context())
    run_pipeline(module, parse_pipeline(passes))
    return module


def operations(module: ir.Module) -> list[str]:
    return [op.name for op in walk(module.operation)]


def integer_programs() -> list[Program]:
    """The suite's contractions of quantized values, and sums and products of them."""
    chosen = []
    for program in programs():
        tensors = (*program.arguments, *program.results)
        if program.op not in (*CONTRACTIONS, "add", "multiply", "uniform_quantize"):
            continue
        if all(tensor.is_quantized for tensor in tensors) and program.interpreted:
            chosen.append(program)
    return chosen


# -- the steps ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factors", "is_exact"),
    [
        ([np.float32(0.1), np.float32([0.3, 1e-20, 7])], True),
        ([np.array([0.1, 0.7])], True),
        ([np.array(0.1), np.array([0.5, 2.0**40])], True),
        ([np.float32(0.1), np.float32(-0.3), np.float32(2**16)], True),
        ([np.float32(0.1), np.float32(0.3), np.float32(0.7)], False),
        ([np.array(0.1), np.array([3.0])], False),
        ([np.array(2.0**-600), np.array(2.0**-600)], False),
    ],
)
def test_products_of_scales_lose_no_bit(factors: list[Any], is_exact: bool) -> None:
    wide = [np.asarray(factor, np.float64) for factor in factors]
    product = exact_product(wide)
    assert (product is not None) == is_exact
    if product is not None:
        expected: Any = Fraction(1)
        for factor in wide:
            expected = expected * exact(factor)
        assert (exact(product) == expected).all()


def test_every_step_is_a_pass() -> None:
    """Each pass removes steps that the one before left, and only the last leaves none."""
    operands = ["2x8x!quant.uniform<i8:f32, 0.5:3>", "8x4x!quant.uniform<i8:f32, 0.25>"]
    text = one_operation(PRODUCT, operands, "2x4x!quant.uniform<i8:f32, 2.0:-1>")
    left = []
    for count in range(1, len(STEPS) + 1):
        actual = operations(lower(text, ",".join(STEPS[:count])))
        left.append({name for name in actual if re.match(r"subquant\.(sub|req|sat)", name)})
        assert actual.count("stablehlo.dot_general") == 1
    assert left == [
        {"subquant.subtract_zero_point", "subquant.requantize"},
        {"subquant.requantize"},
        {"subquant.saturate"},
        set(),
    ]


@pytest.mark.long
@pytest.mark.parametrize("style", ["after", "inside"])
@pytest.mark.share(4)
def test_the_steps_give_what_the_whole_gives(style: str) -> None:
    steps = (
        "verify-quantization,canonicalize-reductions,legalize-quant-to-math,"
        f"correct-zero-points{{style={style}}},lower-requantization,lower-saturation,"
        "convert-quantized-to-storage"
    )
    left = dict.fromkeys(CONTRACTIONS, 0)
    step = (2 if style == "after" else 5) * (1 if LONG else 3)
    chosen = sorted(integer_programs(), key=lambda program: program.op)[::step]
    for program in chosen:
        module = lower(program.text(), ",".join(steps.split(",")[:3]))
        if program.op in left and "subquant.subtract_zero_point" in operations(module):
            left[program.op] += 1
        inputs = program.make_inputs()
        stepwise = str(lower(program.text(), steps))
        (actual,) = InterpretedModule(stepwise)["main"].invoke(inputs)
        (expected,) = InterpretedModule(program.text())["main"].invoke(inputs)
        np.testing.assert_array_equal(actual, expected, err_msg=program.name)
    assert style == "inside" or all(left.values()), left


# -- bias -----------------------------------------------------------------------------------------


def biased(bias_scale: float, sum_scale: float = 0.125) -> str:
    """A dot with an i32 result, a bias of any scale and zero point, and a requantization."""
    acc, bias = f"!quant.uniform<i32:f32, {sum_scale}>", f"!quant.uniform<i32:f32, {bias_scale}:7>"
    return f"""
func.func @main(%x: tensor<5x8x!quant.uniform<i8:f32, 0.5:3>>,
                %w: tensor<8x4x!quant.uniform<i8:f32, 0.25>>,
                %b: tensor<4x{bias}>) -> tensor<5x4x!quant.uniform<i8:f32, 20.3:-1>> {{
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<5x8x!quant.uniform<i8:f32, 0.5:3>>, tensor<8x4x!quant.uniform<i8:f32, 0.25>>)
     -> tensor<5x4x{acc}>
  %c = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<4x{bias}>) -> tensor<5x4x{bias}>
  %s = stablehlo.add %a, %c : (tensor<5x4x{acc}>, tensor<5x4x{bias}>) -> tensor<5x4x{acc}>
  %r = stablehlo.uniform_quantize %s
      : (tensor<5x4x{acc}>) -> tensor<5x4x!quant.uniform<i8:f32, 20.3:-1>>
  return %r : tensor<5x4x!quant.uniform<i8:f32, 20.3:-1>>
}}
"""


def rounded(real: Fraction, low: int, high: int) -> int:
    return min(max(round(real), low), high)


def arguments(generator: np.random.Generator) -> list[np.ndarray]:
    return [
        generator.integers(-128, 128, (5, 8)).astype(np.int8),
        generator.integers(-128, 128, (8, 4)).astype(np.int8),
        generator.integers(-9000, 9000, 4).astype(np.int32),
    ]


BIAS_SCALES = (0.125, 0.11, 3.7, 0.0009)
BIASED = {
    requantization: Together(
        {str(scale): biased(scale) for scale in BIAS_SCALES}, requantization=requantization
    )
    for requantization in ("exact", "fixed-point")
}


@pytest.mark.long
@ON_DEVICES
@pytest.mark.parametrize("bias_scale", BIAS_SCALES)
def test_a_bias_may_have_any_scale(bias_scale: float, device_name: str, device: Device) -> None:
    """The reference sums rationals, and rounds where the program has a type: at i32, then at i8."""
    x, w, b = arguments(np.random.default_rng(3))
    scale = Fraction(float(np.float32(bias_scale)))
    out = Fraction(float(np.float32(20.3)))
    accumulators = (x.astype(int) - 3) @ w.astype(int)
    exact, fixed = np.empty((5, 4), np.int8), np.empty((5, 4), np.int8)
    sum_scale = Fraction(1, 8)
    for row, column in np.ndindex(5, 4):
        accumulator, bias = int(accumulators[row, column]), int(b[column]) - 7
        total = rounded(accumulator + bias * scale / sum_scale, -(1 << 31), (1 << 31) - 1)
        exact[row, column] = rounded(total * sum_scale / out - 1, -128, 127)
        rescaled = bias
        if scale != sum_scale:
            rescaled = int(apply_scale(bias, *multiplier_and_shift(scale / sum_scale), "half-up"))
        scaled = apply_scale(
            accumulator + rescaled, *multiplier_and_shift(sum_scale / out), "half-up"
        )
        fixed[row, column] = min(max(int(scaled) - 1, -128), 127)
    for requantization, expected in (("exact", exact), ("fixed-point", fixed)):
        function = BIASED[requantization].function(str(bias_scale), device)
        np.testing.assert_array_equal(function(x, w, b), expected, err_msg=requantization)
    assert np.abs(exact.astype(int) - fixed).max() <= 1


# -- constants ------------------------------------------------------------------------------------


def with_constant(weights: np.ndarray, source: str, weight_type: str) -> str:
    """A convolution (2 features to 3, kernel 3) of an argument with a constant."""
    values = str(weights.tolist())
    x = "tensor<1x6x2x!quant.uniform<u8:f32, 0.5:77>>"
    w, q = f"tensor<3x2x3x{weight_type}>", "tensor<1x6x3x!quant.uniform<u8:f32, 30.0:128>>"
    integer = f"tensor<3x2x3x{weight_type.partition('<')[2][:2].replace('u', 'i')}>"
    constant = {
        "scast": f"%c = stablehlo.constant dense<{values}> : {integer}\n"
        f'  %w = "quant.scast"(%c) : ({integer}) -> {w}',
        "argument": "",
    }[source]
    inputs = f", %w: {w}" if source == "argument" else ""
    return f"""
func.func @main(%x: {x}{inputs}) -> {q} {{
  {constant}
  %r = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
      window = {{pad = [[1, 1]]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
      : ({x}, {w}) -> {q}
  return %r : {q}
}}
"""


@pytest.mark.parametrize("weight_type", ["!quant.uniform<i8:f32, 0.25>", "!quant.uniform<u8:f32:2, {0.25:128, 0.5:128, 0.125:128}>"])  # fmt: skip  # noqa: E501
def test_sums_of_constants_are_folded(weight_type: str, cpu: Device) -> None:
    """No sum of the weights is left to compute, and it is the sum that would be computed."""
    generator = np.random.default_rng(5)
    weights = generator.integers(-128, 128, (3, 2, 3)).astype(np.int8)
    x = generator.integers(0, 256, (1, 6, 2)).astype(np.uint8)
    text = with_constant(weights, "scast", weight_type)
    computed = with_constant(weights, "argument", weight_type)
    passes = ",".join((*STEPS, "convert-quantized-to-storage"))
    assert "stablehlo.reduce" not in operations(lower(text, passes))
    assert "stablehlo.reduce" in operations(lower(computed, passes))
    stored = weights.view(np.uint8) if "u8:f32:" in weight_type else weights
    expected = subquant.compile(computed, device=cpu).main(x, stored)
    np.testing.assert_array_equal(subquant.compile(text, device=cpu).main(x), expected)


# -- integer only ---------------------------------------------------------------------------------

FLOATS = (ir.F16Type, ir.BF16Type, ir.F32Type, ir.F64Type)
WIDE_FUNCTIONS = frozenset(re.findall(r"\w+", """
    atan2 batch_norm_grad batch_norm_inference batch_norm_training cbrt ceil cholesky compare
    cosine divide exponential exponential_minus_one floor is_finite log log_plus_one logistic
    map power reduce reduce_precision reduce_window remainder round_nearest_afz
    round_nearest_even rsqrt scatter select_and_scatter sine sort sqrt tan tanh
"""))  # fmt: skip
"""Operations that ``--integer-only`` refuses for some types: storage is too wide for a table,
or two scales are compared."""


def float_values(module: ir.Module) -> Iterator[str]:
    for op in walk(module.operation):
        values: list[Any] = [*op.operands, *op.results]
        values += [a for region in op.regions for block in region for a in block.arguments]
        if any(isinstance(element_type(value.type), FLOATS) for value in values):
            yield str(op)


@pytest.mark.parametrize("requantization", ["exact", "fixed-point"])
@pytest.mark.share(4)
def test_integer_only_output_has_no_float(requantization: str) -> None:
    """The suite's programs from quantized values to quantized values: integers, or an error."""
    checked, refused = 0, set()
    step = 4 if requantization == "exact" else 1 if LONG else 9
    for program in list(programs())[::step]:
        tensors = (*program.arguments, *program.results)
        if any(not t.is_quantized and str(t.element).strip("b")[0] == "f" for t in tensors):
            continue
        if not program.runs:
            continue
        passes = compile_pipeline(CompileOptions(requantization=requantization, integer_only=True))
        module = parse_text(program.text(), shared_context())
        error = None
        try:
            run_pipeline(module, passes)
        except UnsupportedError as raised:
            error = raised
        if error is not None:
            assert "--integer-only allows none" in str(error), f"{program.name}: {error}"
            assert error.place is not None
            refused.add(program.op)
            continue
        actual = list(float_values(module))
        assert not actual, f"{program.name}\n" + "\n".join(actual[:5])
        checked += 1
    assert checked >= 500 // step, checked
    assert refused <= WIDE_FUNCTIONS, refused - WIDE_FUNCTIONS
