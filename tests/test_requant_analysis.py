"""Requantizations written as integer operations: kernels estimate the monotone ones in f32.

Activations are chosen so that accumulators take every value of a range, with each tie and each end
of a clamp. The reference is NumPy, and for roundings their definition in Python's integers.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import subquant
from instruction_sets import EVERY, HERE
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.core._mlir import ir
from subquant.emit import stablehlo
from subquant.emit.operation import tensor_type, value
from subquant.emit.trace import trace, traced
from subquant.emit.traced_arrays import traced_array
from subquant.numerics.convolutions import contract
from test_fused_epilogue import FACTORS, K, N, activations
from together import Together

BIAS = np.random.default_rng(5).integers(-3000, 3000, N).astype(np.int32)
BIAS[:2] = 0, -20000
"""Accumulators plus the second bias are always negative."""


def clamped(value, low=-128, high=127, zero_point=0):
    return np.minimum(np.maximum(value + zero_point, low), high).astype(np.int8)


CASES = {}
"""Function of accumulators, expected results, and True for a monotone requantization, by name."""


def case(name, expected=None, *, is_monotone=False):
    """Register a function that is traced; by default NumPy computes the expected results of it."""

    def register(function):
        CASES[name] = function, expected or function, is_monotone
        return function

    return register


MULTIPLIERS = np.random.default_rng(6).integers(1 << 30, (1 << 31) - 1, N)
SHIFTS = np.random.default_rng(7).integers(4, 11, N).astype(np.int32)
SHIFTS[:3] = 6, 7, 12


def expected_double_rounding(acc):
    high = (acc.astype(object) * MULTIPLIERS + (1 << 30)) >> 31
    half = np.array([1 << (int(shift) - 1) for shift in SHIFTS], object)
    away = np.where(high < 0, -((half - high) // (2 * half)), (high + half) // (2 * half))
    return np.clip(away - 9, -128, 127)


@case("rounded twice", expected_double_rounding, is_monotone=True)
def double_rounding(acc):
    """LiteRT's rounding: half up to 31 bits, then half away from zero."""
    high = ((acc.astype(np.int64) * MULTIPLIERS + (1 << 30)) >> 31).astype(np.int32)
    halves = ((high + (high >> 31)) >> (SHIFTS - 1)) + 1
    return clamped(halves >> 1, zero_point=-9)


FACTOR = round(0.0071 * 2**38)


def expected_half_away(acc):
    magnitude = (2 * abs(acc.astype(object)) * FACTOR + (1 << 38)) // (1 << 39)
    clipped = np.clip(np.where(acc < 0, -magnitude, magnitude), -128, 100)
    return clipped.astype(np.int8) ^ np.int8(-128)


@case("rounded once, away from zero", expected_half_away, is_monotone=True)
def half_away(acc):
    """Round the magnitude half up."""
    wide = acc.astype(np.int64)
    magnitude = np.where(wide < 0, 0 - wide, wide)
    rounded = (magnitude * FACTOR + (1 << 37)) >> 38
    # flips the sign bit, for a reader of unsigned bytes
    return clamped(np.where(wide < 0, 0 - rounded, rounded), -128, 100) ^ np.int8(-128)


@case("half up", is_monotone=True)
def half_up(acc):
    """Round to a power of two: some accumulators are ties."""
    return clamped((acc + 64) >> 7)


ONE_N = np.arange(N) == 3
case("falls for one N")(lambda acc: clamped((acc * np.where(ONE_N, -5, 5).astype(np.int32)) >> 9))
case("wraps")(lambda acc: clamped((acc * (1 << 19)) >> 24))
case("has two slopes")(lambda acc: clamped(np.where(acc < 0, acc >> 7, acc >> 5)))
case("is narrowed")(lambda acc: (acc >> 6).astype(np.int8))


@case("is clipped, and added to")
def sum_of_clipped(acc):
    """Double the slope where nothing is clipped: both ends of the range are on that line."""
    return clamped((np.maximum(acc, 0) + acc) >> 4)


