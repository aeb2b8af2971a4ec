"""Each operator of TensorFlow Lite beside LiteRT's reference kernel, with random parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from litert import LiteRt, compare, drawn
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.options import CompileOptions
from subquant.compiler.reading import read_module
from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.formats.tflite import read_tflite
from subquant.frontends.tflite import Interpreter
from subquant.runtime import Device, Executable
from tflite_builder import Graph, Quantized

Rng = np.random.Generator
Make = Callable[[Rng], bytes]

SEEDS = 4


def quantized(rng: Rng, dtype: str) -> Quantized:
    """A scale, and a zero point that the type admits."""
    zero_point = 0 if dtype == "int16" else int(rng.integers(np.iinfo(dtype).min,
                                                             np.iinfo(dtype).max + 1))  # fmt: skip
    return Quantized(float(np.exp(rng.uniform(-6, 0))), zero_point)


def weights(rng: Rng, shape: tuple[int, ...], axis: int | None) -> tuple[np.ndarray, Quantized]:  # type: ignore[type-arg]
    """Symmetric int8 weights with one scale, or one for each index of an axis."""
    count = 1 if axis is None else shape[axis]
    scales = np.exp(rng.uniform(-8, -4, count)).tolist()
    return rng.integers(-127, 128, shape).astype(np.int8), Quantized(scales, 0, axis or 0)


def fitting(rng: Rng, dtype: str, product: float, length: int) -> Quantized:
    """Parameters of a result, such that sums of products neither vanish nor saturate."""
    found = quantized(rng, dtype)
    span = float(np.iinfo(dtype).max)
    found.scales = float(product * 100 * np.sqrt(length) * rng.uniform(50, 200) / span)
    return found


def convolution(rng: Rng, dtype: str = "int8", *, depthwise: bool = False) -> bytes:
    graph = Graph()
    height, width, channels = rng.integers(5, 12, 3)
    kernel = rng.integers(1, 4, 2)
    multiplier = int(rng.integers(1, 3))
    features = int(channels) * multiplier if depthwise else int(rng.integers(1, 9))
    x = quantized(rng, dtype)
    images = graph.tensor((2, height, width, channels), dtype, x)
    shape = (1, *kernel, features) if depthwise else (features, *kernel, channels)
    axis = 3 if depthwise else 0
    data, w = weights(rng, tuple(map(int, shape)), axis if rng.random() < 0.7 else None)
    filters = graph.tensor(shape, "int8", w, data)
    product = float(x.scales) * float(np.max(w.scales))  # type: ignore[arg-type]
    bias = -1
    if depthwise or rng.random() < 0.7:  # LiteRT wants a bias of depthwise ones
        wide = "int64" if dtype == "int16" else "int32"
        scales = (np.asarray(w.scales) * float(x.scales)).tolist()  # type: ignore[arg-type]
        values = rng.integers(-4000, 4000, features).astype(wide)
        bias = graph.tensor((features,), wide, Quantized(scales, 0, 0), values)
    padding, (sh, sw) = int(rng.integers(0, 2)), rng.integers(1, 3, 2)
    dh, dw = rng.integers(1, 3, 2) if sh == sw == 1 else (1, 1)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, (dh, dw), strict=True)]
    extents = [
        -(-n // s) if padding == 0 else -(-(n - span + 1) // s)
        for n, s, span in zip((height, width), (sh, sw), spans, strict=True)
    ]
    length = int(np.prod(kernel)) * (1 if depthwise else int(channels))
    result = graph.tensor((2, *extents, features), dtype, fitting(rng, dtype, product, length))
    extra = {"depthMultiplier": multiplier} if depthwise else {}
    graph.operator(
        "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D",
        [images, filters, bias],
        [result],
        "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions",
        padding=padding,
        strideH=int(sh),
        strideW=int(sw),
        dilationHFactor=int(dh),
        dilationWFactor=int(dw),
        fusedActivationFunction=int(rng.integers(0, 4)),
        **extra,
    )
    return graph.model([images], [result])


def fully_connected(rng: Rng, dtype: str = "int8") -> bytes:
    graph = Graph()
    rows, depth, features = map(int, rng.integers(1, 40, 3))
    x = quantized(rng, dtype)
    operand = graph.tensor((rows, depth), dtype, x)
    data, w = weights(rng, (features, depth), 0 if rng.random() < 0.5 and features > 1 else None)
    matrix = graph.tensor((features, depth), "int8", w, data)
    product = float(x.scales) * float(np.max(w.scales))  # type: ignore[arg-type]
    bias = -1
    if rng.random() < 0.7:
        wide = "int64" if dtype == "int16" else "int32"
        scales = (np.asarray(w.scales) * float(x.scales)).tolist()  # type: ignore[arg-type]
        values = rng.integers(-4000, 4000, features).astype(wide)
        bias = graph.tensor((features,), wide, Quantized(scales, 0, 0), values)
    result = graph.tensor((rows, features), dtype, fitting(rng, dtype, product, depth))
    graph.operator(
        "FULLY_CONNECTED",
        [operand, matrix, bias],
        [result],
        "FullyConnectedOptions",
        fusedActivationFunction=int(rng.integers(0, 4)),
    )
    return graph.model([operand], [result])


def elementwise(rng: Rng, name: str, dtype: str) -> bytes:
    graph = Graph()
    shape = (2, 3, 5, 7)
    other = tuple(1 if rng.random() < 0.3 else n for n in shape)
    left = graph.tensor(shape, dtype, quantized(rng, dtype))
    right = graph.tensor(other, dtype, quantized(rng, dtype))
    scales = [float(t.quantization.scale[0]) for t in graph._tensors]
    target = quantized(rng, dtype)
    span = 1.0 if name != "MUL" else float(np.iinfo(dtype).max) / 4
    target.scales = float(max(scales) * rng.uniform(0.7, 3) if name != "MUL" else
                          scales[0] * scales[1] * span * rng.uniform(0.7, 3))  # fmt: skip
    result = graph.tensor(shape, dtype, target)
    options = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions"}[name]
    graph.operator(
        name, [left, right], [result], options, fusedActivationFunction=int(rng.integers(0, 4)),
        **({} if name == "MUL" else {"potScaleInt16": False}),
    )  # fmt: skip
    return graph.model([left, right], [result])


def unary(rng: Rng, name: str, dtype: str) -> bytes:
    graph = Graph()
    source = quantized(rng, dtype)
    source.scales = float(rng.uniform(0.01, 0.2))
    operand = graph.tensor((3, 50), dtype, source)
    signed = dtype == "int8"
    targets = {
        "SOFTMAX": Quantized(1 / 256, -128 if signed else 0),
        "LOGISTIC": Quantized(1 / 256, -128 if signed else 0),
        "TANH": Quantized(1 / 128, 0 if signed else 128),
    }
    target = targets.get(name, Quantized(float(source.scales) * float(rng.uniform(0.5, 2)),
                                         source.zero_points))  # fmt: skip
    result = graph.tensor((3, 50), dtype, target)
    options = {"SOFTMAX": "SoftmaxOptions"}.get(name)
    values = {"beta": float(rng.uniform(0.5, 2))} if name == "SOFTMAX" else {}
    graph.operator(name, [operand], [result], options, **values)
    return graph.model([operand], [result])


def pooling(rng: Rng, name: str, dtype: str) -> bytes:
    graph = Graph()
    parameters = quantized(rng, dtype)
    height, width = map(int, rng.integers(4, 10, 2))
    sizes, strides = rng.integers(1, 4, 2), rng.integers(1, 3, 2)
    padding = int(rng.integers(0, 2))
    images = graph.tensor((2, height, width, 3), dtype, parameters)
    extents = [
        -(-n // s) if padding == 0 else -(-(n - k + 1) // s)
        for n, k, s in zip((height, width), sizes, strides, strict=True)
    ]
    result = graph.tensor((2, *extents, 3), dtype, parameters)
    graph.operator(
        name, [images], [result], "Pool2DOptions", padding=padding,
        strideH=int(strides[0]), strideW=int(strides[1]), filterHeight=int(sizes[0]),
        filterWidth=int(sizes[1]), fusedActivationFunction=int(rng.integers(0, 4)),
    )  # fmt: skip
    return graph.model([images], [result])


def mean(rng: Rng, dtype: str) -> bytes:
    graph = Graph()
    operand = graph.tensor((2, 5, 6, 3), dtype, quantized(rng, dtype))
    axes = sorted(rng.choice(4, int(rng.integers(1, 4)), replace=False).tolist())
    keep = bool(rng.integers(0, 2))
    shape = [1 if a in axes else n for a, n in enumerate((2, 5, 6, 3))]
    if not keep:
        shape = [n for a, n in enumerate((2, 5, 6, 3)) if a not in axes]
    positions = graph.tensor((len(axes),), "int32", None, np.array(axes, np.int32))
    result = graph.tensor(shape, dtype, quantized(rng, dtype))
    graph.operator("MEAN", [operand, positions], [result], "ReducerOptions", keepDims=keep)
    return graph.model([operand], [result])


def requantize(rng: Rng, source: str, target: str) -> bytes:
    graph = Graph()
    parameters = None if source == "float32" else quantized(rng, source)
    operand = graph.tensor((4, 33), source, parameters)
    wanted = quantized(rng, target)
    if parameters is None:
        wanted.scales = float(rng.uniform(0.005, 0.05))
    else:
        span = np.iinfo(source).max / np.iinfo(target).max
        wanted.scales = float(parameters.scales) * float(rng.uniform(0.5, 2)) * span  # type: ignore[arg-type]
    result = graph.tensor((4, 33), target, wanted)
    graph.operator("QUANTIZE", [operand], [result])
    return graph.model([operand], [result])


CASES: dict[str, Make] = {
    **{f"CONV_2D-{t}": lambda rng, t=t: convolution(rng, t) for t in ("int8", "int16")},
    **{f"DEPTHWISE_CONV_2D-{t}": lambda rng, t=t: convolution(rng, t, depthwise=True)
       for t in ("int8", "int16")},
    **{f"FULLY_CONNECTED-{t}": lambda rng, t=t: fully_connected(rng, t)
       for t in ("int8", "int16")},
    **{f"{n}-{t}": lambda rng, n=n, t=t: elementwise(rng, n, t)
       for n in ("ADD", "SUB", "MUL") for t in ("int8", "uint8", "int16")},
    **{f"{n}-{t}": lambda rng, n=n, t=t: unary(rng, n, t)
       for n in ("SOFTMAX", "LOGISTIC", "TANH", "RELU", "RELU6") for t in ("int8", "uint8")},
    **{f"{n}-{t}": lambda rng, n=n, t=t: pooling(rng, n, t)
       for n in ("AVERAGE_POOL_2D", "MAX_POOL_2D") for t in ("int8", "uint8", "int16")},
    **{f"MEAN-{t}": lambda rng, t=t: mean(rng, t) for t in ("int8", "uint8", "int16")},
    **{f"QUANTIZE-{a}-{b}": lambda rng, a=a, b=b: requantize(rng, a, b)
       for a, b in (("float32", "int8"), ("float32", "uint8"), ("float32", "int16"),
                    ("int8", "int8"), ("int8", "uint8"), ("uint8", "int8"), ("int16", "int8"),
                    ("int8", "int16"), ("int16", "int16"))},
}  # fmt: skip


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("case", CASES)
def test_numpy_computes_what_litert_does(case: str, seed: int) -> None:
    assert compare(CASES[case](np.random.default_rng(seed)), None, 3, seed=seed) > 0


@pytest.mark.parametrize("case", CASES)
def test_the_cpu_computes_what_litert_does(case: str, cpu: Device) -> None:
    assert compare(CASES[case](np.random.default_rng(0)), cpu, 3) > 0


@pytest.mark.vulkan
@pytest.mark.parametrize("case", [case for case in CASES if case.endswith("int8")])
def test_vulkan_computes_what_litert_does(case: str, vulkan: Device) -> None:
    assert compare(CASES[case](np.random.default_rng(0)), vulkan, 2) > 0


# -- what is refused ------------------------------------------------------------------------------


def one(name: str, **changes: object) -> bytes:
    graph = Graph()
    operand = graph.tensor((2, 3), "int8", Quantized(0.5, 3))
    result = graph.tensor((2, 3), "int8", Quantized(0.5, 3))
    graph.operator(name, [operand], [result])
    return graph.model([operand], [result])


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (one("LSH_PROJECTION"), UnsupportedError, "operator 0 (LSH_PROJECTION) is not lowered"),
        (one("ADD"), InputError, "operator 0 (ADD) has no input 1"),
        (
            one("RELU")[:200],
            InputError,
            "",
        ),
    ],
)
def test_refusals_name_the_operator(
    data: bytes, kind: type[SubquantError], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    with pytest.raises(kind) as caught:
        read_module(path)
    assert str(caught.value).startswith(f"{path}: error: {message}")


def test_damage_is_an_error_or_another_model() -> None:
    """Mutated bytes: our errors only."""
    rng = np.random.default_rng(0)
    whole = convolution(rng)
    read = refused = 0
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 6))):
            data[int(rng.integers(8, len(data)))] = int(rng.integers(0, 256))
        try:
            read_tflite(bytes(data))
            read += 1
        except SubquantError:
            refused += 1
    assert read > 100
    assert refused > 100


# -- exact semantics ------------------------------------------------------------------------------


def test_exact_semantics_round_the_real_result_once(cpu: Device) -> None:
    """Beside int64 sums and one product in f64, half to even: LiteRT's multiplier is 31 bits."""
    rng = np.random.default_rng(3)
    graph = Graph()
    x, y = Quantized(0.02, 5), Quantized(0.13, -9)
    operand = graph.tensor((16, 40), "int8", x)
    data = rng.integers(-127, 128, (24, 40)).astype(np.int8)
    scales = np.exp(rng.uniform(-6, -4, 24)).astype(np.float32)
    bias = rng.integers(-2000, 2000, 24).astype(np.int32)
    matrix = graph.tensor((24, 40), "int8", Quantized(scales.tolist(), 0, 0), data)
    units = (np.float32(0.02) * scales).tolist()
    added = graph.tensor((24,), "int32", Quantized(units, 0, 0), bias)
    result = graph.tensor((16, 24), "int8", y)
    graph.operator(
        "FULLY_CONNECTED", [operand, matrix, added], [result], "FullyConnectedOptions",
        fusedActivationFunction=1,
    )  # fmt: skip
    model = graph.model([operand], [result])
    rows = rng.integers(-128, 128, (16, 40)).astype(np.int8)
    total = (rows.astype(np.int64) - 5) @ data.astype(np.int64).T
    products = np.float64(np.float32(0.02)) * scales.astype(np.float64)
    reals = total * products + bias * np.asarray(units, np.float32).astype(np.float64)
    stored = np.rint(reals / np.float64(np.float32(0.13)) - 9)
    expected = np.clip(stored, -9, 127).astype(np.int8)
    options = CompileOptions(semantics="exact", integer_only=True)
    found = Executable(compile_to_bytes(model, options), cpu).main(rows)
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) > 50


@pytest.mark.parametrize("case", ["CONV_2D-int8", "ADD-uint8", "TANH-int8", "MEAN-int8",
                                  "QUANTIZE-int8-uint8", "MAX_POOL_2D-int8"])  # fmt: skip
def test_exact_semantics_are_within_two_steps_of_litert(case: str, cpu: Device) -> None:
    rng = np.random.default_rng(1)
    data = CASES[case](rng)
    model = read_tflite(data)
    inputs = [drawn(tensor, rng) for tensor in model.subgraphs[0].inputs]
    litert = LiteRt(data)
    litert(inputs)
    theirs = litert.tensor(model.subgraphs[0].outputs[0].index)
    options = CompileOptions(semantics="exact")
    found = Executable(compile_to_bytes(data, options), cpu).main(*inputs)
    assert np.abs(found.astype(int) - theirs.astype(int)).max() <= 2
    by_numpy = Interpreter(model, options.import_options).run(0, inputs)[0]
    assert np.abs(found.astype(int) - by_numpy.astype(int)).max() <= 1
    assert (found == by_numpy).mean() > 0.99
