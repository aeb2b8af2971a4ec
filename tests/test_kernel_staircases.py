"""Roundings that programs write as operations on integers: kernels ask floats where they may.

Activations are chosen so that sums take every value of a range, with each tie and each end of a
clamp; the reference is computed with Python's integers, from the rounding's definition.
"""

from __future__ import annotations

import numpy as np
import pytest

import subquant
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.options import CompileOptions
from test_kernel_epilogues import COLUMNS, DEPTH, FACTORS, here, rows

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

    def negative(self, given):
        zero, name = self.known(0, self.types[given]), self._named("i1")
        self.lines.append(
            f"{name} = stablehlo.compare LT, {given}, {zero} : "
            f"({self.type(given)}, {self.type(given)}) -> {self.type(name)}"
        )
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


CASES = {
    # operations, what they are, and whether they are a staircase
    "rounded twice": (twice_by, of_twice, True),
    "rounded once, away from zero": (once_by, of_once, True),
    "half up": (coarse_by, of_coarse, True),
    "falls in one column": (falling_by, of_falling, False),
    "wraps": (wrapping_by, of_wrapping, False),
    "has two slopes": (broken_by, of_broken, False),
    "is cut": (cut_by, of_cut, False),
}


def check(case, instructions, step=1, **options):
    write, of_sums, is_staircase = CASES[case]
    x, sums = rows(step)
    count, weight = len(x), np.zeros((COLUMNS, DEPTH), np.int8)
    weight[:, :2] = FACTORS
    w = Writer(count)
    w.types["%sums"] = "i32"
    result = write(w, w.binary("add", "%sums", BIAS))
    lines = "\n  ".join(w.lines)
    text = f"""
func.func @main(%x: tensor<{count}x{DEPTH}xi8>) -> {w.type(result)} {{
  %w = stablehlo.constant dense<{weight.tolist()}> : tensor<{COLUMNS}x{DEPTH}xi8>
  %sums = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<{count}x{DEPTH}xi8>, tensor<{COLUMNS}x{DEPTH}xi8>) -> {w.type("%sums")}
  {lines}
  return {result} : {w.type(result)}
}}"""
    lowered = compile_to_bytes(text, CompileOptions(kernels=instructions, **options), emit="mlir")
    assert (b"xf32>" in lowered) == is_staircase
    found = subquant.compile(text, kernels=instructions, **options).main(x)
    assert (found == of_sums(sums[:, None] + BIAS).astype(np.int8)).all()


@pytest.mark.parametrize("case", CASES)
def test_each_sum_is_rounded_as_written(case):
    check(case, here()[0])


@pytest.mark.parametrize("instructions", here()[1:])
@pytest.mark.parametrize("case", [*CASES][:2])
@pytest.mark.share(4)
def test_with_all_instructions(case, instructions):
    check(case, instructions, step=3)
