"""Functions of elements, choices and reductions of TensorFlow Lite, with random parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tflite_builder import Graph, Quantized
from tflite_cases import Case, Ends, Rng, quantized

SHAPE = (2, 3, 5, 4)
FIXED = {"LOG_SOFTMAX": 1 / 16, "L2_NORMALIZATION": 1 / 128}
"""The scales of results that may have no other."""

QUANTIZED = ("int8", "uint8", "int16")


def unary(graph: Graph, rng: Rng, name: str, dtype: str, target: str = "", **options: Any) -> Ends:
    """``positive`` operands are magnitudes, or integers with the least zero point."""
    x = quantized(rng, dtype) if dtype in QUANTIZED else None
    y = quantized(rng, dtype) if dtype in QUANTIZED else None
    positive = name in ("LOG", "SQRT", "RSQRT")
    if x is not None and y is not None:
        x.scales = float(rng.uniform(0.01, 0.1)) * (1 if dtype != "int16" else 1 / 256)
        y.scales = float(rng.uniform(0.5, 2)) * x.scales
        if name == "NEG":
            x.zero_points = 0
            y = x
        if positive and dtype != "int16":
            x.zero_points = int(np.iinfo(dtype).min)
        if name == "RSQRT":
            y.scales = float(rng.uniform(0.02, 0.2)) * (1 if dtype != "int16" else 1 / 256)
        if name in FIXED:
            y = Quantized(FIXED[name], {"int8": (127, 0), "uint8": (255, 128)}[dtype]
                          [name == "L2_NORMALIZATION"])  # fmt: skip
    operand = graph.tensor(SHAPE, dtype, x)
    argument = operand
    if positive and dtype in ("float32", "int16"):
        argument = graph.tensor(SHAPE, dtype, x)
        graph.operator("ABS", [operand], [argument])
    result = graph.tensor(SHAPE, target or dtype, y)
    table = options.pop("table", None)
    return [operand], graph.operator(name, [argument], [result], table, **options)


def _slopes(dtype: str) -> str:
    return "int8" if dtype == "int16" else dtype


def prelu(graph: Graph, rng: Rng, dtype: str) -> Ends:
    if dtype == "float32":
        x, a, y = None, None, None
        data = rng.normal(size=(1, 1, 4)).astype(np.float32)
    else:
        x, a, y = (quantized(rng, t) for t in (dtype, _slopes(dtype), dtype))
        y.scales = float(x.scales) * float(rng.uniform(0.5, 2))  # type: ignore[arg-type]
        a.scales = float(rng.uniform(0.005, 0.02))
        info = np.iinfo(_slopes(dtype))
        data = rng.integers(info.min, info.max + 1, (1, 1, 4)).astype(info.dtype)
    slopes = ((1, 1, 4), _slopes(dtype), a, data)
    return graph.apply("PRELU", [(SHAPE, dtype, x), slopes], [(SHAPE, dtype, y)])


def binary(graph: Graph, rng: Rng, name: str, dtype: str, target: str = "") -> Ends:
    other = tuple(1 if rng.random() < 0.3 else n for n in SHAPE)
    if name in (*_STABLEHLO, "ATAN2"):  # they do not broadcast
        other = SHAPE
    x = y = z = None
    if dtype in QUANTIZED and name not in ("BITWISE_XOR", "RIGHT_SHIFT"):
        x = quantized(rng, dtype)
        same = name in ("MAXIMUM", "MINIMUM")
        y = x if same else quantized(rng, dtype)
        y.scales = float(x.scales) * (1 if same else float(rng.uniform(0.7, 1.4)))  # type: ignore[arg-type]
        z = x
        if name == "SQUARED_DIFFERENCE":
            z = quantized(rng, dtype)
            z.scales = float(x.scales) ** 2 * 100  # type: ignore[arg-type]
    inputs = [graph.tensor(SHAPE, dtype, x)]
    sides = list(inputs)
    if name == "DIV" and x is not None and z is not None:
        # A factor of 64 and more: LiteRT shifts small quotients by more than 31 bits else.
        z = quantized(rng, dtype)
        z.scales = float(x.scales) / float(y.scales) / float(rng.uniform(64, 1000))  # type: ignore[union-attr,arg-type]
        info, zero_point = np.iinfo(dtype), int(y.zero_points)  # type: ignore[union-attr,arg-type]
        data = rng.integers(info.min, int(info.max) + 1, other).astype(dtype)
        data = np.where(data == zero_point, data ^ 1, data)
        sides.append(graph.tensor(other, dtype, y, data))
    elif name in ("FLOOR_DIV", "FLOOR_MOD", "DIV") or name == "POW":
        data = (rng.integers(1, 9, other) * rng.choice([-1, 1], other)).astype(dtype)
        if name == "POW":
            sides = [graph.tensor(SHAPE, dtype)]
            graph.operator("ABS", inputs, sides)
            data = rng.uniform(-2, 2, other).astype(dtype)
            if dtype == "int32":  # results that fit
                data = rng.integers(0, 5, other).astype(dtype)
                most = graph.tensor((1,), dtype, None, np.array([30], np.int32))
                whole, sides = sides, [graph.tensor(SHAPE, dtype)]
                graph.operator("FLOOR_MOD", [*whole, most], sides)
        sides.append(graph.tensor(other, dtype, None, data))
    else:
        inputs.append(graph.tensor(other, dtype, y))
        sides = list(inputs)
    result = graph.tensor(SHAPE, target or dtype, None if target else z)
    options = {"DIV": "DivOptions"}.get(name)
    return inputs, graph.operator(name, sides, [result], options)


def select(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    shape = {0: SHAPE, 1: (2,), 2: (1, 3, 1, 4)}[
        int(rng.integers(0, 2)) * (2 if "V2" in name else 1)
    ]
    tensor = (SHAPE, dtype, quantized(rng, dtype) if dtype in QUANTIZED else None)
    return graph.apply(name, [(shape, "bool"), tensor, tensor], [tensor])


def add_n(graph: Graph, rng: Rng, dtype: str) -> Ends:
    tensor = (SHAPE, dtype)
    return graph.apply("ADD_N", [tensor] * int(rng.integers(2, 5)), [tensor])


def reduction(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    x = quantized(rng, dtype) if dtype in QUANTIZED else None
    y = x
    if x is not None and name == "REDUCE_PROD":
        x.scales = float(rng.uniform(0.5, 2)) * 2.0 ** (-6 if dtype == "int8" else -14)
        y = quantized(rng, dtype)
        y.scales = float(x.scales) * float(rng.uniform(0.5, 2))
    if x is not None and name == "SUM":
        y = quantized(rng, dtype)
        y.scales = float(x.scales) * float(rng.uniform(1, 5))  # type: ignore[arg-type]
    axes = rng.choice(4, int(rng.integers(1, 4)), replace=False).tolist()
    axes = [axis - 4 if rng.random() < 0.3 else axis for axis in axes]
    keep = bool(rng.integers(0, 2))
    gone = {axis % 4 for axis in axes}
    shape = [1 if a in gone else n for a, n in enumerate(SHAPE) if keep or a not in gone]
    ends = [(SHAPE, dtype, x), axes], [(shape, dtype, y)]
    return graph.apply(name, *ends, "ReducerOptions", keepDims=keep)


def arg(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    axis = int(rng.integers(0, 4))
    operand = (SHAPE, dtype, quantized(rng, dtype) if dtype in QUANTIZED else None)
    shape = [n for a, n in enumerate(SHAPE) if a != axis]
    wide = bool(rng.integers(0, 2))
    table = {"ARG_MAX": "ArgMaxOptions", "ARG_MIN": "ArgMinOptions"}[name]
    ends = [operand, np.array(axis, np.int32)], [(shape, "int64" if wide else "int32")]
    return graph.apply(name, *ends, table, outputType=4 if wide else 2)


def cumsum(graph: Graph, rng: Rng, dtype: str) -> Ends:
    axis = np.array(rng.integers(0, 4), np.int32)
    return graph.apply("CUMSUM", [(SHAPE, dtype), axis], [(SHAPE, dtype)], "CumsumOptions",
                       exclusive=bool(rng.integers(0, 2)),
                       reverse=bool(rng.integers(0, 2)))  # fmt: skip


_UNARY: dict[str, tuple[str, ...]] = {
    "ABS": ("float32", "int8", "int16", "int32"),
    "NEG": ("float32", "int8", "int16", "int32", "int64"),
    "SQUARE": ("float32",), "SIN": ("float32",), "COS": ("float32",), "FLOOR": ("float32",),
    "CEIL": ("float32",), "ROUND": ("float32",),
    "SQRT": ("float32", "int8", "int16"),
    "RSQRT": ("float32", "int8", "int16"),
    "EXP": ("float32", "int8", "int16"),
    "LOG": ("float32", "int8", "int16"),
    "ELU": ("float32", "int8"),
    "HARD_SWISH": ("float32", "int8", "uint8"),
    "RELU": ("float32", "int16"), "RELU6": ("float32", "int16"),
    "RELU_N1_TO_1": ("float32", "int8"),
    "RELU_0_TO_1": ("float32", "int8", "uint8"),
    "LOGISTIC": ("float32",), "TANH": ("float32",),
    "LOGICAL_NOT": ("bool",),
    "SIGN": ("float32", "int32"),
}  # fmt: skip
_BINARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("MAXIMUM", "MINIMUM"), ("float32", "int8", "uint8", "int16", "int32")),
    **dict.fromkeys(("FLOOR_DIV", "FLOOR_MOD"), ("float32", "int32")),
    "DIV": ("float32", "int32", *QUANTIZED),
    "POW": ("float32", "int32"),
    "ATAN2": ("float32",),
    "BITWISE_XOR": ("int8", "uint8", "int16", "int32"),
    "RIGHT_SHIFT": ("int8", "uint8", "int16", "int32"),
    "SQUARED_DIFFERENCE": ("float32", "int32", "int8"),
}
_STABLEHLO = ("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")
_COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")

CASES: dict[str, Case] = {
    **{f"{n}-{t}": partial(unary, name=n, dtype=t) for n, types in _UNARY.items() for t in types},
    **{f"SOFTMAX-{t}": partial(unary, name="SOFTMAX", dtype=t, table="SoftmaxOptions", beta=1.0)
       for t in ("float32",)},
    **{f"LOG_SOFTMAX-{t}": partial(unary, name="LOG_SOFTMAX", dtype=t)
       for t in ("float32", "int8", "uint8")},
    **{f"L2_NORMALIZATION-{t}": partial(unary, name="L2_NORMALIZATION", dtype=t,
                                        table="L2NormOptions")
       for t in ("float32", "int8", "uint8")},
    **{f"LOCAL_RESPONSE_NORMALIZATION-{t}": partial(
        unary, name="LOCAL_RESPONSE_NORMALIZATION", dtype=t,
        table="LocalResponseNormalizationOptions", radius=2, bias=1.5, alpha=0.7, beta=0.6)
       for t in ("float32",)},
    **{f"LEAKY_RELU-{a}-{t}": partial(unary, name="LEAKY_RELU", dtype=t, table="LeakyReluOptions",
                                      alpha=a)
       for t in ("float32", *QUANTIZED) for a in (0.2, -0.3)},
    **{f"GELU-{a}-{t}": partial(unary, name="GELU", dtype=t, table="GeluOptions", approximate=a)
       for t in ("float32", *QUANTIZED) for a in (False, True)},
    **{f"CAST-{a}-{b}": partial(unary, name="CAST", dtype=a, target=b)
       for a, b in (("int32", "float32"), ("float32", "int32"), ("bool", "int32"),
                    ("int32", "bool"), ("int64", "int32"), ("int32", "int64"))},
    **{f"FAKE_QUANT-{bits}-float32": partial(
        unary, name="FAKE_QUANT", dtype="float32", table="FakeQuantOptions", min=-1.3, max=1.7,
        numBits=bits) for bits in (4, 8)},
    **{f"BUCKETIZE-{t}": partial(unary, name="BUCKETIZE", dtype=t, target="int32",
                                 table="BucketizeOptions", boundaries=[-1.0, -0.25, 0.0, 0.5, 2.0])
       for t in ("float32", "int32")},
    **{f"PRELU-{t}": partial(prelu, dtype=t) for t in ("float32", *QUANTIZED)},
    **{f"{n}-{t}": partial(binary, name=n, dtype=t) for n, types in _BINARY.items() for t in types},
    **{f"{n}-{t}": partial(binary, name=n, dtype=t, target="bool")
       for n in _COMPARISONS for t in ("float32", "int32", "int8", "uint8")},
    **{f"{n}-{t}": partial(binary, name=n, dtype=t)
       for n in _STABLEHLO for t in ("float32", "int32")},
    **{f"{n}-bool": partial(binary, name=n, dtype="bool")
       for n in ("LOGICAL_AND", "LOGICAL_OR", "EQUAL", "NOT_EQUAL")},
    **{f"{n}-{t}": partial(select, name=n, dtype=t)
       for n in ("SELECT", "SELECT_V2") for t in ("float32", "int8", "int32")},
    **{f"ADD_N-{t}": partial(add_n, dtype=t) for t in ("float32", "int32")},
    **{f"SUM-{t}": partial(reduction, name="SUM", dtype=t)
       for t in ("float32", "int32", *QUANTIZED)},
    **{f"{n}-{t}": partial(reduction, name=n, dtype=t)
       for n in ("REDUCE_MAX", "REDUCE_MIN") for t in ("float32", "int32", *QUANTIZED)},
    **{f"REDUCE_PROD-{t}": partial(reduction, name="REDUCE_PROD", dtype=t)
       for t in ("float32", "int32", "int8", "int16")},
    **{f"{n}-bool": partial(reduction, name=n, dtype="bool")
       for n in ("REDUCE_ANY", "REDUCE_ALL")},
    **{f"{n}-{t}": partial(arg, name=n, dtype=t)
       for n in ("ARG_MAX", "ARG_MIN") for t in ("float32", "int8", "uint8", "int32")},
    **{f"CUMSUM-{t}": partial(cumsum, dtype=t) for t in ("float32", "int32")},
}  # fmt: skip
