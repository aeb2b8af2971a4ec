"""Quantized operators with random constant parameters, beside exact arithmetic.

Constant scales make integer arithmetic of what ONNX's own tests compute in floats, and
quantize-dequantize pairs become integers too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from devices import ON_DEVICES
from onnx_models import MICROSOFT, computed, model, node, text_of
from onnx_oracle import Oracle
from subquant.formats.onnx import read_onnx
from subquant.frontends.onnx import Interpreter, elementwise
from subquant.runtime import Device
from together import Together

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


CASES: dict[str, Callable[[Rng], onnx.ModelProto]] = {
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
    found = read_onnx(proto.SerializeToString()).inputs[0]
    if found.type == "UINT8":
        return rng.integers(0, 256, found.shape).astype(np.uint8)
    return rng.normal(size=found.shape).astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", CASES)
def test_every_tensor_is_exact(case: str, seed: int) -> None:
    proto = CASES[case](np.random.default_rng(seed))
    found = read_onnx(proto.SerializeToString())
    x = {"x": input_of(proto, np.random.default_rng(seed + 100))}
    ours: dict[str, Any] = {}
    Interpreter(found).run(x, lambda name, value: ours.update({name: np.asarray(value)}))
    oracle = Oracle(proto, ours)
    oracle(x)
    assert oracle.integers + oracle.floats > 0


@functools.cache
def programs() -> Together:
    return Together({name: text_of(CASES[name](np.random.default_rng(0))) for name in CASES})


@ON_DEVICES
@pytest.mark.parametrize("case", CASES)
def test_devices_compute_the_same(case: str, device_name: str, device: Device) -> None:
    """Integers equal; functions of floats may differ in the last bit, and so by a step."""
    proto = CASES[case](np.random.default_rng(0))
    x = input_of(proto, np.random.default_rng(100))
    (expected,) = computed(proto, None, x)
    result = np.asarray(programs().function(case, device)(x))
    assert result.dtype == expected.dtype
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    elif any(name in case for name in ("Tanh", "Sigmoid", "Softmax", "LeakyRelu")):
        steps = np.abs(result.astype(int) - expected)
        assert steps.max() <= 1
        assert (steps > 0).mean() < 0.01
    else:
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ["Conv", "Gemm", "MatMul", "Add", "Mul", "GlobalAveragePool"])
def test_pairs_become_integers(name: str) -> None:
    """No float is left between the argument and the result."""
    text = text_of(CASES[f"QDQ-{name}"](np.random.default_rng(0)))
    assert "f32" not in text


@pytest.mark.vulkan
def test_bytes_that_are_joined_where_they_are_computed(
    vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong with IREE 3.13 on llvmpipe: when this fails, remove `joined` of reals.py."""
    if not vulkan.ends_long_loops:
        pytest.skip("the Vulkan device is not llvmpipe")
    monkeypatch.setattr(elementwise, "joined", lambda parts, axis: np.concatenate(parts, axis=axis))
    proto = CASES["QLinearConcat"](np.random.default_rng(0))
    x = input_of(proto, np.random.default_rng(100))
    (expected,), (result,) = computed(proto, None, x), computed(proto, vulkan, x)
    assert 0 < (result != expected).sum() < expected.size / 4
