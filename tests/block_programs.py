"""Contractions with block-quantized weights: programs, arguments, expected results."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np


def program(
    rows, depth, columns, block, storage="i4", *, zeros=False, offsets=False, transposed=False
):
    """A product of f32 rows with a weight in blocks along its depth."""
    weight, of_blocks = (depth, columns), (depth // block, columns)
    sizes, contracted = (block, 1), 0
    if transposed:
        weight, of_blocks, sizes, contracted = weight[::-1], of_blocks[::-1], sizes[::-1], 1
    bits = int(storage[1:])
    shape, grid = ("x".join(map(str, each)) for each in (weight, of_blocks))
    inputs = ["%q", "%s", *["%z"] * zeros, *["%o"] * offsets]
    types = [
        f"tensor<{shape}xi{bits}>",
        f"tensor<{grid}xf32>",
        *[f"tensor<{grid}xi{bits}>"] * zeros,
        *[f"tensor<{grid}xf32>"] * offsets,
    ]
    arguments = ", ".join(f"{name}: {type_}" for name, type_ in zip(inputs, types, strict=True))
    x, y = f"tensor<{rows}x{depth}xf32>", f"tensor<{rows}x{columns}xf32>"
    return f"""
func.func @main(%x: {x}, {arguments}) -> {y} {{
  %w = "subquant.dequantize"({", ".join(inputs)})
      {{block_sizes = array<i64: {sizes[0]}, {sizes[1]}>,
      operandSegmentSizes = array<i32: 1, 1, {int(zeros)}, {int(offsets)}>,
      quantized_type = !quant.any<{storage}:f32>}} : ({", ".join(types)}) -> tensor<{shape}xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [{contracted}]
      : ({x}, tensor<{shape}xf32>) -> {y}
  return %y : {y}
}}"""


def with_constants(text, *inputs):
    """The same program, of which all arguments after the first are constants."""
    whole = re.search(r"(@main\(%\w+: [^,]+), (.*?)(\)\s+-> \S+ {\n)", text, re.DOTALL)
    arguments = re.findall(r"(%\w+): (tensor<[^>]+>)", whole.group(2))
    constants = "".join(
        f"  {name} = arith.constant dense<{np.asarray(array).tolist()}> : {type_}\n"
        for (name, type_), array in zip(arguments, inputs, strict=True)
    )
    return text.replace(whole.group(), whole.group(1) + whole.group(3) + constants)


def arrays(rows, depth, columns, block, storage="i4", *, zeros=False, offsets=False, seed=0):
    """Arguments; the weight is ``depth x columns``."""
    random = np.random.default_rng(seed)
    bits, signed = int(storage[1:]), storage[0] == "i"
    low = -(1 << (bits - 1)) if signed else 0
    dtype = np.int8 if signed else np.uint8
    grid = (depth // block, columns)
    actual = [
        random.standard_normal((rows, depth)).astype(np.float32),
        random.integers(low, low + (1 << bits), (depth, columns)).astype(dtype),
        random.uniform(0.5, 2, grid).astype(np.float32),
    ]
    if zeros:
        actual.append(random.integers(low, low + (1 << bits), grid).astype(dtype))
    if offsets:
        actual.append(random.standard_normal(grid).astype(np.float32))
    return actual


def exact_product(x, q, scales, block, zeros=None, offsets=None):
    """The product in float64, and the sum of its terms' magnitudes."""

    def spread(numbers):
        return 0 if numbers is None else np.repeat(numbers.astype(np.float64), block, 0)

    real = (q.astype(np.float64) - spread(zeros)) * spread(scales) + spread(offsets)
    wide = x.astype(np.float64)
    return wide @ real, np.abs(wide) @ np.abs(real)


def named(inputs, *, zeros=False, offsets=False):
    """The arguments of `arrays` as keyword arguments of a reference."""
    names = ["x", "q", "scales", *["zeros"] * zeros, *["offsets"] * offsets]
    return dict(zip(names, inputs, strict=True))


