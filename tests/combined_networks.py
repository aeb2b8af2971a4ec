"""Networks: convolutions, transformers and weights in blocks.

`tests/combined_programs.py` defines families.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from combined_graph import Graph
from combined_programs import channels, family, like, product, real
from combined_values import Quantized, Value, Values

# Convolutional networks

LAYOUTS = {"nhwc": ("b01f", "01io", 3), "nchw": ("bf01", "oi01", 1), "mixed": ("b0f1", "i0o1", 2)}


def image(layout: str, batch: int, height: int, width: int, features: int) -> tuple[int, ...]:
    sizes = {"b": batch, "0": height, "1": width, "f": features}
    return tuple(sizes[c] for c in LAYOUTS[layout][0])


def kernel(layout: str, height: int, width: int, i: int, o: int) -> tuple[int, ...]:
    return tuple({"i": i, "0": height, "1": width, "o": o}[c] for c in LAYOUTS[layout][1])


def layer(
    g: Graph,
    x: Value,
    layout: str,
    size: int,
    outputs: int,
    element: Quantized,
    *,
    constant: bool = False,
    groups: int = 1,
    weight_zero: bool = False,
    relu: bool = True,
    **options: Any,
) -> Value:
    """Convolution with a per-axis weight, i32 bias, requantization, clamp at zero."""
    names, kernels, axis = LAYOUTS[layout]
    features = x.shape[axis]
    weights = channels(g, x.element.storage, kernels.index("o"), outputs, 0.02, weight_zero)
    w = g.weight(weights, kernel(layout, size, size, features // groups, outputs), constant)
    wide = replace(product(x.element, weights, axis), axis=axis)
    y = g.convolution(x, w, wide, layout=names, kernel=kernels, groups=groups, **options)
    bias = g.weight(replace(wide, axis=0), (outputs,), constant)
    y = g.apply("add", [y, g.broadcast(bias, y.shape, [axis])], wide)
    y = g.requantize(y, element)
    if relu:
        zero = g.constant(element, np.int64(element.zeros))
        y = g.clamp(zero, y, g.constant(element, np.int64(element.range[1] - 3)), element)
    return y


@family(
    ("nhwc", "i8", 1, 1, 1, False, False),
    ("nhwc", "i8", 2, 1, 1, True, False),
    ("nchw", "i8", 1, 2, 1, False, True),
    ("nchw", "u8", 2, 1, 2, False, True),
    ("mixed", "i8", 1, 1, 2, True, False),
    ("nhwc", "u8", 1, 2, 4, True, True),
    ("nchw", "i4", 1, 1, 1, True, False),
    ("nhwc", "i4", 2, 1, 2, False, False),
    ("nchw", "i16", 1, 1, 1, False, False),
    ("mixed", "u4", 1, 2, 1, True, True),
    ("nhwc", "u2", 1, 1, 1, False, False),
    ("nchw", "i2", 1, 1, 1, False, False),
    ("nhwc", "u4", 2, 2, 1, False, True),
    ("mixed", "u16", 1, 1, 4, True, False),
)
def residual_block(
    g: Graph,
    layout: str,
    storage: str,
    stride: int,
    dilation: int,
    groups: int,
    constant: bool,
    weight_zero: bool,
) -> Values:
    """Two convolutions, the second beside a shortcut, which is one of 1x1 where the stride is 2."""
    x = g.argument(real(g, storage), image(layout, 2, 8, 7, 8))
    options = {"constant": constant, "weight_zero": weight_zero}
    middle, last, out = (real(g, storage, typical_scale=s) for s in (0.2, 0.3, 0.25))
    pad = [(dilation, dilation)] * 2
    y = layer(
        g, x, layout, 3, 8, middle, groups=groups, padding=pad, strides=(stride, stride),
        dilation=(dilation, dilation), **options,
    )  # fmt: skip
    y = layer(g, y, layout, 3, 8, last, padding=[(1, 1)] * 2, relu=False, **options)
    short = x
    if stride > 1:
        short = layer(g, x, layout, 1, 8, last, strides=(stride, stride), relu=False, **options)
    y = g.apply("add", [y, short], out)
    zero = g.constant(out, np.int64(out.zeros))
    return [g.apply("maximum", [y, g.broadcast(zero, y.shape, [])], out)]


@family(
    ("nhwc", "i8", 1, 1, True),
    ("nchw", "i8", 2, 2, False),
    ("nhwc", "u8", 1, 3, False),
    ("nchw", "u8", 2, 1, True),
    ("mixed", "i8", 1, 2, True),
    ("nhwc", "i4", 1, 1, False),
    ("nchw", "i16", 2, 1, False),
)
def inverted_bottleneck(
    g: Graph, layout: str, storage: str, multiplier: int, stride: int, constant: bool
) -> Values:
    """1x1, depthwise 3x3 (several outputs a channel), 1x1, and a second result from the middle."""
    x = g.argument(real(g, storage), image(layout, 1, 7, 9, 4))
    a, b, c = (real(g, storage, typical_scale=s) for s in (0.1, 0.2, 0.3))
    y = layer(g, x, layout, 1, 6, a, constant=constant)
    y = layer(
        g, y, layout, 3, 6 * multiplier, b, groups=6, constant=constant,
        padding=[(0, 2), (1, 1)], strides=(stride, stride),
    )  # fmt: skip
    return [layer(g, y, layout, 1, 5, c, constant=constant, relu=False), y]


@family(
    ("nhwc", "i8", 2, 1, 1),
    ("nchw", "i8", 2, 1, 1),
    ("nhwc", "u8", 2, 2, 1),
    ("nchw", "u8", 3, 1, 1),
    ("nhwc", "i8", 2, 1, 2),
    ("mixed", "i8", 2, 2, 1),
    ("nhwc", "i4", 2, 1, 1),
    ("nchw", "i16", 2, 1, 1),
)
def decoder(g: Graph, layout: str, storage: str, up: int, groups: int, dilation: int) -> Values:
    """Two transposed convolutions of one shape, concatenated with an upsampled shortcut."""
    axis = LAYOUTS[layout][2]
    shape = image(layout, 1, 4, 5, 4)
    x, y = g.argument(real(g, storage), shape), g.argument(real(g, storage), shape)
    out = real(g, storage, typical_scale=0.2)
    reach = 2 * dilation
    options = {
        "base": (up, up), "padding": [(reach, reach)] * 2, "groups": groups,
        "dilation": (dilation, dilation), "relu": False,
    }  # fmt: skip
    first = layer(g, x, layout, 3, 6, out, weight_zero=True, **options)
    second = layer(g, y, layout, 3, 6, out, reversal=(True, False), **options)
    both = g.concatenate([first, second], axis)
    last = layer(g, both, layout, 1, 3, real(g, storage, typical_scale=0.4), relu=False)
    return [last, g.apply("add", [first, second], like(out, 1.5))]


@family(("nhwc", "i8"), ("nchw", "i8"), ("nhwc", "u8"), ("nchw", "u8"), ("mixed", "i8"))
def unet(g: Graph, layout: str, storage: str) -> Values:
    """Down by a strided convolution and a pooling, up by two dilated inputs, skips concatenated."""
    axis = LAYOUTS[layout][2]
    x = g.argument(real(g, storage), image(layout, 1, 8, 8, 3))
    one, two = (real(g, storage, typical_scale=s) for s in (0.1, 0.2))
    a = layer(g, x, layout, 3, 4, one, padding=[(1, 1)] * 2)
    window = [1 if d in (LAYOUTS[layout][0].index("b"), axis) else 2 for d in range(4)]
    low = g.constant(one, np.int64(one.range[0]))
    b = g.reduce_window("maximum", a, low, one, window, window, [(0, 0)] * 4)
    c = layer(g, b, layout, 3, 4, two, padding=[(1, 1)] * 2)
    up = layer(
        g, c, layout, 2, 4, one, base=(2, 2), padding=[(1, 1)] * 2, relu=False, weight_zero=True
    )
    repeated = layer(g, b, layout, 2, 4, one, base=(2, 2), padding=[(1, 1)] * 2, relu=False)
    joined = g.concatenate([a, up, repeated], axis)
    return [layer(g, joined, layout, 3, 2, two, padding=[(1, 1)] * 2, relu=False), c]


@family(("i8", 2, 1), ("u8", 1, 2), ("i8", 1, 3), ("i16", 2, 2))
def batch_groups(g: Graph, storage: str, groups: int, stride: int) -> Values:
    """The gradient of a convolution's weight: batch groups, then a sum."""
    x = g.argument(real(g, storage), (4, 6, 6, 3))
    w = g.argument(channels(g, storage, 3, 4, 0.02, True), (3, 3, 3, 4))
    out = channels(g, storage, 3, 4, 0.3)
    y = g.convolution(
        x, w, out, batch_groups=groups, strides=(stride, stride), padding=[(1, 0), (0, 2)]
    )
    final = real(g, storage, typical_scale=0.5)
    z = g.requantize(y, final)
    wide = replace(final, storage="i32", limits=None)
    return [g.reduce("add", z, g.constant(final, np.int64(final.zeros)), [1, 2], wide), z]