LEAST = np.where(ONE_N, -20, -128).astype(np.int32)
case("is clipped for one N")(lambda acc: clamped(np.maximum((acc + 64) >> 7, LEAST)))
case("is multiplied after it was rounded")(lambda acc: clamped((acc >> 5) * 3))
case("is a sum of rounded values")(lambda acc: clamped((acc >> 4) + ((acc + 8) >> 4)))

BITS = np.random.default_rng(8).integers(36, 40, N)
EVEN = np.random.default_rng(9).integers(1 << 28, 1 << 29, N)
EVEN[:2], BITS[:2] = 1 << 28, (34, 36)
"""The first two N have accumulators that are ties."""


def quotient_and_remainder(acc, bits, factors=1):
    wide = acc.astype(np.int64) * factors
    return wide >> bits, wide & ((1 << bits) - 1)


def expected_half_to_even(acc):
    value, whole = acc.astype(object) * EVEN, np.array([1 << int(n) for n in BITS], object)
    quotient, twice = value // whole, 2 * (value % whole)
    more = (twice > whole) | ((twice == whole) & (quotient % 2 == 1))
    return np.clip(quotient + more + 120, 0, 255).astype(np.uint8).view(np.int8)


@case("to even, without a sign", expected_half_to_even, is_monotone=True)
def half_to_even(acc):
    """Round half to even, to an unsigned byte."""
    quotient, remainder = quotient_and_remainder(acc, BITS, EVEN)
    half = 1 << (BITS - 1)
    stays = (remainder <= half) & (quotient & 1 == 0)
    more = (remainder >= half) & ~stays
    return clamped(quotient + more.astype(np.int64), 0, 255, 120)


def expected_half_away_by_remainder(acc):
    magnitude = (abs(acc) + 64) >> 7
    return np.clip(np.where(acc < 0, -magnitude, magnitude), -128, 127)


@case("half away from zero, by the remainder", expected_half_away_by_remainder, is_monotone=True)
def half_away_by_remainder(acc):
    """Round half away from zero, by a threshold of the remainder."""
    least = (acc.astype(np.int64) < 0).astype(np.int64) + 63
    quotient, remainder = quotient_and_remainder(acc, 7)
    return clamped((remainder > least).astype(np.int64) + quotient)


@case("rises where the remainder is small")
def reversed_remainder(acc):
    quotient, remainder = quotient_and_remainder(acc, 7)
    return clamped(quotient + (remainder < 64).astype(np.int64))


@case("rises too far")
def too_steep(acc):
    """Raise odd quotients by two, above their successors."""
    quotient, remainder = quotient_and_remainder(acc, 7)
    is_odd = quotient & 1 != 0
    first, second = (((remainder >= n) & is_odd).astype(np.int64) for n in (32, 64))
    return clamped(quotient + first + second)


@case("reads another remainder")
def other_remainder(acc):
    quotient, _ = quotient_and_remainder(acc, 7)
    _, remainder = quotient_and_remainder(acc, 6)
    return clamped(quotient + (remainder >= 32).astype(np.int64))


COUNTS = np.where(np.arange(N) < 16, np.arange(N) + 3, 32 * np.arange(N)).astype(np.int32)


def expected_overlong_shifts(acc):
    remainder = np.where(acc.astype(np.int16) < 0, 0xFFFF, 0)
    none = np.where(np.maximum(COUNTS, 31) == 31, acc.astype(object) << 31, 0) & (1 << 32) - 1
    return (((acc >> np.minimum(COUNTS, 31)) ^ remainder) + none).astype(object) & 255


def emitted(name, element, *operands):
    """An operation on values that no function of arrays is traced to."""
    type_ = tensor_type(ir.RankedTensorType(operands[0].type).shape, ir.Type.parse(element))
    return value(f"stablehlo.{name}", operands, type_)


