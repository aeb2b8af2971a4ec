"""Operators of TensorFlow Lite with random parameters: each a part of a graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np

from tflite_builder import Graph, Quantized, packed

Rng = np.random.Generator

Ends: TypeAlias = "tuple[list[int], list[int]]"
"""The inputs and outputs of a part of a graph."""

Case = Callable[[Graph, Rng], Ends]


def one_case(case: Case, rng: Rng) -> bytes:
    """A model of one case."""
    graph = Graph()
    return graph.model(*case(graph, rng))


def quantized(rng: Rng, dtype: str) -> Quantized:
    """A scale, and a zero point that the type admits."""
    zero_point = 0 if dtype == "int16" else int(rng.integers(np.iinfo(dtype).min,
                                                             np.iinfo(dtype).max + 1))  # fmt: skip
    return Quantized(float(np.exp(rng.uniform(-6, 0))), zero_point)


def fitting(rng: Rng, dtype: str, product: float, length: int) -> Quantized:
    """Parameters of a result for which accumulators neither vanish nor saturate."""
    parameters = quantized(rng, dtype)
    span = float(np.iinfo(dtype).max)
    parameters.scales = float(product * 100 * np.sqrt(length) * rng.uniform(50, 200) / span)
    return parameters


def add_weights(
    graph: Graph, rng: Rng, shape: tuple[int, ...], dtype: str, axis: int, share: float = 0.7
) -> tuple[int, float]:
    """A constant tensor of weights, and its greatest scale; `share` of them have several."""
    if dtype == "float32":
        data = rng.normal(size=shape).astype(np.float32)
        return graph.tensor(shape, dtype, None, data), 1.0
    if dtype == "uint8":
        parameters = Quantized(float(np.exp(rng.uniform(-8, -4))), int(rng.integers(0, 256)))
        data = rng.integers(0, 256, shape).astype(np.uint8)
        return graph.tensor(shape, dtype, parameters, data), float(parameters.scales)  # type: ignore[arg-type]
    bits = int(dtype[3:])
    count = shape[axis] if rng.random() < share and shape[axis] > 1 else 1
    scales = np.exp(rng.uniform(-8, -4, count)) * 2 ** (8 - bits)
    least = -(1 << (bits - 1)) + (bits == 8)
    data = rng.integers(least, 1 << (bits - 1), shape).astype(np.int8)
    stored = data if bits == 8 else packed(data, bits)
    name = None if bits == 8 else dtype.upper()
    tensor = graph.tensor(
        shape, "int8", Quantized(scales.tolist(), 0, axis), stored, type_name=name
    )
    return tensor, float(scales.max())


def add_bias(
    graph: Graph, rng: Rng, x: Quantized | None, weights: int, count: int, dtype: str
) -> int:
    """A constant bias in units of products of operands and weights."""
    if dtype == "float32":
        return graph.tensor((count,), dtype, None, rng.normal(size=count).astype(np.float32))
    wide = "int64" if dtype == "int16" else "int32"
    assert x is not None
    scales = (graph.scales(weights) * float(x.scales)).tolist()  # type: ignore[arg-type]
    values = rng.integers(-4000, 4000, count).astype(wide)
    return graph.tensor((count,), wide, Quantized(scales, 0, 0), values)


def end_parameters(
    rng: Rng, dtype: str, scale: float, length: int
) -> tuple[Quantized | None, Quantized | None]:
    """The parameters of an operand and of the result; none of floats."""
    if dtype == "float32":
        return None, None
    x = quantized(rng, dtype)
    return x, fitting(rng, dtype, float(x.scales) * scale, length)  # type: ignore[arg-type]


def convolution(
    graph: Graph, rng: Rng, dtype: str = "int8", weights: str = "int8", *, depthwise: bool = False
) -> Ends:
    height, width, channels = (int(n) for n in rng.integers(5, 12, 3))
    kernel, multiplier = [int(n) for n in rng.integers(1, 4, 2)], int(rng.integers(1, 3))
    features = channels * multiplier if depthwise else int(rng.integers(1, 9))
    shape = (1, *kernel, features) if depthwise else (features, *kernel, channels)
    # Of float images, LiteRT wants a scale of depthwise weights for each channel.
    share = 1.0 if depthwise and dtype == "float32" else 0.7
    filters, scale = add_weights(graph, rng, shape, weights, 3 if depthwise else 0, share)
    length = math.prod(kernel) * (1 if depthwise else channels)
    x, y = end_parameters(rng, dtype, scale, length)
    images = graph.tensor((2, height, width, channels), dtype, x)
    bias = add_bias(graph, rng, x, filters, features, dtype)  # which LiteRT requires
    padding, (sh, sw) = int(rng.integers(0, 2)), rng.integers(1, 3, 2)
    dh, dw = rng.integers(1, 3, 2) if sh == sw == 1 else (1, 1)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, (dh, dw), strict=True)]
    extents = [
        -(-n // s) if padding == 0 else -(-(n - span + 1) // s)
        for n, s, span in zip((height, width), (sh, sw), spans, strict=True)
    ]
    result = graph.tensor((2, *extents, features), dtype, y)
    extra = {"depthMultiplier": multiplier} if depthwise else {}
    return [images], graph.operator(
        "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D", [images, filters, bias], [result],
        "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions", padding=padding,
        strideH=int(sh), strideW=int(sw), dilationHFactor=int(dh), dilationWFactor=int(dw),
        fusedActivationFunction=int(rng.integers(0, 4)), **extra,
    )  # fmt: skip


def fully_connected(graph: Graph, rng: Rng, dtype: str = "int8", weights: str = "int8") -> Ends:
    rows, depth, features = (int(n) for n in rng.integers(2, 40, 3))
    matrix, scale = add_weights(graph, rng, (features, depth), weights, 0)
    x, y = end_parameters(rng, dtype, scale, depth)
    operand = graph.tensor((rows, depth), dtype, x)
    bias = -1
    if rng.random() < 0.7:
        bias = add_bias(graph, rng, x, matrix, features, dtype)
    result = graph.tensor((rows, features), dtype, y)
    return [operand], graph.operator(
        "FULLY_CONNECTED", [operand, matrix, bias], [result], "FullyConnectedOptions",
        fusedActivationFunction=int(rng.integers(0, 4)),
        asymmetricQuantizeInputs=bool(rng.integers(0, 2)),
    )  # fmt: skip


def elementwise(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    shape = (2, 3, 5, 7)
    other = tuple(1 if rng.random() < 0.3 else n for n in shape)
    left = graph.tensor(shape, dtype, quantized(rng, dtype))
    right = graph.tensor(other, dtype, quantized(rng, dtype))
    scales = [float(graph.scale(t)) for t in (left, right)]
    target = quantized(rng, dtype)
    span = 1.0 if name != "MUL" else float(np.iinfo(dtype).max) / 4
    target.scales = float(max(scales) * rng.uniform(0.7, 3) if name != "MUL" else
                          scales[0] * scales[1] * span * rng.uniform(0.7, 3))  # fmt: skip
    result = graph.tensor(shape, dtype, target)
    options = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions"}[name]
    return [left, right], graph.operator(
        name, [left, right], [result], options, fusedActivationFunction=int(rng.integers(0, 4)),
        **({} if name == "MUL" else {"potScaleInt16": False}),
    )  # fmt: skip


def added(graph: Graph, rng: Rng, name: str) -> Ends:
    """16 bits with scales that are powers of two, of which one is that of the result."""
    shape = (2, 3, 7)
    exponent, shift = -int(rng.integers(8, 15)), int(rng.integers(0, 5))
    exponents = [exponent, exponent - shift] if rng.random() < 0.5 else [exponent - shift, exponent]
    sides = [(shape, "int16", Quantized(2.0**e)) for e in exponents]
    return graph.apply(
        name, sides, [(shape, "int16", Quantized(2.0**exponent))], f"{name.capitalize()}Options",
        fusedActivationFunction=int(rng.integers(0, 4)), potScaleInt16=True,
    )  # fmt: skip


def joined(graph: Graph, rng: Rng, dtype: str) -> Ends:
    axis = int(rng.integers(0, 3))
    count, extents = int(rng.integers(2, 5)), [2, 3, 5]
    target = None if dtype == "float32" else quantized(rng, dtype)
    inputs = []
    total = 0
    for _ in range(count):
        shape = [int(rng.integers(1, 5)) if a == axis else n for a, n in enumerate(extents)]
        total += shape[axis]
        parameters = target
        if dtype == "uint8" and target is not None and rng.random() < 0.7:
            scale = float(target.scales) * float(rng.uniform(0.3, 2))  # type: ignore[arg-type]
            parameters = Quantized(scale, int(rng.integers(0, 256)))
        inputs.append(graph.tensor(shape, dtype, parameters))
    extents[axis] = total
    result = graph.tensor(extents, dtype, target)
    return inputs, graph.operator(
        "CONCATENATION", inputs, [result], "ConcatenationOptions",
        axis=axis - 3 if rng.random() < 0.5 else axis,
    )  # fmt: skip


def unary(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    source = quantized(rng, dtype)
    source.scales = float(rng.uniform(0.01, 0.2))
    signed = dtype == "int8"
    targets = {
        "SOFTMAX": Quantized(1 / 256, -128 if signed else 0),
        "LOGISTIC": Quantized(1 / 256, -128 if signed else 0),
        "TANH": Quantized(1 / 128, 0 if signed else 128),
    }
    target = targets.get(name, Quantized(float(source.scales) * float(rng.uniform(0.5, 2)),
                                         source.zero_points))  # fmt: skip
    return function(graph, rng, name, ((3, 50), dtype, source), ((3, 50), dtype, target))


def short_function(graph: Graph, rng: Rng, name: str) -> Ends:
    """16 bits; half of the cases have scales that are powers of two."""
    scale = 2.0 ** -int(rng.integers(9, 14)) if rng.random() < 0.5 else float(
        np.exp(rng.uniform(-10, -6)))  # fmt: skip
    ends = (((3, 70), "int16", Quantized(each)) for each in (scale, 2.0**-15))
    return function(graph, rng, name, *ends)


def function(graph: Graph, rng: Rng, name: str, operand: object, result: object) -> Ends:
    options = ("SoftmaxOptions",) if name == "SOFTMAX" else ()
    fields = {"beta": float(rng.uniform(0.5, 2))} if options else {}
    return graph.apply(name, [operand], [result], *options, **fields)


def pooling(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    parameters = None if dtype == "float32" else quantized(rng, dtype)
    height, width = map(int, rng.integers(4, 10, 2))
    sizes, strides = rng.integers(1, 4, 2), rng.integers(1, 3, 2)
    padding = int(rng.integers(0, 2))
    images = graph.tensor((2, height, width, 3), dtype, parameters)
    extents = [
        -(-n // s) if padding == 0 else -(-(n - k + 1) // s)
        for n, k, s in zip((height, width), sizes, strides, strict=True)
    ]
    result = graph.tensor((2, *extents, 3), dtype, parameters)
    return [images], graph.operator(
        name, [images], [result], "Pool2DOptions", padding=padding,
        strideH=int(strides[0]), strideW=int(strides[1]), filterHeight=int(sizes[0]),
        filterWidth=int(sizes[1]), fusedActivationFunction=int(rng.integers(0, 4)),
    )  # fmt: skip


def mean(graph: Graph, rng: Rng, dtype: str) -> Ends:
    operand = ((2, 5, 6, 3), dtype, quantized(rng, dtype))
    axes = sorted(rng.choice(4, int(rng.integers(1, 4)), replace=False).tolist())
    keep = bool(rng.integers(0, 2))
    shape = [1 if a in axes else n for a, n in enumerate(operand[0]) if keep or a not in axes]
    result = (shape, dtype, quantized(rng, dtype))
    return graph.apply("MEAN", [operand, axes], [result], "ReducerOptions", keepDims=keep)


def requantize(graph: Graph, rng: Rng, source: str, target: str) -> Ends:
    parameters = None if source == "float32" else quantized(rng, source)
    target_parameters = quantized(rng, target)
    if parameters is None:
        target_parameters.scales = float(rng.uniform(0.005, 0.05))
    else:
        span = np.iinfo(source).max / np.iinfo(target).max
        target_parameters.scales = float(parameters.scales) * float(rng.uniform(0.5, 2)) * span  # type: ignore[arg-type]
    result = ((4, 33), target, target_parameters)
    return graph.apply("QUANTIZE", [((4, 33), source, parameters)], [result])


CASES: dict[str, Case] = {
    **{f"CONV_2D-{t}": partial(convolution, dtype=t) for t in ("int8", "int16")},
    **{f"DEPTHWISE_CONV_2D-{t}": partial(convolution, dtype=t, depthwise=True)
       for t in ("int8", "int16")},
    **{f"FULLY_CONNECTED-{t}": partial(fully_connected, dtype=t) for t in ("int8", "int16")},
    **{f"{n}-{t}": partial(elementwise, name=n, dtype=t)
       for n in ("ADD", "SUB", "MUL") for t in ("int8", "uint8", "int16")},
    **{f"{n}-{t}": partial(unary, name=n, dtype=t)
       for n in ("SOFTMAX", "LOGISTIC", "TANH", "RELU", "RELU6") for t in ("int8", "uint8")},
    **{f"{n}-powers-int16": partial(added, name=n) for n in ("ADD", "SUB")},
    **{f"{n}-int16": partial(short_function, name=n) for n in ("SOFTMAX", "LOGISTIC", "TANH")},
    **{f"CONCATENATION-{t}": partial(joined, dtype=t) for t in ("int8", "uint8", "float32")},
    **{f"{n}-{t}": partial(pooling, name=n, dtype=t)
       for n in ("AVERAGE_POOL_2D", "MAX_POOL_2D") for t in ("int8", "uint8", "int16")},
    **{f"{n}-float32": partial(pooling, name=n, dtype="float32")
       for n in ("L2_POOL_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D")},
    **{f"MEAN-{t}": partial(mean, dtype=t) for t in ("int8", "uint8", "int16")},
    **{f"QUANTIZE-{a}-{b}": partial(requantize, source=a, target=b)
       for a, b in (("float32", "int8"), ("float32", "uint8"), ("float32", "int16"),
                    ("int8", "int8"), ("int8", "uint8"), ("uint8", "int8"), ("int16", "int8"),
                    ("int8", "int16"), ("int16", "int16"))},
}  # fmt: skip
