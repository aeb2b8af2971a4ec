"""Reductions, control flow, movement, state, casts and integer graphs around contractions.

`tests/combined_programs.py` defines families.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from combined_graph import FUNCTIONS, Graph, Quantized, Value, as_signed, convolve, window_positions
from combined_programs import channels, family, like, product, real

# Reductions


@family(
    ("i8", "i32", 1.0, False),
    ("u8", "i32", 1.0, True),
    ("i8", "i16", 1.0, False),
    ("u8", "i32", 0.5, True),
    ("i4", "i16", 2.0, True),
    ("i16", "i32", 1.0, False),
)
def centered(g: Graph, storage: str, wide: str, ratio: float, rfc: bool) -> Sequence[Value]:
    """Minus the mean over an axis, accumulated in a wider type, then per axis, then contracted."""
    x = g.argument(real(g, storage), (3, 5, 10))
    zero = g.argument_of(x.element, np.int64(x.element.zeros))
    accumulators = like(Quantized(wide, x.element.scales), ratio, 0)
    if rfc:
        total = g.reduce("add", x, zero, [2], accumulators, like(x.element, 12.0))
    else:
        total = g.reduce("add", x, zero, [2], accumulators)
        total = g.requantize(total, like(x.element, 11.0))
    tenth = g.constant(
        Quantized(storage, 2.0**-6, 0), np.int64(min(6, Quantized(storage, 1.0).range[1]))
    )
    mean = g.apply("multiply", [total, g.broadcast(tenth, total.shape, [])], like(x.element, 1.5))
    wide_mean = g.broadcast(mean, x.shape, [0, 1])
    y = g.apply("subtract", [x, wide_mean], like(x.element, 2.0))
    per_axis = g.requantize(y, channels(g, storage, 1, 5, 0.2, True))
    flat = replace(x.element, zeros=0, scales=0.125)
    w = g.argument(flat, (10, 4))
    z = g.dot(y, w, ([2], [0]), like(x.element, 30.0))
    return [per_axis, z, total]


@family(
    ("i8", (2, 2), (2, 2), (1, 1), 1),
    ("u8", (3, 3), (2, 1), (0, 2), 1),
    ("i8", (3, 2), (1, 1), (1, 0), 2),
    ("i16", (2, 3), (2, 2), (0, 0), 1),
    ("u4", (2, 2), (1, 2), (1, 1), 1),
    ("i8", (5, 5), (3, 3), (2, 2), 1),
)
def pooled(
    g: Graph,
    storage: str,
    window: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int],
    dilation: int,
) -> Sequence[Value]:
    """Pooling by maximum and by sums, compared, the greater or another scale's selected."""
    x = g.argument(real(g, storage), (1, 8, 9, 3))
    element = x.element
    options = {
        "window": (1, *window, 1), "strides": (1, *strides, 1),
        "padding": [(0, 0), padding, padding, (0, 0)], "dilation": (1, dilation, dilation, 1),
    }  # fmt: skip
    low = g.constant(element, np.int64(element.range[0]))
    greatest = g.reduce_window("maximum", x, low, element, **options)
    zero = g.constant(element, np.int64(element.zeros))
    accumulators = Quantized("i32", element.scales, 0)
    total = g.reduce_window("add", x, zero, accumulators, **options)
    mean = g.requantize(total, like(element, float(np.prod(window)) * 0.7))
    least = g.reduce("minimum", mean, g.constant(mean.element, np.int64(element.range[1])), [1, 2],
                     mean.element)  # fmt: skip
    above = g.compare("GE", mean, g.broadcast(least, mean.shape, [0, 3]))
    less = g.compare("LT", greatest, mean)
    chosen = g.select(less, g.requantize(mean, element), greatest, element)
    return [chosen, mean, above]


@family(("i8", False), ("u8", True), ("i16", False))
def selected(g: Graph, storage: str, scalar: bool) -> Sequence[Value]:
    """A selection between types with scales of their own, to a third one."""
    x, y = (g.argument(real(g, storage), (4, 6)) for _ in range(2))
    predicate = g.argument("i1", () if scalar else (4, 6))
    z = g.select(predicate, x, y, real(g, storage))
    return [g.apply("add", [z, x], real(g, storage, typical_scale=0.1)), z]


