"""Extreme sizes and ranges, casts around floats, and graphs drawn at random.

`tests/combined_programs.py` defines families.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from combined_arithmetic import FUNCTIONS
from combined_graph import Graph
from combined_programs import channels, family, like, product, real, total_of
from combined_values import Quantized, Value, Values

# Sizes and ranges


@family(
    ("i8", 1, 32768, 2), ("u8", 2, 33000, 3), ("i8", 3, 40001, 1), ("i16", 1, 32769, 2),
    ("u8", 1, 70000, 1), ("i8", 2, 66000, 2), ("i4", 2, 65536, 1),
)  # fmt: skip
def long_contraction(g: Graph, storage: str, rows: int, depth: int, columns: int) -> Values:
    """Contractions of 32,768 and more, a zero point on the left, and the sum of the left."""
    x = g.argument(real(g, storage), (rows, depth))
    w = g.argument(channels(g, storage, 1, columns, 0.02), (depth, columns))
    typical_scale = 0.05 * 2 ** (8 if storage == "i16" else 0)
    y = g.dot(x, w, ([1], [0]), channels(g, storage, 1, columns, typical_scale * 60))
    return [y, total_of(g, x, [1])]


@family(("i8", 1024, 300), ("u8", 2048, 64), ("i4", 512, 700), ("i8", 3, 2048))
def many_channels(g: Graph, storage: str, inputs: int, outputs: int) -> Values:
    """A 1x1 convolution of many channels with a bias, per axis to the end."""
    x = g.argument(real(g, storage), (1, 2, 2, inputs))
    w = g.argument(channels(g, storage, 3, outputs, 0.01, True), (1, 1, inputs, outputs))
    wide = replace(product(x.element, w.element, 3), axis=3)
    y = g.convolution(x, w, wide)
    bias = g.argument(replace(wide, axis=0), (outputs,))
    y = g.apply("add", [y, g.broadcast(bias, y.shape, [3])], wide)
    return [g.requantize(y, channels(g, storage, 3, outputs, 0.5, True))]


@family(
    ("i8", 1e-20, 1e-18, (-128, -128)), ("u8", 1e12, 1e15, (255, 0)),
    ("i8", 1e-30, 1e-4, (127, -128)), ("i8", 3e15, 1e-12, (127, 127)),
    ("u8", 1e-12, 1e14, (0, 255)), ("i16", 1e-9, 1e9, (-32768, 32767)),
)  # fmt: skip
def extreme(g: Graph, storage: str, left: float, right: float, zeros: tuple[int, int]) -> Values:
    """Scales far apart, zero points at the ends, saturation from both sides."""
    a = Quantized(storage, float(np.float32(left)), zeros[0])
    b = Quantized(storage, float(np.float32(right)), 0)
    x, w = g.argument(a, (4, 6)), g.argument(b, (6, 5))
    scale = float(np.float32(left * 12)) * float(np.float32(right))
    out = Quantized(storage, float(np.float32(scale)), zeros[1])
    y = g.dot(x, w, ([1], [0]), out)
    is_close = like(out, 1.0001, zeros[0])
    return [y, g.requantize(y, is_close), g.apply("subtract", [y, g.reverse(y, [0])], is_close)]


@family(
    ("i8", (-127, 127), "f32"), ("u8", (1, 200), "f32"), ("i8", (-3, 4), "f32"),
    ("i4", (-7, 7), "f32"), ("i16", (-1000, 999), "f32"), ("i8", (-31, 32), "f64"),
)  # fmt: skip
def narrow_range(g: Graph, storage: str, limits: tuple[int, int], expressed: str) -> Values:
    """Narrower ranges through a contraction, additions and a function."""

    def narrow(typical_scale: float, zero: bool = True) -> Quantized:
        element = real(g, storage, zero, limits=limits, expressed=expressed)
        return replace(element, scales=float(np.float32(typical_scale)))

    x = g.argument(narrow(0.1), (4, 6))
    low, high = limits
    w_type = replace(narrow(0.05), zeros=0)
    if not low <= 0 <= high:
        w_type = replace(w_type, limits=(0, high))
    y = g.dot(x, g.argument(w_type, (6, 6)), ([1], [0]), narrow(0.2))
    z = g.apply("add", [y, g.reverse(y, [1])], narrow(0.3))
    return [y, z, g.apply("tanh", [z], narrow(2.0 / (high - low)))]


# Casts around floats


@family(
    ("i8", "quant", False), ("u8", "stablehlo", False), ("i4", "quant", True),
    ("i16", "quant", True), ("i6", "quant", False), ("u3", "quant", False),
    ("i5", "quant", True), ("u2", "quant", False),
)  # fmt: skip
def fake_quantized(g: Graph, storage: str, dialect: str, dynamic: bool) -> Values:
    """A graph of floats with casts around each operation, as exporters write it."""
    axes = [0] if dynamic else []
    x = g.argument("f32", (4, 8), axes)
    one, two = (real(g, storage, typical_scale=s * 16 / 2 ** int(storage[1:])) for s in (0.5, 1.0))

    def round_trip(v: Value, element: Quantized) -> Value:
        return g.dequantize(g.quantize(v, element, dialect), dialect)

    w = g.argument("f32", (8, 8))
    per_axis = channels(g, storage, 1, 8, 1.0 / 2 ** int(storage[1:]))
    y = g.dot(round_trip(x, one), round_trip(w, per_axis), ([1], [0]), "f32")
    y = round_trip(y, two)
    z = g.apply("maximum", [y, g.apply("negate", [y], "f32")], "f32")
    z = round_trip(g.apply("add", [z, round_trip(x, one)], "f32"), two)
    return [z, g.quantize(z, one, dialect)]


@family(("i8", 4, 16), ("u8", 2, 8), ("i4", 3, 16), ("i6", 2, 16), ("i16", 3, 8))
def rms_norm(g: Graph, storage: str, rows: int, width: int) -> Values:
    """An embedding's rows, normalized in f32, scaled per feature, quantized, contracted."""
    table = g.argument(real(g, storage, typical_scale=0.3), (9, width))
    at = g.argument_of("i32", g.rng.integers(0, 9, (rows, 1)))
    x = g.dequantize(table)
    x = g.rows(x, at)
    zero = g.constant("f32", np.float64(0))
    total = g.reduce("add", g.apply("multiply", [x, x], "f32"), zero, [1], "f32")
    each = g.broadcast(g.constant("f32", np.float64(1 / width)), total.shape, [])
    small = g.broadcast(g.constant("f32", np.float64(2.0**-10)), total.shape, [])
    mean = g.apply("add", [g.apply("multiply", [total, each], "f32"), small], "f32")
    scale = g.broadcast(g.apply("rsqrt", [mean], "f32"), x.shape, [0])
    weight = g.broadcast(g.argument("f32", (width,), spread=1), x.shape, [1])
    y = g.apply("multiply", [g.apply("multiply", [x, scale], "f32"), weight], "f32")
    return [g.quantize(y, real(g, storage, typical_scale=8.0 / 2 ** int(storage[1:]))), y]


