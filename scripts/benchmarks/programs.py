"""The cases as programs: quantized ones for subquant, and the same in plain types for IREE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Case = dict[str, Any]


def _tensor(shape: Sequence[int], element: str) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"


def _constant(array: Array, element: str) -> str:
    data = np.ascontiguousarray(array).tobytes().hex().upper()
    return f'stablehlo.constant dense<"0x{data}"> : {_tensor(array.shape, element)}'


def _scales(values: Array) -> str:
    return ", ".join(repr(float(value)) for value in values)


def _window(case: Case, w: Array, padding: Any) -> str:
    """Return the attributes of a convolution, as text."""
    pads = ", ".join(f"[{low}, {high}]" for low, high in padding)
    strides = ", ".join(map(str, case["strides"]))
    return (
        "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
        f"window = {{stride = [{strides}], pad = [{pads}]}} {{batch_group_count = 1 : i64, "
        f"feature_group_count = {case['groups']} : i64}}"
    )


def quantized_integers(case: Case, arrays: dict[str, Array], *, has_weight_argument: bool) -> str:
    """Return a matmul or convolution of quantized types; a convolution has a bias.

    Args:
        has_weight_argument: the weights are an argument instead of a constant.
    """
    x, w, bias, w_scales = (arrays[name] for name in ("x", "w", "bias", "w_scales"))
    is_matmul = case["kind"] == "int8 matmul"
    axis = 0 if is_matmul else 3
    accumulator_scales = _scales(case["x_scale"] * w_scales.astype(np.float64))
    y = _tensor(case["result"], "!y")
    argument = f", %w: {_tensor(w.shape, '!w')}" if has_weight_argument else ""
    constant = "" if has_weight_argument else (
        f"  %storage = {_constant(w, 'i8')}\n"
        f'  %w = "quant.scast"(%storage) : ({_tensor(w.shape, "i8")}) -> {_tensor(w.shape, "!w")}\n'
    )  # fmt: skip
    operands = f"({_tensor(x.shape, '!x')}, {_tensor(w.shape, '!w')})"
    if is_matmul:
        body = (
            f"  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] "
            f": {operands} -> {y}\n"
        )
    else:
        added = _tensor(bias.shape, "!b")
        total = _tensor(case["result"], "!s")
        body = (
            f"  %accumulators = stablehlo.convolution(%x, %w) {_window(case, w, case['padding'])} "
            f": {operands} -> {total}\n"
            f"  %bias = {_constant(bias, 'i32')}\n"
            f'  %b = "quant.scast"(%bias) : ({_tensor(bias.shape, "i32")}) -> {added}\n'
            f"  %all = stablehlo.broadcast_in_dim %b, dims = [3] : ({added}) -> {total}\n"
            f"  %biased = stablehlo.add %accumulators, %all : {total}\n"
            f"  %y = stablehlo.uniform_quantize %biased : ({total}) -> {y}\n"
        )
    return (
        f"!x = !quant.uniform<i8:f32, {case['x_scale']!r}:{case['x_zero_point']}>\n"
        f"!w = !quant.uniform<i8<-127:127>:f32:{axis}, {{{_scales(w_scales)}}}>\n"
        f"!b = !quant.uniform<i32:f32:0, {{{accumulator_scales}}}>\n"
        f"!s = !quant.uniform<i32:f32:{axis}, {{{accumulator_scales}}}>\n"
        f"!y = !quant.uniform<i8:f32, {case['y_scale']!r}:{case['y_zero_point']}>\n"
        f"func.func @main(%x: {_tensor(x.shape, '!x')}{argument}) -> {y} {{\n"
        f"{constant}{body}  return %y : {y}\n}}\n"
    )


def plain_block_matmul(rows: int, count: int, depth: int, bits: int, *, has_offsets: bool) -> str:
    """``x [rows, K] @ (w * scales + offsets).T``: dequantized in front of a product of floats.

    Arguments: x, w ``[count, K / 32, 32]``, scales and maybe offsets ``[count, K / 32]``.
    """
    grid = (count, depth // 32)
    blocks, w = _tensor((*grid, 32), "f32"), _tensor((*grid, 32), f"i{bits}")
    scales, offsets = _tensor(grid, "f16"), _tensor(grid, "f32")
    x, y = _tensor((rows, depth), "f32"), _tensor((rows, count), "f32")
    flat = _tensor((count, depth), "f32")
    shift = (
        f"  %o = stablehlo.broadcast_in_dim %offsets, dims = [0, 1] : ({offsets}) -> {blocks}\n"
        f"  %shifted = stablehlo.add %scaled, %o : {blocks}\n"
    )
    return (
        f"func.func @main(%x: {x}, %w: {w}, %scales: {scales}"
        f"{f', %offsets: {offsets}' if has_offsets else ''}) -> {y} {{\n"
        f"  %q = stablehlo.convert %w : ({w}) -> {blocks}\n"
        f"  %wide = stablehlo.convert %scales : ({scales}) -> {offsets}\n"
        f"  %s = stablehlo.broadcast_in_dim %wide, dims = [0, 1] : ({offsets}) -> {blocks}\n"
        f"  %scaled = stablehlo.multiply %q, %s : {blocks}\n{shift if has_offsets else ''}"
        f"  %f = stablehlo.reshape %{'shifted' if has_offsets else 'scaled'} "
        f": ({blocks}) -> {flat}\n"
        f"  %y = stablehlo.dot_general %x, %f, contracting_dims = [1] x [1] "
        f": ({x}, {flat}) -> {y}\n"
        f"  return %y : {y}\n}}\n"
    )


def float_matmul(rows: int, count: int, depth: int) -> str:
    """``x [rows, K] @ w.T`` of f32. Arguments: x, w ``[count, K]``."""
    x, w, y = (_tensor(shape, "f32") for shape in ((rows, depth), (count, depth), (rows, count)))
    return (
        f"func.func @main(%x: {x}, %w: {w}) -> {y} {{\n"
        f"  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : ({x}, {w}) -> {y}\n"
        f"  return %y : {y}\n}}\n"
    )


def plain_integers(case: Case, arrays: dict[str, Array]) -> str:
    """A product or convolution of i8 in i32, and its rounding in f32.

    Arguments: x, w (in f32 of a depthwise convolution), a bias in which the zero point of x is
    folded, and the real multipliers.
    """
    x, w = arrays["x"], arrays["w"]
    count = len(arrays["bias"])
    y, total, real = (_tensor(case["result"], element) for element in ("i8", "i32", "f32"))
    bias, scales = _tensor((count,), "i32"), _tensor((count,), "f32")
    last = len(case["result"]) - 1
    stored = "f32" if case.get("groups", 1) > 1 else "i8"
    if case["kind"] == "int8 matmul":
        contraction = (
            f"  %accumulators = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : "
            f"({_tensor(x.shape, 'i8')}, {_tensor(w.shape, 'i8')}) -> {total}\n"
        )
    else:
        (top, bottom), (left, right) = case["padding"]
        padded = (1, x.shape[1] + top + bottom, x.shape[2] + left + right, x.shape[3])
        operands = f"({_tensor(padded, 'i8')}, {_tensor(w.shape, 'i8')})"
        padding = (
            f"  %zero = stablehlo.constant dense<{case['x_zero_point']}> : tensor<i8>\n"
            f"  %padded = stablehlo.pad %x, %zero, low = [0, {top}, {left}, 0], "
            f"high = [0, {bottom}, {right}, 0], interior = [0, 0, 0, 0] "
            f": ({_tensor(x.shape, 'i8')}, tensor<i8>) -> {_tensor(padded, 'i8')}\n"
        )
        window = _window(case, w, [[0, 0], [0, 0]])
        contraction = (
            f"{padding}  %accumulators = stablehlo.convolution(%padded, %w) {window} "
            f": {operands} -> {total}\n"
        )
        if case["groups"] > 1:
            # IREE 3.13 refuses depthwise i8 convolutions with i32 accumulators; f32 is exact here.
            real_x, real_w = _tensor(padded, "f32"), _tensor(w.shape, "f32")
            contraction = (
                f"{padding}"
                f"  %rx = stablehlo.convert %padded : ({_tensor(padded, 'i8')}) -> {real_x}\n"
                f"  %reals = stablehlo.convolution(%rx, %w) {window} "
                f": ({real_x}, {real_w}) -> {real}\n"
                f"  %accumulators = stablehlo.convert %reals : ({real}) -> {total}\n"
            )
    return (
        f"func.func @main(%x: {_tensor(x.shape, 'i8')}, %w: {_tensor(w.shape, stored)}, "
        f"%bias: {bias}, %scales: {scales}) -> {y} {{\n{contraction}"
        f"  %b = stablehlo.broadcast_in_dim %bias, dims = [{last}] : ({bias}) -> {total}\n"
        f"  %biased = stablehlo.add %accumulators, %b : {total}\n"
        f"  %r = stablehlo.convert %biased : ({total}) -> {real}\n"
        f"  %s = stablehlo.broadcast_in_dim %scales, dims = [{last}] : ({scales}) -> {real}\n"
        f"  %m = stablehlo.multiply %r, %s : {real}\n"
        f"  %z = stablehlo.constant dense<{case['y_zero_point']}.0> : {real}\n"
        f"  %low = stablehlo.constant dense<-128.0> : {real}\n"
        f"  %high = stablehlo.constant dense<127.0> : {real}\n"
        f"  %shifted = stablehlo.add %m, %z : {real}\n"
        f"  %rounded = stablehlo.round_nearest_even %shifted : {real}\n"
        f"  %in = stablehlo.clamp %low, %rounded, %high : {real}\n"
        f"  %y = stablehlo.convert %in : ({real}) -> {y}\n"
        f"  return %y : {y}\n}}\n"
    )