@case("shifts all bits out", expected_overlong_shifts)
def overlong_shifts(acc):
    """Shift by all bits and more: signed, unsigned, and to the left."""
    signs = acc >> COUNTS
    short = emitted("convert", "ui16", acc.value)
    count = stablehlo.constant(np.full(acc.shape, 16), ir.Type.parse("ui16"))
    shifted = emitted("shift_right_arithmetic", "ui16", short, count)
    remainder = traced(emitted("convert", "i32", shifted))
    return ((signs ^ remainder) + (acc << np.maximum(COUNTS, 31))).astype(np.int8)


BOOLEANS = np.arange(N) % 3 == 0


def expected_booleans(acc):
    either = (acc < 0) | BOOLEANS
    return np.where(~(either ^ BOOLEANS), ((1 << 31) + 5) >> 1, 1)


@case("selects by booleans", expected_booleans)
def booleans(acc):
    """Select by constant booleans between values wider than the compared ones."""
    constant = traced_array(BOOLEANS).broadcast_to(acc.shape).value
    true = traced_array(np.full(acc.shape, True)).value
    either = emitted("maximum", "i1", (acc < 0).value, constant)
    either = emitted("minimum", "i1", either, true)
    same = ~traced(emitted("xor", "i1", emitted("add", "i1", either, constant), constant))
    chosen = np.where(same, np.int64((1 << 31) + 5), np.int64(3))
    return (chosen >> 1).astype(np.int8)


@case("mixes signed and unsigned bytes")
def mixed_signs(acc):
    """Give signed bytes below 0, and unsigned ones from there on."""
    acc = acc + 8000
    least, most = np.maximum(acc >> 6, -27), np.minimum(acc >> 6, 229)
    return np.where(acc < 0, least, most).astype(np.int8)


case("leaves nothing", np.zeros_like)(lambda acc: (acc << 40).astype(np.int8))


def program(function, count, name="main"):
    """A contraction with M rows, and a function of its accumulators, as text."""
    weight = np.zeros((N, K), np.int8)
    weight[:, :2] = FACTORS

    def contracted(x):
        return function(contract(x, weight, ((1,), (1,)), dtype=np.int32) + BIAS)

    text = str(trace(contracted, [((count, K), np.int8)]))
    return text.replace("@main", f"@{name}").removeprefix("module {\n").removesuffix("}\n")


def check(name, instructions, main, step=1):
    function, expected, is_monotone = CASES[name]
    x, acc = activations(step)
    options = CompileOptions(kernels=instructions)
    lowered = compile_to_bytes(program(function, len(x)), options, emit="mlir")
    assert (b"xf32>" in lowered) == is_monotone
    accumulators = (acc[:, None] + BIAS).astype(np.int32)
    assert (main(x) == expected(accumulators).astype(np.int64).astype(np.int8)).all()


@functools.cache
def together():
    count = len(activations(1)[0])
    texts = {name: program(function, count) for name, (function, *_) in CASES.items()}
    return Together(texts, kernels=HERE[0])


@pytest.mark.parametrize("name", CASES)
def test_each_accumulator_is_rounded_as_written(name, cpu):
    check(name, HERE[0], together().function(name, cpu))


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("name", [name for name, (*_, is_monotone) in CASES.items() if is_monotone])
@pytest.mark.share(24)
def test_with_all_instructions(name, instructions):
    text = program(CASES[name][0], len(activations(3)[0]))
    check(name, instructions, subquant.compile(text, kernels=instructions).main, step=3)


def test_kernels_that_differ_in_constants_share_code():
    """Layers of one shape have scales and zero points of their own."""
    numbers = {"f": (5, 3), "g": (6, -2)}

    def rounding(count, zero_point):
        half = 1 << (count - 1)
        return lambda acc: clamped((acc + half) >> count, zero_point=zero_point)

    x, acc = activations(7)
    text = "".join(program(rounding(*each), len(x), name) for name, each in numbers.items())
    lowered = compile_to_bytes(text, CompileOptions(kernels=HERE[0]), emit="mlir")
    assert lowered.count(b'"stream.executable"()') == 1
    executable = subquant.compile(text, kernels=HERE[0])
    for name, each in numbers.items():
        assert (executable[name](x) == rounding(*each)(acc[:, None] + BIAS)).all()