@family(("i8",), ("u8",), ("i4",), ("i16",))
def dynamic_network(g: Graph, storage: str) -> Values:
    """A batch of unknown size through contractions, functions, reductions and comparisons."""
    x = g.argument(real(g, storage), (5, 8), [0])
    w = g.argument(channels(g, storage, 1, 8, 0.05), (8, 8))
    y = g.dot(x, w, ([1], [0]), real(g, storage, typical_scale=0.2))
    z = g.apply("add", [g.apply("tanh", [y], like(y.element, 0.3)), x], like(x.element, 2.0))
    z = g.apply("maximum", [z, y], like(y.element, 1.2))
    total = total_of(g, z, [1])
    greatest = g.argument_of(z.element, np.int64(z.element.range[1]))
    least = g.reduce("minimum", z, greatest, [0], z.element)
    chosen = g.select(g.compare("GE", z, x), z, g.requantize(x, z.element), z.element)
    return [z, total, least, chosen, g.dequantize(z, "stablehlo")]


@family(("i8", "NHWC"), ("u8", "NHWC"), ("i4", "NHWC"), ("i8", "dilated"))
def dynamic_batch_convolution(g: Graph, storage: str, kind: str) -> Values:
    """A batch of unknown size through a padded convolution with a zero point."""
    x = g.argument(real(g, storage), (3, 6, 5, 4), [0])
    w = g.argument(channels(g, storage, 3, 4, 0.05, True), (3, 3, 4, 4))
    base = (2, 2) if kind == "dilated" else (1, 1)
    y = g.convolution(
        x, w, channels(g, storage, 3, 4, 0.3, True), padding=[(1, 1), (1, 1)], base=base
    )
    return [g.requantize(y, real(g, storage, typical_scale=0.3)), y]


# Drawn at random


UNARY = ("negate", "abs", "tanh", "logistic", "sign", "floor", "ceil", "exponential", "cosine")
BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "add", "multiply")


@family(*((seed,) for seed in range(40)))
def random_graph(g: Graph, seed: int) -> Values:
    """Twelve operations on values of one storage type, each on the results of earlier ones."""
    draw = np.random.default_rng(seed)
    storage = str(draw.choice(["i8", "u8", "i8", "i4", "u4", "i16", "i8", "u8"]))
    shape = (int(draw.integers(1, 5)), int(draw.integers(2, 9)))
    square = (shape[1], shape[1])
    scale = 16 / 2 ** int(storage[1:])
    values = [g.argument(real(g, storage, typical_scale=scale), shape) for _ in range(2)]
    w = g.argument(channels(g, storage, 1, shape[1], 0.5), square)
    assert all(name in FUNCTIONS for name in (*UNARY, *BINARY))

    def pick() -> Value:
        return values[int(draw.integers(max(0, len(values) - 4), len(values)))]

    def target() -> Quantized:
        return real(g, storage, typical_scale=scale * float(draw.choice([0.5, 1, 3])))

    for _ in range(12):
        x, y = pick(), pick()
        kind = int(draw.integers(0, 10))
        if kind <= 2:
            values.append(g.apply(str(draw.choice(BINARY)), [x, y], target()))
        elif kind == 3:
            values.append(g.apply(str(draw.choice(UNARY)), [x], target()))
        elif kind == 4:
            values.append(g.requantize(x, target()))
        elif kind == 5:
            values.append(g.dot(x, w, ([1], [0]), target()))
        elif kind == 6:
            other = g.requantize(y, x.element)
            values.append(g.select(g.compare("LT", x, y), x, other, x.element))
        elif kind == 7:
            values.append(g.reverse(x, [int(draw.integers(0, 2))]))
        elif kind == 8:
            values.append(g.broadcast(g.requantize(total_of(g, x, [0]), target()), shape, [1]))
        else:
            half = g.dequantize(x, str(draw.choice(["quant", "stablehlo"])))
            values.append(g.quantize(half, target(), str(draw.choice(["quant", "stablehlo"]))))
    return values[-3:]
