"""Random graphs of TensorFlow Lite operators, whose operands are results of earlier operators."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tflite_builder import Graph, Quantized
from tflite_cases import Rng, add_bias, add_weights


@dataclass
class RandomTensor:
    """A tensor that there is."""

    index: int
    shape: tuple[int, ...]
    scale: float
    zero_point: int

    @property
    def parameters(self) -> Quantized:
        return Quantized(self.scale, self.zero_point)


class Unsuitable(Exception):
    """No tensor of the graph is an operand of an operator."""


class Writer:
    """Adds operators to a graph of int8 tensors."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.graph = Graph()
        shape = (1, *(int(n) for n in rng.integers(3, 8, 3)))
        self.inputs = [self.new(shape, 0.05) for _ in range(int(rng.integers(1, 3)))]
        self.tensors = list(self.inputs)

    def new(
        self, shape: tuple[int, ...], scale: float, like: RandomTensor | None = None
    ) -> RandomTensor:
        scale = like.scale if like else scale * float(self.rng.uniform(0.7, 1.4))
        zero_point = like.zero_point if like else int(self.rng.integers(-60, 60))
        return self.fixed(shape, scale, zero_point)

    def any(self, rank: int | None = None) -> RandomTensor:
        candidates = [each for each in self.tensors if rank is None or len(each.shape) == rank]
        if not candidates:
            raise Unsuitable
        return candidates[int(self.rng.integers(0, len(candidates)))]

    def add(
        self, name: str, inputs: list[RandomTensor | int], result: RandomTensor, *options: str,
        **values: Any,
    ) -> RandomTensor:  # fmt: skip
        """Add an operator of tensors and constants; return its result."""
        numbers = [each.index if isinstance(each, RandomTensor) else each for each in inputs]
        self.graph.operator(name, numbers, [result.index], *options, **values)
        return result

    def activation(self) -> int:
        return int(self.rng.choice([0, 0, 1, 3]))

    # -- operators --------------------------------------------------------------------------------

    def convolution(self) -> RandomTensor:
        x = self.any(4)
        if min(x.shape[1:3]) < 2:
            raise Unsuitable
        depthwise = self.rng.random() < 0.4
        channels = x.shape[3]
        features = channels if depthwise else int(self.rng.integers(1, 7))
        shape = (1, 2, 2, channels) if depthwise else (features, 2, 2, channels)
        axis = 3 if depthwise else 0
        filters, scale = add_weights(self.graph, self.rng, shape, "int8", axis, 0.5)
        bias = add_bias(self.graph, self.rng, x.parameters, filters, features, "int8")
        length = 4 * (1 if depthwise else channels)
        result = self.new((x.shape[0], x.shape[1] - 1, x.shape[2] - 1, features),
                          scale * x.scale * 60 * math.sqrt(length))  # fmt: skip
        return self.add(
            "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D", [x, filters, bias], result,
            "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions",
            padding=1, strideH=1, strideW=1, dilationHFactor=1, dilationWFactor=1,
            fusedActivationFunction=self.activation(),
            **({"depthMultiplier": 1} if depthwise else {}),
        )  # fmt: skip

    def fully_connected(self) -> RandomTensor:
        x = self.any(2)
        depth, features = x.shape[1], int(self.rng.integers(2, 20))
        matrix, scale = add_weights(self.graph, self.rng, (features, depth), "int8", 0, 0)
        result = self.new((x.shape[0], features), scale * x.scale * 60 * math.sqrt(depth))
        return self.add("FULLY_CONNECTED", [x, matrix, -1], result, "FullyConnectedOptions",
                        fusedActivationFunction=self.activation())  # fmt: skip

    def binary(self) -> RandomTensor:
        x = self.any()
        candidates = [each for each in self.tensors if each.shape == x.shape]
        y = candidates[int(self.rng.integers(0, len(candidates)))]
        name = str(self.rng.choice(["ADD", "SUB", "MUL"]))
        scale = x.scale * y.scale * 60 if name == "MUL" else x.scale + y.scale
        result = self.new(x.shape, scale)
        return self.add(name, [x, y], result, f"{name.capitalize()}Options",
                        fusedActivationFunction=self.activation())  # fmt: skip

    def unary(self) -> RandomTensor:
        x = self.any()
        name = str(self.rng.choice(["RELU", "LOGISTIC", "TANH", "HARD_SWISH", "LEAKY_RELU",
                                    "QUANTIZE", "ABS", "SOFTMAX", "GELU"]))  # fmt: skip
        result = self.new(x.shape, x.scale)
        if name in ("LOGISTIC", "SOFTMAX"):
            result = self.fixed(x.shape, 1 / 256, -128)
        if name == "TANH":
            result = self.fixed(x.shape, 1 / 128, 0)
        options: dict[str, Any] = {
            "LEAKY_RELU": {"options": "LeakyReluOptions", "alpha": 0.1},
            "SOFTMAX": {"options": "SoftmaxOptions", "beta": 1.0},
            "GELU": {"options": "GeluOptions", "approximate": True},
        }.get(name, {})  # type: ignore[assignment]
        return self.add(name, [x], result, **options)

    def fixed(self, shape: tuple[int, ...], scale: float, zero_point: int) -> RandomTensor:
        index = self.graph.tensor(shape, "int8", Quantized(scale, zero_point))
        return RandomTensor(index, shape, scale, zero_point)

    def pool(self) -> RandomTensor:
        x = self.any(4)
        if min(x.shape[1:3]) < 2:
            raise Unsuitable
        name = str(self.rng.choice(["AVERAGE_POOL_2D", "MAX_POOL_2D"]))
        result = self.new((x.shape[0], x.shape[1] - 1, x.shape[2] // 2, x.shape[3]), 0, x)
        return self.add(name, [x], result, "Pool2DOptions", padding=1, strideH=1, strideW=2,
                        filterHeight=2, filterWidth=2, fusedActivationFunction=0)  # fmt: skip

    def reshape(self) -> RandomTensor:
        x = self.any()
        count = math.prod(x.shape)
        shape: tuple[int, ...] = (x.shape[0], count // x.shape[0])
        if len(x.shape) == 2:
            side = next(n for n in range(math.isqrt(x.shape[1]), 0, -1) if not x.shape[1] % n)
            shape = (x.shape[0], side, 1, x.shape[1] // side)
        return self.add("RESHAPE", [x, self.graph.constant(shape)], self.new(shape, 0, x))

    def moved(self) -> RandomTensor:
        x = self.any(4)
        name = str(self.rng.choice(["TRANSPOSE", "PAD", "STRIDED_SLICE", "REVERSE_V2",
                                    "CONCATENATION", "RESIZE_NEAREST_NEIGHBOR",
                                    "RESIZE_BILINEAR"]))  # fmt: skip
        options: dict[str, Any] = {}
        inputs: list[RandomTensor | int] = [x]
        shape = x.shape
        if name == "TRANSPOSE":
            order = [0, *(int(n) + 1 for n in self.rng.permutation(3))]
            shape = tuple(shape[n] for n in order)
            inputs.append(self.graph.constant(order))
        elif name == "PAD":
            shape = (shape[0], shape[1] + 1, shape[2] + 2, shape[3])
            inputs.append(self.graph.constant([[0, 0], [0, 1], [1, 1], [0, 0]]))
        elif name == "STRIDED_SLICE":
            shape = (shape[0], -(-shape[1] // 2), *shape[2:])
            inputs += [self.graph.constant(each) for each in ([0] * 4, x.shape, [1, 2, 1, 1])]
            options = {"options": "StridedSliceOptions"}
        elif name == "REVERSE_V2":
            inputs.append(self.graph.constant([int(self.rng.integers(1, 4))]))
        elif name == "CONCATENATION":
            shape = (*shape[:3], 2 * shape[3])
            inputs.append(x)
            options = {"options": "ConcatenationOptions", "axis": 3}
        else:
            shape = (shape[0], *(int(n) for n in self.rng.integers(2, 9, 2)), shape[3])
            inputs.append(self.graph.constant(shape[1:3]))
            table = "Bilinear" if name == "RESIZE_BILINEAR" else "NearestNeighbor"
            options = {"options": f"Resize{table}Options", "version": 3}
        if math.prod(shape) > 4000:
            raise Unsuitable
        return self.add(name, inputs, self.new(shape, 0, x), **options)

    def mean(self) -> RandomTensor:
        x = self.any(4)
        result = self.new((x.shape[0], x.shape[3]), x.scale / 2)
        axes = self.graph.constant([1, 2])
        return self.add("MEAN", [x, axes], result, "ReducerOptions", keepDims=False)


def random_graph(seed: int) -> bytes:
    """A model of 3 to 12 operators; its outputs are the tensors that no operator takes."""
    rng = np.random.default_rng(seed)
    writer = Writer(rng)
    kinds: list[Callable[[], RandomTensor]] = [
        writer.convolution, writer.convolution, writer.fully_connected, writer.binary,
        writer.binary, writer.unary, writer.unary, writer.pool, writer.reshape, writer.moved,
        writer.moved, writer.mean,
    ]  # fmt: skip
    count = int(rng.integers(3, 13))
    while len(writer.tensors) - len(writer.inputs) < count:
        with contextlib.suppress(Unsuitable):
            writer.tensors.append(kinds[int(rng.integers(0, len(kinds)))]())
    computed = writer.tensors[len(writer.inputs) :]
    used = {int(n) for op in writer.graph._operators for n in op.inputs}
    outputs = [each.index for each in computed if each.index not in used]
    return writer.graph.model([each.index for each in writer.inputs], outputs)
