"""Requantizations written as integer operations: kernels estimate the monotone ones in f32.

Activations are chosen so that accumulators take every value of a range, with each tie and each end
of a clamp. The reference follows the rounding's definition in Python's integers.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import subquant
from instruction_sets import EVERY, HERE
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from test_fused_epilogue import FACTORS, K, N, activations
from together import Together

BIAS = np.random.default_rng(5).integers(-3000, 3000, N)
BIAS[:2] = 0, -20000
"""Accumulators plus the second bias are always negative."""


class Writer:
    """A writer of elementwise operations on tensors of one shape."""

    def __init__(self, count):
        self.shape = f"{count}x{N}"
        self.operations, self.types = [], {}

    def type(self, name):
        return f"tensor<{self.shape}x{self.types[name]}>"

    def _named(self, element):
        name = f"%v{len(self.types)}"
        self.types[name] = element
        return name

    def constant(self, numbers, element):
        """Write a constant: a number, or one for each N."""
        name = self._named(element)
        if np.ndim(numbers) == 0:
            self.operations.append(
                f"{name} = stablehlo.constant dense<{numbers}> : {self.type(name)}"
            )
            return name
        row, text = f"tensor<{N}x{element}>", ", ".join(map(str, numbers))
        self.operations.append(f"{name}r = stablehlo.constant dense<[{text}]> : {row}")
        types = f"({row}) -> {self.type(name)}"
        self.operations.append(f"{name} = stablehlo.broadcast_in_dim {name}r, dims = [1] : {types}")
        return name

    def convert(self, value, element):
        name = self._named(element)
        types = f"({self.type(value)}) -> {self.type(name)}"
        self.operations.append(f"{name} = stablehlo.convert {value} : {types}")
        return name

    def binary(self, op, left, right):
        """Write an operation of a value and a second value or constant."""
        if not isinstance(right, str):
            right = self.constant(right, self.types[left])
        name = self._named(self.types[left])
        self.operations.append(f"{name} = stablehlo.{op} {left}, {right} : {self.type(name)}")
        return name

    def compare(self, direction, value, number):
        constant, name = self.constant(number, self.types[value]), self._named("i1")
        self.operations.append(
            f"{name} = stablehlo.compare {direction}, {value}, {constant} : "
            f"({self.type(value)}, {self.type(value)}) -> {self.type(name)}"
        )
        return name

    def negative(self, value):
        return self.compare("LT", value, 0)

    def inverted(self, value):
        name = self._named("i1")
        self.operations.append(f"{name} = stablehlo.not {value} : {self.type(name)}")
        return name

    def select(self, condition, yes, no):
        name = self._named(self.types[yes])
        types = f"{self.type(condition)}, {self.type(yes)}"
        self.operations.append(f"{name} = stablehlo.select {condition}, {yes}, {no} : {types}")
        return name


def right(w, value, count):
    return w.binary("shift_right_arithmetic", value, count)


def clamped(w, value, low=-128, high=127, zero_point=0):
    value = w.binary("add", value, zero_point)
    value = w.binary("minimum", w.binary("maximum", value, low), high)
    return w.convert(value, "i8")


CASES = {}
"""Writer, expected results, and True for a monotone requantization, by name."""


def case(name, expected, *, is_monotone=False):
    """Register a writer of operations on accumulators."""

    def register(write):
        CASES[name] = write, expected, is_monotone
        return write

    return register


MULTIPLIERS = np.random.default_rng(6).integers(1 << 30, (1 << 31) - 1, N)
SHIFTS = np.random.default_rng(7).integers(4, 11, N)
SHIFTS[:3] = 6, 7, 12


def expected_double_rounding(acc):
    high = (acc.astype(object) * MULTIPLIERS + (1 << 30)) >> 31
    half = np.array([1 << (int(shift) - 1) for shift in SHIFTS], object)
    away = np.where(high < 0, -((half - high) // (2 * half)), (high + half) // (2 * half))
    return np.clip(away - 9, -128, 127)


@case("rounded twice", expected_double_rounding, is_monotone=True)
def emit_double_rounding(w, acc):
    """LiteRT's rounding: half up to 31 bits, then half away from zero."""
    wide = w.binary("multiply", w.convert(acc, "i64"), MULTIPLIERS)
    high = w.convert(right(w, w.binary("add", wide, 1 << 30), 31), "i32")
    nudged = w.binary("add", high, right(w, high, 31))
    halves = w.binary("add", right(w, nudged, SHIFTS - 1), 1)
    return clamped(w, right(w, halves, 1), zero_point=-9)


