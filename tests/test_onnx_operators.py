"""Quantized operators with random constant parameters, beside exact arithmetic.

With constant scales, operators that ONNX's own tests compute in floats are integer arithmetic, and
so are quantize-dequantize pairs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from devices import ON_DEVICES
from onnx_models import MICROSOFT, computed, every_tensor, model, node, text_of
from onnx_oracle import Oracle
from onnx_runtime import DeviceShare
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.iree_driver import run_iree
from subquant.compiler.lowering import bytecode_of, lower
from subquant.dialects import create_context
from subquant.importers.onnx import write_module
from subquant.importers.onnx.reading.reader import read_onnx
from subquant.runtime import Device, Executable
from subquant.transforms.base import NoMatch
from subquant.transforms.iree_workarounds import expand_stablehlo

Rng = np.random.Generator


class Parameters:
    """Constants with names of their own."""

    def __init__(self, rng: Rng) -> None:
        self.rng, self.constants = rng, {}  # type: ignore[var-annotated]

    def add(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def scale(self, low: float = 0.01, high: float = 0.1, count: int | None = None) -> str:
        return self.add(np.asarray(self.rng.uniform(low, high, count), np.float32))

    def zero_point(self, dtype: Any = np.uint8) -> str:
        info = np.iinfo(dtype)
        return self.add(np.asarray(self.rng.integers(info.min, info.max + 1), dtype))

    def weight(self, shape: tuple[int, ...], dtype: Any = np.int8) -> str:
        info = np.iinfo(dtype)
        return self.add(self.rng.integers(info.min, info.max + 1, shape).astype(dtype))


IMAGES = (2, 4, 7, 6)
UINT8 = {"x": ("UINT8", IMAGES)}


def qlinear(operator: str, rng: Rng) -> onnx.ModelProto:
    """``QLinearAdd`` and the like: of the input with itself, in other parameters."""
    p = Parameters(rng)
    s, z, t, u = p.scale(), p.zero_point(), p.scale(), p.zero_point()
    name, attributes, shape = f"{MICROSOFT}.{operator}", {}, IMAGES
    inputs = ["x", s, z, p.scale(0.05, 0.2), p.zero_point()]
    if operator in ("QLinearAdd", "QLinearMul"):
        inputs = ["x", s, z, "x", t, u, p.scale(0.1, 0.4), p.zero_point()]
    elif operator == "QLinearConcat":
        inputs, attributes = [t, u, "x", s, z, "x", p.scale(), p.zero_point()], {"axis": 1}
        shape = (2, 8, 7, 6)
    elif operator == "QLinearGlobalAveragePool":
        shape = (2, 4, 1, 1)
    elif operator == "QLinearSoftmax":
        attributes = {"opset": 13, "axis": 1}
        inputs[3:] = [p.add(np.float32(1 / 256)), p.add(np.uint8(0))]
    nodes = [node(name, inputs, ["y"], **attributes)]
    return model(nodes, UINT8, {"y": ("UINT8", shape)}, p.constants)


def qlinear_conv(rng: Rng, groups: int = 1) -> onnx.ModelProto:
    p = Parameters(rng)
    w = p.weight((6, 4 // groups, 3, 2))
    zeros = p.add(rng.integers(-9, 9, 6).astype(np.int8))
    bias = p.add(rng.integers(-5000, 5000, 6).astype(np.int32))
    inputs = ["x", p.scale(), p.zero_point(), w, p.scale(count=6), zeros, p.scale(0.5, 1),
              p.zero_point(), bias]  # fmt: skip
    nodes = [node("QLinearConv", inputs, ["y"], group=groups, pads=[1, 0, 2, 1], strides=[2, 1])]
    return model(nodes, UINT8, {"y": ("UINT8", (2, 6, 4, 6))}, p.constants)


def qgemm(rng: Rng, *, is_float: bool = False) -> onnx.ModelProto:
    p = Parameters(rng)
    bias = p.add(rng.integers(-5000, 5000, 5).astype(np.int32))
    inputs = ["x", p.scale(), p.zero_point(), p.weight((5, 9)), p.scale(count=5),
              p.add(rng.integers(-9, 9, 5).astype(np.int8)), bias]  # fmt: skip
    if not is_float:
        inputs += [p.scale(0.5, 1), p.zero_point()]
    nodes = [node(f"{MICROSOFT}.QGemm", inputs, ["y"], transB=1)]
    type_ = "FLOAT" if is_float else "UINT8"
    return model(nodes, {"x": ("UINT8", (3, 9))}, {"y": (type_, (3, 5))}, p.constants)


def dynamic_quantize_matmul(rng: Rng) -> onnx.ModelProto:
    p = Parameters(rng)
    bias = p.add(rng.normal(size=5).astype(np.float32))
    inputs = ["x", p.weight((9, 5)), p.scale(count=5), "", bias]
    nodes = [node(f"{MICROSOFT}.DynamicQuantizeMatMul", inputs, ["y"])]
    return model(nodes, {"x": ("FLOAT", (3, 9))}, {"y": ("FLOAT", (3, 5))}, p.constants)


def between(operator: str, rng: Rng, **attributes: Any) -> onnx.ModelProto:
    """An operator of floats between dequantize and quantize."""
    p = Parameters(rng)
    nodes = [node("DequantizeLinear", ["x", p.scale(), p.zero_point()], ["a"])]
    operands, scale, shape, source = ["a"], p.scale(0.1, 0.2), IMAGES, IMAGES
    if operator in ("Add", "Mul"):
        nodes.append(node("DequantizeLinear", ["x", p.scale(), p.zero_point()], ["b"]))
        operands = ["a", "b"]
    elif operator in ("Conv", "Gemm", "MatMul"):
        weight_shape = (6, 4, 3, 3) if operator == "Conv" else (9, 6)
        axis = 0 if operator == "Conv" else 1
        scales = p.scale(count=6)
        zeros = p.add(np.zeros(6, np.int8))
        nodes.append(node("DequantizeLinear", [p.weight(weight_shape), scales, zeros], ["b"],
                          axis=axis))  # fmt: skip
        operands, scale = ["a", "b"], p.scale(1, 2)
        shape = (2, 6, 5, 4)
        if operator != "Conv":
            shape, source = (3, 6), (3, 9)
        if operator != "MatMul":
            first = p.constants[nodes[0].input[1]]
            bias = p.add(rng.integers(-5000, 5000, 6).astype(np.int32))
            units = p.add((first * p.constants[scales]).astype(np.float32))
            nodes.append(node("DequantizeLinear", [bias, units], ["c"], axis=0))
            operands.append("c")
    elif operator == "GlobalAveragePool":
        shape = (2, 4, 1, 1)
    elif operator == "MaxPool":
        shape, attributes = (2, 4, 3, 5), {"kernel_shape": [3, 2], "strides": [2, 1]}
    nodes.append(node(operator, operands, ["r"], **attributes))
    nodes.append(node("QuantizeLinear", ["r", scale, p.zero_point()], ["y"]))
    return model(nodes, {"x": ("UINT8", source)}, {"y": ("UINT8", shape)}, p.constants)


def chain(
    operators: list[tuple[str, list[Any], dict[str, Any]]], rng: Rng,
    shape: tuple[int, ...] | None = None, *, negative: bool = False,
) -> onnx.ModelProto:  # fmt: skip
    """Operators one after the other, of dequantized images, whose result is quantized."""
    p = Parameters(rng)
    first = p.add(-p.constants[p.scale()]) if negative else p.scale()
    nodes, last = [node("DequantizeLinear", ["x", first, p.zero_point()], ["a"])], "a"
    for number, (operator, extra_inputs, attributes) in enumerate(operators):
        names = ["" if each is None else p.add(each) for each in extra_inputs]
        nodes.append(node(operator, [last, *names], [f"r{number}"], **attributes))
        last = f"r{number}"
    nodes.append(node("QuantizeLinear", [last, p.scale(0.02, 0.05), p.zero_point()], ["y"]))
    return model(nodes, UINT8, {"y": ("UINT8", shape or IMAGES)}, p.constants)


def padded_by_two(rng: Rng) -> onnx.ModelProto:
    """Two convolutions, of which the second is dilated: bytes are padded by 2 where they come."""
    p = Parameters(rng)
    scale, zero = p.scale(0.1, 0.2), p.add(np.array(0, np.int8))
    nodes, last = [], "x"
    for number, step in enumerate((1, 2)):
        nodes += [
            node("DequantizeLinear", [last, scale, zero], [f"a{number}"]),
            node("DequantizeLinear", [p.weight((4, 4, 3, 3)), p.scale()], [f"w{number}"]),
            node("Conv", [f"a{number}", f"w{number}"], [f"p{number}"], pads=[step] * 4,
                 dilations=[step] * 2),
            node("QuantizeLinear", [f"p{number}", p.scale(9, 10), zero], [f"q{number}"]),
        ]  # fmt: skip
        last = f"q{number}"
    shape = (1, 4, 8, 8)
    return model(nodes, {"x": ("INT8", shape)}, {last: ("INT8", shape)}, p.constants)


def of_sums(rng: Rng) -> onnx.ModelProto:
    """A sum of two scales, cut at 0, and one between bounds that are no multiples of a scale."""
    p = Parameters(rng)
    nodes = [
        node("DequantizeLinear", ["x", p.scale(), p.zero_point()], ["a"]),
        node("DequantizeLinear", ["x", p.scale(), p.zero_point()], ["b"]),
        node("Sub", ["a", "b"], ["d"]),
        node("Relu", ["d"], ["e"]),
        node("Clip", ["e", "", p.add(np.float32(1.3))], ["f"]),
        node("QuantizeLinear", ["f", p.scale(0.01, 0.02), p.zero_point()], ["y"]),
    ]
    return model(nodes, UINT8, {"y": ("UINT8", IMAGES)}, p.constants)


def spread_operands(operator: str, rng: Rng) -> onnx.ModelProto:
    """An image and a number for each channel."""
    p = Parameters(rng)
    nodes = [
        node("DequantizeLinear", ["x", p.scale(), p.zero_point()], ["a"]),
        node("DequantizeLinear", [p.weight((4, 1, 1)), p.scale(), p.zero_point(np.int8)], ["b"]),
        node(operator, ["a", "b"], ["d"]),
        node("QuantizeLinear", ["d", p.scale(0.1, 0.2), p.zero_point()], ["y"]),
    ]
    return model(nodes, UINT8, {"y": ("UINT8", IMAGES)}, p.constants)


def embedded(rng: Rng, axis: int | None) -> onnx.ModelProto:
    """Rows of a table with one scale, or one for each row or column."""
    p = Parameters(rng)
    table = p.weight((20, 6))
    scale = p.scale(count=None if axis is None else (20, 6)[axis])
    attributes = {} if axis is None else {"axis": axis}
    nodes = [
        node("DequantizeLinear", [table, scale], ["t"], **attributes),
        node("Gather", ["t", "i"], ["r"]),
        node("QuantizeLinear", ["r", p.scale(0.02, 0.05), p.zero_point()], ["y"]),
    ]
    return model(nodes, {"i": ("INT64", (2, 5))}, {"y": ("UINT8", (2, 5, 6))}, p.constants)


def qlinear_where(rng: Rng) -> onnx.ModelProto:
    p = Parameters(rng)
    condition = p.add(rng.integers(0, 2, (4, 1, 1)).astype(bool))
    inputs = [condition, "x", p.scale(), p.zero_point(), "x", p.scale(), p.zero_point(),
              p.scale(0.05, 0.1), p.zero_point()]  # fmt: skip
    nodes = [node(f"{MICROSOFT}.QLinearWhere", inputs, ["y"])]
    return model(nodes, UINT8, {"y": ("UINT8", IMAGES)}, p.constants)


def qlinear_mean(
    operator: str, shape: tuple[int, ...], rng: Rng, **attributes: Any
) -> onnx.ModelProto:
    p = Parameters(rng)
    inputs = ["x", p.scale(), p.zero_point(), p.scale(0.01, 0.05), p.zero_point()]
    nodes = [node(f"{MICROSOFT}.{operator}", inputs, ["y"], **attributes)]
    return model(nodes, UINT8, {"y": ("UINT8", shape)}, p.constants)


WINDOWS = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
LARGER = np.float32([1, 1, 2, 3])
ALONE: dict[str, tuple[list[Any], dict[str, Any], tuple[int, ...]]] = {
    "Clip": ([np.float32(-0.7), np.float32(0.93)], {}, IMAGES),
    "LeakyRelu": ([], {"alpha": 0.13}, IMAGES),
    "LeakyRelu-0": ([], {"alpha": 0.0}, IMAGES),
    "AveragePool": ([], WINDOWS, (2, 4, 4, 6)),
    "AveragePool-padding": ([], WINDOWS | {"count_include_pad": 1}, (2, 4, 4, 6)),
    "AveragePool-ceil": ([], {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
                         (2, 4, 4, 3)),
    "MaxPool-ceil": ([], {"kernel_shape": [3, 3], "strides": [3, 2], "ceil_mode": 1},
                     (2, 4, 3, 3)),
    "MaxPool-dilated": ([], {"kernel_shape": [2, 3], "dilations": [3, 2]}, (2, 4, 4, 2)),
    "ReduceMean": ([np.array([1, -1])], {"keepdims": 0}, (2, 7)),
    "Pad": ([np.array([1, 2, 0, 1]), None, np.array([2, 3])], {}, (2, 4, 8, 9)),
    "Pad-edge": ([np.array([0, 0, 1, 2, 0, 0, 0, 1])], {"mode": "edge"}, (2, 4, 8, 9)),
    "Resize": ([None, LARGER], {"mode": "nearest"}, (2, 4, 14, 18)),
    "DepthToSpace": ([], {"blocksize": 2}, (2, 1, 14, 12)),
    "Tile": ([np.array([1, 2, 1, 1])], {}, (2, 8, 7, 6)),
}  # fmt: skip
"""Operators of one operand: further inputs, attributes, and the shape of the result."""
CHAINS: dict[str, Callable[[Rng], onnx.ModelProto]] = {
    **{
        name: functools.partial(chain, [(name.partition("-")[0], inputs, attributes)], shape=shape)
        for name, (inputs, attributes, shape) in ALONE.items()
    },
    "Neg": lambda rng: chain([("Neg", [], {}), ("Relu", [], {})], rng),
    "Relu-negative-scale": lambda rng: chain([("Relu", [], {})], rng, negative=True),
    "of-sums": of_sums,
    "padded-by-two": padded_by_two,
    "Add-spread": functools.partial(spread_operands, "Add"),
    "Sub-spread": functools.partial(spread_operands, "Sub"),
    "Mul-spread": functools.partial(spread_operands, "Mul"),
    "Gather": functools.partial(embedded, axis=None),
    "Gather-rows": functools.partial(embedded, axis=0),
    "Gather-columns": functools.partial(embedded, axis=1),
    "QLinearWhere": qlinear_where,
    "QLinearReduceMean": functools.partial(
        qlinear_mean, "QLinearReduceMean", (2, 1, 7, 1), axes=[1, 3], keepdims=1
    ),
    "QLinearAveragePool": functools.partial(
        qlinear_mean, "QLinearAveragePool", (2, 4, 4, 6), **WINDOWS
    ),
}  # fmt: skip

CASES: dict[str, Callable[[Rng], onnx.ModelProto]] = {
    **CHAINS,
    **{
        name: functools.partial(qlinear, name)
        for name in ("QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearGlobalAveragePool",
                     "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax")
    },
    "QLinearConv": qlinear_conv,
    "QLinearConv-groups": functools.partial(qlinear_conv, groups=2),
    "QGemm": qgemm,
    "QGemm-float": functools.partial(qgemm, is_float=True),
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
    **{
        f"QDQ-{name}": functools.partial(between, name)
        for name in ("Add", "Mul", "Conv", "Gemm", "MatMul", "Relu", "MaxPool",
                     "GlobalAveragePool", "Tanh", "Sigmoid")
    },
}  # fmt: skip


def input_of(proto: onnx.ModelProto, rng: Rng) -> Any:
    actual = read_onnx(proto.SerializeToString()).inputs[0]
    if actual.type == "UINT8":
        return rng.integers(0, 256, actual.shape).astype(np.uint8)
    if actual.type == "INT8":
        return rng.integers(-128, 128, actual.shape).astype(np.int8)
    if actual.type == "INT64":
        return rng.integers(-20, 20, actual.shape)
    return rng.normal(size=actual.shape).astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", CASES)
def test_every_tensor_is_exact(case: str, seed: int) -> None:
    proto = CASES[case](np.random.default_rng(seed))
    x = {proto.graph.input[0].name: input_of(proto, np.random.default_rng(seed + 100))}
    oracle = Oracle(proto, every_tensor(proto, x))
    oracle(x)
    assert oracle.integers + oracle.floats > 0


ON_DEVICE = DeviceShare(CASES, 5, lambda name: CASES[name](np.random.default_rng(0)))


@ON_DEVICES
@pytest.mark.parametrize("case", ON_DEVICE.names)
def test_devices_compute_the_same(case: str, device: Device) -> None:
    """Integers equal; functions of floats may differ in the last bit, and so by a step."""
    proto = CASES[case](np.random.default_rng(0))
    x = input_of(proto, np.random.default_rng(100))
    (expected,) = computed(proto, None, x)
    (result,) = ON_DEVICE.results(case, device, [x])
    assert result.dtype == expected.dtype
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    elif any(name in case for name in ("Tanh", "Sigmoid", "Softmax", "Gather-rows")):
        steps = np.abs(result.astype(int) - expected)
        assert steps.max() <= 1
        assert (steps > 0).mean() < 0.01
    else:
        np.testing.assert_array_equal(result, expected)


PAIRS = ["Conv", "Gemm", "MatMul", "Add", "Mul", "GlobalAveragePool"]


@pytest.mark.parametrize("name", [*(f"QDQ-{each}" for each in PAIRS), *CHAINS])
def test_pairs_become_integers(name: str) -> None:
    """No float is left between the argument and the result."""
    if name == "Gather-rows":
        pytest.skip("each row has a scale, which is taken when the program runs")
    assert "f32>" not in text_of(CASES[name](np.random.default_rng(0)))


@pytest.mark.parametrize("operator", ["MaxPool", "QLinearConv", "QLinearAveragePool"])
def test_channels_last(operator: str) -> None:
    """The same as with the channels first, with the axes moved."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, IMAGES).astype(np.uint8)
    if operator == "MaxPool":
        first = model([node("MaxPool", ["x"], ["y"], **WINDOWS)], UINT8,
                      {"y": ("UINT8", (2, 4, 4, 6))}, {})  # fmt: skip
        last = model([node(f"{MICROSOFT}.NhwcMaxPool", ["x"], ["y"], **WINDOWS)], UINT8,
                     {"y": ("UINT8", (2, 4, 6, 4))}, {})  # fmt: skip
    else:
        first = qlinear_conv(rng) if operator == "QLinearConv" else CASES[operator](rng)
        last = onnx.ModelProto()
        last.CopyFrom(first)
        (only,) = last.graph.node
        only.domain = MICROSOFT
        only.attribute.append(onnx.helper.make_attribute("channels_last", 1))
    for dim, n in zip(last.graph.input[0].type.tensor_type.shape.dim, (2, 7, 6, 4), strict=True):
        dim.dim_value = n
    last.graph.output[0].type.tensor_type.ClearField("shape")
    (expected,) = computed(first, None, x)
    (actual,) = computed(last, None, np.ascontiguousarray(x.transpose(0, 2, 3, 1)))
    np.testing.assert_array_equal(actual.transpose(0, 3, 1, 2), expected)


