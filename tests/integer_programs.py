"""Programs that contract 8-bit integers, and their results in whole numbers of float64."""

from __future__ import annotations

import numpy as np


def convolved(x, w, strides, dilations):
    """In whole numbers of float64, which are exact here: images x positions x channels."""
    counts = [
        (n - (tap - 1) * dilation - 1) // stride + 1
        for n, tap, stride, dilation in zip(
            x.shape[1:3], w.shape[:2], strides, dilations, strict=True
        )
    ]
    total = np.zeros((x.shape[0], *counts, w.shape[3]))
    for row, column in np.ndindex(*w.shape[:2]):
        top, left = row * dilations[0], column * dilations[1]
        part = x[:, top :: strides[0], left :: strides[1]][:, : counts[0], : counts[1]]
        total += part.astype(np.float64) @ w[row, column].astype(np.float64)
    return total.astype(np.int32)


def convolution(x, w, strides=(1, 1), dilations=(1, 1), padding=(0, 0)):
    """The program: activations and weight are arguments."""
    padded = np.pad(x, [(0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)])
    expected = convolved(padded, w, strides, dilations)
    types = [f"tensor<{'x'.join(map(str, each.shape))}x" for each in (x, w, expected)]
    pads = f"[[{padding[0]}, {padding[0]}], [{padding[1]}, {padding[1]}]]"
    text = f"""
func.func @main(%x: {types[0]}i8>, %w: {types[1]}i8>) -> {types[2]}i32> {{
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {{stride = [{strides[0]}, {strides[1]}], pad = {pads},
                rhs_dilate = [{dilations[0]}, {dilations[1]}]}}
      {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
      : ({types[0]}i8>, {types[1]}i8>) -> {types[2]}i32>
  return %y : {types[2]}i32>
}}"""
    return text, expected


def padded_convolution(x, w, padding, outside, strides=(1, 1)):
    """A convolution of images that a ``stablehlo.pad`` extends on all four sides."""
    sides = [(0, 0), *padding, (0, 0)]
    text, expected = convolution(np.pad(x, sides, constant_values=outside), w, strides=strides)
    low, high = (", ".join(str(pair[side]) for pair in padding) for side in (0, 1))
    unpadded, padded = (
        f"tensor<{'x'.join(map(str, shape))}xi8>"
        for shape in (x.shape, [n + sum(p) for n, p in zip(x.shape, sides, strict=True)])
    )
    text = text.replace(f"%x: {padded}", f"%images: {unpadded}").replace(
        "  %y = ",
        f"""  %outside = stablehlo.constant dense<{outside}> : tensor<i8>
  %x = stablehlo.pad %images, %outside, low = [0, {low}, 0], high = [0, {high}, 0],
      interior = [0, 0, 0, 0] : ({unpadded}, tensor<i8>) -> {padded}
  %y = """,
    )
    return text, expected


def drawn(*shape, seed=0):
    """Integers of 8 bits, with both extremes among them."""
    array = np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)
    array.reshape(-1)[:2] = -128, 127
    return array


def product(rows, depth, columns, transposed=False, constant=None):
    """A product of i8 matrices."""
    weight = f"{columns}x{depth}" if transposed else f"{depth}x{columns}"
    argument, constant_text = f", %w: tensor<{weight}xi8>", ""
    if constant is not None:
        elements = f'dense<"0x{constant.tobytes().hex()}">'
        argument, constant_text = "", f"%w = arith.constant {elements} : tensor<{weight}xi8>"
    return f"""
func.func @main(%x: tensor<{rows}x{depth}xi8>{argument}) -> tensor<{rows}x{columns}xi32> {{
  {constant_text}
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [{int(transposed)}]
      : (tensor<{rows}x{depth}xi8>, tensor<{weight}xi8>) -> tensor<{rows}x{columns}xi32>
  return %y : tensor<{rows}x{columns}xi32>
}}"""