# Transformers


def softmax(g: Graph, scores: Value) -> Value:
    """Along the last axis, in f32."""
    last = len(scores.shape) - 1
    keep = list(range(last))
    low = g.constant("f32", np.float64(-1e30))
    top = g.broadcast(g.reduce("maximum", scores, low, [last], "f32"), scores.shape, keep)
    weights = g.apply("exponential", [g.apply("subtract", [scores, top], "f32")], "f32")
    zero = g.constant("f32", np.float64(0))
    total = g.broadcast(g.reduce("add", weights, zero, [last], "f32"), scores.shape, keep)
    return g.apply("divide", [weights, total], "f32")


@family(
    ("i8", 2, 4, 8, "quant", False),
    ("u8", 2, 5, 8, "stablehlo", False),
    ("i8", 3, 3, 5, "stablehlo", True),
    ("i4", 2, 4, 8, "quant", False),
    ("i16", 1, 4, 4, "quant", True),
    ("u8", 1, 6, 16, "quant", True),
    ("u4", 2, 3, 8, "stablehlo", False),
)
def attention(
    g: Graph, storage: str, heads: int, length: int, width: int, dialect: str, mask: bool
) -> Values:
    """Quantized queries, keys and values; the softmax between them in f32."""
    shape = (heads, length, width)
    q = g.argument(real(g, storage, typical_scale=0.1), shape)
    # The specification wants a right operand of a dot_general without a zero point.
    k, v = (g.argument(real(g, storage, zero=False, typical_scale=0.1), shape) for _ in range(2))
    scores_type = real(g, "i16" if storage == "i16" else storage, typical_scale=0.3)
    scores = g.dot(q, k, ([2], [2]), scores_type, ([0], [0]))
    reals = g.dequantize(scores, dialect)
    if mask:
        far = g.broadcast(g.constant("f32", np.float64(-64)), reals.shape, [])
        reals = g.select(g.argument("i1", reals.shape), reals, far, "f32")
    low, _ = scores.element.range
    probability = Quantized(storage, 2.0 ** -(v.element.bits - 1), low)
    weights = g.quantize(softmax(g, reals), probability, dialect)
    out = g.dot(weights, v, ([2], [1]), real(g, storage, typical_scale=0.2), ([0], [0]))
    return [g.reshape(g.transpose(out, [1, 0, 2]), (length, heads * width)), weights]