FACTOR = round(0.0071 * 2**38)


def expected_half_away(acc):
    magnitude = (2 * abs(acc.astype(object)) * FACTOR + (1 << 38)) // (1 << 39)
    clipped = np.clip(np.where(acc < 0, -magnitude, magnitude), -128, 100)
    return clipped.astype(np.int8) ^ np.int8(-128)


@case("rounded once, away from zero", expected_half_away, is_monotone=True)
def emit_half_away(w, acc):
    """Round the magnitude half up."""
    wide = w.convert(acc, "i64")
    condition = w.negative(wide)
    magnitude = w.select(condition, w.binary("subtract", w.constant(0, "i64"), wide), wide)
    product = w.binary("add", w.binary("multiply", magnitude, FACTOR), 1 << 37)
    rounded = right(w, product, 38)
    value = w.select(condition, w.binary("subtract", w.constant(0, "i64"), rounded), rounded)
    # flips the sign bit, for a reader of unsigned bytes
    return w.binary("xor", clamped(w, value, -128, 100), -128)


@case("half up", lambda acc: np.clip((acc + 64) >> 7, -128, 127), is_monotone=True)
def emit_half_up(w, acc):
    """Round to a power of two: some accumulators are ties."""
    return clamped(w, right(w, w.binary("add", acc, 1 << 6), 7))


@case(
    "falls for one N",
    lambda acc: np.clip((acc * np.where(np.arange(N) == 3, -5, 5)) >> 9, -128, 127),
)
def emit_falling(w, acc):
    factors = np.where(np.arange(N) == 3, -5, 5)
    return clamped(w, right(w, w.binary("multiply", acc, factors), 9))


@case("wraps", lambda acc: np.clip((acc.astype(np.int32) << np.int32(19)) >> 24, -128, 127))
def emit_wrapping(w, acc):
    return clamped(w, right(w, w.binary("multiply", acc, 1 << 19), 24))


@case("has two slopes", lambda acc: np.clip(np.where(acc < 0, acc >> 7, acc >> 5), -128, 127))
def emit_two_slopes(w, acc):
    """Two slopes, with the change at 0."""
    less, more = right(w, acc, 7), right(w, acc, 5)
    return clamped(w, w.select(w.negative(acc), less, more))


@case("is narrowed", lambda acc: (acc >> 6).astype(np.int8))
def emit_narrowing(w, acc):
    return w.convert(right(w, acc, 6), "i8")


@case("is clipped, and added to", lambda acc: np.clip((np.maximum(acc, 0) + acc) >> 4, -128, 127))
def emit_sum_of_clipped(w, acc):
    """Double the slope where nothing is clipped: both ends of the range are on that line."""
    positive = w.binary("maximum", acc, 0)
    return clamped(w, right(w, w.binary("add", positive, acc), 4))


LEAST = np.where(np.arange(N) == 3, -20, -128)


@case("is clipped for one N", lambda acc: np.clip(np.maximum((acc + 64) >> 7, LEAST), -128, 127))
def emit_clipped_n(w, acc):
    """Clip one N more tightly."""
    return clamped(w, w.binary("maximum", right(w, w.binary("add", acc, 1 << 6), 7), LEAST))


@case("is multiplied after it was rounded", lambda acc: np.clip((acc >> 5) * 3, -128, 127))
def emit_product_of_rounded(w, acc):
    """Multiply a rounded value."""
    return clamped(w, w.binary("multiply", right(w, acc, 5), 3))


@case("is a sum of rounded values", lambda acc: np.clip((acc >> 4) + ((acc + 8) >> 4), -128, 127))
def emit_sum_of_rounded(w, acc):
    """Add two rounded values."""
    return clamped(w, w.binary("add", right(w, acc, 4), right(w, w.binary("add", acc, 8), 4)))


BITS = np.random.default_rng(8).integers(36, 40, N)
EVEN = np.random.default_rng(9).integers(1 << 28, 1 << 29, N)
EVEN[:2], BITS[:2] = 1 << 28, (34, 36)
"""The first two N have accumulators that are ties."""


def quotient_and_remainder(w, acc, bits, factors=1):
    wide = w.binary("multiply", w.convert(acc, "i64"), factors)
    return right(w, wide, bits), w.binary("and", wide, (1 << bits) - 1)


