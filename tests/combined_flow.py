"""Reductions, control flow, movement and state around contractions.

`tests/combined_programs.py` defines families.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from combined_graph import Graph
from combined_programs import channels, family, like, product, real, total_of
from combined_values import Quantized, Value, Values

# Reductions


@family(
    ("i8", "i32", 1.0, False),
    ("u8", "i32", 1.0, True),
    ("i8", "i16", 1.0, False),
    ("u8", "i32", 0.5, True),
    ("i4", "i16", 2.0, True),
    ("i16", "i32", 1.0, False),
)
def centered(g: Graph, storage: str, wide: str, ratio: float, rfc: bool) -> Values:
    """Minus the mean over an axis, accumulated in a wider type, then per axis, then contracted."""
    x = g.argument(real(g, storage), (3, 5, 10))
    zero = g.argument_of(x.element, np.int64(x.element.zeros))
    accumulators = like(Quantized(wide, x.element.scales), ratio, 0)
    if rfc:
        total = g.reduce("add", x, zero, [2], accumulators, like(x.element, 12.0))
    else:
        total = g.reduce("add", x, zero, [2], accumulators)
        total = g.requantize(total, like(x.element, 11.0))
    element = Quantized(storage, 2.0**-6, 0)
    tenth = g.constant(element, np.int64(min(6, element.range[1])))
    mean = g.apply("multiply", [total, g.broadcast(tenth, total.shape, [])], like(x.element, 1.5))
    y = g.apply("subtract", [x, g.broadcast(mean, x.shape, [0, 1])], like(x.element, 2.0))
    per_axis = g.requantize(y, channels(g, storage, 1, 5, 0.2, True))
    w = g.argument(replace(x.element, zeros=0, scales=0.125), (10, 4))
    return [per_axis, g.dot(y, w, ([2], [0]), like(x.element, 30.0)), total]


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
) -> Values:
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
    total = g.reduce_window("add", x, zero, Quantized("i32", element.scales, 0), **options)
    mean = g.requantize(total, like(element, float(np.prod(window)) * 0.7))
    least = g.reduce("minimum", mean, g.constant(mean.element, np.int64(element.range[1])), [1, 2],
                     mean.element)  # fmt: skip
    above = g.compare("GE", mean, g.broadcast(least, mean.shape, [0, 3]))
    less = g.compare("LT", greatest, mean)
    return [g.select(less, g.requantize(mean, element), greatest, element), mean, above]


@family(("i8", False), ("u8", True), ("i16", False))
def selected(g: Graph, storage: str, scalar: bool) -> Values:
    """A selection between types with scales of their own, to a third one."""
    x, y = (g.argument(real(g, storage), (4, 6)) for _ in range(2))
    z = g.select(g.argument("i1", () if scalar else (4, 6)), x, y, real(g, storage))
    return [g.apply("add", [z, x], real(g, storage, typical_scale=0.1)), z]


@family(("i8", 8, 6), ("u8", 3, 16), ("i16", 5, 5), ("i4", 4, 8), ("i8", 16, 33))
def squeeze_excite(g: Graph, storage: str, batch: int, features: int) -> Values:
    """A mean over space, two layers, a sigmoid, and a product with the input."""
    x = g.argument(real(g, storage), (batch, 4, 4, features))
    mean = g.requantize(total_of(g, x, [1, 2]), real(g, storage, typical_scale=0.4))
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


def gates(g: Graph, x: Value, h: Value, c: Value, w: Value, u: Value, wide: Quantized) -> Values:
    """One step of an LSTM whose gates are one contraction each of input and state."""
    n = h.shape[1]
    storage = x.element.storage
    a = g.dot(x, w, ([1], [0]), wide)
    z = g.apply("add", [a, g.dot(h, u, ([1], [0]), wide)], like(wide, 1.5))
    bits = Quantized(storage, 1.0).bits
    unit = Quantized(storage, 2.0 ** -(bits - 1), Quantized(storage, 1.0).range[0])
    signed = h.element
    pieces = [g.slice(z, [0, at * n], [z.shape[0], (at + 1) * n]) for at in range(4)]
    i, f, o = (g.apply("logistic", [pieces[at]], unit) for at in (0, 1, 2))
    t = g.apply("tanh", [pieces[3]], signed)
    # A product of two types: one requantization for each.
    retained = g.apply("multiply", [f, c], c.element)
    state = g.apply("add", [retained, g.apply("multiply", [i, t], c.element)], c.element)
    return g.apply("multiply", [o, g.apply("tanh", [state], signed)], signed), state


@family(
    ("i8", 2, 5, 4, True), ("i8", 1, 8, 3, False), ("i16", 2, 4, 2, True), ("u8", 3, 4, 3, True)
)
def lstm(g: Graph, storage: str, batch: int, n: int, steps: int, loop: bool) -> Values:
    """Steps of an LSTM, in a loop whose body slices its input, or unrolled through calls."""
    low, high = Quantized(storage, 1.0).range
    signed = Quantized(storage, 2.0 ** -(Quantized(storage, 1.0).bits - 1), (low + high + 1) // 2)
    cell = like(signed, 4.0)
    x = g.argument(real(g, storage), (steps, batch, n))
    h, c = g.argument(signed, (batch, n)), g.argument(cell, (batch, n))
    w = g.argument(channels(g, storage, 1, 4 * n, 0.02), (n, 4 * n))
    u = g.argument(channels(g, storage, 1, 4 * n, 0.02), (n, 4 * n))
    wide = like(signed, 8.0)
    if loop:
        outputs = g.argument(signed, (steps, batch, n))

        def body(g: Graph, i: Value, h: Value, c: Value, outputs: Value) -> Values:
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
def iterated(g: Graph, storage: str, n: int, steps: int) -> Values:
    """A loop of contraction, function and residual, which carries two types and an i32 sum."""
    x = g.argument(real(g, storage, zero=False), (n, n))
    y = g.argument(real(g, storage), (n, n))
    total = g.argument_of(Quantized("i32", y.element.scales, 0), np.zeros((n, n), np.int64))

    def body(g: Graph, _: Value, x: Value, y: Value, total: Value) -> Values:
        z = g.dot(y, x, ([1], [0]), like(y.element, 3.0))
        z = g.apply("tanh", [z], replace(y.element, scales=2.0 ** -(y.element.bits - 1)))
        z = g.apply("add", [z, y], y.element)
        total = g.apply("add", [total, g.requantize(z, total.element)], total.element)
        return [g.requantize(z, x.element), z, total]

    return g.loop([x, y, total], steps, body)


@family(
    ("i8", "i32", 0), ("i8", "i32", 1), ("u8", "i32", 7), ("i8", "i32", -1), ("u8", "i1", 1),
    ("i16", "i1", 0), ("i4", "i32", 2),
)  # fmt: skip
def branches(g: Graph, storage: str, kind: str, chosen: int) -> Values:
    """A case or if with quantized results, whose branches capture outer values."""
    x = g.argument(real(g, storage), (4, 6))
    w = g.argument(channels(g, storage, 1, 6, 0.05), (6, 6))
    out = real(g, storage, typical_scale=0.3)
    index = g.argument_of(kind, np.bool_(chosen) if kind == "i1" else np.int64(chosen))

    def contracted(g: Graph) -> Values:
        return [g.dot(x, w, ([1], [0]), out), g.requantize(x, x.element)]

    def negated(g: Graph) -> Values:
        return [g.requantize(g.reverse(x, [0]), out), g.apply("negate", [x], x.element)]

    def nested(g: Graph) -> Values:
        flag = g.compare("LT", g.reshape(g.slice(x, [0, 0], [1, 1]), ()),
                         g.reshape(g.slice(x, [3, 5], [4, 6]), ()))  # fmt: skip
        return g.case(flag, [contracted, negated])

    options = [contracted, negated] if kind == "i1" else [contracted, negated, nested]
    y, other = g.case(index, options)
    return [g.apply("add", [y, g.requantize(other, out)], like(out, 2.0)), y]


@family(("i8", 3), ("u8", 2), ("i4", 2), ("i16", 3))
def called(g: Graph, storage: str, depth: int) -> Values:
    """Functions that call functions, with quantized arguments and two results."""
    x = g.argument(real(g, storage), (3, 4))
    w = g.argument(channels(g, storage, 1, 4, 0.05), (4, 4))
    element = x.element

    def inner(g: Graph, x: Value, w: Value) -> Values:
        y = g.dot(x, w, ([1], [0]), element)
        return [y, g.apply("abs", [y], element)]

    def outer(g: Graph, x: Value, w: Value) -> Values:
        y, size = g.call("called_inner", inner, [x, w])
        z, _ = g.call("called_inner", inner, [size, w])
        return [g.apply("subtract", [y, z], element), size]

    size = x
    for _ in range(depth):
        x, size = g.call("called_outer", outer, [x, w])
    return [x, size]


# Movement


@family(("i8", 0), ("u8", 1), ("i8", 2), ("i16", 0), ("i4", 1), ("u4", 2))
def shuffled(g: Graph, storage: str, kind: int) -> Values:
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
        joined = g.concatenate([g.reverse(g.rows(y, at), [1]), g.rows(x, at)], 1)
        return [g.dot(joined, joined, ([1], [1]), like(element, 9.0)), joined]
    starts = [g.argument_of("i32", np.int64(4)), g.argument_of("i32", np.int64(-2))]
    part = g.transpose(g.dynamic_slice(y, starts, (3, 5)), [1, 0])
    whole = g.dynamic_update_slice(x, g.slice(part, [0, 0], [3, 3]), [starts[0], starts[0]])
    z = g.dot(g.pad(part, value, (0, 0), (3, 0), (0, 0)), whole, ([0], [1]), like(element, 4.0))
    return [z, whole]


@family(("i8", False), ("u8", False), ("i8", True), ("i4", False))
def cached_attention(g: Graph, storage: str, loop: bool) -> Values:
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

    def body(g: Graph, i: Value, cache: Value, seen: Value) -> Values:
        cache = g.dynamic_update_slice(cache, new, [i, g.constant("i32", np.int64(0))])
        return [cache, g.apply("add", [g.dot(query, cache, ([1], [1]), out), seen], out)]

    return g.loop([cache, g.argument(out, (2, 7))], 4, body)


@family(("i8", "i4", "u8"), ("u8", "i16", "i8"), ("i16", "i8", "u4"), ("i4", "u16", "i8"))
def mixed_storage(g: Graph, first: str, second: str, third: str) -> Values:
    """Three storage types in one function, requantized from one to the next, all results used."""
    a = g.argument(real(g, first, typical_scale=2.0 / 2 ** int(first[1:]) * 16), (3, 8))
    b = g.argument(channels(g, first, 1, 5, 0.1), (8, 5))
    accumulators = g.dot(a, b, ([1], [0]), replace(product(a.element, b.element, 1), axis=1))
    y = g.requantize(accumulators, real(g, second, typical_scale=64.0 / 2 ** int(second[1:])))
    w = g.argument(real(g, second, zero=False), (5, 4))
    z = g.dot(y, w, ([1], [0]), real(g, second, typical_scale=512.0 / 2 ** int(second[1:])))
    last = g.requantize(z, real(g, third, typical_scale=512.0 / 2 ** int(third[1:])))
    less = g.compare("LT", last, g.reverse(last, [0]))
    return [g.apply("minimum", [last, g.reverse(last, [1])], last.element), less, y, accumulators]


@family(("i8",), ("u8",), ("i16",))
def two_results(g: Graph, storage: str) -> Values:
    """One contraction that a float, a requantization and another contraction read."""
    x = g.argument(real(g, storage), (4, 6))
    w = g.argument(channels(g, storage, 1, 6, 0.05), (6, 6))
    y = g.dot(x, w, ([1], [0]), real(g, storage, zero=False, typical_scale=0.2))
    reals = g.dequantize(y, "stablehlo")
    other = g.requantize(y, channels(g, storage, 1, 6, 0.3, True))
    return [reals, other, g.dot(y, y, ([0], [0]), like(y.element, 5.0)), y]
