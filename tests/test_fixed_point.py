"""Fixed-point scaling: the reference against exact integers and reals, and devices against it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import subquant
from devices import ON_DEVICES, compile_for
from programs import convolution_of, examples, one_operation
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.pipeline import compile_pipeline, run_pipeline
from subquant.compiler.reading import parse_text
from subquant.dialects import create_context
from subquant.errors import UnsupportedError, UsageError
from subquant.interpreter.interpreted_module import InterpretedModule
from subquant.numerics.fixed_point import (
    MAX_SHIFT,
    ROUNDINGS,
    apply_scale,
    multiplier_and_shift,
    rescale,
    saturate,
)
from subquant.numerics.parameters import StorageType
from subquant.runtime import Device

FACTORS = [0.3, 0.5, 0.7500001, 1.0, 1.7, 3.0, 1e-3, 2.0**-20 * 1.3, 2.0**-31, 2.0**-45, 1e4]


# -- multiplier and shift -------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [15, 31])
@pytest.mark.parametrize("factor", FACTORS)
def test_the_multiplier_has_its_bits(factor: float, bits: int) -> None:
    multiplier, shift = (int(n) for n in multiplier_and_shift(factor, bits))
    assert 0 <= shift <= MAX_SHIFT
    assert 0 < multiplier < 1 << bits
    error = abs(Fraction(multiplier, 1 << shift) - Fraction(factor))
    if shift < MAX_SHIFT:
        assert multiplier >= 1 << (bits - 1)
        assert error <= Fraction(factor) / (1 << bits)
    else:  # bits are lost below
        assert error <= Fraction(1, 1 << shift)


def test_the_ends_saturate() -> None:
    assert [int(n) for n in multiplier_and_shift(2.0**31)] == [2**31 - 1, 0]
    assert [int(n) for n in multiplier_and_shift(2.0**100)] == [2**31 - 1, 0]
    assert [int(n) for n in multiplier_and_shift(2.0**-100)] == [0, MAX_SHIFT]
    # The mantissa rounds up to 2**31, and the shift takes it.
    is_close = Fraction(2**32 - 1, 2**32)
    assert [int(n) for n in multiplier_and_shift(is_close)] == [1 << 30, 30]


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_other_factors_are_refused(factor: float) -> None:
    with pytest.raises(UsageError, match=r"expected a (positive|finite) factor"):
        multiplier_and_shift(factor)


def test_other_numbers_of_bits_and_roundings_are_refused() -> None:
    with pytest.raises(UsageError, match="expected a multiplier of 15 or 31 bits, got 16"):
        multiplier_and_shift(0.5, 16)
    with pytest.raises(UsageError, match="expected a rounding among half-up"):
        apply_scale(1, 1 << 30, 31, "nearest")  # type: ignore[arg-type]


# -- roundings, one value at a time, as their sources write them ----------------------------------


def half_up(v: int, m: int, s: int) -> int:
    return math.floor(Fraction(v * m, 1 << s) + Fraction(1, 2)) if s else v * m


def half_away(v: int, m: int, s: int) -> int:
    real = Fraction(v * m, 1 << s)
    return int(math.copysign(math.floor(abs(real) + Fraction(1, 2)), real)) if real else 0


def double_round(v: int, m: int, s: int) -> int:
    extra = (1 << 30) * (1 if v >= 0 else -1) if s > 31 else 0
    return (v * m + ((1 << (s - 1)) if s else 0) + extra) >> s


def gemmlowp(v: int, m: int, s: int) -> int:
    """SaturatingRoundingDoublingHighMul, then RoundingDivideByPOT."""
    left, right = max(31 - s, 0), max(s - 31, 0)
    a = min(max(v << left, -(2**31)), 2**31 - 1)
    nudged = a * m + (1 << 30 if a * m >= 0 else 1 - (1 << 30))
    high = abs(nudged) // (1 << 31) * (1 if nudged >= 0 else -1)
    real = Fraction(high, 1 << right)
    return math.floor(abs(real) + Fraction(1, 2)) * (1 if real >= 0 else -1)


PLAIN = {
    "half-up": half_up,
    "half-away-from-zero": half_away,
    "gemmlowp": gemmlowp,
    "tosa-single-round": half_up,
    "tosa-inexact-round": half_up,
    "tosa-double-round": double_round,
}


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("factor", FACTORS)
def test_roundings(rounding: Any, factor: float) -> None:
    multiplier, shift = multiplier_and_shift(factor)
    rng = np.random.default_rng(int(shift))
    limit = int(min((1 << 31) - 1, (1 << 31) / factor - 1))
    ties = np.rint((np.arange(-50, 50) + 0.5) / factor).clip(-limit, limit).astype(np.int64)
    drawn = rng.integers(-limit, limit + 1, 2000)
    values = np.unique(np.concatenate([np.arange(-128, 128), drawn, [limit, -limit, 0], ties]))
    actual = apply_scale(values, multiplier, shift, rounding)
    expected = [PLAIN[rounding](int(v), int(multiplier), int(shift)) for v in values]
    assert actual.tolist() == expected


def test_at_most_one_step_from_exact() -> None:
    """Over 10**6 accumulators and multipliers, eight times as many in the long suite."""
    rng = np.random.default_rng(0)
    count, most = 1_000_000, dict.fromkeys(ROUNDINGS, 0)
    for _ in range(examples(1)):
        factors = np.exp2(rng.uniform(-32, 0, 1000))
        multiplier, shift = (np.repeat(n, count // 1000) for n in multiplier_and_shift(factors))
        values = rng.integers(-(2**31), 2**31, count)
        exact = values * np.repeat(factors, count // 1000).astype(np.longdouble)
        for rounding in ROUNDINGS:
            steps = np.abs(apply_scale(values, multiplier, shift, rounding) - np.rint(exact))
            most[rounding] = max(most[rounding], int(steps.max()))
    assert max(most.values()) == 1, most


# -- emitted operations, in StableHLO's interpreter -----------------------------------------------

WIDE = [0, 1, -1, 2, -2, 3, -3, 5, 1 << 30, -(1 << 30), (1 << 31) - 1, 1 - (1 << 31), -(1 << 31)]
"""Values of 32 bits whose scaled ones are small, ties, or beyond 32 bits."""


def requantization(rows: int, columns: int, source: str, target: str) -> str:
    """A program of one ``uniform_quantize``, between two element types."""
    operand, result = (f"{rows}x{columns}x{element}" for element in (source, target))
    return one_operation("stablehlo.uniform_quantize %0", [operand], result)


def requantized(text: str, rounding: Any, *arguments: np.ndarray) -> np.ndarray:
    """Evaluate the integer operations of a fixed-point requantization."""
    module = parse_text(text, create_context())
    options = CompileOptions(requantization="fixed-point", fixed_point_rounding=rounding)
    run_pipeline(module, compile_pipeline(options))
    (actual,) = InterpretedModule(str(module))["main"].invoke(arguments)
    return actual


EXTREMES = [
    # The greatest multiplier with each of the least shifts, and two that differ in ties.
    *[Fraction((1 << 31) - 1, 1 << shift) for shift in (0, 1, 2, 30, 31, 32, 33, 61, 62)],
    *[Fraction((1 << 30) + 1, 1 << shift) for shift in (1, 2, 29, 31, 60, 62)],
    *[Fraction(n, 8) for n in (1, 2, 3, 4, 6, 12, 16, 24)],
]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.share(12)
def test_every_shift_is_emitted(rounding: Any, per_channel: bool) -> None:
    """Shifts from 0 to the greatest, beside their sources one value at a time."""
    groups = [EXTREMES] if per_channel else [[factor] for factor in EXTREMES]
    for factors in groups:
        scales = ", ".join(repr(float(factor)) for factor in factors)
        source = f"!quant.uniform<i32:f64:1, {{{scales}}}>"
        source = source if per_channel else f"!quant.uniform<i32:f64, {scales}>"
        text = requantization(len(WIDE), len(factors), source, "!quant.uniform<i32:f64, 1.0>")
        values = np.tile(np.array(WIDE, np.int32)[:, None], len(factors))
        actual = requantized(text, rounding, values)
        pairs = [multiplier_and_shift(factor) for factor in factors]
        expected = [[PLAIN[rounding](v, int(m), int(s)) for m, s in pairs] for v in WIDE]
        limits = np.iinfo(np.int32)
        np.testing.assert_array_equal(actual, np.clip(expected, limits.min, limits.max))


def test_products_of_a_sum_stay_inside_64_bits() -> None:
    """Factors beyond 31 bits become the greatest multiplier, or a sum of two would wrap."""
    operand, result = (
        f"4x!quant.uniform<i32<-2147483647:2147483647>:f64, {scale}>"
        for scale in ("1.0995e+12", "1.0")
    )
    text = one_operation("stablehlo.add %0, %1", [operand, operand], result)
    x = np.array([2**31 - 1, 1 - 2**31, 2**31 - 1, 5], np.int32)
    y = np.array([2**31 - 1, 1 - 2**31, 1 - 2**31, -5], np.int32)
    actual = requantized(text, "half-up", x, y)
    assert actual.tolist() == [2**31 - 1, 1 - 2**31, 0, 0]


# -- devices --------------------------------------------------------------------------------------


SCALES = [0.3, 0.5, 0.7500001, 1.7, 0.001, 1.2e-06, 4.7e-10, 12.5]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@ON_DEVICES
@pytest.mark.share(8)
def test_devices_are_the_reference(rounding: Any, device: Device) -> None:
    """All bits of a million accumulators, with every storage value and ties among the results."""
    storage, zero_point, count = StorageType(16, True), -7, 25_000
    rng = np.random.default_rng(1)
    wide = rng.integers(-(2**31), 2**31, (count, len(SCALES)))
    scales = np.array(SCALES, np.float32)
    results = rng.integers(-(2**15), 2**15, wide.shape) + rng.choice([0, 0.5], wide.shape)
    narrow = np.rint(results / scales).clip(-(2**31), 2**31 - 1)
    x = np.where(rng.random(wide.shape) < 0.2, wide, narrow).astype(np.int32)
    # Requantize i32 accumulators of one scale to storage of another, channel by channel.
    source = f"!quant.uniform<i32:f32:1, {{{', '.join(map(repr, SCALES))}}}>"
    text = requantization(count, len(SCALES), source, f"!quant.uniform<i16:f32, 1.0:{zero_point}>")
    options = {"requantization": "fixed-point", "fixed_point_rounding": rounding}
    executable = compile_for(text, device, **options)
    for part in range(5):
        values = np.roll(x, part, axis=0) + np.int32(part)
        factors = np.array([Fraction(float(s)) for s in scales], object)
        multiplier, shift = multiplier_and_shift(factors)
        wide = rescale(values, multiplier, shift, (0, zero_point), rounding)
        np.testing.assert_array_equal(executable.main(values), saturate(wide, storage))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@ON_DEVICES
@pytest.mark.share(12)
def test_a_multiplier_for_each_block(rounding: Any, device: Device) -> None:
    """Blocks of 2 x 4 to blocks of 4 x 2, beside the reference; exactly, beside rationals."""
    generator = np.random.default_rng(8)
    source = generator.uniform(0.001, 2.0, (4, 2)).astype(np.float32)
    result = generator.uniform(0.5, 200.0, (2, 4)).astype(np.float32)
    zero_points = generator.integers(-9, 9, (2, 4))
    pairs = ", ".join(
        "{" + ", ".join(f"{float(s)!r}:{z}" for s, z in zip(*row, strict=True)) + "}"
        for row in zip(result, zero_points, strict=True)
    )
    target = f"!quant.uniform<i8:f32:{{0:4, 1:2}}, {{{pairs}}}>"
    dense = f"dense<{[[float(s) for s in row] for row in source]}> : tensor<4x2xf64>"
    attributes = f"scales = [{dense}], bounds = array<i64: 100000>, quantized_type = {target}"
    text = one_operation(f'"subquant.requantize"(%0) {{{attributes}}}', ["8x8xi32"], "8x8xi8")
    values = generator.integers(-20_000, 20_000, (8, 8)).astype(np.int32)
    exactly = np.vectorize(lambda scale: Fraction(float(scale)), otypes=[object])
    sources = exactly(source).repeat(2, axis=0).repeat(4, axis=1)
    results, zeros = (each.repeat(4, 0).repeat(2, 1) for each in (exactly(result), zero_points))
    factors = sources / results
    scaled = apply_scale(values, *multiplier_and_shift(factors), rounding)
    fixed = np.clip(scaled + zeros, -128, 127)
    nearest = np.vectorize(lambda v, f, z: round(int(v) * f + int(z)), otypes=[np.int64])
    exact = np.clip(nearest(values, factors, zeros), -128, 127)
    assert len(np.unique(exact)) > 20
    cases = [({"requantization": "fixed-point", "fixed_point_rounding": rounding}, fixed)]
    if rounding == ROUNDINGS[0]:
        cases.append(({}, exact))
    for options, expected in cases:
        result = compile_for(text, device, **options).main(values)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("style", ["after", "inside", "mixed"])
@ON_DEVICES
@pytest.mark.share(4)
def test_both_styles_of_zero_points(style: str, device: Device) -> None:
    text = """