def expected_half_to_even(acc):
    value, whole = acc.astype(object) * EVEN, np.array([1 << int(n) for n in BITS], object)
    quotient, twice = value // whole, 2 * (value % whole)
    more = (twice > whole) | ((twice == whole) & (quotient % 2 == 1))
    return np.clip(quotient + more + 120, 0, 255).astype(np.uint8).view(np.int8)


@case("to even, without a sign", expected_half_to_even, is_monotone=True)
def emit_half_to_even(w, acc):
    """Round half to even, to an unsigned byte."""
    quotient, remainder = quotient_and_remainder(w, acc, BITS, EVEN)
    half = 1 << (BITS - 1)
    is_even = w.compare("EQ", w.binary("and", quotient, 1), 0)
    stays = w.binary("and", w.compare("LE", remainder, half), is_even)
    more = w.binary("and", w.compare("GE", remainder, half), w.inverted(stays))
    return clamped(w, w.binary("add", quotient, w.convert(more, "i64")), 0, 255, 120)


def expected_half_away_by_remainder(acc):
    magnitude = (abs(acc) + 64) >> 7
    return np.clip(np.where(acc < 0, -magnitude, magnitude), -128, 127)


@case("half away from zero, by the remainder", expected_half_away_by_remainder, is_monotone=True)
def emit_half_away_by_remainder(w, acc):
    """Round half away from zero, by a threshold of the remainder."""
    wide = w.convert(acc, "i64")
    least = w.binary("add", w.convert(w.negative(wide), "i64"), 63)
    name = w._named("i1")
    quotient, remainder = quotient_and_remainder(w, acc, 7)
    w.operations.append(
        f"{name} = stablehlo.compare GT, {remainder}, {least} : "
        f"({w.type(remainder)}, {w.type(remainder)}) -> {w.type(name)}"
    )
    return clamped(w, w.binary("add", w.convert(name, "i64"), quotient))


@case(
    "rises where the remainder is small",
    lambda acc: np.clip((acc >> 7) + ((acc & 127) < 64), -128, 127),
)
def emit_reversed_remainder(w, acc):
    quotient, remainder = quotient_and_remainder(w, acc, 7)
    more = w.convert(w.compare("LT", remainder, 64), "i64")
    return clamped(w, w.binary("add", quotient, more))


def expected_too_steep(acc):
    is_odd, remainder = (acc >> 7) & 1, acc & 127
    return np.clip((acc >> 7) + is_odd * ((remainder >= 32) + 1 * (remainder >= 64)), -128, 127)


@case("rises too far", expected_too_steep)
def emit_too_steep(w, acc):
    """Raise odd quotients by two, above their successors."""
    quotient, remainder = quotient_and_remainder(w, acc, 7)
    is_odd = w.compare("NE", w.binary("and", quotient, 1), 0)
    more = [w.binary("and", w.compare("GE", remainder, n), is_odd) for n in (32, 64)]
    value = w.binary("add", quotient, w.convert(more[0], "i64"))
    return clamped(w, w.binary("add", value, w.convert(more[1], "i64")))


@case("reads another remainder", lambda acc: np.clip((acc >> 7) + ((acc & 63) >= 32), -128, 127))
def emit_other_remainder(w, acc):
    quotient, _ = quotient_and_remainder(w, acc, 7)
    _, remainder = quotient_and_remainder(w, acc, 6)
    more = w.convert(w.compare("GE", remainder, 32), "i64")
    return clamped(w, w.binary("add", quotient, more))


COUNTS = np.where(np.arange(N) < 16, np.arange(N) + 3, 32 * np.arange(N))


def expected_overlong_shifts(acc):
    remainder = np.where(acc.astype(np.int16) < 0, 0xFFFF, 0)
    none = np.where(np.maximum(COUNTS, 31) == 31, acc.astype(object) << 31, 0) & (1 << 32) - 1
    return (((acc >> np.minimum(COUNTS, 31)) ^ remainder) + none).astype(object) & 255


@case("shifts all bits out", expected_overlong_shifts)
def emit_overlong_shifts(w, acc):
    """Shift by all bits and more: signed, unsigned, and to the left."""
    signs = right(w, acc, COUNTS)
    remainder = right(w, w.convert(acc, "ui16"), 16)
    none = w.binary("shift_left", acc, np.maximum(COUNTS, 31))
    value = w.binary("xor", signs, w.convert(remainder, "i32"))
    return w.convert(w.binary("add", value, none), "i8")


