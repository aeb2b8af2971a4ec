"""Networks with a generated task: random features, and a classifier that is fitted to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnx_networks import Network, _attention

Array = np.ndarray[Any, Any]

CLASSES = 8


@dataclass(frozen=True)
class Task:
    """A classifier, and samples of its task.

    Attributes:
        model: the network; its input is the first one of the file, its result are logits.
        inputs, labels: samples, of which the first `fitted` fitted the classifier.
    """

    model: onnx.ModelProto
    inputs: Array
    labels: Array
    fitted: int

    @property
    def name(self) -> str:
        return str(self.model.graph.input[0].name)

    @property
    def batch(self) -> int:
        return int(self.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value)

    def held_out(self) -> tuple[Array, Array]:
        return self.inputs[self.fitted :], self.labels[self.fitted :]


def logits(run: Callable[[Array], Array], inputs: Array, batch: int) -> Array:
    """Run a network on samples, in batches."""
    starts = range(0, len(inputs), batch)
    return np.concatenate([np.asarray(run(inputs[start : start + batch])) for start in starts])


def onnx_session(model: onnx.ModelProto) -> Callable[[Array], Array]:
    """Return a function that runs a model by ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    name = session.get_inputs()[0].name
    return lambda x: np.asarray(session.run(None, {name: x})[0])


def _fit(
    net: Network, build: Callable[[str, str], Any], inputs: Array, labels: Array, fitted: int,
    width: int,
) -> Task:  # fmt: skip
    """Fit the last layer by ridge regression to the features of the others."""
    weight = net.constant(np.eye(width, CLASSES, dtype=np.float32))
    bias = net.constant(np.zeros(CLASSES, np.float32))
    model, features = build(weight, bias)
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output[0].name = features
    del probe.graph.output[0].type.tensor_type.shape.dim[:]
    probe.graph.output[0].type.tensor_type.ClearField("shape")
    batch = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    x = logits(onnx_session(probe), inputs[:fitted], batch).reshape((fitted, -1)).astype(np.float64)
    x = np.hstack([x, np.ones((fitted, 1))])
    targets = np.eye(CLASSES)[labels[:fitted]]
    ridge = 1e-3 * np.trace(x.T @ x) / x.shape[1]
    solved = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ targets)
    for name, array in ((weight, solved[:-1]), (bias, solved[-1])):
        [tensor] = [each for each in model.graph.initializer if each.name == name]
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))
    return Task(model, inputs, labels, fitted)


def images_task(
    samples: int = 2400, fitted: int = 800, size: int = 12, channels: int = 24, batch: int = 16,
    seed: int = 7, noise: float = 1.0,
) -> Task:  # fmt: skip
    """Shifted and noisy patterns, classified by convolutions with a residual sum and pooling."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(CLASSES, size, size))
    labels = rng.integers(0, CLASSES, samples)
    shifts = rng.integers(-1, 2, (samples, 2))
    images = np.stack(
        [np.roll(patterns[n], shift, (0, 1)) for n, shift in zip(labels, shifts, strict=True)]
    )
    images = images + rng.normal(size=images.shape) * noise
    inputs = images[:, None].astype(np.float32)
    net = Network(seed + 4)
    x = net.add("Conv", "x", net.weight(channels, 1, 3, 3), net.weight(channels, scale=0.3),
                pads=[1, 1, 1, 1])  # fmt: skip
    x = net.add("Relu", x)
    y = net.add("Conv", x, net.weight(channels, channels, 3, 3), pads=[1, 1, 1, 1])
    gain = net.constant(rng.uniform(0.5, 2, channels).astype(np.float32))
    planes = [net.weight(channels, scale=0.1), net.weight(channels, scale=0.1)]
    variance = net.constant(rng.uniform(0.2, 1, channels).astype(np.float32))
    y = net.add("Relu", net.add("BatchNormalization", y, gain, *planes, variance))
    y = net.add("Conv", y, net.weight(channels, channels, 3, 3), net.weight(channels, scale=0.1),
                pads=[1, 1, 1, 1])  # fmt: skip
    x = net.add("Relu", net.add("Add", x, y))
    for pooling in ("MaxPool", "AveragePool"):
        x = net.add(pooling, x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.add("Flatten", x)

    def build(weight: str, bias: str) -> tuple[onnx.ModelProto, str]:
        result = net.add("Gemm", x, weight, bias)
        return net.model({"x": ("FLOAT", (batch, 1, size, size))}, result), str(x)

    width = channels * (size // 4) ** 2
    return _fit(net, build, inputs, labels, fitted, width)


def tokens_task(
    samples: int = 2400, fitted: int = 800, length: int = 16, width: int = 64, batch: int = 16,
    layers: int = 2, seed: int = 8, own_tokens: float = 0.5,
) -> Task:  # fmt: skip
    """Sequences of tokens, classified by the class most of them belong to: an encoder like BERT."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, samples)
    own = rng.random((samples, length)) < own_tokens
    classes = np.where(own, labels[:, None], rng.integers(0, CLASSES, (samples, length)))
    inputs = (classes * 8 + rng.integers(0, 8, (samples, length))).astype(np.int64)
    net = Network(seed + 4)
    x = net.add("Gather", net.weight(CLASSES * 8, width, scale=1), "ids")
    positions = net.constant(rng.normal(size=(length, width)).astype(np.float32) * 0.3)
    x = net.add("Add", x, positions)

    def normalized(x: str) -> str:
        gain = net.constant(rng.uniform(0.7, 1.3, width).astype(np.float32))
        shift = net.weight(width, scale=0.1)
        return str(net.add("LayerNormalization", x, gain, shift, epsilon=1e-6))

    def matrix(*shape: int) -> str:
        return net.weight(*shape, scale=float(shape[0] ** -0.5))

    for _ in range(layers):
        x = normalized(net.add("Add", x, _attention(net, x, width, 4, length)))
        y = net.add("Add", net.add("MatMul", x, matrix(width, 2 * width)),
                    net.weight(2 * width, scale=0.1))  # fmt: skip
        e = net.add("Erf", net.add("Div", y, net.constant(np.float32(np.sqrt(2)))))
        e = net.add("Add", e, net.constant(np.float32(1)))
        y = net.add("Mul", net.add("Mul", y, e), net.constant(np.float32(0.5)))
        y = net.add("Add", net.add("MatMul", y, matrix(2 * width, width)),
                    net.weight(width, scale=0.1))  # fmt: skip
        x = normalized(net.add("Add", x, y))
    axes = net.constant(np.array([1], np.int64))
    x = net.add("ReduceMean", x, axes, keepdims=0)

    def build(weight: str, bias: str) -> tuple[onnx.ModelProto, str]:
        result = net.add("Gemm", x, weight, bias)
        return net.model({"ids": ("INT64", (batch, length))}, result), str(x)

    return _fit(net, build, inputs, labels, fitted, width)