!x = !quant.uniform<i8:f32, 0.05:3>
!w = !quant.uniform<u8:f32, 0.02:120>
!y = !quant.uniform<i8:f32, 0.1:-10>
!k = !quant.uniform<i8:f32, 0.02>"""
    text += one_operation('"stablehlo.dot"(%0, %1)', ["3x40x!x", "40x5x!w"], "3x5x!y", name="dot")
    text += one_operation(
        convolution_of("[b, 0, f]x[0, i, o]->[b, 0, f]", "pad = [[1, 1]]"),
        ["1x6x4x!x", "3x4x5x!k"], "1x6x5x!y", name="convolution",
    )  # fmt: skip
    executable = compile_for(text, device, zero_points=style)
    rng = np.random.default_rng(2)
    x = rng.integers(-128, 128, (3, 40)).astype(np.int8)
    w = rng.integers(0, 256, (40, 5)).astype(np.uint8)
    real = (x.astype(float) - 3) @ (w.astype(float) - 120) * 0.05 * 0.02
    expected = np.clip(np.rint(real / 0.1 - 10), -128, 127)
    np.testing.assert_array_equal(executable["dot"](x, w), expected)
    x = rng.integers(-128, 128, (1, 6, 4)).astype(np.int8)
    k = rng.integers(-128, 128, (3, 4, 5)).astype(np.int8)
    padded = np.pad(x.astype(float) - 3, ((0, 0), (1, 1), (0, 0)))
    real = sum(padded[:, i : i + 6] @ k[i].astype(float) for i in range(3)) * 0.05 * 0.02
    expected = np.clip(np.rint(real / 0.1 - 10), -128, 127)
    np.testing.assert_array_equal(executable["convolution"](x, k), expected)


# -- integer-only programs ------------------------------------------------------------------------

INTEGER_ONLY = """
!q = !quant.uniform<i8:f32, 0.05:3>
!w = !quant.uniform<i8:f32, 0.02>
func.func @main(%x: tensor<2x4xf32>, %w: tensor<4x3x!w>) -> tensor<2x3xf32> {
  %q = stablehlo.uniform_quantize %x : (tensor<2x4xf32>) -> tensor<2x4x!q>
  %0 = stablehlo.dot_general %q, %w, contracting_dims = [1] x [0]
      : (tensor<2x4x!q>, tensor<4x3x!w>) -> tensor<2x3x!q>
  %1 = stablehlo.tanh %0 : tensor<2x3x!q>
  %2 = stablehlo.uniform_dequantize %1 : (tensor<2x3x!q>) -> tensor<2x3xf32>
  return %2 : tensor<2x3xf32>
}
"""


def test_an_integer_only_program_may_take_and_give_reals(cpu: Device) -> None:
    executable = subquant.compile(INTEGER_ONLY, device=cpu, integer_only=True)
    assert executable.main(np.ones((2, 4), np.float32), np.ones((4, 3), np.int8)).shape == (2, 3)


@pytest.mark.parametrize("name", ["tanh", "sqrt", "sine"])
def test_a_function_of_wide_storage_is_no_integer_arithmetic(name: str, cpu: Device) -> None:
    text = INTEGER_ONLY.replace("<i8:f32, 0.05:3>", "<i32:f32, 0.05:3>").replace("tanh", name)
    text = text.replace("<i8:f32, 0.02>", "<i32:f32, 0.02>")
    with pytest.raises(UnsupportedError, match=rf"8:8: error: 'stablehlo\.{name}' op computes"):
        subquant.compile(text, device=cpu, integer_only=True)
    subquant.compile(text, device=cpu)


def test_dequantizing_on_the_way_is_refused(cpu: Device) -> None:
    text = """
