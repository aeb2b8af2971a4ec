"""Integer graphs of TOSA.

`tests/combined_programs.py` defines families.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from combined_arithmetic import Window, convolve, window_positions
from combined_graph import Graph
from combined_programs import family
from combined_values import Quantized, Value, Values, as_signed


def scaled_32(value: np.ndarray, multiplier: int, shift: int, double: bool) -> np.ndarray:
    """TOSA, ``apply_scale_32``."""
    rounding = np.full(value.shape, 1 << (shift - 1), object)
    if double and shift > 31:
        rounding = np.where(value >= 0, rounding + (1 << 30), rounding - (1 << 30))
    return (value.astype(object) * multiplier + rounding) >> shift


def rescaled(
    g: Graph,
    x: Value,
    storage: str,
    factors: np.ndarray,
    zeros: tuple[int, int],
    rounding: str,
    scale32: bool = True,
) -> Value:
    """``tosa.rescale`` by a factor, or one for each index of the last axis."""
    digits = 31 if scale32 else 15
    factors = np.atleast_1d(factors)
    mantissas, exponents = np.frexp(factors)
    multipliers = np.rint(mantissas * 2.0 ** (digits - 1)).astype(np.int64)
    shifts = (digits - 1) - exponents
    low, high = Quantized(storage, 1.0).range
    difference = x.array - zeros[0]
    rows = np.moveaxis(difference, -1, 0) if len(factors) > 1 else [difference]
    is_double = rounding == "DOUBLE_ROUND"
    columns = [
        scaled_32(row, int(multiplier), int(shift), is_double)
        for row, multiplier, shift in zip(rows, multipliers, shifts, strict=True)
    ]
    array = np.stack(columns, -1) if len(factors) > 1 else columns[0]
    array = np.clip(array + zeros[1], low, high).astype(np.int64)
    element = Quantized(storage, 1.0, plain=True)
    source = x.element if isinstance(x.element, str) else f"i{x.element.bits}"
    unsigned = isinstance(x.element, Quantized) and x.element.storage[0] == "u"
    operands = [
        constant(g, "i32" if scale32 else "i16", multipliers),
        constant(g, "i8", shifts),
        constant(g, source, np.array([zeros[0]]), unsigned),
        constant(g, f"i{element.bits}", np.array([zeros[1]]), storage[0] == "u"),
    ]
    attributes = (
        f"input_unsigned = {str(unsigned).lower()}, "
        f"output_unsigned = {str(storage[0] == 'u').lower()}, "
        f"per_channel = {str(len(factors) > 1).lower()}, rounding_mode = {rounding}, "
        f"scale32 = {str(scale32).lower()}"
    )
    return g.write("tosa.rescale", [x, *operands], element, array, attributes, pretty=True)


def constant(g: Graph, element: str, array: np.ndarray, unsigned: bool = False) -> Value:
    """``tosa.const``."""
    if unsigned:
        array = as_signed(array, int(element[1:]))
    value = Value(g.fresh(), element, array)
    g.program.append(
        f'{value.name} = "tosa.const"() <{{values = dense<{array.tolist()}> : {value.type}}}>'
        f" : () -> {value.type}"
    )
    return value


def tosa_convolution(
    g: Graph, x: Value, w: Value, bias: Value, zeros: tuple[int, int], pad: int, stride: int
) -> Value:
    """``tosa.conv2d``: NHWC, OHWI, differences from zero points, i32."""
    real_x = (x.array - zeros[0]).transpose(0, 3, 1, 2).astype(np.float64)
    real_w = (w.array - zeros[1]).transpose(0, 3, 1, 2).astype(np.float64)
    total = convolve(real_x, real_w, Window((stride, stride), [(pad, pad)] * 2, (1, 1), (1, 1)))
    array = total.transpose(0, 2, 3, 1).astype(np.int64) + bias.array
    attributes = (
        f"acc_type = i32, dilation = array<i64: 1, 1>, "
        f"pad = array<i64: {pad}, {pad}, {pad}, {pad}>, stride = array<i64: {stride}, {stride}>"
    )
    points = [constant(g, "i8", np.array([z])) for z in zeros]
    return g.write("tosa.conv2d", [x, w, bias, *points], "i32", array, attributes, pretty=True)


@family(
    ("SINGLE_ROUND", True, False, 1), ("DOUBLE_ROUND", True, False, 1),
    ("SINGLE_ROUND", False, False, 2), ("DOUBLE_ROUND", False, False, 2),
    ("SINGLE_ROUND", True, True, 1), ("DOUBLE_ROUND", False, True, 1),
)  # fmt: skip
def tosa_network(g: Graph, rounding: str, per_channel: bool, short: bool, stride: int) -> Values:
    """Convolution, rescale, maximum, addition in i32 of two rescaled inputs, rescale, matmul."""
    i8 = Quantized("i8", 1.0, plain=True)
    x = g.argument(i8, (1, 5 + stride, 5 + stride, 3))
    w = g.argument(i8, (4, 3, 3, 3))
    bias = g.argument_of("i32", g.rng.integers(-3000, 3000, 4))
    acc = tosa_convolution(g, x, w, bias, (-7, 0), 1, stride)
    factors = g.rng.uniform(0.001, 0.01, 4 if per_channel else 1)
    y = rescaled(g, acc, "i8", factors, (0, -11), rounding)
    wide = [
        replace(rescaled(g, y, "i32", np.array(f), (z, 0), rounding), element="i32")
        for f, z in ((900.7, -11), (1234.5, 3))
    ]
    total = g.write("tosa.add", wide, "i32", wide[0].array + wide[1].array, pretty=True)
    z = rescaled(g, total, "u8", np.array(0.00037), (0, 131), rounding)
    back = rescaled(g, z, "i8", np.array(0.8), (131, 5), rounding, not short)
    n = back.shape[1]
    rows = back.array.reshape(1, n * n, 4)
    shape = constant_shape(g, rows.shape)
    flat = g.write("tosa.reshape", [back, shape], back.element, rows, pretty=True)
    other = g.argument(i8, (1, 4, 5))
    points = [constant(g, "i8", np.array([v])) for v in (5, -2)]
    product_ = (flat.array - 5) @ (other.array + 2)
    scores = g.write("tosa.matmul", [flat, other, *points], "i32", product_, pretty=True)
    return [rescaled(g, scores, "i16", np.array(0.75), (0, 0), "SINGLE_ROUND"), z, y]


def constant_shape(g: Graph, shape: Sequence[int]) -> Value:
    """``tosa.const_shape``, as a value whose type is written in place of its tensor's."""
    value = _Shape(g.fresh(), "index", np.array(shape))
    g.program.append(
        f"{value.name} = tosa.const_shape {{values = dense<{list(shape)}> : "
        f"tensor<{len(shape)}xindex>}} : () -> {value.type}"
    )
    return value


