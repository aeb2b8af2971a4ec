"""Roundings that programs write as operations on integers: kernels ask floats where they may.

Activations are chosen so that sums take every value of a range, with each tie and each end of a
clamp; the reference is computed with Python's integers, from the rounding's definition.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import subquant
from instruction_sets import EVERY, HERE
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from test_fused_epilogue import COLUMNS, DEPTH, FACTORS, rows
from together import Together

BIAS = np.random.default_rng(5).integers(-3000, 3000, COLUMNS)
BIAS[:2] = 0, -20000
"""Sums and this one are negative throughout."""


class Writer:
    """Operations, one after another, on tensors of one shape."""

    def __init__(self, count):
        self.shape = f"{count}x{COLUMNS}"
        self.lines, self.types = [], {}

    def type(self, name):
        return f"tensor<{self.shape}x{self.types[name]}>"

    def _named(self, element):
        name = f"%v{len(self.types)}"
        self.types[name] = element
        return name

    def known(self, numbers, element):
        """A number, or one for each column."""
        name = self._named(element)
        if np.ndim(numbers) == 0:
            self.lines.append(f"{name} = stablehlo.constant dense<{numbers}> : {self.type(name)}")
            return name
        row, text = f"tensor<{COLUMNS}x{element}>", ", ".join(map(str, numbers))
        self.lines.append(f"{name}r = stablehlo.constant dense<[{text}]> : {row}")
        types = f"({row}) -> {self.type(name)}"
        self.lines.append(f"{name} = stablehlo.broadcast_in_dim {name}r, dims = [1] : {types}")
        return name

    def convert(self, given, element):
        name = self._named(element)
        types = f"({self.type(given)}) -> {self.type(name)}"
        self.lines.append(f"{name} = stablehlo.convert {given} : {types}")
        return name

    def binary(self, op, left, right):
        """Of a value and another one, or numbers."""
        if not isinstance(right, str):
            right = self.known(right, self.types[left])
        name = self._named(self.types[left])
        self.lines.append(f"{name} = stablehlo.{op} {left}, {right} : {self.type(name)}")
        return name

    def compare(self, direction, given, number):
        known, name = self.known(number, self.types[given]), self._named("i1")
        self.lines.append(
            f"{name} = stablehlo.compare {direction}, {given}, {known} : "
            f"({self.type(given)}, {self.type(given)}) -> {self.type(name)}"
        )
        return name

    def negative(self, given):
        return self.compare("LT", given, 0)

    def inverted(self, given):
        name = self._named("i1")
        self.lines.append(f"{name} = stablehlo.not {given} : {self.type(name)}")
        return name

    def select(self, condition, yes, no):
        name = self._named(self.types[yes])
        types = f"{self.type(condition)}, {self.type(yes)}"
        self.lines.append(f"{name} = stablehlo.select {condition}, {yes}, {no} : {types}")
        return name


def right(w, given, count):
    return w.binary("shift_right_arithmetic", given, count)


def clamped(w, given, low=-128, high=127, zero_point=0):
    given = w.binary("add", given, zero_point)
    given = w.binary("minimum", w.binary("maximum", given, low), high)
    return w.convert(given, "i8")


MULTIPLIERS = np.random.default_rng(6).integers(1 << 30, (1 << 31) - 1, COLUMNS)
SHIFTS = np.random.default_rng(7).integers(4, 11, COLUMNS)
SHIFTS[:3] = 6, 7, 12


def twice_by(w, sums):
    """LiteRT's: half up to 31 bits, then half away from zero."""
    wide = w.binary("multiply", w.convert(sums, "i64"), MULTIPLIERS)
    high = w.convert(right(w, w.binary("add", wide, 1 << 30), 31), "i32")
    nudged = w.binary("add", high, right(w, high, 31))
    halves = w.binary("add", right(w, nudged, SHIFTS - 1), 1)
    return clamped(w, right(w, halves, 1), zero_point=-9)