@family(("i8", 8, 6), ("u8", 3, 16), ("i16", 5, 5), ("i4", 4, 8), ("i8", 16, 33))
def squeeze_excite(g: Graph, storage: str, batch: int, features: int) -> Sequence[Value]:
    """A mean over space, two layers, a sigmoid, and a product with the input."""
    x = g.argument(real(g, storage), (batch, 4, 4, features))
    zero = g.argument_of(x.element, np.int64(x.element.zeros))
    total = g.reduce("add", x, zero, [1, 2], Quantized("i32", x.element.scales, 0))
    mean = g.requantize(total, real(g, storage, typical_scale=0.4))
    down = g.argument(channels(g, storage, 1, 4, 0.05), (features, 4))
    y = g.dot(mean, down, ([1], [0]), real(g, storage, typical_scale=0.5))
    bottom = g.constant(y.element, np.int64(y.element.zeros))
    y = g.apply("maximum", [y, g.broadcast(bottom, y.shape, [])], y.element)
    up = g.argument(channels(g, storage, 1, features, 0.05), (4, features))
    y = g.dot(y, up, ([1], [0]), real(g, storage, typical_scale=0.06))
    bits = y.element.bits
    gate = g.apply("logistic", [y], Quantized(storage, 2.0 ** -(bits - 1), y.element.range[0]))
    scaled = g.apply("multiply", [x, g.broadcast(gate, x.shape, [0, 3])], like(x.element, 0.9))
    return [scaled, gate]


# Recurrence and control flow


def gates(
    g: Graph, x: Value, h: Value, c: Value, w: Value, u: Value, wide: Quantized
) -> tuple[Value, Value]:
    """One step of an LSTM whose gates are one contraction each of input and state."""
    n = h.shape[1]
    storage = x.element.storage
    a = g.dot(x, w, ([1], [0]), wide)
    b = g.dot(h, u, ([1], [0]), wide)
    z = g.apply("add", [a, b], like(wide, 1.5))
    bits = Quantized(storage, 1.0).bits
    unit = Quantized(storage, 2.0 ** -(bits - 1), Quantized(storage, 1.0).range[0])
    signed = h.element
    pieces = [g.slice(z, [0, at * n], [z.shape[0], (at + 1) * n]) for at in range(4)]
    i, f, o = (g.apply("logistic", [pieces[at]], unit) for at in (0, 1, 2))
    t = g.apply("tanh", [pieces[3]], signed)
    # A product of two types: one requantization for each.
    retained = g.apply("multiply", [f, c], c.element)
    new = g.apply("multiply", [i, t], c.element)
    state = g.apply("add", [retained, new], c.element)
    out = g.apply("multiply", [o, g.apply("tanh", [state], signed)], signed)
    return out, state


