"""Additions of two bytes with one shift: exact for every pair of operands."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

import subquant
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.runtime import Device

SCALES, ZERO_POINTS = (0.0471, 0.0312, 0.0513), (3, 7, 1)
PROGRAMS = {"add": "i8", "subtract": "u8"}


def function(op: str, storage: str) -> str:
    """A quantized operation on all pairs of bytes."""
    x, y, z = (
        f"tensor<256x256x!quant.uniform<{storage}:f32, {scale}:{zero}>>"
        for scale, zero in zip(SCALES, ZERO_POINTS, strict=True)
    )
    return f"""
func.func @{op}(%x: {x}, %y: {y}) -> {z} {{
  %z = stablehlo.{op} %x, %y : ({x}, {y}) -> {z}
  return %z : {z}
}}
"""


def nearest(x: np.ndarray, y: np.ndarray, sign: int) -> np.ndarray:
    """The exact quotient of whole numbers, rounded: scales as f32 are steps of ``2**-40``."""
    units = [int(Fraction(float(np.float32(scale))) * 2**40) for scale in SCALES]
    total = (x - ZERO_POINTS[0]) * units[0] + sign * (y - ZERO_POINTS[1]) * units[1]
    doubled = 2 * total + units[2]
    assert (doubled % (2 * units[2]) > 0).all()  # there are no ties
    return doubled // (2 * units[2]) + ZERO_POINTS[2]


@pytest.mark.parametrize("how", ["exact", "fixed-point"])
def test_every_pair_is_rounded_once(how: str, cpu: Device) -> None:
    text = "".join(function(*each) for each in PROGRAMS.items())
    lowered = compile_to_bytes(text, CompileOptions(requantization=how), emit="mlir").decode()
    # The pass emits two products of 32 bits, one shift, no comparison.
    names = re.findall(r"stablehlo\.(multiply|shift_right_arithmetic|compare|select)", lowered)
    assert sorted(names) == sorted(2 * ["multiply", "multiply", "shift_right_arithmetic"])
    executable = subquant.compile(text, device=cpu, requantization=how)
    for op, storage in PROGRAMS.items():
        every = np.arange(256, dtype=np.uint8).view(np.int8 if storage == "i8" else np.uint8)
        x, y = np.meshgrid(every, every, indexing="ij")
        result = executable[op](x, y)
        expected = nearest(x.astype(np.int64), y.astype(np.int64), -1 if op == "subtract" else 1)
        low, high = np.iinfo(every.dtype).min, np.iinfo(every.dtype).max
        np.testing.assert_array_equal(result, np.clip(expected, low, high), err_msg=op)