def of_twice(sums):
    high = (sums.astype(object) * MULTIPLIERS + (1 << 30)) >> 31
    half = np.array([1 << (int(shift) - 1) for shift in SHIFTS], object)
    away = np.where(high < 0, -((half - high) // (2 * half)), (high + half) // (2 * half))
    return np.clip(away - 9, -128, 127)


FACTOR = round(0.0071 * 2**38)


def once_by(w, sums):
    """The magnitude half up."""
    wide = w.convert(sums, "i64")
    condition = w.negative(wide)
    magnitude = w.select(condition, w.binary("subtract", w.known(0, "i64"), wide), wide)
    product = w.binary("add", w.binary("multiply", magnitude, FACTOR), 1 << 37)
    rounded = right(w, product, 38)
    given = w.select(condition, w.binary("subtract", w.known(0, "i64"), rounded), rounded)
    # as what reads bytes as unsigned ones may have it
    return w.binary("xor", clamped(w, given, -128, 100), -128)


def of_once(sums):
    magnitude = (2 * abs(sums.astype(object)) * FACTOR + (1 << 38)) // (1 << 39)
    clipped = np.clip(np.where(sums < 0, -magnitude, magnitude), -128, 100)
    return clipped.astype(np.int8) ^ np.int8(-128)


def coarse_by(w, sums):
    """Steps of a power of two, whose ties are sums."""
    return clamped(w, right(w, w.binary("add", sums, 1 << 6), 7))


def of_coarse(sums):
    return np.clip((sums + 64) >> 7, -128, 127)


def falling_by(w, sums):
    factors = np.where(np.arange(COLUMNS) == 3, -5, 5)
    return clamped(w, right(w, w.binary("multiply", sums, factors), 9))


def of_falling(sums):
    return np.clip((sums * np.where(np.arange(COLUMNS) == 3, -5, 5)) >> 9, -128, 127)


def wrapping_by(w, sums):
    return clamped(w, right(w, w.binary("multiply", sums, 1 << 19), 24))


def of_wrapping(sums):
    return np.clip((sums.astype(np.int32) << np.int32(19)) >> 24, -128, 127)


def broken_by(w, sums):
    """A line up to 0, and one of another slope from there on."""
    less, more = right(w, sums, 7), right(w, sums, 5)
    return clamped(w, w.select(w.negative(sums), less, more))


def of_broken(sums):
    return np.clip(np.where(sums < 0, sums >> 7, sums >> 5), -128, 127)


def cut_by(w, sums):
    return w.convert(right(w, sums, 6), "i8")


def of_cut(sums):
    return (sums >> 6).astype(np.int8)


def added_by(w, sums):
    """Twice the slope where nothing is cut: the ends of the range are those of that line."""
    positive = w.binary("maximum", sums, 0)
    return clamped(w, right(w, w.binary("add", positive, sums), 4))


def of_added(sums):
    return np.clip((np.maximum(sums, 0) + sums) >> 4, -128, 127)


LEAST = np.where(np.arange(COLUMNS) == 3, -20, -128)


def bounded_by(w, sums):
    """One column has another bound."""
    return clamped(w, w.binary("maximum", right(w, w.binary("add", sums, 1 << 6), 7), LEAST))


def of_bounded(sums):
    return np.clip(np.maximum((sums + 64) >> 7, LEAST), -128, 127)


def remainder_by(w, sums):
    """What is multiplied was rounded before."""
    return clamped(w, w.binary("multiply", right(w, sums, 5), 3))


def of_remainder(sums):
    return np.clip((sums >> 5) * 3, -128, 127)


def two_by(w, sums):
    """Two that were rounded before they are added."""
    return clamped(w, w.binary("add", right(w, sums, 4), right(w, w.binary("add", sums, 8), 4)))


def of_two(sums):
    return np.clip((sums >> 4) + ((sums + 8) >> 4), -128, 127)


BITS = np.random.default_rng(8).integers(36, 40, COLUMNS)
EVEN = np.random.default_rng(9).integers(1 << 28, 1 << 29, COLUMNS)
EVEN[:2], BITS[:2] = 1 << 28, (34, 36)
"""Whose ties are sums."""


def quotient_and_rest(w, sums, bits, factors=1):
    wide = w.binary("multiply", w.convert(sums, "i64"), factors)
    return right(w, wide, bits), w.binary("and", wide, (1 << bits) - 1)


def even_by(w, sums):
    """Halves to even, as a byte without a sign."""
    quotient, rest = quotient_and_rest(w, sums, BITS, EVEN)
    half = 1 << (BITS - 1)
    is_even = w.compare("EQ", w.binary("and", quotient, 1), 0)
    stays = w.binary("and", w.compare("LE", rest, half), is_even)
    more = w.binary("and", w.compare("GE", rest, half), w.inverted(stays))
    return clamped(w, w.binary("add", quotient, w.convert(more, "i64")), 0, 255, 120)


def of_even(sums):
    value, whole = sums.astype(object) * EVEN, np.array([1 << int(n) for n in BITS], object)
    quotient, twice = value // whole, 2 * (value % whole)
    more = (twice > whole) | ((twice == whole) & (quotient % 2 == 1))
    return np.clip(quotient + more + 120, 0, 255).astype(np.uint8).view(np.int8)


def parted_by(w, sums):
    """Halves away from zero, by what the rest must be greater than."""
    wide = w.convert(sums, "i64")
    least = w.binary("add", w.convert(w.negative(wide), "i64"), 63)
    name = w._named("i1")
    quotient, rest = quotient_and_rest(w, sums, 7)
    w.lines.append(
        f"{name} = stablehlo.compare GT, {rest}, {least} : "
        f"({w.type(rest)}, {w.type(rest)}) -> {w.type(name)}"
    )
    return clamped(w, w.binary("add", w.convert(name, "i64"), quotient))


def of_parted(sums):
    magnitude = (abs(sums) + 64) >> 7
    return np.clip(np.where(sums < 0, -magnitude, magnitude), -128, 127)


def backwards_by(w, sums):
    quotient, rest = quotient_and_rest(w, sums, 7)
    more = w.convert(w.compare("LT", rest, 64), "i64")
    return clamped(w, w.binary("add", quotient, more))


def of_backwards(sums):
    return np.clip((sums >> 7) + ((sums & 127) < 64), -128, 127)


def jagged_by(w, sums):
    """Odd quotients rise by two, and the next one is lower."""
    quotient, rest = quotient_and_rest(w, sums, 7)
    is_odd = w.compare("NE", w.binary("and", quotient, 1), 0)
    more = [w.binary("and", w.compare("GE", rest, n), is_odd) for n in (32, 64)]
    given = w.binary("add", quotient, w.convert(more[0], "i64"))
    return clamped(w, w.binary("add", given, w.convert(more[1], "i64")))


def of_jagged(sums):
    is_odd, rest = (sums >> 7) & 1, sums & 127
    return np.clip((sums >> 7) + is_odd * ((rest >= 32) + 1 * (rest >= 64)), -128, 127)


def other_rest_by(w, sums):
    quotient, _ = quotient_and_rest(w, sums, 7)
    _, rest = quotient_and_rest(w, sums, 6)
    more = w.convert(w.compare("GE", rest, 32), "i64")
    return clamped(w, w.binary("add", quotient, more))


def of_other_rest(sums):
    return np.clip((sums >> 7) + ((sums & 63) >= 32), -128, 127)


COUNTS = np.where(np.arange(COLUMNS) < 16, np.arange(COLUMNS) + 3, 32 * np.arange(COLUMNS))


def shifted_out_by(w, sums):
    """Shifts by all bits and more: of signed numbers, of unsigned ones, and to the left."""
    signs = right(w, sums, COUNTS)
    rest = right(w, w.convert(sums, "ui16"), 16)
    none = w.binary("shift_left", sums, np.maximum(COUNTS, 31))
    given = w.binary("xor", signs, w.convert(rest, "i32"))
    return w.convert(w.binary("add", given, none), "i8")


def of_shifted_out(sums):
    rest = np.where(sums.astype(np.int16) < 0, 0xFFFF, 0)
    none = np.where(np.maximum(COUNTS, 31) == 31, sums.astype(object) << 31, 0) & (1 << 32) - 1
    return (((sums >> np.minimum(COUNTS, 31)) ^ rest) + none).astype(object) & 255


TRUTHS = np.arange(COLUMNS) % 3 == 0


def truths_by(w, sums):
    """Truth values that are known, and what is chosen between has more bits than was compared."""
    known = w.known([str(each).lower() for each in TRUTHS], "i1")
    negative = w.negative(sums)
    either = w.binary("minimum", w.binary("maximum", negative, known), w.known("true", "i1"))
    same = w.inverted(w.binary("xor", w.binary("add", either, known), known))
    chosen = w.select(same, w.known((1 << 31) + 5, "i64"), w.known(3, "i64"))
    return w.convert(right(w, chosen, 1), "i8")


def of_truths(sums):
    either = (sums < 0) | TRUTHS
    return np.where(~(either ^ TRUTHS), ((1 << 31) + 5) >> 1, 1)


def of_two_kinds_by(w, sums):
    """Bytes with a sign below 0, and without one from there on."""
    sums = w.binary("add", sums, 8000)
    given = right(w, sums, 6)
    least, most = w.binary("maximum", given, -27), w.binary("minimum", given, 229)
    return w.convert(w.select(w.negative(sums), least, most), "i8")


def of_of_two_kinds(sums):
    return np.clip((sums + 8000) >> 6, -27, 229)


def nothing_left_by(w, sums):
    return w.convert(w.binary("shift_left", sums, 40), "i8")


CASES = {
    # operations, what they are, and whether they are a staircase
    "rounded twice": (twice_by, of_twice, True),
    "rounded once, away from zero": (once_by, of_once, True),
    "half up": (coarse_by, of_coarse, True),
    "to even, without a sign": (even_by, of_even, True),
    "half away from zero, by the rest": (parted_by, of_parted, True),
    "rises where the rest is small": (backwards_by, of_backwards, False),
    "rises too far": (jagged_by, of_jagged, False),
    "asks another rest": (other_rest_by, of_other_rest, False),
    "falls in one column": (falling_by, of_falling, False),
    "wraps": (wrapping_by, of_wrapping, False),
    "has two slopes": (broken_by, of_broken, False),
    "is cut, and added to": (added_by, of_added, False),
    "is cut in one column": (bounded_by, of_bounded, False),
    "is multiplied after it was rounded": (remainder_by, of_remainder, False),
    "is the sum of what was rounded": (two_by, of_two, False),
    "is cut": (cut_by, of_cut, False),
    "shifts all out": (shifted_out_by, of_shifted_out, False),
    "chooses by truth values": (truths_by, of_truths, False),
    "has bytes of two kinds": (of_two_kinds_by, of_of_two_kinds, False),
    "leaves nothing": (nothing_left_by, np.zeros_like, False),
}


def function(write, count, name="main"):
    """A function of so many rows that writes what follows the sums."""
    weight = np.zeros((COLUMNS, DEPTH), np.int8)
    weight[:, :2] = FACTORS
    w = Writer(count)
    w.types["%sums"] = "i32"
    result = write(w, w.binary("add", "%sums", BIAS))
    lines = "\n  ".join(w.lines)
    return f"""
func.func @{name}(%x: tensor<{count}x{DEPTH}xi8>) -> {w.type(result)} {{
  %w = stablehlo.constant dense<{weight.tolist()}> : tensor<{COLUMNS}x{DEPTH}xi8>
  %sums = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<{count}x{DEPTH}xi8>, tensor<{COLUMNS}x{DEPTH}xi8>) -> {w.type("%sums")}
  {lines}
  return {result} : {w.type(result)}
}}"""


def check(case, instructions, main, step=1):
    write, of_sums, is_staircase = CASES[case]
    x, sums = rows(step)
    options = CompileOptions(kernels=instructions)
    lowered = compile_to_bytes(function(write, len(x)), options, emit="mlir")
    assert (b"xf32>" in lowered) == is_staircase
    assert (main(x) == of_sums(sums[:, None] + BIAS).astype(np.int64).astype(np.int8)).all()


@functools.cache
def together():
    count = len(rows(1)[0])
    texts = {case: function(write, count) for case, (write, _, _) in CASES.items()}
    return Together(texts, kernels=HERE[0])


@pytest.mark.parametrize("case", CASES)
def test_each_sum_is_rounded_as_written(case, cpu):
    check(case, HERE[0], together().function(case, cpu))


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("case", [*CASES][:5])
@pytest.mark.share(4)
def test_with_all_instructions(case, instructions):
    text = function(CASES[case][0], len(rows(3)[0]))
    check(case, instructions, subquant.compile(text, kernels=instructions).main, step=3)


def test_kernels_that_differ_in_numbers_are_one():
    """Layers of one shape, with scales and zero points of their own."""
    numbers = {"f": (5, 3), "g": (6, -2)}

    def writer(count, zero_point):
        def write(w, sums):
            half = w.binary("add", sums, 1 << (count - 1))
            return clamped(w, right(w, half, count), zero_point=zero_point)

        return write

    x, sums = rows(7)
    text = "".join(function(writer(*each), len(x), name) for name, each in numbers.items())
    lowered = compile_to_bytes(text, CompileOptions(kernels=HERE[0]), emit="mlir")
    assert lowered.count(b'"stream.executable"()') == 1
    executable = subquant.compile(text, kernels=HERE[0])
    for name, (count, zero_point) in numbers.items():
        rounded = (sums[:, None] + BIAS + (1 << (count - 1))) >> count
        expected = np.clip(rounded + zero_point, -128, 127)
        assert (executable[name](x) == expected).all()