class _Shape(Value):
    """A ``!tosa.shape``."""

    @property
    def type(self) -> str:
        return f"!tosa.shape<{len(self.array)}>"


@family((2, 2, 0), (3, 1, 1), (3, 2, 1))
def tosa_pooling(g: Graph, size: int, stride: int, pad: int) -> Values:
    """Pooling by average and maximum of rescaled values, a table, and their concatenation."""
    i8 = Quantized("i8", 1.0, plain=True)
    x = g.argument(i8, (1, 7, 7, 2)) if size > 2 else g.argument(i8, (1, 6, 6, 2))
    y = rescaled(g, x, "i8", np.array(0.7), (-3, 9), "DOUBLE_ROUND")
    ones, padding = (1, 1, 1, 1), [(0, 0), (pad, pad), (pad, pad), (0, 0)]
    options = ((1, size, size, 1), Window((1, stride, stride, 1), padding, ones, ones))
    greatest = window_positions(y.array, *options, -128).max(-1).astype(np.int64)
    attributes = (
        f"kernel = array<i64: {size}, {size}>, pad = array<i64: {pad}, {pad}, {pad}, {pad}>, "
        f"stride = array<i64: {stride}, {stride}>"
    )
    a = g.write("tosa.max_pool2d", [y], y.element, greatest, attributes, pretty=True)
    total = window_positions(y.array - 9, *options, 0).sum(-1).astype(np.int64)
    counts = window_positions(np.ones(y.shape), *options, 0).sum(-1).astype(np.int64)
    means = np.zeros_like(total)
    for count in np.unique(counts):
        k = int(count - 1).bit_length()
        multiplier = (((1 << 30) + 1) << k) // int(count)
        exact = scaled_32(total, multiplier, 30 + k, False).astype(np.int64)
        means = np.where(counts == count, exact, means)
    means = np.clip(means + 9, -128, 127)
    points = [constant(g, "i8", np.array([9])) for _ in range(2)]
    b = g.write(
        "tosa.avg_pool2d", [y, *points], y.element, means, attributes + ", acc_type = i32",
        pretty=True,
    )  # fmt: skip
    entries = g.rng.integers(-128, 128, 256)
    table = constant(g, "i8", entries)
    c = g.write("tosa.table", [b, table], y.element, entries[b.array + 128], pretty=True)
    joined = np.concatenate([a.array, c.array], 3)
    d = g.write("tosa.concat", [a, c], y.element, joined, "axis = 3 : i32", pretty=True)
    return [rescaled(g, d, "i16", np.array(33.3), (4, 0), "SINGLE_ROUND"), b]
