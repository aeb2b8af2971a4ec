"""Convolutions and matrix products of other types than int8 alone, with random parameters."""

from __future__ import annotations

from functools import partial

import numpy as np

from tflite_builder import Graph
from tflite_cases import (
    Case,
    Ends,
    Rng,
    add_bias,
    add_weights,
    convolution,
    end_parameters,
    fitting,
    fully_connected,
    quantized,
)


def batch_matmul(graph: Graph, rng: Rng, dtype: str, weights: str = "") -> Ends:
    batch, rows, depth, columns = (int(n) for n in rng.integers(1, 9, 4))
    swaps = [bool(n) for n in rng.integers(0, 2, 2)]
    left, right = (batch, rows, depth), (1 if rng.random() < 0.5 else batch, depth, columns)
    shapes = [
        (*shape[:-2], shape[-1], shape[-2]) if swap else shape
        for shape, swap in zip((left, right), swaps, strict=True)
    ]
    x, w = (None, None) if dtype == "float32" else (quantized(rng, dtype), quantized(rng, dtype))
    y = None
    if x is not None and w is not None:
        product = float(x.scales) * float(w.scales) / 100 * np.iinfo(dtype).max  # type: ignore[arg-type]
        y = fitting(rng, dtype, product, depth)
    sides = [graph.tensor(s, dtype, q) for s, q in zip(shapes, (x, w), strict=True)]
    inputs = list(sides)
    if weights:
        sides[1], _ = add_weights(graph, rng, shapes[1], weights, 0, 0.0)
        inputs = sides[:1]
    result = graph.tensor((batch, rows, columns), dtype, y)
    return inputs, graph.operator(
        "BATCH_MATMUL", sides, [result], "BatchMatMulOptions", adjX=swaps[0], adjY=swaps[1],
        asymmetricQuantizeInputs=bool(rng.integers(0, 2)),
    )  # fmt: skip


def transpose_conv(graph: Graph, rng: Rng, dtype: str, weights: str = "") -> Ends:
    height, width, channels, features = (int(n) for n in rng.integers(2, 7, 4))
    kh, kw, sh, sw = (int(n) for n in rng.integers(1, 4, 4))
    same = bool(rng.integers(0, 2))
    extents = [
        n * s if same else (n - 1) * s + max(k, s)
        for n, s, k in ((height, sh, kh), (width, sw, kw))
    ]
    weights = weights or (dtype if dtype in ("uint8", "float32") else "int8")
    filters, scale = add_weights(graph, rng, (features, kh, kw, channels), weights, 0)
    x, y = end_parameters(rng, dtype, scale, kh * kw * channels)
    images = graph.tensor((2, height, width, channels), dtype, x)
    shape = (2, *extents, features)
    result_shape = graph.constant(shape)
    result = graph.tensor(shape, dtype, y)
    inputs = [result_shape, filters, images]
    if rng.random() < 0.6:
        inputs.append(add_bias(graph, rng, x, filters, features, dtype))
    return [images], graph.operator(
        "TRANSPOSE_CONV", inputs, [result], "TransposeConvOptions", padding=0 if same else 1,
        strideH=sh, strideW=sw, fusedActivationFunction=int(rng.integers(0, 4)),
        version=4,
    )  # fmt: skip


def volume(graph: Graph, rng: Rng, *, transposed: bool) -> Ends:
    """A convolution along depth, height and width."""
    extents, sizes = rng.integers(3, 6, 3), rng.integers(1, 4, 3)
    channels, features = (int(n) for n in rng.integers(1, 4, 2))
    strides = rng.integers(1, 3, 3)
    same = bool(rng.integers(0, 2))
    options = {
        "padding": 0 if same else 1, "strideD": int(strides[0]), "strideH": int(strides[1]),
        "strideW": int(strides[2]), "dilationDFactor": 1, "dilationHFactor": 1,
        "dilationWFactor": 1, "fusedActivationFunction": int(rng.integers(0, 4)),
    }  # fmt: skip
    images = graph.tensor((2, *extents, channels), "float32")
    shape = (*sizes, *((features, channels) if transposed else (channels, features)))
    data = rng.normal(size=shape).astype(np.float32)
    inputs = [images, graph.tensor(shape, "float32", None, data)]
    if transposed:
        result_sizes = (
            extents * strides if same else (extents - 1) * strides + np.maximum(sizes, strides)
        )
        result_shape = np.array((2, *result_sizes, features), np.int32)
        inputs = [graph.tensor((5,), "int32", None, result_shape), inputs[1], images]
    else:
        result_sizes = -(-extents // strides) if same else -(-(extents - sizes + 1) // strides)
    if rng.random() < 0.6:
        inputs.append(add_bias(graph, rng, None, 0, features, "float32"))
    result = graph.tensor((2, *result_sizes, features), "float32")
    name = "CONV_3D_TRANSPOSE" if transposed else "CONV_3D"
    return [images], graph.operator(name, inputs, [result], "Conv3DOptions", **options)


CASES: dict[str, Case] = {
    **{
        f"{'DEPTHWISE_' if d else ''}CONV_2D-{dtype}-{weights}": partial(
            convolution, dtype=dtype, weights=weights, depthwise=d
        )
        for dtype, weights, d in (
            ("uint8", "uint8", False), ("int8", "int4", False), ("float32", "float32", False),
            ("uint8", "uint8", True), ("int8", "int4", True), ("float32", "float32", True),
        )
    },
    **{
        f"FULLY_CONNECTED-{dtype}-{weights}": partial(
            fully_connected, dtype=dtype, weights=weights
        )
        for dtype, weights in (
            ("uint8", "uint8"), ("int8", "int4"), ("int8", "int2"), ("int16", "int4"),
            ("float32", "float32"),
        )
    },
    "CONV_3D-float32": partial(volume, transposed=False),
    "CONV_3D_TRANSPOSE-float32": partial(volume, transposed=True),
    **{f"BATCH_MATMUL-{t}": partial(batch_matmul, dtype=t) for t in ("int8", "int16", "float32")},
    **{
        f"TRANSPOSE_CONV-{t}": partial(transpose_conv, dtype=t)
        for t in ("int8", "uint8", "int16", "float32")
    },
}  # fmt: skip

HYBRID: dict[str, Case] = {
    **{
        f"{'DEPTHWISE_' if d else ''}CONV_2D-float32-{weights}": partial(
            convolution, dtype="float32", weights=weights, depthwise=d
        )
        for weights, d in (("int8", False), ("int4", False), ("int8", True))
    },
    **{
        f"FULLY_CONNECTED-float32-{weights}": partial(
            fully_connected, dtype="float32", weights=weights
        )
        for weights in ("int8", "int4")
    },
    "BATCH_MATMUL-float32-int8": partial(batch_matmul, dtype="float32", weights="int8"),
    "TRANSPOSE_CONV-float32-int8": partial(transpose_conv, dtype="float32", weights="int8"),
}
"""Float operators with integer weights."""
