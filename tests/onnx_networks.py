"""Small float networks of the kinds that people quantize, and ONNX Runtime's ways to do so."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_models import OPSET, model

Array = np.ndarray[Any, Any]


class Network:
    """A network that is being written, with random weights."""

    def __init__(self, seed: int, opset: int = OPSET) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.opset = opset

    def weight(self, *shape: int, scale: float | None = None) -> str:
        spread = scale or 1 / np.sqrt(max(np.prod(shape[1:]), 1))
        return self.constant((self.rng.normal(size=shape) * spread).astype(np.float32))

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        domain, _, kind = operator.rpartition(".")
        number = len(self.nodes)
        names = [f"t{number}" + (f".{n}" if n else "") for n in range(outputs)]
        attributes |= {"name": f"{kind}_{number}", "domain": domain}
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def model(
        self, inputs: dict[str, tuple[str, tuple[int, ...]]], *outputs: str
    ) -> onnx.ModelProto:
        results = dict.fromkeys(outputs, "FLOAT")
        return model(self.nodes, inputs, results, self.constants, self.opset)


def _normalized(net: Network, x: str, channels: int) -> str:
    planes = [net.weight(channels, scale=0.2), net.weight(channels, scale=0.1)]
    variance = net.constant(net.rng.uniform(0.5, 2, channels).astype(np.float32))
    gain = net.constant(net.rng.uniform(0.5, 1.5, channels).astype(np.float32))
    return str(net.add("BatchNormalization", x, gain, planes[0], planes[1], variance))


def residual() -> onnx.ModelProto:
    """Convolutions with normalization, a sum around two of them, pooling, a classifier."""
    net = Network(1)
    x = net.add("Conv", "x", net.weight(8, 3, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    x = net.add("Relu", _normalized(net, x, 8))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = net.add("Conv", x, net.weight(8, 8, 3, 3), pads=[1, 1, 1, 1])
    y = net.add("Relu", _normalized(net, y, 8))
    y = net.add("Conv", y, net.weight(8, 8, 3, 3), net.weight(8), pads=[1, 1, 1, 1])
    x = net.add("Relu", net.add("Add", x, y))
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    x = net.add("Gemm", x, net.weight(10, 8), net.weight(10), transB=1)
    return net.model({"x": ("FLOAT", (2, 3, 16, 16))}, net.add("Softmax", x, axis=-1))


def mobile() -> onnx.ModelProto:
    """Depthwise convolutions, activations that end at 6, squeeze and excite, average pooling."""
    net = Network(2)
    six = [net.constant(np.float32(0)), net.constant(np.float32(6))]
    x = net.add("Conv", "x", net.weight(8, 3, 3, 3), pads=[1, 1, 1, 1])
    x = net.add("Clip", x, *six)
    y = net.add("Conv", x, net.weight(8, 1, 3, 3), net.weight(8), group=8, pads=[1, 1, 1, 1])
    y = net.add("Clip", y, *six)
    s = net.add("GlobalAveragePool", y)
    s = net.add("Relu", net.add("Conv", s, net.weight(4, 8, 1, 1), net.weight(4)))
    s = net.add("HardSigmoid", net.add("Conv", s, net.weight(8, 4, 1, 1), net.weight(8)))
    y = net.add("Mul", y, s)
    y = net.add("Conv", y, net.weight(8, 8, 1, 1), net.weight(8))
    x = net.add("Add", x, y)
    x = net.add("HardSwish", x)
    x = net.add("LeakyRelu", x, alpha=0.1)
    x = net.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.add("Resize", x, "", net.constant(np.float32([1, 1, 2, 2])), mode="nearest")
    x = net.add("Concat", x, y, axis=1)
    x = net.add("Sigmoid", net.add("Conv", x, net.weight(4, 16, 1, 1)))
    return net.model({"x": ("FLOAT", (1, 3, 8, 8))}, x)


def _attention(net: Network, x: str, width: int, heads: int, length: int) -> str:
    split = net.constant(np.array([0, length, heads, width // heads], np.int64))
    whole = net.constant(np.array([0, length, width], np.int64))
    branches = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        part = net.add("MatMul", x, net.weight(width, width))
        part = net.add("Add", part, net.weight(width, scale=0.1))
        branches.append(net.add("Transpose", net.add("Reshape", part, split), perm=order))
    scores = net.add("MatMul", branches[0], branches[1])
    root = net.constant(np.float32(np.sqrt(width // heads)))
    scores = net.add("Softmax", net.add("Div", scores, root), axis=-1)
    mixed = net.add("Transpose", net.add("MatMul", scores, branches[2]), perm=[0, 2, 1, 3])
    return str(net.add("MatMul", net.add("Reshape", mixed, whole), net.weight(width, width)))


def encoder() -> onnx.ModelProto:
    """A layer of BERT: embeddings, attention, layer normalization, GELU by its parts."""
    net, width, length = Network(3), 16, 6
    x = net.add("Gather", net.weight(20, width), "ids")
    positions = net.constant(np.arange(length, dtype=np.int64))
    x = net.add("Add", x, net.add("Gather", net.weight(length, width), positions))
    planes = [net.constant(np.ones(width, np.float32)), net.weight(width, scale=0.1)]
    x = net.add("LayerNormalization", x, *planes, epsilon=1e-6)
    x = net.add("Add", x, _attention(net, x, width, 4, length))
    x = net.add("LayerNormalization", x, *planes, epsilon=1e-6)
    y = net.add("MatMul", x, net.weight(width, 32))
    y = net.add("Add", y, net.weight(32, scale=0.1))
    e = net.add("Erf", net.add("Div", y, net.constant(np.float32(np.sqrt(2)))))
    e = net.add("Add", e, net.constant(np.float32(1)))
    y = net.add("Mul", net.add("Mul", y, e), net.constant(np.float32(0.5)))
    y = net.add("Add", net.add("MatMul", y, net.weight(32, width)), net.weight(width))
    x = net.add("LayerNormalization", net.add("Add", x, y), *planes, epsilon=1e-6)
    first = net.add("Gather", x, net.constant(np.array(0, np.int64)), axis=1)
    x = net.add("Tanh", net.add("Gemm", first, net.weight(width, 4), net.weight(4)))
    return net.model({"ids": ("INT64", (2, length))}, x)


def decoder() -> onnx.ModelProto:
    """A layer of LLaMA by its parts: RMS normalization, rotated halves, a mask, a gated MLP."""
    net, width, length, heads = Network(4), 16, 5, 2
    size = width // heads

    def normalized(x: str) -> str:
        mean = net.add("ReduceMean", net.add("Mul", x, x),
                       net.constant(np.array([-1], np.int64)), keepdims=1)  # fmt: skip
        mean = net.add("Sqrt", net.add("Add", mean, net.constant(np.float32(1e-5))))
        return str(net.add("Mul", net.add("Div", x, mean), net.constant(np.ones(width, "f4"))))

    x = net.add("Gather", net.weight(20, width), "ids")
    y = normalized(x)
    split = net.constant(np.array([0, length, heads, size], np.int64))
    angles = np.outer(np.arange(length), 0.3 ** np.arange(size // 2)).astype(np.float32)
    cos, sin = (net.constant(np.tile(f(angles), 2)[None, None]) for f in (np.cos, np.sin))
    heads_of = []
    for _ in range(3):
        part = net.add("Reshape", net.add("MatMul", y, net.weight(width, width)), split)
        heads_of.append(net.add("Transpose", part, perm=[0, 2, 1, 3]))
    for n in (0, 1):
        low, high = net.add("Split", heads_of[n], outputs=2, axis=-1, num_outputs=2)
        rotated_half = net.add("Concat", net.add("Neg", high), low, axis=-1)
        heads_of[n] = net.add(
            "Add", net.add("Mul", heads_of[n], cos), net.add("Mul", rotated_half, sin)
        )
    scores = net.add("MatMul", heads_of[0], net.add("Transpose", heads_of[1], perm=[0, 1, 3, 2]))
    mask = np.triu(np.full((length, length), -1e9, np.float32), 1)
    scores = net.add("Add", scores, net.constant(mask))
    mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), heads_of[2])
    whole = net.constant(np.array([0, length, width], np.int64))
    mixed = net.add("Reshape", net.add("Transpose", mixed, perm=[0, 2, 1, 3]), whole)
    x = net.add("Add", x, net.add("MatMul", mixed, net.weight(width, width)))
    y = normalized(x)
    gate = net.add("MatMul", y, net.weight(width, 32))
    gate = net.add("Mul", gate, net.add("Sigmoid", gate))
    y = net.add("Mul", gate, net.add("MatMul", y, net.weight(width, 32)))
    x = net.add("Add", x, net.add("MatMul", y, net.weight(32, width)))
    x = net.add("MatMul", normalized(x), net.weight(width, 20))
    return net.model({"ids": ("INT64", (2, length))}, x)


def recurrent() -> onnx.ModelProto:
    """An LSTM and a GRU one after the other, and a classifier of the last step."""
    net = Network(5)
    x, _, _ = net.add("LSTM", "x", net.weight(1, 24, 5), net.weight(1, 24, 6),
                      net.weight(1, 48, scale=0.1), outputs=3, hidden_size=6)  # fmt: skip
    x = net.add("Squeeze", x, net.constant(np.array([1], np.int64)))
    x = net.add("MatMul", x, net.weight(6, 4))
    return net.model({"x": ("FLOAT", (7, 2, 5))}, x)


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    each.__name__: each for each in (residual, mobile, encoder, decoder, recurrent)
}


def drawn(proto: onnx.ModelProto, seed: int) -> dict[str, Array]:
    """Arguments of a network."""
    rng = np.random.default_rng(seed)
    actual = {}
    for each in proto.graph.input:
        tensor = each.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        if tensor.elem_type == TensorProto.INT64:
            actual[each.name] = rng.integers(0, 20, shape)
        else:
            actual[each.name] = rng.normal(size=shape).astype(np.float32)
    return actual


FORMS = ("qdq-u8s8", "qdq-s8s8", "qdq-s16s8", "operators", "dynamic")


def quantized(proto: onnx.ModelProto, form: str, weights: str = "s8") -> onnx.ModelProto:
    """Return a network as ONNX Runtime quantizes it, with a type of weights."""
    logging.disable(logging.WARNING)  # it recommends its own preparation
    try:
        return _quantized(proto, form, weights)
    finally:
        logging.disable(logging.NOTSET)


def _quantized(proto: onnx.ModelProto, form: str, weights: str) -> onnx.ModelProto:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )

    class Noise(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._inputs = iter([drawn(proto, seed) for seed in range(2)])

        def get_next(self) -> Any:
            return next(self._inputs, None)

    types = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8, "s16": QuantType.QInt16}
    with tempfile.TemporaryDirectory() as there:
        source, target = f"{there}/model.onnx", f"{there}/quantized.onnx"
        onnx.save(proto, source)
        if form == "dynamic":
            quantize_dynamic(source, target, weight_type=types[weights])
        else:
            kind, _, pair = form.partition("-")
            activation = next((t for name, t in types.items() if pair.startswith(name)),
                              QuantType.QUInt8)  # fmt: skip
            quantize_static(
                source, target, Noise(),
                quant_format=QuantFormat.QDQ if kind == "qdq" else QuantFormat.QOperator,
                activation_type=activation, weight_type=types[weights],
                per_channel=kind == "qdq",
                extra_options={"UseQDQContribOps": "s16" in form},
            )  # fmt: skip
        return onnx.load(target)