def reference(x, q, scales, block, zeros=None, offsets=None, activation_block=None):
    """Sums of float64, of activations that are rounded for each block, or `activation_block`."""
    rows, depth = x.shape
    size = activation_block or block
    grouped = x.reshape(rows, depth // size, size)
    row_scales = np.abs(grouped).max(2) * np.float32(1 / 127)
    row_scales[row_scales == 0] = 1
    rounded = np.rint(grouped / row_scales[:, :, None]).astype(np.float64)
    rounded = (rounded * row_scales[:, :, None]).reshape(rows, depth // block, block)
    weight = q.astype(np.int64).reshape(depth // block, block, -1)
    if zeros is not None:
        weight = weight - zeros.astype(np.int64)[:, None]
    real = weight * scales.astype(np.float64)[:, None]
    if offsets is not None:
        real = real + offsets.astype(np.float64)[:, None]
    return np.einsum("mbk,bkn->mn", rounded, real, optimize=True)


def quantized_scales_program(
    rows, depth, columns, block, blocks, inner="u6", storage="u4", *, offsets=True, transposed=False
):
    """A product with a weight whose scales and offsets are integers times f16.

    Arguments are rows, the weight, its scales, offsets if any, and the f16 of both: of `blocks[0]`
    scales, and of `blocks[1]` offsets. Integers of scales are of the type `inner`.
    """

    def shaped(*extents):
        return "x".join(map(str, extents[::-1] if transposed else extents))

    def sizes(size):
        return ", ".join(map(str, (1, size) if transposed else (size, 1)))

    w, s, *ds = (shaped(depth // n, columns) for n in (1, block, *(block * n for n in blocks)))
    bits, width = inner[1:], storage[1:]
    kinds = [
        f"""{{block_sizes = array<i64: {sizes(n)}>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<{inner}:f32>}}
      : (tensor<{s}xi{bits}>, tensor<{d}xf16>) -> tensor<{s}xf32>"""
        for n, d in zip(blocks, ds, strict=True)
    ]
    types = [f"tensor<{w}xi{width}>", *[f"tensor<{s}xi{bits}>"] * (1 + offsets)]
    types += [f"tensor<{d}xf16>" for d in ds[: 1 + offsets]]
    names = [name for name in ("%q", "%s", "%o", "%sd", "%od") if offsets or name[1] != "o"]
    arguments = ", ".join(f"{name}: {type_}" for name, type_ in zip(names, types, strict=True))
    dequantized_offsets = f'%offsets = "subquant.dequantize"(%o, %od) {kinds[1]}'
    return f"""
func.func @main(%x: tensor<{rows}x{depth}xf32>, {arguments})
    -> tensor<{rows}x{columns}xf32> {{
  %scales = "subquant.dequantize"(%s, %sd) {kinds[0]}
  {dequantized_offsets if offsets else ""}
  %w = "subquant.dequantize"(%q, %scales{", %offsets" if offsets else ""})
      {{block_sizes = array<i64: {sizes(block)}>,
      operandSegmentSizes = array<i32: 1, 1, 0, {int(offsets)}>,
      quantized_type = !quant.any<{storage}:f32>}}
      : ({", ".join([f"tensor<{w}xi{width}>", *[f"tensor<{s}xf32>"] * (1 + offsets)])})
      -> tensor<{w}xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [{int(transposed)}]
      : (tensor<{rows}x{depth}xf32>, tensor<{w}xf32>) -> tensor<{rows}x{columns}xf32>
  return %y : tensor<{rows}x{columns}xf32>
}}"""


def tensor(shape: Sequence[Any], element: str) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"


def check_sum(got: Any, x: Any, w: Any, rule: str, unit: float = 2.0**-24) -> None:
    """Within the error of a sum of K products in any order: K * unit * sum |x| |w|."""
    x64, w64 = x.astype(np.float64), w.astype(np.float64)
    expected = np.einsum(rule, x64, w64)
    left, _, result = re.split(",|->", rule)
    count = math.prod(n for c, n in zip(left, x.shape, strict=True) if c not in result)
    bound = (count + 2) * unit * np.einsum(rule, abs(x64), abs(w64))
    assert got.shape == expected.shape
    assert (abs(got.astype(np.float64) - expected) <= bound).all()