@family(
    ("i8", 2, 5, 4, True), ("i8", 1, 8, 3, False), ("i16", 2, 4, 2, True), ("u8", 3, 4, 3, True)
)
def lstm(g: Graph, storage: str, batch: int, n: int, steps: int, loop: bool) -> Sequence[Value]:
    """Steps of an LSTM, in a loop whose body slices its input, or unrolled through calls."""
    low, high = Quantized(storage, 1.0).range
    bits = Quantized(storage, 1.0).bits
    signed = Quantized(storage, 2.0 ** -(bits - 1), (low + high + 1) // 2)
    cell = like(signed, 4.0)
    x = g.argument(real(g, storage), (steps, batch, n))
    h, c = g.argument(signed, (batch, n)), g.argument(cell, (batch, n))
    w = g.argument(channels(g, storage, 1, 4 * n, 0.02), (n, 4 * n))
    u = g.argument(channels(g, storage, 1, 4 * n, 0.02), (n, 4 * n))
    wide = like(signed, 8.0)
    if loop:
        outputs = g.argument(signed, (steps, batch, n))

        def body(g: Graph, i: Value, h: Value, c: Value, outputs: Value) -> Sequence[Value]:
            zero = g.constant("i32", np.int64(0))
            now = g.dynamic_slice(x, [i, zero, zero], (1, batch, n))
            h, c = gates(g, g.reshape(now, (batch, n)), h, c, w, u, wide)
            row = g.reshape(h, (1, batch, n))
            return [h, c, g.dynamic_update_slice(outputs, row, [i, zero, zero])]

        return g.loop([h, c, outputs], steps, body)
    for at in range(steps):
        now = g.reshape(g.slice(x, [at, 0, 0], [at + 1, batch, n]), (batch, n))
        h, c = g.call("lstm_cell", lambda g, *v: gates(g, *v, wide), [now, h, c, w, u])
    return [h, c]


@family(("i8", 4, 3), ("u8", 6, 5), ("i16", 3, 2), ("i4", 4, 4), ("i8", 1, 17))
def iterated(g: Graph, storage: str, n: int, steps: int) -> Sequence[Value]:
    """A loop of contraction, function and residual, which carries two types and an i32 sum."""
    x = g.argument(real(g, storage, zero=False), (n, n))
    y = g.argument(real(g, storage), (n, n))
    total = g.argument_of(Quantized("i32", y.element.scales, 0), np.zeros((n, n), np.int64))

    def body(g: Graph, _: Value, x: Value, y: Value, total: Value) -> Sequence[Value]:
        z = g.dot(y, x, ([1], [0]), like(y.element, 3.0))
        z = g.apply("tanh", [z], replace(y.element, scales=2.0 ** -(y.element.bits - 1)))
        z = g.apply("add", [z, y], y.element)
        wide = g.requantize(z, total.element)
        total = g.apply("add", [total, wide], total.element)
        return [g.requantize(z, x.element), z, total]

    return g.loop([x, y, total], steps, body)


@family(
    ("i8", "i32", 0), ("i8", "i32", 1), ("u8", "i32", 7), ("i8", "i32", -1), ("u8", "i1", 1),
    ("i16", "i1", 0), ("i4", "i32", 2),
)  # fmt: skip
def branches(g: Graph, storage: str, kind: str, chosen: int) -> Sequence[Value]:
    """A case or if with quantized results, whose branches capture outer values."""
    x = g.argument(real(g, storage), (4, 6))
    w = g.argument(channels(g, storage, 1, 6, 0.05), (6, 6))
    out = real(g, storage, typical_scale=0.3)
    index = g.argument_of(kind, np.bool_(chosen) if kind == "i1" else np.int64(chosen))

    def contracted(g: Graph) -> Sequence[Value]:
        y = g.dot(x, w, ([1], [0]), out)
        return [y, g.requantize(x, x.element)]

    def negated(g: Graph) -> Sequence[Value]:
        y = g.requantize(g.reverse(x, [0]), out)
        return [y, g.apply("negate", [x], x.element)]

    def nested(g: Graph) -> Sequence[Value]:
        flag = g.compare("LT", g.reshape(g.slice(x, [0, 0], [1, 1]), ()),
                         g.reshape(g.slice(x, [3, 5], [4, 6]), ()))  # fmt: skip
        return g.case(flag, [contracted, negated])

    options = [contracted, negated] if kind == "i1" else [contracted, negated, nested]
    y, other = g.case(index, options)
    return [g.apply("add", [y, g.requantize(other, out)], like(out, 2.0)), y]


@family(("i8", 3), ("u8", 2), ("i4", 2), ("i16", 3))
def called(g: Graph, storage: str, depth: int) -> Sequence[Value]:
    """Functions that call functions, with quantized arguments and two results."""
    x = g.argument(real(g, storage), (3, 4))
    w = g.argument(channels(g, storage, 1, 4, 0.05), (4, 4))
    element = x.element

    def inner(g: Graph, x: Value, w: Value) -> Sequence[Value]:
        y = g.dot(x, w, ([1], [0]), element)
        return [y, g.apply("abs", [y], element)]

    def outer(g: Graph, x: Value, w: Value) -> Sequence[Value]:
        y, size = g.call("called_inner", inner, [x, w])
        z, _ = g.call("called_inner", inner, [size, w])
        return [g.apply("subtract", [y, z], element), size]

    size = x
    for _ in range(depth):
        x, size = g.call("called_outer", outer, [x, w])
    return [x, size]


# Movement


@family(("i8", 0), ("u8", 1), ("i8", 2), ("i16", 0), ("i4", 1), ("u4", 2))
def shuffled(g: Graph, storage: str, kind: int) -> Sequence[Value]:
    """Slices, pads (negative and interior), concatenations and gathers between contractions."""
    element = real(g, storage, zero=False)
    x = g.argument(element, (6, 8))
    w = g.argument(channels(g, storage, 1, 8, 0.05), (8, 8))
    value = g.argument_of(element, np.int64(3))
    y = g.dot(x, w, ([1], [0]), element)
    if kind == 0:
        part = g.slice(y, [1, 0], [6, 8], [2, 3])
        part = g.pad(part, value, (1, 0), (0, -1), (1, 2))
        part = g.concatenate([part, g.slice(x, [0, 2], [3, 8])], 0)
        other = g.argument(channels(g, storage, 1, 5, 0.05), (6, 5))
        z = g.dot(part, other, ([1], [0]), like(element, 3.0))
        return [z, part]
    if kind == 1:
        at = g.argument_of("i32", np.array([[5], [0], [99], [-3], [2]]))
        picked = g.reverse(g.rows(y, at), [1])
        joined = g.concatenate([picked, g.rows(x, at)], 1)
        square = g.dot(joined, joined, ([1], [1]), like(element, 9.0))
        return [square, joined]
    starts = [g.argument_of("i32", np.int64(4)), g.argument_of("i32", np.int64(-2))]
    part = g.transpose(g.dynamic_slice(y, starts, (3, 5)), [1, 0])
    whole = g.dynamic_update_slice(x, g.slice(part, [0, 0], [3, 3]), [starts[0], starts[0]])
    longer = g.pad(part, value, (0, 0), (3, 0), (0, 0))
    z = g.dot(longer, whole, ([0], [1]), like(element, 4.0))
    return [z, whole]


@family(("i8", False), ("u8", False), ("i8", True), ("i4", False))
def cached_attention(g: Graph, storage: str, loop: bool) -> Sequence[Value]:
    """A cache of keys that is updated at a position, read as a whole, and given back."""
    element = real(g, storage, zero=False)
    cache = g.argument(element, (7, 6))
    position = g.argument_of("i32", np.int64(5))
    zero = g.constant("i32", np.int64(0))
    new = g.argument(element, (1, 6))
    query = g.argument(real(g, storage), (2, 6))
    out = like(element, 6.0)
    if not loop:
        cache = g.dynamic_update_slice(cache, new, [position, zero])
        return [g.dot(query, cache, ([1], [1]), out), cache]

    def body(g: Graph, i: Value, cache: Value, seen: Value) -> Sequence[Value]:
        zero = g.constant("i32", np.int64(0))
        cache = g.dynamic_update_slice(cache, new, [i, zero])
        scores = g.dot(query, cache, ([1], [1]), out)
        return [cache, g.apply("add", [scores, seen], out)]

    return g.loop([cache, g.argument(out, (2, 7))], 4, body)


@family(("i8", "i4", "u8"), ("u8", "i16", "i8"), ("i16", "i8", "u4"), ("i4", "u16", "i8"))
def mixed_storage(g: Graph, first: str, second: str, third: str) -> Sequence[Value]:
    """Three storage types in one function, requantized from one to the next, all results used."""
    a = g.argument(real(g, first, typical_scale=2.0 / 2 ** int(first[1:]) * 16), (3, 8))
    b = g.argument(channels(g, first, 1, 5, 0.1), (8, 5))
    wide = replace(product(a.element, b.element, 1), axis=1)
    accumulators = g.dot(a, b, ([1], [0]), wide)
    y = g.requantize(accumulators, real(g, second, typical_scale=64.0 / 2 ** int(second[1:])))
    w = g.argument(real(g, second, zero=False), (5, 4))
    z = g.dot(y, w, ([1], [0]), real(g, second, typical_scale=512.0 / 2 ** int(second[1:])))
    last = g.requantize(z, real(g, third, typical_scale=512.0 / 2 ** int(third[1:])))
    less = g.compare("LT", last, g.reverse(last, [0]))
    return [g.apply("minimum", [last, g.reverse(last, [1])], last.element), less, y, accumulators]


@family(("i8",), ("u8",), ("i16",))
def two_results(g: Graph, storage: str) -> Sequence[Value]:
    """One contraction that a float, a requantization and another contraction read."""
    x = g.argument(real(g, storage), (4, 6))
    w = g.argument(channels(g, storage, 1, 6, 0.05), (6, 6))
    y = g.dot(x, w, ([1], [0]), real(g, storage, zero=False, typical_scale=0.2))
    reals = g.dequantize(y, "stablehlo")
    other = g.requantize(y, channels(g, storage, 1, 6, 0.3, True))
    square = g.dot(y, y, ([0], [0]), like(y.element, 5.0))
    return [reals, other, square, y]


# Sizes and ranges


@family(
    ("i8", 1, 32768, 2), ("u8", 2, 33000, 3), ("i8", 3, 40001, 1), ("i16", 1, 32769, 2),
    ("u8", 1, 70000, 1), ("i8", 2, 66000, 2), ("i4", 2, 65536, 1),
)  # fmt: skip
def long_contraction(
    g: Graph, storage: str, rows: int, depth: int, columns: int
) -> Sequence[Value]:
    """Contractions of 32,768 and more, a zero point on the left, and the sum of the left."""
    x = g.argument(real(g, storage), (rows, depth))
    w = g.argument(channels(g, storage, 1, columns, 0.02), (depth, columns))
    typical_scale = 0.05 * 2 ** (8 if storage == "i16" else 0)
    y = g.dot(x, w, ([1], [0]), channels(g, storage, 1, columns, typical_scale * 60))
    zero = g.argument_of(x.element, np.int64(x.element.zeros))
    total = g.reduce("add", x, zero, [1], Quantized("i32", x.element.scales, 0))
    return [y, total]


@family(("i8", 1024, 300), ("u8", 2048, 64), ("i4", 512, 700), ("i8", 3, 2048))
def many_channels(g: Graph, storage: str, inputs: int, outputs: int) -> Sequence[Value]:
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
def extreme(
    g: Graph, storage: str, left: float, right: float, zeros: tuple[int, int]
) -> Sequence[Value]:
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
def narrow_range(
    g: Graph, storage: str, limits: tuple[int, int], expressed: str
) -> Sequence[Value]:
    """Narrower ranges through a contraction, additions and a function."""

    def narrow(typical_scale: float, zero: bool = True) -> Quantized:
        element = real(g, storage, zero, limits=limits, expressed=expressed)
        return replace(element, scales=float(np.float32(typical_scale)))

    x = g.argument(narrow(0.1), (4, 6))
    low, high = limits
    w_type = replace(narrow(0.05), zeros=0)
    if not low <= 0 <= high:
        w_type = replace(w_type, limits=(0, high))
    w = g.argument(w_type, (6, 6))
    y = g.dot(x, w, ([1], [0]), narrow(0.2))
    z = g.apply("add", [y, g.reverse(y, [1])], narrow(0.3))
    t = g.apply("tanh", [z], narrow(2.0 / (high - low)))
    return [y, z, t]


# Casts around floats


@family(
    ("i8", "quant", False), ("u8", "stablehlo", False), ("i4", "quant", True),
    ("i16", "quant", True), ("i6", "quant", False), ("u3", "quant", False),
    ("i5", "quant", True), ("u2", "quant", False),
)  # fmt: skip
def fake_quantized(g: Graph, storage: str, dialect: str, dynamic: bool) -> Sequence[Value]:
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
def rms_norm(g: Graph, storage: str, rows: int, width: int) -> Sequence[Value]:
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
    q = g.quantize(y, real(g, storage, typical_scale=8.0 / 2 ** int(storage[1:])))
    return [q, y]


@family(("i8",), ("u8",), ("i4",), ("i16",))
def dynamic_network(g: Graph, storage: str) -> Sequence[Value]:
    """A batch of unknown size through contractions, functions, reductions and comparisons."""
    x = g.argument(real(g, storage), (5, 8), [0])
    w = g.argument(channels(g, storage, 1, 8, 0.05), (8, 8))
    y = g.dot(x, w, ([1], [0]), real(g, storage, typical_scale=0.2))
    z = g.apply("add", [g.apply("tanh", [y], like(y.element, 0.3)), x], like(x.element, 2.0))
    z = g.apply("maximum", [z, y], like(y.element, 1.2))
    zero = g.argument_of(z.element, np.int64(z.element.zeros))
    total = g.reduce("add", z, zero, [1], Quantized("i32", z.element.scales, 0))
    least = g.reduce(
        "minimum", z, g.argument_of(z.element, np.int64(z.element.range[1])), [0], z.element
    )
    chosen = g.select(g.compare("GE", z, x), z, g.requantize(x, z.element), z.element)
    return [z, total, least, chosen, g.dequantize(z, "stablehlo")]


@family(("i8", "NHWC"), ("u8", "NHWC"), ("i4", "NHWC"), ("i8", "dilated"))
def dynamic_batch_convolution(g: Graph, storage: str, kind: str) -> Sequence[Value]:
    """A batch of unknown size through a padded convolution with a zero point."""
    x = g.argument(real(g, storage), (3, 6, 5, 4), [0])
    w = g.argument(channels(g, storage, 3, 4, 0.05, True), (3, 3, 4, 4))
    base = (2, 2) if kind == "dilated" else (1, 1)
    y = g.convolution(
        x, w, channels(g, storage, 3, 4, 0.3, True), padding=[(1, 1), (1, 1)], base=base
    )
    return [g.requantize(y, real(g, storage, typical_scale=0.3)), y]


# TOSA


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
    columns = [
        scaled_32(
            difference[..., at] if len(factors) > 1 else difference,
            int(multiplier),
            int(shift),
            rounding == "DOUBLE_ROUND",
        )
        for at, (multiplier, shift) in enumerate(zip(multipliers, shifts, strict=True))
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
    total = convolve(
        real_x, real_w, (stride, stride), [(pad, pad)] * 2, (1, 1), (1, 1), 1, (False, False)
    )
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
def tosa_network(
    g: Graph, rounding: str, per_channel: bool, short: bool, stride: int
) -> Sequence[Value]:
    """Convolution, rescale, maximum, addition in i32 of two rescaled inputs, rescale, matmul."""
    i8 = Quantized("i8", 1.0, plain=True)
    x = g.argument(i8, (1, 5 + stride, 5 + stride, 3))
    w = g.argument(i8, (4, 3, 3, 3))
    bias = g.argument_of("i32", g.rng.integers(-3000, 3000, 4))
    acc = tosa_convolution(g, x, w, bias, (-7, 0), 1, stride)
    factors = g.rng.uniform(0.001, 0.01, 4 if per_channel else 1)
    y = rescaled(g, acc, "i8", factors, (0, -11), rounding)
    wide = [
        rescaled(g, v, "i32", np.array(f), (z, 0), rounding)
        for v, f, z in ((y, 900.7, -11), (y, 1234.5, 3))
    ]
    wide = [replace(v, element="i32") for v in wide]
    total = g.write("tosa.add", wide, "i32", wide[0].array + wide[1].array, pretty=True)
    z = rescaled(g, total, "u8", np.array(0.00037), (0, 131), rounding)
    back = rescaled(g, z, "i8", np.array(0.8), (131, 5), rounding, not short)
    n = back.shape[1]
    shape = constant_shape(g, (1, n * n, 4))
    flat = g.write(
        "tosa.reshape", [back, shape], back.element, back.array.reshape(1, n * n, 4), pretty=True
    )
    other = g.argument(i8, (1, 4, 5))
    points = [constant(g, "i8", np.array([v])) for v in (5, -2)]
    product_ = (flat.array - 5) @ (other.array + 2)
    scores = g.write("tosa.matmul", [flat, other, *points], "i32", product_, pretty=True)
    last = rescaled(g, scores, "i16", np.array(0.75), (0, 0), "SINGLE_ROUND")
    return [last, z, y]


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
def tosa_pooling(g: Graph, size: int, stride: int, pad: int) -> Sequence[Value]:
    """Pooling by average and maximum of rescaled values, a table, and their concatenation."""
    i8 = Quantized("i8", 1.0, plain=True)
    x = g.argument(i8, (1, 7, 7, 2)) if size > 2 else g.argument(i8, (1, 6, 6, 2))
    y = rescaled(g, x, "i8", np.array(0.7), (-3, 9), "DOUBLE_ROUND")
    options = ((1, size, size, 1), (1, stride, stride, 1), [(0, 0), (pad, pad), (pad, pad), (0, 0)])
    ones = (1, 1, 1, 1)
    greatest = window_positions(y.array, *options, ones, ones, -128).max(-1).astype(np.int64)
    attributes = (
        f"kernel = array<i64: {size}, {size}>, pad = array<i64: {pad}, {pad}, {pad}, {pad}>, "
        f"stride = array<i64: {stride}, {stride}>"
    )
    a = g.write("tosa.max_pool2d", [y], y.element, greatest, attributes, pretty=True)
    total = window_positions(y.array - 9, *options, ones, ones, 0).sum(-1).astype(np.int64)
    counts = window_positions(np.ones(y.shape), *options, ones, ones, 0).sum(-1).astype(np.int64)
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


# Drawn at random


UNARY = ("negate", "abs", "tanh", "logistic", "sign", "floor", "ceil", "exponential", "cosine")
BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "add", "multiply")


@family(*((seed,) for seed in range(40)))
def random_graph(g: Graph, seed: int) -> Sequence[Value]:
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
            zero = g.argument_of(x.element, np.int64(x.element.zeros))
            wide = Quantized("i32", x.element.scales, 0)
            total = g.requantize(g.reduce("add", x, zero, [0], wide), target())
            values.append(g.broadcast(total, shape, [1]))
        else:
            half = g.dequantize(x, str(draw.choice(["quant", "stablehlo"])))
            values.append(g.quantize(half, target(), str(draw.choice(["quant", "stablehlo"]))))
    return values[-3:]
