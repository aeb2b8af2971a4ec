"""MobileNet v2 with random weights, quantized by ONNX Runtime.

Its 52 convolutions of 224x224 images follow arXiv:1801.04381, table 2: 300 million
multiply-accumulates.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

IMAGE_SHAPE = (1, 3, 224, 224)
_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip
"""Stages: expansion factor, channels, number of blocks, stride of the first block."""


class _Writer:
    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def constant(self, array: Array) -> str:
        name = f"constant_{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}_{len(self.nodes)}"
        node = helper.make_node(operator, list(inputs), [name], name=f"the {name}", **attributes)
        self.nodes.append(node)
        return name

    def convolution(
        self, x: str, inputs: int, outputs: int, size: int = 1, stride: int = 1, groups: int = 1
    ) -> str:
        shape = (outputs, inputs // groups, size, size)
        weight = self._rng.normal(scale=(2 / np.prod(shape[1:])) ** 0.5, size=shape)
        bias = self._rng.normal(scale=0.1, size=outputs)
        return self.add(
            "Conv", x, self.constant(weight), self.constant(bias), strides=[stride] * 2,
            pads=[size // 2] * 4, group=groups,
        )  # fmt: skip


def mobile_network() -> onnx.ModelProto:
    """Return MobileNet v2 in f32, from ``x`` of `IMAGE_SHAPE` to 1,000 logits."""
    w = _Writer()
    zero, six = w.constant(np.zeros(())), w.constant(np.full((), 6.0))
    channels = 32
    x = w.add("Clip", w.convolution("x", 3, channels, 3, 2), zero, six)
    for expansion, outputs, count, stride in _STAGES:
        for number in range(count):
            wide, y = channels * expansion, x
            if expansion > 1:
                y = w.add("Clip", w.convolution(y, channels, wide), zero, six)
            step = stride if number == 0 else 1
            y = w.add("Clip", w.convolution(y, wide, wide, 3, step, wide), zero, six)
            y = w.convolution(y, wide, outputs)
            x = w.add("Add", x, y) if number else y
            channels = outputs
    x = w.add("Clip", w.convolution(x, channels, 1280), zero, six)
    x = w.add("Flatten", w.add("GlobalAveragePool", x))
    weight = np.random.default_rng(1).normal(scale=1280**-0.5, size=(1000, 1280))
    x = w.add("Gemm", x, w.constant(weight), w.constant(np.zeros(1000)), transB=1)
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE_SHAPE),
        helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 1000]),
    ]
    graph = helper.make_graph(w.nodes, "mobilenet_v2", ends[:1], ends[1:], w.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def quantized(model: onnx.ModelProto, activations: str, image: Array) -> bytes:
    """Quantize a network in QDQ form with a scale for each channel.

    Args:
        model: a model with one input, ``x``.
        activations: ``int8`` or ``uint8``; weights are int8.
        image: the calibration input.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = [{"x": image}]

        def get_next(self) -> dict[str, Array] | None:
            return self._left.pop() if self._left else None

    logging.getLogger().setLevel(logging.ERROR)  # it recommends preprocessing
    kind = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8}[activations]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        quantize_static(
            model, file, Reader(), activation_type=kind, weight_type=QuantType.QInt8,
            per_channel=True,
        )  # fmt: skip
        return file.read_bytes()