@family(
    ("i8", 4, 8, False), ("u8", 3, 8, True), ("i8", 5, 16, True), ("i4", 4, 8, False),
)  # fmt: skip
def projections(g: Graph, storage: str, length: int, width: int, constant: bool) -> Values:
    """One fused projection to queries, keys and values, sliced, reshaped to heads, contracted."""
    x = g.argument(real(g, storage), (length, width))
    w = g.weight(channels(g, storage, 1, 3 * width, 0.02), (width, 3 * width), constant)
    fused = g.dot(x, w, ([1], [0]), real(g, storage, zero=False, typical_scale=0.2))
    pieces = [
        g.reshape(
            g.slice(fused, [0, at * width], [length, (at + 1) * width]), (length, 2, width // 2)
        )
        for at in range(3)
    ]
    scores = g.dot(
        pieces[0], pieces[1], ([2], [2]), real(g, storage, typical_scale=0.5), ([1], [1])
    )
    out = g.dot(scores, pieces[2], ([2], [0]), real(g, storage, typical_scale=2.0), ([0], [1]))
    return [out, scores]


def blocks(
    g: Graph, storage: str, shape: tuple[int, int], sizes: tuple[int, int], zero: bool
) -> Quantized:
    """A sub-channel type over both axes, or one of them where a size is 0."""
    named = tuple((axis, size) for axis, size in enumerate(sizes) if size)
    counts = tuple(n // size if size else 1 for n, size in zip(shape, sizes, strict=True))
    scales = np.float32(0.05 * g.rng.uniform(0.5, 2, counts)).astype(np.float64)
    element = Quantized(storage, scales, blocks=named)
    low, high = element.range
    zeros = g.rng.integers(low, high + 1, counts) if zero else np.zeros(counts, int)
    return replace(element, zeros=zeros)


@family(
    *(
        (storage, sizes, zero, constant, dynamic)
        for at, storage in enumerate(("i4", "u4", "i2", "i6", "i8", "u8", "u2", "i3", "i5", "u6"))
        for sizes, zero, constant, dynamic in (
            ((8, 1), at % 2 == 0, at % 3 == 0, False),
            ((16, 4), at % 2 == 1, at % 3 == 1, at % 2 == 0),
            ((0, 2) if at % 2 else (4, 0), True, at % 3 == 2, True),
        )
    )
)
def mlp(
    g: Graph, storage: str, sizes: tuple[int, int], zero: bool, constant: bool, dynamic: bool
) -> Values:
    """Two layers with weights in blocks, biases, a clamp between, and a quantized result."""
    x = g.argument("f32", (3, 16), [0] if dynamic else [])
    up = g.weight(blocks(g, storage, (16, 32), sizes, zero), (16, 32), constant)
    down = g.weight(blocks(g, storage, (32, 8), sizes, zero), (32, 8), constant)
    y = g.dot(x, g.dequantize(up), ([1], [0]), "f32")
    if not dynamic:
        y = g.apply("add", [y, g.broadcast(g.argument("f32", (32,)), y.shape, [1])], "f32")
    floor, top = g.constant("f32", np.float64(0)), g.constant("f32", np.float64(6))
    y = g.clamp(floor, y, top, "f32")
    return [g.dot(y, g.dequantize(down), ([1], [0]), "f32"), y]


@family(
    ("i8", "i4", (8, 1)), ("u8", "u4", (16, 4)), ("i8", "i8", (4, 2)), ("i16", "i6", (8, 0)),
)  # fmt: skip
def quantized_activations(g: Graph, storage: str, weight: str, sizes: tuple[int, int]) -> Values:
    """Activations of 8 or 16 bits and weights in blocks, contracted as reals, quantized again."""
    x = g.argument(real(g, storage), (2, 16))
    w = g.argument(blocks(g, weight, (16, 8), sizes, True), (16, 8))
    y = g.dot(g.dequantize(x), g.dequantize(w), ([1], [0]), "f32")
    q = g.quantize(y, real(g, storage, typical_scale=0.1))
    back = g.argument(channels(g, storage, 1, 4, 0.02), (8, 4))
    return [g.dot(q, back, ([1], [0]), channels(g, storage, 1, 4, 0.2)), q]


@family(
    ("i4", 2, False, False), ("i4", 4, True, True), ("u4", 2, True, False), ("i8", 2, False, True),
    ("i6", 4, True, True), ("i2", 2, False, True), ("u2", 4, True, False), ("i3", 2, True, True),
)  # fmt: skip
def super_blocks(g: Graph, storage: str, inner: int, offsets: bool, zeros: bool) -> Values:
    """Weights whose scales (and offsets) are quantized in blocks too, contracted."""
    element = Quantized(storage, 1.0, plain=True)
    scale_element = Quantized("i8", 1.0, plain=True)
    size = 8
    rows, depth = 6, 32
    shape = (rows, depth // size)
    w = g.argument(element, (rows, depth))

    def nested() -> Value:
        q = g.argument(scale_element, shape)
        d = g.argument("f32", (rows, depth // size // inner), spread=0.05)
        return g.dequantize_by(q, d, [1, inner])

    scales = nested()
    points = g.argument(element, shape) if zeros else None
    real_weight = g.dequantize_by(w, scales, [1, size], points, nested() if offsets else None)
    return [g.dot(g.argument("f32", (3, depth)), real_weight, ([1], [1]), "f32"), real_weight]