BOOLEANS = np.arange(N) % 3 == 0


def expected_booleans(acc):
    either = (acc < 0) | BOOLEANS
    return np.where(~(either ^ BOOLEANS), ((1 << 31) + 5) >> 1, 1)


@case("selects by booleans", expected_booleans)
def emit_booleans(w, acc):
    """Select by constant booleans between values wider than the compared ones."""
    constant = w.constant([str(each).lower() for each in BOOLEANS], "i1")
    negative = w.negative(acc)
    either = w.binary("minimum", w.binary("maximum", negative, constant), w.constant("true", "i1"))
    same = w.inverted(w.binary("xor", w.binary("add", either, constant), constant))
    chosen = w.select(same, w.constant((1 << 31) + 5, "i64"), w.constant(3, "i64"))
    return w.convert(right(w, chosen, 1), "i8")


@case("mixes signed and unsigned bytes", lambda acc: np.clip((acc + 8000) >> 6, -27, 229))
def emit_mixed_signs(w, acc):
    """Give signed bytes below 0, and unsigned ones from there on."""
    acc = w.binary("add", acc, 8000)
    value = right(w, acc, 6)
    least, most = w.binary("maximum", value, -27), w.binary("minimum", value, 229)
    return w.convert(w.select(w.negative(acc), least, most), "i8")


@case("leaves nothing", np.zeros_like)
def emit_nothing_left(w, acc):
    return w.convert(w.binary("shift_left", acc, 40), "i8")


def function(write, count, name="main"):
    """A contraction with M rows, and the operations of a writer on its accumulators."""
    weight = np.zeros((N, K), np.int8)
    weight[:, :2] = FACTORS
    w = Writer(count)
    w.types["%acc"] = "i32"
    result = write(w, w.binary("add", "%acc", BIAS))
    operations = "\n  ".join(w.operations)
    return f"""
func.func @{name}(%x: tensor<{count}x{K}xi8>) -> {w.type(result)} {{
  %w = stablehlo.constant dense<{weight.tolist()}> : tensor<{N}x{K}xi8>
  %acc = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<{count}x{K}xi8>, tensor<{N}x{K}xi8>) -> {w.type("%acc")}
  {operations}
  return {result} : {w.type(result)}
}}"""


def check(name, instructions, main, step=1):
    write, expected, is_monotone = CASES[name]
    x, acc = activations(step)
    options = CompileOptions(kernels=instructions)
    lowered = compile_to_bytes(function(write, len(x)), options, emit="mlir")
    assert (b"xf32>" in lowered) == is_monotone
    assert (main(x) == expected(acc[:, None] + BIAS).astype(np.int64).astype(np.int8)).all()


@functools.cache
def together():
    count = len(activations(1)[0])
    texts = {name: function(write, count) for name, (write, *_) in CASES.items()}
    return Together(texts, kernels=HERE[0])


@pytest.mark.parametrize("name", CASES)
def test_each_accumulator_is_rounded_as_written(name, cpu):
    check(name, HERE[0], together().function(name, cpu))


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("name", [name for name, (*_, is_monotone) in CASES.items() if is_monotone])
@pytest.mark.share(4)
def test_with_all_instructions(name, instructions):
    text = function(CASES[name][0], len(activations(3)[0]))
    check(name, instructions, subquant.compile(text, kernels=instructions).main, step=3)


def test_kernels_that_differ_in_constants_share_code():
    """Layers of one shape have scales and zero points of their own."""
    numbers = {"f": (5, 3), "g": (6, -2)}

    def writer(count, zero_point):
        def write(w, acc):
            half = w.binary("add", acc, 1 << (count - 1))
            return clamped(w, right(w, half, count), zero_point=zero_point)

        return write

    x, acc = activations(7)
    text = "".join(function(writer(*each), len(x), name) for name, each in numbers.items())
    lowered = compile_to_bytes(text, CompileOptions(kernels=HERE[0]), emit="mlir")
    assert lowered.count(b'"stream.executable"()') == 1
    executable = subquant.compile(text, kernels=HERE[0])
    for name, (count, zero_point) in numbers.items():
        rounded = (acc[:, None] + BIAS + (1 << (count - 1))) >> count
        expected = np.clip(rounded + zero_point, -128, 127)
        assert (executable[name](x) == expected).all()