def test_the_greatest_of_a_negative_scale() -> None:
    """It is the least of the storage: left to floats."""
    scale, zero = np.array(-0.5, np.float32), np.array(3, np.uint8)
    nodes = [node("DequantizeLinear", ["x", "s", "z"], ["r"]),
             node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2])]  # fmt: skip
    proto = model(nodes, UINT8, {"y": ("FLOAT", (2, 4, 6, 5))}, {"s": scale, "z": zero})
    x = np.random.default_rng(0).integers(0, 256, IMAGES).astype(np.uint8)
    reals = (x.astype(np.float32) - 3) * np.float32(-0.5)
    windows = np.lib.stride_tricks.sliding_window_view(reals, (2, 2), (2, 3))
    np.testing.assert_array_equal(computed(proto, None, x)[0], windows.max((-1, -2)))


@pytest.mark.vulkan
def test_bytes_that_are_padded_where_they_are_computed(
    vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong with IREE 3.13 on llvmpipe: when this fails, remove `separate_bytes`."""
    if not vulkan.ends_long_loops:
        pytest.skip("the Vulkan device is not llvmpipe")
    monkeypatch.setattr(expand_stablehlo, "separate_bytes", lambda op: NoMatch("left alone"))
    proto = CASES["padded-by-two"](np.random.default_rng(0))
    x = input_of(proto, np.random.default_rng(100))
    (expected,) = computed(proto, None, x)
    options = CompileOptions(target="vulkan", vulkan_target=vulkan.vulkan_target)
    module = write_module(read_onnx(proto.SerializeToString()), create_context())
    lower(module, options)
    result = np.asarray(Executable(run_iree(bytecode_of(module), options, None), vulkan).main(x))
    assert (result != expected).sum() > expected.size / 2