!q = !quant.uniform<i8:f32, 0.05:3>
func.func @main(%x: tensor<4x!q>) -> tensor<4x!q> {
  %0 = stablehlo.uniform_dequantize %x : (tensor<4x!q>) -> tensor<4xf32>
  %1 = stablehlo.add %0, %0 : tensor<4xf32>
  %2 = stablehlo.uniform_quantize %1 : (tensor<4xf32>) -> tensor<4x!q>
  return %2 : tensor<4x!q>
}
"""
    with pytest.raises(UnsupportedError, match="computes with floats between quantized values"):
        subquant.compile(text, device=cpu, integer_only=True)


def test_an_integer_only_program_may_quantize_reals_to_blocks(cpu: Device) -> None:
    result = "4x8x!quant.uniform<i8:f32:{0:2, 1:4}, {{0.5:1, 0.25:2}, {0.125, 0.0625}}>"
    text = one_operation('"quant.qcast"(%0)', ["4x8xf32"], result)
    x = np.random.default_rng(0).normal(0, 6, (4, 8)).astype(np.float32)
    scales, zero_points = (
        np.repeat(np.repeat(np.array(each), 2, 0), 4, 1)
        for each in ([[0.5, 0.25], [0.125, 0.0625]], [[1, 2], [0, 0]])
    )
    expected = np.clip(np.rint(x / scales) + zero_points, -128, 127)
    result = subquant.compile(text, device=cpu, integer_only=True).main(x)
    np.testing.assert_array_equal(np.asarray(result), expected)


def test_a_requantization_to_blocks_says_the_integer_operation(cpu: Device) -> None:
    text = """
!p = !quant.uniform<i8:f32, 0.5>
!q = !quant.uniform<i8:f32:{0:2, 1:4}, {{0.5:1, 0.25:2}, {0.125, 0.0625}}>
func.func @main(%x: tensor<4x8x!p>) -> tensor<4x8x!q> {
  %0 = quant.dcast %x : tensor<4x8x!p> to tensor<4x8xf32>
  %1 = quant.qcast %0 : tensor<4x8xf32> to tensor<4x8x!q>
  return %1 : tensor<4x8x!q>
}
"""
    with pytest.raises(UnsupportedError, match=r"stablehlo\.uniform_quantize \(per-tensor or"):
        subquant.compile(text, device=cpu, integer_only=True)
